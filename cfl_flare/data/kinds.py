# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the columns of a table seem to hold, where nobody has said it.

The rules, in their order, for the values of a column that are not missing:

1. A column that is named in ``categories`` holds categories.
2. Numbers are numbers. Whole numbers that are all dates such as 19961231 are dates.
3. Text is a boolean if it is yes and no, in letters of any case, and both occur.
4. If most texts are numbers, all have to be; one that is not is refused. So it is with dates.
5. Other texts are categories, unless they are too many.

So one odd value never changes the kind of a column without a word.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.core.text import plain, shown
from cfl_flare.data.columns import MOST_CATEGORIES, Column, Columns, in_order
from cfl_flare.data.frames import is_unnamed
from cfl_flare.data.hints import (
    are_gap_words,
    explain_texts,
    explain_units,
    list_gap_words,
    name_list,
)
from cfl_flare.data.spelling import SPELLED_ALIKE, group_alike
from cfl_flare.data.values import (
    MEANINGS,
    are_percentages,
    days,
    find_boolean,
    hint_at_gaps,
    numbers,
    parse_amounts,
    parse_days,
    show_far_dates,
    texts,
)

if TYPE_CHECKING:
    import pandas as pd

# A column has remarks on this many groups of spellings.
MOST_GROUPS = 3
# This many texts are categories in however short a table.
FEW = 8
# Whole numbers in this range may be dates that are written without marks.
DATE_NUMBERS = (18_000_101, 22_001_231)
# So many rows have to be counted up before they look like row numbers.
FEWEST_COUNTED = 10
PERCENT = "%"


def infer_columns(
    frame: pd.DataFrame,
    where: str,
    categories: Collection[str] = (),
    missing: bool = False,
) -> Columns:
    """Infers what the columns of a table hold that become features.

    Args:
        frame: these columns.
        where: names the file in an error.
        categories: columns of numbers that are codes.
        missing: whether a column in which some values are missing says so in a feature.

    Returns:
        What the columns seem to mean.

    Raises:
        DataError: a column holds nothing, too many texts, or values of two kinds.
    """
    unknown = [name for name in categories if name not in frame]
    if unknown:
        there = plain(", ".join(map(str, frame)))
        raise DataError(
            f"{where}: categories names {shown(unknown[0])}, which is no feature; it has {there}"
        )
    columns = []
    for name in frame:
        values = frame[name]
        column = _infer_column(
            name, values, f"{where}: column {shown(name)}", name in categories
        )
        columns.append(replace(column, missing=missing and bool(values.isna().any())))
    return Columns(tuple(columns))


def _infer_column(
    name: str, values: pd.Series, where: str, is_category: bool
) -> Column:
    if not is_category:
        if values.dtype.kind == "M" or _are_date_numbers(values):
            return Column(name, "date")
        if values.dtype.kind in "iuf":
            return Column(name)
    written = texts(values).dropna()
    if not len(written):
        raise DataError(
            f"{where}: holds nothing; leave it out with {name_list('leave', [name])}"
        )
    categories = sorted(written.unique(), key=in_order)
    if not is_category:
        column = _infer_kind(name, written, categories, where)
        if column is not None:
            return column
    if len(categories) > MOST_CATEGORIES or len(categories) > max(
        FEW, len(written) / 2
    ):
        reason = f"holds {len(categories)} different texts in {len(written)} rows, too many for categories"
        hint = explain_units(written)
        raise DataError(
            f"{where}: {reason}; leave it out with {name_list('leave', [name])}{hint and ', or, ' + hint}"
        )
    return Column(name, "category", tuple(categories))


def _infer_kind(
    name: str, written: pd.Series, categories: list[str], where: str
) -> Column | None:
    """The column if its texts are a boolean, numbers or dates; None for other texts."""
    pair = find_boolean(categories)
    if pair is not None and written.isin(["0", "1"]).mean() <= 0.5:
        return Column(name, "boolean", pair)
    hint = explain_texts(written)
    if hint:
        raise DataError(f"{where}: {hint}")
    if are_percentages(categories):
        return Column(name, unit=PERCENT)
    if _are_most(written, categories, parse_amounts(categories)):
        numbers(written, where)  # raises where a text is no number
        return Column(name)
    if _are_most(written, categories, parse_days(categories)):
        days(written, where)
        return Column(name, "date")
    return None


