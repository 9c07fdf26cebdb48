# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedSoft by numbers computed by hand: shares by each sample's losses, a model near all centres, means by shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.indicator import check_task
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, check_update
from cfl_flare.methods import Download, FedSoft, Mixture, Participant, ServerState, Update
from cfl_flare.training.resident import untrained
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Classification, Survival
from tests.play import make_model, people
from tests.tiny import LAYOUT, coin, initial, learner, model

METHOD = FedSoft(k=2)
SAMPLES = {"a": 3, "b": 1}
SENT = Download(("cluster-0", "cluster-1"), (coin(1, 0), coin(0, 2)), choices={0: "cluster-0", 1: "cluster-1"})


def answer(name: str, a: float, b: float, cluster: int, shares: tuple[float, float] | None = None) -> Update:
    arrays = {} if shares is None else {"shares": np.array(shares, np.float32)}
    return Update(name, SAMPLES[name], {f"cluster-{cluster}": coin(a, b)}, cluster, arrays)


def step(state: ServerState, *updates: Update) -> ServerState:
    return METHOD.aggregate(state, updates, METHOD.assign(state, updates))


def test_a_share_is_that_of_the_samples_which_a_model_fits_best():
    """With (1, 0) label 0 has the smaller loss, with (0, 2) label 1. A share of 0 becomes 1e-4."""
    work = learner([0, 0, 0, 1])
    np.testing.assert_allclose(METHOD.shares(work, SENT), [0.75, 0.25])
    np.testing.assert_allclose(METHOD.shares(learner([1, 1]), SENT), [1e-4, 1])
    told = replace(SENT, scalars={"shares": {"0": 0.2, "1": 0.8}})
    assert METHOD.shares(work, told).tolist() == [0.2, 0.8]
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
    assert METHOD.serve(work, SENT).vector.tolist() == own.tolist()
    assert METHOD.serve(learner([1]), SENT).vector.tolist() == [0, 2]
    told = replace(SENT, scalars={"shares": {"0": 0.1, "1": 0.9}})
    again = FedSoft(k=2, lam=0.0).local_update(learner([0, 0, 0, 1], lr=1e-9, memory=dict(work.memory)), told)
    assert again.cluster == 1 and not again.arrays
    np.testing.assert_allclose(again.diffs["cluster-1"].vector, own - np.array([0, 2]), rtol=1e-5)


def test_a_model_counts_in_each_cluster_by_share_times_samples():
    """v: a 0.75 * 3 and 0.25 * 3, b 0.2 * 1 and 0.8 * 1; a's model is at (4, 0), b's at (0, 8)."""
    state = step(METHOD.start(initial), answer("a", 4, 0, 0, (0.75, 0.25)), answer("b", -1, 9, 1, (0.2, 0.8)))
    assert state.assignment["a"].shares == pytest.approx({0: 0.75, 1: 0.25})  # type: ignore[attr-defined]
    assert model(state, "cluster-0") == pytest.approx([4 * 2.25 / 2.45, 8 * 0.2 / 2.45], abs=1e-5)
    assert model(state, "cluster-1") == pytest.approx([4 * 0.75 / 1.55, 8 * 0.8 / 1.55], abs=1e-5)
    assert METHOD.distribute(state, "a").scalars == {"shares": {"0": 0.75, "1": 0.25}}
    assert METHOD.distribute(state, "z").arrays == {"shares": (2,)}
    assert METHOD.distribute(replace(state, round=2), "a").arrays == {"shares": (2,)}
    later = step(state, answer("a", 1, 0, 0))
    assert later.assignment == state.assignment
    assert isinstance(later.assignment["a"], Mixture)


@pytest.mark.parametrize("shares", [(0.0, 0.0), (-5.0, 1.0), (1e8, 0.5)])
def test_shares_out_of_range_are_brought_into_it(shares):
    state = METHOD.start(initial)
    update = answer("a", 0, 0, 0, shares)
    check_update(update, METHOD.distribute(state, "a"), state, "fedsoft")
    assert sum(METHOD.assign(state, [update])["a"].shares.values()) == pytest.approx(1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("shares", [(np.nan, 0.5), (np.inf, 0.5), (1e12, 0.0), (0.5,)])
def test_hostile_shares_are_refused(shares):
    state = METHOD.start(initial)
    with pytest.raises(PayloadError, match="'shares'"):
        check_update(answer("a", 0, 0, 0, shares), METHOD.distribute(state, "a"), state, "fedsoft")


def test_a_floor_counts_sites_by_their_shares():
    """In cluster-1 are two sites by 0.5 and 0.0002, an effective 1.0; in cluster-0 by 0.5 and 1, an effective 1.8."""
    people = [Participant(n, f"site-{n}", s) for n, s in SAMPLES.items()]
    settings = ServerSettings(
        2, clip_norm=None, hold_small_clusters=True, min_sites_per_cluster=2, merge_small_clusters=False
    )
    running = Server(METHOD, LAYOUT, people, settings, METHOD.start(initial))
    running.tasks()
    for name, shares in (("a", (0.5, 0.5)), ("b", (1.0, 0.0))):
        running.accept(Result(name, answer(name, 4, 0, 0, shares)), f"site-{name}")
    running.finish_round()
    assert running.progress.record["held_back"] == ["a", "b"]
    assert {slot: model(running.state, slot) for slot in METHOD.slots} == {"cluster-0": [0, 0], "cluster-1": [1, -1]}


def test_refusals_and_tasks():
    with pytest.raises(ConfigError, match="lam = -1 should be >= 0"):
        FedSoft(k=2, lam=-1)
    with pytest.raises(ConfigError, match="in task 'survival' a sample alone has no loss"):
        check_task(METHOD, Survival())
    outputs = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    losses = Classification().sample_losses(outputs, torch.tensor([0, 0]))
    np.testing.assert_allclose(losses, [[np.log1p(np.exp(-2)), np.log1p(np.exp(1))]], rtol=1e-6)


def test_who_has_samples_of_two_groups_belongs_to_both():
    """p0 has digits of both groups, whose names of the labels differ, 70 to 30; the others have those of one."""
    site = Site(METHOD, make_model, TrainSettings(lr=0.3, local_epochs=2), 0)
    hosted = list(people())
    own, other = hosted[0].train, hosted[3].train
    count = len(own)
    mixed = own.take(np.arange(count * 7 // 10)).joined(other.take(np.arange(count - count * 7 // 10)))
    site.add([replace(hosted[0], train=mixed), *hosted[1:]])
    crowd = [Participant(n, "local", len(d.train)) for n, d in site.hosted.items()]
    state = METHOD.start(lambda i: untrained(make_model, 0, i))
    running = Server(METHOD, site.runtime.resident.layout, crowd, ServerSettings(20), state)
    for number in range(20):
        for name, task in running.tasks().items():
            running.accept(site.carry_out(name, task, running.bank, number), "local")
        running.finish_round()
    shares = {name: mixture.shares for name, mixture in running.state.assignment.items()}
    mine, theirs = int(running.state.assignment["p1"]), int(running.state.assignment["p4"])
    assert mine != theirs
    assert 0.55 < shares["p0"][mine] < 0.85 and 0.15 < shares["p0"][theirs] < 0.45
    assert min(shares[f"p{i}"][theirs if i > 2 else mine] for i in range(1, 6)) > 0.8
