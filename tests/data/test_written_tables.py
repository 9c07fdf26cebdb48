# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tables as hospitals write them: what is set is read, else the message says what to set; how numbers are scaled."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.cli import main
from cfl_flare.core.config import build, marked
from cfl_flare.data import DataConfig, DataSource, SiteData
from cfl_flare.data.agreement import agreed
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.frames import Reading, read_frame
from cfl_flare.data.hospitals import FOLDER, STROKE, STROKE_COLUMNS, Heart
from cfl_flare.data.preparation import CLIP, Preparation, Scaling
from cfl_flare.data.summary import clipped_line
from cfl_flare.data.table import Table
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import FedAvg
from cfl_flare.training.settings import TrainSettings
from tests.helpers.files import write_file
from tests.helpers.loop import run_loop
from tests.helpers.refusals import catch_refusal

ROWS = "age,temp,seen,ward,label\n" + "".join(
    f"{30 + i},{36 + i / 10:.1f},{1 + i:02d}/03/1996,Ä{'xy'[i % 2]},{i % 2}\n" for i in range(24)
)
EXCEL = ROWS.replace(",", ";").replace(".", ",")


def catch_quiet_refusal(make: Any) -> str:
    """The message of a refusal that comes without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return catch_refusal(make)


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
    says = catch_quiet_refusal(lambda: Table(write_file(tmp_path, content), **settings).load())
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
    plain = Table(write_file(tmp_path, ROWS.replace("/03/", ".3."), "plain.csv"), dayfirst=True)
    other = Table(write_file(tmp_path, content), dayfirst=True, **settings)
    for ours, theirs in zip(plain.load(), other.load()):
        assert np.array_equal(ours.x, theirs.x) and np.array_equal(ours.y, theirs.y)
    assert other.described() == plain.described() and "seen: date" in plain.described()
    frame = read_frame(tmp_path / "plain.csv", reading=Reading(dayfirst=True))
    assert frame.seen.iloc[11] == "1996-03-12"
    inside = Columns.of({**plain.own_columns(5).to_dict(), **settings})  # in the columns' file as well
    assert np.array_equal(Table(str(tmp_path / "ward.csv"), columns=inside.to_dict()).load()[0].x, plain.load()[0].x)


def test_ambiguous_dates_are_not_guessed(tmp_path: Path) -> None:
    path = Path(write_file(tmp_path, "seen,label\n" + "03/04/1996,0\n05/06/1996 14:30,1\n"))
    days, months = (read_frame(path, reading=Reading(dayfirst=first)).seen.tolist() for first in (True, False))
    assert days == ["1996-04-03", "1996-06-05 14:30"] and months == ["1996-03-04", "1996-05-06 14:30"]


def test_missing_means_numbers_too(tmp_path: Path) -> None:
    text = "a,b,label\n" + "".join(
        f"{-1 if i % 4 == 0 else i},{'?' if i % 3 == 0 else 'u'},{i % 2}\n" for i in range(16)
    )
    path = write_file(tmp_path, text)
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
    train, test = Table(write_file(tmp_path, text), split="part").load()
    assert test.x[:, 0].tolist() == [2, 6, 10, 14] and train.x.shape == (12, 1)
    assert "row 2 says 'val'; write train or test" in catch_quiet_refusal(
        lambda: Table(write_file(tmp_path, text.replace("training", "val")), split="part").load()
    )
    assert "row 1 says None" in catch_quiet_refusal(
        lambda: Table(write_file(tmp_path, text.replace("0,Train", "0,")), split="part").load()
    )
    assert "set split" in catch_quiet_refusal(lambda: Table(write_file(tmp_path, text), split="fold").load())
    assert "both say which rows test" in catch_quiet_refusal(lambda: Table("x.csv", split="part", time="seen"))
    by_file = Table(write_file(tmp_path, text), columns={"columns": [{"column": "a"}], "split": "part"})
    assert by_file.load()[1].x[:, 0].tolist() == [2, 6, 10, 14]
    unfilled = by_file.preparation(by_file.load()[0])
    assert unfilled.columns.split is None and "part" in unfilled.columns.leave  # new patients have none


def test_times_of_zero_are_told_together_and_have_a_way_out(tmp_path: Path) -> None:
    text = "a,died,label\n" + "".join(f"{i},{i % 2},{0 if i % 3 == 0 else 2 * i}\n" for i in range(24))
    path = write_file(tmp_path, text)
    says = catch_quiet_refusal(lambda: Table(path, event="died").load())
    assert "8 of 24 rows have a time that is not above 0 (rows 1, 4, 7, 10, 13, ...)" in says
    assert "set zero_times=leave" in says and "zero_times=shift" in says
    left = Table(path, event="died", zero_times="leave")
    assert sum(map(len, left.load())) == 16
    assert "left out: 8 of 24 rows, which have no label, or a time that is not above 0" in left.described()
    shifted = np.concatenate([part.y for part in Table(path, event="died", zero_times="shift").load()])
    assert len(shifted) == 24 and (shifted[:, 0] == 1).sum() == 8  # half of 2
    below = write_file(tmp_path, text.replace("\n1,1,2\n", "\n1,1,-2\n"))
    assert "1 of 24 rows have a time" in catch_quiet_refusal(
        lambda: Table(below, event="died", zero_times="shift").load()
    )
    nobody = write_file(tmp_path, "a,died,label\n1,1,0\n2,0,0\n")
    assert "2 of 2 rows" in catch_quiet_refusal(lambda: Table(nobody, event="died", zero_times="leave").load())


# Each site's own matter


def test_a_site_s_way_of_writing_and_what_it_leaves_out_survive(tmp_path: Path, monkeypatch: Any) -> None:
    study = {"columns": [{"column": "age", "range": [0, 99]}, {"column": "temp"}], "leave": ["seen"]}
    mine = Table(write_file(tmp_path, EXCEL), columns=study, leave=["ward"], sep=";", decimal="comma").own_columns(5)
    theirs = Table(
        write_file(tmp_path, ROWS.replace(",ward", "").replace(",Äx", "").replace(",Äy", ""), "b.csv"), columns=study
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
    assert "not those of CFL_COLUMNS" in catch_quiet_refusal(
        lambda: DataConfig().host(SiteData(columns=other), "s", 0, 1)
    )


def test_site_columns_reads_values_where_a_study_s_file_is_given(tmp_path: Path, capsys: Any) -> None:
    study = tmp_path / "study.json"
    study.write_text(json.dumps({"columns": [{"column": "age", "range": [0, 40]}], "leave": ["temp", "seen", "ward"]}))
    path, out = write_file(tmp_path, ROWS), tmp_path / "own.json"
    words = ["site", "columns", "--data", f"table:path={path},columns={study}", "--out", str(out)]
    assert main(words) == 2 and not out.exists()
    assert "row 12 holds 41, and 13 of 24 rows are not in 0 to 40" in capsys.readouterr().err
    study.write_text(study.read_text().replace("40", "90"))
    assert main(words) == 0 and "age: number, from 0 to 90" in capsys.readouterr().out


def test_site_check_prints_empty_columns_and_shares_of_missing_values(tmp_path: Path, capsys: Any) -> None:
    rows = "".join(f"{'' if i % 4 == 0 else i},,{i},{i % 2}\n" for i in range(24))
    write_file(tmp_path, "age,dose,pulse,label\n" + rows)
    assert main(["site", "check", "--data", f"table:path={tmp_path / 'ward.csv'}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no row has a value: dose; look at the file, and at absent" in said and "missing values: age 25 %" in said


# ---- Scaling ----


NUMBER = Columns((Column("a"),))


def intensive_care(path: Path) -> Path:
    """100 hospitals of 8 to 20 patients; some numbers are the same for nearly all patients of a hospital."""
    rng, rows = np.random.default_rng(0), []
    for hospital in range(100):
        n = int(rng.integers(8, 21))
        z = rng.normal(size=(n, 5))
        dose = np.where(rng.random(n) < 0.9, 0, np.exp(3 + z[:, 3]))
        warm = np.round(37 + 0.05 * z[:, 4] + (rng.random(n) < 0.03) * rng.normal(size=n) * 5, 1)
        x = np.stack([60 + 15 * z[:, 0], 120 + 20 * z[:, 1], np.exp(1.5 * z[:, 2]), dose, warm], axis=1).round(2)
        risk = -2.6 + z @ [0.6, -0.4, 0.5, 0.3, 0] + 0.5 * rng.normal()
        rows += [[*row, f"h{hospital}", int(y)] for row, y in zip(x, rng.random(n) < 1 / (1 + np.exp(-risk)))]
    names = ["age", "pressure", "protein", "dose", "warm", "hospital", "label"]
    pd.DataFrame(rows, columns=names).to_csv(path, index=False)
    return path


def measure_losses(source: Table) -> tuple[float, float]:
    """Log-loss on all test rows: of FedAvg's logistic regression, and of the training rows' share of events alone."""
    data = DataConfig(partition="natural", min_samples=1).resolved(source)
    hosted = data.host(source, "local", 0, 1)
    model = {"input_shape": [hosted[0].train.x.shape[1]], "num_classes": 1, "hidden": []}
    server = run_loop(
        method=FedAvg(),
        model={"class_path": "cfl_flare.models.MLP", "args": model},
        source=source,
        data=data,
        settings=ServerSettings(num_rounds=20, evaluate_every=20),
        training=TrainSettings(task="binary", lr=1.0, momentum=0.0, local_epochs=1),
    )
    weights, bias = sorted(server.state.bank["global"].arrays().values(), key=np.ndim, reverse=True)
    x, y = (np.concatenate([getattr(one.test, name) for one in hosted]) for name in "xy")
    share = np.concatenate([one.train.y for one in hosted]).mean()
    logits = x @ weights[0] + bias[0]
    alone = -np.mean(y * np.log(share) + (1 - y) * np.log(1 - share))
    return float(np.mean(np.logaddexp(0, logits) - y * logits)), float(alone)


class UnsharedTable(Table):
    """Hospitals that share no statistics."""

    def preparation(self, train: Any, federation: Any = None) -> Preparation:
        """As at a real site."""
        return super().preparation(train)


@pytest.mark.parametrize("kind", [Table, UnsharedTable])
def test_hospitals_of_a_few_patients_learn_more_than_the_share_of_deaths(tmp_path: Path, kind: type[Table]) -> None:
    """Each scaled by its own deviation, they learn less: 0.38 where the share alone has 0.30."""
    path = str(intensive_care(tmp_path / "icu.csv"))
    fedavg, alone = measure_losses(kind(path, key="hospital"))
    assert fedavg < alone - 0.003
    if kind is Table:
        worse, _ = measure_losses(Table(path, key="hospital", scaling="site"))
        assert worse > alone + 0.03


def test_no_test_value_of_a_tiny_hospital_is_far_outside(tmp_path: Path) -> None:
    path = str(intensive_care(tmp_path / "icu.csv"))
    config = DataConfig(partition="natural", min_samples=1)
    reach, said = {}, {}
    for scaling in ("site", "auto"):
        source = Table(path, key="hospital", scaling=scaling)
        hosted = config.resolved(source).host(source, "local", 0, 1)
        reach[scaling] = max(np.abs(one.test.x).max() for one in hosted if len(one.test))
        said[scaling] = clipped_line(hosted)
        if scaling == "auto":
            raw = np.concatenate([s.x for s in source.load()])
            mean, deviation = (getattr(hosted[0].preparation, name) for name in ("mean", "deviation"))
            assert sum(one.clipped for one in hosted) == (np.abs(raw - mean) > CLIP * deviation).sum() > 0
    assert reach["site"] > 40 and reach["auto"] <= CLIP * (1 + 1e-6)
    assert said["site"] == [] and "numbers are further from their mean than 5 deviations" in said["auto"][0]


def test_stroke_s_patients_in_tiny_hospitals(tmp_path: Path) -> None:
    """Real patients, 8 to 20 a hospital; ranges are agreed on, and no statistics are shared."""
    frame, rng = pd.read_csv(FOLDER / STROKE), np.random.default_rng(0)
    frame = frame[frame.dependent.notna()].astype({"dependent": int})
    parts = [own.sample(min(len(own), int(rng.integers(8, 21))), random_state=0) for _, own in frame.groupby("HOSPNUM")]
    hospitals = pd.concat([own for own in parts if len(own) >= 8][:150])
    names = ["HOSPNUM", "dependent", *(c.column for c in STROKE_COLUMNS.columns)]
    hospitals[names].to_csv(tmp_path / "s.csv", index=False)
    for kind in (Table, UnsharedTable):
        source = kind(str(tmp_path / "s.csv"), "dependent", "HOSPNUM", columns=STROKE_COLUMNS.to_dict())
        fedavg, alone = measure_losses(source)
        assert fedavg < alone


# Columns at their limits


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(
        st.one_of(st.none(), st.sampled_from([0.0, 0.1, 37.0, 1e-300, -1e9]), st.floats(-1e12, 1e12)),
        min_size=1,
        max_size=20,
    ),
    new=st.lists(st.floats(-1e15, 1e15), max_size=5),
    column=st.sampled_from(
        [
            Column("a"),
            Column("a", range=(-1e12, 1e12)),
            Column("a", range=(5, 5)),
            Column("a", mean=3.0, deviation=0.0, rows=9),
            Column("a", mean=3.0, deviation=2.0, rows=9),
            Column("a", missing=True),
        ]
    ),
)
def test_constant_nearly_constant_and_missing_columns(rows: Any, new: Any, column: Column) -> None:
    """What models see is finite and bounded, of one row too; what is constant at a hospital is near 0."""
    x, test = (np.array([[np.nan if v is None else v] for v in values], float).reshape(-1, 1) for values in (rows, new))
    if column.missing:
        x, test = (np.concatenate((part, np.isnan(part)), axis=1) for part in (x, test))
    fitted = Preparation.fitted(x, Columns((column,)), "auto")
    for part in (x, test):
        seen = fitted.apply(part)
        assert np.isfinite(seen).all() and np.abs(seen).max(initial=0) <= CLIP * (1 + 1e-6)
    assert (fitted.deviation > 0).all()
    assert fitted.clipped(test) <= len(test)


def test_a_hospital_s_own_scale_is_shrunk_to_what_its_numbers_can_be() -> None:
    few, many = (np.arange(n, dtype=float)[:, None] % 2 + 37 for n in (4, 4000))
    wide = Columns((Column("a", range=(30, 46)),))  # the middle is 38, and an eighth of the width 2
    one, lot = (Preparation.fitted(x, wide, "auto") for x in (few, many))
    assert one.mean[0] == pytest.approx((4 * 37.5 + 10 * 38) / 14)
    assert one.deviation[0] == pytest.approx(np.sqrt((4 * 0.25 + 10 * 4) / 14))
    assert lot.mean[0] == pytest.approx(37.5, abs=0.01) and lot.deviation[0] == pytest.approx(0.5, abs=0.05)
    free = Preparation.fitted(np.array([[0.0]] * 11 + [[0.01]]), NUMBER, "auto")
    assert free.mean[0] == pytest.approx(0.01 / 12) and free.deviation[0] > 1.2 * np.std([0] * 11 + [0.01])
    assert Preparation.fitted(np.full((8, 1), 0.1), NUMBER, "auto").deviation[0] == 1  # rounding is no deviation
    ordered = Columns((Column("a", "ordinal", ("I", "II", "III")),))
    assert Preparation.fitted(np.zeros((1, 1)), ordered, "auto").mean[0] == pytest.approx(10 / 11)
    common = Columns((Column("a", mean=3.0, deviation=2.0, rows=9, range=(0, 100)),))
    agreed_on = Preparation.fitted(few, common, "auto")
    assert (agreed_on.mean[0], agreed_on.deviation[0]) == (3, 2)


@pytest.mark.parametrize("scaling", ["site", "federation", "none"])
def test_scalings_that_are_named_clip_nothing(scaling: Scaling) -> None:
    columns = Columns((Column("a", mean=1.0, deviation=2.0, range=(0, 100)),))
    fitted = Preparation.fitted(np.array([[1.0], [2.0], [4.0]]), columns, scaling)
    mean, deviation = {"site": (7 / 3, np.std([1, 2, 4])), "federation": (1, 2), "none": (0.5, 0.5)}[scaling]
    assert fitted.clip is None and fitted.mean[0] == mean and fitted.deviation[0] == deviation
    assert fitted.apply(np.array([[1e6]]))[0, 0] == np.float32((1e6 - mean) / deviation)
    assert fitted.clipped(np.array([[1e6]])) == 0 and "clip" not in fitted.to_dict()


def test_a_clipped_preparation_survives_its_file() -> None:
    fitted = Preparation.fitted(np.array([[1.0], [2.0]]), NUMBER, "auto")
    again = Preparation.of(json.loads(json.dumps(fitted.to_dict())), "test")
    far = np.array([[1e9], [-1e9], [np.nan]])
    assert np.array_equal(again.apply(far), fitted.apply(far)) and again.clipped(far) == 2


# Jobs


def test_a_job_without_a_scaling_means_auto(tmp_path: Path) -> None:
    path = str(intensive_care(tmp_path / "icu.csv"))
    named = {"class_path": "cfl_flare.data.table.Table", "args": {"path": path, "key": "hospital"}}
    model = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [5], "num_classes": 2}}
    for data in (Table(path, key="hospital"), named, SiteData(), Heart()):
        plan = RunPlan.of(method="fedavg", model=model, data=data, num_rounds=1, name="n", min_clients=1)
        assert build(marked(plan.source), DataSource, "data").scaling == "auto"
