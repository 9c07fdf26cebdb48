# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""CFL, by recursive splits, and CFL-GP, by gradients at one model; by numbers computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cfl_flare.engine.round
from cfl_flare.clustering.floor import Census, Floor
from cfl_flare.core.arrays import Archive
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import ServerSettings
from cfl_flare.engine.task import check_update
from cfl_flare.extensions import present_results
from cfl_flare.methods import (
    CFL,
    CFLGP,
    Download,
    Ensemble,
    FedAvg,
    ServerState,
    Update,
    build_method,
)
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import state_metadata, state_of
from cfl_flare.training.runtime import Split
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.play import MODEL, assert_same_bank, list_sent_slots, play_rounds
from tests.helpers.tiny import (
    LAYOUT,
    Coin,
    coin,
    initial,
    make_coin_learner,
    make_updates,
    read_model,
    step_method,
    update,
)

# Two opposed directions. Weighted by 3, 1, 1, 1 the mean is (0, 0.05); the longest is 2.00998.
OPPOSED = {"a": (1, 0), "b": (1, 0.1), "c": (-2, 0), "d": (-2, 0.2)}
SAMPLES = {"a": 3}
SPLITS_ALWAYS = CFL(eps1=1e9, eps2=0)


def step_expected_slots(method: CFL, state: ServerState, updates: list[Update]) -> ServerState:
    """One round; the participants' slots are those that they are sent."""
    for u in updates:
        assert method.distribute(state, u.participant).slots == tuple(u.diffs)
    return step_method(method, state, updates)


def take_first_step(method: CFL, **more: tuple[float, float]) -> ServerState:
    return step_expected_slots(method, method.start(initial), make_updates({**OPPOSED, **more}))


@pytest.mark.parametrize(
    ("settings", "split"),
    [
        ({"eps1": 0.051, "eps2": 2.0}, True),
        ({"eps1": 0.049, "eps2": 2.0}, False),  # the mean has not come to rest
        ({"eps1": 0.051, "eps2": 2.02}, False),  # nobody pulls
        ({"eps1": 0.051, "eps2": 2.0, "weighting": "uniform"}, False),  # the plain mean is (-0.5, 0.075)
        ({"eps1": 0.51, "eps2": 2.0, "weighting": "uniform"}, True),
        ({"eps1": 0.051, "eps2": 2.0, "min_rounds": 1}, False),
        ({"eps1": 0.051, "eps2": 2.0, "cluster_on": ["head.weight"]}, True),
        ({"eps1": 0.051, "eps2": 2.0, "linkage": "single"}, True),
    ],
)
def test_it_splits_where_the_paper_says_and_not_before(settings: dict[str, Any], split: bool) -> None:
    method = CFL(**settings)
    state = take_first_step(method)
    assert state.assignment == ({"a": 0, "b": 0, "c": 1, "d": 1} if split else dict.fromkeys("abcd", 0))
    assert method.count_clusters(state) == 1 + split
    assert state.extras["splits"] == [0] * split


def test_both_halves_start_from_the_cluster_s_model_and_go_on_by_themselves() -> None:
    method = CFL(eps1=0.06, eps2=2)
    state = take_first_step(method)
    assert {slot: read_model(state, slot) for slot in state.bank} == {
        "cluster-0": [0, 0.05],
        "cluster-1": [0, 0.05],
        "parent-1": [0, 0],
        "stayed-1": [1, 0.025],
        "left-1": [-2, 0.1],
    }
    state = step_expected_slots(
        method, state, [*make_updates({"a": (4, 0), "b": (0, 4)}), *make_updates({"d": (-1, 0)}, "cluster-1")]
    )
    assert read_model(state, "cluster-0") == [3, 1.05]
    assert read_model(state, "cluster-1") == [-1, 0.05]
    assert state.extras["splits"] == [0]
    assert set(method.list_models(state, LAYOUT)) == {"cluster-0", "cluster-1"}


