# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the columns of hospitals' files hold: codes, booleans, numbers and dates, and what one odd value changes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cfl_flare.data.agreement import agreed, describe_near
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.frames import Reading, read_frame
from cfl_flare.data.spelling import find_near, group_alike
from cfl_flare.data.table import Table
from cfl_flare.data.values import parse_day, parse_numbers
from tests.helpers.refusals import catch_refusal

Cells = Sequence[Any]


def write_column(folder: Path, cells: Cells, name: str = "ward.csv", column: str = "a", rows: int = 24) -> str:
    """A table of one column with these cells, over and over, and of labels 0 and 1."""
    values = [cells[i % len(cells)] for i in range(max(rows, len(cells)))]
    path = folder / name
    frame = pd.DataFrame({column: values, "label": [i % 2 for i in range(len(values))]})
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    elif path.suffix == ".dta":
        frame.to_stata(path, write_index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return str(path)


def read_column(path: str, **settings: Any) -> tuple[Column, np.ndarray]:
    """What a column became, and its first feature in the order of the file."""
    table = Table(path, **settings)
    _, frame, columns, _ = table._contents
    from cfl_flare.data.features import encoded

    return columns.columns[0], encoded(frame, columns, path)[0][:, 0]


# ---- Codes and names ----


FORMATS = ["ward.csv", "ward.tsv", "ward.csv.gz", "ward.parquet", "ward.dta"]


@pytest.mark.parametrize("name", FORMATS)
def test_codes_keep_their_leading_zeros(tmp_path: Path, name: str) -> None:
    path = write_column(tmp_path, ["0744", "744", "010"], name)
    column, first = read_column(path, categories=["a"])
    assert set(column.categories) == {"010", "0744", "744"}
    assert first.sum() == 8  # of 24 rows, whichever comes first
    says = catch_refusal(lambda: Table(path).load())
    assert "row 1 holds '0744', a code that would lose its leading zeros" in says and "categories" in says


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("purpose", ["key", "patient", "group"])
def test_names_keep_their_leading_zeros(tmp_path: Path, name: str, purpose: str) -> None:
    path = write_column(tmp_path, ["012", "12", "0012", "13"], name, "who")
    frame = read_frame(Path(path)).assign(x=np.arange(24.0))
    frame.to_csv(tmp_path / "all.csv", index=False)
    train, test = Table(str(tmp_path / "all.csv"), **{purpose: "who"}).load()
    named = {"key": train.key, "patient": train.patient, "group": train.group}[purpose]
    others = {"key": test.key, "patient": test.patient, "group": test.group}[purpose]
    assert len({*named.tolist(), *others.tolist()}) == 4


def test_whole_numbers_as_names_sort_by_size(tmp_path: Path) -> None:
    text = "who,x,label\n" + "".join(f"{(2, 10, 1)[i % 3]},{i % 5},{i % 2}\n" for i in range(24))
    (tmp_path / "ward.csv").write_text(text)
    train, _ = Table(str(tmp_path / "ward.csv"), key="who").load()
    assert np.unique(train.key).tolist() == [1, 2, 10]
    (tmp_path / "ward.csv").write_text(text.replace("\n10,", "\n10.0,"))
    train, _ = Table(str(tmp_path / "ward.csv"), key="who").load()
    assert np.unique(train.key).tolist() == [1, 2, 10]


def test_names_that_no_integer_holds(tmp_path: Path) -> None:
    text = "who,x,label\n" + "".join(f"{10**20 + i % 3},{i % 5},{i % 2}\n" for i in range(24))
    (tmp_path / "ward.csv").write_text(text)
    train, _ = Table(str(tmp_path / "ward.csv"), key="who").load()
    assert np.unique(train.key).tolist() == [f"{10**20 + i}" for i in range(3)]


def test_agreed_codes_mean_the_same_everywhere(tmp_path: Path) -> None:
    columns = {"columns": [{"column": "a", "kind": "category", "categories": ["010", "0744"]}]}
    features = []
    for name in FORMATS:
        _, first = read_column(write_column(tmp_path, ["0744", "010"], name), columns=columns)
        features.append(first.tolist())
    assert features == [[0.0, 1.0] * 12] * len(FORMATS)
    numbers = write_column(tmp_path, [744, 10], "numbers.parquet")
    says = catch_refusal(lambda: Table(numbers, columns=columns).load())
    assert "12 of 24 rows hold '744', where the sites agreed on '0744'" in says


def test_a_number_column_refuses_codes(tmp_path: Path) -> None:
    columns = {"columns": [{"column": "a"}]}
    says = catch_refusal(lambda: Table(write_column(tmp_path, [*range(1, 24), "0744"]), columns=columns).load())
    assert "row 24 holds '0744', a code" in says
    column, first = read_column(write_column(tmp_path, ["0", "0.5", "-0.5", "10"]))
    assert column.kind == "number" and first[:4].tolist() == [0, 0.5, -0.5, 10]


# ---- Booleans ----


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "cells",
    [
        ["True", "", "False"],
        ["TRUE", "", "FALSE"],
        ["true", "", "false"],
        ["Yes", "", "no", "YES", "No"],
        ["Y", "", "n"],
        ["T", "", "F"],
    ],
)
def test_booleans_with_gaps(tmp_path: Path, name: str, cells: list[str]) -> None:
    column, first = read_column(write_column(tmp_path, cells, name))
    expected = [np.nan if not cell else float(cell[0] in "TtYy") for cell in cells]
    assert column.kind == "boolean"
    assert np.array_equal(first[: len(cells)], expected, equal_nan=True)


