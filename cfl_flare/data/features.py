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
from cfl_flare.data.classes import number_of, number_words, sort_names
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.frames import is_unnamed
from cfl_flare.data.hints import explain_texts, name_list
from cfl_flare.data.kinds import PERCENT
from cfl_flare.data.spelling import find_near, find_same, list_near
from cfl_flare.data.values import (
    days,
    find_boolean,
    has_codes,
    has_percentages,
    number_booleans,
    number_events,
    numbers,
    simplify_labels,
    texts,
)

if TYPE_CHECKING:
    import pandas as pd

# A message names this many rows, or texts.
FIRST_ROWS = 5
# Words of at most this many kinds are classes in however short a table.
FEW_CLASSES = 20
# A message has this many characters of a list of categories.
MOST_SHOWN = 200


def gaps(frame: pd.DataFrame, columns: Columns) -> list[str]:
    """Lines on columns that have no value at all, and on the shares of missing values of the others."""
    shares = {
        c.column: float(texts(frame[c.column]).isna().mean()) for c in columns.columns
    }
    empty = [name for name, share in shares.items() if share == 1]
    some = [
        f"{name} {max(1, round(100 * share))} %"
        for name, share in shares.items()
        if 0 < share < 1
    ]
    lines = (
        [f"no row has a value: {', '.join(empty)}; look at the file, and at absent"]
        if empty
        else []
    )
    return [*lines, f"missing values: {', '.join(some)}"] if some else lines


def check_columns(
    frame: pd.DataFrame, columns: Columns, where: str, known: Collection[str]
) -> None:
    """Raises a ColumnsError if a table lacks a column of those agreed on, or has one that is not even ``known``."""
    for column in columns.columns:
        if column.column not in frame:
            name, there = shown(column.column), names_of(frame)
            raise ColumnsError(
                f"{where}: no column {name}, which the sites agreed on; it has {there}; add it"
            )
    expected = {c.column for c in columns.columns} | {*columns.leave, *known}
    new = [name for name in frame if name not in expected and not is_unnamed(name)]
    if new:
        reason = "is new: it is none of those that the sites agreed on; remove it, or name it in leave"
        raise ColumnsError(f"{where}: column {shown(new[0])} {reason}")


def names_of(frame: pd.DataFrame) -> str:
    """A table's columns for a message, in one line; the first ones of very many."""
    return plain(", ".join(map(str, frame)))


def encoded(
    frame: pd.DataFrame, columns: Columns, where: str
) -> tuple[np.ndarray, dict[str, int]]:
    """The features of a table, not yet filled up or scaled.

    A category that is none of those agreed on has 0 in all its features.

    Returns:
        ``(n, d)`` float64, NaN where a value is missing; and how many rows have another category, by column.
    """
    width = sum(len(column.categories) + 2 for column in columns.columns)
    try:
        check_memory(
            2 * 8 * len(frame) * width,
            f"{where}: {len(frame)} rows of {width:,} features",
        )
    except FileError as error:
        raise DataError(str(error)) from error
    numeric = {name for name, dtype in frame.dtypes.items() if dtype.kind in "iuf"}

    def is_plain(column: Column) -> bool:  # the values are the feature, as they are
        return (
            column.kind == "number"
            and column.range is None
            and not column.missing
            and column.column in numeric
        )

    blocks, others = [], {}
    for simple, run in groupby(columns.columns, is_plain):
        if simple:  # all at once, as a table of genes has many
            blocks.append(frame[[column.column for column in run]].to_numpy(np.float64))
            continue
        for column in run:
            block, unknown = _block(
                frame[column.column], column, f"{where}: column {shown(column.column)}"
            )
            blocks.append(block)
            others[column.column] = unknown
    x = np.concatenate(blocks, axis=1)
    if np.isinf(x).any():
        row, place = np.argwhere(np.isinf(x))[0]
        name = shown(columns.features[place])
        raise DataError(
            f"{where}: column {name}: row {frame.index[row] + 1} is infinite; fix it or leave the row out"
        )
    return x, {name: rows for name, rows in others.items() if rows}