def test_a_split_needs_two_present_members_and_a_direction_needs_no_length() -> None:
    assert (
        SPLITS_ALWAYS.count_clusters(
            step_expected_slots(SPLITS_ALWAYS, SPLITS_ALWAYS.start(initial), make_updates({"a": (1, 1)}))
        )
        == 1
    )
    state = step_expected_slots(
        SPLITS_ALWAYS, SPLITS_ALWAYS.start(initial), make_updates({"a": (1, 0), "b": (0, 0), "c": (5, 1)})
    )
    assert state.assignment == {"a": 0, "b": 1, "c": 0}


def test_gamma_max_keeps_together_what_is_not_apart() -> None:
    """The largest cosine between the halves of OPPOSED is that of b and d, -1.98 / (1.00499 * 2.00998) = -0.9802."""
    assert take_first_step(CFL(eps1=0.06, eps2=2, gamma_max=0.9)).extras["splits"] == [0]
    right = {"a": (1, 0), "b": (0, 1), "c": (-1, -1)}  # b and c at -0.71, a and b at 0, a and c at -0.71
    for gamma, splits in ((0.9, [0]), (None, [0])):
        method = CFL(eps1=10, eps2=0.1, gamma_max=gamma)
        assert step_expected_slots(method, method.start(initial), make_updates(right)).extras["splits"] == splits
    alike = {"a": (2, 1), "b": (1, 2)}  # 0.8 = sqrt((1 - gamma) / 2) has no gamma in [0, 1); the largest is 0.707
    method = CFL(eps1=10, eps2=0.1, gamma_max=0.0)
    assert step_expected_slots(method, method.start(initial), make_updates(alike)).extras["splits"] == []


def test_ids_are_stable_and_splits_go_on_over_rounds() -> None:
    method = CFL(eps1=0.06, eps2=1.9)
    state = take_first_step(method)
    both = [*make_updates({"a": (1, 9), "b": (1, -27)}), *make_updates({"c": (2, 1), "d": (-2, -1)}, "cluster-1")]
    state = step_expected_slots(
        method, state, both
    )  # the weighted mean of a and b is (1, 0): only cluster 1 is at rest
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 2}
    assert state.extras["splits"] == [0, 1]
    assert (
        read_model(state, "cluster-1") == read_model(state, "cluster-2") == read_model(state, "parent-2") == [0, 0.05]
    )
    state = step_expected_slots(
        method,
        state,
        [
            *make_updates({"a": (1, 0), "b": (-3, 0)}),
            update("c", 1, "cluster-1", 9, 9),
            update("d", 1, "cluster-2", 1, 0),
        ],
    )
    assert state.assignment == {"a": 0, "b": 3, "c": 1, "d": 2}
    assert state.extras["splits"] == [0, 1, 0]
    assert method.count_clusters(state) == 4


def test_two_clusters_may_be_split_in_one_round() -> None:
    method = CFL(eps1=0.06, eps2=1)
    state = take_first_step(method)
    both = [*make_updates({"a": (1, 0), "b": (-3, 0)}), *make_updates({"c": (2, 1), "d": (-2, -1)}, "cluster-1")]
    state = step_expected_slots(method, state, both)
    assert state.assignment == {"a": 0, "b": 2, "c": 1, "d": 3}
    assert state.extras["splits"] == [0, 0, 1]


def test_who_was_absent_chooses_a_half_at_the_next_appearance() -> None:
    method = CFL(eps1=0.06, eps2=1)
    state = step_expected_slots(method, method.start(initial), make_updates({"e": (0.1, 0.1), "f": (0.1, 0)}))
    start = read_model(state, "cluster-0")
    state = step_expected_slots(method, state, make_updates(OPPOSED))
    moved = read_model(state, "cluster-0")
    assert method.distribute(state, "e").slots == ("parent-1",)
    assert read_model(state, "parent-1") == start != moved  # what the others' updates were to
    assert state.assignment["e"] == 0
    state = step_expected_slots(method, state, make_updates({"e": (-0.1, 9.0), "f": (3, 0)}, "parent-1"))
    assert (state.assignment["e"], state.assignment["f"]) == (1, 0)
    assert read_model(state, "cluster-0") == read_model(state, "cluster-1") == moved  # it counts in no mean
    assert [method.distribute(state, n).slots for n in "ef"] == [("cluster-1",), ("cluster-0",)]


