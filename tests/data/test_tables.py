# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tables as hospitals have them: what columns become, how missing values are filled up, what sites agree on."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.data import DataConfig, SiteData
from cfl_flare.data.agreement import agreed, pooled
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.features import encoded
from cfl_flare.data.kinds import infer_columns
from cfl_flare.data.preparation import Preparation
from cfl_flare.data.samples import Samples
from cfl_flare.data.splits import split_by_class, split_by_time
from cfl_flare.data.table import Table
from tests.helpers.files import write_file
from tests.helpers.refusals import catch_refusal

WARD = """age,sex,stage,smokes,seen,note,label
60,F,II,Y,1995-01-01,x,1
70,M,I,n,1995-01-03,x,0
,F,II,,1995-01-02,x,1
80,M,III,Y,,x,0
"""


def make_ward_text(rows=24):
    """A table of two hospitals, of 8 and 16 rows."""
    lines = [f"{30 + i},{'AB'[i % 2]},{'' if i % 6 == 0 else i},{'s' if i < 8 else 't'},{i % 2}" for i in range(rows)]
    return "\n".join(["age,kind,dose,hospital,label", *lines]) + "\n"


# Whose rows they are


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=2, max_size=60), st.integers(0, 5), st.sampled_from([0.25, 0.5]))
def test_a_patients_rows_are_in_one_split(patients, seed, share):
    patient = np.array(patients)
    rows = Samples(np.arange(len(patients), dtype=np.float32)[:, None], patient % 2, patient=patient)
    train, test = split_by_class(rows, share, seed)
    assert not {*train.patient} & {*test.patient}
    assert sorted([*train.x[:, 0], *test.x[:, 0]]) == list(range(len(patients)))
    of_class = [len({p for p in patients if p % 2 == c}) for c in (0, 1)]
    assert len({*test.patient}) == sum(round(share * count) for count in of_class)


def visits(patients=8, shift=0):
    """Three visits of each patient of two hospitals; a rare blood group is one patient's alone."""
    lines = [f"{p},{v},{'st'[p % 2]},{'AB' if p == 0 else 'A'},{p // 2 % 2}" for p in range(patients) for v in range(3)]
    return "\n".join(["pid,visit,hospital,blood,label", *lines]) + "\n"


def test_participants_share_no_patient(tmp_path):
    table = Table(write_file(tmp_path, visits()), key="hospital", patient="pid", test_share=0.5)
    people = DataConfig(partition="natural", min_samples=3).resolved(table).host(table, "local", 0, 1)
    assert [sorted({*person.train.patient, *person.test.patient}) for person in people] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert "pid: 8 patients, of 24 rows" in table.described()
    for rule in ("iid", "dirichlet:alpha=5"):
        people = DataConfig(2, rule, min_samples=1).host(replace(table, key=None), "local", 0, 1)
        parts = [{*part.patient} for person in people for part in (person.train, person.test)]
        assert sum(map(len, parts)) == 8 == len(set.union(*parts))
        assert sum(len(person.train) + len(person.test) for person in people) == 24
    shared = Table(
        write_file(tmp_path, visits().replace("\n1,2,t", "\n1,2,s"), "shared.csv"), key="hospital", patient="pid"
    )
    catch_refusal(
        lambda: DataConfig(partition="natural", min_samples=1).resolved(shared),
        "data: 1 of 8 patients have samples at several owners .1 at s and t., such as '1'",
    )
    header, first, *rest = visits().splitlines()
    lines = [f"part,{header}", f"test,{first}", *(f"train,{line}" for line in rest)]
    path = write_file(tmp_path, "\n".join(lines) + "\n", "split.csv")
    catch_refusal(
        lambda: DataConfig().host(Table(path, split="part", patient="pid", leave=["hospital"]), "site-1", 0, 1),
        "data: 1 of 8 patients have training and test samples, such as '0': .*; set repeated_patients to first",
    )


def test_a_validation_split_keeps_patients_together(tmp_path):
    table = Table(write_file(tmp_path, visits(24)), patient="pid", leave=["hospital"])
    config = DataConfig(validation=0.25, measured_on="validation")
    (person,) = config.host(replace(table, columns=table.own_columns(1).to_dict()), "site-1", 0, 1)
    assert len(person.test) and not {*person.train.patient} & {*person.test.patient}