def _block(values: pd.Series, column: Column, where: str) -> tuple[np.ndarray, int]:
    """The features ``(n, d)`` of one column, and how many rows have a category that is not among its own."""
    unknown = 0
    if column.kind == "boolean":
        block = _read_booleans(values, column, where)
    elif column.categories:
        block, unknown = _read_categories(values, column, where)
    elif column.kind == "date":
        block = days(values, where)[:, None]
    else:
        block = _read_amounts(values, column, where)
    low, high = column.range or (-np.inf, np.inf)
    outside = np.flatnonzero((block < low) | (block > high))
    if column.range is not None and not column.categories and len(outside):
        value = f"row {values.index[outside[0]] + 1} holds {values.iloc[outside[0]]}"
        others = f"{len(outside)} of {len(block)} rows are not in {low:g} to {high:g}"
        raise DataError(
            f"{where}: {value}, and {others}; look at the unit, and correct them or the range"
        )
    if column.missing:
        block = np.concatenate(
            (block, np.isnan(block[:, :1]).astype(np.float64)), axis=1
        )
    return block, unknown


def _read_amounts(values: pd.Series, column: Column, where: str) -> np.ndarray:
    """Numbers ``(n, 1)``; with a percent sign only if this is the agreed unit."""
    if column.unit != PERCENT and has_percentages(values):
        example = shown(values.dropna().iloc[0])
        unit = shown(column.unit)
        wanted = (
            f"write numbers without it, or agree on the unit {PERCENT!r} at all sites"
        )
        raise DataError(
            f"{where}: holds {example}, where the unit that the sites agreed on is {unit}; {wanted}"
        )
    return numbers(values, where)[:, None]


def _read_booleans(values: pd.Series, column: Column, where: str) -> np.ndarray:
    """Booleans ``(n, 1)``, NaN where there is none; a DataError if a text is neither of the two."""
    written = texts(values)
    block = number_booleans(written, column.categories)
    wrong = written[block.isna() & written.notna()]
    if len(wrong):
        no, yes = map(shown, column.categories)
        reason = f"row {wrong.index[0] + 1} holds {shown(wrong.iloc[0])}, which is neither {no} nor {yes}"
        others = f"{len(wrong)} of {len(written)} rows do"
        raise DataError(
            f"{where}: {reason}, and {others}; {_suggest_replacement(wrong.iloc[0], column.categories)}"
        )
    return block.to_numpy(np.float64)[:, None]


def _read_categories(
    values: pd.Series, column: Column, where: str
) -> tuple[np.ndarray, int]:
    """Categories ``(n, categories)``, or places in an order ``(n, 1)``; and how many rows have an unknown one.

    A text that differs from a category in its spelling only is no other category: it is refused.
    """
    written = texts(values)
    places = written.map(
        {category: place for place, category in enumerate(column.categories)}
    )
    index = places.to_numpy(np.float64, na_value=np.nan)
    absent = written.isna().to_numpy()
    others = written[np.isnan(index) & ~absent]
    for text, rows in others.value_counts().items():
        same = find_same(str(text), column.categories)
        if same is not None:
            reason = f"{rows} of {len(written)} rows hold {shown(text)}, where the sites agreed on {shown(same)}"
            raise DataError(
                f"{where}: {reason}; {_suggest_replacement(str(text), column.categories)}"
            )
    if column.kind == "ordinal":
        return index[:, None], len(others)
    block = (index[:, None] == np.arange(len(column.categories))).astype(np.float64)
    block[absent] = np.nan
    return block, len(others)


def _suggest_replacement(text: str, known: Collection[str]) -> str:
    near = find_near(text, known)
    if near is None:
        return "correct them, name the text in absent if it means that a value is missing, or use replace"
    return f'write {shown(near)}, or set replace={{"{plain(text)}": "{plain(near)}"}}, or in the columns\' file'


