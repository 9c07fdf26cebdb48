# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""CFL-GP by numbers computed by hand: gradients at one model, their mean over clusterings, who trains what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cfl_flare.clustering.floor import Census, Floor
from cfl_flare.core.arrays import Archive
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.task import check_update
from cfl_flare.methods import CFLGP, Download, ServerState, Update
from cfl_flare.training.runtime import Split
from tests.play import play
from tests.tiny import Coin, coin, initial, learner, update

SAMPLES = {"a": 3, "b": 1, "c": 2}
METHOD = CFLGP(k=2, every=1)
# By direction c is apart.
GRADIENTS = {"a": (1.0, 0.0), "b": (1.1, 0.0), "c": (0.0, 1.0)}


@pytest.fixture
def archive(tmp_path) -> Archive:
    return Archive(tmp_path)


def sent(state: ServerState, gradients=GRADIENTS, ends: dict[str, float] | None = None) -> list[Update]:
    """Gradients, beside them the models at these numbers of those that have a cluster."""
    updates = []
    for name, gradient in gradients.items():
        slots = METHOD.distribute(state, name).returned
        moved = {slots[-1]: coin(*gradient)}
        if ends is not None:
            moved = {slots[0]: coin(ends[name] - state.bank[slots[0]].vector[0], 0), **moved}
        updates.append(Update(name, SAMPLES[name], moved, main=slots[0]))
    return updates


def step(state: ServerState, updates: list[Update], archive: Archive, method: CFLGP = METHOD) -> ServerState:
    state = replace(state, archive=archive)
    return method.aggregate(state, updates, method.assign(state, updates))


def model(state: ServerState, slot: str) -> list[float]:
    return [round(float(v), 5) for v in state.bank[slot].vector]


def test_all_take_their_gradient_at_one_model_which_changes_in_turn(archive):
    """In the paper's code each takes it at its own cluster's model from round 2 on, so that they do not compare."""
    state = METHOD.start(initial)
    assert METHOD.plan(state).everyone and METHOD.plan(state).fewest == 2
    assert METHOD.distribute(state, "a") == Download(("criterion-0",))
    assert model(state, "criterion-0") == [0, 0]
    state = step(state, sent(state), archive)
    assert state.assignment == {"a": 0, "b": 0, "c": 1}
    assert (model(state, "cluster-0"), model(state, "cluster-1")) == ([0, 0], [1, -1])  # gradients count nowhere
    assert {slot: model(state, slot) for slot in state.bank if slot.startswith("crit")} == {"criterion-1": [1, -1]}
    for name, own in (("a", "cluster-0"), ("c", "cluster-1")):
        order = METHOD.distribute(state, name)
        assert (order.slots, order.to_train, order.returned) == ((own,), ("criterion-1",), (own, "criterion-1"))


def test_a_model_counts_in_its_new_cluster_unweighted_and_gradients_of_one_criterion_are_averaged(archive):
    state = step(METHOD.start(initial), sent(METHOD.start(initial)), archive)
    moved = {"a": (1.0, 0.0), "b": (0.0, 9.0), "c": (0.0, 9.0)}  # b is now like c
    state = step(state, sent(state, moved, {"a": 6, "b": 8, "c": -4}), archive)
    assert state.assignment == {"a": 0, "b": 1, "c": 1}
    assert model(state, "cluster-0") == [6, 0]
    assert model(state, "cluster-1") == [2, -0.5]  # (8, 0) and (-4, -1)
    assert model(state, "criterion-2") == [6, 0]
    state = step(
        state, sent(state, {"a": (3.0, 0.0), "b": (3.1, 4.0), "c": (0.0, 5.0)}, dict.fromkeys("abc", 0)), archive
    )
    version, times = state.extras["gradients"]["a"]["0"]
    assert (version, times) == (2, 2)
    np.testing.assert_allclose(archive.get("a.0", version), [2, 0])  # of (1, 0) and (3, 0)
    assert state.extras["gradients"]["a"]["1"] == [1, 1]


def test_labels_follow_the_greatest_overlap(archive):
    state = step(METHOD.start(initial), sent(METHOD.start(initial)), archive)
    swapped = replace(state, assignment={"a": 1, "b": 1, "c": 0})
    state = step(swapped, sent(swapped, ends=dict.fromkeys("abc", 0)), archive)
    assert state.assignment == {"a": 1, "b": 1, "c": 0}