def test_what_few_patients_have_is_not_said_however_many_rows_they_have(tmp_path):
    path = write_file(tmp_path, visits())
    by_rows, by_patients = (
        Table(path, leave=["hospital"], patient=p).own_columns(3, scale=True) for p in (None, "pid")
    )
    assert by_rows.columns[-1].categories == ("A", "AB") and by_patients.columns[-1].categories == ("A",)
    assert [column.column for column in by_patients.columns] == ["visit", "blood"]
    catch_refusal(lambda: Table(path, patient="pid").own_columns(9), "has 8 patients, and says nothing of fewer than 9")
    catch_refusal(lambda: Table(path, key="pid", patient="pid"), "key and patient are both 'pid'")
    gap = write_file(tmp_path, visits().replace("\n3,1", "\n,1"), "gap.csv")
    catch_refusal(lambda: Table(gap, patient="pid").load(), "row 11 has no patient")


# What a column becomes


@pytest.mark.parametrize("name", ["ward.csv", "ward.csv.gz"])
def test_columns_become_what_they_look_like(tmp_path, name):
    table = Table(write_file(tmp_path, WARD, name), leave=["note"], missing=True, test_share=0.5)
    lines = table.described()
    assert lines == [
        "7 columns, 11 features",
        "age: number, and whether it is missing",
        "sex: category of F, M",
        "stage: category of I, II, III",
        "smokes: boolean, 1 for Y, and whether it is missing",
        "seen: date, and whether it is missing",
        "missing values: age 25 %, smokes 25 %, seen 25 %",
        "left out: note",
        "class 1, the positive one: label = 1",
    ]
    frame, columns = table._frame(tmp_path / name)
    x, others = encoded(frame, columns, "ward")
    age, smokes, seen = x[:, 0], x[:, 7], x[:, 9]
    assert not others and columns.features[:2] == ["age", "age missing"]
    assert np.array_equal(age, [60, 70, np.nan, 80], equal_nan=True) and x[:, 1].tolist() == [0, 0, 1, 0]
    assert x[:, 2:4].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    assert np.array_equal(smokes, [1, 0, np.nan, 1], equal_nan=True)
    assert np.array_equal(seen - 9131, [0, 2, 1, np.nan], equal_nan=True)  # days since 1970


def test_parquet_is_read_as_csv_is(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.read_csv(write_file(tmp_path, WARD), parse_dates=["seen"])
    frame.to_parquet(tmp_path / "ward.parquet")
    columns = infer_columns(frame.drop(columns=["note", "label"]), "ward")
    text, _ = Table(write_file(tmp_path, WARD), leave=["note"])._frame(tmp_path / "ward.csv")
    packed, same = Table(str(tmp_path / "ward.parquet"), leave=["note"])._frame(tmp_path / "ward.parquet")
    assert same.columns == columns.columns
    assert np.array_equal(encoded(text, columns, "a")[0], encoded(packed, columns, "b")[0], equal_nan=True)


def test_codes_and_markers_are_named(tmp_path):
    text = "cp,chol,label\n" + "".join(f"{1 + i % 3}.0,{'?' if i % 2 else 200 + i},{i % 2}\n" for i in range(8))
    table = Table(write_file(tmp_path, text), categories=["cp"], absent=["?"])
    frame, columns = table._frame(tmp_path / "ward.csv")
    assert columns.columns == (Column("cp", "category", ("1", "2", "3")), Column("chol"))
    assert np.isnan(encoded(frame, columns, "t")[0][:, 3]).sum() == 4
    assert Table(write_file(tmp_path, text), take="cp", categories="cp", absent="?").load()[0].x.shape[1] == 3


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (WARD, {"leave": ["weight"]}, "no column 'weight'; it has age, sex.*; set take and leave"),
        (WARD, {"take": ["age"], "leave": ["sex"]}, "take and leave are both given"),
        (WARD, {"categories": ["weight"]}, "categories names 'weight', which is no feature"),
        (WARD, {"first_days": 30}, "first_days = 30 counts from a date; name its column with time"),
        (WARD, {"time": "stage", "leave": ["note"]}, "column 'stage': row 1 holds 'II', no date; write it like"),
        (WARD, {"scaling": "none", "columns": {"columns": []}}, "columns: there are none; name some"),
        (
            "name,label\n" + "".join(f"patient {i},{i % 2}\n" for i in range(80)),
            {},
            r"'name': holds 80 different texts in 80 rows, too many for categories; leave it out with leave=\[name\]",
        ),
        (
            "a,b,label\n1,,0\n2,,1\n",
            {"categories": ["b"]},
            r"'b': holds nothing; leave it out with leave=\[b\]",
        ),
    ],
)
def test_what_a_table_refuses(tmp_path, text, settings, message):
    catch_refusal(lambda: Table(write_file(tmp_path, text), **settings).load(), message)


