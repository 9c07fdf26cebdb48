# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The analysis of a round's clustering, against numbers computed by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cfl_flare.engine.round
from cfl_flare.clustering.kmeans import find_nearest, run_lloyd
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.round import Spool
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.methods import IFCA, FedAvg, FeSEM, Participant, ServerState, Update, WeCFL
from cfl_flare.results.analysis import Cosines, analyse, gram
from cfl_flare.results.run_dir import load_run, read_features
from tests.helpers.tiny import LAYOUT, coin, compute_objective, initial, rounds, update

# Two participants of cluster 0, one of cluster 1, none of cluster 2; all started from (0, 0).
UPDATES = [update("a", 3, "global", 4, 0), update("b", 1, "global", 0, 4), update("c", 2, "global", 0, -5)]
ASSIGNMENT = {"a": 0, "b": 0, "c": 1}
BEFORE = ServerState({"global": coin(0, 0), **{f"cluster-{k}": coin(9, 9) for k in range(3)}})

values = st.floats(-5, 5, width=32)
crowd = st.lists(st.tuples(st.integers(1, 50), values, values), min_size=4, max_size=12)


def analysed(method=None, updates=UPDATES, before=BEFORE, assignment=ASSIGNMENT):
    method = method or WeCFL(k=3)
    return analyse(method, before, method.aggregate(before, updates, assignment), updates, assignment)


def test_by_hand_with_samples_as_weights():
    found = analysed()
    # The centre of cluster 0 is (3, 1), 1 and 9 (squared, per coordinate) from a and b: 2 and 18.
    assert found["objective"] == pytest.approx((3 * 2 + 1 * 18 + 2 * 0) / 6)
    assert found["clusterability"] == pytest.approx([np.sqrt(18 / 10), 0, None])
    assert found["intra_cosine"] == pytest.approx(0)  # a and b are at right angles
    assert found["inter_cosine"] == pytest.approx(-1 / np.sqrt(10))  # (3, 1) and (0, -5); (9, 9) has nobody


def test_by_hand_with_equal_weights():
    found = analysed(FeSEM(k=3))
    assert found["objective"] == pytest.approx((8 + 8 + 0) / 3)  # the centre is (2, 2)
    assert found["clusterability"] == pytest.approx([1, 0, None])


def test_a_mean_update_of_zero_has_no_clusterability_and_one_cluster_no_cosines():
    opposed = [update("a", 1, "global", 1, 0), update("b", 1, "global", -1, 0)]
    found = analysed(WeCFL(k=1), opposed, assignment={"a": 0, "b": 0})
    assert found == {
        "objective": pytest.approx(1),
        "clusterability": [None],
        "intra_cosine": pytest.approx(-1),
        "inter_cosine": None,
    }


def test_clusters_of_one_and_models_without_a_direction_have_no_intra_cosine():
    alone = analysed(WeCFL(k=2), [UPDATES[0], UPDATES[2]], assignment={"a": 0, "c": 1})
    assert (alone["intra_cosine"], alone["objective"], alone["clusterability"]) == (None, 0, [0, 0])
    still = [UPDATES[0], update("b", 1, "global", 0, 0)]
    assert analysed(WeCFL(k=1), still, assignment={"a": 0, "b": 0})["intra_cosine"] is None


def test_clusterability_is_that_of_the_updates_and_not_of_the_models():
    """Members that start from different centres differ in their models, but move alike."""
    updates = [update("a", 1, "cluster-0", 1, 1), update("b", 1, "cluster-1", 1, 1)]
    before = ServerState({"global": coin(0, 0), "cluster-0": coin(0, 0), "cluster-1": coin(4, 0)})
    found = analysed(WeCFL(k=2), updates, before, {"a": 0, "b": 0})
    assert found["clusterability"] == [0, None]
    assert found["objective"] == pytest.approx(4)


def test_a_removed_parameter_says_nothing_of_the_clusterability():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    layout = Layout.of(Two())

    def model(a, b, present=None):
        return Params(layout, np.array([a, b], np.float32), present=present)

    updates = [
        Update("a", 1, {"global": model(4, 3)}),
        Update("b", 1, {"global": model(0, 3, np.array([False, True]))}),
    ]
    before = ServerState({"global": model(1, 1), "cluster-0": model(1, 1)})
    found = analysed(WeCFL(k=1), updates, before, {"a": 0, "b": 0})
    assert found["clusterability"] == [0]  # the mean is (4, 3): b's 3 fits, and its first parameter is not known
    assert found["objective"] == pytest.approx(16 / 2)  # where k-means sees b's model: at (1, 4), the centre at (5, 4)


