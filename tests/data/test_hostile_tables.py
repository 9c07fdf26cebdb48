# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Columns, preparations and tables that somebody made up to harm: one clear, short error each."""

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.core.config import build, marked
from cfl_flare.core.errors import CFLError, ConfigError, DataError, PathError, failure_of
from cfl_flare.data import DataSource, SiteData
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.files import reading_within
from cfl_flare.data.preparation import Preparation
from cfl_flare.data.table import Table
from cfl_flare.results.served import PREPARATIONS, columns_of, preparation_of

SITE, TABLE = "cfl_flare.data.sources.SiteData", "cfl_flare.data.table.Table"
SEX = {"column": "sex", "kind": "category", "categories": ["F", "M"]}
SOUND: dict[str, Any] = {"columns": [{"column": "age"}, SEX], "label": "label"}
MEGABYTE = "x" * 2**20
HUGE = 10**400  # an integer that no float holds


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def age(**more: Any) -> dict[str, Any]:
    """Sound columns, but for what is said of the age."""
    return {**SOUND, "columns": [{"column": "age", **more}, SEX]}


# What a job's author may write, and what the one line says.
COLUMNS: dict[str, tuple[Any, str]] = {
    "too many": ({"columns": [{}] * 100_001}, "missing|more than"),
    "too many names": ({**SOUND, "names": ["a"] * 100_001}, "names has 100,001, more than 100,000"),
    "a name of a megabyte": (age(column=MEGABYTE), "should be a column's name, of 1 to 500"),
    "a setting of a megabyte": ({**SOUND, MEGABYTE: 1}, "unknown setting 'xxx"),
    "a kind of a megabyte": (age(kind=MEGABYTE), "should be one of number, "),
    "a category of a megabyte": (age(kind="category", categories=[MEGABYTE]), "different texts of 1 to 500"),
    "a label of a megabyte": ({**SOUND, "label": MEGABYTE}, "label = 'xxx.* should be a name"),
    "a text for missing of a megabyte": ({**SOUND, "absent": [MEGABYTE]}, "absent has .*list of texts"),
    "a nested name": (age(column=nested(20)), "should be a column's name"),
    "nested without end": (age(column=nested(5000)), "nested too deeply"),
    "no list": ({"columns": nested(3)}, "columns should be a list such as"),
    "no dictionary": ([1], "should be a dictionary of columns"),
    "a number": (5, "should be a dictionary of columns"),
    "a list of numbers": ({"columns": [1]}, "columns should be a list such as"),
    "another class": ({"columns": [{"class_path": SITE, "args": {}}]}, "columns"),
    "a function": ({"class_path": "os.system", "args": {"command": "true"}}, "os.system|unknown setting"),
    "a component's path": (age(path="os.system"), "unknown setting 'path'"),
    "a component's name": (age(name="os.system"), "unknown setting 'name'"),
    "twice": ({**SOUND, "columns": [SEX, SEX]}, r"columns has \['sex'\] twice"),
    "the label as a feature": ({**SOUND, "label": "age"}, r"\['age'\] is a feature, and left out or the label"),
    "a range of NaN": (age(range=[float("nan"), 1]), "numbers of at most 1e\\+16"),
    "an endless range": (age(range=[0, float("inf")]), "numbers of at most"),
    "a range beyond floats": (age(range=[0, HUGE]), "numbers of at most"),
    "a range the wrong way": (age(range=[2, 1]), "the smallest and the largest"),
    "a range of three": (age(range=[1, 2, 3]), "the smallest and the largest"),
    "a range of text": (age(range="ab"), "range = 'ab' should be"),
    "a range that is a dictionary": (age(range={"a": 1}), "range = .* should be"),
    "a mean beyond floats": (age(mean=HUGE, deviation=1), "numbers of at most"),
    "a negative deviation": (age(mean=0, deviation=-1), "belong together"),
    "rows beyond floats": (age(rows=HUGE), "a whole number from 0 to"),
    "rows that are true": (age(rows=True), "a whole number from 0 to"),
    "a kind that is a list": (age(kind=[]), "should be one of number, "),
    "missing that is text": (age(missing="yes"), "should be true or false"),
    "categories that are text": (age(kind="category", categories="AB"), "different texts"),
    "categories of dictionaries": (age(kind="category", categories=[{}]), "different texts"),
    "categories twice": (age(kind="category", categories=["a", "a"]), "different texts"),
    "65 categories": (age(kind="category", categories=[str(i) for i in range(65)]), "has up to 64"),
    "no categories": (age(kind="category"), r"\['age'\] has no categories"),
    "no categories but missing": (age(kind="category", missing=True), r"\['age'\] has no categories"),
    "a label that is a dictionary": ({**SOUND, "label": {}}, "label = {} should be a name"),
    "a threshold of text": ({**SOUND, "positive": "x"}, "positive = 'x' should be a number"),
    "a threshold of NaN": ({**SOUND, "positive": float("nan")}, "positive = nan should be a number"),
    "a threshold beyond floats": ({**SOUND, "positive": HUGE}, "should be a number"),
    "classes of numbers": ({**SOUND, "classes": [1, 2]}, "classes has .*list of texts"),
    "classes twice": ({**SOUND, "classes": ["0", "1", "1"]}, r"classes has \['1'\] twice"),
    "text to leave out": ({**SOUND, "leave": "age"}, "leave = 'age' should be a list"),
    "nothing to leave out": ({**SOUND, "leave": [None]}, "leave has .*list of texts"),
    "a column that is not there": (
        {**SOUND, "columns": [{"column": "\x1b[31m\nweight"}]},
        r"no column '\\x1b.*weight'",
    ),
}


