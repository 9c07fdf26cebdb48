# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Promises beyond those of `check_method`: any order of answers, files of resumed runs, settings in a job, labels."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.cli.specs import build_named
from cfl_flare.data import DataConfig
from cfl_flare.data.samples import Samples
from cfl_flare.engine.indicator import Logits
from cfl_flare.methods import (
    CAM,
    CFL,
    FLHC,
    IFCA,
    AutoK,
    Contrastive,
    Ditto,
    Ensemble,
    FedAvg,
    FedCUAU,
    FedDS,
    FedDSMIC,
    FedGroup,
    FedPer,
    FeSEM,
    KnowledgeSharing,
    Local,
    Method,
    Proximal,
    ServerState,
    Update,
    WeCFL,
    build_method,
    describe_method,
)
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.results.run_dir import load_run
from tests.helpers.resumed import PARTITION, Stopped, assert_same_runs, run_until
from tests.helpers.tiny import Coin, coin, initial, update

CON_CKS = (Contrastive(scope="head"), KnowledgeSharing(scope="backbone"))


def group_participants(assignment: dict[str, int]) -> set[frozenset[str]]:
    """The clusters as sets of participants, because a cluster's number depends on the order."""
    return {frozenset(n for n in assignment if assignment[n] == k) for k in set(assignment.values())}


# ---- The order of participants ----


def answers_of(method: Method, moves: dict[str, tuple[int, float, float, int]]) -> list[Update]:
    """The updates of participants who moved so; IFCA's have chosen a cluster."""
    if method.name == "ifca":
        return [update(name, n, f"cluster-{k}", a, b, k) for name, (n, a, b, k) in moves.items()]
    (slot, *_) = method.distribute(method.start(initial), "p0").slots
    return [update(name, n, slot, a, b) for name, (n, a, b, _) in moves.items()]


def in_both_orders(method: Method, moves: dict[str, Any], seed: int) -> list[tuple[dict[str, int], ServerState]]:
    """Assignment and state after one round, in the given order and in a shuffled one."""
    state = method.start(initial)
    answers = answers_of(method, moves)
    shuffled = [answers[i] for i in np.random.default_rng(seed).permutation(len(answers))]
    found = []
    for order in (answers, shuffled):
        assignment = method.assign(state, order)
        after = method.aggregate(state, order, assignment)
        found.append((dict(after.assignment or assignment), after))
    return found


values = st.floats(-5, 5, width=32).map(lambda v: round(v, 3))
crowd = st.lists(st.tuples(st.integers(1, 50), values, values, st.integers(0, 1)), min_size=3, max_size=12)


@pytest.mark.parametrize("method", [FedAvg(), IFCA(k=2), WeCFL(k=2), FeSEM(k=2)], ids=lambda m: m.name)
@settings(max_examples=30)
@given(people=crowd, seed=st.integers(0, 99))
def test_order_of_any_answers(method: Method, people: list[tuple[int, float, float, int]], seed: int) -> None:
    (first, one), (second, other) = in_both_orders(method, {f"p{i}": p for i, p in enumerate(people)}, seed)
    if group_participants(first) != group_participants(second):
        assert method.name in ("wecfl", "fesem")  # k-means++ may end in another local optimum
        return
    models = [sorted(tuple(np.round(p.vector, 4)) for p in state.bank.values()) for state in (one, other)]
    np.testing.assert_allclose(models[0], models[1], atol=2e-4)


FINDS_GROUPS = [
    FLHC(rounds_before=0, k=2),
    FLHC(rounds_before=0, threshold=1),
    FedGroup(k=2),
    CFL(eps1=1e9, eps2=0),
    WeCFL(k=2),
]


@pytest.mark.parametrize("method", FINDS_GROUPS, ids=repr)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), size=st.integers(4, 9))
def test_order_of_answers_in_two_groups(method: Method, seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    directions = 1 - 2 * (np.arange(size) % 2)
    points = directions[:, None] * np.array([2.0, 1.0]) + rng.normal(size=(size, 2)) * 0.1
    moves = {f"p{i}": (1 + i % 3, *point, i % 2) for i, point in enumerate(points.tolist())}
    (first, one), (second, other) = in_both_orders(method, moves, seed)
    assert group_participants(first) == group_participants(second)
    assert group_participants(first) == {frozenset(n for n in moves if moves[n][3] == g) for g in (0, 1)}
    for name in moves:
        model = one.bank[f"cluster-{first[name]}"].vector
        np.testing.assert_allclose(model, other.bank[f"cluster-{second[name]}"].vector, atol=1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), size=st.integers(4, 9))
def test_order_of_any_answers_to_cfl(seed: int, size: int) -> None:
    points = np.random.default_rng(seed).normal(size=(size, 2)).tolist()
    moves = {f"p{i}": (1, *point, 0) for i, point in enumerate(points)}
    (first, one), (second, other) = in_both_orders(CFL(eps1=1e9, eps2=0), moves, seed)
    assert group_participants(first) == group_participants(second)
    np.testing.assert_allclose(one.bank["cluster-0"].vector, other.bank["cluster-0"].vector, atol=1e-6)


