# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAdam, FedYogi and FedAdagrad: steps by hand, on which models they act, and what a run remembers of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.partial_sums import added_up
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.server_optimizer import PREFIX, ServerOptimizer
from cfl_flare.engine.task import Result
from cfl_flare.methods import (
    CAM,
    CFL,
    CGPFL,
    FLHC,
    IFCA,
    Ensemble,
    FedAC,
    FedAvg,
    FedCUAU,
    FedPer,
    Local,
    Method,
    Participant,
    ServerState,
    WeCFL,
    build_method,
)
from cfl_flare.models import MLP
from cfl_flare.results.store import Store, state_of
from cfl_flare.training.settings import TrainSettings
from tests.engine.test_robust import play_moves
from tests.helpers.loop import run_loop
from tests.helpers.play import MODEL, play_rounds
from tests.helpers.tiny import coin, make_spread_start, start_server, update

PEOPLE = [Participant("a", "one", 3), Participant("b", "two", 1)]
ETA, TAU = 0.5, 0.1


def start_optimizer_server(
    method: Method, rule: str | None = "adam", people: list[Participant] = PEOPLE, **more: Any
) -> Server:
    own = {} if rule is None else {"server_optimizer": rule, "server_lr": ETA, "server_tau": TAU}
    settings = {"num_rounds": 9, "clip_norm": 0, **own, **more}
    return start_server(method, people, make_spread_start, **settings)


def step_by_hand(rule: str, deltas: list[float], beta1: float = 0.9, beta2: float = 0.99, x: float = 0.0) -> float:
    """Reddi et al. 2021, Alg. 2, one parameter."""
    m, v = 0.0, TAU**2
    for delta in deltas:
        m = beta1 * m + (1 - beta1) * delta
        if rule == "adagrad":
            v = v + delta**2
        elif rule == "yogi":
            v = v - (1 - beta2) * delta**2 * (1 if v > delta**2 else -1 if v < delta**2 else 0)
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        x += ETA * m / (math.sqrt(v) + TAU)
    return x


def test_a_first_step_in_numbers() -> None:
    # Delta = (3 * 1 + 1 * (-1)) / 4 = 0.5, m = 0.05; v of adam 0.0099 + 0.0025, of yogi 0.01 + 0.0025, of adagrad 0.26.
    for rule, v in (("adam", 0.0124), ("yogi", 0.0125), ("adagrad", 0.26)):
        running = start_optimizer_server(FedAvg(), rule)
        play_moves(running, {"a": (1.0, 0.0), "b": (-1.0, 0.0)})
        expected = 0.5 * 0.05 / (math.sqrt(v) + 0.1)
        assert running.state.bank["global"].vector == pytest.approx([expected, 0.0], abs=1e-7), rule
        assert step_by_hand(rule, [0.5]) == pytest.approx(expected)


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.0, 0.5)])
@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
def test_rounds_with_unequal_counts(rule: str, betas: tuple[float, float]) -> None:
    own = {"server_beta1": betas[0]} | ({} if rule == "adagrad" else {"server_beta2": betas[1]})
    running = start_optimizer_server(FedAvg(), rule, **own)
    for a, b in ((1.0, -1.0), (0.1, 0.5), (-2.0, 2.0), (0.0, 0.01)):  # means 0.5, 0.2, -1, 0.0025
        play_moves(running, {"a": (a, 2 * a), "b": (b, 2 * b)})
    deltas = [0.5, 0.2, -1.0, 0.0025]
    expected = [step_by_hand(rule, [f * d for d in deltas], *betas) for f in (1, 2)]
    assert running.state.bank["global"].vector == pytest.approx(expected, abs=1e-6)