@pytest.fixture
def ward_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site's table."""
    for name in ("CFL_LABEL", "CFL_EVENT", "CFL_COLUMNS", "CFL_DATA_ROOT"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "ward.csv"
    path.write_text("age,sex,label\n" + "".join(f"{30 + i},{'FM'[i % 2]},{i % 2}\n" for i in range(40)))
    monkeypatch.setenv("CFL_DATA", str(path))
    return path


def site_reads(columns: Any, kind: str = SITE, **more: Any) -> Preparation | None:
    """What a site does with a job's source: no path of the job is allowed."""
    with reading_within([]):
        source = build({"class_path": kind, "args": {"columns": columns, **more}}, DataSource, "data")  # type: ignore[type-abstract]
        train, _ = source.load()
        return source.preparation(train)


def check_refusal(error: CFLError) -> None:
    text = str(error)
    assert len(text) < 2000 and "\n" not in text and "\x1b" not in text


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_of_a_job(ward_path: Path, case: str) -> None:
    columns, says = COLUMNS[case]
    with warnings.catch_warnings(), pytest.raises((ConfigError, DataError), match=says) as caught:
        warnings.simplefilter("error")
        site_reads(columns)
    check_refusal(caught.value)


def test_marks_of_components_change_nothing(ward_path: Path) -> None:
    """FLARE's mark for plain data is in every dictionary of a job, and is no column's setting."""
    assert site_reads(marked(SOUND)).columns.features == ["age", "sex=F", "sex=M"]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind, more", [(SITE, {}), (TABLE, {"path": "ward.csv"})])
def test_a_job_names_no_file_of_columns_and_learns_not_whether_it_exists(
    ward_path: Path, tmp_path: Path, kind: str, more: dict[str, Any]
) -> None:
    there = tmp_path / "columns.json"
    there.write_text(json.dumps(SOUND))
    codes = set()
    for path in (str(there), str(tmp_path / "absent.json"), "/etc/passwd"):
        with pytest.raises(PathError) as caught:
            site_reads(path, kind, **more)
        codes.add(failure_of(caught.value))
    assert codes == {"path"}


def test_a_file_that_the_operator_pins_needs_no_leave(ward_path: Path, tmp_path: Path, monkeypatch: Any) -> None:
    pinned = tmp_path / "columns.json"
    pinned.write_text(json.dumps({**SOUND, "names": ["age", "sex", "label"]}))
    monkeypatch.setenv("CFL_COLUMNS", str(pinned))
    assert site_reads(SOUND) is not None  # names are how this site's file is written
    with pytest.raises(DataError, match="the job's columns are not those of CFL_COLUMNS here"):
        site_reads(age(range=[0, 120]))


def test_what_is_in_the_file_travels(tmp_path: Path) -> None:
    """The sites do not have the author's file."""
    path = tmp_path / "columns.json"
    path.write_text(json.dumps(SOUND))
    for source in (SiteData(columns=str(path)), Table("ward.csv", columns=str(path))):
        assert source.columns == Columns.of(SOUND).to_dict()


@pytest.mark.parametrize("name", ["take", "leave", "categories", "absent"])
@pytest.mark.parametrize("value", [5, [1], [{}], [None], {"a": 1}])
def test_lists_of_a_table(name: str, value: Any) -> None:
    if (name, value) == ("absent", [1]):
        value = [True]  # a number may mean that a value is missing
    with pytest.raises(ConfigError, match=f"{name} = .* should be a list of text"):
        Table("ward.csv", **{name: value})


def test_more_features_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ward.csv"
    path.write_text("a,label\n" + "1,0\n2,1\n" * 20)
    source = Table(str(path), columns={"columns": [{"column": "a", "kind": "category", "categories": ["1", "2"]}]})
    memory = type("Memory", (), {"available": 2 * 8 * 40 * 4 - 1})
    assert source._contents
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    with pytest.raises(DataError, match="40 rows of 4 features would take 2,560 bytes of memory"):
        source.load()


PREPARATION = Preparation(Columns((Column("age"),)), np.zeros(1), np.zeros(1), np.ones(1)).to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"fill": None},
        {"fill": [HUGE]},
        {"fill": [float("nan")]},
        {"fill": [1e300]},
        {"fill": ["a"]},
        {"fill": [[1.0]]},
        {"fill": nested(100)},
        {"fill": [1.0] * 100_000},
        {"mean": {}},
        {"deviation": [0.0]},
        {"deviation": [-1.0]},
        {"columns": []},
        {"columns": None},
        {"columns": {"columns": [{"column": "age", "kind": "category", "missing": True}]}},
        {"columns": {"columns": [{"column": MEGABYTE}]}},
    ],
    ids=lambda change: "-".join(f"{k}-{type(v).__name__}" for k, v in change.items()),
)
def test_preparations_in_files(tmp_path: Path, change: dict[str, Any]) -> None:
    """In a model's file, and in a run's folder."""
    with pytest.raises(ConfigError) as caught:
        Preparation.of({**PREPARATION, **change}, "model.safetensors: preparation")
    check_refusal(caught.value)
    own = {**PREPARATION, **change}
    content = {"columns": own.pop("columns"), "participants": {"p0": own}}
    (tmp_path / PREPARATIONS).write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        preparation_of(tmp_path / "clusters" / "global.safetensors", {}, "p0")
    check_refusal(caught.value)


