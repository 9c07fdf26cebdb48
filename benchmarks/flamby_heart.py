# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Heart disease as FLamby's Fed-Heart-Disease has it: its columns, patients, split and scaling.

Those of owkin/FLamby at dc4fe3c, ``flamby/datasets/fed_heart_disease/dataset.py`` (du Terrail et al. 2022). It leaves
out three columns, and patients with a missing value in another; a cholesterol of 0, which stands for a missing one,
stays. Each hospital's split has the same seed, whatever the run's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from cfl_flare.core.settings import check_types
from cfl_flare.data.files import find
from cfl_flare.data.samples import DataSource, Samples

WHERE = "data flamby-heart"
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
        check_types(self, WHERE)

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
        path = find(f"{self.folder}/processed.{name}.data", WHERE)
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