def test_rows_without_a_label(tmp_path):
    text = make_ward_text() + "99,A,1,t,\n"
    catch_refusal(lambda: Table(write_file(tmp_path, text), key="hospital").load(), "row 25 has no label; fill it in")
    table = Table(write_file(tmp_path, text), key="hospital", unlabelled="leave")
    train, test = table.load()
    assert len(train) + len(test) == 24 and train.y.dtype == np.int64
    assert "left out: 1 of 25 rows, which have no label" in table.described()


def test_units_are_checked_by_ranges(tmp_path):
    columns = {"columns": [{"column": "age", "range": [0, 50]}], "leave": ["kind", "dose", "hospital"]}
    catch_refusal(
        lambda: Table(write_file(tmp_path, make_ward_text()), columns=columns).load(),
        "column 'age': row 22 holds 51, and 3 of 24 rows are not in 0 to 50; look at the unit, and correct",
    )


def test_a_column_that_is_missing_or_new_is_refused(tmp_path):
    columns = {"columns": [{"column": "age"}], "leave": ["dose", "hospital"]}
    catch_refusal(
        lambda: Table(write_file(tmp_path, make_ward_text()), columns=columns).load(),
        "column 'kind' is new: it is none of",
    )
    columns = {"columns": [{"column": "age"}, {"column": "weight"}], "leave": ["kind", "dose", "hospital"]}
    catch_refusal(
        lambda: Table(write_file(tmp_path, make_ward_text()), columns=columns).load(),
        "no column 'weight', which the sites agr",
    )


# Filling up and scaling


def test_a_participant_fills_up_and_scales_by_its_own_training_rows():
    columns = Columns((Column("a"), Column("b", "category", ("u", "v")), Column("c", "boolean", ("N", "Y"))))
    nan = np.nan
    x = np.array([[1.0, 1, 0, 1], [3, nan, nan, 1], [nan, 0, 1, nan], [8, 0, 1, 0]])
    fitted = Preparation.fitted(x, columns, "site")
    deviation = np.std([1, 3, 8])
    assert fitted.fill.tolist() == [3, 0, 1, 1] and fitted.mean.tolist() == [4, 0, 0, 0]
    assert np.allclose(fitted.deviation, [deviation, 1, 1, 1])
    seen = fitted.apply(x)
    assert np.allclose(seen[:, 0], (np.array([1, 3, 3, 8]) - 4) / deviation, atol=1e-6)
    assert np.allclose(seen[:, 1:], [[1, 0, 1], [0, 1, 1], [0, 1, 1], [0, 1, 0]], atol=1e-6)


def test_columns_of_which_a_participant_has_nothing():
    columns = Columns((Column("a", mean=5.0, deviation=2.0), Column("b", "category", ("u", "v"), missing=True)))
    x = np.array([[np.nan, np.nan, np.nan, 1.0]] * 3)
    for scaling, mean in (("site", 0.0), ("federation", 5.0)):
        fitted = Preparation.fitted(x, columns, scaling)
        assert fitted.fill.tolist() == [mean, 0, 0, 0]
        assert np.allclose(fitted.apply(x), [0, 0, 0, 1])


