# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Poison of those who know the defences, on models of a few numbers, computed by hand; and what still passes."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.methods import IFCA, FedAvg, Method, Participant, Update, WeCFL

NAMES = ("a", "b", "c", "d", "liar")
PEOPLE = [Participant(name, f"site-{name}", 1) for name in NAMES]
TWO_LAYERS = Layout.of(nn.Sequential(nn.Conv1d(1, 1, 2, bias=False), nn.Linear(1, 2, bias=False)))
BODY, HEAD = slice(0, 2), slice(2, 4)
BATCH_NORM = Layout.of(nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False)))


def server(method: Method, layout: Layout, **settings) -> Server:
    start = [0.0] * layout.parameter_size + [0.0, 1.0][: layout.size - layout.parameter_size]  # mean 0, variance 1
    model = Params(layout, np.array(start, np.float32), np.zeros(layout.counter_size, np.int64))
    return Server(method, layout, PEOPLE, ServerSettings(3, **settings), method.start(lambda i: model))


def one_round(running: Server, moves: dict[str, list[float]]) -> dict:
    """A round in which participants move so far; those that choose, choose cluster 0."""
    for name, task in running.tasks().items():
        chosen = 0 if isinstance(running.method, IFCA) else None
        slot = task.slots[0] if chosen is None else "cluster-0"
        layout = running.state.bank[slot].layout
        diff = Params(layout, np.array(moves[name], np.float32), np.zeros(layout.counter_size, np.int64))
        update = Update(name, 1, {slot: diff}, chosen)
        running.accept(
            Result(name, update, {"metrics": {"served_accuracy": 0.5} if task.evaluate else {}}), f"site-{name}"
        )
    running.finish_round()
    assert running.progress.record is not None
    return running.progress.record


def same(*moves: float) -> dict[str, list[float]]:
    return {name: list(moves) for name in NAMES}


# ---- Hidden layers beside an honest head ----

HIDDEN = {**{name: [1.0, 0.0, 50.0, 50.0] for name in NAMES}, "liar": [-60.0, 0.0, 50.0, 50.0]}


def test_a_hidden_layer_has_a_bound_of_its_own():
    """The whole update is 1.3 times as long as the others, its first layer 60 times."""
    running = server(FedAvg(), TWO_LAYERS)
    record = one_round(running, HIDDEN)
    assert record["clipped"] == {"liar": 6.0}
    assert running.state.bank["global"].vector.tolist() == pytest.approx([(4 - 10) / 5, 0.0, 50.0, 50.0])


@pytest.mark.parametrize("method", [WeCFL(k=2), FedAvg(), IFCA(k=2)])
def test_an_outlier_is_one_in_any_layer_whatever_the_method_compares(method):
    honest = {"a": [1.0, 0.1], "b": [1.0, -0.1], "c": [1.1, 0.0], "d": [0.9, 0.0], "liar": [-9.0, 0.0]}
    running = server(method, TWO_LAYERS, reject_outliers=True, clip_norm=None)
    record = one_round(running, {name: [*body, 50.0 + i, 50.0 - i] for i, (name, body) in enumerate(honest.items())})
    assert list(record["failed"]) == ["liar"]
    assert record["failed"]["liar"].startswith("outlier: its model is")


def test_krum_leaves_out_who_is_far_in_a_small_layer():
    heads = {"a": 50.0, "b": 70.0, "liar": 90.0, "c": 110.0, "d": 130.0}
    moves = {name: [1.0 + head / 1000, 0.0, head, head] for name, head in heads.items()}
    running = server(FedAvg(), TWO_LAYERS, aggregation="krum", clip_norm=None)
    assert one_round(running, {**moves, "liar": [-6.0, 0.0, 90.0, 90.0]})["left_out"] == ["liar"]


# ---- Running statistics ----


def test_a_variance_below_zero_does_not_take_the_others_with_it():
    running = server(FedAvg(), BATCH_NORM)
    record = one_round(running, {**same(1.0, 0.0, 0.0), "liar": [1.0, 0.0, -5.0]})
    assert running.state.bank["global"].vector[2] == pytest.approx((4 + 0.1) / 5, abs=1e-4)
    assert record["clipped"].keys() == {"liar"}


