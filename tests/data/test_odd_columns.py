# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Columns as hospitals write them: words for yes and no, codes, numbers with marks, dates, and the hints to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cfl_flare.core.config import parse_spec
from cfl_flare.core.errors import DataError
from cfl_flare.data.agreement import describe_near
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.hints import name_list
from cfl_flare.data.loading import read
from cfl_flare.data.numbering import number_codes
from cfl_flare.data.table import Table

ROWS = 24


def write(folder: Path, a: Sequence[Any], label: Sequence[Any] = (0, 1), name: str = "ward.csv") -> str:
    """A table of 24 rows with a number, a column ``a`` and a label, each of them repeated."""
    columns = {"n": [row % 5 for row in range(ROWS)], "a": a, "label": label}
    frame = pd.DataFrame({name: [values[i % len(values)] for i in range(ROWS)] for name, values in columns.items()})
    path = folder / name
    frame.to_parquet(path) if name.endswith(".parquet") else frame.to_csv(path, index=False)
    return str(path)


def describe(path: str, **settings: Any) -> str:
    return "\n".join(Table(path, **settings).described())


def refuse(path: str, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        Table(path, **settings).described()
    return str(caught.value)


# ---- Booleans ----


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["yes", "no", "Y"], "boolean, 1 for yes"),
        (["Y", "n", "y"], "boolean, 1 for y"),
        (["TRUE", "FALSE", "1", "0"], "boolean, 1 for true"),
        (["no", "1"], "boolean, 1 for yes"),
        (["\uff39\uff25\uff33", "no"], "boolean, 1 for \uff39\uff25\uff33"),
        (["F", "M", "T"], "category of F, M, T"),
        (["N", "T"], "category of N, T"),
        (["yes", "y"], "category of y, yes"),
    ],
)
def test_words_of_a_boolean_are_one(tmp_path, words, kind):
    assert f"a: {kind}\n" in describe(write(tmp_path, words)) + "\n"


@pytest.mark.parametrize(
    ("words", "remark"),
    [
        (
            ["yes", "no", "no", "unknown"],
            "a: would be a boolean without 6 of 24 rows ('unknown'); correct them, or set",
        ),
        (["yes", "no", "no", "9"], "a: would be a boolean without 6 of 24 rows ('9'); correct them\n"),
        (["red", "blue", "N/A"], "a: 'N/A' may mean that a value is missing; if so, set absent=[N/A]\n"),
    ],
)
def test_what_keeps_a_column_from_being_a_boolean(tmp_path, words, remark):
    assert remark in describe(write(tmp_path, words)) + "\n"


@pytest.mark.parametrize(
    ("labels", "classes", "names"),
    [
        (["Yes", "no", "YES"], None, ("no", "yes")),
        (["y", "no", "n", "yes", "1"], None, ("no", "yes")),
        (["TRUE", "FALSE"], ["no", "yes"], ("no", "yes")),
        ([1, 0], ["no", "yes"], ("no", "yes")),
        (["YES", "NO"], ["yes", "no"], ("yes", "no")),
        (["dead", "alive"], None, ("alive", "dead")),
    ],
)
@pytest.mark.parametrize("name", ["ward.csv", "ward.parquet"])
def test_labels_of_yes_and_no_are_two_classes(tmp_path, labels, classes, names, name):
    labels = list(map(str, labels)) if name.endswith("parquet") else labels
    path = write(tmp_path, [1.5], labels, name)
    if classes == ["yes", "no"]:  # an order of their own is no boolean: the words must be the agreed ones
        assert "did you mean" in refuse(path, classes=classes)
        return
    train, test = number_codes(*read(Table(path, classes=classes)))
    assert train.classes == test.classes == names


# ---- Codes ----


def test_large_codes_with_a_gap_stay_apart(tmp_path):
    codes = pd.array([2**53 + 1, 2**53, None], "Int64")
    path = tmp_path / "ward.parquet"
    pd.DataFrame({"a": codes, "n": [1.5, 2.5, 3.5], "label": [0, 1, 0]}).to_parquet(path)
    assert "a: category of 9007199254740992, 9007199254740993\n" in describe(str(path), categories=["a"])


