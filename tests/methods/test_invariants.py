# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for every method, over whole runs of the in-process loop and over random server steps."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import IFCA, FedAvg, FeSEM, Update, WeCFL, build_method, describe_method
from cfl_flare.training.settings import TrainSettings
from tests.tiny import coin, initial, objective

DATA = DataConfig(6, {"partition": "label_permutation", "groups": 2})
MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [8]}}

values = st.floats(-5, 5, width=32)
crowd = st.lists(st.tuples(st.integers(1, 50), values, values, st.integers(0, 1)), min_size=3, max_size=12)


def loop(method, rounds=3, **more):
    return run_loop(
        method=method,
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(rounds, **more),
        training=TrainSettings(lr=0.1, local_steps=3),
    )


def updates_of(people, clustered):
    return [
        Update(f"p{i}", n, {f"cluster-{c}" if clustered else "global": coin(a, b)}, c if clustered else None)
        for i, (n, a, b, c) in enumerate(people)
    ]


@pytest.mark.parametrize("method", [FedAvg(), IFCA(k=2), WeCFL(k=2), FeSEM(k=2)], ids=lambda m: m.name)
@settings(max_examples=30, deadline=None)
@given(people=crowd, seed=st.integers(0, 99))
def test_the_order_of_participants_does_not_matter(method, people, seed):
    state = method.start(initial)
    updates = updates_of(people, clustered=method.name == "ifca")
    shuffled = [updates[i] for i in np.random.default_rng(seed).permutation(len(updates))]
    results = []
    for order in (updates, shuffled):
        assignment = method.assign(state, order)
        results.append((assignment, method.aggregate(state, order, assignment)))
    (first, one), (second, other) = results
    groups = [{frozenset(n for n in a if a[n] == c) for c in set(a.values())} for a in (first, second)]
    if method.name not in ("wecfl", "fesem") or groups[0] == groups[1]:  # k-means++ may end in another local optimum
        assert groups[0] == groups[1]
        models = [sorted(tuple(np.round(p.vector, 4)) for p in s.bank.values()) for s in (one, other)]
        np.testing.assert_allclose(models[0], models[1], atol=2e-4)


@settings(max_examples=30, deadline=None)
@given(people=crowd)
def test_equal_weights_give_the_plain_mean(people):
    method = FedAvg()
    updates = updates_of([(7, a, b, 0) for _, a, b, _ in people], clustered=False)
    after = method.aggregate(method.start(initial), updates, {})
    np.testing.assert_allclose(
        after.bank["global"].vector, np.mean([[a, b] for _, a, b, _ in people], axis=0), atol=1e-6
    )


@settings(max_examples=30, deadline=None)
@given(people=crowd, weighting=st.sampled_from(["samples", "uniform"]))
@example(people=[(1, 0.0, 0.0, 0), (1, 0.0, 2.0, 1), (1, 2.0, -2.0, 0)], weighting="samples")
def test_e_step_and_m_step_never_raise_the_clustering_objective(people, weighting):
    """Thesis Lemmas 3.4.2 and 3.4.3, on warm-started rounds."""
    method = WeCFL(k=2, weighting=weighting)
    updates = updates_of(people, clustered=True)
    known = {u.participant: int(next(iter(u.diffs))[-1]) for u in updates}  # who joins late goes by direction instead
    state = method.start(initial).after({"cluster-0": coin(-1, 0), "cluster-1": coin(2, 1)}, known)
    features = np.stack([state.trained(u).vector for u in updates])
    weights = np.array([method.weight(u) for u in updates])
    before = np.array([int(next(iter(u.diffs))[-1]) for u in updates])
    centres = np.stack([state.bank[f"cluster-{k}"].vector for k in range(2)]).astype(np.float64)
    assignment = method.assign(state, updates)
    labels = np.array([assignment[u.participant] for u in updates])
    after = method.aggregate(state, updates, assignment)
    moved = np.stack([after.bank[f"cluster-{k}"].vector for k in range(2)]).astype(np.float64)
    start = objective(features, before, centres, weights)
    end = objective(features, labels, moved, weights)
    assert end <= start * (1 + 1e-5) + 1e-5
    assert end <= objective(features, labels, centres, weights) * (1 + 1e-5) + 1e-5  # M-step


@pytest.mark.parametrize("method", [IFCA(k=1), WeCFL(k=1)], ids=lambda m: m.name)
def test_one_cluster_is_fedavg(method):
    fedavg, clustered = loop(FedAvg()), loop(method)
    np.testing.assert_array_equal(clustered.state.bank["cluster-0"].vector, fedavg.state.bank["global"].vector)


@pytest.mark.parametrize("spec", [{"method": "fedavg"}, {"method": "ifca", "k": 2}, {"method": "local"}])
def test_the_same_seed_gives_the_same_run_and_another_seed_another(spec):
    one, two = loop(build_method(spec), seed=1), loop(build_method(spec), seed=1)
    other = loop(build_method(spec), seed=2)
    for slot in one.state.bank:
        np.testing.assert_array_equal(one.state.bank[slot].vector, two.state.bank[slot].vector)
        assert not np.array_equal(one.state.bank[slot].vector, other.state.bank[slot].vector)
    assert one.state.assignment == two.state.assignment


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "finetune", "local", "ifca", "wecfl", "fesem"])
def test_methods_survive_the_way_through_a_job_file(name):
    method = build_method({"method": name, **({"k": 3} if name in ("ifca", "wecfl", "fesem") else {})})
    assert build_method(describe_method(method)) == method


def test_wecfl_finds_groups_that_one_model_cannot_serve():
    found = loop(WeCFL(k=2), rounds=2)
    truth = {n: p.group for n, p in found.participants.items()}
    assert len({(truth[n], c) for n, c in found.state.assignment.items()}) == 2