def test_a_preparation_survives_its_file():
    columns = Columns((Column("a"), Column("b", "ordinal", ("low", "high"))), label="y", absent=("?",))
    fitted = Preparation.fitted(np.array([[1.0, 0], [2, 1], [4, 1]]), columns, "site")
    again = Preparation.of(json.loads(json.dumps(fitted.to_dict())), "test")
    assert again.columns == columns
    for name in ("fill", "mean", "deviation"):
        assert np.array_equal(getattr(again, name), getattr(fitted, name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fill": [1.0]}, "fill should be 2 numbers"),
        ({"mean": ["a", 1]}, "mean should be numbers"),
        ({"deviation": [0.0, 1.0]}, "a deviation is not above 0"),
        ({"fill": [1.0, float("nan")]}, "fill should be 2 numbers"),
        ({"columns": 3}, "columns"),
    ],
)
def test_damaged_preparations(changes, message):
    columns = Columns((Column("a"), Column("b")))
    whole = Preparation.fitted(np.eye(2), columns, "site").to_dict()
    catch_refusal(lambda: Preparation.of({**whole, **changes}, "test"), message)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_nothing_missing_is_left_and_scaled_numbers_are_standard(data):
    n = data.draw(st.integers(1, 30))
    values = data.draw(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=n, max_size=n))
    x = np.array([[np.nan if v is None else v] for v in values])
    seen = Preparation.fitted(x, Columns((Column("a"),)), "site").apply(x).astype(np.float64)
    assert np.isfinite(seen).all()
    there = seen[~np.isnan(x[:, 0]), 0]
    if len(there) and np.ptp(x[~np.isnan(x[:, 0])]) > 1e-3:
        assert abs(there.mean()) < 1e-3 and abs(there.std() - 1) < 1e-3


# What sites agree on


def test_pooled_mean_and_deviation_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    parts = [rng.normal(i, 1 + i, n) for i, n in enumerate((3, 40, 7))]
    mean, deviation = pooled((len(p), p.mean(), p.std()) for p in parts)
    every = np.concatenate(parts)
    assert np.allclose((mean, deviation), (every.mean(), every.std()))


def test_sites_agree(tmp_path):
    first, other = (
        make_ward_text(8),
        "age,kind,dose,hospital,label\n" + "".join(f"{50 + i},C,2,u,{i % 2}\n" for i in range(16)),
    )
    tables = [
        Table(write_file(tmp_path, text, f"{i}.csv"), leave=["hospital"]) for i, text in enumerate((first, other))
    ]
    assert {(c.rows, c.mean, c.deviation) for table in tables for c in table.own_columns(4).columns} == {
        (0, None, None)
    }
    own = [table.own_columns(4, scale=True) for table in tables]
    assert own[0].columns[0].rows == 6 and own[0].columns[1].rows == 0  # of 8, two are for testing
    both = agreed({"s": own[0], "u": own[1]})
    age, kind, _ = both.columns
    ages = np.concatenate([table.load()[0].x[:, 0] for table in tables])
    assert age.rows == 18 and np.allclose((age.mean, age.deviation), (ages.mean(), ages.std()))
    assert kind.categories == ("A", "B", "C") and both.label == "label" and both.leave == ("hospital",)
    assert Columns.of(json.loads(json.dumps(both.to_dict()))) == both
    rare = Table(write_file(tmp_path, first), leave=["hospital"]).own_columns(5)
    assert rare.columns[1].categories == ()  # four rows each
    catch_refusal(
        lambda: agreed({"s": rare}), "'kind': no site has a category of enough rows; let all sites leave it out"
    )


def scaled_column(rows: int, mean: float, deviation: float, **more) -> Columns:
    return Columns((Column("age", rows=rows, mean=mean, deviation=deviation, **more),))


HONEST = {"a": scaled_column(40, 60, 10), "b": scaled_column(90, 66, 14), "c": scaled_column(8, 58, 3)}


def test_one_file_s_rows_are_at_most_half_of_all():
    """A liar with 999,999,000 rows had the scale for itself; it has the weight of all others together now."""
    liar = scaled_column(999_999_000, 120, 100)
    (age,) = agreed({**HONEST, "liar": liar}).columns
    assert (age.mean, age.deviation) == pytest.approx(
        pooled([(40, 60, 10), (90, 66, 14), (8, 58, 3), (138, 120, 100)]), rel=1e-12
    )
    assert age.rows == 999_999_138
    (unbounded,) = agreed(HONEST).columns  # 90 of 138 are bounded too: b counts as a and c do
    assert unbounded.mean == pytest.approx((40 * 60 + 48 * 66 + 8 * 58) / 96)
    (pair,) = agreed({"a": HONEST["a"], "b": HONEST["b"]}).columns  # of two there is no majority to protect
    assert pair.mean == pytest.approx((40 * 60 + 90 * 66) / 130)