@pytest.mark.parametrize(
    ("codes", "way_out"), [(["01", "02"], "classes=[01,02]"), (["0", "00"], 'classes=["0", "00"]')]
)
def test_labels_with_leading_zeros_are_names(tmp_path, codes, way_out):
    path = write(tmp_path, [1.5], codes)
    assert way_out in refuse(path)
    classes = parse_spec(f"table:{way_out}")[1]["classes"]
    assert read(Table(path, classes=classes))[0].classes == tuple(codes)


@pytest.mark.parametrize("codes", [["0E1", "2E3"], ["0744", "744"], ["-05", "1"]])
def test_codes_are_no_numbers(tmp_path, codes):
    assert "a code that would lose its leading zeros" in refuse(write(tmp_path, codes))


@pytest.mark.parametrize("name", ["ward.csv", "ward.parquet"])
def test_numbers_are_replaced_in_each_format(tmp_path, name):
    columns = {"columns": [{"column": "n"}, {"column": "a", "kind": "category", "categories": ["0744", "12"]}]}
    path = write(tmp_path, [744, 12], name=name)
    assert "sites agreed on '0744'" in refuse(path, columns=columns)
    train, _ = Table(path, columns=columns, replace={"744": "0744"}).load()
    assert train.x[:, 1:].sum(axis=1).tolist() == [1.0] * len(train)


# ---- Numbers ----


@pytest.mark.parametrize(
    ("written", "settings", "expected"),
    [
        (["8\u202f170", "950", "8\u00a0170,5"], {"decimal": "comma"}, [8170, 950, 8170.5]),
        (["1,23,456", "950"], {"thousands": "comma"}, [123456, 950]),
        (["8.170", "950", "12.345"], {"thousands": "point", "decimal": "comma"}, [8170, 950, 12345]),
        (["8.170", "950", "12.345"], {"decimal": "point"}, [8.17, 950, 12.345]),
        (["8.125", "950", "12.5"], {}, [8.125, 950, 12.5]),
        (["8.170", "950.000"], {}, [8.17, 950]),
        (["\u0663\u066b\u0665", "4"], {}, [3.5, 4]),
    ],
)
def test_numbers_with_marks(tmp_path, written, settings, expected):
    train, test = Table(write(tmp_path, written), **settings).load()
    assert {*train.x[:, 1], *test.x[:, 1]} == {*expected}


@pytest.mark.parametrize(
    ("written", "settings", "message"),
    [
        (
            ["8.170", "950", "12.345"],
            {},
            "holds '8.170', which is ambiguous: it may be 8170 or 8.17; set thousands=point",
        ),
        (
            ["8,170", "950", "1,25"],
            {"thousands": "comma"},
            "row 3 holds '1,25', where the decimal mark is a point, and",
        ),
        (
            ["1.5", "950"],
            {"thousands": "point", "decimal": "comma"},
            "holds '1.5', where the decimal mark is a comma, and",
        ),
        (["8\u00a0170,5", "950"], {}, "holds numbers with a decimal comma"),
        (["8,170", "1,25", "9,5"], {}, "\"comma\" in the columns' file, which reads '8,170' as a decimal number"),
        (["1,23,456", "950"], {}, "holds numbers with commas between thousands, such as '1,23,456'"),
        (["1", "2", "3", "nan", "NA", "null"], {}, "set absent=[nan,NA,null] if it means that a value is missing"),
        (["1", "2", "(5)"], {}, 'set absent=["(5)"] if'),
        (["30%", "45 %", "n/a"], {}, "holds 'n/a' among numbers"),
        (["0", "1", "yes"], {}, "holds 'yes' among numbers"),
        (["> 89", "> 89", "70"], {}, 'set replace={"> 89": 90}'),
        (
            ["<0,5", "1,2", "3,4"],
            {"decimal": "comma"},
            'set replace={"<0,5": 0.5} to read it as a number, or absent=["<0,5"]',
        ),
    ],
)
def test_the_hint_to_odd_numbers_can_be_obeyed(tmp_path, written, settings, message):
    assert message in refuse(write(tmp_path, written), **settings)


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ([f"{i} mg" for i in range(ROWS)], "if '0 mg' stands for a number, write it without the other characters"),
        ([f"{100 + i}/{i}" for i in range(ROWS)], "if '100/0' stands for two numbers, write them in two columns"),
        ([f"P{i:05d}" for i in range(ROWS)], "leave it out with leave=[a]"),
    ],
)
def test_many_texts_have_a_hint(tmp_path, written, hint):
    assert refuse(write(tmp_path, written)).endswith(hint)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["8,170", "950"], "column 'label': holds '8,170', which is ambiguous"),
        (["> 89", "70", "80"], "column 'label': row 1 holds '> 89', a bound and no number"),
        ([f"word {i}" for i in range(ROWS)], "holds 24 different texts in 24 rows, too many for classes"),
    ],
)
def test_numbers_are_no_names_of_classes(tmp_path, labels, message):
    assert message in refuse(write(tmp_path, [1.5], labels))


