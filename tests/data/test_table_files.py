# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Types of files with a table in them: what is read, what is refused by its name, and columns without a name."""

import base64
import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cfl_flare.cli import main
from cfl_flare.core.errors import DataError
from cfl_flare.data import SiteData
from cfl_flare.data.columns import Columns
from cfl_flare.data.frames import is_table, read_frame
from cfl_flare.data.table import Table
from tests.helpers.refusals import catch_refusal

FRAME = pd.DataFrame({"code": ["010", "0744"] * 12, "age": [30, 41, 52] * 8, "label": [0, 1] * 12})
TEXT = FRAME.to_csv(index=False)


def zipped(text: str, *names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, text)
    return content.getvalue()


catch_data_error = partial(catch_refusal, error=DataError)


CONTENTS: dict[str, bytes] = {
    "ward.csv": TEXT.encode(),
    "ward.CSV": TEXT.encode(),
    "ward.txt": TEXT.encode(),
    "ward.tsv": TEXT.replace(",", "\t").encode(),
    "ward.tab": TEXT.replace(",", "\t").encode(),
    "ward.tsv.gz": gzip.compress(TEXT.replace(",", "\t").encode()),
    "sep.csv": b"sep=;\r\n" + TEXT.replace(",", ";").encode(),
    "ward.csv.gz": gzip.compress(TEXT.encode()),
    "named_otherwise.csv": gzip.compress(TEXT.encode()),
    "ward.csv.bz2": bz2.compress(TEXT.encode()),
    "ward.csv.xz": lzma.compress(TEXT.encode()),
    "ward.csv.zip": zipped(TEXT, "ward.csv"),
    "ward.zip": zipped(TEXT, "folder/ward.csv"),
    "ward.json": FRAME.to_json(orient="records").encode(),
    "ward.jsonl": FRAME.to_json(orient="records", lines=True).encode(),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files_are_read_by_their_type(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(CONTENTS[name])
    frame = read_frame(path)
    assert frame.code.tolist() == FRAME.code.tolist() and frame.age.tolist() == FRAME.age.tolist()
    assert [dtype.kind for dtype in frame.dtypes] == ["O", "i", "i"]
    assert Table(str(path), categories=["code"]).load()[0].x.shape[1] == 3


@pytest.mark.parametrize("ending", ["dta", "feather", "parquet", "xlsx", "ods"])
def test_typed_files_are_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"ward.{ending}"
    if ending == "dta":
        FRAME.to_stata(path, write_index=False)
    elif ending in ("xlsx", "ods"):
        pytest.importorskip("openpyxl" if ending == "xlsx" else "odf")
        FRAME.to_excel(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        getattr(FRAME, f"to_{ending}")(path)
    frame = read_frame(path)
    assert frame.code.tolist() == FRAME.code.tolist() and frame.age.tolist() == FRAME.age.tolist()


def test_a_workbook_keeps_dates_and_gaps(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    rows = pd.DataFrame({"seen": [date(1996, 3, 1), None], "on": [True, None], "x": [1.5, None], "label": [0, 1]})
    rows.to_excel(tmp_path / "ward.xlsx", index=False)
    frame = read_frame(tmp_path / "ward.xlsx")
    assert frame.seen[0] == "1996-03-01" and frame.on[0] == "True" and frame.x[0] == 1.5
    assert frame.isna().to_numpy()[1].tolist() == [True, True, True, False]
    with pd.ExcelWriter(tmp_path / "two.xlsx") as writer:
        FRAME.to_excel(writer, sheet_name="a")
        FRAME.to_excel(writer, sheet_name="b")
    assert "has 2 sheets with cells, ['a', 'b']" in catch_data_error(lambda: read_frame(tmp_path / "two.xlsx"))
    (tmp_path / "ward.csv").write_bytes((tmp_path / "ward.xlsx").read_bytes())
    assert "is an Excel workbook by its content" in catch_data_error(lambda: read_frame(tmp_path / "ward.csv"))


def test_value_labels_of_stata_are_categories(tmp_path: Path) -> None:
    frame = FRAME.assign(sex=pd.Categorical(["F", "M"] * 12), seen=[datetime(1996, 3, 1)] * 24)
    frame.to_stata(tmp_path / "ward.dta", write_index=False)
    read = read_frame(tmp_path / "ward.dta")
    assert read.sex.tolist()[:2] == ["F", "M"] and read.seen.dtype.kind == "M"


# Eight rows of ward, n and label, as SAS writes a transport file; compressed, and base 85.
TRANSPORT = (
    "c-r%Db#!qJQV4Q&_78H=f&d>+ry$3mNCgjMIYkICzzY-<f*peuKmdsb8mFLOre|OV;wKfSnCKZP-~>h%e*R%bW>$uVR)z*Z5}mI="
    "A@IQBUtd>WC!iQ{{xvj%vrG)Io97bj925`|L{a#;IEFX|yM}=HAm*SBKR-ub*I+{aHOB5=1||ju237{f^2DMPa@@lJ1?YUT03#4{"
    "Ffiqj88$F8(A>gGfm@h!5|dJMsOJ`5a-2f#^y2Rnj44NC{>aNOD#>t^Ky_eoeko8;1Hy3>fY1<?7T8pJU{gt5GZm-=0BNMm=>"
)


def test_texts_of_a_transport_file_are_text(tmp_path: Path) -> None:
    (tmp_path / "ward.xpt").write_bytes(zlib.decompress(base64.b85decode(TRANSPORT)))
    read = read_frame(tmp_path / "ward.xpt")
    assert read.ward.tolist() == ["north", "south"] * 4
    assert read.n.tolist() == [1.5, 2.5, 3.5, 4.5] * 2


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("ward.xls", b"<html><table>", "has the ending of an old Excel workbook, and is text by its content; give"),
        ("ward.por", b"ASCII SPSS PORT FILE", "is an SPSS portable file, which is not read as a table"),
        ("ward.rds", b"RDX", "is an R file, which is not read as a table; write it as a CSV file"),
        ("ward.pkl", b"\x80\x04", "is a Python pickle, which may run any code"),
        ("ward.mat", b"MATLAB", "is a MATLAB file"),
        ("ward.csv.zst", b"\x28\xb5\x2f\xfd0", "is packed as Zstandard, which is not read; unpack it"),
        ("ward.7z", b"7z\xbc\xaf\x27\x1c", "is packed as 7z"),
        ("ward.zip", zipped(TEXT, "a.csv", "b.csv"), "is a zip archive of 2 files, ['a.csv', 'b.csv']"),
        ("ward.zip", zipped(TEXT, "a.parquet"), "is a zip archive of 'a.parquet', which is no text file; unpack it"),
        ("ward.csv.xz", lzma.compress(TEXT.encode())[:-30], "cannot be read"),
        ("ward.csv.bz2", bz2.compress(TEXT.encode())[:-30], "cannot be read"),
        ("ward.zip", b"PK\x03\x04 no archive", "cannot be read"),
        ("ward.dta", b"no Stata file", "cannot be read as a Stata file"),
        ("ward.json", b'{"a": 1', "cannot be read as a JSON file"),
        ("ward.json", b"[1, 2]", "is JSON, and no list of rows"),
        ("ward.json", b'[{"a": [1, 2], "label": 0}]', "row 1 holds [1, 2], a list"),
        ("ward.tsv", b"a,label\n1,0\n", "its first line has no tab, but 1 times a comma; set sep=comma"),
        ("ward.csv", b"# made in May\na,label\n1,0\n", "delete the remark in the first line"),
        (
            "ward.csv",
            b"a,label\n1,5,0\n2,6,1\n",
            "R writes row names without a name, unless it is told row.names=FALSE",
        ),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert says in catch_data_error(lambda: read_frame(path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "ward.xlsx",
            "is an Excel workbook, and the package openpyxl is not installed; pip install 'cfl-flare[excel]'",
        ),
        (
            "ward.xls",
            "is an old Excel workbook, and the package xlrd is not installed; pip install xlrd, or write it as",
        ),
        ("ward.ods", "is an OpenDocument sheet, and the package odf is not installed; pip install odfpy"),
        ("ward.sav", "is an SPSS file, and the package pyreadstat is not installed; pip install pyreadstat"),
        (
            "ward.parquet",
            "is a Parquet file, and the package pyarrow is not installed; pip install 'cfl-flare[parquet]'",
        ),
    ],
)
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: Any, name: str, says: str) -> None:
    (tmp_path / name).write_bytes(b"\xffanything")
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    assert says in catch_data_error(lambda: read_frame(tmp_path / name))


@pytest.mark.parametrize("packed", [bz2.compress, lzma.compress, lambda text: zipped(text.decode(), "ward.csv")])
def test_packed_files_are_bounded(tmp_path: Path, monkeypatch: Any, packed: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "ward.csv.packed"
    path.write_bytes(packed(b"1,0\n" * 10**6))
    monkeypatch.setattr("cfl_flare.data.table_files.MOST_UNPACKED", 1000)
    monkeypatch.setattr("cfl_flare.data.table_files.MOST_PACKING", 0)
    assert "holds more than 1,000 bytes, which no table in a file of this size has" in catch_data_error(
        lambda: read_frame(path)
    )


@pytest.mark.parametrize(
    "name",
    [
        "ward.tsv",
        "ward.txt",
        "ward.TXT",
        "ward.csv.bz2",
        "ward.zip",
        "ward.rds",
        "ward.csv.zst",
        "ward.dta",
        "ward.xlsx",
        "a.json",
    ],
)
def test_a_site_s_file_is_a_table(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    assert is_table(Path(name))
    monkeypatch.setenv("CFL_DATA", str(tmp_path / name))
    (tmp_path / name).write_bytes(TEXT.encode())
    assert isinstance(SiteData().inner, Table)


def test_images_and_archives_are_no_tables() -> None:
    for name in ("images.npz", "photo.png", "images.npz.gz", "archive.tar", "archive.tar.gz"):
        assert not is_table(Path(name))


def test_types_of_columns_in_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = {
        "decimal": arrow.array([Decimal("1.50"), None], arrow.decimal128(5, 2)),
        "whole": arrow.array([1, None], arrow.int8()),
        "half": arrow.array(np.array([0.5, 1], np.float16)),
        "word": arrow.array(["b", None]).dictionary_encode(),
        "bytes": arrow.array([b"c", None]),
        "on": arrow.array([True, None]),
        "nothing": arrow.nulls(2),
        "label": arrow.array([0, 1]),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "ward.parquet")
    frame = read_frame(tmp_path / "ward.parquet")
    assert frame.iloc[0].tolist()[:6] == [1.5, 1, 0.5, "b", "c", "True"]
    assert frame.iloc[1].isna().tolist() == [True, True, False, True, True, True, True, False]
    for wrong, says in ((arrow.array([[1], [2]]), "holds"), (arrow.array([1, 2], arrow.duration("s")), "durations")):
        parquet.write_table(arrow.table({"a": wrong, "label": [0, 1]}), tmp_path / "wrong.parquet")
        assert says in catch_data_error(lambda: read_frame(tmp_path / "wrong.parquet"))


# ---- Columns without a name ----


def test_row_numbers_without_a_name_are_left_out(tmp_path: Path) -> None:
    named = FRAME.assign(code=["a", "b"] * 12)
    named.to_csv(tmp_path / "ward.csv")
    for path in (tmp_path / "ward.csv", tmp_path / "again.csv"):
        table = Table(str(path))
        assert table.load()[0].x.shape[1] == 3
        assert any(line.startswith("Unnamed: 0: has no name in the file") for line in table.described())
        pd.read_csv(tmp_path / "ward.csv").to_csv(tmp_path / "again.csv", index=False)
    pd.read_csv(tmp_path / "ward.csv").to_csv(tmp_path / "again.csv")  # which has two such columns
    pd.read_csv(tmp_path / "again.csv").to_csv(tmp_path / "again.csv", index=False)
    assert Table(str(tmp_path / "again.csv")).load()[0].x.shape[1] == 3
    taken = Table(str(tmp_path / "ward.csv"), take=["age", "Unnamed: 0"])
    assert taken.load()[0].x.shape[1] == 2
    assert Table(str(tmp_path / "ward.csv"), leave=["Unnamed: 0", "code"]).load()[0].x.shape[1] == 1


def test_agreed_columns_pass_over_row_numbers(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "ward.csv")
    columns = {"columns": [{"column": "age"}], "leave": ["code"]}
    assert Table(str(tmp_path / "ward.csv"), columns=columns).load()[0].x.shape[1] == 1
    own = Table(str(tmp_path / "ward.csv"), categories=["code"]).own_columns(5)
    assert [column.column for column in own.columns] == ["code", "age"]
    assert Columns.of(own.to_dict()) == own
    with_names = {**columns, "names": ["code", "age", "label"]}
    assert len(Table(str(tmp_path / "ward.csv"), columns=with_names).load()[0]) == 18


def test_a_trailing_comma_makes_no_feature(tmp_path: Path) -> None:
    (tmp_path / "ward.csv").write_text("\n".join(f"{line}," for line in TEXT.splitlines()))
    assert Table(str(tmp_path / "ward.csv"), categories=["code"]).load()[0].x.shape[1] == 3


def test_an_index_of_parquet_is_a_column(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    named = FRAME.assign(code=["a", "b"] * 12)
    named.index = pd.Index([f"row {i}" for i in range(24)])
    named.to_parquet(tmp_path / "ward.parquet")
    assert Table(str(tmp_path / "ward.parquet")).load()[0].x.shape[1] == 3
    named.rename_axis("visit").to_parquet(tmp_path / "named.parquet")
    assert "visit" in read_frame(tmp_path / "named.parquet")


def test_rising_numbers_are_remarked_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = FRAME.assign(code=["a", "b"] * 12, id=np.arange(7, 31), order=rng.permutation(24), dose=rng.normal(size=24))
    frame.to_csv(tmp_path / "ward.csv", index=False)
    lines = [line for line in Table(str(tmp_path / "ward.csv")).described() if "unique and rising" in line]
    assert [line.partition(":")[0] for line in lines] == ["id", "order"]
    assert "leave them out with leave=[id]" in lines[0]


# ---- Commands ----


def test_site_check_names_what_it_loses(tmp_path: Path, capsys: Any) -> None:
    columns = tmp_path / "columns.json"
    columns.write_text(
        '{"columns": [{"column": "code", "kind": "category", "categories": ["emergency", "planned"]},'
        ' {"column": "age"}], "classes": ["alive", "dead"]}'
    )

    def check(*codes: str, labels: tuple[str, str] = ("alive", "dead")) -> tuple[int, str]:
        frame = FRAME.assign(code=[codes[i % len(codes)] for i in range(24)], label=[*labels] * 12)
        frame.to_csv(tmp_path / "ward.csv", index=False)
        status = main(["site", "check", "--data", f"table:path={tmp_path / 'ward.csv'},columns={columns}"])
        printed = capsys.readouterr()
        return status, " ".join((printed.out + printed.err).split())

    status, says = check("emergency", "planned")
    assert status == 0 and "look columns" not in says
    status, says = check("emergency", "planned", "Planned")
    assert status != 0 and "fails data" in says and "agreed on 'planned'" in says
    status, says = check("emergency", "planned", "planed")
    assert status == 0 and "look columns code: 8 rows have a category" in says and "'planed' may be 'planned'" in says
    status, says = check("emergency", "planned", labels=("alive", "Dead"))
    assert status != 0 and "'dead'" in says


def test_site_columns_says_where_categories_are_from(tmp_path: Path, capsys: Any) -> None:
    FRAME.to_csv(tmp_path / "ward.csv", index=False)
    study = tmp_path / "study.json"
    study.write_text(
        '{"columns": [{"column": "code", "kind": "category", "categories": ["010", "0744", "9"]}, {"column": "age"}]}'
    )
    words = ["site", "columns", "--out", str(tmp_path / "own.json"), "--data"]
    assert main([*words, f"table:path={tmp_path / 'ward.csv'},columns={study}"]) == 0
    says = " ".join(capsys.readouterr().out.split())
    assert "the columns and their categories, as the study's file names them" in says
    assert "that 5 rows or more have" in says.partition("classes")[2]
    assert main([*words, f"table:path={tmp_path / 'ward.csv'},categories=[code]"]) == 0
    assert "the columns, and categories and classes that 5 rows or more have" in " ".join(
        capsys.readouterr().out.split()
    )


def test_columns_names_both_spellings(tmp_path: Path, capsys: Any) -> None:
    for name, code in (("a", "Emergency"), ("b", "emergency"), ("c", "emergancy")):
        text = f'{{"columns": [{{"column": "code", "kind": "category", "categories": ["planned", "{code}"]}}]}}'
        (tmp_path / f"{name}.json").write_text(text)
    words = ["columns", "--out", str(tmp_path / "all.json")]
    assert main([*words, str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "differ in case" in capsys.readouterr().err and not (tmp_path / "all.json").exists()
    assert main([*words, str(tmp_path / "b.json"), str(tmp_path / "c.json")]) == 0
    assert "may be" in capsys.readouterr().out
