# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods that cluster by a few numbers of each participant, computed by hand.

CLoVE: K models, the losses that they have, who trains which of them. FLUX: descriptors, what few patients do not send,
clusters by density, newcomers. FedSoft: shares by each sample's losses, a model near all centres, means by shares.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cfl_flare.clustering.agglomerative import by_density, number_by_silhouette
from cfl_flare.clustering.floor import Census, Floor
from cfl_flare.clustering.measures import scaled
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.indicator import check_task
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, check_update
from cfl_flare.methods import (
    FLUX,
    CLoVE,
    Download,
    FedSoft,
    Method,
    Mixture,
    Participant,
    ServerState,
    Update,
    build_method,
)
from cfl_flare.training.resident import untrained
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Classification, Survival
from tests.play import make_model, people, play
from tests.tiny import LAYOUT, coin, initial, learner, update

SAMPLES = {"a": 3, "b": 1, "c": 2, "d": 4}
CLOVE = CLoVE(k=2)
# Two models: a and b fit the second better, c the first. By distance a and b are alike.
LOSSES = {"a": (3.0, 1.0), "b": (2.8, 1.2), "c": (2.0, 5.0)}
DENSITY = FLUX(warmup=1, dimensions=1, fewest=2)
# Mean and deviation of all samples; of two classes nothing is known.
ROWS = {"a": (0.0, 1.0), "b": (0.1, 1.0), "c": (10.0, 2.0), "d": (9.9, 2.0)}


def step(method: Method, state: ServerState, updates: list[Update]) -> ServerState:
    return method.aggregate(state, updates, method.assign(state, updates))


def model(state: ServerState, slot: str) -> list[float]:
    return state.bank[slot].vector.tolist()


def losses(rows: dict[str, tuple[float, float]] = LOSSES) -> list[Update]:
    return [Update(n, SAMPLES.get(n, 1), arrays={"loss": np.array(r, np.float32)}) for n, r in rows.items()]


def trained(state: ServerState, ends: dict[str, float]) -> list[Update]:
    slots = {name: CLOVE.distribute(state, name).slots[0] for name in ends}
    return [update(n, SAMPLES[n], slots[n], end - model(state, slots[n])[0], 0) for n, end in ends.items()]


def test_a_round_of_losses_says_who_trains_what_in_the_next_one():
    state = CLOVE.start(initial)  # models 0 and (1, -1)
    assert CLOVE.plan(state).fewest == 2
    sent = CLOVE.distribute(state, "a")
    assert (sent.slots, sent.returned, dict(sent.arrays)) == (("cluster-0", "cluster-1"), (), {"loss": (2,)})
    state = step(CLOVE, state, losses())
    assert state.assignment == {"a": 1, "b": 1, "c": 0}
    assert (model(state, "cluster-0"), model(state, "cluster-1")) == ([0, 0], [1, -1])
    assert CLOVE.plan(state).draw == 0  # those train that sent losses
    assert CLOVE.distribute(state, "a") == Download(("cluster-1",))
    state = step(CLOVE, state, trained(state, {"a": 9, "b": 5, "c": -4}))
    assert model(state, "cluster-1") == [(3 * 9 + 5) / 4, -1]
    assert model(state, "cluster-0") == [-4, 0]
    sent = CLOVE.distribute(state, "a")  # the first is what it is measured with
    assert (sent.slots, sent.to_train, sent.returned) == (("cluster-1",), ("cluster-0",), ())


def test_clusters_are_matched_to_models_so_that_the_sum_of_losses_is_least():
    """Cluster (a, b) has losses 12 and 8, cluster (c) 6 and 1: 12 + 1 = 13 is less than 8 + 6 = 14."""
    state = step(CLOVE, CLOVE.start(initial), losses({"a": (6, 4), "b": (6, 4), "c": (6, 1)}))
    assert state.assignment == {"a": 0, "b": 0, "c": 1}