def test_ifca_s_updates_have_the_model_that_each_chose():
    updates = [update("a", 3, "cluster-0", 4, 0, 0), update("b", 1, "cluster-0", 0, 4, 0)]
    before = ServerState({"cluster-0": coin(1, 0), "cluster-1": coin(0, 1)})
    found = analysed(IFCA(k=2), updates, before, {"a": 0, "b": 0})
    assert found["objective"] == pytest.approx((3 * 2 + 18) / 4)
    assert found["clusterability"] == pytest.approx([np.sqrt(1.8), None])
    assert found["intra_cosine"] == pytest.approx(1 / np.sqrt(17))  # of (5, 0) and (1, 4)


def test_ifca_with_a_shared_backbone_is_analysed_by_its_heads():
    head, backbone = coin(0, 0), coin(7, 7)
    before = ServerState({"backbone": backbone, "cluster-0": head, "cluster-1": head})
    updates = [
        Update("a", 3, {"cluster-0": coin(4, 0), "backbone": coin(9, 9)}, 0, main="cluster-0"),
        Update("b", 1, {"cluster-0": coin(0, 4), "backbone": coin(-9, 9)}, 0, main="cluster-0"),
    ]
    found = analysed(IFCA(k=2, shared_backbone=True), updates, before, {"a": 0, "b": 0})
    assert found["objective"] == pytest.approx((3 * 2 + 18) / 4)
    assert found["clusterability"] == pytest.approx([np.sqrt(1.8), None])


def test_mean_cosine_is_that_of_all_pairs():
    vectors = np.random.default_rng(0).normal(size=(7, 4)) + 2
    cosines = Cosines()
    for vector in vectors:
        cosines.add(vector)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert cosines.mean() == pytest.approx((unit @ unit.T)[np.triu_indices(7, 1)].mean())


def test_the_gram_matrix_is_of_participants_then_centres():
    method = WeCFL(k=3)
    after = method.aggregate(BEFORE, UPDATES, ASSIGNMENT)
    rows = np.array([[4, 0], [0, 4], [0, -5], [3, 1], [0, -5], [9, 9]])
    np.testing.assert_allclose(gram(method, BEFORE, after, UPDATES, ASSIGNMENT), rows @ rows.T)


@settings(max_examples=25, deadline=None)
@given(people=crowd, seed=st.integers(0, 99))
def test_the_order_of_participants_does_not_matter(people, seed):
    updates = [update(f"p{i}", n, "global", a, b) for i, (n, a, b) in enumerate(people)]
    assignment = {u.participant: i % 2 for i, u in enumerate(updates)}
    shuffled = [updates[i] for i in np.random.default_rng(seed).permutation(len(updates))]
    one, other = (analysed(WeCFL(k=3), order, assignment=assignment) for order in (updates, shuffled))
    for key in one:
        b, c = (np.array(found[key], np.float64) for found in (one, other))  # None is nan
        if key == "clusterability":  # a ratio to a mean that may be next to nothing
            b, c = 1 / (1 + b), 1 / (1 + c)
        np.testing.assert_allclose(b, c, rtol=1e-5, atol=1e-5, err_msg=key)


@settings(max_examples=25, deadline=None)
@given(people=crowd, seed=st.integers(0, 2**32 - 1), uniform=st.booleans())
def test_neither_step_of_k_means_raises_the_objective(people, seed, uniform):
    """Thesis Lemmas 3.4.2 and 3.4.3, on arrays."""
    features = np.array([[a, b] for _, a, b in people])
    weights = np.array([1.0 if uniform else n for n, _, _ in people])
    rng = np.random.default_rng(seed)
    centres, labels = rng.normal(size=(3, 2)) * 3, rng.integers(0, 3, len(people))
    start = compute_objective(features, labels, centres, weights)
    for e_step in (find_nearest(features, centres), run_lloyd(features, centres, weights)):
        moved = centres.copy()
        for j in np.unique(e_step):
            moved[j] = np.average(features[e_step == j], axis=0, weights=weights[e_step == j])
        after_e = compute_objective(features, find_nearest(features, centres), centres, weights)
        after_m = compute_objective(features, e_step, moved, weights)
        assert after_e <= start + 1e-9
        assert after_m <= compute_objective(features, e_step, centres, weights) + 1e-9
        assert after_m <= start + 1e-9


