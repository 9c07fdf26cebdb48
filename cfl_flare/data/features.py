# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""From a table's columns to features and labels. What is wrong with a table raises a DataError with file and column.

In these functions ``where`` names the file, or the file and the column, for that error.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.errors import ColumnsError, DataError, FileError
from cfl_flare.core.files import check_memory
from cfl_flare.core.text import plain, shown
from cfl_flare.data.classes import number_of, number_words
from cfl_flare.data.columns import MOST_CATEGORIES, Column, Columns, in_order
from cfl_flare.data.frames import looks_like

if TYPE_CHECKING:
    import pandas as pd

# Pairs of texts, in any case, that are a boolean's: no, yes.
NO_YES = (("n", "y"), ("no", "yes"), ("false", "true"), ("f", "t"))
# This many texts are categories in however short a table.
FEW = 8
# A message names this many rows.
FIRST_ROWS = 5


def texts(values: pd.Series) -> pd.Series:
    """The values as text, whole numbers without decimals; None where there is none."""

    def written(value: object) -> str:
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            return str(int(value))
        text = str(value).strip()
        is_whole = text.endswith(".0") and text[:-2].lstrip("-").isdigit()  # as another site may have written it
        return text[:-2] if is_whole else text

    as_text = values.map(written, na_action="ignore").astype(object)
    return as_text.where(values.notna() & (as_text != ""), None)


def numbers(values: pd.Series, where: str) -> np.ndarray:
    """The values as float64 ``(n,)``, NaN where there is none."""
    import pandas as pd

    if values.dtype == bool:
        return values.to_numpy(np.float64)
    amounts = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    present = (values.notna() & (values.astype(str).str.strip() != "")).to_numpy()
    if len(words := np.flatnonzero(present & np.isnan(amounts))):
        reason = f"row {words[0] + 1} holds {str(values.iloc[words[0]])!r} among numbers; fix it, leave the row out, or"
        reason += " let absent name what means that a value is missing"
        raise DataError(f"{where}: {looks_like(values.iloc[words]) or reason}")
    if len(infinite := np.flatnonzero(np.isinf(amounts))):
        raise DataError(f"{where}: row {infinite[0] + 1} is infinite; fix it or leave the row out")
    return amounts


def days(values: pd.Series, where: str) -> np.ndarray:
    """Dates, as ISO 8601 has them, as days since 1970 ``(n,)`` float64, NaN where there is none."""
    import pandas as pd

    dates = values
    if values.dtype.kind != "M":
        written = texts(values)
        dates = pd.to_datetime(written, format="ISO8601", errors="coerce", utc=True)
        if len(wrong := np.flatnonzero(written.notna() & dates.isna())):
            reason = f"row {wrong[0] + 1} holds {written.iloc[wrong[0]]!r}, no date; write it like 1996-12-31"
            raise DataError(f"{where}: {looks_like(written) or reason}")
    start = pd.Timestamp("1970-01-01", tz=getattr(dates.dt, "tz", None))
    return ((dates - start) / pd.Timedelta(days=1)).to_numpy(np.float64)


def gaps(frame: pd.DataFrame, columns: Columns) -> list[str]:
    """Lines on columns that have no value at all, and on the shares of missing values of the others."""
    shares = {c.column: float(texts(frame[c.column]).isna().mean()) for c in columns.columns}
    empty = [name for name, share in shares.items() if share == 1]
    some = [f"{name} {max(1, round(100 * share))} %" for name, share in shares.items() if 0 < share < 1]
    lines = [f"no row has a value: {', '.join(empty)}; look at the file, and at absent"] if empty else []
    return [*lines, f"missing values: {', '.join(some)}"] if some else lines


def inferred(frame: pd.DataFrame, where: str, categories: Collection[str] = (), missing: bool = False) -> Columns:
    """What the columns of a table that become features seem to hold.

    Numbers are numbers, also where they are codes: ``categories`` names such columns. Text is a boolean if it is yes
    and no, a date if all of it is, and else categories. With ``missing``, a column in which some values are missing
    says so in a feature.
    """
    if absent := [name for name in categories if name not in frame]:
        raise DataError(f"{where}: categories names {shown(absent[0])}, which is no feature; it has {names_of(frame)}")
    columns = []
    for name in frame:
        values = frame[name]
        column = _inferred(name, values, f"{where}: column {shown(name)}", name in categories)
        if missing and (values.isna().any() if values.dtype.kind in "iuf" else texts(values).isna().any()):
            column = replace(column, missing=True)
        columns.append(column)
    return Columns(tuple(columns))


