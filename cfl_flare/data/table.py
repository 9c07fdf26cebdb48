# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tables: a CSV or npz file with one row per sample, a label column, and numbers in the others."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import DataError, FileError
from cfl_flare.core.files import check_memory, open_regular
from cfl_flare.core.settings import check_settings, setting
from cfl_flare.data.files import find, read_npz
from cfl_flare.data.samples import DataSource, Samples, split_by_class

# A CSV file's values take about this many times as much memory as the file.
TEXT_IN_MEMORY = 10


@dataclass(frozen=True)
class Table(DataSource):
    """Rows of numbers with a label column, from a CSV file with a header or an npz file with one array per column.

    Features are all other columns of numbers, in the file's order; columns of text are left out. In an npz file an
    array may have two dimensions. Labels are class numbers from 0, or names, which are numbered in sorted order.

    `normalised` maps x to 2x - 1. So (z + 1) / 2 is stored for a standardised feature z, and the network sees z.
    """

    name: ClassVar[str] = "table"

    path: str = setting(help="the file, found as by the source npz; read as npz if its name ends in .npz, else as CSV")
    label: str = setting("label", help="the label's column")
    key: str | None = setting(
        None, help="the column with each row's owner, for the partition natural; it is not a feature"
    )
    test_share: float = setting(0.25, help="share of each class that is used for testing", gt=0, lt=1)
    seed: int = setting(0, help="seed of that split")
    standardise: bool = setting(
        True,
        help="scale each feature by the training rows' mean and deviation; without it the numbers are kept as they "
        "are, and should be in about [0, 1]",
    )

    def __post_init__(self) -> None:
        check_settings(self, "data table")
        require(self.label != self.key, f"data table: label and key are both {self.key!r}; they are different columns")

    def load(self) -> tuple[Samples, Samples]:
        """Both splits, float32 ``(n, features)``."""
        path = find(self.path, "data table")
        columns = _npz_columns(path) if path.suffix.lower() == ".npz" else _csv_columns(path)
        for name in filter(None, (self.label, self.key)):
            if name not in columns:
                way_out = f"set {'label, or CFL_LABEL beside CFL_DATA' if name == self.label else 'key'}"
                raise DataError(f"{path}: no column {name!r}; it has {', '.join(columns)}; {way_out}")
        labels = class_numbers(columns.pop(self.label), f"{path}: column {self.label!r}")
        key = columns.pop(self.key) if self.key else None
        if key is not None and key.dtype.kind == "f":
            raise DataError(f"{path}: column {self.key!r} holds {key.dtype}; a key is whole numbers or text")
        features = {name: _sound(values, f"{path}: column {name!r}") for name, values in columns.items()}
        blocks = [values.reshape(len(labels), -1) for values in features.values() if values.dtype.kind in "biuf"]
        if not blocks:
            others = ", ".join(columns) or "none"
            raise DataError(f"{path}: no column of numbers besides {self.label!r}; it has {others}")
        samples = Samples(np.concatenate(blocks, axis=1).astype(np.float64), labels, key).check(str(path))
        train, test = split_by_class(samples, self.test_share, self.seed)
        if self.standardise and len(train):
            mean, deviation = train.x.mean(axis=0), train.x.std(axis=0)
            # Dividing a feature that is constant except for rounding by its deviation would blow it up.
            deviation[deviation <= 1e-12 * np.maximum(1, np.abs(mean))] = 1
            train, test = (Samples(((s.x - mean) / deviation + 1) / 2, s.y, s.key) for s in (train, test))
        train, test = (Samples(s.x.astype(np.float32), s.y, s.key) for s in (train, test))
        return train.check(f"{path}: training"), test.check(f"{path}: test")


def class_numbers(values: np.ndarray, where: str) -> np.ndarray:
    """Labels as int64: whole numbers as they are, names numbered in sorted order.

    Raises:
        DataError: numbers that are not whole, or below 0, or names that are empty.
    """
    if values.ndim != 1:
        raise DataError(f"{where} has shape {values.shape}; give one label a row")
    if values.dtype.kind in "iu":
        if len(values) and values.min() < 0:
            raise DataError(f"{where}: label {values.min()} is below 0; number the classes from 0")
        return values.astype(np.int64)
    missing = [i for i, value in enumerate(values) if value == "" or value != value]  # NaN differs from itself
    if missing:
        raise DataError(f"{where}: row {missing[0] + 1} has no label")
    if values.dtype.kind != "U":
        raise DataError(f"{where} holds {values.dtype}, e.g. {values[0]}; labels are whole numbers from 0, or names")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _sound(values: np.ndarray, where: str) -> np.ndarray:
    """The column.

    Raises:
        DataError: it holds NaN, infinity, or text in a column of numbers.
    """
    if values.dtype.kind == "U" and values.ndim == 1:
        text = [row for row, value in enumerate(values) if not _is_number(value)]
        if text and len(text) < 0.5 * len(values):
            value = str(values[text[0]])
            raise DataError(f"{where}: row {text[0] + 1} holds {value!r} among numbers; fix it or leave it out")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
        raise DataError(f"{where}: row {row + 1} is empty, NaN or infinity; fill it in or leave the row out")
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _npz_columns(path: Path) -> dict[str, np.ndarray]:
    """The arrays, which must have equal lengths."""
    columns = read_npz(path)
    lengths = {name: len(values) if values.ndim else 0 for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        (first, n), (other, m) = min(lengths.items(), key=itemgetter(1)), max(lengths.items(), key=itemgetter(1))
        raise DataError(f"{path}: {first!r} has {n} rows but {other!r} has {m}; every array is a column of the table")
    return columns


def _csv_columns(path: Path) -> dict[str, np.ndarray]:
    """The columns of a CSV file: int64 or float64 if all values are numbers or missing, else text."""
    try:
        with open_regular(path) as binary:
            check_memory(TEXT_IN_MEMORY * os.fstat(binary.fileno()).st_size, str(path))
            file = io.TextIOWrapper(binary, newline="", encoding="utf-8-sig")
            rows = [row for row in csv.reader(file, strict=True) if row]
    except FileError as error:
        raise DataError(str(error)) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a CSV file in UTF-8: {error}") from error
    if len(rows) < 2:
        raise DataError(f"{path}: no rows; a table has a line of column names and one line per sample")
    header = [name.strip() for name in rows[0]]
    repeated = [name for name, times in Counter(header).items() if times > 1]
    if repeated:
        raise DataError(f"{path}: two columns are called {repeated[0]!r}; rename one")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise DataError(f"{path}: row {number} has {len(row)} values, the header {len(header)} columns")
    return {name: _typed([value.strip() for value in values]) for name, values in zip(header, zip(*rows[1:]))}


def _typed(values: list[str]) -> np.ndarray:
    """As whole numbers if possible, else as numbers with NaN for missing values, else as text."""
    try:
        return np.array([int(value) for value in values], np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([float(value) if value else np.nan for value in values])
    except ValueError:
        return np.array(values)