def test_a_model_that_did_not_move_keeps_its_moments_and_its_place() -> None:
    running = start_optimizer_server(IFCA(k=2))
    play_moves(running, {"a": (1.0, 0.0), "b": (2.0, 0.0)}, {"a": 0, "b": 1})
    other = running.state
    play_moves(running, {"a": (3.0, 0.0), "b": (1.0, 0.0)}, {"a": 0, "b": 0})  # mean 2.5
    for name, array in other.arrays.items():
        assert np.array_equal(running.state.arrays[name], array) == name.endswith("cluster-1")
    assert running.state.bank["cluster-1"] is other.bank["cluster-1"]
    play_moves(running, {"a": (0.0, 0.0), "b": (-1.0, 0.0)}, {"a": 0, "b": 1})
    assert running.state.bank["cluster-0"].vector[0] == pytest.approx(step_by_hand("adam", [1.0, 2.5]), abs=1e-6)
    assert running.state.bank["cluster-1"].vector[0] == pytest.approx(
        step_by_hand("adam", [2.0, -1.0], x=10.0), abs=1e-5
    )


def test_models_that_a_round_makes_are_left_as_they_are_and_the_common_one_follows_the_clusters() -> None:
    running = start_optimizer_server(WeCFL(k=2, starts=1))
    play_moves(running, {"a": (1.0, 0.0), "b": (-3.0, 0.0)})
    assert {slot: float(model.vector[0]) for slot, model in running.state.bank.items()} == {
        "global": 0.0,  # (3 * 1 - 3) / 4
        "cluster-0": 1.0,
        "cluster-1": -3.0,
    }
    assert not running.state.arrays
    play_moves(running, {"a": (0.5, 0.0), "b": (0.2, 0.0)})
    first, second = step_by_hand("adam", [0.5], x=1.0), step_by_hand("adam", [0.2], x=-3.0)
    bank = {slot: float(model.vector[0]) for slot, model in running.state.bank.items()}
    assert bank == pytest.approx({"cluster-0": first, "cluster-1": second, "global": 0.75 * first + 0.25 * second})
    assert {name.rpartition(".")[2] for name in running.state.arrays} == {"cluster-0", "cluster-1"}


def test_a_robust_statistic_is_what_it_steps_by() -> None:
    people = [Participant(name, f"site-{name}", n) for name, n in (("a", 1), ("b", 2), ("c", 5))]
    running = start_optimizer_server(FedAvg(), people=people, aggregation="median")
    play_moves(running, {"a": (1.0, 0.0), "b": (2.0, 0.0), "c": (900.0, 0.0)})
    assert running.state.bank["global"].vector[0] == pytest.approx(step_by_hand("adam", [2.0]), abs=1e-6)


def test_sums_of_a_site_lead_to_the_same_step() -> None:
    """Of a and c, with 1 and 5 samples, the site sends one mean, (1 + 10) / 6; with b it is (11 + 4) / 8."""
    people = [Participant("a", "one", 1), Participant("b", "two", 2), Participant("c", "one", 5)]
    running = start_optimizer_server(FedAvg(), people=people)
    running.tasks()
    single = [Result("a", update("a", 1, "global", 1.0, 0.0)), Result("c", update("c", 5, "global", 2.0, 0.0))]
    for result in added_up(single, running.bank, running.method):
        running.accept(result, "one")
    running.accept(Result("b", update("b", 2, "global", 2.0, 0.0)), "two")
    running.finish_round()
    assert running.state.bank["global"].vector[0] == pytest.approx(step_by_hand("adam", [15 / 8]), abs=1e-6)


def test_a_model_that_is_held_back_is_not_moved_by_its_moments() -> None:
    small = {"min_sites_per_cluster": 2, "hold_small_clusters": True}
    running = start_optimizer_server(FedAvg(), **small)
    play_moves(running, {"a": (1.0, 0.0), "b": (-1.0, 0.0)})
    state = running.state
    running.tasks()
    running.round.fail(["b"], "training")
    running.accept(Result("a", update("a", 3, "global", 1.0, 0.0), {"metrics": {"served_accuracy": 0.5}}), "one")
    running.finish_round()
    assert running.state.round == 2
    assert running.state.bank["global"].vector.tolist() == state.bank["global"].vector.tolist()
    assert running.state.arrays.keys() == state.arrays.keys()
    assert all(running.state.arrays[name] is array for name, array in state.arrays.items())
    assert running.progress.record is not None
    assert running.progress.record["held_back"] == ["a"]