def test_typed_booleans_with_gaps(tmp_path: Path) -> None:
    path = write_column(tmp_path, [True, None, False], "ward.parquet")
    column, first = read_column(path)
    assert column == Column("a", "boolean", ("False", "True"))
    assert np.array_equal(first[:3], [1, np.nan, 0], equal_nan=True)
    np.savez(tmp_path / "ward.npz", a=np.array([True, False] * 4), label=np.array([0, 1] * 4))
    assert read_column(str(tmp_path / "ward.npz"))[1].tolist() == [1, 0] * 4


def test_a_gap_changes_no_label(tmp_path: Path) -> None:
    for words in ("True,False", "TRUE,FALSE", "true,false", "1,0"):
        yes, no = words.split(",")
        cells = [yes, no, no, ""] * 6
        lines = "".join(f"{i % 7},{cell}\n" for i, cell in enumerate(cells))
        (tmp_path / "ward.csv").write_text("x,label\n" + lines)
        parts = Table(str(tmp_path / "ward.csv"), unlabelled="leave").load()
        assert sorted(np.concatenate([part.y for part in parts]).tolist()) == [0] * 12 + [1] * 6


@pytest.mark.parametrize("words", ["True,False", "yes,NO", "1,0", "1.0,0.0", "Y,n"])
def test_events_are_read_in_any_spelling(tmp_path: Path, words: str) -> None:
    yes, no = words.split(",")
    text = "x,died,label\n" + "".join(f"{i % 7},{(yes, no, no)[i % 3]},{1 + i}\n" for i in range(24))
    (tmp_path / "ward.csv").write_text(text)
    parts = Table(str(tmp_path / "ward.csv"), event="died").load()
    assert sum(part.y[:, 1].sum() for part in parts) == 8
    (tmp_path / "ward.csv").write_text(text.replace(f",{no},3\n", ",perhaps,3\n"))
    assert "row 3 holds 'perhaps'" in catch_refusal(Table(str(tmp_path / "ward.csv"), event="died").load)


NO_YES = {"columns": [{"column": "a", "kind": "boolean", "categories": ["no", "yes"]}]}


@pytest.mark.parametrize("cells", [["YES", "NO"], ["Yes", "no"], ["y", "N"], ["True", "False"], ["T", "f"]])
def test_agreed_booleans_know_their_words(tmp_path: Path, cells: list[str]) -> None:
    _, first = read_column(write_column(tmp_path, cells), columns=NO_YES)
    assert first.tolist() == [1, 0] * 12


def test_other_text_among_booleans_is_refused(tmp_path: Path) -> None:
    path = write_column(tmp_path, ["yes", "no", "yess", ""])
    says = catch_refusal(lambda: Table(path, columns=NO_YES).load())
    assert "row 3 holds 'yess', which is neither 'no' nor 'yes', and 6 of 24 rows do" in says
    _, first = read_column(path, columns=NO_YES, replace={"yess": "yes"})
    assert np.array_equal(first[:4], [1, 0, 1, np.nan], equal_nan=True)
    _, first = read_column(path, columns=NO_YES, absent=["yess"])
    assert np.isnan(first).sum() == 12


