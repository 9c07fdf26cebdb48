# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Participants of a simulation that are held back from the training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.cli.simulate import Simulation, check_simulation
from cfl_flare.core.errors import ConfigError
from cfl_flare.data import DataConfig, Digits
from cfl_flare.data.summary import participant_names
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.methods import WeCFL

RULE = {"partition": "label_permutation", "groups": 3}
MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}


def test_those_held_back_and_the_others_have_what_they_would_have_had_anyway() -> None:
    plain = DataConfig(12, RULE, seed=3, indicator_samples=2)
    config = replace(plain, unseen=0.25)
    everyone = {d.name: d for d in plain.host(Digits(), "local", 0, 1)}
    seen, unseen = config.host(Digits(), "local", 0, 1), config.newcomers(Digits())
    assert [d.name for d in seen] == config.names
    assert (len(seen), len(unseen)) == (9, 3)
    assert sorted(d.name for d in (*seen, *unseen)) == participant_names(12)
    for one in (*seen, *unseen):
        for split in ("train", "test"):
            np.testing.assert_array_equal(getattr(one, split).x, getattr(everyone[one.name], split).x)
            np.testing.assert_array_equal(getattr(one, split).y, getattr(everyone[one.name], split).y)
        assert one.group == everyone[one.name].group


@pytest.mark.parametrize("sites", [1, 2, 4])
def test_the_sites_share_those_that_train(sites: int) -> None:
    config = DataConfig(12, RULE, unseen=5)
    hosted = [[d.name for d in config.host(Digits(), "site", i, sites)] for i in range(sites)]
    assert [name for names in hosted for name in names] == config.names
    assert max(map(len, hosted)) - min(map(len, hosted)) <= 1


@settings(deadline=None)
@given(participants=st.integers(2, 60), share=st.floats(0.01, 0.5), seed=st.integers(0, 9))
def test_a_share_is_rounded_and_the_seed_alone_decides(participants: int, share: float, seed: int) -> None:
    config = DataConfig(participants, {"partition": "iid"}, seed, unseen=share)
    held = set(participant_names(participants)) - set(config.names)
    assert len(held) == max(1, round(share * participants))
    assert replace(config, unseen=len(held)).names == config.names
    more = replace(config, unseen=len(held) + 1) if len(config.names) > 1 else config
    assert set(more.names) <= set(config.names)


def test_nobody_is_held_back_unless_asked_for() -> None:
    config = DataConfig(12, RULE)
    assert config.names == participant_names(12)
    assert config.newcomers(Digits()) == []
    assert DataConfig().names == []
    with pytest.raises(ConfigError, match="in a simulation only; a site that was not in training joins by 'cfl-flare"):
        DataConfig(unseen=1)


@pytest.mark.parametrize(
    ("unseen", "message"),
    [
        (1.0, r"unseen = 1.0 should be a share in \[0.0, 1.0\) or a count"),
        (-0.1, "unseen = -0.1 should be a share"),
        (float("nan"), "unseen = nan should be a share"),
        (-1, "unseen = -1 should be a share"),
        (12, "unseen = 12 leaves none of 12 participants to train; hold back fewer"),
        (99, "unseen = 99 leaves none"),
        (0.99, "unseen = 0.99 leaves none"),
        (True, "unseen = True should be float | int, not bool"),
    ],
)
def test_refusals(unseen: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(12, RULE, unseen=unseen)


def test_everything_that_counts_participants_counts_those_that_train() -> None:
    run = {"model": MODEL, "data": Digits(), "participants": 8, "partition": RULE, "unseen": 5, "num_rounds": 1}
    with pytest.raises(ConfigError, match="k = 4 is more than the 3 of participants = 8 that train"):
        check_plans([RunPlan.of(method=WeCFL(k=4), **run, min_clients=1)])
    with pytest.raises(ConfigError, match="sample = 4 is more than the 3 of participants = 8 that train"):
        check_plans([RunPlan.of(method=WeCFL(k=2), **run, min_clients=1, sample=4)])
    plan = RunPlan.of(method=WeCFL(k=3), **run, min_clients=1, sample=3)
    check_plans([plan])
    with pytest.raises(ConfigError, match="sites = 4 is more than the 3 of participants = 8 that train"):
        check_simulation(plan, Simulation(sites=4))
    with pytest.raises(ConfigError, match="min_clients = 4 is more than the 3 of participants = 8 that train"):
        ClusteredRecipe(method="fedavg", **run, min_clients=4)
    assert ClusteredRecipe(method="fedavg", **run, min_clients=3).plan.data == DataConfig(8, RULE, unseen=5)