def test_buffers_and_counters_are_those_of_the_mean() -> None:
    layout = Layout.of(nn.BatchNorm1d(1))  # weight, bias; mean, variance; count
    before = Params(layout, np.array([1, 0, 0, 1], np.float32), np.array([3]))
    mean = Params(layout, np.array([1.5, 0, 7, 4], np.float32), np.array([8]))
    optimizer = ServerOptimizer(ServerSettings(9, server_optimizer="adam", server_lr=ETA, server_tau=TAU))
    after = optimizer.step(ServerState({"global": before}), ServerState({"global": mean}, round=1))
    expected = [step_by_hand("adam", [0.5], x=1.0), 0, 7, 4]
    assert after.bank["global"].vector == pytest.approx(expected, abs=1e-6)
    assert after.bank["global"].counters.tolist() == [8]
    still = Params(layout, np.array([1, 0, 7, 4], np.float32), np.array([8]))  # its parameters did not move
    assert optimizer.step(ServerState({"global": before}), ServerState({"global": still})).bank["global"] is still


@given(st.lists(st.floats(-1e9, 1e9, width=32), min_size=1, max_size=60))
def test_a_step_of_adam_is_bounded_whatever_arrives(deltas: list[float]) -> None:
    """By (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2)) = 2.35 times server_lr: docs/security.md says 2.4."""
    optimizer = ServerOptimizer(ServerSettings(9, server_optimizer="adam", server_lr=ETA))
    state = ServerState({"global": coin(0, 0)})
    for delta in deltas:
        before = state.bank["global"]
        state = optimizer.step(state, replace(state, bank={"global": before + coin(delta, 0)}))
        assert abs(state.bank["global"].vector[0] - before.vector[0]) <= 2.36 * ETA
        assert all(np.isfinite(array).all() for array in state.arrays.values())


def test_other_arrays_stay_and_those_of_another_rule_go() -> None:
    own, theirs = {"histogram": np.ones(3)}, {f"{PREFIX}yogi.m.global": np.ones(2, np.float32)}
    before = ServerState({"global": coin(0, 0)}, arrays={**own, **theirs})
    after = ServerState({"global": coin(1, 0)}, arrays={**own, **theirs})
    adam = ServerOptimizer(ServerSettings(9, server_optimizer="adam")).step(before, after)
    assert adam.arrays.keys() == {"histogram", f"{PREFIX}adam.m.global", f"{PREFIX}adam.v.global"}
    assert ServerOptimizer(ServerSettings(9)).step(before, after).arrays.keys() == own.keys()


OPTIMIZED: dict[str, Any] = {"server_optimizer": "yogi", "server_lr": 0.05}


@pytest.mark.parametrize(
    ("method", "moments"),
    [
        (FedPer(), {"backbone"}),
        (Ensemble(parts=[FedAvg(), WeCFL(k=2)]), {"0.global", "1.cluster-0", "1.cluster-1"}),
        (CAM(base=WeCFL(k=2), warmup=1), {"shared", "cluster-0", "cluster-1"}),
        (IFCA(k=2, shared_backbone=True), {"backbone", "cluster-0"}),  # nobody chooses the other one
        (FLHC(rounds_before=1, k=2), {"global", "cluster-0", "cluster-1"}),
        (CGPFL(k=2), {"cluster-0", "cluster-1"}),
    ],
    ids=lambda value: value.label if isinstance(value, Method) else "",
)
def test_methods_made_of_means(method: Method, moments: set[str]) -> None:
    """Every model that means move has moments, and of the clusters' models the common one stays the mean."""
    rounds = play_rounds(method, 5, **OPTIMIZED)
    state = rounds[-1].after
    found = {name.removeprefix(f"{PREFIX}yogi.m.") for name in state.arrays if name.startswith(f"{PREFIX}yogi.m.")}
    assert found == moments
    for prefix in ("", "1."):
        extras = state.extras.get("1", {}) if prefix else state.extras
        if "common_weights" in extras:
            centres = [state.bank[f"{prefix}cluster-{k}"].vector for k in range(2)]
            common = np.average(np.float64(centres), axis=0, weights=extras["common_weights"])
            np.testing.assert_allclose(state.bank[f"{prefix}global"].vector, common, atol=1e-6)


