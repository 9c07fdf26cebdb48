# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files of tables as data frames: .csv, .csv.gz, .parquet, and .npz with an array for each column."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import DataError, FileError
from cfl_flare.core.files import check_memory, open_regular
from cfl_flare.core.settings import Bounds, setting
from cfl_flare.core.text import shown
from cfl_flare.data.files import MOST_PACKING, MOST_UNPACKED, read_npz

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".data", ".parquet")
# A text file's values take about this many times as much memory as the file.
TEXT_IN_MEMORY = 10
# What may separate values, and the decimal mark, by their names.
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
DECIMALS = {"point": ".", "comma": ","}
# Encodings of text files; codecs of other kinds may need endless time or memory.
ENCODINGS = r"utf[-_]?(8|16|32)([-_](sig|le|be))?|(cp|windows-)\d+|latin[-_]?\d+|iso[-_]?8859-\d+|koi8-[ru]|ascii"
ENCODINGS += r"|mac_roman|gb18030|gbk|big5|shift_jis|euc_(jp|kr)"
DECIMAL_COMMA = r"[+-]?\d*,\d+"
THOUSANDS = r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?"
DAY_OR_MONTH_FIRST = r"(\d{1,2})[./-](\d{1,2})[./-](\d{4})(?=$|\D)"


def _is_encoding(name: str) -> bool:
    with suppress(LookupError):
        return bool(re.fullmatch(ENCODINGS, name.lower()) and codecs.lookup(name))
    return False


def _one_of(named: dict[str, str]) -> Bounds:
    known = {*named, *named.values()}
    return Bounds("one of " + ", ".join(f"{name} ({mark!r})" for name, mark in named.items()), known.__contains__)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a table is written, and which of its rows are used: each site's own matter."""

    sep: str | None = setting(
        None,
        help="of a text file, what separates values: comma (default), semicolon, tab, bar",
        bounds=_one_of(SEPARATORS),
    )
    decimal: str | None = setting(
        None, help="of a text file, the decimal mark: point (default), comma", bounds=_one_of(DECIMALS)
    )
    encoding: str | None = setting(
        None,
        help="of a text file: utf-8 (default), utf-16, cp1252 (Windows in western Europe), latin-1, ...",
        bounds=Bounds("a text file's encoding, such as utf-8, utf-16, cp1252 or latin-1", _is_encoding),
    )
    dayfirst: bool | None = setting(
        None,
        help="of dates such as 31/12/1996 the day is first; False: the month is; default: 1996-12-31 alone is a date",
    )
    split: str | None = setting(
        None, help="the column that says train or test of each row, in place of a random share; it is not a feature"
    )
    zero_times: str | None = setting(
        None,
        help="rows whose time to the event is 0 or less: refuse (default), leave out, or shift those of 0 to half of "
        "the smallest time above 0",
        choices=("refuse", "leave", "shift"),
    )

    def over(self, other: Reading | None) -> Reading:
        """These settings alone, and the other's where these say nothing."""
        pairs = ((name, getattr(self, name), getattr(other, name, None)) for name in READING)
        return Reading(**{name: default if value is None else value for name, value, default in pairs})

    @property
    def marks(self) -> tuple[str, str]:
        """What separates values, and the decimal mark."""
        sep, decimal = self.sep or "comma", self.decimal or "point"
        return SEPARATORS.get(sep, sep), DECIMALS.get(decimal, decimal)


READING = tuple(Reading.__dataclass_fields__)


def is_table(path: Path) -> bool:
    """Whether a file is a table by its ending; an .npz file may be one, and is images otherwise."""
    return path.name.lower().endswith(ENDINGS)


