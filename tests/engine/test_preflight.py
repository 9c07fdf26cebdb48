# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What is checked of runs before the first of them starts."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.data import Digits
from cfl_flare.engine import preflight
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.methods import IFCA, FedAvg, WeCFL
from cfl_flare.models import Logistic
from cfl_flare.training.settings import TrainSettings

RUN: dict[str, Any] = {"data": Digits(), "participants": 6, "partition": "iid", "num_rounds": 2, "min_clients": 1}
MODEL = Logistic((1, 8, 8), 10)


def test_all_methods_are_held_against_the_model_before_any_of_them_builds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = IFCA.start
    monkeypatch.setattr(IFCA, "start", lambda self, *args: started.append(self) or start(self, *args))
    plans = [RunPlan.of(method=m, model=MODEL, **RUN) for m in (IFCA(k=2), WeCFL(k=2, cluster_on="backbone"))]
    with pytest.raises(ConfigError, match="method wecfl: cluster_on = 'backbone'"):
        check_plans(plans)
    assert not started
    check_plans(plans[:1])
    assert len(started) == 1


def test_each_run_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from cfl_flare.flare import ClusteredRecipe

    calls = []
    layout = preflight._layout
    monkeypatch.setattr(preflight, "_layout", lambda module: calls.append(module) or layout(module))
    ClusteredRecipe(method=FedAvg(), model=MODEL, **RUN)
    assert len(calls) == 1
    ClusteredRecipe.of(RunPlan.of(method=FedAvg(), model=MODEL, **RUN))  # it has been
    assert len(calls) == 1


def test_a_share_above_one_can_never_be_reached() -> None:
    with pytest.raises(ConfigError, match=r"accuracy is a share in 0\.\.1 here; write 0\.8 for 80 per cent"):
        check_plans([RunPlan.of(method=FedAvg(), model=MODEL, **RUN, stop_cond="accuracy >= 80")])
    check_plans([RunPlan.of(method=FedAvg(), model=MODEL, **RUN, stop_cond="loss <= 80")])


@pytest.mark.parametrize("name", ["pooled_auroc", "pooled_macro_f1"])
def test_histograms_of_scores_are_asked_for_where_they_decide_and_where_there_are_classes(name: str) -> None:
    more: dict[str, Any] = {**RUN, "key_metric": name}
    with pytest.raises(ConfigError, match=f"names {name}, which needs histograms of scores; set score_bins to 200"):
        check_plans([RunPlan.of(method=FedAvg(), model=MODEL, **more)])
    check_plans([RunPlan.of(method=FedAvg(), model=MODEL, **more, training=TrainSettings(score_bins=200))])
    flat = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    with pytest.raises(ConfigError, match="score_bins = 200 needs a model that ends in a fully connected layer"):
        check_plans([RunPlan.of(method=FedAvg(), model=flat, **RUN, training=TrainSettings(score_bins=200))])