def test_an_unmatched_model_stays_and_silhouette_chooses_the_number():
    method = CLoVE(k=3, silhouette=True)
    rows = {"a": (0.0, 9.0, 9.0), "b": (0.1, 9.0, 9.0), "c": (9.0, 9.0, 0.0), "d": (9.0, 9.0, 0.2)}
    state = step(method, method.start(initial), losses(rows))  # type: ignore[arg-type]
    assert state.assignment == {"a": 0, "b": 0, "c": 2, "d": 2}
    assert model(state, "cluster-1") == [1, -1]
    assert method.plan(method.start(initial)).fewest == 2
    points = np.array([[0.0], [1.0], [10.0], [11.0], [19.0], [20.0]])  # silhouettes: two 0.66, three 0.89
    assert [number_by_silhouette(points, k) for k in (1, 2, 3, 9)] == [1, 2, 3, 3]
    assert number_by_silhouette(points, 9, better=1.5) == 2
    assert number_by_silhouette(points[:2], 9) == 2


def test_stable_clusters_are_frozen():
    method, state = CLoVE(k=2, stable=2), CLOVE.start(initial)
    state = step(method, state, losses())
    assert not state.extras["frozen"]
    state = step(method, state, trained(state, {"a": 9, "b": 5, "c": -4}))
    moved = step(method, state, losses({**LOSSES, "a": (2.0, 5.0)}))  # a changes its cluster
    assert moved.assignment == {"a": 0, "b": 1, "c": 0} and not moved.extras["frozen"]
    state = step(method, state, losses())
    assert state.extras["frozen"] and method.plan(state).draw is None
    state = step(method, state, trained(state, {"a": 9, "b": 5, "c": -4}))
    assert method.distribute(state, "a") == Download(("cluster-1",))


def test_who_is_late_sends_losses_of_the_models_that_were_compared():
    state = step(CLOVE, CLOVE.start(initial), losses())
    state = step(CLOVE, replace(state, extras={**state.extras, "frozen": True}), trained(state, {"a": 9, "c": -4}))
    sent = CLOVE.distribute(state, "z")
    assert sent.slots == ("measured-0-0", "measured-0-1") and sent.returned == ()
    assert [model(state, slot) for slot in sent.slots] == [[0, 0], [1, -1]]
    joined = CLOVE.join(state, losses({"z": (2.6, 2.4)})[0])  # nearest to (2.9, 1.1)
    assert joined.assignment == {**state.assignment, "z": 1}
    assert CLOVE.distribute(joined, "z") == Download(("cluster-1",))
    both = CLOVE.assign(state, [*trained(state, {"a": 9}), *losses({"z": (2.0, 4.0)})])
    assert both == {"a": 1, "z": 0}


def test_a_newcomer_is_placed_although_the_run_ended_before_a_round_of_losses():
    state = step(CLOVE, CLOVE.start(initial), losses())
    state = step(CLOVE, state, trained(state, {"a": 9, "b": 5, "c": -4}))
    assert CLOVE.measures(state) and CLOVE.distribute(state, "z").slots == ("cluster-0", "cluster-1")
    waiting = CLOVE.join(state, losses({"z": (0.0, 99.0)})[0])  # of models that nobody else was measured with
    assert (waiting.assignment, waiting.round) == (state.assignment, state.round + 1)
    assert CLOVE.distribute(waiting, "z").slots == ("measured-0-0", "measured-0-1")
    joined = CLOVE.join(waiting, losses({"z": (2.6, 2.4)})[0])  # nearest to (2.9, 1.1)
    assert joined.assignment == {**state.assignment, "z": 1} and joined.bank is state.bank
    assert CLOVE.distribute(joined, "z") == Download(("cluster-1",))


def test_the_site_sends_a_mean_loss_for_each_model_in_their_order_and_trains_nothing():
    """On label 0: log 2 with (0, 0), and log(1 + exp(-2)) with (1, -1)."""
    sent = Download(("cluster-1",), (coin(1, -1),), {"loss": True})
    sent = replace(sent, slots=("cluster-1", "cluster-0"), models=(coin(1, -1), coin(0, 0)))
    answer = CLOVE.local_update(learner([0]), sent)
    assert answer.diffs == {}
    np.testing.assert_allclose(answer.arrays["loss"], [np.log(2), np.log1p(np.exp(-2))], rtol=1e-6)
    assert CLOVE.serve(learner([0]), sent).vector.tolist() == [1, -1]
    both = (coin(0, 0), coin(1, -1))
    unplaced = Download(("cluster-0", "cluster-1"), both, {"loss": False})
    assert CLOVE.serve(learner([0]), unplaced).vector.tolist() == [1, -1]
    assert CLOVE.serve(learner([1]), unplaced).vector.tolist() == [0, 0]
    assert CLOVE.local_update(learner([0]), Download(("cluster-0",), (coin(0, 0),))).diffs.keys() == {"cluster-0"}


