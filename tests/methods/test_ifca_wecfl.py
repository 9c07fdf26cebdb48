# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""IFCA, WeCFL and FeSEM, by numbers computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cfl_flare.cli.specs import build_named
from cfl_flare.clustering.floor import Census, Floor
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import IFCA, Download, FedAvg, FeSEM, Update, WeCFL, build_method
from cfl_flare.methods.slots import join_parts
from cfl_flare.models import MLP
from cfl_flare.training.race import race_models
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Classification
from tests.helpers.loop import run_loop
from tests.helpers.tiny import coin, initial, make_coin_learner, step_method, update


def test_starts_k_models_from_k_seeds():
    state = IFCA(k=2).start(initial)
    np.testing.assert_array_equal(state.bank["cluster-0"].vector, [0, 0])
    np.testing.assert_array_equal(state.bank["cluster-1"].vector, [1, -1])


def offer_choices(*models: Params) -> Download:
    """What arrives at a participant."""
    choices = {k: f"cluster-{k}" for k in range(len(models))}
    return Download(tuple(choices.values()), models, choices=choices)


def test_participant_trains_the_model_with_the_least_loss():
    """On label 0, (1, -1) loses less than (0, 0) and (-1, 1); one step from it moves by (1 - p0, -(1 - p0))."""
    download = offer_choices(coin(0, 0), coin(1, -1), coin(-1, 1))
    done = IFCA(k=3).local_update(make_coin_learner([0]), download)
    p0 = 1 / (1 + np.exp(-2.0))
    assert done.cluster == 1
    assert set(done.diffs) == {"cluster-1"}
    np.testing.assert_allclose(done.diffs["cluster-1"].vector, [1 - p0, p0 - 1], rtol=1e-5)


def test_ties_go_to_the_lowest_cluster():
    download = offer_choices(coin(2, 2), coin(1, 1))
    assert IFCA(k=2).choose(make_coin_learner([0, 1]), download) == 0


def test_serves_the_model_that_fits_best():
    download = offer_choices(coin(1, -1), coin(-1, 1))
    np.testing.assert_array_equal(IFCA(k=2).serve(make_coin_learner([1]), download).vector, [-1, 1])


def race(losses: np.ndarray) -> tuple[int, list[tuple[list[int], int, int]]]:
    """The choice between models ``(models, samples)``, and the models and samples that were looked at."""
    looks = []

    def look(left: np.ndarray, rows: slice) -> np.ndarray:
        looks.append((left.tolist(), rows.start, rows.stop))
        return losses[left, rows]

    return race_models(look, *losses.shape), looks


def test_a_race_drops_what_cannot_win_any_more():
    """The first model loses 1 in each of 200 samples, 200 in all, and the second one 4.

    After 32 samples the second one has 128, after 64 samples 256: more than 200. The third one loses 20 in each: it
    has 640 after 32 samples.
    """
    losses = np.repeat([[1.0], [4.0], [20.0]], 200, axis=1)
    chosen, looks = race(losses)
    assert chosen == 0
    assert looks == [([0, 1, 2], 0, 32), ([0], 32, 200), ([1], 32, 64)]


def test_a_leader_that_is_overtaken_is_not_chosen():
    """The first model loses 0 in 32 samples and 2 in the other 68, 136 in all; the second one loses 1 in all 100."""
    losses = np.ones((2, 100))
    losses[0] = np.where(np.arange(100) < 32, 0, 2)
    assert race(losses) == (1, [([0, 1], 0, 32), ([0], 32, 100), ([1], 32, 64), ([1], 64, 100)])


def test_few_samples_are_looked_at_once_and_one_model_not_at_all():
    assert race(np.array([[2.0] * 32, [1.0] * 32])) == (1, [([0, 1], 0, 32)])
    assert race(np.ones((1, 100))) == (0, [])


def test_a_loss_that_is_no_number_loses():
    losses = np.ones((3, 100))
    losses[0, 5], losses[2, 7] = np.nan, np.inf
    assert race(losses) == (1, [([0, 1, 2], 0, 32), ([1], 32, 100)])
    assert race(losses[::2])[0] == 0  # all are infinite: the first of equals
    assert IFCA(k=2).choose(make_coin_learner([0, 1]), offer_choices(coin(np.nan, 0), coin(0, 0))) == 1


