# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tables: a CSV or npz file with one row per sample, a label column, and numbers in the others."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
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
    array may have two dimensions. Labels are class numbers from 0, or names, which are numbered in sorted order. A
    label column with decimals, or with a number below 0, holds numbers to predict, for task regression.

    `normalised` maps x to 2x - 1. So (z + 1) / 2 is stored for a standardised feature z, and the network sees z.
    """

    name: ClassVar[str] = "table"

    path: str = setting(help="the file, found as by the source npz; read as npz if its name ends in .npz, else as CSV")
    label: str = setting("label", help="the label's column: classes, numbers to predict, or times if event is set")
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
    event: str | None = setting(
        None,
        help="the column that is 1 where the event happened, 0 where the row was censored; the label is then the time, "
        "for task survival",
    )

    def __post_init__(self) -> None:
        check_settings(self, "data table")
        columns = {"label": self.label, "key": self.key, "event": self.event}
        for (one, name), (other, same) in combinations(columns.items(), 2):
            differ = name is None or name != same
            require(differ, f"data table: {one} and {other} are both {same!r}; they are different columns")

    def load(self) -> tuple[Samples, Samples]:
        """Both splits, float32 ``(n, features)``."""
        path = find(self.path, "data table")
        columns = _npz_columns(path) if path.suffix.lower() == ".npz" else _csv_columns(path)
        ways_out = {self.label: "label, or CFL_LABEL", self.key: "key", self.event: "event, or CFL_EVENT"}
        for name in filter(None, (self.label, self.key, self.event)):
            if name not in columns:
                beside = " beside CFL_DATA" if name != self.key else ""
                raise DataError(
                    f"{path}: no column {name!r}; it has {', '.join(columns)}; set {ways_out[name]}{beside}"
                )
        where = f"{path}: column {self.label!r}"
        if self.event is None:
            labels = label_values(columns.pop(self.label), where)
        else:
            times = time_values(columns.pop(self.label), where)
            events = event_values(columns.pop(self.event), f"{path}: column {self.event!r}")
            labels = np.stack((times, events), axis=1)
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


def label_values(values: np.ndarray, where: str) -> np.ndarray:
    """A column of labels ``(n,)``: class numbers as int64, names numbered in sorted order, or numbers as float64.

    Raises:
        DataError: a row has no label or an infinite one, or the column holds neither numbers nor text.
    """
    if values.ndim != 1:
        raise DataError(f"{where} has shape {values.shape}; give one label a row")
    if values.dtype.kind in "iu":
        return values.astype(np.float64 if values.min(initial=0) < 0 else np.int64)
    missing = [i for i, value in enumerate(values) if value == "" or value != value]  # NaN differs from itself
    if missing:
        raise DataError(f"{where}: row {missing[0] + 1} has no label")
    if values.dtype.kind == "f":
        return _finite(values, where).astype(np.float64)
    if values.dtype.kind != "U":
        raise DataError(f"{where} holds {values.dtype}, e.g. {values[0]}; labels are numbers or names")
    if any(_is_number(value) and not value.lstrip("+-").isdigit() for value in values):
        _sound(values, where)  # a word among numbers to predict is no class
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def time_values(values: np.ndarray, where: str) -> np.ndarray:
    """A column of times ``(n,)`` as float64.

    Raises:
        DataError: a row's is missing, infinite, no number, or not above 0.
    """
    times = _finite(_numbers(values, where), where)
    if (times <= 0).any():
        row = int(np.flatnonzero(times <= 0)[0])
        raise DataError(f"{where}: row {row + 1} holds {values[row]}; a time is above 0")
    return times


def event_values(values: np.ndarray, where: str) -> np.ndarray:
    """A column of events ``(n,)`` as float64: 1 where it happened, 0 where the row was censored.

    Raises:
        DataError: a row holds something else.
    """
    meaning = "write 1 where the event happened, 0 where the row was censored"
    events = _numbers(values, where, meaning)
    known = (events == 0) | (events == 1)
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        held = "no value" if np.isnan(events[row]) else values[row]
        raise DataError(f"{where}: row {row + 1} holds {held}; {meaning}")
    return events


def _numbers(values: np.ndarray, where: str, way_out: str = "fix it or leave the row out") -> np.ndarray:
    """The column as float64 ``(n,)``.

    Raises:
        DataError: it has another shape, or a row holds text.
    """
    if values.ndim != 1:
        raise DataError(f"{where} has shape {values.shape}; give one number a row")
    text = [row for row, value in enumerate(values) if not _is_number(value)] if values.dtype.kind not in "biuf" else []
    if text:
        raise DataError(f"{where}: row {text[0] + 1} holds {str(values[text[0]])!r}, no number; {way_out}")
    return values.astype(np.float64)


def _finite(values: np.ndarray, where: str) -> np.ndarray:
    """The column, of numbers.

    Raises:
        DataError: a row holds NaN or infinity.
    """
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
        raise DataError(f"{where}: row {row + 1} is empty, NaN or infinity; fill it in or leave the row out")
    return values


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
    return _finite(values, where) if values.dtype.kind == "f" else values


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
