# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.data import Digits
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.methods import (
    CAM,
    IFCA,
    Contrastive,
    Download,
    Ensemble,
    FedAvg,
    Local,
    Proximal,
    ServerState,
    Update,
    WeCFL,
    build_method,
)
from cfl_flare.methods.cam import SHARED
from cfl_flare.results.analysis import analyse
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.resident import ResidentModel
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.settings import TrainSettings
from tests.helpers.play import MODEL, list_answered_slots, list_sent_slots, play_rounds
from tests.helpers.tiny import coin, make_coin_learner


def descend(start, frozen, labels, steps=1, lam=0.0):
    """SGD with learning rate 1 on the Coin's loss beside a frozen one, held to its start by lam."""
    start, theta = np.array(start, float), np.array(start, float)
    truth = np.mean([np.eye(2)[y] for y in labels], axis=0)
    for _ in range(steps):
        odds = np.exp(theta + frozen)
        theta = theta - (odds / odds.sum() - truth) - lam * (theta - start)
    return theta


def ifca(*models, shared=(1, -1)):
    """What a participant of IFCA-CAM is sent."""
    choices = {k: f"cluster-{k}" for k in range(len(models))}
    return Download((SHARED, *choices.values()), (coin(*shared), *(coin(*m) for m in models)), choices=choices)


def both(name, samples, slot, theta, shared, cluster=None):
    """An update of both parts."""
    return Update(name, samples, {slot: coin(*theta), SHARED: coin(*shared)}, cluster)


def make_cam_state(*models, shared=(0, 0), **more):
    bank = {f"cluster-{k}": coin(*model) for k, model in enumerate(models)}
    return ServerState({**bank, SHARED: coin(*shared)}, **more)


# Three labels in four are 0: the best difference of the two logits is log 3 = 1.1.
LABELS = [0, 0, 0, 1]


def test_ifca_cam_picks_the_cluster_with_which_the_sum_loses_least():
    """Eq. 2. By itself cluster 0 fits best (1.1); beside the global model's 2.0, cluster 1 does (2.0 - 0.9)."""
    download = ifca((0.55, -0.55), (-0.45, 0.45))
    assert IFCA(k=2).choose(make_coin_learner(LABELS), download) == 0
    found = CAM(base=IFCA(k=2), warmup=0).local_update(make_coin_learner(LABELS), download)
    assert found.cluster == 1
    assert set(found.diffs) == {"cluster-1", SHARED}
    served = CAM(base=IFCA(k=2), warmup=0).serve(make_coin_learner(LABELS), download)
    assert [m.vector.tolist() for m in served.models] == [[1, -1], coin(-0.45, 0.45).vector.tolist()]
    assert served.vote == "logits"