def test_one_letter_is_no_boolean(tmp_path: Path) -> None:
    column, _ = read_column(write_column(tmp_path, ["F"]))
    assert column == Column("a", "category", ("F",))


@pytest.mark.parametrize("others", [("No",), ("NO", "YES"), ("no", "yes"), ("F", "T"), ()])
def test_sites_agree_on_booleans(others: tuple[str, ...]) -> None:
    kind = "boolean" if len(others) == 2 else "category"
    both = {"a": Columns((Column("s", "boolean", ("no", "yes")),)), "b": Columns((Column("s", kind, others),))}
    assert agreed(both).columns == (Column("s", "boolean", ("no", "yes")),)


def test_a_third_answer_makes_a_category() -> None:
    both = {
        "a": Columns((Column("s", "boolean", ("no", "yes")),)),
        "b": Columns((Column("s", "category", ("no", "unknown", "yes")),)),
    }
    assert agreed(both).columns == (Column("s", "category", ("no", "unknown", "yes")),)


def test_a_site_without_values_agrees_to_any_kind(tmp_path: Path) -> None:
    text = "dose,sex,label\n" + "".join(f",{'FM'[i % 2]},{i % 2}\n" for i in range(24))
    (tmp_path / "ward.csv").write_text(text)
    own = Table(str(tmp_path / "ward.csv")).own_columns(5, scale=True)
    assert own.columns[0] == Column("dose", "empty")
    assert "['dose'] is empty, and so has no kind" in catch_refusal(lambda: own.usable("columns"))
    sex = own.columns[1]
    for column in (Column("dose"), Column("dose", "date"), Column("dose", "category", ("high", "low"))):
        other = Columns((column, sex), label="label")
        assert agreed({"a": own, "b": other}).columns == (column, sex) == agreed({"b": other, "a": own}).columns
    assert "'dose': no site has a value; let all sites leave it out" in catch_refusal(
        lambda: agreed({"a": own, "b": own})
    )


# ---- Categories in several spellings ----


EMERGENCY = {"columns": [{"column": "a", "kind": "category", "categories": ["elective", "emergency"]}]}


@pytest.mark.parametrize("text", ["Emergency", "EMERGENCY", "emergency\u00a0"])
def test_a_category_in_another_spelling(tmp_path: Path, text: str) -> None:
    path = write_column(tmp_path, [text, "elective", "elective"])
    if text.strip() == "emergency":
        assert read_column(path, columns=EMERGENCY)[1].sum() == 16
        return
    says = catch_refusal(lambda: Table(path, columns=EMERGENCY).load())
    assert f"8 of 24 rows hold {text!r}, where the sites agreed on 'emergency'" in says
    assert f'replace={{"{text}": "emergency"}}' in says
    assert read_column(path, columns=EMERGENCY, replace={text: "emergency"})[1].sum() == 16


def test_an_unknown_category_is_named(tmp_path: Path) -> None:
    path = write_column(tmp_path, ["elective"] * 7 + ["emergancy"])
    lines = Table(path, columns=EMERGENCY).described()
    says = "a: 3 rows have a category that no other site named ('emergancy'); 'emergancy' may be 'emergency'"
    assert any(line.startswith(says) for line in lines)
    mostly = write_column(tmp_path, ["planned", "planned", "elective"], "b.csv")
    assert "16 of 24 values, such as 'planned', are none of the agreed" in catch_refusal(
        lambda: Table(mostly, columns=EMERGENCY).load()
    )


def test_spellings_in_a_file_are_remarked_on(tmp_path: Path) -> None:
    path = write_column(tmp_path, ["Emergency", "elective", "emergency", "A-", "A+"])
    lines = Table(path).described()
    assert next(line for line in lines if "differ in case" in line).startswith("a: 'Emergency', 'emergency' differ")
    assert sum("differ in case" in line for line in lines) == 1