LOSSES = st.integers(1, 4).flatmap(
    lambda k: st.integers(1, 150).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from([0.0, 1.0, 2.0, 7.0, 1000.0, np.inf, np.nan]), min_size=n, max_size=n),
            min_size=k,
            max_size=k,
        )
    )
)


@given(LOSSES)
def test_a_race_chooses_as_all_samples_do(rows):
    losses = np.array(rows)
    assert race(losses)[0] == np.where(np.isnan(losses), np.inf, losses).mean(axis=1).argmin()


def rare(samples: int, often: float, high: int) -> np.ndarray:
    """Losses of two models, the first of which is better in most samples and loses 100 in ``high`` of them."""
    losses = np.full((2, samples), often)
    losses[0] = 0
    losses[0, :high] = 100
    return losses


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        (rare(1000, 0.1, 50), 1),  # 5 % of high loss: 5,000 against 100
        (rare(1000, 0.1, 20), 1),  # 2 %: 2,000 against 100
        (rare(1000, 0.0, 3), 1),  # equal on all but three
        (rare(1000, 0.29, 3), 1),  # 300 against 290, where 997 samples say the opposite
        (rare(1000, 0.31, 3), 0),
    ],
)
def test_rare_samples_of_high_loss_decide_races(losses, best):
    """A draw of 32 samples has none of 50 such ones among 1,000 with a chance of 0.95^32 = 19 %."""
    rng = np.random.default_rng(0)
    chosen = {race(losses[:, rng.permutation(1000)])[0] for _ in range(200)}
    assert chosen == {best}


def test_equal_models_are_left_to_the_end():
    losses = np.random.default_rng(0).exponential(size=50)
    looks = [([0, 1, 2], 0, 32), ([1], 32, 50), ([2], 32, 50)]
    assert race(np.stack([losses + 1, losses, losses])) == (1, looks)


@pytest.mark.parametrize("samples", [1, 31, 32, 33, 100])
def test_a_participant_that_races_chooses_as_one_that_reads_all(samples):
    """Label 0 throughout; (1, -1) loses log(1 + e^-2) = 0.13 in each sample, (0, 0) log 2 = 0.69."""
    work, read = make_coin_learner([0] * samples), []
    predict = work._predict
    work._predict = lambda models, x, **more: (read.append((len(models), len(x))), predict(models, x, **more))[1]
    download = offer_choices(coin(0, 0), coin(1, -1), coin(1, -1), coin(-1, 1))
    assert (
        IFCA(k=4, race=True).choose(work, download) == IFCA(k=4).choose(make_coin_learner([0] * samples), download) == 1
    )
    # The leader reads all others, and its equal the next 32. After 32, (0, 0) has 32 log 2 = 22, more than 100 * 0.13.
    blocks = [(4, min(samples, 32)), (1, samples - 32), (1, min(samples, 64) - 32), (1, samples - 64)]
    assert read == [block for block in blocks if block[1] > 0]
    looks = len(read)
    assert IFCA(k=4, race=True).choose(work, download) == 1
    assert len(read) == looks  # evaluation and training share one race


def test_losses_below_zero_are_not_raced(monkeypatch):
    """A sum of such losses may still fall, so that all samples are read."""
    monkeypatch.setattr(Classification, "nonnegative", False)
    work, read = make_coin_learner([0] * 100), []
    predict = work._predict
    work._predict = lambda models, x, **more: (read.append((len(models), len(x))), predict(models, x, **more))[1]
    assert IFCA(k=2, race=True).choose(work, offer_choices(coin(0, 0), coin(1, -1))) == 1
    assert read == [(2, 100)]


def test_server_averages_inside_clusters_and_an_empty_one_keeps_its_model():
    method = IFCA(k=3)
    state = method.start(initial)  # (0,0), (1,-1), (2,-2)
    updates = [
        update("a", 1, "cluster-0", 1, 1, cluster=0),
        update("b", 3, "cluster-0", 5, 5, cluster=0),
        update("c", 9, "cluster-2", 1, 0, cluster=2),
    ]
    assignment = method.assign(state, updates)
    after = method.aggregate(state, updates, assignment)
    assert assignment == {"a": 0, "b": 0, "c": 2}
    np.testing.assert_array_equal(after.bank["cluster-0"].vector, [4, 4])  # (1*1 + 3*5) / 4
    np.testing.assert_array_equal(after.bank["cluster-1"].vector, [1, -1])
    np.testing.assert_array_equal(after.bank["cluster-2"].vector, [3, -2])