@pytest.mark.parametrize(
    "content", ["[]", "5", "{", '{"participants": []}', '{"columns": 3, "participants": {"p0": 1}}']
)
def test_a_run_s_preparations(tmp_path: Path, content: str) -> None:
    (tmp_path / PREPARATIONS).write_text(content)
    model = tmp_path / "clusters" / "global.safetensors"
    for read in (lambda: preparation_of(model, {}, "p0"), lambda: columns_of(tmp_path)):
        with pytest.raises(ConfigError) as caught:
            read()
        check_refusal(caught.value)


def test_a_tiny_deviation_scales_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Preparation.of({**PREPARATION, "deviation": [5e-324]}, "x").apply(np.array([[1e16]]))
    assert not np.isfinite(found).any()  # which no model takes


CSV: dict[str, tuple[bytes, str]] = {
    "ragged": (b"a,label\n1,0\n1,2,3\n", "row 2 has 3 values, the header 2 columns"),
    "two of one name": (b"a,a,label\n1,1,0\n", "two columns are called 'a'"),
    "not UTF-8": (b"a,label\n\xff\xfe,0\n", "cannot be read as a CSV file in UTF-8"),
    "an open quote": (b'a,label\n"1,0\n', "cannot be read as a CSV file"),
    "a field of a megabyte": (b"a,label\n" + b"x" * 2**20 + b",0\n", "cannot be read as a CSV file"),
    "half a gzip": (gzip.compress(b"a,label\n1,0\n" * 1000)[:-20], "cannot be read as a CSV file"),
    "a name of escapes": (b"\x1b[31mred,b\n1,0\n", r"no column 'label'; it has \\x1b\[31mred, b"),
    "names without end": (b",".join(b"c%d" % i for i in range(20_000)) + b"\n" + b",".join([b"1"] * 20_000), "no col"),
    "empty": (b"", "no rows"),
    "names alone": (b"a,label\n", "no rows"),
}