def test_under_a_floor_no_cluster_is_too_small():
    """Without it, c would be alone; with two sites a cluster there is room for one."""
    names = {name: f"site-{name}" for name in LOSSES}
    state = replace(CLOVE.start(initial), census=Census(Floor(2, 1), names, SAMPLES))
    assert len({*CLOVE.assign(state, losses()).values()}) == 1


@pytest.mark.parametrize("row", [(np.nan, 1.0), (np.inf, 1.0), (1e12, 1.0), (1.0,), (1.0, 1.0, 1.0)])
def test_hostile_losses_are_refused(row):
    state = CLOVE.start(initial)
    answer = Update("a", 3, arrays={"loss": np.array(row)})
    with pytest.raises(PayloadError, match="'loss'"):
        check_update(answer, CLOVE.distribute(state, "a"), state, "clove")


def test_refusals_of_clove():
    with pytest.raises(ConfigError, match="stable = 1 should be >= 2 or None"):
        CLoVE(k=2, stable=1)
    with pytest.raises(ConfigError, match="setting 'k' is missing"):
        build_method({"method": "clove"})


def test_rounds_alternate_and_a_sample_trains_that_was_measured():
    played = play(CLoVE(k=2, stable=None), 4, sample=4)
    measured, trains = played[0], played[1]
    assert measured.record["trained"] == trains.record["trained"]
    assert all(answer.update is None or not answer.update.diffs for answer in measured.answers.values())
    assert all(a.update.diffs for n, a in trains.answers.items() if a.update is not None and n in measured.after.arrays)


def descriptors(rows: dict[str, tuple[float, float]] = ROWS) -> list[Update]:
    blocks = {n: np.array([[1, *row], [0, 0, 0], [0, 0, 0]], np.float32) for n, row in rows.items()}
    return [Update(n, SAMPLES.get(n, 1), arrays={"descriptor": block}) for n, block in blocks.items()]


def after_descriptors() -> ServerState:
    state = step(DENSITY, DENSITY.start(initial), [update(n, s, "global", 4, 0) for n, s in SAMPLES.items()])
    return step(DENSITY, state, descriptors())


def test_after_the_warmup_descriptors_give_clusters_which_begin_with_the_common_model():
    state = DENSITY.start(initial)
    assert DENSITY.distribute(state, "a") == Download(("global",))
    state = step(DENSITY, state, [update(n, s, "global", 4 * s, 0) for n, s in SAMPLES.items()])
    mean = 4 * (9 + 1 + 4 + 16) / 10
    assert model(state, "global") == [mean, 0] and DENSITY.clusters_in(state) == 0
    assert DENSITY.plan(state).everyone
    order = DENSITY.distribute(state, "a")
    assert (order.returned, dict(order.arrays)) == ((), {"descriptor": (3, 3)})
    state = step(DENSITY, state, descriptors())
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert model(state, "cluster-0") == model(state, "cluster-1") == [mean, 0]
    ends = {"a": 1.0, "b": 5.0, "c": 0.0, "d": 9.0}
    updates = [update(n, SAMPLES[n], DENSITY.distribute(state, n).slots[0], e - mean, 0) for n, e in ends.items()]
    state = step(DENSITY, state, updates)
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
    order = DENSITY.distribute(state, "z")
    assert order.slots == ("global",) and order.returned == ()
    near = descriptors({"z": (8.0, 1.9)})[0]
    lied = replace(near, arrays={"descriptor": near.arrays["descriptor"] + np.array([[0] * 3, [1, 5, 5], [1, 9, 9]])})
    for joining in (near, lied):  # classes do not matter
        joined = DENSITY.join(state, joining)
        assert joined.assignment["z"] == 1 and joined.bank is state.bank
    assert DENSITY.distribute(joined, "z").slots == ("cluster-1",)
    few = replace(near, arrays={"descriptor": np.zeros((3, 3), np.float32)})
    assert "z" not in DENSITY.join(state, few).assignment


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
    state = replace(DENSITY.start(initial), round=1)
    answer = Update("a", 3, arrays={"descriptor": np.full((3, 3), value)})
    with pytest.raises(PayloadError, match="'descriptor'"):
        check_update(answer, DENSITY.distribute(state, "a"), state, "flux")
    zeros = Update("a", 3, arrays={"descriptor": np.full((3, 3), 7.0)})  # it says of none that it has enough
    assert DENSITY.assign(state, [zeros]) == {}


