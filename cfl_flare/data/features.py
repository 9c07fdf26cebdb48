# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""From a table's columns to features: what a column seems to hold, and its values as numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.errors import ColumnsError, DataError, FileError
from cfl_flare.core.files import check_memory
from cfl_flare.core.text import plain, shown
from cfl_flare.data.columns import FEWEST_ROWS, MOST_CATEGORIES, Column, Columns, in_order
from cfl_flare.data.frames import looks_like

if TYPE_CHECKING:
    import pandas as pd

# Pairs of texts, in any case, that are a boolean's: no, yes.
NO_YES = (("n", "y"), ("no", "yes"), ("false", "true"), ("f", "t"))
EPOCH = "1970-01-01"
# So many texts are categories in however short a table.
FEW = 8


def texts(values: pd.Series) -> pd.Series:
    """The values as text, whole numbers without decimals; None where there is none."""

    def written(value: object) -> str:
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            return str(int(value))
        return str(value).strip()

    found = values.map(written, na_action="ignore").astype(object)
    found = found.where(values.notna() & (found != ""), None)
    return found.map(_canonical, na_action="ignore")


def _canonical(text: str) -> str:
    """``"1.0"`` as ``"1"``, which another site may have written."""
    whole = text.endswith(".0") and text[:-2].lstrip("-").isdigit()
    return text[:-2] if whole else text


def numbers(values: pd.Series, where: str) -> np.ndarray:
    """The values as float64 ``(n,)``, NaN where there is none.

    Raises:
        DataError: one is text, or infinite.
    """
    import pandas as pd

    if values.dtype == bool:
        return values.to_numpy(np.float64)
    found = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    present = (values.notna() & (values.astype(str).str.strip() != "")).to_numpy()
    written = np.flatnonzero(present & np.isnan(found))
    if len(written) and (hint := looks_like(values.iloc[written])):
        raise DataError(f"{where}: {hint}")
    if len(written):
        row = int(written[0])
        raise DataError(
            f"{where}: row {row + 1} holds {str(values.iloc[row])!r} among numbers; fix it, leave the row out, or let "
            "absent name what means that a value is missing"
        )
    if np.isinf(found).any():
        row = int(np.flatnonzero(np.isinf(found))[0])
        raise DataError(f"{where}: row {row + 1} is infinite; fix it or leave the row out")
    return found


def days(values: pd.Series, where: str) -> np.ndarray:
    """Dates, as ISO 8601 has them, as days since 1970 ``(n,)`` float64, NaN where there is none.

    Raises:
        DataError: one is no such date.
    """
    import pandas as pd

    if values.dtype.kind == "M":
        found = values
    else:
        own = texts(values)
        found = pd.to_datetime(own, format="ISO8601", errors="coerce", utc=True)
        wrong = np.flatnonzero((own.notna() & found.isna()).to_numpy())
        if len(wrong):
            row = int(wrong[0])
            hint = looks_like(own)
            raise DataError(
                f"{where}: {hint}"
                if hint
                else f"{where}: row {row + 1} holds {own.iloc[row]!r}, no date; write it like 1996-12-31"
            )
    start = pd.Timestamp(EPOCH, tz=getattr(found.dt, "tz", None))
    return ((found - start) / pd.Timedelta(days=1)).to_numpy(np.float64)


def gaps(frame: pd.DataFrame, columns: Columns) -> list[str]:
    """Lines on columns that have no value at all, and on the shares of missing values of the others."""
    shares = {c.column: float(texts(frame[c.column]).isna().mean()) for c in columns.columns}
    empty = [name for name, share in shares.items() if share == 1]
    some = [f"{name} {max(1, round(100 * share))} %" for name, share in shares.items() if 0 < share < 1]
    found = [f"no row has a value: {', '.join(empty)}; look at the file, and at absent"] if empty else []
    return [*found, *([f"missing values: {', '.join(some)}"] if some else [])]


def inferred(frame: pd.DataFrame, where: str, categories: Collection[str] = (), missing: bool = False) -> Columns:
    """What the columns of a table seem to hold.

    Numbers are numbers, also where they are codes: ``categories`` names such columns. Text is a boolean if it is yes
    and no, a date if all of it is, and else categories.

    Args:
        frame: the columns that become features.
        where: names the file in errors.
        categories: columns that hold categories, whatever they look like.
        missing: add whether a value is missing, for columns in which some are.

    Raises:
        DataError: a column holds nothing, or text that is no category.
    """
    absent = [name for name in categories if name not in frame]
    if absent:
        raise DataError(f"{where}: categories names {shown(absent[0])}, which is no feature; it has {names_of(frame)}")
    found = []
    for name in frame:
        own = frame[name]
        column = _inferred(name, own, f"{where}: column {shown(name)}", name in categories)
        if missing and (own.isna().any() if own.dtype.kind in "iuf" else texts(own).isna().any()):
            column = Column(name, column.kind, column.categories, missing=True)
        found.append(column)
    return Columns(tuple(found))


