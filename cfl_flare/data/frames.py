# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files of tables as data frames: columns of numbers, dates or texts, by rules that are the same for all files."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from lzma import LZMAError
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from cfl_flare.core.errors import DataError, FileError
from cfl_flare.core.files import check_memory, open_regular
from cfl_flare.core.text import shown
from cfl_flare.data.cells import simplify_column, write_cell
from cfl_flare.data.hints import (
    DAY_OR_MONTH_FIRST,
    SPACES,
    explain_points,
    name_setting,
)
from cfl_flare.data.reading import SEPARATORS, Reading
from cfl_flare.data.table_files import (
    IN_MEMORY,
    is_table_name,
    read_typed,
    type_of,
    unpack,
)
from cfl_flare.data.values import are_percentages, has_codes, parse_numbers

if TYPE_CHECKING:
    import pandas as pd

DATE_IN_PARTS = re.compile(f"{DAY_OR_MONTH_FIRST}(.*)", re.DOTALL)
# The names that pandas and R give to a column without a name, which most often has the numbers of rows.
UNNAMED = re.compile(r"Unnamed: \d+(\.\d+)*|__index_level_\d+__|\.\.\.\d+")


def is_table(path: Path) -> bool:
    """Whether a file is a table by its ending; an .npz file may be one, and is images otherwise."""
    return is_table_name(path.name)


def is_unnamed(name: str) -> bool:
    """Whether a column had no name in its file."""
    return UNNAMED.fullmatch(name) is not None


def read_frame(
    path: Path,
    names: Sequence[str] = (),
    absent: Sequence[str] = (),
    reading: Reading | None = None,
    as_text: Sequence[str] = (),
) -> pd.DataFrame:
    """Reads the columns of a table.

    A file of no known type is read as CSV. A column of text becomes one of numbers if all its values are numbers, and
    none begins with 0 as codes do. Nothing else is guessed.

    Args:
        path: the file.
        names: the columns' names, for a file without a line of names: one whose first line is no such names.
        absent: texts that mean that a value is missing, apart from nothing at all.
        reading: how the file is written.
        as_text: columns whose values are left as they are written: 007 is no 7.

    Returns:
        The columns: numbers as int64 or float64, dates with a type of their own, else text; a missing value is NaN. A
        column without a name is called ``Unnamed: 0``, by its place.

    Raises:
        DataError: the file cannot be read, has no rows, or two columns of one name.
    """
    reading = reading or Reading()
    _check_marks(path, reading)
    try:
        with open_regular(path) as file:
            kind = type_of(path, file)
            if kind is None:
                frame = _read_text(path, unpack(path, file), names, reading)
            else:
                check_memory(IN_MEMORY * os.fstat(file.fileno()).st_size, str(path))
                frame = read_typed(path, kind, file.read())
        frame.columns = _name_columns(
            path, [str(name).strip() for name in frame.columns]
        )
        return _settle_columns(path, frame, absent, reading, {*as_text})
    except DataError:
        raise
    except FileError as error:
        raise DataError(str(error)) from error
    except (
        OSError,
        EOFError,
        UnicodeError,
        zlib.error,
        csv.Error,
        LZMAError,
        BadZipFile,
    ) as error:
        encoding = (reading.encoding or "utf-8").upper()
        is_encoding = isinstance(error, UnicodeError)
        way_out = (
            f"; {name_setting('encoding', 'cp1252')} if it was written on Windows"
            if is_encoding
            else ""
        )
        raise DataError(
            f"{path}: cannot be read as a CSV file in {encoding}: {error}{way_out}"
        ) from error


def _check_marks(path: Path, reading: Reading) -> None:
    if reading.thousands_mark == reading.decimal_mark:
        both = f"thousands = {reading.thousands!r} is the decimal mark as well"
        other = "comma" if reading.thousands_mark == "." else "point"
        raise DataError(
            f"{path}: {both}; {name_setting('decimal', other)}, or leave thousands out"
        )