def test_order_of_answers_to_fedds() -> None:
    rng = np.random.default_rng(0)
    predict = Logits(Coin, Samples(np.ones((4, 1), np.float32), np.array([0, 0, 1, 1])))
    bank = {"cluster-0": coin(0, 0), "cluster-1": coin(3, -3), "cluster-2": coin(-3, 3), "newcomer": coin(0, 0)}
    state = ServerState(bank, logits=predict)
    method = FedDS(k=3)
    answers = [update(f"p{i}", int(rng.integers(1, 9)), "cluster-0", *rng.normal(size=2) * 3) for i in range(8)]
    one, other = (method.aggregate(state, order, method.assign(state, order)) for order in (answers, answers[::-1]))
    assert one.assignment == other.assignment
    for slot, model in one.bank.items():
        np.testing.assert_allclose(model.vector, other.bank[slot].vector, atol=1e-6)


@pytest.mark.parametrize("method_class", [IFCA, FeSEM, WeCFL])
def test_order_of_answers_with_penalties(method_class: type) -> None:
    """All 24 orders of four participants, whose common model and weights must stay."""
    people = [("a", 1, 0, (1, 1)), ("b", 3, 0, (5, 5)), ("c", 4, 1, (10, 12)), ("d", 2, 1, (13, 9))]
    method = method_class(k=2, penalties=CON_CKS)

    def aggregate(order: Any) -> ServerState:
        if method.traits.assigns_on_site:
            state = ServerState({cluster_slot(k): coin(0, 0) for k in range(2)})
            answers = [update(name, n, cluster_slot(k), *move, cluster=k) for name, n, k, move in order]
        else:
            state = method.start(lambda i: coin(0, 0))
            answers = [Update(name, n, {GLOBAL: coin(*move)}) for name, n, _, move in order]
        return method.aggregate(state, answers, method.assign(state, answers))

    first = aggregate(people)
    for order in permutations(people):
        state = aggregate(order)
        np.testing.assert_allclose(state.bank[GLOBAL].vector, first.bank[GLOBAL].vector, rtol=1e-6)
        assert sorted(state.extras["common_weights"]) == pytest.approx(sorted(first.extras["common_weights"]))


# ---- Runs that stop and go on ----


def stops(methods: list[Method], rounds: tuple[int, ...], **more: Any) -> list[Any]:
    """One case for each method and each round at which its run is killed."""
    return [pytest.param(method, stop_at, more, id=f"{method!r}-{stop_at}") for method in methods for stop_at in rounds]


TESTED = [FedAvg(), WeCFL(k=2), IFCA(k=2), Local(), FedPer(), Ditto(), FedCUAU()]
SPLITS = [CFL(eps1=1e9, eps2=0, min_rounds=2)]
ONCE = [FLHC(rounds_before=3, k=2), FLHC(rounds_before=3, threshold=0.5, linkage="average"), FedGroup(k=2), *SPLITS]
# Each part's momentum, and in CAM's warm-up the participants' own models, are in the checkpoints.
PARTS = [Ensemble(parts=(FedAvg(), FedAvg())), Ensemble(parts=(FedAvg(), IFCA(k=2))), CAM(base=WeCFL(k=2), warmup=5)]
INDICATOR = DataConfig(6, PARTITION, indicator_samples=10)


@pytest.mark.parametrize(
    ("method", "stop_at", "more"),
    [
        *stops(TESTED, (1, 4, 5, 7)),
        *stops(ONCE, (1, 4, 7), sample=3),
        *stops(PARTS, (4, 7)),
        *stops([FedDSMIC(k=2)], (3,), sample=4, data=INDICATOR),
        *stops([build_named("wecfl:k=auto,warmup=3")], (1, 2, 3), data=DataConfig(12, PARTITION)),
    ],
)
def test_a_stopped_run_ends_as_an_undisturbed_one(
    tmp_path: Path, method: Method, stop_at: int, more: dict[str, Any]
) -> None:
    undisturbed = run_until(method, tmp_path / "one", **more)
    with pytest.raises(Stopped):
        run_until(method, tmp_path / "other", tmp_path / "checkpoints", stop_at, **more)
    resumed = run_until(method, tmp_path / "other", tmp_path / "checkpoints", **more)
    assert_same_runs(undisturbed, resumed, tmp_path / "one", tmp_path / "other")
    if method in SPLITS:
        assert load_run(tmp_path / "one").summary["clusters"] > 2


# ---- The way through a job's file ----