def count_unknown(frame: pd.DataFrame, columns: Columns) -> dict[str, dict[str, int]]:
    """Counts the rows with categories that are none of those agreed on.

    Args:
        frame: the table.
        columns: what the sites agreed on.

    Returns:
        By column, how many rows have each other text; columns without such rows are left out.
    """
    found = {}
    for column in columns.columns:
        if column.kind in ("category", "ordinal"):
            written = texts(frame[column.column])
            counts = written[
                written.notna() & ~written.isin(column.categories)
            ].value_counts()
            if len(counts):
                found[column.column] = {
                    str(text): int(rows) for text, rows in counts.items()
                }
    return found


def describe_unknown(frame: pd.DataFrame, columns: Columns) -> list[str]:
    """Lines on rows with categories that no other site named, with the categories that were probably meant."""
    lines = []
    known = {column.column: column.categories for column in columns.columns}
    for name, counts in count_unknown(frame, columns).items():
        rows = sum(counts.values())
        listed = ", ".join(map(shown, [*counts][:FIRST_ROWS]))
        advice = "agree on it at all sites, or set replace"
        near = [
            f"{shown(text)} may be {shown(other)}"
            for text, other in list_near(counts, known[name]).items()
        ]
        if near:
            advice = f"{', '.join(near[:FIRST_ROWS])}: write it so, or set replace"
        lines.append(
            f"{name}: {rows} rows have a category that no other site named ({listed}); {advice}"
        )
    return lines


def check_unknown(frame: pd.DataFrame, columns: Columns, where: str) -> None:
    """Raises a DataError if most values of a column are categories on which the sites did not agree."""
    known = {column.column: column.categories for column in columns.columns}
    for name, counts in count_unknown(frame, columns).items():
        rows = sum(counts.values())
        there = int(texts(frame[name]).notna().sum())
        if rows > there / 2:
            agreed = plain(", ".join(known[name]), MOST_SHOWN)
            first = next(iter(counts))
            reason = f"{rows} of {there} values, such as {shown(first)}, are none of the agreed categories ({agreed})"
            way_out = _suggest_replacement(first, known[name])
            raise DataError(f"{where}: column {shown(name)}: {reason}; {way_out}")


def counted(frame: pd.DataFrame, column: str, patient: str | None = None) -> pd.Series:
    """How many rows have each text of a column; with the column of patients, how many patients."""
    values = texts(frame[column])
    if patient is not None:
        values = values[
            ~texts(frame[patient]).to_frame("patient").assign(text=values).duplicated()
        ]
    return values.value_counts()


def shared(
    columns: Columns, frame: pd.DataFrame, fewest: int, patient: str | None = None
) -> Columns:
    """Inferred columns as others may see them: with the categories that at least ``fewest`` rows, or patients, have.

    A column without any value has no kind: other sites know it.
    """

    def of(column: Column) -> Column:
        if column.kind == "number" and frame[column.column].isna().all():
            return Column(column.column, "empty", missing=column.missing)
        if column.kind != "category":
            return column
        counts = counted(frame, column.column, patient)
        return replace(
            column,
            categories=tuple(
                c for c in column.categories if counts.get(c, 0) >= fewest
            ),
        )

    return replace(columns, columns=tuple(map(of, columns.columns)))


@dataclass(frozen=True)
class Outcomes:
    """Labels ``y`` of the rows that have one, ``rows (n,)`` bool; and the names of the classes, if they are text."""

    y: np.ndarray
    rows: np.ndarray
    names: tuple[str, ...] = ()


def outcomes(
    frame: pd.DataFrame, path: Path, columns: Columns, event: str | None, leave: bool
) -> Outcomes:
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
        raise DataError(
            f"{where}: {reason}; fill it in, leave the row out, or set unlabelled=leave"
        )
    if event is not None:
        events = _events(frame[event][rows], f"{path}: column {event!r}")
        times = _times(labels, where, columns.zero_times)
        rows[rows] = positive_times = times > 0
        return Outcomes(np.stack((times, events), axis=1)[positive_times], rows)
    if columns.positive is not None:
        return Outcomes(
            (numbers(labels, where) > columns.positive).astype(np.int64), rows
        )
    if columns.classes:
        y, names = number_words(texts(labels).to_numpy(), columns.classes, where)
        return Outcomes(y, rows, names)
    y, names = _classes_or_numbers(simplify_labels(labels), where)
    if (
        y.dtype.kind == "f"
        and not rows.all()
        and (y == np.floor(y)).all()
        and y.min() >= 0
    ):
        y = y.astype(
            np.int64
        )  # class numbers are floats in a column where other rows have no label
    return Outcomes(y, rows, names)