def _name_columns(path: Path, names: Sequence[str]) -> list[str]:
    """The columns' names; one without a name gets the name that pandas gives it, by its place from 0."""
    _check_unique(path, [name for name in names if name])
    named: list[str] = []
    for place, name in enumerate(names):
        new = name or f"Unnamed: {place}"
        while not name and (
            new in names or new in named
        ):  # pandas wrote the table twice
            new += ".1"
        named.append(new)
    return named


def _read_text(
    path: Path, content: bytes, names: Sequence[str], reading: Reading
) -> pd.DataFrame:
    """Reads all values of a text file as they are written."""
    import pandas as pd

    check_memory(IN_MEMORY * len(content), str(path))
    start = content[:100]
    has_zeros = (
        content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        or start.count(0) > len(start) / 4
    )
    if reading.encoding is None and has_zeros:
        raise DataError(
            f"{path}: is no UTF-8, but looks like UTF-16; {name_setting('encoding', 'utf-16')}"
        )
    text = content.decode(reading.encoding or "utf-8").removeprefix("\ufeff")
    sep = reading.separator(path)
    if named := re.match(r"sep=(.)\r?\n", text):  # as Excel writes it
        text = text[named.end() :]
        sep = sep if reading.sep else named[1]
    header, is_there = _read_header(path, text, names, reading, sep)
    return pd.read_csv(
        io.StringIO(text),
        names=list(range(len(header))),
        header=0 if is_there else None,
        dtype=str,
        na_filter=False,
        sep=sep,
        skipinitialspace=True,
        low_memory=False,
    ).set_axis(header, axis=1)


# ---- Values ----


def _settle_columns(
    path: Path,
    frame: pd.DataFrame,
    absent: Sequence[str],
    reading: Reading,
    as_text: set[str],
) -> pd.DataFrame:
    """Makes numbers, dates or texts of all columns."""
    import pandas as pd

    settled: dict[str, Any] = {}
    absent_numbers = parse_numbers([text for text in absent if text])
    absent_numbers = absent_numbers[~np.isnan(absent_numbers)]
    for place, name in enumerate(frame.columns):
        where = f"{path}: column {shown(name)}"
        values = simplify_column(frame.iloc[:, place], where)
        if isinstance(values, np.ndarray) and _has_replacements(values, reading):
            values = [
                "" if np.isnan(value) else write_cell(value, row, where)
                for row, value in enumerate(values, 1)
            ]
        if isinstance(values, list):
            cells = _replace_texts(values, reading, where, name in as_text)
            values = _settle_texts(cells, {*absent}, absent_numbers, name in as_text)
            if values.dtype.kind == "f" and not (reading.decimal or reading.thousands):
                _check_points(cells, {*absent}, where)
        elif isinstance(values, np.ndarray) and len(absent_numbers):
            values = _remove_numbers(values, absent_numbers)
        settled[name] = values
    return pd.DataFrame(settled, index=pd.RangeIndex(len(frame)))


def _remove_numbers(values: np.ndarray, absent: np.ndarray) -> np.ndarray:
    missing = np.isin(values, absent)
    return np.where(missing, np.nan, values) if missing.any() else values


def _check_points(cells: list[str], absent: set[str], where: str) -> None:
    """Raises a DataError if the points of a column's numbers may stand between thousands."""
    reason = explain_points([cell for cell in cells if cell and cell not in absent])
    if reason:
        raise DataError(f"{where}: {reason}")


def _has_replacements(values: np.ndarray, reading: Reading) -> bool:
    """Whether numbers of a file that keeps them as such are to be replaced, as the same numbers of a text file are."""
    amounts = parse_numbers([text for text in reading.replace or () if text.strip()])
    return bool(np.isin(values, amounts[~np.isnan(amounts)]).any())


