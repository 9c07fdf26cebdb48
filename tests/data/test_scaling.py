# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a table's numbers are scaled where hospitals have few rows: nothing is divided by next to nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.core.config import build, marked
from cfl_flare.data import DataConfig, DataSource, SiteData
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.hospitals import FOLDER, STROKE, STROKE_COLUMNS, Heart
from cfl_flare.data.preparation import CLIP, Preparation, Scaling
from cfl_flare.data.summary import clipped_line
from cfl_flare.data.table import Table
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import FedAvg
from cfl_flare.training.settings import TrainSettings
from tests.loop import run_loop

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


def losses(source: Table) -> tuple[float, float]:
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


class Alone(Table):
    """Hospitals that share no statistics."""

    def preparation(self, train: Any, federation: Any = None) -> Preparation:
        """As at a real site."""
        return super().preparation(train)


@pytest.mark.parametrize("kind", [Table, Alone])
def test_hospitals_of_a_few_patients_learn_more_than_the_share_of_deaths(tmp_path: Path, kind: type[Table]) -> None:
    """Each scaled by its own deviation, they learn less: 0.38 where the share alone has 0.30."""
    path = str(intensive_care(tmp_path / "icu.csv"))
    fedavg, alone = losses(kind(path, key="hospital"))
    assert fedavg < alone - 0.003
    if kind is Table:
        worse, _ = losses(Table(path, key="hospital", scaling="site"))
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
    for kind in (Table, Alone):
        source = kind(str(tmp_path / "s.csv"), "dependent", "HOSPNUM", columns=STROKE_COLUMNS.to_dict())
        fedavg, alone = losses(source)
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


def test_a_job_says_its_scaling_and_an_older_one_means_what_it_meant(tmp_path: Path) -> None:
    path = str(intensive_care(tmp_path / "icu.csv"))
    named = {"class_path": "cfl_flare.data.table.Table", "args": {"path": path, "key": "hospital"}}
    model = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [5], "num_classes": 2}}
    for data in (Table(path, key="hospital"), named, SiteData(), Heart()):
        plan = RunPlan.of(method="fedavg", model=model, data=data, num_rounds=1, name="n", min_clients=1)
        assert plan.source["args"]["scaling"] == "auto"
        spec = marked(plan.source)
        assert build(spec, DataSource, "data").of_job(spec).scaling == "auto"
    older = marked(named)
    assert build(older, DataSource, "data").of_job(older).scaling == "site"
