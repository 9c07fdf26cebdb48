# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError
from cfl_flare.methods import Download, FeSEM, WeCFL, build_method
from tests.tiny import coin, initial, learner, update


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
    after = method.aggregate(state, updates, method.assign(state, updates))
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
    sent = WeCFL(k=2).local_update(learner([0]), Download(("cluster-1",), (coin(0, 0),)))
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
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "wecfl", **settings})