def read_frame(
    path: Path,
    names: Sequence[str] = (),
    absent: Sequence[str] = (),
    reading: Reading | None = None,
    as_text: Sequence[str] = (),
) -> pd.DataFrame:
    """The columns of a table, each of numbers, booleans, dates or text; a missing value is NaN.

    What is neither .npz nor .parquet is read as CSV. A DataError if it cannot be read, has no rows, or two columns of
    one name.

    Args:
        names: the columns' names, for a file without a line of names: one whose first line is no such names.
        absent: texts that mean that a value is missing, apart from nothing at all.
        as_text: columns of a text file whose values are left as they are written: 007 is no 7.
    """
    reading, readers = reading or Reading(), {".npz": _of_arrays, ".parquet": _of_parquet}
    try:
        with open_regular(path) as file:
            if reader := readers.get(path.suffix.lower()):
                return _with_dates(path, _without(reader(path), absent), reading.dayfirst)
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not is_packed:
                check_memory(TEXT_IN_MEMORY * os.fstat(file.fileno()).st_size, str(path))
            content = _unpacked(path) if is_packed else file.read()
        check_memory(TEXT_IN_MEMORY * len(content), str(path))
        frame = _of_text(path, content, names, absent, reading, as_text)
        return _with_dates(path, frame, reading.dayfirst, as_text)
    except DataError:
        raise
    except FileError as error:
        raise DataError(str(error)) from error
    except (OSError, EOFError, UnicodeError, zlib.error, csv.Error) as error:
        encoding = (reading.encoding or "utf-8").upper()
        is_encoding = isinstance(error, UnicodeError)
        way_out = f"; {_way_to_set('encoding', 'cp1252')} if it was written on Windows" if is_encoding else ""
        raise DataError(f"{path}: cannot be read as a CSV file in {encoding}: {error}{way_out}") from error


def _way_to_set(name: str, value: str) -> str:
    written = value.lower() if value in ("True", "False") else f'"{value}"'
    return f'set {name}={value}, or "{name}": {written} in the columns\' file'


def _unpacked(path: Path) -> bytes:
    """The content of a gzip file, which says nothing reliable of its size."""
    limit = MOST_UNPACKED + MOST_PACKING * os.path.getsize(path)
    with gzip.open(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        reason = f"holds more than {limit:,} bytes, which no table in a file of this size has"
        raise DataError(f"{path}: {reason}; unpack it")
    return content


def _of_text(
    path: Path, content: bytes, names: Sequence[str], absent: Sequence[str], reading: Reading, as_text: Sequence[str]
) -> pd.DataFrame:
    import pandas as pd

    has_zeros = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:100]
    if reading.encoding is None and has_zeros:
        raise DataError(f"{path}: is no UTF-8, but looks like UTF-16; {_way_to_set('encoding', 'utf-16')}")
    text = content.decode(reading.encoding or "utf-8").removeprefix("\ufeff")
    header, is_there = _header(path, text, names, reading)
    sep, decimal = reading.marks
    frame = pd.read_csv(
        io.StringIO(text),
        names=header,
        header=0 if is_there else None,
        keep_default_na=False,
        na_values=["", *absent],
        dtype=dict.fromkeys(as_text, str),
        sep=sep,
        decimal=decimal,
        skipinitialspace=True,
        low_memory=False,
    )
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].str.strip()
        values = frame[name].dropna()
        if decimal == "," and name not in as_text and len(values) and values.str.fullmatch(THOUSANDS).all():
            where = f"{path}: column {shown(name)}: row {values.index[0] + 1} holds {shown(values.iloc[0])}"
            raise DataError(f"{where}, where the decimal mark is a comma; write numbers without points")
    return frame


def _with_dates(path: Path, frame: pd.DataFrame, dayfirst: bool | None, as_text: Sequence[str] = ()) -> pd.DataFrame:
    """The table with dates written as 1996-12-31 that begin with the day or the month, if it is known which."""
    texts = [name for name in frame.select_dtypes(include=["object", "string"]) if name not in as_text]
    for name in texts if dayfirst is not None else ():
        parts = frame[name].astype("string").str.extract(f"^{DAY_OR_MONTH_FIRST}(.*)$").dropna()
        day, month = (parts[i].astype(int) for i in ((0, 1) if dayfirst else (1, 0)))
        if len(wrong := parts.index[(month > 12) | (day > 31)]):
            where = f"{path}: column {shown(name)}: row {wrong[0] + 1} holds {shown(frame[name][wrong[0]])}"
            way_out = _way_to_set("dayfirst", "False" if dayfirst else "True")
            raise DataError(f"{where}, whose {'month' if dayfirst else 'day'} is not first; {way_out}")
        month_and_day = month.map("-{:02d}-".format) + day.map("{:02d}".format)
        if len(parts):
            frame.loc[parts.index, name] = parts[2] + month_and_day + parts[3]
    return frame