def test_a_newcomer_goes_down_the_tree_of_splits_one_a_round() -> None:
    method = CFL(eps1=0.06, eps2=1.9)
    state = take_first_step(method)
    both = [*make_updates({"c": (2, 1), "d": (-2, -1)}, "cluster-1")]
    state = step_expected_slots(method, state, both)
    assert state.extras["splits"] == [0, 1]
    for expected, move in (("parent-1", (-1, 0)), ("parent-2", (-1, -1)), ("cluster-2", (0, 0))):
        assert method.distribute(state, "new").slots == (expected,)
        state = step_expected_slots(method, state, make_updates({"new": move}, expected))
    assert state.assignment["new"] == 2
    assert method.distribute(state, "other").slots == ("parent-1",)
    state = step_expected_slots(method, state, make_updates({"other": (1, 0)}, "parent-1"))
    assert method.distribute(state, "other").slots == ("cluster-0",)


def test_choosing_a_half_that_is_split_in_the_same_round() -> None:
    """It is then absent in the new split, and chooses again."""
    method = CFL(eps1=0.06, eps2=1.9)
    state = take_first_step(method)
    again = [*make_updates({"a": (1, 0), "b": (-3, 0)}), *make_updates({"new": (1, 0)}, "parent-1")]
    state = step_expected_slots(method, state, again)
    assert state.extras["splits"] == [0, 0]
    assert state.assignment == {"a": 0, "b": 2, "c": 1, "d": 1, "new": 0}
    assert method.distribute(state, "new").slots == ("parent-2",)
    state = step_expected_slots(method, state, make_updates({"new": (-1, 0)}, "parent-2"))
    assert state.assignment["new"] == 2


@pytest.mark.parametrize("never", [{"eps1": 0.0, "eps2": 0.0}, {"eps1": 9.0, "eps2": 1e9}, {"eps1": 9.0, "eps2": 0.0}])
def test_never_splitting_is_fedavg(never: dict[str, Any]) -> None:
    never = never if never["eps1"] == 0 or never["eps2"] else {**never, "min_rounds": 99}
    more: dict[str, Any] = {"keep_momentum": True, "momentum": 0.9, "sample": 4}
    one, fedavg = play_rounds(CFL(**never), 4, **more), play_rounds(FedAvg(), 4, **more)
    assert_same_bank(one[-1].after.bank, fedavg[-1].after.bank, "cluster-0", "global")
    assert one[-1].record == {} and one[0].record["cluster_sizes"] == [4]


def test_sampling_and_updates_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for limit in (2**30, 0):
        monkeypatch.setattr(cfl_flare.engine.round, "SPOOL_BYTES", limit)
        found.append(play_rounds(SPLITS_ALWAYS, 5, sample=4))
    assert_same_bank(found[0][-1].after.bank, found[1][-1].after.bank)
    assert found[0][-1].after.assignment == found[1][-1].after.assignment
    assert any("parent-1" in slots for one in found[0] for slots in list_sent_slots(one))
    sizes = [one.record["cluster_sizes"] for one in found[0][:-1]]
    assert len(sizes[0]) == 2 <= len(sizes[1]) <= len(sizes[-1])


def test_beside_another_method() -> None:
    both, alone = (
        play_rounds(Ensemble(parts=(FedAvg(), SPLITS_ALWAYS)), 3),
        play_rounds(SPLITS_ALWAYS, 3, first=1, streams="1."),
    )
    assert_same_bank(both[-1].after.bank, alone[-1].after.bank, "1.")
    assert both[-1].after.assignment == alone[-1].after.assignment
    assert both[1].record["cluster_sizes"] == alone[1].record["cluster_sizes"]


def test_its_state_is_json_and_models() -> None:
    state = play_rounds(SPLITS_ALWAYS, 3, sample=4)[-1].after
    again = state_of(state.bank, json.loads(json.dumps(state_metadata(state))))
    assert again == replace(state, bank=again.bank)