@pytest.mark.parametrize("mean, deviation", [(60, 1e8), (1e8, 10), (-1e8, 0)])
def test_a_file_far_from_all_others_is_refused_by_its_name(mean, deviation):
    """Ages of 40 and 80 were the same on such a scale."""
    liar = scaled_column(5, mean, deviation)
    says = r"columns: 'age': liar has mean .*, far from all others; correct its file, or agree on a range in all files"
    catch_refusal(lambda: agreed({**HONEST, "liar": liar}), says)


def test_a_scale_lies_in_the_agreed_range():
    """So a liar moves a mean and a deviation by no more than the range allows."""
    scaled_column(5, 60, 60, range=(0, 120))
    catch_refusal(lambda: scaled_column(5, 121, 1, range=(0, 120)), "'age': mean = 121 and deviation = 1 cannot be of")
    catch_refusal(
        lambda: scaled_column(5, 60, 61, range=(0, 120)), "'age': mean = 60 and deviation = 61 cannot be of numb"
    )
    far = {"a": scaled_column(5, 1, 0.1, range=(0, 1e6)), "b": scaled_column(5, 2, 0.1, range=(0, 1e6))}
    agreed({**far, "c": scaled_column(5, 9e5, 0, range=(0, 1e6))})  # as agreed, however far


def test_an_error_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "hospital-7.json"
    path.write_text('{"columns": [{"column": "age", "range": [0, 120], "mean": 500, "deviation": 1, "rows": 9}]}')
    catch_refusal(lambda: Columns.read(path), r"hospital-7\.json: columns: 'age': mean = 500")


def test_files_of_constants_agree():
    agreed({name: scaled_column(5, mean, 0) for name, mean in (("a", 0), ("b", 0), ("c", 1))})


def test_a_column_of_zeros_and_a_constant_one_survive_their_file():
    columns = Columns((Column("a"), Column("b"), Column("c", range=(0, 0))), positive=0)
    measured = columns.measured(np.array([[-1.0, 5, 0], [1, 5, 0], [0, 5, 0]]))
    assert [c.mean for c in measured.columns] == [0, 5, 0] and measured.columns[1].deviation == 0
    assert Columns.of(json.loads(json.dumps(measured.to_dict()))) == measured


def test_the_order_of_a_study_s_own_classes_and_categories_stays():
    study = Columns((Column("stage", "category", ("low", "high")),), classes=("well", "ill"))
    both = agreed({"s": study, "t": study})
    assert both.classes == ("well", "ill") and both.columns[0].categories == ("low", "high")
    found = agreed({"s": study, "t": replace(study, classes=("ill", "well", "dead"))})
    assert found.classes == ("dead", "ill", "well")


def test_what_sites_must_agree_on():
    number, text = Columns((Column("a"),)), Columns((Column("a", "category", ("u",)),))
    catch_refusal(
        lambda: agreed({"s": number, "t": text}), "'a': kind is 'number' at s and 'category' at t; agree on one"
    )
    catch_refusal(lambda: agreed({"s": number, "t": Columns((Column("b"),))}), "'a' is at s and not at t; add it there")
    more = Columns((Column("a"), Column("b")))
    catch_refusal(lambda: agreed({"s": number, "t": more}), "'b' is at t and not at s")
    unit = Columns((Column("a", range=(0, 9)),))
    catch_refusal(lambda: agreed({"s": number, "t": unit}), r"'a': range is None at s and \(0, 9\) at t")
    in_grams, in_ounces = (Columns((Column("a", unit=of),)) for of in ("g", "oz"))
    catch_refusal(lambda: agreed({"s": in_grams, "t": in_ounces}), "'a': unit is 'g' at s and 'oz' at t; agree on one")
    catch_refusal(lambda: agreed({"s": in_grams, "t": number}), "'a': unit is 'g' at s and None at t; agree on one")
    both = agreed({"s": in_grams, "t": in_grams})
    assert Columns.of(both.to_dict()).columns[0].unit == "g" and both.lines == ["a: number, in g"]
    for wrong in ({"unit": 3}, {"unit": ""}, {"unit": "x" * 501}, {"unit": "g", "kind": "category"}):
        catch_refusal(lambda wrong=wrong: Column("a", **wrong), "'a': unit = ")