def _inferred(name: str, values: pd.Series, where: str, is_category: bool) -> Column:
    import pandas as pd

    if values.dtype.kind in "iuf" and not is_category:
        return Column(name)
    if values.dtype.kind == "M":
        return Column(name, "date")
    written = texts(values).dropna()
    categories = sorted(written.unique(), key=in_order)
    if not categories:
        raise DataError(f"{where}: holds nothing; leave it out with leave=[{name}]")
    if not is_category:
        by_lower = {text.lower(): text for text in categories}
        for pair in NO_YES:
            if {*by_lower} == {*pair}:
                upper = categories[0].isupper()
                return Column(name, "boolean", tuple(by_lower.get(p, p.upper() if upper else p) for p in pair))
        if hint := looks_like(written):
            raise DataError(f"{where}: {hint}")
        if pd.to_numeric(written, errors="coerce").notna().mean() > 0.5:
            numbers(values, where)
            return Column(name)
        if pd.to_datetime(written, format="ISO8601", errors="coerce", utc=True).notna().all():
            return Column(name, "date")
    if len(categories) > MOST_CATEGORIES or len(categories) > max(FEW, len(written) / 2):
        reason = f"holds {len(categories)} different texts in {len(written)} rows, too many for categories"
        raise DataError(f"{where}: {reason}; leave it out with leave=[{name}]")
    return Column(name, "category", tuple(categories))


def check_columns(frame: pd.DataFrame, columns: Columns, where: str, known: Collection[str]) -> None:
    """Raises a ColumnsError if a table lacks a column of those agreed on, or has one that is not even ``known``."""
    for column in columns.columns:
        if column.column not in frame:
            name, there = shown(column.column), names_of(frame)
            raise ColumnsError(f"{where}: no column {name}, which the sites agreed on; it has {there}; add it")
    expected = {c.column for c in columns.columns} | {*columns.leave, *known}
    if new := [name for name in frame if name not in expected]:
        reason = "is new: it is none of those that the sites agreed on; remove it, or name it in leave"
        raise ColumnsError(f"{where}: column {shown(new[0])} {reason}")


def names_of(frame: pd.DataFrame) -> str:
    """A table's columns for a message, in one line; the first ones of very many."""
    return plain(", ".join(map(str, frame)))


def encoded(frame: pd.DataFrame, columns: Columns, where: str) -> tuple[np.ndarray, dict[str, int]]:
    """The features of a table, not yet filled up or scaled.

    A category that is none of those agreed on has 0 in all its features.

    Returns:
        ``(n, d)`` float64, NaN where a value is missing; and how many rows have another category, by column.
    """
    width = sum(len(column.categories) + 2 for column in columns.columns)
    try:
        check_memory(2 * 8 * len(frame) * width, f"{where}: {len(frame)} rows of {width:,} features")
    except FileError as error:
        raise DataError(str(error)) from error
    numeric = {name for name, dtype in frame.dtypes.items() if dtype.kind in "iuf"}

    def is_plain(column: Column) -> bool:  # the values are the feature, as they are
        return column.kind == "number" and column.range is None and not column.missing and column.column in numeric

    blocks, others = [], {}
    for simple, run in groupby(columns.columns, is_plain):
        if simple:  # all at once, as a table of genes has many
            blocks.append(frame[[column.column for column in run]].to_numpy(np.float64))
            continue
        for column in run:
            block, unknown = _block(frame[column.column], column, f"{where}: column {shown(column.column)}")
            blocks.append(block)
            others[column.column] = unknown
    x = np.concatenate(blocks, axis=1)
    if np.isinf(x).any():
        row, place = np.argwhere(np.isinf(x))[0]
        name = shown(columns.features[place])
        raise DataError(f"{where}: column {name}: row {row + 1} is infinite; fix it or leave the row out")
    return x, {name: rows for name, rows in others.items() if rows}


def _block(values: pd.Series, column: Column, where: str) -> tuple[np.ndarray, int]:
    """The features ``(n, d)`` of one column, and how many rows have a category that is not among its own."""
    unknown = 0
    if column.categories:
        written = texts(values)
        place = written.map({category: i for i, category in enumerate(column.categories)})
        index, absent = place.to_numpy(np.float64, na_value=np.nan), written.isna().to_numpy()
        unknown = int((np.isnan(index) & ~absent).sum())
        block = index[:, None]
        if column.kind == "category":
            block = (block == np.arange(len(column.categories))).astype(np.float64)
            block[absent] = np.nan
    else:
        block = (days if column.kind == "date" else numbers)(values, where)[:, None]
        low, high = column.range or (-np.inf, np.inf)
        if len(outside := np.flatnonzero((block < low) | (block > high))):
            value = f"row {outside[0] + 1} holds {values.iloc[outside[0]]}"
            others = f"{len(outside)} of {len(block)} rows are not in {low:g} to {high:g}"
            raise DataError(f"{where}: {value}, and {others}; look at the unit, and correct them or the range")
    if column.missing:
        block = np.concatenate((block, np.isnan(block[:, :1]).astype(np.float64)), axis=1)
    return block, unknown


def counted(frame: pd.DataFrame, column: str, patient: str | None = None) -> pd.Series:
    """How many rows have each text of a column; with the column of patients, how many patients."""
    values = texts(frame[column])
    if patient is not None:
        values = values[~texts(frame[patient]).to_frame("patient").assign(text=values).duplicated()]
    return values.value_counts()


