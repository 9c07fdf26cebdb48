# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""With dp, one patient's row must not change the features of another one's: neither by a missing value nor by scale."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cfl_flare.core.config import describe, marked
from cfl_flare.core.errors import ColumnsError, ConfigError
from cfl_flare.data import DataConfig, SiteData
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.table import Table
from cfl_flare.engine.site import Site
from cfl_flare.methods import FedAvg
from cfl_flare.models import Logistic
from cfl_flare.training.settings import TrainSettings
from tests.helpers import kits

# Ten of 29 patients lack each value. The last patient decides the median of ages, and the most frequent words.
AGES = [20] * 10 + [80] * 9 + [""] * 10
SMOKES = ["no"] * 10 + ["yes"] * 9 + [""] * 10
STAGES = ["I"] * 10 + ["II"] * 9 + [""] * 10
LAST = [(80, "yes", "II")] * 2
AGREED = (
    Column("age", mean=50.0, deviation=10.0),
    Column("smokes", "boolean", ("no", "yes")),
    Column("stage", "category", ("I", "II", "III")),
)
PRIVATE = TrainSettings(lr=0.1, local_steps=1, dp="epsilon=3")


def write_table(path, last=()):
    rows = [*zip(AGES, SMOKES, STAGES), *last]
    lines = [f"{age},{smokes},{stage},{number % 2},train" for number, (age, smokes, stage) in enumerate(rows)]
    lines += ["50,no,I,0,test", "50,no,I,1,test"]
    path.write_text("\n".join(["age,smokes,stage,label,split", *lines]) + "\n")
    return path


def features_of(path, training, columns=AGREED, **settings):
    """The features of a site's training rows, as its model sees them, in the table's order."""
    site = Site(FedAvg(), lambda: Logistic((5,), 2), training, seed=0)
    agreed = None if columns is None else Columns(columns, label="label").to_dict()
    table = Table(path=str(path), columns=agreed, split="split", **settings)
    with site.preparing():
        site.add(DataConfig().host(table, "ward", 0, 1))
    return site.hosted["ward"].train.x


@pytest.mark.parametrize("scaling", ["auto", "federation", "none"])
def test_missing_values_depend_on_no_row(tmp_path, scaling):
    columns = AGREED
    one = features_of(write_table(tmp_path / "one.csv"), PRIVATE, columns, scaling=scaling)
    other = features_of(write_table(tmp_path / "other.csv", LAST), PRIVATE, columns, scaling=scaling)
    np.testing.assert_array_equal(one, other[: len(one)])


def test_a_missing_value_is_the_agreed_mean(tmp_path):
    x = features_of(write_table(tmp_path / "ward.csv"), PRIVATE)
    np.testing.assert_array_equal(x[-1], [0, 0.5, 0, 0, 0])  # (50 - 50) / 10, half of no and yes, no stage
    np.testing.assert_array_equal(x[0], [-3, 0, 1, 0, 0])  # (20 - 50) / 10


def test_without_dp_one_row_moves_the_others(tmp_path):
    """The attack itself: the median and the most frequent word of the site's rows."""
    one = features_of(write_table(tmp_path / "one.csv"), TrainSettings())
    other = features_of(write_table(tmp_path / "other.csv", LAST), TrainSettings())
    np.testing.assert_array_equal(one[-1], [-3, 0, 1, 0, 0])
    np.testing.assert_array_equal(other[len(one) - 1], [3, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("columns", "settings", "reason"),
    [
        (None, {}, "the sites agreed on no columns"),
        ((Column("age"), *AGREED[1:]), {}, "column 'age' has no agreed mean"),
        (AGREED, {"scaling": "site"}, "scaling = 'site': with dp, no row may decide"),
    ],
)
def test_dp_without_agreed_columns_is_refused(tmp_path, columns, settings, reason):
    path = write_table(tmp_path / "ward.csv")
    with pytest.raises(ColumnsError, match=reason):
        features_of(path, PRIVATE, columns, **settings)


def test_a_private_site_takes_no_table_that_was_fitted_to_rows(tmp_path):
    agreed = Columns(AGREED, label="label").to_dict()
    table = Table(path=str(write_table(tmp_path / "ward.csv")), columns=agreed, leave=["split"])
    site = Site(FedAvg(), lambda: Logistic((5,), 2), PRIVATE, seed=0)
    people = DataConfig().host(table, "ward", 0, 1)
    with pytest.raises(ConfigError, match="filled up and scaled by agreed columns"):
        site.add(people)


@pytest.mark.parametrize("agreed", [True, False])
def test_a_real_site_refuses_the_job(tmp_path, monkeypatch, agreed):
    columns = AGREED if agreed else (Column("age"), *AGREED[1:])
    (tmp_path / "columns.json").write_text(json.dumps(Columns(columns, label="label", split="split").to_dict()))
    monkeypatch.setenv("CFL_DATA", str(write_table(tmp_path / "ward.csv")))
    monkeypatch.setenv("CFL_COLUMNS", str(tmp_path / "columns.json"))
    training = {"lr": 0.1, "local_steps": 1, "dp": {"epsilon": 3.0, "delta": 1e-5}}
    model = describe(Logistic((5,), 2), "model")
    site = kits.make_executor(SiteData(), training=marked(training), model=marked(model))
    job = {**kits.JOB, "training": training, "model": model}
    said = kits.answer(site, kits.ask_check_in(job=job), kits.write_kit(tmp_path / "kit", True))
    assert ("participants" in said) == agreed
    assert said.get("error") == (None if agreed else "columns")