@pytest.mark.parametrize("steps", [1, 3])
def test_each_part_trains_beside_the_other_as_it_was_sent(steps):
    """Eq. 5 and 8, simultaneous: with three steps, seeing what the other becomes would give other numbers."""
    work = make_coin_learner(LABELS, steps=steps)
    found = CAM(base=IFCA(k=2), warmup=0).local_update(work, ifca((-0.5, 1), (5, -9)))
    theta, common = (
        descend((-0.5, 1), (1, -1), LABELS, steps),
        descend((1, -1), (-0.5, 1), LABELS, steps),
    )
    np.testing.assert_allclose(found.diffs["cluster-0"].vector, theta - [-0.5, 1], atol=1e-6)
    np.testing.assert_allclose(found.diffs[SHARED].vector, common - [1, -1], atol=1e-6)
    assert isinstance(work.trained, Served)
    np.testing.assert_allclose([m.vector for m in work.trained.models], [common, theta], atol=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_fesem_cam_holds_theta_near_its_centre_and_the_global_model_is_free(lam):
    """The gradient of Eq. 12 adds lam * (theta_i - Theta_c(i)): nothing in the first step, then something."""
    download = Download((SHARED, "cluster-1"), (coin(1, -1), coin(-0.5, 1)))
    found = CAM(base=WeCFL(k=2), warmup=0, lam=lam).local_update(make_coin_learner(LABELS, steps=3), download)
    held = descend((-0.5, 1), (1, -1), LABELS, 3, lam)
    np.testing.assert_allclose(found.diffs["cluster-1"].vector, held - [-0.5, 1], atol=1e-6)
    assert lam == 0 or not np.allclose(held, descend((-0.5, 1), (1, -1), LABELS, 3), atol=1e-3)
    np.testing.assert_allclose(found.diffs[SHARED].vector, descend((1, -1), (-0.5, 1), LABELS, 3) - [1, -1], atol=1e-6)


def test_lam_holds_only_where_the_server_clusters():
    download = ifca((-0.5, 1), (5, -9))
    found = [
        CAM(base=IFCA(k=2), warmup=0, lam=lam).local_update(make_coin_learner(LABELS, steps=3), download)
        for lam in (0, 9.0)
    ]
    np.testing.assert_array_equal(found[0].diffs["cluster-0"].vector, found[1].diffs["cluster-0"].vector)


def test_penalties_of_the_base_act_beside_the_frozen_global_model():
    base = IFCA(k=1, penalties=(Proximal(mu=0.3),))
    found = CAM(base=base, warmup=0).local_update(make_coin_learner(LABELS, steps=3), ifca((-0.5, 1)))
    held = descend((-0.5, 1), (1, -1), LABELS, 3, 0.3)
    np.testing.assert_allclose(found.diffs["cluster-0"].vector, held - [-0.5, 1], atol=1e-6)
    np.testing.assert_allclose(found.diffs[SHARED].vector, descend((1, -1), (-0.5, 1), LABELS, 3) - [1, -1], atol=1e-6)


UPDATES = [
    both("a", 1, "cluster-0", (4, 0), (1, 0), 0),
    both("b", 3, "cluster-0", (0, 8), (5, 4), 0),
    both("c", 4, "cluster-1", (2, 2), (0, 0), 1),
]


@pytest.mark.parametrize(
    ("step", "models"),
    [
        ("normalised", [[2, 6], [12, 2], [7, 7]]),  # thesis Eq. 7.6: 1 + (1*4 + 3*0)/4, 0 + (1*0 + 3*8)/4
        ("damped", [[1.5, 3], [11, 1], [7, 7]]),  # NeurIPS Eq. 6: half of all samples are in each cluster: half the way
    ],
)
def test_server_step(step, models):
    method = CAM(base=IFCA(k=3), warmup=0, step=step)
    state = make_cam_state((1, 0), (10, 0), (7, 7), shared=(0, 1))
    assignment = method.assign(state, UPDATES)
    after = method.aggregate(state, UPDATES, assignment)
    assert assignment == {"a": 0, "b": 0, "c": 1}
    assert [after.bank[f"cluster-{k}"].vector.tolist() for k in range(3)] == models
    assert after.bank[SHARED].vector.tolist() == [2, 2.5]  # Eq. 9: (1*1 + 3*5 + 4*0)/8, 1 + (3*4)/8
    assert (after.round, after.assignment) == (1, assignment)


def test_participants_count_the_same_in_both_parts_where_the_base_says_so():
    method = CAM(base=IFCA(k=3, weighting="uniform"), warmup=0)
    state = make_cam_state((1, 0), (10, 0), (7, 7), shared=(0, 1))
    after = method.aggregate(state, UPDATES, method.assign(state, UPDATES))
    assert after.bank["cluster-0"].vector.tolist() == [3, 4]
    np.testing.assert_allclose(after.bank[SHARED].vector, [2, 1 + 4 / 3], rtol=1e-6)


@pytest.mark.parametrize(("step", "centre"), [("normalised", 3.0), ("damped", 2.4)])
def test_fesem_cam_clusters_theta_i_whatever_theta_i_0_is(step, centre):
    """Eq. 11, weighted: (1*0 + 3*4)/4. Newcomers are sent the centres' mean (thesis Eq. 5.6)."""
    method = build_method({"method": "fesem-cam", "k": 2, "warmup": 0, "step": step})
    state = replace(make_cam_state((0, 0), (10, 10)).after({"global": coin(5, 5)}, {"a": 0, "b": 0, "c": 1}), round=1)
    updates = [
        both("a", 1, "cluster-0", (0, 0), (100, 0)),
        both("b", 3, "cluster-0", (4, 4), (0, 100)),
        both("c", 1, "cluster-1", (0, 0), (0, 100)),
    ]
    assignment = method.assign(state, updates)
    assert assignment == {"a": 0, "b": 0, "c": 1}
    after = method.aggregate(state, updates, assignment)
    np.testing.assert_allclose(after.bank["cluster-0"].vector, [centre, centre], rtol=1e-6)
    np.testing.assert_allclose(after.bank["cluster-1"].vector, [10, 10], rtol=1e-6)
    np.testing.assert_allclose(after.bank["global"].vector, [4 / 5 * centre + 1 / 5 * 10] * 2, rtol=1e-6)
    np.testing.assert_allclose(after.bank[SHARED].vector, [20, 80], rtol=1e-6)
    assert method.distribute(after, "new").slots == (SHARED, "global")
    newcomer = both("new", 1, "global", (3, 3), (0, 0))  # ends at (8, 8)
    assert method.assign(state, [*updates, newcomer])["new"] == 1


def test_a_cluster_that_nobody_chooses_stays_and_is_reported():
    class Biased(IFCA):
        def choose(self, learner, download):
            return 1

    played = play_rounds(CAM(base=Biased(k=3), warmup=1), 3)
    for slot in ("cluster-0", "cluster-2"):
        np.testing.assert_array_equal(played[-1].after.bank[slot].vector, played[0].before.bank[slot].vector)
    assert not np.array_equal(played[-1].after.bank["cluster-1"].vector, played[0].before.bank["cluster-1"].vector)
    assert [one.record["empty_clusters"] for one in played[1:3]] == [[0, 2]] * 2
    assert [one.record["clusters_in_use"] for one in played[1:3]] == [1, 1]


def test_fesem_cam_leaves_an_empty_cluster_where_it_is():
    method = CAM(base=WeCFL(k=3), warmup=0)
    state = make_cam_state((0, 0), (10, 10), (50, 50)).after({"global": coin(5, 5)})
    updates = [both("a", 1, "cluster-0", (1, 1), (0, 0)), both("b", 1, "cluster-1", (1, 1), (0, 0))]
    assignment = method.assign(state, updates)
    after = method.aggregate(state, updates, assignment)
    assert assignment == {"a": 0, "b": 1}
    assert [after.bank[f"cluster-{k}"].vector.tolist() for k in range(3)] == [[1, 1], [11, 11], [50, 50]]


# Whole rounds.


def test_ifca_cam_warms_up_as_fedavg_from_that_seed():
    settings = {"momentum": 0.9, "keep_momentum": True}
    warm, fedavg = (
        play_rounds(CAM(base=IFCA(k=2), warmup=2), 3, **settings),
        play_rounds(FedAvg(), 3, first=2, streams="shared.", **settings),
    )
    for one, plain in zip(warm[:2], fedavg[:2]):
        assert list_sent_slots(one) == list_answered_slots(one) == {(SHARED,)}
        np.testing.assert_array_equal(one.after.bank[SHARED].vector, plain.after.bank["global"].vector)
        assert one.after.assignment == {}
        assert one.record["bytes_down"] == plain.record["bytes_down"]
        assert "objective" not in one.record
        for k in range(2):
            assert one.after.bank[f"cluster-{k}"] is warm[0].before.bank[f"cluster-{k}"]
    assert warm[0].record["served_accuracy"] == fedavg[0].record["served_accuracy"]
    last = warm[2]
    assert list_sent_slots(last) == {(SHARED, "cluster-0", "cluster-1")}
    assert list_answered_slots(last) <= {("cluster-0", SHARED), ("cluster-1", SHARED)}
    assert set(last.after.assignment) == set(last.orders)
    assert isinstance(last.record["objective"], float)
    assert not np.array_equal(last.after.bank[SHARED].vector, fedavg[2].after.bank["global"].vector)


def test_fesem_cam_warms_up_with_each_participant_by_itself():
    warm = play_rounds(CAM(base=WeCFL(k=2), warmup=3), 4)
    for one in warm[:2]:
        assert list_sent_slots(one) == list_answered_slots(one) == {()}
        assert one.record["bytes_down"] == one.record["bytes_up"] == 0
        assert all(names == {"own"} for names in one.memory.values())
        assert set(one.after.bank) == {"global", SHARED}
    local = play_rounds(build_method({"method": "local"}), 3)
    assert [one.record["served_accuracy"] for one in warm[:2]] == [one.record["served_accuracy"] for one in local[:2]]
    last = warm[2]
    assert (list_sent_slots(last), list_answered_slots(last)) == ({("global",)}, {("global",)})
    assert set(last.after.bank) == {"global", SHARED, "cluster-0", "cluster-1"}
    first = warm[0].before.bank["global"]
    thetas = {n: (first + a.update.diffs["global"]).vector for n, a in last.answers.items()}
    for k in range(2):
        members = [n for n, c in last.after.assignment.items() if c == k]
        weights = [a.update.samples for n, a in last.answers.items() if n in members]
        mean = np.average([thetas[n] for n in members], axis=0, weights=weights)
        np.testing.assert_allclose(last.after.bank[f"cluster-{k}"].vector, mean, atol=1e-6)
    np.testing.assert_array_equal(last.after.bank[SHARED].vector, warm[0].before.bank[SHARED].vector)
    assert last.record["bytes_up"] == 6 * warm[0].before.bank[SHARED].layout.nbytes
    after = warm[3]
    assert all(slots[0] == SHARED and slots[1].startswith("cluster-") for slots in list_sent_slots(after))
    assert all(names == set() for names in after.memory.values())


@pytest.mark.parametrize("warmup", [0, 1])
def test_the_shortest_warm_ups_of_fesem_cam(warmup):
    played = play_rounds(CAM(base=WeCFL(k=2), warmup=warmup), 2)
    assert list_sent_slots(played[0]) == ({(SHARED, "global")}, {("global",)})[warmup]
    assert list_answered_slots(played[0]) == ({("global", SHARED)}, {("global",)})[warmup]
    assert set(played[0].after.assignment.values()) == {0, 1}
    moves = np.any(played[0].after.bank[SHARED].vector != played[0].before.bank[SHARED].vector)
    assert moves == (warmup == 0)


def test_without_a_warm_up_ifca_cam_clusters_at_once():
    played = play_rounds(CAM(base=IFCA(k=2), warmup=0), 1)
    assert list_sent_slots(played[0]) == {(SHARED, "cluster-0", "cluster-1")}
    assert len(played[0].after.assignment) == 6


@pytest.mark.parametrize("base", [IFCA(k=2), WeCFL(k=2)], ids=lambda m: m.name)
def test_alternating_trains_the_clusters_then_the_global_model(base):
    played = play_rounds(CAM(base=base, warmup=1, updates="alternating"), 5)
    for number in (1, 3):
        one = played[number]
        np.testing.assert_array_equal(one.after.bank[SHARED].vector, one.before.bank[SHARED].vector)
        assert all(len(slots) == 1 and slots[0].startswith("cluster-") for slots in list_answered_slots(one))
    for number in (2, 4):
        one = played[number]
        assert list_answered_slots(one) == {(SHARED,)}
        assert "objective" not in one.record
        assert not np.array_equal(one.after.bank[SHARED].vector, one.before.bank[SHARED].vector)
        for k in range(2):
            assert one.after.bank[f"cluster-{k}"] is one.before.bank[f"cluster-{k}"]
        if isinstance(base, IFCA):
            assert list_sent_slots(one) == {(SHARED, "cluster-0", "cluster-1")}
            assert one.after.assignment == {n: a.update.cluster for n, a in one.answers.items()}
        else:
            assert {n: o.slots for n, o in one.orders.items()} == {
                n: (SHARED, f"cluster-{c}") for n, c in one.before.assignment.items()
            }
            assert one.after.assignment == one.before.assignment


def test_the_second_half_of_an_alternating_round_assigns_anew():
    """Fed-CAM sec. 3.1, (i) -> (ii) -> (i) -> (iii): the cluster that fits has moved, so the choice is another one."""
    method = CAM(base=IFCA(k=2), warmup=0, updates="alternating")
    state = replace(make_cam_state((0.55, -0.55), (-0.45, 0.45), shared=(1, -1)), round=1, assignment={"p": 0})
    sent = method.distribute(state, "p")
    assert (sent.slots, sent.returned) == ((SHARED, "cluster-0", "cluster-1"), (SHARED,))
    work = make_coin_learner(LABELS)
    work.round = 1
    found = method.local_update(work, replace(sent, models=tuple(state.bank[slot] for slot in sent.slots)))
    assert (found.cluster, set(found.diffs)) == (1, {SHARED})
    np.testing.assert_allclose(found.diffs[SHARED].vector, descend((1, -1), (-0.45, 0.45), LABELS) - [1, -1], atol=1e-6)
    others = [Update("q", 1, {SHARED: coin(2, 0)}, 0), Update("r", 3, {SHARED: coin(0, 4)}, 1)]
    after = method.aggregate(state, others, method.assign(state, others))
    assert (after.round, after.assignment) == (2, {"p": 0, "q": 0, "r": 1})
    assert after.bank[SHARED].vector.tolist() == [1.5, 2]  # Eq. 9: 1 + (1*2 + 3*0)/4, -1 + (1*0 + 3*4)/4
    assert all(after.bank[slot] is state.bank[slot] for slot in ("cluster-0", "cluster-1"))


def test_the_same_participants_train_both_halves_of_an_alternating_round():
    played = play_rounds(CAM(base=IFCA(k=2), warmup=1, updates="alternating"), 9, sample=3)
    asked = [{n for n, order in one.orders.items() if order.train} for one in played[:9]]
    assert all(asked[i] == asked[i + 1] for i in (1, 3, 5, 7))
    assert len(set(map(frozenset, asked[1::2]))) > 1


def test_half_an_alternating_round_at_the_end_is_refused():
    with pytest.raises(ConfigError, match=r"takes two rounds, .* but 3 are left after warmup = 2; take 6 rounds"):
        play_rounds(CAM(base=IFCA(k=2), warmup=2, updates="alternating"), 5)


@pytest.mark.parametrize("base", [IFCA(k=2), WeCFL(k=2)], ids=lambda m: m.name)
def test_sampled_rounds(base):
    played = play_rounds(CAM(base=base, warmup=2), 6, sample=3)
    asked = {n for one in played[2:6] for n, order in one.orders.items() if order.train}
    before = {n for n, o in played[1].orders.items() if o.train} if isinstance(base, WeCFL) else set()
    assert set(played[-1].after.assignment) == asked | before
    unseen = [o.slots for n, o in played[2].orders.items() if n not in played[2].before.assignment]
    assert set(unseen) == {(SHARED, "cluster-0", "cluster-1") if base.traits.assigns_on_site else (SHARED, "global")}
    for one in played:
        for name in one.before.assignment.keys() - {n for n, o in one.orders.items() if o.train}:
            assert one.after.assignment[name] == one.before.assignment[name]


@pytest.mark.parametrize("base", [IFCA(k=1), WeCFL(k=1)], ids=lambda m: m.name)
def test_one_cluster_works(base):
    played = play_rounds(CAM(base=base, warmup=1), 3)
    assert set(played[-1].after.assignment.values()) == {0}


@pytest.mark.parametrize("updates", ["simultaneous", "alternating"])
@pytest.mark.parametrize("step", ["normalised", "damped"])
@pytest.mark.parametrize("base", [IFCA(k=2), WeCFL(k=2)], ids=lambda m: m.name)
@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_what_learns_nothing_stays_where_it_is(base, step, updates):
    """Steps too short for float32 leave every theta where it started: so are all centres, whatever is averaged."""
    played = play_rounds(CAM(base=base, warmup=1, step=step, updates=updates), 3, lr=1e-30)
    start = played[0].before.bank
    for slot, model in played[-1].after.bank.items():
        np.testing.assert_allclose(model.vector, start[slot if slot in start else "global"].vector, atol=1e-6)


def test_few_shot_clustering_counts_the_rounds_that_cluster():
    """Two E-steps, whatever the warm-up and the global model's rounds: the first makes the centres."""
    state = make_cam_state((0, 0), (10, 10)).after({"global": coin(5, 5)}, {"a": 0})
    update = [both("a", 1, "cluster-0", (9, 9), (0, 0))]
    for updates, rounds_, found in (
        ("simultaneous", (5, 6, 7), [1, 0, 0]),
        ("alternating", (5, 7, 9), [1, 0, 0]),
    ):
        method = CAM(base=WeCFL(k=2, clustering_rounds=2), warmup=5, updates=updates)
        assert [method.assign(replace(state, round=r), update)["a"] for r in rounds_] == found


def test_finetuning_trains_each_part_beside_what_the_other_was():
    """Thesis sec. 7.4.4."""
    work = make_coin_learner(LABELS, steps=2)
    served = CAM(base=IFCA(k=1), warmup=0, finetune=True).build_predictor(work, ifca((-0.5, 1)))
    assert isinstance(served, Served)
    expected = [descend((1, -1), (-0.5, 1), LABELS, 2), descend((-0.5, 1), (1, -1), LABELS, 2)]
    np.testing.assert_allclose([m.vector for m in served.models], expected, atol=1e-6)
    assert work.memory == {}


def test_finetuning_in_the_warm_up_trains_the_part_that_is_there_with_its_own_momentum():
    settings = {"momentum": 0.9, "keep_momentum": True}
    tuned = play_rounds(CAM(base=IFCA(k=2), warmup=2, finetune=True), 3, **settings)
    plain = play_rounds(build_method({"method": "finetune"}), 2, first=2, streams="shared.", **settings)
    assert tuned[0].record["served_loss"] == plain[0].record["served_loss"]
    own, local = (
        play_rounds(method, 3) for method in (CAM(base=WeCFL(k=2), warmup=2, finetune=True), Local(finetune=True))
    )
    assert own[0].record["served_loss"] == local[0].record["served_loss"]


@pytest.mark.parametrize("base", [IFCA(k=2), WeCFL(k=2)], ids=lambda m: m.name)
def test_trained_models_are_measured_in_every_round(base):
    played = play_rounds(CAM(base=base, warmup=2), 3, trained=True, evaluate_every=1)
    for one in played[1:3]:
        assert all(0 <= a.metrics["trained_accuracy"] <= 1 for a in one.answers.values())


def test_analysis_is_of_the_clusters_parts():
    """The objective of a and b around (2, 6): |(5,0) - (2,6)|^2 = 45 and |(1,8) - (2,6)|^2 = 5."""
    method = CAM(base=IFCA(k=3), warmup=0)
    state = make_cam_state((1, 0), (10, 0), (7, 7), shared=(0, 1))
    assignment = method.assign(state, UPDATES)
    found = analyse(method, state, method.aggregate(state, UPDATES, assignment), UPDATES, assignment)
    assert found["objective"] == pytest.approx((1 * 45 + 3 * 5 + 4 * 0) / 8)
    mean = np.array([1.0, 6.0])
    farthest = np.sqrt(np.square(np.array([4, 0]) - mean).sum())
    assert found["clusterability"] == [pytest.approx(farthest / np.sqrt(37)), 0.0, None]


# The gradient of the sum.


class TwoLayers(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class NormedTwoLayers(nn.Module):
    """Two layers with BatchNorm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def untouched(module_class, seed):
    """A model with running statistics that are not those of any batch here."""
    torch.manual_seed(seed)
    module = module_class()
    for _ in range(3):
        module(torch.randn(9, 4) * 2 + 1)
    return ResidentModel(module).read()


def double(module_class, model):
    module = module_class().double()
    module.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in model.arrays().items()})
    return module


@pytest.mark.parametrize("module_class", [TwoLayers, NormedTwoLayers])
def test_the_gradient_beside_a_frozen_model_is_that_of_finite_differences(module_class):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)
    settings = TrainSettings(lr=1.0, momentum=0.0, local_steps=1, batch_size=8)
    work = Learner(Runtime(module_class, settings, seed=0), "p", Split(x, y), Split(x, y), {})
    start, frozen = untouched(module_class, 1), untouched(module_class, 2)
    kept = frozen.vector.copy(), frozen.counters.copy()
    trained = work.beside(frozen).train(start)
    size = start.layout.parameter_size
    gradient = (start.vector - trained.vector)[:size]

    beside = double(module_class, frozen).eval()(x.double()).detach()

    def loss(vector):
        module = double(module_class, replace(start, vector=vector)).train()
        return F.cross_entropy(module(x.double()) + beside, y).item()

    numbers = np.zeros(size)
    for i in range(size):
        step = np.zeros(start.layout.size)
        step[i] = 1e-6
        numbers[i] = (loss(start.vector + step) - loss(start.vector - step)) / 2e-6
    np.testing.assert_allclose(gradient, numbers, atol=2e-6)
    assert np.abs(gradient).max() > 0.01

    np.testing.assert_array_equal(frozen.vector, kept[0])  # running statistics included
    np.testing.assert_array_equal(frozen.counters, kept[1])
    alone = work.train(start)
    assert not np.allclose(alone.vector[:size], trained.vector[:size], atol=1e-3)
    np.testing.assert_array_equal(alone.vector[size:], trained.vector[size:])  # the batch's statistics, of one part
    np.testing.assert_array_equal(alone.counters, trained.counters)


# What is refused.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": FedAvg()}, r"base = FedAvg\(.*\) should be a method that clusters"),
        ({"base": "ifca"}, "base = 'ifca' should be a method that clusters"),
        ({"base": None}, "base = None should be a method that clusters"),
        ({"base": 3}, "base = 3 should be a method that clusters"),
        ({"base": CAM(base=IFCA(k=2))}, "base = ifca-cam predicts with several models"),
        ({"base": Ensemble(parts=(FedAvg(), IFCA(k=2)))}, r"base = fedavg\+ifca predicts with several models"),
        ({"base": IFCA(k=2, shared_backbone=True)}, "base = ifca has its models in parts, as with shared_backbone"),
        ({"base": IFCA(k=2, finetune=True)}, "finetune belongs to the whole"),
        ({"warmup": -1}, "warmup = -1 should be >= 0"),
        ({"warmup": 1.5}, "warmup = 1.5 should be int"),
        ({"warmup": float("nan")}, "warmup = nan should be int"),
        ({"warmup": True}, "warmup = True should be int"),
        ({"lam": -0.1}, "lam = -0.1 should be >= 0"),
        ({"lam": float("nan")}, "lam = nan should be >= 0"),
        ({"lam": float("inf")}, "lam = inf should be >= 0"),
        ({"lam": "0.1"}, "lam = '0.1' should be float"),
        ({"updates": "both"}, "updates = 'both' should be 'simultaneous' or"),
        ({"updates": None}, "updates = None should be 'simultaneous' or 'alternating', not NoneType"),
        ({"step": "half"}, "step = 'half' should be 'normalised' or"),
        ({"weighting": "uniform"}, "weighting belongs to the methods in it"),
        ({"penalties": [Contrastive()]}, "belong to the methods inside it"),
        ({"k": 3}, "unknown setting 'k'"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "cam", "base": IFCA(k=2), **settings})


def test_a_base_must_be_named():
    with pytest.raises(ConfigError, match="setting 'base' is missing"):
        build_method({"method": "cam"})


@pytest.mark.parametrize("participants", [4, None])
def test_a_warm_up_that_leaves_no_rounds_is_refused_before_the_start(participants):
    method = CAM(base=IFCA(k=2), warmup=3)
    dealt = {"participants": participants, "partition": "iid" if participants else None}
    run = {"method": method, "model": MODEL, "data": Digits(), "min_clients": 1, **dealt}
    check_plans([RunPlan.of(**run, num_rounds=4)])
    with pytest.raises(ConfigError, match="warmup = 3 leaves none of 3 rounds; lower it"):
        check_plans([RunPlan.of(**run, num_rounds=3)])
    if participants:
        with pytest.raises(ConfigError, match="warmup = 3 leaves none of 3 rounds; lower it"):
            play_rounds(method, 3)