@pytest.mark.parametrize("method", [WeCFL(k=3), FeSEM(k=3)], ids=lambda m: m.name)
@settings(max_examples=25, deadline=None)
@given(people=crowd, seed=st.integers(0, 2**32 - 1))
def test_neither_step_of_a_method_raises_the_objective_over_rounds(method, people, seed):
    """The same lemmas, on whole rounds: a participant's model stays where it is while its centre moves."""
    rng = np.random.default_rng(seed)
    models = {f"p{i}": np.array([a, b], np.float32) for i, (_, a, b) in enumerate(people)}
    samples = {f"p{i}": n for i, (n, _, _) in enumerate(people)}
    state = replace(method.start(initial), bank={f"cluster-{k}": coin(*rng.normal(size=2)) for k in range(3)})
    state = replace(state, bank={**state.bank, "global": coin(0, 0)})
    last = None
    for _ in range(4):
        slots = {name: method.distribute(state, name).slots[0] for name in models}
        updates = [
            Update(n, samples[n], {slot: Params(LAYOUT, models[n] - state.bank[slot].vector)})
            for n, slot in slots.items()
        ]
        assignment = method.assign(state, updates)
        after = method.aggregate(state, updates, assignment)
        c = {  # Eq. 3.3b with the old and the new assignment, the old and the new centres
            (a, s): analyse(method, state, moved, updates, labels)["objective"]
            for a, labels in (("old", state.assignment or assignment), ("new", assignment))
            for s, moved in (("old", state), ("new", after))
        }
        slack = 1e-5 * (1 + c["old", "old"])
        assert c["new", "new"] <= c["new", "old"] + slack  # M-step
        assert c["new", "new"] <= c["old", "old"] + slack  # both
        assert last is None or c["old", "old"] <= last + slack  # nobody trained in between
        last, state = c["new", "new"], after


def test_the_record_holds_the_analysis_as_plain_json(tmp_path):
    measured = rounds(tmp_path)
    lines = load_run(tmp_path).rounds
    assert lines == [json.loads(json.dumps(m.record)) for m in measured]
    assert lines[0]["moved_share"] is None  # nobody was in a cluster before
    assert lines[1]["moved_share"] == 0
    assert lines[0]["empty_clusters"] == []
    # Means (4.25, 0.25) of a and b, and (0.5, 4.5) of c and d.
    assert lines[0]["clusterability"] == pytest.approx([np.sqrt(1.125 / 18.125), np.sqrt(0.5 / 20.5)])
    scalars = measured[1].scalars()
    assert scalars["cluster-1/clusterability"] == 0  # c said nothing
    assert {"objective", "intra_cosine", "inter_cosine", "moved_share"} <= scalars.keys()
    assert "moved_share" not in measured[0].scalars()
    assert all(isinstance(v, float) for v in scalars.values())


def test_empty_clusters_are_named_and_have_no_clusterability_series():
    method = WeCFL(k=2, clustering_rounds=1)
    server = Server(method, LAYOUT, [Participant("a", "s", 3)], ServerSettings(1), BEFORE)
    server.tasks()
    server.accept(Result("a", UPDATES[0]), "s")
    server.finish_round()
    server.tasks()
    server.accept(Result("a"), "s")
    record = server.finish_round()
    assert record.record["empty_clusters"] == [1]
    assert record.record["clusterability"] == [0, None]
    assert "cluster-1/clusterability" not in record.scalars()


def test_a_method_without_clusters_has_none_of_it(tmp_path):
    for m in rounds(tmp_path, FedAvg(), keep_features=True):
        assert not {"objective", "clusterability", "moved_share", "empty_clusters"} & m.record.keys()
    assert load_run(tmp_path).feature_files == []


def test_a_round_with_too_few_answers_has_no_analysis():
    first, second = rounds(min_answers=4)
    assert "objective" in first.record
    assert "objective" not in second.record
    assert second.record["moved_share"] == 0


def test_updates_on_disk_give_the_same_numbers(monkeypatch):
    found = []
    for limit in (2**30, 0):
        monkeypatch.setattr(cfl_flare.engine.round, "SPOOL_BYTES", limit)
        spool = Spool(1)
        for one in UPDATES:
            spool.put(one)
        method, updates = WeCFL(k=3), spool.ordered("abc")
        after = method.aggregate(BEFORE, updates, ASSIGNMENT)
        found.append(
            (analyse(method, BEFORE, after, updates, ASSIGNMENT), gram(method, BEFORE, after, updates, ASSIGNMENT))
        )
        spool.close()
    assert found[0][0] == found[1][0] == analysed()
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_features_are_kept_on_request_alone(tmp_path):
    rounds(tmp_path)
    assert load_run(tmp_path).feature_files == []
    rounds(tmp_path, keep_features=True)
    files = load_run(tmp_path).feature_files
    assert [f.name for f in files] == ["round-0000.safetensors", "round-0001.safetensors"]
    kept = [read_features(f) for f in files]
    assert [k.round for k in kept] == [0, 1]
    assert [k.participants for k in kept] == [tuple("abcd"), tuple("abd")]
    assert [k.clusters for k in kept] == [(0, 0, 1, 1), (0, 0, 1)]
    assert [k.gram.shape for k in kept] == [(6, 6), (5, 5)]
    np.testing.assert_allclose(np.diag(kept[0].gram)[:4], [16, 26, 16, 26])
    rounds(tmp_path)
    assert load_run(tmp_path).feature_files == []  # a new run in the same folder