def test_the_groups_of_the_digits_are_found(tmp_path: Path) -> None:
    run_loop(
        method=CFL(eps1=1.0, eps2=1.9),
        model=MODEL,
        source=Digits(),
        data=DataConfig(9, {"partition": "label_permutation", "groups": 3}),
        settings=ServerSettings(10, keep_features=True),
        training=TrainSettings(lr=0.1, local_steps=10),
        folder=tmp_path,
    )
    run = load_run(tmp_path)
    assert run.summary["final"]["ari"] == 1.0
    assert run.summary["clusters"] == 3
    assert sorted({len(r["cluster_sizes"]) for r in run.rounds}) == [1, 2, 3]
    assert run.rounds[-1]["served_accuracy"] > run.rounds[1]["served_accuracy"] + 0.2
    assert present_results(tmp_path) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "setting 'eps1' is missing"),
        ({"eps1": -1.0}, "eps1 = -1.0 should be >= 0"),
        ({"eps2": float("nan")}, "eps2 = nan should be >= 0"),
        ({"min_rounds": -1}, "min_rounds = -1 should be >= 0"),
        ({"gamma_max": 1.0}, r"gamma_max = 1.0 should be in \[0, 1\) or None"),
        ({"linkage": "ward"}, r"linkage = 'ward' should be 'complete' or 'single'"),
        ({"cluster_on": "tail"}, "cluster_on = 'tail' should be one of"),
        ({"eps1": "x"}, "eps1 = 'x' should be float, not str"),
        ({"penalties": [{"penalty": "knowledge_sharing"}]}, "needs a method with clusters: ifca, fesem or wecfl"),
    ],
)
def test_refusals(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "cfl", **({"eps1": 1.0, "eps2": 1.0} if spec else {}), **spec})


def test_a_part_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="cluster_on = 'backbone' does not fit the model"):
        CFL(eps1=1, eps2=1, cluster_on="backbone").check(LAYOUT)


GP_SAMPLES = {"a": 3, "b": 1, "c": 2}
CFL_GP = CFLGP(k=2, every=1)
# By direction c is apart.
GRADIENTS = {"a": (1.0, 0.0), "b": (1.1, 0.0), "c": (0.0, 1.0)}


@pytest.fixture
def archive(tmp_path) -> Archive:
    return Archive(tmp_path)


def gp_sent(state: ServerState, gradients=GRADIENTS, ends: dict[str, float] | None = None) -> list[Update]:
    """Gradients, beside them the models at these numbers of those that have a cluster."""
    updates = []
    for name, gradient in gradients.items():
        slots = CFL_GP.distribute(state, name).returned
        moved = {slots[-1]: coin(*gradient)}
        if ends is not None:
            moved = {slots[0]: coin(ends[name] - state.bank[slots[0]].vector[0], 0), **moved}
        updates.append(Update(name, GP_SAMPLES[name], moved, main=slots[0]))
    return updates


def gp_step(state: ServerState, updates: list[Update], archive: Archive, method: CFLGP = CFL_GP) -> ServerState:
    state = replace(state, archive=archive)
    return step_method(method, state, updates)


def test_all_take_their_gradient_at_one_model_which_changes_in_turn(archive):
    """In the paper's code each takes it at its own cluster's model from round 2 on, so that they do not compare."""
    state = CFL_GP.start(initial)
    assert CFL_GP.plan(state).everyone and CFL_GP.plan(state).fewest == 2
    assert CFL_GP.distribute(state, "a") == Download(("criterion-0",))
    assert read_model(state, "criterion-0") == [0, 0]
    state = gp_step(state, gp_sent(state), archive)
    assert state.assignment == {"a": 0, "b": 0, "c": 1}
    assert (read_model(state, "cluster-0"), read_model(state, "cluster-1")) == (
        [0, 0],
        [1, -1],
    )  # gradients count nowhere
    assert {slot: read_model(state, slot) for slot in state.bank if slot.startswith("crit")} == {"criterion-1": [1, -1]}
    for name, own in (("a", "cluster-0"), ("c", "cluster-1")):
        order = CFL_GP.distribute(state, name)
        assert (order.slots, order.to_train, order.returned) == ((own,), ("criterion-1",), (own, "criterion-1"))


