# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tables as hospitals write them: what is set is read, else the message says what to set."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cfl_flare.cli import main
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, SiteData
from cfl_flare.data.columns import Columns, agreed
from cfl_flare.data.frames import Reading, read_frame
from cfl_flare.data.table import Table

ROWS = "age,temp,seen,ward,label\n" + "".join(
    f"{30 + i},{36 + i / 10:.1f},{1 + i:02d}/03/1996,Ä{'xy'[i % 2]},{i % 2}\n" for i in range(24)
)
EXCEL = ROWS.replace(",", ";").replace(".", ",")


def written(folder: Path, content: str | bytes, name: str = "ward.csv") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def refusal(make: Any) -> str:
    with warnings.catch_warnings(), pytest.raises((DataError, ConfigError)) as caught:
        warnings.simplefilter("error")
        make()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "settings", "way_out"),
    [
        (EXCEL, {}, 'set sep=semicolon, or "sep": "semicolon" in the columns\' file'),
        (ROWS.replace(",", "\t"), {}, "set sep=tab"),
        (ROWS.replace(",", "|"), {}, "set sep=bar"),
        (ROWS.replace("label\n", "label; the outcome\n").replace(",", ";", 3), {}, "set sep="),
        (ROWS.encode("utf-16"), {}, "looks like UTF-16; set encoding=utf-16"),
        (ROWS.encode("utf-16-le"), {}, "looks like UTF-16; set encoding=utf-16"),
        (ROWS.encode("cp1252"), {}, "cannot be read as a CSV file in UTF-8: .*; set encoding=cp1252"),
        (EXCEL, {"sep": ";"}, "column 'temp': holds numbers with a decimal comma, such as '36,0'; set decimal=comma"),
        (
            ROWS,
            {},
            "column 'seen': holds dates, such as '01/03/1996'; set dayfirst=True, or .*; False where the month",
        ),
        (
            ROWS,
            {"dayfirst": False},
            "column 'seen': row 13 holds '13/03/1996', whose day is not first; set dayfirst=True",
        ),
        (
            "a,label\n" + "1.000,0\n2.500,1\n" * 9,
            {"decimal": "comma"},
            "holds '1.000', where the decimal mark is a comma",
        ),
        (EXCEL, {"sep": "/"}, r"sep = '/' should be one of comma \(','\), semicolon \(';'\)"),
        (EXCEL, {"decimal": "/"}, "decimal = '/' should be one of point"),
        (EXCEL, {"encoding": "zip"}, "encoding = 'zip' should be a text file's encoding"),
        (EXCEL, {"encoding": "idna"}, "encoding = 'idna' should be"),
        (EXCEL, {"encoding": "cp99999"}, "encoding = 'cp99999' should be"),
    ],
)
def test_the_message_says_what_to_set(tmp_path: Path, content: Any, settings: Any, way_out: str) -> None:
    says = refusal(lambda: Table(written(tmp_path, content), **settings).load())
    with pytest.raises(AssertionError, match=way_out):
        raise AssertionError(says)


@pytest.mark.parametrize(
    ("content", "settings"),
    [
        (EXCEL.encode("cp1252"), {"sep": ";", "decimal": ",", "encoding": "cp1252"}),
        (EXCEL.encode("utf-16"), {"sep": "semicolon", "decimal": "comma", "encoding": "utf-16"}),
        (ROWS.replace(",", "\t").encode("utf-8-sig"), {"sep": "\t"}),
        (ROWS.replace(",", "|"), {"sep": "bar"}),
    ],
)
def test_what_is_set_is_read(tmp_path: Path, content: Any, settings: Any) -> None:
    plain = Table(written(tmp_path, ROWS.replace("/03/", ".3."), "plain.csv"), dayfirst=True)
    other = Table(written(tmp_path, content), dayfirst=True, **settings)
    for ours, theirs in zip(plain.load(), other.load()):
        assert np.array_equal(ours.x, theirs.x) and np.array_equal(ours.y, theirs.y)
    assert other.described() == plain.described() and "seen: date" in plain.described()
    frame = read_frame(tmp_path / "plain.csv", reading=Reading(dayfirst=True))
    assert frame.seen.iloc[11] == "1996-03-12"
    inside = Columns.of({**plain.own_columns(5).to_dict(), **settings})  # in the columns' file as well
    assert np.array_equal(Table(str(tmp_path / "ward.csv"), columns=inside.to_dict()).load()[0].x, plain.load()[0].x)


def test_ambiguous_dates_are_not_guessed(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "seen,label\n" + "03/04/1996,0\n05/06/1996 14:30,1\n"))
    days, months = (read_frame(path, reading=Reading(dayfirst=first)).seen.tolist() for first in (True, False))
    assert days == ["1996-04-03", "1996-06-05 14:30"] and months == ["1996-03-04", "1996-05-06 14:30"]


def test_missing_means_numbers_too(tmp_path: Path) -> None:
    text = "a,b,label\n" + "".join(
        f"{-1 if i % 4 == 0 else i},{'?' if i % 3 == 0 else 'u'},{i % 2}\n" for i in range(16)
    )
    path = written(tmp_path, text)
    read = [Table(path, absent=absent).load()[0].x for absent in ([-1, "?"], ["-1", "?"], [-1.0, "?"])]
    assert np.isnan(read[0][:, 0]).any() and all(np.array_equal(read[0], one, equal_nan=True) for one in read[1:])
    assert Columns.of({"columns": [{"column": "a"}], "absent": [-1, 99.0]}).absent == ("-1", "99")
    pytest.importorskip("pyarrow")
    pd.read_csv(path).to_parquet(tmp_path / "ward.parquet")
    packed = Table(str(tmp_path / "ward.parquet"), absent=[-1, "?"]).load()[0].x
    assert np.array_equal(read[0], packed, equal_nan=True)
    np.savez(tmp_path / "ward.npz", a=np.array([-1, 2, 3, 4]), label=np.array([0, 1, 0, 1]))
    assert np.isnan(read_frame(tmp_path / "ward.npz", absent=["-1"]).a).sum() == 1