def test_absent_participants_keep_their_cluster():
    method = IFCA(k=2)
    state = method.start(initial).after({}, {"a": 1, "b": 0})
    updates = [update("b", 1, "cluster-1", 0, 0, cluster=1)]
    after = step_method(method, state, updates)
    assert after.assignment == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k = 0 should be in .1, 1000."),
        ({"k": 2.5}, "k = 2.5 should be int"),
        ({"k": 2, "assignment_samples": 0}, "assignment_samples = 0 should be >= 1 or None"),
        ({}, "setting 'k' is missing"),
    ],
)
def test_refusals_of_ifca(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "ifca", **settings})


def test_hypcluster_is_the_same_method():
    assert build_method({"method": "hypcluster", "k": 2}) == IFCA(k=2)


class Split(nn.Module):
    """One hidden weight, then the Coin: a backbone of one parameter and a head of two."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


SPLIT = Layout.of(Split())


def make_split_model(*weights: float) -> Params:
    return Params(SPLIT, np.array(weights, np.float32))


def test_shared_backbone_averages_it_over_all_and_heads_inside_clusters():
    method = IFCA(k=2, shared_backbone=True)
    state = method.start(lambda i: make_split_model(1 + i, i, -i))
    assert {slot: model.vector.tolist() for slot, model in state.bank.items()} == {
        "backbone": [1], "cluster-0": [0, 0], "cluster-1": [1, -1]
    }  # fmt: skip

    def moved(name: str, samples: int, backbone: float, cluster: int, a: float, b: float) -> Update:
        diff = make_split_model(backbone, a, b)
        parts = {"backbone": diff.take(SPLIT.backbone), f"cluster-{cluster}": diff.take(SPLIT.head)}
        return Update(name, samples, parts, cluster)

    updates = [moved("a", 1, 4, 0, 2, 0), moved("b", 3, 0, 1, 1, 1)]
    after = step_method(method, state, updates)
    assert after.bank["backbone"].vector.tolist() == [2]  # 1 + (1*4 + 3*0) / 4
    assert after.bank["cluster-0"].vector.tolist() == [2, 0]
    assert after.bank["cluster-1"].vector.tolist() == [2, 0]
    whole = method.list_models(after, SPLIT)
    assert whole["cluster-1"].models[0].vector.tolist() == [2, 2, 0]


def test_shared_backbone_sends_heads_k_times_and_one_backbone():
    method = IFCA(k=3, shared_backbone=True)
    state = method.start(lambda i: make_split_model(1, i, -i))
    download = method.distribute(state, "p")
    slots = download.slots
    assert slots == ("backbone", "cluster-0", "cluster-1", "cluster-2")
    assert sum(state.bank[slot].layout.nbytes for slot in slots) == 4 * (1 + 3 * 2)
    whole = join_parts(replace(download, models=tuple(state.bank[slot] for slot in slots)), SPLIT)
    assert whole.slots == slots[1:]
    assert [m.vector.tolist() for m in whole.models] == [[1, 0, 0], [1, 1, -1], [1, 2, -2]]
    assert download.list_expected(2) == ("cluster-2", "backbone")


def test_models_that_cannot_have_enough_sites_are_composed_no_more():
    method = IFCA(k=3, shared_backbone=True)
    census = Census(Floor(2, 1), {name: name for name in "abcde"}, dict.fromkeys("abcde", 1))
    state = replace(method.start(lambda i: make_split_model(1, i, -i)), census=census)
    assert method.distribute(state, "p").slots == ("backbone", "cluster-0", "cluster-1")
    left = method.list_models(state, SPLIT)
    assert {slot: served.models[0].vector.tolist() for slot, served in left.items()} == {
        "cluster-0": [1, 0, 0], "cluster-1": [1, 1, -1]
    }  # fmt: skip


def test_shared_backbone_of_one_cluster_is_fedavg():
    def run(method):
        return run_loop(
            method=method,
            model=MLP((1, 8, 8), 10, hidden=(8,)),
            source=Digits(),
            data=DataConfig(4, {"partition": "iid"}),
            settings=ServerSettings(2),
            training=TrainSettings(lr=0.1, local_steps=3),
        )

    shared, plain = run(IFCA(k=1, shared_backbone=True)), run(FedAvg())
    whole = shared.method.list_models(shared.state, shared.layout)["cluster-0"].models[0]
    np.testing.assert_array_equal(whole.vector, plain.state.bank["global"].vector)


def test_a_warm_start_makes_its_models_of_a_round_in_which_all_train_one():
    """Two directions, of unlike lengths, are two clusters; from then on participants choose."""
    method = IFCA(k=2, warm_start=True)
    state = method.start(initial)
    np.testing.assert_array_equal(state.bank["cluster-1"].vector, state.bank["cluster-0"].vector)
    assert method.plan(state).fewest == 2
    assert method.distribute(state, "a") == Download(("cluster-0",))
    alone = replace(method.distribute(state, "a"), models=(coin(0, 0),))
    done = method.local_update(make_coin_learner([0]), alone)
    assert done.cluster is None and set(done.diffs) == {"cluster-0"}
    assert method.serve(make_coin_learner([0]), alone) is alone.models[0]
    updates = [
        update("a", 1, "cluster-0", 1, -1),
        update("b", 3, "cluster-0", 9, -9),
        update("c", 5, "cluster-0", -2, 2),
    ]
    assignment = method.assign(state, updates)
    assert assignment == {"a": 0, "b": 0, "c": 1}
    after = method.aggregate(state, updates, assignment)
    np.testing.assert_allclose(after.bank["cluster-0"].vector, [7, -7])
    np.testing.assert_allclose(after.bank["cluster-1"].vector, [-2, 2])
    assert method.plan(after).fewest == 1
    assert method.distribute(after, "late") == IFCA(k=2).distribute(after, "late")
    assert method.assign(after, [update("a", 1, "cluster-1", 1, 1, cluster=1)]) == {"a": 1}


def test_a_warm_start_needs_each_participants_own_whole_model():
    assert not IFCA(k=2, warm_start=True).traits.averages_only and IFCA(k=2).traits.averages_only
    with pytest.raises(ConfigError, match="warm_start = True compares whole models"):
        IFCA(k=2, warm_start=True, shared_backbone=True)


@pytest.mark.parametrize("method", ["ifca:k=2", "ifca-cam:k=2,warmup=1", "fedavg+ifca:k=2"])
def test_a_warm_start_runs_in_the_loop_and_beside_other_methods(tmp_path, method):
    name, _, rest = method.partition(":")
    found = run_loop(
        method=build_named(f"{name}:{rest},warm_start=True"),
        model=MLP((1, 8, 8), 10),
        source=Digits(),
        data=DataConfig(participants=6, partition="iid"),
        settings=ServerSettings(4),
        training=TrainSettings(lr=0.05, local_steps=3),
        folder=tmp_path,
    )
    chosen = found.state.assignment
    assert set(chosen.values()) <= {0, 1} and len(chosen) == 6


def first_round(method):
    """Two participants near (0, 0), two near (10, 10), with unequal samples."""
    state = method.start(initial)
    updates = [
        update("a", 1, "global", 0, 0),
        update("b", 3, "global", 1, 1),
        update("c", 1, "global", 10, 10),
        update("d", 1, "global", 11, 11),
    ]
    assignment = method.assign(state, updates)
    return method.aggregate(state, updates, assignment), assignment


def test_first_round_sends_everyone_the_common_model_then_clusters():
    method = WeCFL(k=2)
    assert method.distribute(method.start(initial), "a") == Download(("global",))
    state, assignment = first_round(method)
    assert assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert method.distribute(state, "c") == Download(("cluster-1",))


def test_wecfl_weighs_by_samples_and_fesem_does_not():
    weighted, _ = first_round(WeCFL(k=2))
    np.testing.assert_array_equal(weighted.bank["cluster-0"].vector, [0.75, 0.75])  # (1*0 + 3*1) / 4
    plain, _ = first_round(FeSEM(k=2))
    np.testing.assert_array_equal(plain.bank["cluster-0"].vector, [0.5, 0.5])
    np.testing.assert_array_equal(plain.bank["cluster-1"].vector, [10.5, 10.5])


def test_common_model_is_the_weighted_mean_of_the_centres():
    state, _ = first_round(WeCFL(k=2))
    np.testing.assert_allclose(state.bank["global"].vector, [(4 * 0.75 + 2 * 10.5) / 6] * 2)  # thesis Eq. 5.6


def test_later_rounds_are_warm_started_at_the_centres_and_labels_stay():
    """Everyone moves by (100, 100) from the own centre; whoever started at cluster 1 stays nearest to it."""
    method = WeCFL(k=2)
    state, assignment = first_round(method)
    updates = [update(n, 1, f"cluster-{assignment[n]}", 1, 1) for n in "dcba"]
    assert method.assign(state, updates) == assignment


def test_a_participant_moves_when_its_model_comes_nearer_to_the_other_centre():
    method = WeCFL(k=2)
    state, _ = first_round(method)
    updates = [
        update("a", 1, "cluster-0", 9.75, 9.75),  # ends at (10.5, 10.5)
        update("b", 3, "cluster-0", 0, 0),
        update("c", 1, "cluster-1", 0, 0),
        update("d", 1, "cluster-1", 0, 0),
    ]
    assert method.assign(state, updates) == {"a": 1, "b": 0, "c": 1, "d": 1}


def test_a_cluster_without_participants_in_the_round_keeps_its_model():
    method = WeCFL(k=2)
    state, _ = first_round(method)
    updates = [update("a", 1, "cluster-0", 1, 1), update("b", 1, "cluster-0", 0, 0)]
    after = step_method(method, state, updates)
    np.testing.assert_array_equal(after.bank["cluster-1"].vector, state.bank["cluster-1"].vector)
    assert after.assignment["c"] == 1


def test_few_shot_clustering_freezes_the_assignment():
    method = WeCFL(k=2, clustering_rounds=1)
    state, _ = first_round(method)
    updates = [update("a", 1, "cluster-0", 9.75, 9.75), update("new", 1, "global", 9, 9)]
    assert method.assign(state, updates) == {"a": 0, "new": 1}


def test_a_late_participant_goes_where_it_moved():
    """The common model is (4, 4), the centres (0.75, 0.75) and (10.5, 10.5): both ends are nearer to the first."""
    method = WeCFL(k=2)
    state, _ = first_round(method)
    late = [update("up", 1, "global", 0.5, 0.5), update("down", 1, "global", -0.5, -0.5)]
    assert method.assign(state, late) == {"up": 1, "down": 0}
    there = [update("a", 1, "cluster-0", 9.75, 9.75), *late, update("c", 1, "cluster-1", 0, 0)]
    assert method.assign(state, there) == {"a": 1, "up": 1, "down": 0, "c": 1}  # k-means among those who were there


def test_newcomer_starts_from_the_common_model():
    state, _ = first_round(WeCFL(k=2))
    assert WeCFL(k=2).distribute(state, "never seen") == Download(("global",))


def test_local_step_trains_the_own_centre():
    sent = WeCFL(k=2).local_update(make_coin_learner([0]), Download(("cluster-1",), (coin(0, 0),)))
    np.testing.assert_allclose(sent.diffs["cluster-1"].vector, [0.5, -0.5])


def test_first_e_step_needs_a_participant_for_each_cluster():
    method = WeCFL(k=5)
    assert method.plan(method.start(initial)).fewest == 5
    with pytest.raises(ConfigError, match="k = 5 clusters need at least 5 participants"):
        first_round(method)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k = 0 should be in .1, 1000."),
        ({"k": 2, "cluster_on": "tail"}, "cluster_on = 'tail' should be one of"),
        ({"k": 2, "clustering_rounds": 0}, "clustering_rounds = 0 should be >= 1 or None"),
        ({"k": 2, "starts": 0}, "starts = 0 should be in .1, 1000."),
    ],
)
def test_refusals_of_wecfl(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "wecfl", **settings})