def _replace_texts(
    cells: list[str], reading: Reading, where: str, as_text: bool
) -> list[str]:
    """Texts as they would be with decimal points, ISO dates, and without what is to be replaced."""
    if not as_text:
        cells = _write_points(cells, reading, where)
        if reading.dayfirst is not None:
            cells = _write_dates(cells, reading.dayfirst, where)
    if reading.replace:
        others = {old: str(new) for old, new in reading.replace.items()}
        cells = [others.get(cell, cell) for cell in cells]
    return cells


def _write_points(cells: list[str], reading: Reading, where: str) -> list[str]:
    """Numbers with a decimal point and nothing between thousands; other texts as they are."""
    decimal = reading.decimal_mark
    thousands = reading.thousands_mark
    if decimal == "." and not thousands:
        return cells
    mark = re.escape(decimal)
    number = rf"\d*{mark}?\d+|\d+{mark}|\d{{1,3}}([{SPACES}]\d{{3}})+({mark}\d+)?"
    if thousands:
        group = re.escape(thousands)
        number += rf"|(0|[1-9]\d{{0,2}})({group}\d{{2,3}})*{group}\d{{3}}({mark}\d+)?"
    local = re.compile(rf"[+-]?({number})([eE][+-]?\d+)?\s*%?")
    looks_local = re.compile(rf"[+-]?[\d{re.escape(decimal + thousands)}]*\d\s*%?")
    written: dict[str, str] = {}
    others: dict[str, int] = {}
    there = 0
    for row, cell in enumerate(cells, start=1):
        there += bool(cell)
        if local.fullmatch(cell):
            bare = _join_thousands(cell, thousands) if thousands else cell
            written[cell] = bare.replace(decimal, ".")
        elif cell and (
            (thousands and looks_local.fullmatch(cell))
            or not np.isnan(parse_numbers([cell])[0])
        ):
            others.setdefault(cell, row)
    if others and sum(cell in written or cell in others for cell in cells) > there / 2:
        cell, row = next(iter(others.items()))
        marks = f"the decimal mark is a {_name_mark(decimal)}"
        way_out = "write all numbers in one way"
        if thousands:
            marks += f", and a {_name_mark(thousands)} stands before each three digits"
        else:
            way_out = f"write numbers without points, or {name_setting('thousands', 'point')} if they are thousands"
        raise DataError(
            f"{where}: row {row} holds {shown(cell)}, where {marks}; {way_out}"
        )
    return [written.get(cell, cell) for cell in cells]


def _name_mark(mark: str) -> str:
    return {",": "comma", ".": "point"}.get(mark, mark)


def _join_thousands(cell: str, mark: str) -> str:
    """A number without the marks between its thousands: 0,978 is 978, and 0744 stays the code that it is."""
    if mark not in cell:
        return cell
    return re.sub(r"^([+-]?)0+(?=\d)", r"\1", cell.replace(mark, ""))


def _write_dates(cells: list[str], dayfirst: bool, where: str) -> list[str]:
    """Dates that begin with the day or the month, written as 1996-12-31."""
    written = {}
    for row, cell in enumerate(cells, start=1):
        found = None if cell in written else DATE_IN_PARTS.fullmatch(cell)
        if found is None:
            continue
        first, second, year, rest = found.groups()
        day, month = (
            (int(first), int(second)) if dayfirst else (int(second), int(first))
        )
        if month > 12 or day > 31:
            reason = f"row {row} holds {shown(cell)}, whose {'month' if dayfirst else 'day'} is not first"
            raise DataError(
                f"{where}: {reason}; {name_setting('dayfirst', 'False' if dayfirst else 'True')}"
            )
        written[cell] = f"{year}-{month:02d}-{day:02d}{rest}"
    return [written.get(cell, cell) for cell in cells] if written else cells