def test_columns_refuses_spellings_of_sites() -> None:
    def named(*categories: str, classes: tuple[str, ...] = ()) -> Columns:
        return Columns((Column("s", "category", categories),), classes=classes)

    says = catch_refusal(lambda: agreed({"h1": named("a", "Emergency"), "h2": named("a", "emergency")}))
    assert "'s': 'Emergency' at h1 and 'emergency' at h2 differ in case" in says
    assert agreed({"h1": named("A", "a"), "h2": named("A", "a")}).columns[0].categories == ("A", "a")
    says = catch_refusal(lambda: agreed({"h1": named("a", classes=("Dead",)), "h2": named("a", classes=("dead",))}))
    assert "classes: 'Dead' at h1 and 'dead' at h2" in says
    near = describe_near({"h1": named("emergancy", "stage 1"), "h2": named("emergency", "stage 2")})
    assert len(near) == 1 and near[0].startswith("'s': 'emergancy' at h1 may be 'emergency' at h2")


def test_a_label_points_at_the_agreed_class(tmp_path: Path) -> None:
    (tmp_path / "ward.csv").write_text(
        "a,label\n" + "".join(f"{i % 7},{('Dead', 'alive')[i % 2]}\n" for i in range(24))
    )
    columns = {"columns": [{"column": "a"}], "classes": ["alive", "dead"]}
    assert "'dead'" in catch_refusal(lambda: Table(str(tmp_path / "ward.csv"), columns=columns).load())
    parts = Table(str(tmp_path / "ward.csv"), columns=columns, replace={"Dead": "dead"}).load()
    assert sum(part.y.sum() for part in parts) == 12


def test_which_texts_are_near() -> None:
    assert find_near("Dead", ["alive", "dead"]) == "dead"
    assert find_near("0744", ["744"]) == "744"
    assert find_near("stage 1", ["stage 2"]) is None
    assert find_near("A-", ["A+", "A"]) is None
    assert group_alike(["-1", "1", "01"]) == [["1", "01"]]


# ---- Numbers ----


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["8'170", "950"], [8170, 950]),
        (["8\u2019170", "950"], [8170, 950]),
        (["8 170", "950"], [8170, 950]),
        (["8\u00a0170", "0\u00a0950"], [8170, 950]),
        (["1\u202f234\u202f567", "-8 170.5"], [1234567, -8170.5]),
        (["30%", "31.5 %"], [30, 31.5]),
        (["\u22121.5", "2.5"], [-1.5, 2.5]),
        (["1e5", ".5"], [1e5, 0.5]),
        (["1.0", ""], [1, np.nan]),
    ],
)
def test_how_numbers_are_written(tmp_path: Path, cells: list[str], expected: list[float]) -> None:
    for name in ("ward.csv", "ward.parquet"):
        column, first = read_column(write_column(tmp_path, cells, name))
        assert column.kind == "number" and np.array_equal(first[:2], expected, equal_nan=True)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["8,170"], "holds '8,170', which is ambiguous: it may be 8170 or 8.17; set thousands=comma"),
        (["1,782", "227", "2,242"], "holds '1,782', which is ambiguous"),
        (["0,978", "8,170"], "which is ambiguous"),
        (["8,170,000", "8,170"], "numbers with commas between thousands, such as '8,170,000'; set thousands=comma"),
        (["8,170", "950.5"], "numbers with commas between thousands, such as '8,170'; set thousands=comma"),
        (["36,5", "37,125"], "numbers with a decimal comma, such as '36,5'; set decimal=comma"),
        (["8,170,000", "36,5"], "commas of two kinds"),
        (["1.234.567", "8.170"], "numbers with points between thousands, such as '1.234.567'; set thousands=point"),
        (["1.234,5", "8,5"], "numbers with points between thousands, such as '1.234,5'; set thousands=point"),
        (["30,5%", "31%"], "numbers with a decimal comma, such as '30,5%'; set decimal=comma"),
        (["30%", "0.3"], "holds numbers with and without a percent sign"),
        (["> 89", "35", "26"], 'set replace={"> 89": 90} to read it as a number, or absent=[> 89]'),
        (["<0.5", "35", "26"], 'set replace={"<0.5": 0.5}'),
        (["90+", "35", "26"], 'set replace={"90+": 90}'),
        (["NULL", "35", "26"], "set absent=[NULL]"),
        (["inf", "35", "26"], "row 1 is infinite"),
    ],
)
def test_numbers_that_are_refused(tmp_path: Path, cells: list[str], says: str) -> None:
    for name in ("ward.csv", "ward.parquet"):
        assert says in catch_refusal(lambda name=name: Table(write_column(tmp_path, cells, name)).load())