def test_a_variance_is_at_most_ten_times_and_a_mean_ten_deviations_away():
    running = server(FedAvg(), BATCH_NORM)
    record = one_round(running, {**same(1.0, 0.0, 0.0), "liar": [1.0, 1000.0, 999.0]})
    assert running.state.bank["global"].vector[1:].tolist() == pytest.approx([10 / 5, (4 + 10) / 5], abs=1e-3)
    assert record["clipped"] == {"liar": pytest.approx(100, rel=1e-3)}


def test_a_new_model_may_move_as_far_as_most_do():
    """All find that the data's variance is 10,000, which is far from the new model's."""
    running = server(FedAvg(), BATCH_NORM)
    assert "clipped" not in one_round(running, same(1.0, 300.0, 9999.0))
    assert running.state.bank["global"].vector.tolist() == [1.0, 300.0, 10000.0]


# ---- Directions ----

HONEST = {"a": [1.0, 0.6], "b": [1.0, -0.6], "c": [1.2, 0.3], "d": [0.8, -0.3]}


def trained(bodies: dict[str, list[float]]) -> dict[str, list[float]]:
    """Updates whose heads differ more than their hidden layers do."""
    return {name: [*bodies[name], 10.0 + 3 * i, 0.0] for i, name in enumerate(NAMES)}


def test_a_negated_update_that_is_shorter_than_honest_ones_is_opposed_inside_the_cluster_that_it_chose():
    moves = trained({**HONEST, "liar": [-0.2, 0.0]})
    misled = server(IFCA(k=2), TWO_LAYERS)
    assert "liar" not in one_round(misled, moves)["failed"]
    assert misled.state.bank["cluster-0"].vector[0] == pytest.approx(3.8 / 5)
    running = server(IFCA(k=2), TWO_LAYERS, reject_outliers=True)
    why = one_round(running, moves)["failed"]["liar"]
    assert why == "outlier: its update is opposed to the others of its cluster (cosine -1.00)"
    assert running.state.bank["cluster-0"].vector[0] == pytest.approx(4.0 / 4)


def test_more_opposed_ones_than_are_expected_are_a_group_and_stay():
    moves = trained({**HONEST, "d": [-0.3, 0.1], "liar": [-0.2, 0.0]})
    assert "liar" not in one_round(server(FedAvg(), TWO_LAYERS, reject_outliers=True), moves)["failed"]


def test_at_most_as_many_are_left_out_as_are_expected():
    moves = trained({**HONEST, "a": [900.0, 0.0], "liar": [-0.2, 0.0]})
    record = one_round(server(FedAvg(), TWO_LAYERS, reject_outliers=True, clip_norm=None), moves)
    assert list(record["failed"]) == ["a"]


# ---- Attackers who know the defence ----


def crafted(name: str) -> np.ndarray:
    """The hostile row for these honest ones: their mean is (1, 0), their deviation (0.14, 0.47)."""
    rows = np.array(list(HONEST.values()))
    mean, std = rows.mean(axis=0), rows.std(axis=0)
    if name == "a little is enough":
        return mean - std
    if name == "inner product":
        return -mean
    most = max(np.linalg.norm(a - b) for a in rows for b in rows)
    factors = np.arange(0, 10, 0.01)  # min-max: no further from any honest one than two of those are apart
    inside = [f for f in factors if max(np.linalg.norm(mean - f * std - row) for row in rows) <= most]
    return mean - max(inside) * std


@pytest.mark.parametrize(
    ("attack", "stopped"), [("inner product", True), ("a little is enough", False), ("min-max", False)]
)
def test_who_stays_among_the_honest_ones_is_not_stopped(attack, stopped):
    """As docs/security.md says: the honest ones' own spread hides them, and what they move is bounded by it."""
    moves = trained({**HONEST, "liar": list(crafted(attack))})
    running = server(FedAvg(), TWO_LAYERS, reject_outliers=True)
    assert ("liar" in one_round(running, moves)["failed"]) == stopped
    away = np.linalg.norm(running.state.bank["global"].vector[BODY] - [1.0, 0.0])
    assert away < 1e-6 if stopped else 0 < away < 1.3 / 5  # two of the honest ones are 1.2 apart