def test_refusals_of_flux():
    with pytest.raises(ConfigError, match="warmup = 3 leaves the clusters none of 4 rounds"):
        FLUX().check(LAYOUT, 4)
    with pytest.raises(ConfigError, match="fewest = 1 should be >= 2"):
        FLUX(fewest=1)


def test_it_finds_groups_whose_labels_differ_where_classes_have_enough_patients():
    played = play(FLUX(warmup=2, dimensions=20), 4)
    groups = played[-1].after.assignment
    assert len({(int(name[1:]) // 3, k) for name, k in groups.items()}) == len({*groups.values()})
    assert all(not answer.update.diffs for answer in played[2].answers.values() if answer.update is not None)


SOFT = FedSoft(k=2)
SENT = Download(("cluster-0", "cluster-1"), (coin(1, 0), coin(0, 2)), choices={0: "cluster-0", 1: "cluster-1"})


def answer(name: str, a: float, b: float, cluster: int, shares: tuple[float, float] | None = None) -> Update:
    arrays = {} if shares is None else {"shares": np.array(shares, np.float32)}
    return Update(name, SAMPLES[name], {f"cluster-{cluster}": coin(a, b)}, cluster, arrays)


def test_a_share_is_that_of_the_samples_which_a_model_fits_best():
    """With (1, 0) label 0 has the smaller loss, with (0, 2) label 1. A share of 0 becomes 1e-4."""
    work = learner([0, 0, 0, 1])
    np.testing.assert_allclose(SOFT.shares(work, SENT), [0.75, 0.25])
    np.testing.assert_allclose(SOFT.shares(learner([1, 1]), SENT), [1e-4, 1])
    told = replace(SENT, scalars={"shares": {"0": 0.2, "1": 0.8}})
    assert SOFT.shares(work, told).tolist() == [0.2, 0.8]
    losses = work.sample_losses(SENT.models)
    assert losses.shape == (2, 4)
    np.testing.assert_allclose(losses.mean(axis=1), work.losses(SENT.models), rtol=1e-6)


def test_one_model_is_pulled_to_all_by_their_shares_and_is_kept():
    """From (1, 0), lr 1, lambda 0.4: loss gradient as of labels 0, 0, 0, 1; the pull to (0, 2) is 0.4 * 0.25."""
    work = learner([0, 0, 0, 1])
    sent = FedSoft(k=2, lam=0.4).local_update(work, SENT)
    right = 1 / (1 + np.exp(-1.0))
    gradient = np.array([right - 0.75, 0.75 - right]) + 0.1 * np.array([1, -2])
    np.testing.assert_allclose(sent.diffs["cluster-0"].vector, -gradient, rtol=1e-5)
    assert (sent.cluster, sent.arrays["shares"].tolist()) == (0, [0.75, 0.25])
    own = work.memory["personal"].vector
    np.testing.assert_allclose(own, np.array([1, 0]) - gradient, rtol=1e-5)
    assert SOFT.serve(work, SENT).vector.tolist() == own.tolist()
    assert SOFT.serve(learner([1]), SENT).vector.tolist() == [0, 2]
    told = replace(SENT, scalars={"shares": {"0": 0.1, "1": 0.9}})
    again = FedSoft(k=2, lam=0.0).local_update(learner([0, 0, 0, 1], lr=1e-9, memory=dict(work.memory)), told)
    assert again.cluster == 1 and not again.arrays
    np.testing.assert_allclose(again.diffs["cluster-1"].vector, own - np.array([0, 2]), rtol=1e-5)


def test_a_model_counts_in_each_cluster_by_share_times_samples():
    """v: a 0.75 * 3 and 0.25 * 3, b 0.2 * 1 and 0.8 * 1; a's model is at (4, 0), b's at (0, 8)."""
    state = step(SOFT, SOFT.start(initial), [answer("a", 4, 0, 0, (0.75, 0.25)), answer("b", -1, 9, 1, (0.2, 0.8))])
    assert state.assignment["a"].shares == pytest.approx({0: 0.75, 1: 0.25})  # type: ignore[attr-defined]
    assert model(state, "cluster-0") == pytest.approx([4 * 2.25 / 2.45, 8 * 0.2 / 2.45], abs=1e-5)
    assert model(state, "cluster-1") == pytest.approx([4 * 0.75 / 1.55, 8 * 0.8 / 1.55], abs=1e-5)
    assert SOFT.distribute(state, "a").scalars == {"shares": {"0": 0.75, "1": 0.25}}
    assert SOFT.distribute(state, "z").arrays == {"shares": (2,)}
    assert SOFT.distribute(replace(state, round=2), "a").arrays == {"shares": (2,)}
    later = step(SOFT, state, [answer("a", 1, 0, 0)])
    assert later.assignment == state.assignment
    assert isinstance(later.assignment["a"], Mixture)


@pytest.mark.parametrize("shares", [(0.0, 0.0), (-5.0, 1.0), (1e8, 0.5)])
def test_shares_out_of_range_are_brought_into_it(shares):
    state = SOFT.start(initial)
    update = answer("a", 0, 0, 0, shares)
    check_update(update, SOFT.distribute(state, "a"), state, "fedsoft")
    assert sum(SOFT.assign(state, [update])["a"].shares.values()) == pytest.approx(1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("shares", [(np.nan, 0.5), (np.inf, 0.5), (1e12, 0.0), (0.5,)])
def test_hostile_shares_are_refused(shares):
    state = SOFT.start(initial)
    with pytest.raises(PayloadError, match="'shares'"):
        check_update(answer("a", 0, 0, 0, shares), SOFT.distribute(state, "a"), state, "fedsoft")


def test_a_floor_counts_sites_by_their_shares():
    """In cluster-1 are two sites by 0.5 and 0.0002, an effective 1.0; in cluster-0 by 0.5 and 1, an effective 1.8."""
    people = [Participant(n, f"site-{n}", s) for n, s in (("a", 3), ("b", 1))]
    settings = ServerSettings(
        2, clip_norm=None, hold_small_clusters=True, min_sites_per_cluster=2, merge_small_clusters=False
    )
    running = Server(SOFT, LAYOUT, people, settings, SOFT.start(initial))
    running.tasks()
    for name, shares in (("a", (0.5, 0.5)), ("b", (1.0, 0.0))):
        running.accept(Result(name, answer(name, 4, 0, 0, shares)), f"site-{name}")
    running.finish_round()
    assert running.progress.record["held_back"] == ["a", "b"]
    assert {slot: model(running.state, slot) for slot in SOFT.slots} == {"cluster-0": [0, 0], "cluster-1": [1, -1]}


def test_refusals_and_tasks_of_fedsoft():
    with pytest.raises(ConfigError, match="lam = -1 should be >= 0"):
        FedSoft(k=2, lam=-1)
    with pytest.raises(ConfigError, match="in task 'survival' a sample alone has no loss"):
        check_task(SOFT, Survival())
    outputs = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    losses = Classification().sample_losses(outputs, torch.tensor([0, 0]))
    np.testing.assert_allclose(losses, [[np.log1p(np.exp(-2)), np.log1p(np.exp(1))]], rtol=1e-6)


def test_who_has_samples_of_two_groups_belongs_to_both():
    """p0 has digits of both groups, whose names of the labels differ, 70 to 30; the others have those of one."""
    site = Site(SOFT, make_model, TrainSettings(lr=0.3, local_epochs=2), 0)
    hosted = list(people())
    own, other = hosted[0].train, hosted[3].train
    count = len(own)
    mixed = own.take(np.arange(count * 7 // 10)).joined(other.take(np.arange(count - count * 7 // 10)))
    site.add([replace(hosted[0], train=mixed), *hosted[1:]])
    crowd = [Participant(n, "local", len(d.train)) for n, d in site.hosted.items()]
    state = SOFT.start(lambda i: untrained(make_model, 0, i))
    running = Server(SOFT, site.runtime.resident.layout, crowd, ServerSettings(20), state)
    for number in range(20):
        for name, task in running.tasks().items():
            running.accept(site.carry_out(name, task, running.bank, number), "local")
        running.finish_round()
    shares = {name: mixture.shares for name, mixture in running.state.assignment.items()}
    mine, theirs = int(running.state.assignment["p1"]), int(running.state.assignment["p4"])
    assert mine != theirs
    assert 0.55 < shares["p0"][mine] < 0.85 and 0.15 < shares["p0"][theirs] < 0.45
    assert min(shares[f"p{i}"][theirs if i > 2 else mine] for i in range(1, 6)) > 0.8
