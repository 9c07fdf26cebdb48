# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a participant fills up and scales the features of its table: by its training rows, kept with its model.

With differential privacy, no row may decide what becomes of another one: inside `agreed_only`, numbers are filled up
and scaled by the mean and deviation that the sites agreed on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import ColumnsError, ConfigError
from cfl_flare.core.text import shown
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.labels import LARGEST

Scaling = Literal["auto", "site", "federation", "none"]
# With the scaling auto, a number further from the mean than this many deviations is clipped.
CLIP = 5.0
# Mean and deviation with the scaling none: [0, 1] becomes [-1, 1], as with pixels.
UNSCALED = 0.5
# A participant's own mean and variance count as its rows, those that they are shrunk to as this many.
BOUND_ROWS = 10
# The deviation that a range stands for, as a part of it: of possible numbers, and of a few rows' numbers.
OF_POSSIBLE, OF_ROWS = 1 / 8, 1 / 2
# A deviation that is a smaller part of the numbers themselves is none, but rounding.
FLOOR = 1e-6
# A missing boolean is half of both, where the rows do not say which one is more frequent.
HALF = 0.5

_agreed_only: ContextVar[bool] = ContextVar("agreed_only", default=False)


@contextmanager
def agreed_only(wanted: bool = True) -> Iterator[None]:
    """Inside it, preparations are not fitted to rows, if that is wanted: they follow from the agreed columns."""
    token = _agreed_only.set(wanted)
    try:
        yield
    finally:
        _agreed_only.reset(token)


def is_agreed_only() -> bool:
    """Whether this is inside `agreed_only`."""
    return _agreed_only.get()


@dataclass(frozen=True)
class Preparation:
    """What was fitted to a participant's training rows.

    A feature x becomes z = (x - mean) / deviation, which the network sees.

    Attributes:
        columns: what the table's columns mean.
        fill: ``(d,)`` what stands for a missing value.
        mean: ``(d,)``.
        deviation: ``(d,)``, above 0.
        clip: a scaled number is at most this many deviations from the mean; None for no limit.
        is_agreed: it follows from the agreed columns, and from no row.
    """

    columns: Columns
    fill: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    clip: float | None = None
    is_agreed: bool = False

    @classmethod
    def from_columns(cls, columns: Columns, scaling: Scaling) -> Preparation:
        """Make a preparation that depends on no row of the participant.

        A missing number is filled with the agreed mean. A missing category is none of the categories: all its
        features are 0. A missing boolean is `HALF`.

        Args:
            columns: what the columns mean, with mean and deviation of each number.
            scaling: as for `fitted`.

        Returns:
            The preparation.

        Raises:
            ColumnsError: the sites have not agreed on a number's mean, or the numbers are scaled by a site's own rows.
        """
        width = len(columns.scaled)
        fill, mean, deviation = np.zeros(width), np.zeros(width), np.ones(width)
        for column, place in columns.places:
            if column.is_scaled:
                is_agreed = scaling == "none" or (
                    scaling != "site" and column.mean is not None
                )
                require(is_agreed, _describe_own_rows(column, scaling), ColumnsError)
                mean[place.start] = UNSCALED if column.mean is None else column.mean
                deviation[place.start] = column.deviation or 1.0
                fill[place.start] = mean[place.start]
            elif column.kind == "boolean":
                fill[place.start] = HALF
        if scaling == "none":
            mean = np.full_like(mean, UNSCALED)
            deviation = np.full_like(deviation, UNSCALED)
        return cls(
            columns,
            fill,
            mean,
            deviation,
            CLIP if scaling == "auto" else None,
            is_agreed=True,
        )

    @classmethod
    def fitted(cls, x: np.ndarray, columns: Columns, scaling: Scaling) -> Preparation:
        """Fits to the training rows of one participant.

        A missing number is filled with the rows' median, a missing category with the most frequent one. If no row has a
        value, a number is filled with its mean, which is 0 once scaled. All features of a category are then 0.

        Args:
            x: the features ``(n, d)``, NaN where a value is missing.
            columns: what they mean; with mean and deviation of each number for the scaling ``federation``.
            scaling: numbers are scaled by these rows (``site``), by ``columns`` (``federation``), or not (``none``);
                or as `_safe_scale` says, and clipped (``auto``).
        """
        from sklearn.preprocessing import StandardScaler

        if is_agreed_only():
            return cls.from_columns(columns, scaling)
        is_number = columns.scaled
        mean, deviation, fill = (
            np.zeros(len(is_number)),
            np.ones(len(is_number)),
            np.zeros(len(is_number)),
        )
        if is_number.any():
            values = x[:, is_number]
            some = ~np.isnan(values).all(axis=0)
            scaled = [column for column in columns.columns if column.is_scaled]
            if scaling == "federation":
                mean[is_number] = [column.mean or 0.0 for column in scaled]
                deviation[is_number] = [column.deviation or 1.0 for column in scaled]
            elif scaling == "auto":
                scales = [
                    _safe_scale(column, values[:, i]) for i, column in enumerate(scaled)
                ]
                mean[is_number], deviation[is_number] = np.array(scales).T
            else:
                scaler = StandardScaler().fit(np.where(some, values, 0.0))
                mean[is_number], deviation[is_number] = scaler.mean_, scaler.scale_
            fill[is_number] = np.nanmedian(
                np.where(some, values, mean[is_number]), axis=0
            )
        for column, place in columns.places:
            if column.categories and not column.is_scaled:
                of_categories = slice(place.start, place.stop - column.missing)
                fill[of_categories] = _most_frequent(x[:, of_categories])
        if scaling == "none":
            mean = np.full_like(mean, UNSCALED)
            deviation = np.full_like(deviation, UNSCALED)
        return cls(columns, fill, mean, deviation, CLIP if scaling == "auto" else None)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Features ``(n, d)`` as the network sees them: float32 without NaN."""
        filled = np.where(np.isnan(x), self.fill, x)
        with np.errstate(over="ignore"):  # what becomes infinite is refused later
            z = (filled - self.mean) / self.deviation
            if self.clip is not None:
                z = np.where(self.columns.scaled, z.clip(-self.clip, self.clip), z)
            return z.astype(np.float32)

    @property
    def is_scaled(self) -> bool:
        """Whether the numbers are scaled by a mean and a deviation, and do not keep their unit (scaling ``none``)."""
        return bool((self.mean != UNSCALED).any() or (self.deviation != UNSCALED).any())

    def clipped(self, x: np.ndarray) -> int:
        """How many numbers of features ``(n, d)`` are too far from their mean, and are clipped."""
        if self.clip is None:
            return 0
        return int(
            (np.abs(x - self.mean) > self.clip * self.deviation)[
                :, self.columns.scaled
            ].sum()
        )

    def to_dict(self) -> dict[str, Any]:
        numbers = {
            name: getattr(self, name).tolist() for name in ("fill", "mean", "deviation")
        }
        return {
            "columns": self.columns.to_dict(),
            **numbers,
            **({} if self.clip is None else {"clip": self.clip}),
        }

    @classmethod
    def of(cls, value: Any, where: str) -> Preparation:
        """From what `to_dict` made; a ConfigError if it is something else."""
        require(
            isinstance(value, Mapping),
            f"{where} should be a dictionary; name a file that cfl_flare wrote",
        )
        columns = Columns.of(value.get("columns") or {}, where).usable(where)
        width, arrays = len(columns.features), {}
        for name in ("fill", "mean", "deviation"):
            try:
                array = arrays[name] = np.array(value.get(name), np.float64)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise ConfigError(
                    f"{where}: {name} should be numbers; name a file that cfl_flare wrote"
                ) from error
            bounded = array.shape == (width,) and bool((np.abs(array) <= LARGEST).all())
            wanted = f"{width} numbers of at most {LARGEST:g} in size"
            require(bounded, f"{where}: {name} should be {wanted}; name a whole file")
        require(
            bool((arrays["deviation"] > 0).all()),
            f"{where}: a deviation is not above 0; name a whole file",
        )
        clip = value.get("clip")
        above = (
            isinstance(clip, (int, float))
            and not isinstance(clip, bool)
            and 0 < clip <= LARGEST
        )
        require(
            clip is None or above,
            f"{where}: clip = {shown(clip)} should be a number above 0; name a whole file",
        )
        return cls(columns, arrays["fill"], arrays["mean"], arrays["deviation"], clip)


def _describe_own_rows(column: Column, scaling: Scaling) -> str:
    """Say that a column would be filled up or scaled by a participant's own rows, and how to avoid it."""
    return (
        f"data table: scaling = {scaling!r}: with dp, no row may decide how another one is filled up or scaled, and "
        f"column {shown(column.column)} has no agreed mean\n"
        "hint: let each site run 'cfl-flare site columns --scale', put the files together with 'cfl-flare columns', "
        "give the result as columns, and leave scaling at 'auto'"
    )