def test_it_clusters_every_few_rounds_until_it_is_frozen(archive):
    method = CFLGP(k=2, every=2, clustering_rounds=4)
    state, due = method.start(initial), []
    for _ in range(6):
        due.append(state.extras["due"])
        slots = {name: method.distribute(state, name).returned for name in SAMPLES}
        updates = [Update(n, SAMPLES[n], {s: coin(*GRADIENTS[n]) for s in slots[n]}, main=slots[n][0]) for n in SAMPLES]
        state = step(state, updates, archive, method)
    assert due == [True, False, True, False, False, False]
    assert not [slot for slot in state.bank if slot.startswith("criterion")]


def test_a_newcomer_chooses_by_its_losses_also_after_a_run_that_ended_before_a_clustering(archive):
    state = step(METHOD.start(initial), sent(METHOD.start(initial)), archive)
    joining = METHOD.join(state, Update("z", 9, {"criterion-1": coin(1, 1)}))
    order = METHOD.distribute(joining, "z")
    assert order.choices == {0: "cluster-0", 1: "cluster-1"}
    told = replace(order, models=(coin(0, 0), coin(1, -1)))
    chosen = METHOD.local_update(learner([0, 0]), told)
    assert (chosen.cluster, [*chosen.diffs]) == (1, ["cluster-1"])
    joined = METHOD.join(joining, replace(chosen, participant="z"))
    assert joined.assignment == {**state.assignment, "z": 1} and joined.bank is joining.bank
    assert METHOD.distribute(joined, "z").slots == ("cluster-1",)
    assert METHOD.serve(learner([1]), told).vector.tolist() == [0, 0]


def test_the_gradient_is_of_all_training_data_whatever_the_batches():
    """At (0, 0), x = 1: label 0 gives (-1/2, 1/2), label 1 the opposite; of 3 and 2 samples (-0.1, 0.1)."""
    work = learner([0, 0, 0, 1, 1], batch_size=2)
    answer = METHOD.local_update(work, Download(("criterion-0",), (coin(0, 0),)))
    np.testing.assert_allclose(answer.diffs["criterion-0"].vector, [-0.1, 0.1], rtol=1e-6)
    both = Download(("cluster-1", "criterion-0"), (coin(0, 0), coin(0, 0)))
    assert METHOD.local_update(learner([0]), both).diffs.keys() == {"cluster-1", "criterion-0"}
    work._train = Split.of(np.array([[2.0]], np.float32), np.array([0]))
    work.samples = 1
    model = Coin()
    model.head.weight.data[:] = torch.tensor([[0.3], [-0.2]])
    torch.nn.functional.cross_entropy(model(torch.tensor([[2.0]])), torch.tensor([0])).backward()
    gradient = work.gradient(coin(0.3, -0.2)).vector
    np.testing.assert_allclose(gradient, model.head.weight.grad.flatten(), rtol=1e-6)


def test_under_a_floor_no_cluster_is_too_small(archive):
    names = {name: f"site-{name}" for name in SAMPLES}
    state = replace(METHOD.start(initial), census=Census(Floor(2, 1), names, SAMPLES), archive=archive)
    assert len({*METHOD.assign(state, sent(state)).values()}) == 1


@pytest.mark.parametrize("gradient", [(np.nan, 0.0), (np.inf, 0.0), (1e12, 0.0)])
def test_hostile_gradients_are_refused(gradient):
    state = METHOD.start(initial)
    with pytest.raises(PayloadError, match="criterion-0"):
        check_update(update("a", 3, "criterion-0", *gradient), METHOD.distribute(state, "a"), state, "cfl-gp")
    with pytest.raises(PayloadError, match="sent the models"):
        check_update(update("a", 3, "cluster-0", 0, 0), METHOD.distribute(state, "a"), state, "cfl-gp")


def test_refusals():
    with pytest.raises(ConfigError, match="every = 0 should be >= 1"):
        CFLGP(k=2, every=0)


def test_it_finds_the_groups_at_the_first_clustering_of_a_run():
    rounds = play(CFLGP(k=2), 3, sample=3)
    assert len(rounds[0].record["trained"]) == 6  # everyone clusters
    groups = rounds[0].after.assignment
    assert len({(int(name[1:]) // 3, k) for name, k in groups.items()}) == 2
    assert len(rounds[1].record["trained"]) == 3