def test_numbers_to_predict_are_said_to_be(tmp_path):
    assert "label: numbers to predict, from -1 to 1; if they" in describe(write(tmp_path, [1.5], [-1, 0, 1]))


@pytest.mark.parametrize("texts", [["NA", "?"], ["a, b"], ["(5)"], ["1_0"], ["None"], ["[x]"], ["'--"], ['"']])
def test_a_list_in_a_hint_is_read_back(texts):
    assert parse_spec(f"table:{name_list('absent', texts)}")[1] == {"absent": texts}


# ---- Dates, and columns without a name ----

DAYS = [19960101 + day for day in range(20)]


def test_one_odd_number_makes_days_no_numbers(tmp_path):
    far = describe(write(tmp_path, [*DAYS, 99991231]))
    assert "a: date\n" in far
    assert "dates are far away (year 9999)" in far
    assert refuse(write(tmp_path, [*DAYS, 0])).endswith("row 21 holds '0', no date; write it like 1996-12-31")


def test_two_columns_without_a_name(tmp_path):
    path = tmp_path / "ward.csv"
    frame = pd.DataFrame({"n": np.arange(12) / 7, "label": np.arange(12) % 2})
    frame.reset_index().rename(columns={"index": "Unnamed: 0"}).to_csv(path)
    assert "left out: Unnamed: 0.1, Unnamed: 0\n" in describe(str(path))


def test_rows_are_counted_with_gaps(tmp_path):
    path = write(tmp_path, [i if i != 4 else None for i in range(ROWS)])
    assert "a: its numbers are unique and rising; if they number the rows, leave them out with leave=[a]" in describe(
        path
    )


@pytest.mark.parametrize("rows", [["a,b", "1,0,", "2,1,"], ["a,b,", "1,0,", "2,1,"]])
def test_a_mark_at_the_end_of_rows_is_no_row_name(tmp_path, rows):
    path = tmp_path / "ward.csv"
    path.write_text("\n".join([*rows, *rows[1:] * 4]))
    if rows[0].endswith(","):
        assert "left out: Unnamed: 2" in describe(str(path), label="b")
    else:
        assert "end the line of names with the same mark as the rows" in refuse(str(path), label="b")


def test_a_near_name_of_a_column(tmp_path):
    path = write(tmp_path, [1.5])
    assert Table(path, label="Label").label == "Label"
    with pytest.raises(Exception, match=r"no column 'Label'; it has n, a, label; set .*; did you mean 'label'\?"):
        Table(path, label="Label").described()


def test_a_site_without_names_of_classes_is_named():
    age = Column("age")
    sites = {"north": Columns((age,), classes=("1", "2")), "south": Columns((age,))}
    assert describe_near(sites)[0].startswith("classes: south names none: its labels are numbers from 0, or each has")
    assert not describe_near({"north": sites["north"]})
