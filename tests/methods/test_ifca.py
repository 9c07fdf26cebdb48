# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from cfl_flare.errors import ConfigError
from cfl_flare.methods import IFCA, Download, build_method
from tests.tiny import coin, initial, learner, update


def test_starts_k_models_from_k_seeds():
    state = IFCA(k=2).start(initial)
    np.testing.assert_array_equal(state.bank["cluster-0"].vector, [0, 0])
    np.testing.assert_array_equal(state.bank["cluster-1"].vector, [1, -1])


def test_participant_trains_the_model_with_the_least_loss():
    """On label 0, (1, -1) loses less than (0, 0) and (-1, 1); one step from it moves by (1 - p0, -(1 - p0))."""
    download = Download(("cluster-0", "cluster-1", "cluster-2"), (coin(0, 0), coin(1, -1), coin(-1, 1)))
    sent = IFCA(k=3).local_update(learner([0]), download)
    p0 = 1 / (1 + np.exp(-2.0))
    assert sent.cluster == 1
    assert set(sent.diffs) == {"cluster-1"}
    np.testing.assert_allclose(sent.diffs["cluster-1"].vector, [1 - p0, p0 - 1], rtol=1e-5)


def test_ties_go_to_the_lowest_cluster():
    download = Download(("cluster-0", "cluster-1"), (coin(2, 2), coin(1, 1)))
    assert IFCA(k=2).choose(learner([0, 1]), download) == 0


def test_serves_the_model_that_fits_best():
    download = Download(("cluster-0", "cluster-1"), (coin(1, -1), coin(-1, 1)))
    np.testing.assert_array_equal(IFCA(k=2).serve(learner([1]), download).vector, [-1, 1])


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
    after = method.aggregate(state, updates, method.assign(state, updates))
    assert after.assignment == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k = 0 should be >= 1"),
        ({"k": 2.5}, "k = 2.5 should be int"),
        ({"k": 2, "assignment_samples": 0}, "assignment_samples = 0 should be >= 1 or None"),
        ({}, "setting 'k' is missing"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "ifca", **settings})


def test_hypcluster_is_the_same_method():
    assert build_method({"method": "hypcluster", "k": 2}) == IFCA(k=2)