def test_a_column_says_train_or_test(tmp_path: Path) -> None:
    says = ["Train", "training", "TEST", "train"]
    text = "a,part,label\n" + "".join(f"{i},{says[i % 4]},{i % 2}\n" for i in range(16))
    train, test = Table(written(tmp_path, text), split="part").load()
    assert test.x[:, 0].tolist() == [2, 6, 10, 14] and train.x.shape == (12, 1)
    assert "row 2 says 'val'; write train or test" in refusal(
        lambda: Table(written(tmp_path, text.replace("training", "val")), split="part").load()
    )
    assert "row 1 says None" in refusal(
        lambda: Table(written(tmp_path, text.replace("0,Train", "0,")), split="part").load()
    )
    assert "set split" in refusal(lambda: Table(written(tmp_path, text), split="fold").load())
    assert "both say which rows test" in refusal(lambda: Table("x.csv", split="part", time="seen"))
    by_file = Table(written(tmp_path, text), columns={"columns": [{"column": "a"}], "split": "part"})
    assert by_file.load()[1].x[:, 0].tolist() == [2, 6, 10, 14]
    unfilled = by_file.preparation(by_file.load()[0])
    assert unfilled.columns.split is None and "part" in unfilled.columns.leave  # new patients have none


def test_times_of_zero_are_told_together_and_have_a_way_out(tmp_path: Path) -> None:
    text = "a,died,label\n" + "".join(f"{i},{i % 2},{0 if i % 3 == 0 else 2 * i}\n" for i in range(24))
    path = written(tmp_path, text)
    says = refusal(lambda: Table(path, event="died").load())
    assert "8 of 24 rows have a time that is not above 0 (rows 1, 4, 7, 10, 13, ...)" in says
    assert "set zero_times=leave" in says and "zero_times=shift" in says
    left = Table(path, event="died", zero_times="leave")
    assert sum(map(len, left.load())) == 16
    assert "left out: 8 of 24 rows, which have no label, or a time that is not above 0" in left.described()
    shifted = np.concatenate([part.y for part in Table(path, event="died", zero_times="shift").load()])
    assert len(shifted) == 24 and (shifted[:, 0] == 1).sum() == 8  # half of 2
    below = written(tmp_path, text.replace("\n1,1,2\n", "\n1,1,-2\n"))
    assert "1 of 24 rows have a time" in refusal(lambda: Table(below, event="died", zero_times="shift").load())
    nobody = written(tmp_path, "a,died,label\n1,1,0\n2,0,0\n")
    assert "2 of 2 rows" in refusal(lambda: Table(nobody, event="died", zero_times="leave").load())


# Each site's own matter


def test_a_site_s_way_of_writing_and_what_it_leaves_out_survive(tmp_path: Path, monkeypatch: Any) -> None:
    study = {"columns": [{"column": "age", "range": [0, 99]}, {"column": "temp"}], "leave": ["seen"]}
    mine = Table(written(tmp_path, EXCEL), columns=study, leave=["ward"], sep=";", decimal="comma").own_columns(5)
    theirs = Table(
        written(tmp_path, ROWS.replace(",ward", "").replace(",Äx", "").replace(",Äy", ""), "b.csv"), columns=study
    ).own_columns(5)
    assert mine.leave == ("seen", "ward") and (mine.sep, mine.decimal) == (";", "comma")
    both = agreed({"mine": mine, "theirs": theirs})
    assert both.leave == ("seen", "ward") and both.sep is None and both.decimal is None
    pinned = tmp_path / "columns.json"
    pinned.write_text(json.dumps({**both.to_dict(), "sep": ";", "decimal": ",", "leave": ["seen", "ward", "bed"]}))
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "ward.csv"))
    monkeypatch.setenv("CFL_COLUMNS", str(pinned))
    (one,) = DataConfig().host(SiteData(columns=both.to_dict()), "s", 0, 1)
    assert one.train.x.shape[1] == 2
    other = {**both.to_dict(), "absent": ["?"]}
    assert "not those of CFL_COLUMNS" in refusal(lambda: DataConfig().host(SiteData(columns=other), "s", 0, 1))


def test_site_columns_reads_values_where_a_study_s_file_is_given(tmp_path: Path, capsys: Any) -> None:
    study = tmp_path / "study.json"
    study.write_text(json.dumps({"columns": [{"column": "age", "range": [0, 40]}], "leave": ["temp", "seen", "ward"]}))
    path, out = written(tmp_path, ROWS), tmp_path / "own.json"
    words = ["site", "columns", "--data", f"table:path={path},columns={study}", "--out", str(out)]
    assert main(words) == 2 and not out.exists()
    assert "row 12 holds 41, and 13 of 24 rows are not in 0 to 40" in capsys.readouterr().err
    study.write_text(study.read_text().replace("40", "90"))
    assert main(words) == 0 and "age: number, from 0 to 90" in capsys.readouterr().out


def test_site_check_prints_empty_columns_and_shares_of_missing_values(tmp_path: Path, capsys: Any) -> None:
    rows = "".join(f"{'' if i % 4 == 0 else i},,{i},{i % 2}\n" for i in range(24))
    written(tmp_path, "age,dose,pulse,label\n" + rows)
    assert main(["site", "check", "--data", f"table:path={tmp_path / 'ward.csv'}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no row has a value: dose; look at the file, and at absent" in said and "missing values: age 25 %" in said