def test_a_real_site_needs_agreed_categories(tmp_path, monkeypatch):
    path, config = write_file(tmp_path, make_ward_text()), DataConfig()
    monkeypatch.setenv("CFL_DATA", path)
    catch_refusal(
        lambda: config.host(SiteData(), "s", 0, 1), "the sites must agree on the categories of 'kind'; let each"
    )
    columns = Table(path).own_columns(5).to_dict()
    (one,) = config.host(SiteData(columns=columns), "s", 0, 1)
    assert one.train.x.shape[1] == 6 and np.isfinite(one.train.x).all() and one.preparation is not None
    (tmp_path / "agreed.json").write_text(json.dumps(columns))
    monkeypatch.setenv("CFL_COLUMNS", str(tmp_path / "agreed.json"))
    (same,) = config.host(SiteData(), "s", 0, 1)
    assert np.array_equal(same.train.x, one.train.x)
    other = {**columns, "absent": ["?"]}
    catch_refusal(
        lambda: config.host(SiteData(columns=other), "s", 0, 1), "the job's columns are not those of CFL_COLUMNS"
    )


def test_a_common_scale_is_that_of_all_training_rows(tmp_path):
    path = write_file(tmp_path, make_ward_text())
    for scaling in ("site", "federation"):
        table = Table(path, key="hospital", leave=["kind", "dose"], scaling=scaling)
        config = DataConfig(partition="natural", min_samples=1).resolved(table)
        s, t = config.host(table, "local", 0, 1)
        together = np.concatenate((s.train.x, t.train.x)).astype(np.float64)
        if scaling == "federation":
            assert abs(together.mean()) < 1e-6 and abs(together.std() - 1) < 1e-6
            assert s.train.x.mean() < -0.5 and t.train.x.mean() > 0.2
        else:
            assert abs(s.train.x.mean()) < 1e-6 and abs(t.train.x.mean()) < 1e-6
    catch_refusal(
        lambda: DataConfig().host(Table(path, leave=["kind", "dose", "hospital"], scaling="federation"), "s", 0, 1),
        "scaling = 'federation' needs a mean and deviation of all sites",
    )


# Splits


def test_each_owner_s_rows_are_split(tmp_path):
    test = Table(write_file(tmp_path, make_ward_text()), key="hospital").load()[1]
    assert {k: int((test.key == k).sum()) for k in "st"} == {"s": 2, "t": 4}
    assert [int(test.y[test.key == k].sum()) for k in "st"] == [1, 2]


def test_the_latest_rows_test():
    x, key = np.arange(7.0)[:, None], np.array(["s", "t", "s", "t", "s", "t", "t"])
    samples = Samples(x, np.array([0, 1] * 3 + [0]), key)
    when = np.array([400.0, 0, 0, 900, 364, 100, 365])
    train, test = split_by_time(samples, when, 0.25, None, "t")
    assert sorted(test.x[:, 0]) == [0, 3]  # one of three, one of four
    train, test = split_by_time(samples, when, 0.25, 365, "t")
    assert sorted(train.x[:, 0]) == [1, 2, 4, 5] and sorted(test.x[:, 0]) == [0, 3, 6]
    catch_refusal(
        lambda: split_by_time(samples, np.where(x[:, 0] == 3, np.nan, when), 0.25, None, "t"), "sample 3 has no d"
    )


def test_validation_samples_are_never_trained_on_or_tested(tmp_path):
    table = Table(write_file(tmp_path, make_ward_text()), key="hospital", leave=["kind", "dose"], scaling="site")
    seen = {}
    for on in ("test", "validation"):
        config = DataConfig(partition="natural", min_samples=1, validation=0.25, measured_on=on).resolved(table)
        s, t = config.host(table, "local", 0, 1)
        seen[on] = [{*one.train.x[:, 0].tolist()} for one in (s, t)], [{*one.test.x[:, 0].tolist()} for one in (s, t)]
    assert seen["test"][0] == seen["validation"][0]
    for i, (train, test, validation) in enumerate(zip(seen["test"][0], seen["test"][1], seen["validation"][1])):
        assert not train & test and not train & validation and not test & validation
        assert len(train) + len(test) + len(validation) == (8, 16)[i]
    catch_refusal(
        lambda: DataConfig(measured_on="validation"), "no samples are set aside for it; give validation a share"
    )


# Owners