PENALTIES = [
    (),
    (Proximal(mu=0.3, scope="fc"),),
    CON_CKS,
    (Contrastive(on="representations"), KnowledgeSharing(lam=(0.1, 0.2), pairwise=True)),
    (Contrastive(on="representations", mode="training"),),
    (Contrastive(mu=5, tau=0.1),),
]
BUILT = [
    *(cls(k=2, penalties=penalties) for cls in (IFCA, FeSEM, WeCFL) for penalties in PENALTIES),
    *(CAM(base=cls(k=2, penalties=penalties)) for cls in (IFCA, FeSEM, WeCFL) for penalties in PENALTIES),
    FeSEM(k=3, penalties=[Contrastive(scope="head"), KnowledgeSharing(lam=[0.1, 0.2, 0.3], scope="backbone")]),
    AutoK(base=WeCFL(k=4), warmup=2),
    CAM(base=WeCFL(k=2, cluster_on=["head.weight"], penalties=(KnowledgeSharing(pairwise=True),)), lam=0),
    Ensemble(parts=[FedAvg(weighting="uniform"), IFCA(k=2, penalties=(Proximal(mu=1.0),))]),
    CFL(eps1=0.4, eps2=1.6, gamma_max=0.5, cluster_on=("head.weight",), penalties=(Proximal(mu=0.1),)),
    FLHC(k=3),
    FLHC(threshold=2.5, metric="cosine", linkage="single", cluster_on=("head.weight",), rounds_before=7),
    FedGroup(k=4, dimensions=3, seed=5, penalties=(Proximal(mu=0.1),)),
]
SPECS: list[dict[str, Any]] = [
    {"method": "per-fedavg", "inner_lr": 0.1, "personal_steps": 3, "weighting": "uniform"},
    *({"method": name, "finetune": False} for name in ("fedper", "fedbabu", "ditto")),
    *(
        {"method": name, "weighting": "uniform", "penalties": [{"penalty": "proximal"}]}
        for name in ("fedper", "fedbabu", "ditto")
    ),
    {"method": "fedds"},
    {"method": "feddsmic"},
    {"method": "fedds", "k": 5, "indicator_samples": 3, "indicator_file": "a.npz", "seed": 2},
    {"method": "feddsmic", "k": 5, "indicator_samples": 3, "indicator_file": "a.npz", "seed": 2},
    {"method": "fedcuau", "base": "fedbabu", "k": 3},
    {
        "method": "fedcuau",
        "base": {"method": "fedprox", "mu": 0.5, "weighting": "uniform"},
        "cluster_layers": ["head"],
    },
    {"method": "fedcuau", "base": FedAvg(penalties=[Proximal(mu=0.1)]), "finetune": True, "finetune_epochs": 2},
]


@pytest.mark.parametrize("method", [*BUILT, *map(build_method, SPECS)], ids=repr)
def test_a_job_file_keeps_the_method(method: Method) -> None:
    again = build_method(json.loads(json.dumps(describe_method(method))))
    assert again == method
    assert again.label == method.label


# ---- Labels ----


@pytest.mark.parametrize(
    ("method", "label", "clusters"),
    [
        ({"method": "ifca-cam", "k": 3}, "ifca-cam", 3),
        ({"method": "fesem-cam", "k": 3}, "fesem-cam", 3),
        ({"method": "wecfl-cam", "k": 3, "finetune": True}, "wecfl-cam-finetune", 3),
        ({"method": "fedavg+", "k": 3}, "fedavg+", 0),
        ({"method": "fedprox+", "k": 3}, "fedprox+", 0),
        ({"method": "fedavg+ifca", "k": 3}, "fedavg+ifca", 3),
        ({"method": "fedavg+fesem", "k": 3}, "fedavg+fesem", 3),
        ({"method": "per-fedavg"}, "per-fedavg", 0),
        ({"method": "fedds"}, "fedds", 3),
        ({"method": "feddsmic", "k": 5}, "feddsmic", 5),
        (CAM(base=IFCA(k=2)), "ifca-cam", 2),
        (CAM(base=FeSEM(k=2), finetune=True), "fesem-cam-finetune", 2),
        (CAM(base=WeCFL(k=2, penalties=(Contrastive(),))), "wecfl-con-cam", 2),
        (Ensemble(parts=(FedAvg(), FedAvg())), "fedavg+", 0),
        (Ensemble(parts=(FedAvg(), IFCA(k=2)), finetune=True), "fedavg+ifca-finetune", 2),
        (Ensemble(parts=(FedAvg(), WeCFL(k=2, penalties=(Contrastive(),)))), "fedavg+wecfl-con", 2),
        (FedCUAU(base="fedper"), "fedper-cuau", 2),
        (FedCUAU(finetune=True), "fedavg-cuau-finetune", 2),
        (WeCFL(k=2), "wecfl", 2),
        (WeCFL(k=2, penalties=(Contrastive(),)), "wecfl-con", 2),
        (WeCFL(k=2, penalties=(KnowledgeSharing(),)), "wecfl-cks", 2),
        (WeCFL(k=2, penalties=CON_CKS), "wecfl-con-cks", 2),
        (WeCFL(k=2, penalties=(Proximal(),)), "wecfl-prox", 2),
    ],
    ids=repr,
)
def test_label_and_clusters(method: Method | dict[str, Any], label: str, clusters: int) -> None:
    built = build_method(method) if isinstance(method, dict) else method
    assert (built.label, built.clusters) == (label, clusters)
