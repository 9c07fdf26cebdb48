# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files of tables by their type: what packs a text file, and what keeps numbers, texts and dates apart by itself.

A type is known by the file's first bytes, else by its ending. A file of another type is refused by its name.
"""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import DataError
from cfl_flare.core.files import check_memory
from cfl_flare.core.text import shown
from cfl_flare.data.files import MOST_PACKING, MOST_UNPACKED, read_npz

if TYPE_CHECKING:
    import pandas as pd

# Values of a file take about this many times as much memory as the file: each is a text before it is a number.
IN_MEMORY = 15
TEXT_ENDINGS = (".csv", ".data", ".tsv", ".tab", ".txt")
PACKED_ENDINGS = (".gz", ".bz2", ".xz", ".zip")
AS_CSV = "write it as a CSV file"


@dataclass(frozen=True)
class FileType:
    """A type of file with a table in it.

    Attributes:
        name: what a message calls it.
        endings: of such files' names.
        read: makes a data frame of the file's path and content.
        package: what has to be installed for that, and ``install`` how.
    """

    name: str
    endings: tuple[str, ...]
    read: Callable[[Path, bytes], pd.DataFrame]
    package: str | None = None
    install: str = ""


def read_typed(path: Path, kind: FileType, content: bytes) -> pd.DataFrame:
    """Reads a file of a type of its own.

    Args:
        path: the file's, for messages.
        kind: its type.
        content: the file's.

    Returns:
        The columns as the file has them.

    Raises:
        DataError: the package that reads it is not installed, the file is damaged, or it has no rows.
    """
    if kind.package is not None and importlib.util.find_spec(kind.package) is None:
        missing = f"is {kind.name}, and the package {kind.package} is not installed"
        raise DataError(
            f"{path}: {missing}; {kind.install or f'pip install {kind.package}'}, or {AS_CSV}"
        )
    check_memory(IN_MEMORY * len(content), str(path))
    try:
        frame = kind.read(path, content)
    except DataError:
        raise
    except Exception as error:  # these packages raise errors of many kinds
        reason = f"cannot be read as {kind.name} ({one_line(error)})"
        raise DataError(f"{path}: {reason}; write it again, or {AS_CSV}") from error
    if not len(frame):
        raise DataError(f"{path}: no rows; a table has one row per sample")
    return frame.reset_index(drop=True)


def unpack(path: Path, file: BinaryIO) -> bytes:
    """Unpacks a text file, if it is packed.

    Args:
        path: the file's, for messages.
        file: the open file, at its start.

    Returns:
        The content.

    Raises:
        DataError: it is packed in a way that is not known, holds several files, or is suspiciously large.
    """
    start = file.read(8)
    file.seek(0)
    for magic, name in REFUSED_PACKING.items():
        if start.startswith(magic):
            raise DataError(
                f"{path}: is packed as {name}, which is not read; unpack it, or pack it as .gz"
            )
    openers: dict[bytes, Callable[[BinaryIO], Any]] = {
        b"\x1f\x8b": _open_gzip,
        b"BZh": bz2.BZ2File,
        b"\xfd7zXZ\x00": lzma.LZMAFile,
        b"PK\x03\x04": lambda archive: _open_member(path, archive),
    }
    for magic, opener in openers.items():
        if start.startswith(magic):
            return _read_bounded(path, opener(file))
    check_memory(IN_MEMORY * os.fstat(file.fileno()).st_size, str(path))
    return file.read()


def _open_gzip(file: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file)


def _open_member(path: Path, file: BinaryIO) -> Any:
    """The only file of a zip archive."""
    archive = zipfile.ZipFile(file)
    names = [
        name
        for name in archive.namelist()
        if not name.endswith("/") and not name.startswith("__MACOSX/")
    ]
    if "xl/workbook.xml" in names:
        raise DataError(
            f"{path}: is an Excel workbook by its content; give it the ending .xlsx, or {AS_CSV}"
        )
    if len(names) != 1:
        listed = shown(names) if names else "none"
        raise DataError(
            f"{path}: is a zip archive of {len(names)} files, {listed}; keep the table's alone in it"
        )
    if names[0].lower().endswith(PACKED_ENDINGS) or type_by_name(names[0]) is not None:
        raise DataError(
            f"{path}: is a zip archive of {shown(names[0])}, which is no text file; unpack it"
        )
    return archive.open(names[0])


def _read_bounded(path: Path, packed: Any) -> bytes:
    """The content of a packed file, which says nothing reliable of its size."""
    limit = MOST_UNPACKED + MOST_PACKING * os.path.getsize(path)
    with packed as file:
        content = bytes(file.read(limit + 1))
    if len(content) > limit:
        reason = f"holds more than {limit:,} bytes, which no table in a file of this size has"
        raise DataError(f"{path}: {reason}; unpack it")
    return content


def _read_parquet(path: Path, content: bytes) -> pd.DataFrame:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(BytesIO(content))
    size = sum(
        file.metadata.row_group(i).total_byte_size
        for i in range(file.metadata.num_row_groups)
    )
    _check_declared(path, size, len(content))
    # The metadata of pandas would make an index of columns. Row numbers are then a column without a name.
    return file.read().to_pandas(ignore_metadata=True, integer_object_nulls=True)


def _read_feather(path: Path, content: bytes) -> pd.DataFrame:
    import pyarrow as arrow

    with arrow.ipc.open_file(BytesIO(content)) as file:
        batches: list[Any] = []
        for i in range(file.num_record_batches):
            batches.append(file.get_batch(i))
            _check_declared(path, sum(batch.nbytes for batch in batches), len(content))
        return arrow.Table.from_batches(batches, file.schema).to_pandas(
            ignore_metadata=True, integer_object_nulls=True
        )


def _check_declared(path: Path, size: int, packed: int) -> None:
    """Raises a DataError if a file unpacks to more than a table of its size has, or than there is memory for."""
    if size > MOST_UNPACKED + MOST_PACKING * packed:
        reason = f"says that it holds {size:,} bytes, which no file of this size does"
        raise DataError(f"{path}: {reason}; write it again")
    check_memory(IN_MEMORY * size, str(path))


def _read_stata(path: Path, content: bytes) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_stata(BytesIO(content), preserve_dtypes=True)
    except ValueError as error:
        if "not unique" not in str(error):
            raise
        return pd.read_stata(
            BytesIO(content), convert_categoricals=False
        )  # two values have one label


def _read_sas(path: Path, content: bytes) -> pd.DataFrame:
    import pandas as pd

    if content.startswith(b"HEADER RECORD"):
        return pd.read_sas(
            BytesIO(content), format="xport"
        )  # its texts are bytes, as it names no encoding
    return pd.read_sas(BytesIO(content), format="sas7bdat", encoding="infer")


def _read_spss(path: Path, content: bytes) -> pd.DataFrame:
    import pandas as pd

    return pd.read_spss(path)


def _read_sheet(path: Path, content: bytes) -> pd.DataFrame:
    """The only sheet of a workbook that holds something."""
    import pandas as pd

    sheets = pd.read_excel(
        BytesIO(content),
        sheet_name=None,
        header=None,
        dtype=object,
        keep_default_na=False,
    )
    filled = {name: sheet for name, sheet in sheets.items() if sheet.size}
    if len(filled) != 1:
        listed = shown([*filled]) if filled else "none"
        raise DataError(
            f"{path}: has {len(filled)} sheets with cells, {listed}; keep the table's alone in it"
        )
    (sheet,) = filled.values()
    rows = sheet.replace("", None).dropna(how="all")
    frame = rows.iloc[1:]
    frame.columns = pd.Index(
        ["" if pd.isna(name) else str(name) for name in rows.iloc[0]]
    )
    return frame


def _read_json(path: Path, content: bytes) -> pd.DataFrame:
    """A list of rows, or a row a line; each row is a dictionary."""
    import pandas as pd

    text = content.decode("utf-8-sig")
    is_list = text.lstrip().startswith("[")
    rows = (
        json.loads(text)
        if is_list
        else [json.loads(line) for line in text.splitlines() if line.strip()]
    )
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(
            f"{path}: is JSON, and no list of rows with a name for each value; {AS_CSV}"
        )
    return pd.DataFrame(
        [{name: _as_cell(value) for name, value in row.items()} for row in rows],
        dtype=object,
    )


def _as_cell(value: Any) -> Any:
    return "" if value is None else value


def _read_arrays(path: Path, content: bytes) -> pd.DataFrame:
    """The arrays of an npz file, one of two dimensions as a column for each of its own."""
    import pandas as pd

    arrays = read_npz(path)
    lengths = {
        name: len(values) if values.ndim else 0 for name, values in arrays.items()
    }
    if len(set(lengths.values())) > 1:
        (first, n), (other, m) = (
            min(lengths.items(), key=itemgetter(1)),
            max(lengths.items(), key=itemgetter(1)),
        )
        raise DataError(
            f"{path}: {first!r} has {n} rows but {other!r} has {m}; every array is a column of the table"
        )
    columns: dict[str, np.ndarray] = {}
    for name, values in arrays.items():
        flat = values.reshape(len(values), -1)
        several = flat.shape[1] > 1
        columns |= {
            f"{name}.{j}" if several else name: flat[:, j] for j in range(flat.shape[1])
        }
    if not columns or not max(lengths.values()):
        raise DataError(f"{path}: no rows; a table has one array for each column")
    return pd.DataFrame(columns)


PYARROW = "pip install 'cfl-flare[parquet]'"
EXCEL = "pip install 'cfl-flare[excel]'"
NPZ = FileType("an npz file", (".npz",), _read_arrays)
PARQUET = FileType(
    "a Parquet file", (".parquet", ".pq"), _read_parquet, "pyarrow", PYARROW
)
FEATHER = FileType(
    "a Feather file", (".feather", ".arrow"), _read_feather, "pyarrow", PYARROW
)
WORKBOOK = FileType(
    "an Excel workbook", (".xlsx", ".xlsm"), _read_sheet, "openpyxl", EXCEL
)
OLD_WORKBOOK = FileType("an old Excel workbook", (".xls",), _read_sheet, "xlrd")
OPEN_SHEET = FileType(
    "an OpenDocument sheet", (".ods",), _read_sheet, "odf", "pip install odfpy"
)
STATA = FileType("a Stata file", (".dta",), _read_stata)
SAS = FileType("a SAS file", (".sas7bdat", ".xpt"), _read_sas)
SPSS = FileType("an SPSS file", (".sav", ".zsav"), _read_spss, "pyreadstat")
JSON = FileType("a JSON file", (".json", ".jsonl", ".ndjson"), _read_json)
TYPES = (
    NPZ,
    PARQUET,
    FEATHER,
    WORKBOOK,
    OLD_WORKBOOK,
    OPEN_SHEET,
    STATA,
    SAS,
    SPSS,
    JSON,
)
# Types that are known by their first bytes, whatever a file is called.
BY_START = {
    b"PAR1": PARQUET,
    b"ARROW1": FEATHER,
    b"$FL2": SPSS,
    b"<stata_dta>": STATA,
    b"HEADER RECORD": SAS,
}
BY_START[b"\xd0\xcf\x11\xe0"] = OLD_WORKBOOK
REFUSED_PACKING = {
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "RAR",
    b"\x1f\x9d": "compress",
}
REFUSED_ENDINGS = (".zst", ".7z", ".rar", ".z")
REFUSED_TYPES = {
    ".rds": "an R file",
    ".rdata": "an R file",
    ".rda": "an R file",
    ".pkl": "a Python pickle, which may run any code",
    ".pickle": "a Python pickle, which may run any code",
    ".mat": "a MATLAB file",
    ".h5": "an HDF5 file",
    ".hdf5": "an HDF5 file",
    ".orc": "an ORC file",
    ".sqlite": "a database",
    ".db": "a database",
    ".mdb": "an Access database",
    ".accdb": "an Access database",
    ".xml": "an XML file",
    ".html": "a web page",
    ".xlsb": "a binary Excel workbook",
    ".numbers": "a Numbers document",
    ".por": "an SPSS portable file",
    ".dbf": "a dBase file",
    ".pdf": "a PDF document",
    ".doc": "a Word document",
    ".docx": "a Word document",
}


def type_by_name(name: str) -> FileType | None:
    """The type of a file by the ending of its name; None for a text file, or one of an unknown type."""
    for kind in TYPES:
        if name.lower().endswith(kind.endings):
            return kind
    return None


def type_of(path: Path, file: BinaryIO) -> FileType | None:
    """Finds the type of a file.

    Args:
        path: the file's.
        file: the open file, at its start.

    Returns:
        The type, or None for a text file, which may be packed.

    Raises:
        DataError: it is of a type that is not read.
    """
    start = file.read(16)
    file.seek(0)
    for magic, kind in BY_START.items():
        if start.startswith(magic):
            return kind
    refused = REFUSED_TYPES.get(path.suffix.lower())
    if refused is not None:
        raise DataError(f"{path}: is {refused}, which is not read as a table; {AS_CSV}")
    named = type_by_name(path.name)
    if (
        named in (WORKBOOK, OLD_WORKBOOK)
        and start
        and start.isascii()
        and not start.startswith(b"PK\x03\x04")
    ):
        reason = f"has the ending of {named.name}, and is text by its content"
        raise DataError(
            f"{path}: {reason}; give a text file the ending .csv or .txt, or save it as .xlsx"
        )
    return named


def is_table_name(name: str) -> bool:
    """Whether a file is a table by the ending of its name, be it of a type that is read or that is refused by its name.

    An .npz file may be a table, and is images otherwise.
    """
    bare = name.lower()
    for ending in (*PACKED_ENDINGS, *REFUSED_ENDINGS):
        bare = bare.removesuffix(ending)
    if bare != name.lower():
        return bare.endswith(TEXT_ENDINGS) or "." not in bare
    kind = type_by_name(bare)
    return bare.endswith((*TEXT_ENDINGS, *REFUSED_TYPES)) or (
        kind is not None and kind is not NPZ
    )