@pytest.mark.parametrize("case", CSV)
def test_tables_that_are_no_tables(tmp_path: Path, case: str) -> None:
    content, says = CSV[case]
    path = tmp_path / "ward.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        Table(str(path)).load()
    check_refusal(caught.value)


def test_a_small_file_that_unpacks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ward.csv.gz"
    path.write_bytes(gzip.compress(b"1,0\n" * 10**6))
    monkeypatch.setattr("cfl_flare.data.table_files.MOST_UNPACKED", 1000)
    with pytest.raises(DataError, match=r"holds more than [\d,]+ bytes, which no table in a file of this size has"):
        Table(str(path)).load()


def test_formulas_stay_text_and_reach_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A category that a spreadsheet would run is named, as one may be, but predictions have numbers only."""
    path, out = tmp_path / "ward.csv", tmp_path / "own.json"
    path.write_text("a,label\n" + "=1+1|'/C calc'!A0,0\nb,1\n" * 20)
    assert main(["site", "columns", "--data", f"table:path={path}", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["columns"][0]["categories"] == ["=1+1|'/C calc'!A0", "b"]


@pytest.mark.parametrize(
    "content, says",
    [
        (json.dumps(age(column=MEGABYTE)), "should be a column's name"),
        (json.dumps(age(rows=10**9 + 1, mean=1, deviation=1)), "a whole number from 0 to 1,000,000,000"),
        ('{"columns": [{"column": "age", "mean": 1e999, "deviation": 1}]}', "numbers of at most"),
        (json.dumps({"columns": [{"column": "a\x1b]0;x\x07"}]}), r"'a.x1b\]0;x.x07' is at .* and not at"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "should be a dictionary"),
        ("", "is not JSON"),
    ],
)
def test_files_of_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, content: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text(content)
    Path("good.json").write_text(json.dumps(SOUND))
    assert main(["columns", "bad.json", "good.json", "--out", "out.json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and "\x1b" not in printed.err
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(printed.err)
    assert not Path("out.json").exists()


def test_a_table_named_by_mistake_is_not_overwritten(ward_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = ward_path.read_bytes()
    assert main(["site", "columns", "--data", str(ward_path), "--out", str(ward_path)]) == 2
    assert (
        "should be a .json file in an existing folder" in capsys.readouterr().err and ward_path.read_bytes() == before
    )
    assert main(["site", "columns", "--data", str(ward_path), "--min-rows", "0", "--out", "own.json"]) == 2
    assert "--min-rows = 0 should be > 0" in capsys.readouterr().err


def test_categories_of_the_study_say_nothing_of_a_site(ward_path: Path) -> None:
    """They stay whether the site has them or not; its own stay at home below the floor."""
    study = {"columns": [{"column": "age"}, {**SEX, "categories": ["D", "F", "M"]}], "classes": ["0", "1", "2"]}
    own = Table(str(ward_path), columns=study).own_columns(30, scale=True)
    assert own.columns[1].categories == ("D", "F", "M") and own.classes == ("0", "1", "2")
    trains = Table(str(ward_path), columns=study).load()[0].x[:, 0]
    assert (own.columns[0].rows, own.columns[0].mean) == (30, trains.mean())  # of 40, ten are for testing
    assert Table(str(ward_path)).own_columns(30).columns[1].categories == ()


def test_a_line_of_names_is_known_although_names_are_given(tmp_path: Path) -> None:
    rows = "1,F,0\n2,M,1\n" * 4
    columns = {**SOUND, "names": ["age", "sex", "label"]}
    files = {"bare.csv": rows, "named.csv": f"age, sex,label\n{rows}"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    bare, named = (Table(str(tmp_path / name), columns=columns).load()[0] for name in files)
    np.testing.assert_array_equal(bare.x, named.x)
    assert len(bare) + 2 == 8