def _inferred(name: str, values: pd.Series, where: str, is_category: bool) -> Column:
    import pandas as pd

    if values.dtype.kind in "iuf" and not is_category:
        return Column(name)
    if values.dtype.kind == "M":
        return Column(name, "date")
    own = texts(values).dropna()
    there = sorted(own.unique(), key=in_order)
    if not there:
        if values.dtype.kind == "f" and not is_category:
            return Column(name)
        raise DataError(f"{where}: holds nothing; leave it out with leave=[{name}]")
    if not is_category:
        lower = {text.lower() for text in there}
        for pair in NO_YES:
            if lower <= {*pair}:
                written = {text.lower(): text for text in there}
                upper = there[0].isupper()
                no, yes = (written.get(p, p.upper() if upper else p) for p in pair)
                return Column(name, "boolean", (no, yes))
        if hint := looks_like(own):
            raise DataError(f"{where}: {hint}")
        are_numbers = pd.to_numeric(own, errors="coerce").notna()
        if are_numbers.mean() > 0.5:
            numbers(values, where)
            return Column(name)
        if pd.to_datetime(own, format="ISO8601", errors="coerce", utc=True).notna().all():
            return Column(name, "date")
    if len(there) > MOST_CATEGORIES or len(there) > max(FEW, len(own) / 2):
        raise DataError(
            f"{where}: holds {len(there)} different texts in {len(own)} rows, too many for categories; leave it out "
            f"with leave=[{name}]"
        )
    return Column(name, "category", tuple(there))


def check_columns(frame: pd.DataFrame, columns: Columns, where: str, known: Collection[str]) -> None:
    """Compares a table's columns with those that are agreed on.

    Args:
        frame: the table.
        columns: what was agreed on.
        where: names the file in errors.
        known: other columns that it may have: the label's, the key's, ...

    Raises:
        DataError: one is missing, or new.
    """
    for column in columns.columns:
        if column.column not in frame:
            name, there = shown(column.column), names_of(frame)
            raise ColumnsError(f"{where}: no column {name}, which the sites agreed on; it has {there}; add it")
    expected = {c.column for c in columns.columns} | {*columns.leave, *known}
    new = [name for name in frame if name not in expected]
    if new:
        raise ColumnsError(
            f"{where}: column {shown(new[0])} is new: it is none of those that the sites agreed on; remove it, or name "
            "it in leave"
        )


def names_of(frame: pd.DataFrame) -> str:
    """A table's columns for a message, in one line; the first ones of very many."""
    return plain(", ".join(map(str, frame)))


def encoded(frame: pd.DataFrame, columns: Columns, where: str) -> tuple[np.ndarray, dict[str, int]]:
    """The features of a table, not yet filled up or scaled.

    A category that is none of those agreed on has 0 in all its features.

    Args:
        frame: the table, with all of the columns.
        columns: what they mean.
        where: names the file in errors.

    Returns:
        ``(n, d)`` float64, NaN where a value is missing; and how many rows have another category, by column.

    Raises:
        DataError: a value is not what its column holds, or out of its range.
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
        own = list(run)
        if simple:  # all at once, as a table of genes has many
            blocks.append(frame[[column.column for column in own]].to_numpy(np.float64))
            continue
        for column in own:
            block, unknown = _block(frame[column.column], column, f"{where}: column {shown(column.column)}")
            blocks.append(block)
            if unknown:
                others[column.column] = unknown
    x = np.concatenate(blocks, axis=1)
    if np.isinf(x).any():
        row, place = (int(i[0]) for i in np.nonzero(np.isinf(x)))
        name = columns.features[place]
        raise DataError(f"{where}: column {shown(name)}: row {row + 1} is infinite; fix it or leave the row out")
    return x, others


def _block(values: pd.Series, column: Column, where: str) -> tuple[np.ndarray, int]:
    """The features ``(n, d)`` of one column, and how many rows have a category that is not among its own."""
    unknown = 0
    if column.categories:
        own = texts(values)
        place = own.map({category: i for i, category in enumerate(column.categories)})
        index, absent = place.to_numpy(np.float64, na_value=np.nan), own.isna().to_numpy()
        unknown = int((np.isnan(index) & ~absent).sum())
        if column.kind == "category":
            block = (index[:, None] == np.arange(len(column.categories))).astype(np.float64)
            block[absent] = np.nan
        else:
            block = index[:, None]
    else:
        block = (days if column.kind == "date" else numbers)(values, where)[:, None]
        _check_range(block[:, 0], values, column, where)
    if column.missing:
        block = np.concatenate((block, np.isnan(block[:, :1]).astype(np.float64)), axis=1)
    return block, unknown


def _check_range(found: np.ndarray, values: pd.Series, column: Column, where: str) -> None:
    if column.range is None:
        return
    low, high = column.range
    outside = np.flatnonzero((found < low) | (found > high))
    if len(outside):
        row = int(outside[0])
        raise DataError(
            f"{where}: row {row + 1} holds {values.iloc[row]}, and {len(outside)} of {len(found)} rows are not in "
            f"{low:g} to {high:g}; look at the unit, and correct them or the range"
        )


def shared(columns: Columns, frame: pd.DataFrame, fewest: int = FEWEST_ROWS) -> Columns:
    """What of a site's inferred columns may be shown to others: categories that enough rows have.

    Args:
        columns: as `inferred` found them.
        frame: the table.
        fewest: so many rows at least.
    """

    def of(column: Column) -> Column:
        if column.kind != "category":
            return column
        counts: Mapping[str, int] = texts(frame[column.column]).value_counts().to_dict()
        kept = tuple(c for c in column.categories if counts.get(c, 0) >= fewest)
        return replace(column, categories=kept)

    return replace(columns, columns=tuple(map(of, columns.columns)))