def _settle_texts(
    cells: list[str], absent: set[str], absent_numbers: np.ndarray, as_text: bool
) -> np.ndarray:
    """A column of text: numbers if all its values are numbers, and else text, NaN where there is none."""
    if absent:
        cells = _remove_texts(cells, absent, absent_numbers)
    there = [cell for cell in cells if cell]
    if not as_text and not has_codes(there) and not are_percentages(there):
        amounts = parse_numbers(there)
        if not np.isnan(amounts).any():
            return _place_numbers(cells, there, amounts)
    return np.array([cell or np.nan for cell in cells], dtype=object)


def _remove_texts(
    cells: list[str], absent: set[str], absent_numbers: np.ndarray
) -> list[str]:
    missing = {*absent}
    if len(absent_numbers):
        different = sorted({cell for cell in cells if cell})
        are_absent = np.isin(parse_numbers(different), absent_numbers)
        missing |= {
            text
            for text, gone in zip(different, are_absent)
            if gone and not has_codes([text])
        }
    return ["" if cell in missing else cell for cell in cells]


def _place_numbers(
    cells: list[str], there: list[str], amounts: np.ndarray
) -> np.ndarray:
    """Numbers at their rows: whole ones as int64 if all rows have one, else float64 with NaN."""
    if len(there) < len(cells):
        values = np.full(len(cells), np.nan)
        values[[place for place, cell in enumerate(cells) if cell]] = amounts
        return values
    if all(cell.lstrip("+-").isdigit() for cell in there):
        whole = [int(cell) for cell in there]
        if max(map(abs, whole), default=0) < 2**63:
            return np.array(whole, np.int64)
    return amounts


# ---- The line of names ----


def _read_header(
    path: Path, text: str, names: Sequence[str], reading: Reading, sep: str
) -> tuple[list[str], bool]:
    """The columns' names, and whether the first line has them.

    Pandas would rename two of one name, and fill up rows that are too short.
    """
    content = csv.reader(io.StringIO(text, newline=""), delimiter=sep, strict=True)
    rows: Iterator[list[str]] = (row for row in content if row)
    first = [name.strip() for name in next(rows, [])]
    advice = _suggest_separator(path, text, first, reading, sep)
    is_there = not names or (any(first) and {*names, ""}.issuperset(first))
    if is_there:
        header = _name_columns(path, first)
        what = f"the header {len(header)} columns"
    else:
        header = _name_columns(path, names)
        what = f"and there are {len(header)} names of columns"
        rows = chain([first], rows)
    number = 0
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            way_out = advice or _suggest_repair(first, row)
            raise DataError(
                f"{path}: row {number} has {len(row)} values, {what}; {way_out}"
            )
    if not number:
        raise DataError(
            f"{path}: no rows; a table has a line of column names and one line per sample"
        )
    return header, is_there


def _suggest_separator(
    path: Path, text: str, first: Sequence[str], reading: Reading, sep: str
) -> str:
    """How to set another separator if the first line has more of it; a DataError if it has no other value."""
    if reading.sep is not None:
        return ""
    line = text[:10_000].lstrip().split("\n", 1)[0]
    names = {mark: name for name, mark in SEPARATORS.items()}
    other = max(names, key=line.count)
    if other == sep or line.count(other) <= line.count(sep):
        return ""
    way_out = name_setting("sep", names[other])
    if len(first) == 1:
        times = f"{line.count(other)} times a {names[other]}"
        raise DataError(
            f"{path}: its first line has no {names.get(sep, sep)}, but {times}; {way_out}"
        )
    return way_out


def _suggest_repair(first: Sequence[str], row: Sequence[str]) -> str:
    """What to do if a row has more or fewer values than there are names."""
    if first and first[0].startswith("#"):
        return "delete the remark in the first line"
    if len(row) == len(first) + 1 and not row[-1]:
        return "end the line of names with the same mark as the rows, or no row"
    if len(row) == len(first) + 1:
        return "name each column; R writes row names without a name, unless it is told row.names=FALSE"
    return "give each row as many"


def _check_unique(path: Path, names: Iterable[str]) -> None:
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(
            f"{path}: two columns are called {shown(repeated[0])}; rename one"
        )