def _are_most(written: pd.Series, different: list[str], parsed: np.ndarray) -> bool:
    """Whether most rows, or most of the different texts, are of a kind.

    Args:
        written: the texts of all rows.
        different: each text once.
        parsed: of each of these, NaN if it is not of that kind.
    """
    of_kind = {text for text, value in zip(different, parsed) if not np.isnan(value)}
    written = written[~are_gap_words(written)]
    if written.isin(of_kind).mean() > 0.5:
        return True
    return len(of_kind) > max(2, len(different) - len(of_kind))


def _are_date_numbers(values: pd.Series) -> bool:
    """Whether most numbers of a column are days such as 19961231, as DICOM has them: then all have to be."""
    if values.dtype.kind not in "iuf":
        return False
    there = values.to_numpy()[values.notna().to_numpy()]
    low, high = DATE_NUMBERS
    near = there[(there >= low) & (there <= high)]
    different, counts = np.unique(near, return_counts=True)
    if (
        len(different) < 2
        or len(near) <= len(there) / 2
        or (different != np.floor(different)).any()
    ):
        return False
    are_days = ~np.isnan(parse_days([str(int(value)) for value in different]))
    return bool(counts[are_days].sum() > len(there) / 2)


def describe_oddities(
    frame: pd.DataFrame, columns: Columns, x: np.ndarray, names: Collection[str]
) -> list[str]:
    """Lines on what is probably a mistake: row numbers, dates far away, and texts in several spellings.

    Args:
        frame: the table.
        columns: what its columns mean.
        x: the features ``(n, d)``.
        names: columns whose texts are names, of owners and patients.
    """
    used = {column.column for column in columns.columns}
    unnamed = [name for name in frame if is_unnamed(name) and name not in used]
    reason = "has no name in the file, as row numbers have none, and is left out; take names the columns to use"
    lines = [f"{name}: {reason}" for name in unnamed]
    for column, place in columns.places:
        if column.kind == "category":
            lines += describe_spellings(column.column, column.categories)
            lines += _describe_words(
                column.column, texts(frame[column.column]).dropna()
            )
        elif column.kind == "date":
            lines += show_far_dates(column.column, x[:, place.start])
        elif column.kind == "number" and _are_counted(frame[column.column]):
            advice = f"if they number the rows, leave them out with {name_list('leave', [column.column])}"
            lines.append(
                f"{column.column}: its numbers are unique and rising; {advice}"
            )
    for name in names:
        lines += describe_spellings(name, texts(frame[name]).dropna().unique().tolist())
    return lines


def describe_spellings(name: str, different: Collection[str]) -> list[str]:
    """Lines on texts of a column that differ in their spelling only."""
    lines = []
    groups = group_alike(different)
    for group in groups[:MOST_GROUPS]:
        listed = ", ".join(shown(text) for text in group)
        advice = "if they mean the same, write them in one way, or set replace"
        lines.append(f"{name}: {listed} {SPELLED_ALIKE}; {advice}")
    if len(groups) > MOST_GROUPS:
        lines.append(
            f"{name}: {len(groups)} such groups of texts in all; look at the column"
        )
    return lines


def _describe_words(name: str, written: pd.Series) -> list[str]:
    """Lines on categories that may mean that a value is missing, or keep a column from being a boolean."""
    gaps = list_gap_words(written.unique())
    if gaps:
        listed = ", ".join(map(shown, gaps))
        return [
            f"{name}: {listed} may mean that a value is missing; if so, set {name_list('absent', gaps)}"
        ]
    others = written[~written.str.casefold().isin(MEANINGS)]
    words = written.drop(others.index)
    if (
        not len(others)
        or len(others) > len(words)
        or find_boolean(words.unique().tolist()) is None
    ):
        return []
    listed = ", ".join(map(shown, others.unique()[:MOST_GROUPS]))
    reason = (
        f"would be a boolean without {len(others)} of {len(written)} rows ({listed})"
    )
    return [f"{name}: {reason}; correct them{hint_at_gaps(others.unique())}"]


def _are_counted(values: pd.Series) -> bool:
    """Whether whole numbers rise from row to row, or are one after another in any order."""
    values = values.dropna()
    if values.dtype.kind not in "iuf" or len(values) < FEWEST_COUNTED:
        return False
    amounts = values.to_numpy()
    if (amounts != np.floor(amounts)).any():
        return False
    if (amounts[1:] > amounts[:-1]).all():
        return True
    return len(np.unique(amounts)) == len(amounts) and int(amounts.max()) - int(
        amounts.min()
    ) + 1 == len(amounts)