def test_settings_for_marks_read_what_they_name(tmp_path: Path) -> None:
    path = write_column(tmp_path, ["8,170", "0,978", "950.5"])
    assert read_column(path, thousands="comma")[1][:3].tolist() == [8170, 978, 950.5]
    path = write_column(tmp_path, ["8.170", "950,5"])
    assert read_column(path, thousands="point", decimal="comma")[1][:2].tolist() == [8170, 950.5]
    says = catch_refusal(lambda: Table(path, decimal="comma").load())
    assert "holds '8.170', where the decimal mark is a comma" in says and "thousands=point" in says
    assert "decimal mark as well" in catch_refusal(lambda: Table(path, thousands="point").load())
    codes = write_column(tmp_path, ["0744", "8,170"])
    assert "'0744', a code" in catch_refusal(lambda: Table(codes, thousands="comma").load())


def test_a_word_is_named_whatever_the_marks(tmp_path: Path) -> None:
    path = write_column(tmp_path, ["36,5", "37,5", "x", "38,5"])
    assert "row 3 holds 'x' among numbers" in catch_refusal(lambda: Table(path, decimal="comma").load())


def test_percentages_are_agreed_on(tmp_path: Path) -> None:
    path = write_column(tmp_path, ["30%", "31%"])
    column, _ = read_column(path)
    assert column == Column("a", unit="%")
    agreed_on = {"columns": [{"column": "a"}]}
    assert "the unit that the sites agreed on is None" in catch_refusal(lambda: Table(path, columns=agreed_on).load())
    both = {"a": Columns((column,)), "b": Columns((Column("a"),))}
    assert "unit is '%' at a and None at b" in catch_refusal(lambda: agreed(both))
    (tmp_path / "los.csv").write_text("x,label\n" + "".join(f"{i % 7},{30 + i}%\n" for i in range(24)))
    train, _ = Table(str(tmp_path / "los.csv")).load()
    assert train.y.dtype == np.float64 and train.y.min() >= 30


def test_replacements_hold_in_any_format(tmp_path: Path) -> None:
    for name in FORMATS:
        path = write_column(tmp_path, ["> 89", "35", "26"], name)
        assert read_column(path, replace={"> 89": 90})[1][:3].tolist() == [90, 35, 26]
    own = Table(path, replace={"> 89": 90}).own_columns(5)
    assert Columns.of(json.loads(json.dumps(own.to_dict()))).replace == {"> 89": 90}
    assert agreed({"a": own, "b": Columns((Column("a"),), label="label")}).replace is None
    says = catch_refusal(lambda: Table(path, replace={"a": [1]}))
    assert "replace" in says and "a text or number for each" in says


def test_what_is_missing_stays_in_the_columns(tmp_path: Path) -> None:
    own = Table(write_column(tmp_path, ["?", "35", "-1"]), absent=["?", -1]).own_columns(5)
    assert own.absent == ("?", "-1")


def test_plain_and_odd_numbers_are_parsed_alike() -> None:
    rng = np.random.default_rng(0)
    numbers = [repr(float(value)) for value in rng.normal(size=50) * 10.0 ** rng.integers(-9, 9, 50)]
    plain = parse_numbers(numbers)
    odd = parse_numbers([*numbers, "8'170", "1_0", "nan", "1-2", "e", ""])
    assert plain.tolist() == [float(text) for text in numbers] == odd[:50].tolist()
    assert odd[50] == 8170 and np.isnan(odd[51:]).all()


# ---- Dates ----


