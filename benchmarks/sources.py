# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The data of the benchmarks: sources of their own, which jobs carry to the sites, and the package's hospital files.

    python benchmarks/sources.py            makes the files of the sources stroke and heart from the published ones
    python benchmarks/sources.py --check    compares them with what is in the package

The published ones are below $CFL_DATA_ROOT.

`FLambyHeart` has heart disease as owkin/FLamby at dc4fe3c has it, in
``flamby/datasets/fed_heart_disease/dataset.py`` (du Terrail et al. 2022): its columns, patients, split and scaling. It
leaves out three columns, and patients with a missing value in another; a cholesterol of 0, which stands for a missing
one, stays. Each hospital's split has the same seed, whatever the run's.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from cfl_flare.core.errors import DataError
from cfl_flare.core.settings import check_types
from cfl_flare.data.files import find, read_npz
from cfl_flare.data.hospitals import FOLDER, HEART, STROKE
from cfl_flare.data.images import decoded
from cfl_flare.data.samples import DataSource, Samples

# ---- CIFAR-10: JPEGs end to end in an npz file ----


JPEG = "data jpeg-npz"


@dataclass(frozen=True)
class JpegNpz(DataSource):
    """JPEGs end to end in an npz file: ``{train,test}_jpeg`` (bytes), ``_offsets`` (n + 1) and ``_labels``.

    Image i is the file in bytes ``offsets[i]:offsets[i + 1]``.

    Attributes:
        path: the file, in the working folder or below ``$CFL_DATA_ROOT``.
    """

    path: str

    def __post_init__(self) -> None:
        check_types(self, JPEG)

    def load(self) -> tuple[Samples, Samples]:
        """Both splits, decoded, uint8."""
        path = find(self.path, JPEG)
        arrays = read_npz(path, [f"{s}_{kind}" for s in ("train", "test") for kind in ("jpeg", "offsets", "labels")])
        train, test = (self._split(arrays, split, f"{path}: {split}") for split in ("train", "test"))
        return train, test

    @staticmethod
    def _split(arrays: dict[str, np.ndarray], split: str, where: str) -> Samples:
        data, offsets, labels = (arrays[f"{split}_{kind}"] for kind in ("jpeg", "offsets", "labels"))
        if data.ndim != 1 or data.dtype != np.uint8:
            raise DataError(f"{where}_jpeg is {data.dtype} {data.shape}; should be the files' bytes, uint8 (bytes,)")
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
            raise DataError(f"{where}_offsets is {offsets.dtype} {offsets.shape}; should be whole numbers (n + 1,)")
        offsets = offsets.astype(np.int64)
        if offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
            raise DataError(f"{where}_offsets do not rise from 0 to the {len(data)} bytes of {split}_jpeg")
        if len(offsets) - 1 != len(labels):
            raise DataError(f"{where}: {len(offsets) - 1} images but {len(labels)} labels")
        if not len(labels):
            raise DataError(f"{where}: no samples")
        files = [io.BytesIO(data[a:b].tobytes()) for a, b in pairwise(offsets)]
        images = decoded(files, lambda i: f"{where} image {i}")
        return Samples.of_images(where, images.transpose(0, 2, 3, 1), labels).check(where)


# ---- Heart disease by FLamby ----


FLAMBY = "data flamby-heart"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
LEFT_OUT = [10, 11, 12]  # slope, ca, thal
CATEGORIES = [2, 6]  # chest pain, electrocardiogram at rest
SPLIT_SEED, TRAIN_SHARE = 43, 0.66
TINY = 1e-9  # added to a deviation


@dataclass(frozen=True)
class FLambyHeart(DataSource):
    """Its 740 patients of four hospitals: 13 features, scaled by each hospital's own training patients.

    Attributes:
        folder: of the four files, in the working folder or below ``$CFL_DATA_ROOT``.
        pooled: every hospital trains on the patients of all, scaled together, and is tested on its own, scaled by its
            own: FLamby's pooled training, as it tests it at the hospitals.
    """

    folder: str = "heart"
    pooled: bool = False

    def __post_init__(self) -> None:
        check_types(self, FLAMBY)

    def load(self) -> tuple[Samples, Samples]:
        """Both splits."""
        parts = [self._patients(name) for name in HOSPITALS]
        x, y, key = (np.concatenate([part[i] for part in parts]) for i in range(3))
        x = pd.get_dummies(pd.DataFrame(x), columns=CATEGORIES, drop_first=True).to_numpy(np.float32)
        trains = np.concatenate([part[3] for part in parts])
        z = np.concatenate([scaled(x[key == k], x[(key == k) & trains]) for k in range(len(HOSPITALS))])
        test = Samples(stored(z[~trains]), y[~trains], key[~trains])
        if not self.pooled:
            return Samples(stored(z[trains]), y[trains], key[trains]), test
        everyone, count = scaled(x[trains], x[trains]), len(HOSPITALS)
        copies = np.repeat(np.arange(count), trains.sum())
        return Samples(stored(np.tile(everyone, (count, 1))), np.tile(y[trains], count), copies), test

    def _patients(self, name: str) -> tuple[np.ndarray, ...]:
        """A hospital's columns, outcomes, its number, and whether each patient trains."""
        path = find(f"{self.folder}/processed.{name}.data", FLAMBY)
        table = pd.read_csv(path, header=None, na_values="?").drop(columns=LEFT_OUT).dropna().to_numpy(np.float64)
        y = (table[:, -1] > 0).astype(np.int64)
        rows, trains = np.arange(len(y)), np.zeros(len(y), bool)
        several = np.bincount(y, minlength=2).min() > 2
        drawn, _ = train_test_split(
            rows,
            train_size=TRAIN_SHARE,
            test_size=1 - TRAIN_SHARE,
            random_state=SPLIT_SEED,
            stratify=y if several else None,
        )
        trains[drawn] = True
        return table[:, :-1], y, np.full(len(y), HOSPITALS.index(name)), trains