def test_a_model_counts_in_its_new_cluster_unweighted_and_gradients_of_one_criterion_are_averaged(archive):
    state = gp_step(CFL_GP.start(initial), gp_sent(CFL_GP.start(initial)), archive)
    moved = {"a": (1.0, 0.0), "b": (0.0, 9.0), "c": (0.0, 9.0)}  # b is now like c
    state = gp_step(state, gp_sent(state, moved, {"a": 6, "b": 8, "c": -4}), archive)
    assert state.assignment == {"a": 0, "b": 1, "c": 1}
    assert read_model(state, "cluster-0") == [6, 0]
    assert read_model(state, "cluster-1") == [2, -0.5]  # (8, 0) and (-4, -1)
    assert read_model(state, "criterion-2") == [6, 0]
    state = gp_step(
        state, gp_sent(state, {"a": (3.0, 0.0), "b": (3.1, 4.0), "c": (0.0, 5.0)}, dict.fromkeys("abc", 0)), archive
    )
    version, times = state.extras["gradients"]["a"]["0"]
    assert (version, times) == (2, 2)
    np.testing.assert_allclose(archive.get("a.0", version), [2, 0])  # of (1, 0) and (3, 0)
    assert state.extras["gradients"]["a"]["1"] == [1, 1]


def test_labels_follow_the_greatest_overlap(archive):
    state = gp_step(CFL_GP.start(initial), gp_sent(CFL_GP.start(initial)), archive)
    swapped = replace(state, assignment={"a": 1, "b": 1, "c": 0})
    state = gp_step(swapped, gp_sent(swapped, ends=dict.fromkeys("abc", 0)), archive)
    assert state.assignment == {"a": 1, "b": 1, "c": 0}


def test_the_silhouette_says_how_many_clusters_there_are(archive):
    """Three directions, each of two participants; without it, five clusters are asked for."""
    turned = {"a": (9.0, 0.0), "b": (9.1, 0.0), "c": (0.0, 9.0), "d": (0.0, 9.2), "e": (-9.0, -9.0), "f": (-9.1, -9.0)}
    updates = [Update(name, 1, {"criterion-0": coin(*gradient)}) for name, gradient in turned.items()]
    for method, clusters in ((CFLGP(k=5, silhouette=True), 3), (CFLGP(k=5), 5)):
        state = method.start(initial)
        assert method.plan(state).fewest == (2 if method.silhouette else 5)
        state = gp_step(state, updates, archive, method)
        placed = state.assignment
        assert len({*placed.values()}) == clusters and {*placed.values()} <= {*range(5)}
        assert clusters == 5 or (placed["a"] == placed["b"], placed["c"], placed["e"]) == (
            True,
            placed["d"],
            placed["f"],
        )
        assert method.count_clusters(state) == 5 and len([slot for slot in state.bank if slot.startswith("clu")]) == 5


def test_the_first_clustering_avoids_a_local_optimum(archive):
    """Of 40 random gradients and 8 clusters, 10 or 20 starts of k-means end at 9.585, 100 or 400 starts at 9.189."""
    gradients = np.random.default_rng(0).normal(size=(40, 2))
    updates = [Update(f"p{i}", 1, {"criterion-0": coin(*row)}) for i, row in enumerate(gradients)]
    method = CFLGP(k=8)
    placed = gp_step(method.start(initial), updates, archive, method).assignment
    labels = np.array([placed[f"p{i}"] for i in range(40)])
    spread = sum(((gradients[labels == k] - gradients[labels == k].mean(axis=0)) ** 2).sum() for k in range(8))
    assert spread == pytest.approx(9.189, abs=1e-3)


def test_it_clusters_every_few_rounds_until_it_is_frozen(archive):
    method = CFLGP(k=2, every=2, clustering_rounds=4)
    state, due = method.start(initial), []
    for _ in range(6):
        due.append(state.extras["due"])
        slots = {name: method.distribute(state, name).returned for name in GP_SAMPLES}
        updates = [
            Update(n, GP_SAMPLES[n], {s: coin(*GRADIENTS[n]) for s in slots[n]}, main=slots[n][0]) for n in GP_SAMPLES
        ]
        state = gp_step(state, updates, archive, method)
    assert due == [True, False, True, False, False, False]
    assert not [slot for slot in state.bank if slot.startswith("criterion")]


