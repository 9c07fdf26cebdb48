# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the files of the data sources stroke and heart from the published ones below $CFL_DATA_ROOT.

python benchmarks/hospital_files.py            writes them into the package
python benchmarks/hospital_files.py --check    compares them with what is there
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import sys
from pathlib import Path

import pandas as pd

from cfl_flare.data.hospitals import FOLDER, HEART, STROKE

DEFICITS = [f"RDEF{i}" for i in range(1, 9)]
AT_RANDOMISATION = ["RDELAY", "RCONSC", "SEX", "AGE", "RSLEEP", "RATRIAL", "RCT", "RVISINF", "RHEP24", "RASP3", "RSBP"]
# The file has Polish months.
MONTHS = {
    "sty": 1,
    "lut": 2,
    "mar": 3,
    "kwi": 4,
    "maj": 5,
    "cze": 6,
    "lip": 7,
    "sie": 8,
    "wrz": 9,
    "pa?": 10,
    "lis": 11,
}
MONTHS |= {"paź": 10, "gru": 12}
# The files have no header.
HEART_COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
HEART_COLUMNS += ["slope", "ca", "thal", "num"]
HOSPITALS = {"cleveland": "cleveland", "hungarian": "hungary", "switzerland": "switzerland", "va": "long-beach"}


def stroke(root: Path) -> pd.DataFrame:
    """What is known of a patient when treatment is drawn, and the outcome after six months."""
    raw = pd.read_csv(root / "ist.csv.gz", low_memory=False)
    found = raw[["HOSPNUM", "COUNTRY"]].copy()
    month, year = raw["RDATE"].str.split("-").str[0], raw["RDATE"].str.split("-").str[1]
    found["RDATE"] = "19" + year + "-" + month.map(MONTHS).astype(int).astype(str).str.zfill(2)
    found = pd.concat([found, raw[[*AT_RANDOMISATION, *DEFICITS, "STYPE"]]], axis=1)
    found["dependent"] = raw["OCCODE"].map({1: 1, 2: 1, 3: 0, 4: 0}).astype("Int64")
    found["days"], found["died"] = raw["TD"].where(raw["TD"] != 0, 0.5), raw["DIED"]  # a time is above 0
    return found


def heart(root: Path) -> pd.DataFrame:
    """The four hospitals below each other; a cholesterol or blood pressure of 0 is a missing one."""
    parts = []
    for file, hospital in HOSPITALS.items():
        own = pd.read_csv(root / "heart" / f"processed.{file}.data", names=HEART_COLUMNS, na_values="?")
        for name in ("chol", "trestbps"):
            own[name] = own[name].where(own[name] != 0)
        parts.append(own.assign(hospital=hospital)[["hospital", *HEART_COLUMNS]])
    found = pd.concat(parts, ignore_index=True)
    whole = [name for name in HEART_COLUMNS if name != "oldpeak"]
    return found.astype(dict.fromkeys(whole, "Int64"))


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