def _classes_or_numbers(
    values: pd.Series, where: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Words as class numbers with the classes' names, numbers as they are: `reading.read` tells which are classes."""
    if values.dtype.kind in "iub":
        return values.to_numpy(np.int64), ()
    if values.dtype.kind == "f":
        return numbers(values, where), ()
    written = texts(values)
    different = written.unique().tolist()
    if find_boolean(different) is None:
        _check_words(written, different, where)
    are_numbers = [number_of(text) is not None for text in different]
    if all(are_numbers) or (any(are_numbers) and _has_decimals(written)):
        amounts = numbers(written, where)
        is_whole = bool((amounts == np.floor(amounts)).all()) and not _has_decimals(
            written
        )
        return amounts.astype(np.int64) if is_whole else amounts, ()
    return number_words(written.to_numpy(), (), where)


def _check_words(written: pd.Series, different: list[str], where: str) -> None:
    """Raises a DataError if a column of labels holds codes, numbers that are written otherwise, or too many words."""
    if has_codes(different):
        code = shown(next(text for text in different if has_codes([text])))
        way_out = f"name them by {name_list('classes', sort_names(different))}, or write them without leading zeros"
        raise DataError(f"{where}: {code} is a code with a leading zero; {way_out}")
    hint = explain_texts(written)
    if hint:
        raise DataError(f"{where}: {hint}")
    if (
        len(different) > max(FEW_CLASSES, len(written) / 2)
        and number_of(different[0]) is None
    ):
        reason = f"holds {len(different)} different texts in {len(written)} rows, too many for classes"
        raise DataError(
            f"{where}: {reason}; name another column as the label, or write numbers to predict as numbers"
        )


def _has_decimals(written: pd.Series) -> bool:
    """Whether a column of text holds numbers with decimals, so that other text in it is a mistake."""
    return any(
        number_of(text) is not None and not text.lstrip("+-").isdigit()
        for text in written.unique()
    )


def _times(values: pd.Series, where: str, zero_times: str | None) -> np.ndarray:
    """Times as float64, above 0; with ``leave`` those that are not are returned as they are, to be left out."""
    times = numbers(values, where)
    if zero_times == "shift" and (times > 0).any():
        times = np.where(times == 0, times[times > 0].min() / 2, times)
    wrong = np.flatnonzero(times <= 0)
    if len(wrong) == len(times) or (len(wrong) and zero_times != "leave"):
        rows = ", ".join(
            str(values.index[i] + 1) for i in wrong[:FIRST_ROWS]
        ) + ", ..." * (len(wrong) > FIRST_ROWS)
        raise DataError(
            f"{where}: {len(wrong)} of {len(times)} rows have a time that is not above 0 (rows {rows}); correct them, "
            "or set zero_times=leave to leave them out, or zero_times=shift to set those of 0 to half of the smallest"
        )
    return times


def _events(values: pd.Series, where: str) -> np.ndarray:
    """Events as float64: 1 where it happened, 0 where the row was censored."""
    written, events = texts(values), number_events(values)
    wrong = np.flatnonzero(events.isna())
    if len(wrong):
        value = (
            "no value"
            if written.iloc[wrong[0]] is None
            else repr(written.iloc[wrong[0]])
        )
        way_out = "write 1 where the event happened, 0 where the row was censored"
        raise DataError(
            f"{where}: row {values.index[wrong[0]] + 1} holds {value}; {way_out}"
        )
    return events.to_numpy(np.float64)
