# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a participant fills up and scales the features of its table: by its training rows, kept with its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.data.columns import Columns
from cfl_flare.data.labels import LARGEST

SCALINGS = ("site", "federation", "none")


@dataclass(frozen=True)
class Preparation:
    """What was fitted to a participant's training rows.

    A feature x becomes z = (x - mean) / deviation, and is stored as (z + 1) / 2, so that the network sees z.

    Attributes:
        columns: what the table's columns mean.
        fill: ``(d,)`` what stands for a missing value.
        mean: ``(d,)``.
        deviation: ``(d,)``, above 0.
    """

    columns: Columns
    fill: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def fitted(cls, x: np.ndarray, columns: Columns, scaling: str) -> Preparation:
        """Fits to the training rows of one participant.

        A missing number is filled with the rows' median, a missing category with the most frequent one. Where no row
        has a value, a number is filled with its mean, which is 0 once scaled, and all features of a category with 0.

        Args:
            x: the features ``(n, d)``, NaN where a value is missing.
            columns: what they mean; with mean and deviation of each number for the scaling ``federation``.
            scaling: numbers are scaled by these rows (``site``), by ``columns`` (``federation``), or stored as they
                are (``none``).
        """
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import StandardScaler

        numbers = columns.scaled
        mean, deviation, fill = np.zeros(len(numbers)), np.ones(len(numbers)), np.zeros(len(numbers))
        if numbers.any():
            seen = x[:, numbers]
            some = ~np.isnan(seen).all(axis=0)
            scale = StandardScaler().fit(np.where(some, seen, 0.0))
            mean[numbers], deviation[numbers] = scale.mean_, scale.scale_
            if scaling == "federation":
                known = [c for c in columns.columns if c.is_scaled]
                mean[numbers] = [c.mean or 0.0 for c in known]
                deviation[numbers] = [c.deviation or 1.0 for c in known]
            middle = SimpleImputer(strategy="median", keep_empty_features=True).fit(seen).statistics_
            fill[numbers] = np.where(some, middle, mean[numbers])
        place = 0
        for column in columns.columns:
            if column.categories and not column.is_scaled:
                width = len(column.features) - column.missing
                own = slice(place, place + width)
                fill[own] = _most_frequent(x[:, own])
            place += len(column.features)
        if scaling == "none":
            mean, deviation = np.full(len(numbers), 0.5), np.full(len(numbers), 0.5)
        return cls(columns, fill, mean, deviation)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Features ``(n, d)`` as `cfl_flare.data.samples.Samples` has them: float32 without NaN."""
        filled = np.where(np.isnan(x), self.fill, x)
        with np.errstate(over="ignore"):  # what becomes infinite is refused later
            return (((filled - self.mean) / self.deviation + 1) / 2).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        numbers = {name: getattr(self, name).tolist() for name in ("fill", "mean", "deviation")}
        return {"columns": self.columns.to_dict(), **numbers}

    @classmethod
    def of(cls, value: Any, where: str) -> Preparation:
        """From what `to_dict` made.

        Raises:
            ConfigError: it is something else.
        """
        require(isinstance(value, Mapping), f"{where} should be a dictionary; name a file that cfl_flare wrote")
        columns = Columns.of(value.get("columns") or {}, where).usable(where)
        found = {}
        for name in ("fill", "mean", "deviation"):
            try:
                found[name] = np.array(value.get(name), np.float64)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise ConfigError(f"{where}: {name} should be numbers; name a file that cfl_flare wrote") from error
            fits = found[name].shape == (len(columns.features),) and (np.abs(found[name]) <= LARGEST).all()
            wanted = f"{len(columns.features)} numbers of at most {LARGEST:g} in size"
            require(bool(fits), f"{where}: {name} should be {wanted}; name a whole file")
        require(bool((found["deviation"] > 0).all()), f"{where}: a deviation is not above 0; name a whole file")
        return cls(columns, **found)


def _most_frequent(x: np.ndarray) -> np.ndarray:
    """The most frequent category's features of ``x (n, d)``; zeros where no row has one."""
    there = x[~np.isnan(x[:, 0])]
    if not len(there):
        return np.zeros(x.shape[1])
    if x.shape[1] == 1:
        return np.array([float(there.mean() > 0.5)])
    counts = there.sum(axis=0)
    return (np.arange(len(counts)) == counts.argmax()).astype(np.float64) * bool(counts.any())