def test_a_newcomer_chooses_by_its_losses_also_after_a_run_that_ended_before_a_clustering(archive):
    state = gp_step(CFL_GP.start(initial), gp_sent(CFL_GP.start(initial)), archive)
    joining = CFL_GP.join(state, Update("z", 9, {"criterion-1": coin(1, 1)}))
    order = CFL_GP.distribute(joining, "z")
    assert order.choices == {0: "cluster-0", 1: "cluster-1"}
    told = replace(order, models=(coin(0, 0), coin(1, -1)))
    chosen = CFL_GP.local_update(make_coin_learner([0, 0]), told)
    assert (chosen.cluster, [*chosen.diffs]) == (1, ["cluster-1"])
    joined = CFL_GP.join(joining, replace(chosen, participant="z"))
    assert joined.assignment == {**state.assignment, "z": 1} and joined.bank is joining.bank
    assert CFL_GP.distribute(joined, "z").slots == ("cluster-1",)
    assert CFL_GP.serve(make_coin_learner([1]), told).vector.tolist() == [0, 0]


def test_the_gradient_is_of_all_training_data_whatever_the_batches():
    """At (0, 0), x = 1: label 0 gives (-1/2, 1/2), label 1 the opposite; of 3 and 2 samples (-0.1, 0.1)."""
    work = make_coin_learner([0, 0, 0, 1, 1], batch_size=2)
    answer = CFL_GP.local_update(work, Download(("criterion-0",), (coin(0, 0),)))
    np.testing.assert_allclose(answer.diffs["criterion-0"].vector, [-0.1, 0.1], rtol=1e-6)
    both = Download(("cluster-1", "criterion-0"), (coin(0, 0), coin(0, 0)))
    assert CFL_GP.local_update(make_coin_learner([0]), both).diffs.keys() == {"cluster-1", "criterion-0"}
    work._train = Split.of(np.array([[2.0]], np.float32), np.array([0]))
    work.samples = 1
    model = Coin()
    model.head.weight.data[:] = torch.tensor([[0.3], [-0.2]])
    torch.nn.functional.cross_entropy(model(torch.tensor([[2.0]])), torch.tensor([0])).backward()
    gradient = work.gradient(coin(0.3, -0.2)).vector
    np.testing.assert_allclose(gradient, model.head.weight.grad.flatten(), rtol=1e-6)


def test_under_a_floor_no_cluster_is_too_small(archive):
    names = {name: f"site-{name}" for name in GP_SAMPLES}
    state = replace(CFL_GP.start(initial), census=Census(Floor(2, 1), names, GP_SAMPLES), archive=archive)
    assert len({*CFL_GP.assign(state, gp_sent(state)).values()}) == 1


@pytest.mark.parametrize("gradient", [(np.nan, 0.0), (np.inf, 0.0), (1e12, 0.0)])
def test_hostile_gradients_are_refused(gradient):
    state = CFL_GP.start(initial)
    with pytest.raises(PayloadError, match="criterion-0"):
        check_update(update("a", 3, "criterion-0", *gradient), CFL_GP.distribute(state, "a"), state, "cfl-gp")
    with pytest.raises(PayloadError, match="sent the models"):
        check_update(update("a", 3, "cluster-0", 0, 0), CFL_GP.distribute(state, "a"), state, "cfl-gp")


def test_refusals_of_cfl_gp():
    with pytest.raises(ConfigError, match="every = 0 should be >= 1"):
        CFLGP(k=2, every=0)


def test_it_finds_the_groups_at_the_first_clustering_of_a_run():
    rounds = play_rounds(CFLGP(k=2), 3, sample=3)
    assert len(rounds[0].record["trained"]) == 6  # everyone clusters
    groups = rounds[0].after.assignment
    assert len({(int(name[1:]) // 3, k) for name, k in groups.items()}) == 2
    assert len(rounds[1].record["trained"]) == 3
