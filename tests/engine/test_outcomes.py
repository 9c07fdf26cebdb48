# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Outcomes of any unit: scaled where models learn, in their own unit in metrics and models; and divergence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cfl_flare import load_model
from cfl_flare.core.errors import ConfigError, DivergedError
from cfl_flare.data.sources import SiteData
from cfl_flare.data.table import Table
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.methods import FedAvg
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.tasks import Regression

HOURS = 24.0
MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1], "num_classes": 1}}


@pytest.fixture
def ward_stays(tmp_path) -> Table:
    """Stays in hours, 10 days for each unit of severity, at two hospitals with 20 and 40 patients."""
    rows = ["severity,los,h"]
    for i in range(60):
        severity = i % 7 + 0.5
        rows.append(f"{severity},{HOURS * 10 * severity},{'a' if i < 20 else 'b'}")
    path = tmp_path / "ward.csv"
    path.write_text("\n".join(rows) + "\n")
    return Table(path=str(path), label="los", key="h")


def plan_ward_run(source, **settings) -> RunPlan:
    training = {"task": "regression", "measures": ("rmse", "r2"), **settings.pop("training", {})}
    dealt = {"participants": 2, "partition": "natural"}
    named = {"min_clients": 1, "num_rounds": 3, **dealt, **settings}
    return RunPlan.of(method=FedAvg(), model=MODEL, data=source, training=training, **named)


def test_outcomes_are_scaled_by_all_training_samples(ward_stays):
    """The mean and deviation are those of both hospitals' training rows together."""
    train, _ = ward_stays.load()
    assert plan_ward_run(ward_stays).training.built_task() == Regression(mean=train.y.mean(), deviation=train.y.std())
    agreed = {"task": "regression:mean=900,deviation=400"}
    assert plan_ward_run(ward_stays, training=agreed).training.built_task() == Regression(mean=900.0, deviation=400.0)


def test_real_sites_agree_on_the_scale():
    settings = {"participants": None, "partition": None}
    with pytest.raises(ConfigError, match=r"mean and deviation are not given.*\nhint: set task to 'regression:mean=M"):
        plan_ward_run(SiteData(), **settings)
    training = {"task": "regression:mean=10,deviation=12"}
    assert plan_ward_run(SiteData(), training=training, **settings).training.built_task().is_scaled


def test_default_learning_rates_learn_hours(ward_stays, tmp_path):
    """Unscaled, the outcome's size of 120 to 1,560 hours makes the first rounds diverge."""
    server = run_loop(plan_ward_run(ward_stays, num_rounds=20), tmp_path / "run")
    assert min(reported(tmp_path / "run", "served_r2")) > 0.8
    assert server.state.round == 20


def test_models_and_metrics_are_in_hours(ward_stays, tmp_path):
    plan = plan_ward_run(ward_stays, num_rounds=5)
    run_loop(plan, tmp_path / "run")
    module = load_model(tmp_path / "run")
    errors = []
    for data in plan.data.host(ward_stays, "local", 0, 1):
        with torch.no_grad():
            stays = module(torch.from_numpy(data.test.x).float())[:, 0].numpy()
        errors.append(np.abs(stays - data.test.y).mean())
    np.testing.assert_allclose(reported(tmp_path / "run", "served_mae"), errors, rtol=1e-4)
    assert max(errors) > 10  # of hours, not of deviations


def reported(folder: Path, name: str) -> list[float]:
    """What the two participants measured last, in their order."""
    values = load_run(folder).values(name)
    return [values[participant] for participant in ("a", "b")]


def test_divergence_names_the_learning_rate(ward_stays):
    plan = plan_ward_run(ward_stays, training={"lr": 1e6})
    with pytest.raises(DivergedError, match=r"training diverges: 2 of 2 participants(.|\n)*hint: lower the learning"):
        run_loop(plan)