def test_parts_of_an_ensemble_are_optimised_as_by_themselves() -> None:
    together = play_rounds(Ensemble(parts=[FedAvg(), IFCA(k=2)]), 3, **OPTIMIZED)[-1].after
    alone = play_rounds(FedAvg(), 3, streams="0.", **OPTIMIZED)[-1].after
    np.testing.assert_array_equal(together.bank["0.global"].vector, alone.bank["global"].vector)


@pytest.mark.parametrize(
    "method",
    [CFL(eps1=1.0, eps2=2.0), FedAC(k=2), FedCUAU()],
    ids=lambda m: m.name,
)
def test_a_method_of_more_than_means_is_refused(method: Method) -> None:
    says = f"server_optimizer = 'adam' steps towards the means .* {method.label} computes more than means.*leave it out"
    with pytest.raises(ConfigError, match=says):
        play_rounds(method, 3, server_optimizer="adam")
    real = {"model": MLP((1, 8, 8), 10), "data": Digits(), "num_rounds": 3, "min_clients": 2}
    with pytest.raises(ConfigError, match=says):  # whose participants are not known yet
        check_plans([RunPlan.of(method=method, server_optimizer="adam", **real)])


def test_local_training_beside_it_has_nothing_to_move() -> None:
    assert not play_rounds(Local(), 2, server_optimizer="adam")[-1].after.arrays


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"server_lr": 0.1}, "server_lr = 0.1 does nothing without server_optimizer; set that too"),
        ({"server_beta2": 0.9}, "server_beta2 = 0.9 does nothing without server_optimizer"),
        ({"server_optimizer": "sgd"}, "server_optimizer = 'sgd' should be one of 'adam', 'yogi', 'adagrad' or None"),
        ({"server_optimizer": "adam", "server_lr": 0.0}, "server_lr = 0.0 should be > 0 or None"),
        ({"server_optimizer": "adam", "server_tau": -1.0}, "server_tau = -1.0 should be > 0 or None"),
        ({"server_optimizer": "yogi", "server_beta1": 1.0}, r"server_beta1 = 1.0 should be in \[0, 1\) or None"),
        ({"server_optimizer": "yogi", "server_beta2": 1.5}, r"server_beta2 = 1.5 should be in \[0, 1\) or None"),
        ({"server_optimizer": "adagrad", "server_beta2": 0.9}, "server_beta2 = 0.9: .* adagrad adds up squares"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"run: {says}"):
        ServerSettings(3, **settings)


def test_a_run_leaves_no_moments_in_its_results(tmp_path: Path) -> None:
    """They are in its checkpoints; a newcomer needs none, and its downloaded results are no place for them."""
    server = run_loop(
        method=build_method({"method": "fedavg"}),
        model=MODEL,
        source=Digits(),
        data=DataConfig(4, {"partition": "iid"}),
        settings=ServerSettings(2, server_optimizer="adam"),
        training=TrainSettings(local_steps=2),
        folder=tmp_path,
    )
    store = Store(tmp_path / "state")
    assert server.state.arrays
    assert not state_of(*store.load(store.versions()[-1], server.layout)).arrays