def looks_like(values: pd.Series) -> str:
    """What most texts of a column look like that are neither numbers nor ISO dates, with the way out; else empty."""
    sample = values.dropna().astype(str)
    for pattern, what, way_out in (
        (DECIMAL_COMMA, "numbers with a decimal comma", _way_to_set("decimal", "comma")),
        (DAY_OR_MONTH_FIRST + ".*", "dates", f"{_way_to_set('dayfirst', 'True')}; False where the month is first"),
    ):
        alike = sample[sample.str.fullmatch(pattern)]
        if len(alike) > len(sample) / 2:
            return f"holds {what}, such as {shown(alike.iloc[0])}; {way_out}"
    return ""


def _header(path: Path, text: str, names: Sequence[str], reading: Reading) -> tuple[list[str], bool]:
    """The columns' names, and whether the first line has them.

    Pandas would rename two of one name, and fill up rows that are too short.
    """
    content = csv.reader(io.StringIO(text, newline=""), delimiter=reading.marks[0], strict=True)
    rows: Iterator[list[str]] = (row for row in content if row)
    first = next(rows, [])
    line = text[:10_000].lstrip().split("\n", 1)[0]
    other = max(SEPARATORS, key=lambda name: line.count(SEPARATORS[name])) if reading.sep is None else "comma"
    hint = "" if other == "comma" else f"; {_way_to_set('sep', other)}"
    if hint and len(first) == 1:
        times = line.count(SEPARATORS[other])
        raise DataError(f"{path}: its first line has no comma, but {times} times a {other}{hint}")
    header = [name.strip() for name in first]
    is_there = not names or {*names}.issuperset(header)
    if not is_there:
        header, rows = list(names), chain([first], rows)
    _check_unique(path, header)
    number = 0
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            what = f"the header {len(header)} columns" if is_there else f"and there are {len(header)} names of columns"
            raise DataError(f"{path}: row {number} has {len(row)} values, {what}{hint or '; give each row as many'}")
    if not number:
        raise DataError(f"{path}: no rows; a table has a line of column names and one line per sample")
    return header, is_there


def _check_unique(path: Path, names: Iterable[str]) -> None:
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(f"{path}: two columns are called {shown(repeated[0])}; rename one")


def _without(frame: pd.DataFrame, absent: Sequence[str]) -> pd.DataFrame:
    """The table without what means that a value is missing: these texts, and these numbers in columns of numbers."""
    import pandas as pd

    amounts = pd.to_numeric(pd.Series(list(absent), dtype=object), errors="coerce").dropna().tolist()
    for name in frame if absent else ():
        values = frame[name]
        if values.dtype.kind != "b":
            frame[name] = values.mask(values.isin(amounts if values.dtype.kind in "iuf" else list(absent)))
    return frame


def _of_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(f"{path}: the package pyarrow is not installed; pip install 'cfl-flare[parquet]'") from error
    limit = MOST_UNPACKED + MOST_PACKING * os.path.getsize(path)
    try:
        file = parquet.ParquetFile(path)
        size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        if size > limit:
            reason = f"says that it holds {size:,} bytes, which no file of this size does"
            raise DataError(f"{path}: {reason}; write it again")
        check_memory(TEXT_IN_MEMORY * size, str(path))
        frame = file.read().to_pandas()
    except DataError:
        raise
    except Exception as error:  # pyarrow raises errors of many kinds
        raise DataError(f"{path}: cannot be read as a parquet file ({one_line(error)}); write it again") from error
    if not len(frame):
        raise DataError(f"{path}: no rows; a table has one row per sample")
    frame.columns = frame.columns.map(str)
    _check_unique(path, frame.columns)
    return frame


def _of_arrays(path: Path) -> pd.DataFrame:
    """The arrays of an npz file, one of two dimensions as a column for each of its own."""
    import pandas as pd

    arrays = read_npz(path)
    lengths = {name: len(values) if values.ndim else 0 for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        (first, n), (other, m) = min(lengths.items(), key=itemgetter(1)), max(lengths.items(), key=itemgetter(1))
        raise DataError(f"{path}: {first!r} has {n} rows but {other!r} has {m}; every array is a column of the table")
    columns: dict[str, np.ndarray] = {}
    for name, values in arrays.items():
        flat = values.reshape(len(values), -1)
        several = flat.shape[1] > 1
        columns |= {f"{name}.{j}" if several else name: flat[:, j] for j in range(flat.shape[1])}
    if not columns or not max(lengths.values()):
        raise DataError(f"{path}: no rows; a table has one array for each column")
    return pd.DataFrame(columns)