@pytest.mark.parametrize("name", ["ward.csv", "ward.parquet"])
def test_dates_far_away_stay_dates(tmp_path: Path, name: str) -> None:
    path = write_column(tmp_path, ["1970-01-02", "2265-03-01", "9999-12-31", ""], name)
    column, first = read_column(path)
    assert column.kind == "date"
    assert np.array_equal(first[:4], [1, 107806, 2932896, np.nan], equal_nan=True)
    assert any("6 of 18 dates are far away (year 9999)" in line for line in Table(path).described())
    assert np.isnan(read_column(path, absent=["9999-12-31"])[1]).sum() == 12


def test_typed_dates_far_away(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import datetime

    import pyarrow.parquet as parquet

    moments = [datetime.datetime(1970, 1, 2), datetime.datetime(2265, 3, 1), None, datetime.datetime(1970, 1, 1, 12)]
    labels = arrow.array([0, 1] * 12)
    for kind in (arrow.timestamp("us"), arrow.timestamp("ms", "UTC"), arrow.timestamp("s")):
        table = arrow.table({"a": arrow.array(moments * 6, kind), "label": labels})
        parquet.write_table(table, tmp_path / "ward.parquet")
        column, first = read_column(str(tmp_path / "ward.parquet"))
        assert column.kind == "date" and np.array_equal(first[:4], [1, 107806, np.nan, 0.5], equal_nan=True)
    table = arrow.table({"a": arrow.array([m and m.date() for m in moments] * 6, arrow.date32()), "label": labels})
    parquet.write_table(table, tmp_path / "ward.parquet")
    assert np.array_equal(read_column(str(tmp_path / "ward.parquet"))[1][:3], [1, 107806, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ("unknown", "row 24 holds 'unknown', no date"),
        ("1996-02-30", "row 24 holds '1996-02-30', no date"),
        ("31/12/1996", "holds dates, such as '31/12/1996'; set dayfirst"),
        ("35431", "row 24 holds '35431', no date"),
    ],
)
def test_one_odd_value_makes_no_category(tmp_path: Path, odd: str, says: str) -> None:
    cells = [f"1996-03-{1 + i:02d}" for i in range(23)]
    assert says in catch_refusal(lambda: Table(write_column(tmp_path, [*cells, odd])).load())


def test_few_numbers_among_words_are_refused(tmp_path: Path) -> None:
    """40 different numbers in 100 rows were categories, as most rows say that nothing was measured."""
    cells = [*(f"{i}.5" for i in range(40)), *["not done"] * 60]
    assert "holds 'not done' among numbers" in catch_refusal(lambda: Table(write_column(tmp_path, cells)).load())


def test_text_with_a_number_stays_a_category(tmp_path: Path) -> None:
    column, _ = read_column(write_column(tmp_path, ["I", "II", "III", "4"]))
    assert column.kind == "category" and len(column.categories) == 4


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["01-Mar-1996", "02-Mar-1996"], "holds dates, such as '01-Mar-1996'; write them like 1996-12-31"),
        (["March 1, 1996", "May 2, 1996"], "holds dates, such as"),
        (["1996/03/01", "1996/03/02"], "holds dates, such as '1996/03/01'"),
        (["01/03/96", "02/03/96"], "dates of a year with two digits"),
    ],
)
def test_other_dates_are_called_dates(tmp_path: Path, cells: list[str], says: str) -> None:
    assert says in catch_refusal(lambda: Table(write_column(tmp_path, cells)).load())


def test_how_dates_are_written(tmp_path: Path) -> None:
    assert parse_day("1970-01-01 06:00") == parse_day("19700101T0600Z") == 0.25
    assert parse_day("1970-01-01T06:00:00.000+06:00") == 0
    assert parse_day("1970-02") == 31 and parse_day("1971") == 365
    assert parse_day("1970-13-01") is parse_day("0000-01-01") is parse_day("1970-01-01T25:00") is None
    column, first = read_column(write_column(tmp_path, [19700102, 19961231]))
    assert column.kind == "date" and first[0] == 1
    assert read_column(write_column(tmp_path, [19700102, 19961331]))[0].kind == "number"


def test_reading_is_still_set_and_not_guessed(tmp_path: Path) -> None:
    path = Path(write_column(tmp_path, ["03/04/1996"]))
    assert read_frame(path, reading=Reading(dayfirst=True)).a.iloc[0] == "1996-04-03"
    assert read_frame(path, reading=Reading(dayfirst=False)).a.iloc[0] == "1996-03-04"
