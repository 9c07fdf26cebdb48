# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLUX by numbers computed by hand: descriptors, what few patients do not send, clusters by density, newcomers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cfl_flare.clustering.agglomerative import by_density
from cfl_flare.clustering.measures import scaled
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.task import check_update
from cfl_flare.methods import FLUX, Download, ServerState, Update
from tests.play import play
from tests.tiny import LAYOUT, initial, learner, update

METHOD = FLUX(warmup=1, dimensions=1, fewest=2)
SAMPLES = {"a": 3, "b": 1, "c": 2, "d": 4}
# Mean and deviation of all samples; of two classes nothing is known.
ROWS = {"a": (0.0, 1.0), "b": (0.1, 1.0), "c": (10.0, 2.0), "d": (9.9, 2.0)}


def descriptors(rows: dict[str, tuple[float, float]] = ROWS) -> list[Update]:
    blocks = {n: np.array([[1, *row], [0, 0, 0], [0, 0, 0]], np.float32) for n, row in rows.items()}
    return [Update(n, SAMPLES.get(n, 1), arrays={"descriptor": block}) for n, block in blocks.items()]


def step(method: FLUX, state: ServerState, updates: list[Update]) -> ServerState:
    return method.aggregate(state, updates, method.assign(state, updates))


def after_descriptors() -> ServerState:
    state = step(METHOD, METHOD.start(initial), [update(n, s, "global", 4, 0) for n, s in SAMPLES.items()])
    return step(METHOD, state, descriptors())


def model(state: ServerState, slot: str) -> list[float]:
    return state.bank[slot].vector.tolist()


def test_after_the_warmup_descriptors_give_clusters_which_begin_with_the_common_model():
    state = METHOD.start(initial)
    assert METHOD.distribute(state, "a") == Download(("global",))
    state = step(METHOD, state, [update(n, s, "global", 4 * s, 0) for n, s in SAMPLES.items()])
    mean = 4 * (9 + 1 + 4 + 16) / 10
    assert model(state, "global") == [mean, 0] and METHOD.clusters_in(state) == 0
    assert METHOD.plan(state).everyone
    order = METHOD.distribute(state, "a")
    assert (order.returned, dict(order.arrays)) == ((), {"descriptor": (3, 3)})
    state = step(METHOD, state, descriptors())
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert model(state, "cluster-0") == model(state, "cluster-1") == [mean, 0]
    ends = {"a": 1.0, "b": 5.0, "c": 0.0, "d": 9.0}
    updates = [update(n, SAMPLES[n], METHOD.distribute(state, n).slots[0], e - mean, 0) for n, e in ends.items()]
    state = step(METHOD, state, updates)
    assert model(state, "cluster-0") == [2, 0] and model(state, "cluster-1") == [6, 0]  # (3*1 + 5)/4, (0 + 4*9)/6
    assert model(state, "global") == [mean, 0]


def test_of_few_patients_nothing_is_sent():
    """Two of class 0 and one of class 1: with at least two of a class, class 1 is missing; with four, all are."""
    features, labels = np.array([[1.0, 0.0], [3.0, 0.0], [9.0, 0.0]]), np.array([0, 0, 1])
    rows = FLUX(dimensions=1, fewest=2).described(features, labels, 2)
    assert rows[:, 0].tolist() == [1, 1, 0] and not rows[2].any()
    factor = rows[1, 1] / 2  # the projection of (1, 0); class 0 has mean 2 and deviation 1
    np.testing.assert_allclose(rows[0, 1:], [13 / 3 * factor, abs(factor) * np.std([1, 3, 9])], rtol=1e-5)
    np.testing.assert_allclose(rows[1, 2], abs(factor), rtol=1e-5)
    assert not FLUX(dimensions=1, fewest=4).described(features, labels, 2).any()
    assert FLUX(dimensions=1, fewest=2).described(features, np.array([0.5, 1.5, 2.0]), 2)[:, 0].tolist() == [1, 0, 0]
    sent = Download(("global",), (initial(1),), {"classes": 2})
    assert FLUX().local_update(learner([0, 1]), sent).arrays["descriptor"].any() == False  # noqa: E712


def test_newcomers_are_placed_without_their_labels():
    state = after_descriptors()
    order = METHOD.distribute(state, "z")
    assert order.slots == ("global",) and order.returned == ()
    near = descriptors({"z": (8.0, 1.9)})[0]
    lied = replace(near, arrays={"descriptor": near.arrays["descriptor"] + np.array([[0] * 3, [1, 5, 5], [1, 9, 9]])})
    for joining in (near, lied):  # classes do not matter
        joined = METHOD.join(state, joining)
        assert joined.assignment["z"] == 1 and joined.bank is state.bank
    assert METHOD.distribute(joined, "z").slots == ("cluster-1",)
    few = replace(near, arrays={"descriptor": np.zeros((3, 3), np.float32)})
    assert "z" not in METHOD.join(state, few).assignment


def test_each_block_is_scaled_over_all_and_what_is_missing_is_the_others_mean():
    rows = np.array([[[1, 0, 4, 1, 3], [1, 2, 2, 5, 5]], [[1, 2, 2, 1, 1], [0, 7, 7, 7, 7]]], np.float32)
    within, low, width = scaled(rows)
    assert within.tolist() == [[0, 1, 0, 1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0, 0, 0, 0]]
    assert low.tolist() == [0, 0, 1, 1] and width.tolist() == [4, 4, 2, 2]
    apart = np.array([[0.0], [1.0], [2.1], [50.0], [51.0], [90.0]])
    assert by_density(apart).tolist() == [0, 0, 0, 1, 1, 2]
    assert by_density(apart[:1]).tolist() == [0]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e12])
def test_hostile_descriptors_are_refused(value):
    state = replace(METHOD.start(initial), round=1)
    answer = Update("a", 3, arrays={"descriptor": np.full((3, 3), value)})
    with pytest.raises(PayloadError, match="'descriptor'"):
        check_update(answer, METHOD.distribute(state, "a"), state, "flux")
    zeros = Update("a", 3, arrays={"descriptor": np.full((3, 3), 7.0)})  # it says of none that it has enough
    assert METHOD.assign(state, [zeros]) == {}


def test_refusals():
    with pytest.raises(ConfigError, match="warmup = 3 leaves the clusters none of 4 rounds"):
        FLUX().check(LAYOUT, 4)
    with pytest.raises(ConfigError, match="fewest = 1 should be >= 2"):
        FLUX(fewest=1)


def test_it_finds_groups_whose_labels_differ_where_classes_have_enough_patients():
    played = play(FLUX(warmup=2, dimensions=20), 4)
    groups = played[-1].after.assignment
    assert len({(int(name[1:]) // 3, k) for name, k in groups.items()}) == len({*groups.values()})
    assert all(not answer.update.diffs for answer in played[2].answers.values() if answer.update is not None)