def _safe_scale(column: Column, values: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of a column, which are safe for a participant of few rows.

    They are the sites' common ones if ``column`` has these. Otherwise both are shrunk. The mean of the participant's n
    values moves towards the middle of the range of possible numbers. Their variance v becomes (n v + m b^2) / (n + m)
    with m = `BOUND_ROWS` and a part b of that range's width. If nobody named a range, the mean stays, and b is a part
    of the width of these n values. So a number that is the same in most of a few rows is never divided by almost 0.
    """
    if column.mean is not None and column.deviation:
        return column.mean, column.deviation
    there = values[~np.isnan(values)]
    possible = (
        (0, len(column.categories) - 1) if column.kind == "ordinal" else column.range
    )
    low, high = possible or ((there.min(), there.max()) if len(there) else (0.0, 0.0))
    bound = (high - low) * (OF_ROWS if possible is None else OF_POSSIBLE)
    weight = len(there) / (len(there) + BOUND_ROWS)
    mean, variance = (
        (float(there.mean()), float(there.var()))
        if len(there)
        else ((low + high) / 2, 0.0)
    )
    if column.mean is not None:  # common, of a column without a deviation
        mean = column.mean
    elif possible is not None:
        mean = weight * mean + (1 - weight) * (low + high) / 2
    variance = weight * variance + (1 - weight) * bound**2
    deviation, floor = math.sqrt(variance), FLOOR * max(abs(low), abs(high))
    return mean, deviation if deviation > floor else 1.0


def _most_frequent(x: np.ndarray) -> np.ndarray:
    """The most frequent category's features of ``x (n, d)``; zeros where no row has one."""
    there = x[~np.isnan(x[:, 0])]
    if not len(there):
        return np.zeros(x.shape[1])
    if x.shape[1] == 1:
        return np.array([float(there.mean() > 0.5)])
    counts = there.sum(axis=0)
    return (np.arange(len(counts)) == counts.argmax()).astype(np.float64) * bool(
        counts.any()
    )