def test_natural_takes_all_owners_and_says_who_is_too_small(tmp_path):
    text = make_ward_text() + "90,A,1,tiny,1\n91,B,1,tiny,0\n"
    table = Table(write_file(tmp_path, text), key="hospital", leave=["kind", "dose"])
    config = DataConfig(partition="natural", min_samples=5)
    named = config.resolved(table)
    assert named.participants == 2 and named.names == named.owners == ["s", "t"]
    assert [one.name for one in named.host(table, "local", 0, 1)] == named.names_at("site", 0, 1) == ["s", "t"]
    assert named.names_at("site", 1, 2) == ["t"] and replace(config, participants=2).resolved(table) == named
    catch_refusal(
        lambda: named.host(Table(write_file(tmp_path, text.replace(",s,", ",u,")), key="hospital"), "x", 0, 1), "owners"
    )
    for owners in (["s"], ["s", "S"], ["s", "../t"], ["s", 3]):
        catch_refusal(lambda owners=owners: replace(named, owners=owners), "should be the names of all participants")
    assert config.described(table)[-1] == (
        "natural: 2 of 3 keys take part; 1 have fewer than min_samples = 5 training samples, and their 2 samples stay "
        "unused"
    )
    report = config.report(table)
    assert report.names == ["s", "t"] and report.train_unused + report.test_unused == 2
    everyone = DataConfig(partition="natural", min_samples=1)
    assert everyone.described(table)[-1].endswith("1 have no test sample: they train, and are not measured")
    assert everyone.resolved(table).participants == 3
    catch_refusal(
        lambda: DataConfig(partition="natural", min_samples=99).resolved(table), "none of 3 keys has 99 training"
    )


def test_groups_of_owners_are_the_truth(tmp_path):
    table = Table(write_file(tmp_path, make_ward_text()), key="hospital", group="kind", leave=["dose"])
    catch_refusal(
        lambda: DataConfig(partition="natural").report(table), "key 't' are of 2 groups; name a column that has one"
    )
    text = make_ward_text().replace("A,", "x,").replace("B,", "x,")
    table = Table(write_file(tmp_path, text), key="hospital", group="kind", leave=["dose"])
    assert DataConfig(partition="natural", min_samples=1).report(table).truth == [0, 0]


def test_a_sample_s_key_and_group_stay_with_it():
    samples = Samples(np.zeros((3, 1)), np.arange(3), np.array(["a", "b", "c"]), np.array([1, 2, 2]))
    both = samples.take(np.array([2, 0])).joined(samples.take(np.array([1])))
    assert both.key.tolist() == ["c", "a", "b"] and both.group.tolist() == [2, 1, 2]
    assert replace(samples, group=None).take(np.array([0])).group is None


# Names of classes


def test_sites_agree_on_the_names_of_classes(tmp_path, monkeypatch):
    """A site without a class would number the others as other sites number it."""
    rows = {"a": ["benign", "malign"] * 6, "b": ["malign"] * 11 + ["unsure"]}
    paths = {
        s: write_file(tmp_path, "x,dx\n" + "".join(f"{i},{dx}\n" for i, dx in enumerate(own)), f"{s}.csv")
        for s, own in rows.items()
    }
    catch_refusal(
        lambda: DataConfig().host(Table(paths["b"], label="dx"), "b", 0, 1), "agree on the categories of 'dx'"
    )
    own = {s: Table(path, label="dx").own_columns(5) for s, path in paths.items()}
    both = agreed(own)
    assert own["b"].classes == ("malign",) and both.classes == ("benign", "malign")  # one row is unsure
    catch_refusal(
        lambda: Table(paths["b"], columns=both.to_dict()).load(),
        "label 'unsure' is none of the 2 classes that were agreed on .benign, malign.; correct it",
    )
    agreed_on = replace(both, classes=("benign", "malign", "unsure")).to_dict()
    monkeypatch.setenv("CFL_DATA", paths["b"])
    (one,) = DataConfig().host(SiteData(columns=agreed_on), "b", 0, 1)
    assert {*np.concatenate((one.train.y, one.test.y))} == {1, 2}


def test_a_row_without_an_owner_is_refused(tmp_path):
    catch_refusal(
        lambda: Table(write_file(tmp_path, make_ward_text() + "9,A,1,,1\n"), key="hospital").load(),
        "row 25 has no owner",
    )