def scaled(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Columns with the mean and deviation of some rows."""
    return (x - by.mean(axis=0)) / (by.std(axis=0, ddof=1) + TINY)


def stored(z: np.ndarray) -> np.ndarray:
    """As the package stores what the network should see as z."""
    return np.float32((z + 1) / 2)


# ---- The package's files ----


DEFICITS = [f"RDEF{i}" for i in range(1, 9)]
AT_RANDOMISATION = ["RDELAY", "RCONSC", "SEX", "AGE", "RSLEEP", "RATRIAL", "RCT", "RVISINF", "RHEP24", "RASP3", "RSBP"]
# The file has Polish months.
NAMES = ("sty", "lut", "mar", "kwi", "maj", "cze", "lip", "sie", "wrz", "paź", "lis", "gru")
MONTHS = {"pa?": 10} | {name: number for number, name in enumerate(NAMES, 1)}
# The files have no header.
HEART_COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
HEART_COLUMNS += ["slope", "ca", "thal", "num"]
HEART_FILES = {"cleveland": "cleveland", "hungarian": "hungary", "switzerland": "switzerland", "va": "long-beach"}


def stroke(root: Path) -> pd.DataFrame:
    """What is known of a patient when treatment is drawn, and the outcome after six months."""
    raw = pd.read_csv(root / "ist.csv.gz", low_memory=False)
    patients = raw[["HOSPNUM", "COUNTRY"]].copy()
    month, year = raw["RDATE"].str.split("-").str[0], raw["RDATE"].str.split("-").str[1]
    patients["RDATE"] = "19" + year + "-" + month.map(MONTHS).astype(int).astype(str).str.zfill(2)
    patients = pd.concat([patients, raw[[*AT_RANDOMISATION, *DEFICITS, "STYPE"]]], axis=1)
    patients["dependent"] = raw["OCCODE"].map({1: 1, 2: 1, 3: 0, 4: 0}).astype("Int64")
    patients["days"], patients["died"] = raw["TD"].where(raw["TD"] != 0, 0.5), raw["DIED"]  # a time is above 0
    return patients


def heart(root: Path) -> pd.DataFrame:
    """The four hospitals below each other; a cholesterol or blood pressure of 0 is a missing one."""
    parts = []
    for file, hospital in HEART_FILES.items():
        own = pd.read_csv(root / "heart" / f"processed.{file}.data", names=HEART_COLUMNS, na_values="?")
        for name in ("chol", "trestbps"):
            own[name] = own[name].where(own[name] != 0)
        parts.append(own.assign(hospital=hospital)[["hospital", *HEART_COLUMNS]])
    patients = pd.concat(parts, ignore_index=True)
    integers = [name for name in HEART_COLUMNS if name != "oldpeak"]
    return patients.astype(dict.fromkeys(integers, "Int64"))


def packed(frame: pd.DataFrame) -> bytes:
    """As .csv.gz, the same bytes each time."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as file:
        file.write(frame.to_csv(index=False).encode())
    return out.getvalue()


def main() -> int:
    """Writes or compares the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check, root = parser.parse_args().check, Path(os.environ["CFL_DATA_ROOT"])
    differ = []
    for name, made in ((STROKE, stroke(root)), (HEART, heart(root))):
        path = FOLDER / name
        if check:
            there = gzip.decompress(path.read_bytes()) if path.exists() else b""
            differ += [name] * (there != gzip.decompress(packed(made)))
        else:
            path.write_bytes(packed(made))
            print(path, f"{path.stat().st_size:,} bytes, {len(made)} rows")
    if differ:
        print("differ:", ", ".join(differ), file=sys.stderr)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
