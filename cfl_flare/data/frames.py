# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files of tables as data frames: .csv, .csv.gz, .parquet, and .npz with an array for each column."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import DataError, FileError
from cfl_flare.core.files import check_memory, open_regular
from cfl_flare.core.text import shown
from cfl_flare.data.files import MOST_PACKING, MOST_UNPACKED, read_npz

if TYPE_CHECKING:
    import pandas as pd

# The endings by which a table is known.
ENDINGS = (".csv", ".csv.gz", ".data", ".parquet")
# A text file's values take about this many times as much memory as the file.
TEXT_IN_MEMORY = 10


def is_table(path: Path) -> bool:
    """Whether a file is a table by its ending; an .npz file may be one, and is images otherwise."""
    return path.name.lower().endswith(ENDINGS)


def read_frame(path: Path, names: Sequence[str] = (), absent: Sequence[str] = ()) -> pd.DataFrame:
    """The columns of a table, each of numbers, booleans, dates or text; a missing value is NaN.

    Args:
        path: the file; what is neither .npz nor .parquet is read as CSV, in UTF-8.
        names: the columns' names, for a file without a line of names: one whose first line is no such names.
        absent: texts that mean that a value is missing, besides nothing at all.

    Raises:
        DataError: it cannot be read, has no rows, or two columns of one name.
    """
    try:
        with open_regular(path) as file:
            ending = path.suffix.lower()
            if ending == ".npz":
                return _of_arrays(path)
            if ending == ".parquet":
                return _of_parquet(path, absent)
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not packed:
                check_memory(TEXT_IN_MEMORY * os.fstat(file.fileno()).st_size, str(path))
            content = _unpacked(path) if packed else file.read()
        check_memory(TEXT_IN_MEMORY * len(content), str(path))
        return _of_text(path, content, names, absent)
    except DataError:
        raise
    except FileError as error:
        raise DataError(str(error)) from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a CSV file in UTF-8: {error}") from error


def _unpacked(path: Path) -> bytes:
    """The content of a gzip file, which says nothing reliable of its size."""
    limit = MOST_UNPACKED + MOST_PACKING * os.path.getsize(path)
    with gzip.open(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DataError(
            f"{path}: holds more than {limit:,} bytes, which no table in a file of this size has; unpack it"
        )
    return content


def _of_text(path: Path, content: bytes, names: Sequence[str], absent: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    text = content.decode("utf-8-sig")
    header, is_there = _checked(path, text, names)
    frame = pd.read_csv(
        io.StringIO(text),
        names=header,
        header=0 if is_there else None,
        keep_default_na=False,
        na_values=["", *absent],
        skipinitialspace=True,
        low_memory=False,
    )
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].str.strip()
    return frame


def _checked(path: Path, text: str, names: Sequence[str]) -> tuple[list[str], bool]:
    """The columns' names, and whether the first line has them.

    Pandas would rename two of one name, and fill up rows that are too short.
    """
    rows: Iterator[list[str]] = (row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row)
    first = next(rows, [])
    header = [name.strip() for name in first]
    is_there = not names or {*names}.issuperset(header)
    if not is_there:
        header, rows = list(names), chain([first], rows)
    repeated = [name for name, times in Counter(header).items() if times > 1]
    if repeated:
        raise DataError(f"{path}: two columns are called {shown(repeated[0])}; rename one")
    number = 0
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            what = f"the header {len(header)} columns" if is_there else f"and there are {len(header)} names of columns"
            raise DataError(f"{path}: row {number} has {len(row)} values, {what}; give each row as many")
    if not number:
        raise DataError(f"{path}: no rows; a table has a line of column names and one line per sample")
    return header, is_there


def _of_parquet(path: Path, absent: Sequence[str]) -> pd.DataFrame:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(f"{path}: the package pyarrow is not installed; pip install 'cfl-flare[parquet]'") from error
    try:
        file = parquet.ParquetFile(path)
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        size = sum(group.total_byte_size for group in groups)
        limit = MOST_UNPACKED + MOST_PACKING * os.path.getsize(path)
        if size > limit:
            raise DataError(
                f"{path}: says that it holds {size:,} bytes, which no file of this size does; write it again"
            )
        check_memory(TEXT_IN_MEMORY * size, str(path))
        frame = file.read().to_pandas()
    except DataError:
        raise
    except Exception as error:  # pyarrow raises errors of many kinds
        raise DataError(f"{path}: cannot be read as a parquet file ({one_line(error)}); write it again") from error
    if not len(frame):
        raise DataError(f"{path}: no rows; a table has one row per sample")
    repeated = [name for name, times in Counter(map(str, frame.columns)).items() if times > 1]
    if repeated:
        raise DataError(f"{path}: two columns are called {shown(repeated[0])}; rename one")
    frame.columns = [str(name) for name in frame.columns]
    return frame.replace(list(absent), None) if absent else frame


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