def shared(columns: Columns, frame: pd.DataFrame, fewest: int, patient: str | None = None) -> Columns:
    """Inferred columns as others may see them: with the categories that at least ``fewest`` rows, or patients, have."""

    def of(column: Column) -> Column:
        if column.kind != "category":
            return column
        counts = counted(frame, column.column, patient)
        return replace(column, categories=tuple(c for c in column.categories if counts.get(c, 0) >= fewest))

    return replace(columns, columns=tuple(map(of, columns.columns)))


@dataclass(frozen=True)
class Outcomes:
    """Labels ``y`` of the rows that have one, ``rows (n,)`` bool; and the names of the classes, if they are text."""

    y: np.ndarray
    rows: np.ndarray
    names: tuple[str, ...] = ()


def outcomes(frame: pd.DataFrame, path: Path, columns: Columns, event: str | None, leave: bool) -> Outcomes:
    """The labels of a table: classes, numbers to predict, or times if there is a column of events.

    With ``leave``, rows without a label are left out, and otherwise refused.
    """
    where = f"{path}: column {columns.label!r}"
    labels = frame[columns.label]
    rows = np.ones(len(frame), bool)
    if leave:
        rows = texts(labels).notna().to_numpy()
        if event is not None:
            rows &= texts(frame[event]).notna().to_numpy()
    if not rows.any():
        raise DataError(f"{where}: no row has a label; name another column")
    labels = labels[rows]
    if len(missing := np.flatnonzero(texts(labels).isna())):
        reason = f"row {labels.index[missing[0]] + 1} has no {'label' if event is None else 'time'}"
        raise DataError(f"{where}: {reason}; fill it in, leave the row out, or set unlabelled=leave")
    if event is not None:
        events = _events(frame[event][rows], f"{path}: column {event!r}")
        times = _times(labels, where, columns.zero_times)
        rows[rows] = positive_times = times > 0
        return Outcomes(np.stack((times, events), axis=1)[positive_times], rows)
    if columns.positive is not None:
        return Outcomes((numbers(labels, where) > columns.positive).astype(np.int64), rows)
    if columns.classes:
        y, names = number_words(texts(labels).to_numpy(), columns.classes, where)
        return Outcomes(y, rows, names)
    y, names = _classes_or_numbers(labels, where)
    if y.dtype.kind == "f" and not rows.all() and (y == np.floor(y)).all() and y.min() >= 0:
        y = y.astype(np.int64)  # class numbers are floats in a column where other rows have no label
    return Outcomes(y, rows, names)


def _classes_or_numbers(values: pd.Series, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Words as class numbers with the classes' names, numbers as they are: `samples.read` tells which are classes."""
    if values.dtype.kind in "iub":
        return values.to_numpy(np.int64), ()
    if values.dtype.kind == "f":
        return numbers(values, where), ()
    written = texts(values)
    are_numbers = [number_of(text) is not None for text in written.unique()]
    if all(are_numbers) or (any(are_numbers) and _has_decimals(written)):
        amounts = numbers(written, where)
        is_whole = bool((amounts == np.floor(amounts)).all()) and not _has_decimals(written)
        return amounts.astype(np.int64) if is_whole else amounts, ()
    return number_words(written.to_numpy(), (), where)


def _has_decimals(written: pd.Series) -> bool:
    """Whether a column of text holds numbers with decimals, so that other text in it is a mistake."""
    return any(number_of(text) is not None and not text.lstrip("+-").isdigit() for text in written.unique())


def _times(values: pd.Series, where: str, zero_times: str | None) -> np.ndarray:
    """Times as float64, above 0; with ``leave`` those that are not are returned as they are, to be left out."""
    times = numbers(values, where)
    if zero_times == "shift" and (times > 0).any():
        times = np.where(times == 0, times[times > 0].min() / 2, times)
    wrong = np.flatnonzero(times <= 0)
    if len(wrong) == len(times) or (len(wrong) and zero_times != "leave"):
        rows = ", ".join(str(values.index[i] + 1) for i in wrong[:FIRST_ROWS]) + ", ..." * (len(wrong) > FIRST_ROWS)
        raise DataError(
            f"{where}: {len(wrong)} of {len(times)} rows have a time that is not above 0 (rows {rows}); correct them, "
            "or set zero_times=leave to leave them out, or zero_times=shift to set those of 0 to half of the smallest"
        )
    return times


def _events(values: pd.Series, where: str) -> np.ndarray:
    """Events as float64: 1 where it happened, 0 where the row was censored."""
    written = texts(values.astype(int) if values.dtype == bool else values)
    if len(wrong := np.flatnonzero(~written.isin(("0", "1")))):
        value = "no value" if written.iloc[wrong[0]] is None else repr(written.iloc[wrong[0]])
        way_out = "write 1 where the event happened, 0 where the row was censored"
        raise DataError(f"{where}: row {wrong[0] + 1} holds {value}; {way_out}")
    return written.to_numpy().astype(np.float64)
