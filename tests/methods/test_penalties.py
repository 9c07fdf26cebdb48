# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Penalties as parts of methods: what they do to a local step, when they begin, what travels, what is refused."""

import json
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import permutations
from typing import ClassVar

import numpy as np
import pytest
import torch

from cfl_flare.cli import main, parser
from cfl_flare.cli.specs import build_named
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Task
from cfl_flare.flare import wire
from cfl_flare.methods import (
    CAM,
    IFCA,
    Contrastive,
    Download,
    Ensemble,
    FedAvg,
    FeSEM,
    KnowledgeSharing,
    Local,
    Participant,
    Penalty,
    Proximal,
    ServerState,
    Update,
    WeCFL,
    build_method,
    cluster_slot,
    describe_method,
)
from cfl_flare.methods.penalties import build_penalty
from cfl_flare.methods.slots import GLOBAL, add_parts, list_travelling
from cfl_flare.models import MLP, FashionCNN, Logistic
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Pull, Step
from cfl_flare.training.runtime import Split
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.refusals import catch_refusal
from tests.helpers.tiny import LAYOUT, NoLinear, coin, draw_bank, initial, make_coin_learner, make_learner, update

torch.set_num_threads(1)

HERE = "tests.methods.test_penalties"
CLUSTERING = [IFCA, FeSEM, WeCFL]
CON_CKS = (Contrastive(scope="head"), KnowledgeSharing(scope="backbone"))


def name_of(value):
    return value.name if isinstance(value, type) else getattr(value, "label", repr(value))


def after_a_round(bank, weights=(0.5, 0.2, 0.3), own=0) -> ServerState:
    """A state with centres, in which participant p belongs to a cluster."""
    return ServerState(bank, {"p": own}, 1, {"has_centres": True, "common_weights": list(weights)})


def receive_download(method, state, participant="p") -> Download:
    """What arrives at a participant."""
    sent = method.distribute(state, participant)
    slots = (*sent.slots, *sent.to_train)
    models = add_parts(state.bank, slots)
    return Task.of(sent, train=True, evaluate=False).download(models)


def compute_move(method, state, worker, participant="p") -> Params:
    """What a participant's local update adds to the one model that it trains."""
    (diff,) = method.local_update(worker, receive_download(method, state, participant)).diffs.values()
    return diff


# One local step by hand. With both labels once, (1, 1) has no gradient of its own: only the penalties move it.

BANK = {"cluster-0": coin(1, 1), "cluster-1": coin(3, 5), "cluster-2": coin(-2, 4), GLOBAL: coin(3, 5)}
EVEN = partial(make_coin_learner, [0, 1])


@pytest.mark.parametrize("cls", CLUSTERING, ids=name_of)
def test_knowledge_sharing_goes_towards_the_common_model(cls):
    """Thesis Eq. 5.6: -lambda ((1, 1) - (3, 5))."""
    method = cls(k=3, penalties=(KnowledgeSharing(lam=0.25),))
    np.testing.assert_allclose(compute_move(method, after_a_round(BANK), EVEN()).vector, [0.5, 1], rtol=1e-6)


@pytest.mark.parametrize("cls", CLUSTERING, ids=name_of)
def test_pairwise_sharing_goes_towards_the_other_centres_by_their_weights(cls):
    """Thesis Eq. 5.5: -lambda (0.2 ((1, 1) - (3, 5)) + 0.3 ((1, 1) - (-2, 4)))."""
    method = cls(k=3, penalties=(KnowledgeSharing(lam=0.5, pairwise=True),))
    np.testing.assert_allclose(compute_move(method, after_a_round(BANK), EVEN()).vector, [-0.25, 0.85], rtol=1e-5)


def test_pairwise_sharing_is_the_sum_of_the_pulls_to_the_others():
    method = WeCFL(k=3, penalties=(KnowledgeSharing(lam=0.5, pairwise=True),))
    state = after_a_round(BANK, own=1)
    places = LAYOUT.select("all")
    pulls = [Pull(0.5 * w, BANK[cluster_slot(k)].vector, places) for k, w in ((0, 0.5), (2, 0.3))]
    start = BANK["cluster-1"]
    expected = EVEN(steps=3, lr=0.5).train(start, pulls) - start
    np.testing.assert_array_equal(compute_move(method, state, EVEN(steps=3, lr=0.5)).vector, expected.vector)


@pytest.mark.parametrize(("own", "expected"), [(0, [0.5, 1]), (2, [0, 0])])
@pytest.mark.parametrize("cls", CLUSTERING, ids=name_of)
def test_lambda_may_differ_by_cluster(cls, own, expected):
    bank = {**BANK, cluster_slot(own): coin(1, 1), "cluster-1": coin(9, -9)}
    bank[cluster_slot(2 - own)] = coin(7, -7)
    method = cls(k=3, penalties=(KnowledgeSharing(lam=[0.25, 7.0, 0.0]),))
    np.testing.assert_allclose(compute_move(method, after_a_round(bank, own=own), EVEN()).vector, expected, rtol=1e-6)


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("cls", CLUSTERING, ids=name_of)
def test_a_contrast_of_parameters_turns_away_from_the_other_centre(cls, tau):
    """At the own centre only the other's cosine, 0 here, has a gradient: (1, -1) / 2."""
    bank = {"cluster-0": coin(1, 1), "cluster-1": coin(2, -2), GLOBAL: coin(9, 9)}
    method = cls(k=2, penalties=(Contrastive(mu=3.0, tau=tau),))
    pushed = 3.0 / tau / (1 + np.exp(1 / tau)) * np.array([-0.5, 0.5])
    np.testing.assert_allclose(compute_move(method, after_a_round(bank, (0.5, 0.5)), EVEN()).vector, pushed, rtol=1e-5)


@pytest.mark.parametrize("cls", [FedAvg, partial(IFCA, k=1), partial(FeSEM, k=1), partial(WeCFL, k=1)])
def test_a_proximal_term_pulls_to_the_start(cls):
    """On label 0 from (0, 0) the first step goes to (0.5, -0.5); the second is held by mu times that."""
    method = cls(penalties=(Proximal(mu=0.5),))
    state = after_a_round({"cluster-0": coin(0, 0), GLOBAL: coin(0, 0)}, [1.0])
    p0 = 1 / (1 + np.exp(-1.0))
    second = 0.5 + (1 - p0) - 0.5 * 0.5
    np.testing.assert_allclose(
        compute_move(method, state, make_coin_learner([0], steps=2)).vector, [second, -second], rtol=1e-5
    )


def test_fedprox_is_fedavg_with_a_proximal_term():
    state = ServerState({GLOBAL: coin(0, 0)})
    one, two = build_method({"method": "fedprox", "mu": 0.5}), FedAvg(penalties=(Proximal(mu=0.5),))
    vectors = [compute_move(method, state, make_coin_learner([0], steps=3)).vector for method in (one, two)]
    np.testing.assert_array_equal(*vectors)


def test_penalties_add_up():
    penalties = (KnowledgeSharing(lam=0.25), KnowledgeSharing(lam=0.5, pairwise=True))
    method = WeCFL(k=3, penalties=penalties)
    np.testing.assert_allclose(compute_move(method, after_a_round(BANK), EVEN()).vector, [0.25, 1.85], rtol=1e-5)
    assert method.label == "wecfl-cks-cks"


# Parts of a model

MAKE = partial(MLP, (3,), 2, (4,))
ROWS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)


def worker_of(make=MAKE, x=ROWS, **settings) -> Learner:
    data = Split.of(x, np.arange(len(x)) % 2)
    defaults = {"lr": 0.3, "momentum": 0.0, "local_steps": 1, "batch_size": len(x)}
    return make_learner(make, data, number=1, **{**defaults, **settings})


def compute_penalised_move(penalties, cls=WeCFL, worker=None, k=3) -> Params:
    worker = worker or worker_of()
    return compute_move(cls(k=k, penalties=penalties), after_a_round(draw_bank(worker, k)), worker)


@pytest.mark.parametrize("cls", CLUSTERING, ids=name_of)
def test_con_and_cks_move_the_head_and_the_backbone_each_by_its_own(cls):
    plain, con, cks, both = (compute_penalised_move(p, cls) for p in ((), CON_CKS[:1], CON_CKS[1:], CON_CKS))
    for diff, head, backbone in ((both, con, cks), (con, con, plain), (cks, plain, cks)):
        np.testing.assert_array_equal(diff.part("head"), head.part("head"))
        np.testing.assert_array_equal(diff.part("backbone"), backbone.part("backbone"))
    assert not np.array_equal(con.part("head"), plain.part("head"))
    assert not np.array_equal(cks.part("backbone"), plain.part("backbone"))


def draw_image_noise():
    return np.random.default_rng(0).normal(size=(12, 1, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("scope", ["all", "fc", "head", "backbone"])
@pytest.mark.parametrize("make", [Contrastive, KnowledgeSharing, partial(KnowledgeSharing, pairwise=True)])
def test_what_is_out_of_scope_moves_as_without_the_penalty(make, scope):
    plain, held = (
        compute_penalised_move(p, worker=worker_of(partial(FashionCNN, (1, 8, 8), 2), draw_image_noise()))
        for p in ((), (make(scope=scope),))
    )
    inside = np.zeros(plain.layout.size, bool)
    for place in plain.layout.select(scope):
        inside[place] = True
    np.testing.assert_array_equal(held.vector[~inside], plain.vector[~inside])
    np.testing.assert_array_equal(held.counters, plain.counters)
    assert (held.vector[inside] != plain.vector[inside]).mean() > 0.5


@pytest.mark.parametrize("cls", CLUSTERING, ids=name_of)
def test_a_contrast_of_representations_composes_with(cls):
    plain, held = (
        compute_penalised_move((), cls),
        compute_penalised_move((Contrastive(mu=2.0, on="representations"),), cls),
    )
    np.testing.assert_array_equal(held.part("head"), plain.part("head"))
    assert not np.array_equal(held.part("backbone"), plain.part("backbone"))


# Beginning

KINDS = [Contrastive(), Contrastive(scope="head"), KnowledgeSharing(), KnowledgeSharing(pairwise=True)]
REPRESENTATIONS = Contrastive(on="representations")


@pytest.mark.parametrize("penalty", KINDS, ids=repr)
@pytest.mark.parametrize("cls", CLUSTERING, ids=name_of)
def test_no_penalty_of_clusters_before_there_are_centres(cls, penalty):
    plain, held = cls(k=2), cls(k=2, penalties=(penalty,))
    state = held.start(initial)
    failed = replace(state, round=1)  # nobody answered
    for before in (state, failed):
        assert held.distribute(before, "p") == plain.distribute(before, "p")
        np.testing.assert_array_equal(
            compute_move(held, before, make_coin_learner([0])).vector,
            compute_move(plain, before, make_coin_learner([0])).vector,
        )


@pytest.mark.parametrize("penalty", KINDS, ids=repr)
@pytest.mark.parametrize("cls", [FeSEM, WeCFL], ids=name_of)
def test_no_penalty_of_clusters_for_a_newcomer(cls, penalty):
    plain, held, state = cls(k=3), cls(k=3, penalties=(penalty,)), after_a_round(BANK)
    assert held.distribute(state, "new") == Download((GLOBAL,))
    np.testing.assert_array_equal(
        compute_move(held, state, EVEN(), "new").vector, compute_move(plain, state, EVEN(), "new").vector
    )


@pytest.mark.parametrize("cls", [FeSEM, WeCFL], ids=name_of)
def test_a_proximal_term_holds_from_the_start(cls):
    state = ServerState({GLOBAL: coin(0, 0)})
    plain, held = (
        compute_move(cls(k=2, penalties=p), state, make_coin_learner([0], steps=2)) for p in ((), (Proximal(mu=0.5),))
    )
    np.testing.assert_allclose(held.vector - plain.vector, [-0.25, 0.25], rtol=1e-5)


def run_penalty_loop(method, rounds=3, on_round=lambda measured: None, **more):
    return run_loop(
        method=method,
        model=MLP((1, 8, 8), 10, hidden=(8,)),
        source=Digits(),
        data=DataConfig(6, {"partition": "label_permutation", "groups": 2}),
        settings=ServerSettings(rounds, **more),
        training=TrainSettings(lr=0.1, local_steps=3),
        on_round=on_round,
    )


RUNS = {
    "ifca": lambda p: IFCA(k=2, penalties=p),
    "wecfl": lambda p: WeCFL(k=2, penalties=p),
    "ifca-cam": lambda p: CAM(base=IFCA(k=2, penalties=p), warmup=1),
    "fesem-cam": lambda p: CAM(base=FeSEM(k=2, penalties=p), warmup=1),
    "ensemble": lambda p: Ensemble(parts=(FedAvg(), IFCA(k=2, penalties=p))),
}


@cache
def without_penalties(name):
    return run_penalty_loop(RUNS[name](())).state.bank


@pytest.mark.parametrize(
    "penalties",
    [CON_CKS, (Contrastive(), KnowledgeSharing(pairwise=True)), (REPRESENTATIONS,), (KnowledgeSharing(),)],
    ids=repr,
)
@pytest.mark.parametrize("name", RUNS)
def test_whole_runs_in_which_nobody_fails_and_the_penalties_tell(name, penalties):
    failed = []
    held = run_penalty_loop(RUNS[name](penalties), on_round=lambda measured: failed.append(measured.record["failed"]))
    assert failed == [{}] * 3
    assert any(not np.array_equal(held.state.bank[s].vector, m.vector) for s, m in without_penalties(name).items())


@pytest.mark.parametrize("cls", [IFCA, WeCFL], ids=name_of)
def test_penalties_of_no_strength_are_none(cls):
    nothing = (
        Proximal(mu=0.0),
        Contrastive(mu=0.0),
        Contrastive(mu=0.0, on="representations"),
        KnowledgeSharing(lam=0.0),
        KnowledgeSharing(lam=(0, 0), pairwise=True),
    )
    plain = run_penalty_loop(cls(k=2))
    for penalties in (nothing[:1], nothing[1:3], nothing[3:]):
        held = run_penalty_loop(cls(k=2, penalties=penalties))
        assert held.state.assignment == plain.state.assignment
        for slot, model in plain.state.bank.items():
            np.testing.assert_array_equal(held.state.bank[slot].vector, model.vector)


# Strength

GRID = (0.0, 0.1, 0.5, 2.0, 5.0)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        *[(n, s) for n in ("proximal", "sharing", "pairwise", "parameters") for s in ("all", "head", "backbone")],
        ("representations", "all"),
    ],
)
def test_a_stronger_penalty_shows_more(name, scope):
    """What a penalty asks for is the better fulfilled the stronger it is."""
    make = {
        "proximal": lambda c: Proximal(mu=c, scope=scope),
        "sharing": lambda c: KnowledgeSharing(lam=c, scope=scope),
        "pairwise": lambda c: KnowledgeSharing(lam=c, pairwise=True, scope=scope),
        "parameters": lambda c: Contrastive(mu=c, scope=scope),
        "representations": lambda c: Contrastive(mu=c, on="representations"),
    }[name]
    left = []
    for strength in GRID:
        worker = worker_of(lr=0.05, local_steps=20)
        method, state = WeCFL(k=3, penalties=(make(strength),)), after_a_round(draw_bank(worker))
        trained = state.bank["cluster-0"] + compute_move(method, state, worker)
        unit = replace(method, penalties=(make(1.0),))
        (*terms,) = unit.list_terms(receive_download(unit, state), "cluster-0")
        left.append(sum(value_of(term, trained, worker) for term in terms))
    assert left == sorted(left, reverse=True)
    assert left[0] - left[-1] > 0.01 * left[0]


def value_of(term, params, worker) -> float:
    """The term at a model, on the whole data."""
    x = torch.from_numpy(ROWS)
    features = [worker._runtime.predictor([m], features=True)(x)[0] for m in (params, *term.compares)]
    compared = torch.stack(features[1:]) if term.compares else None
    return float(term(Step(torch.from_numpy(params.vector), features[0], compared)))


# What travels

PARTS = ["cluster-0", "cluster-1", "cluster-2"]
TRAVEL = {
    (): [],
    (Proximal(),): [],
    (Contrastive(),): PARTS,
    (Contrastive(scope="head"),): [f"{slot}:head" for slot in PARTS],
    (Contrastive(scope="fc"),): [f"{slot}:fc" for slot in PARTS],
    (REPRESENTATIONS,): [f"{slot}:backbone" for slot in PARTS],
    (KnowledgeSharing(),): [GLOBAL],
    (KnowledgeSharing(scope="backbone"),): ["global:backbone"],
    (KnowledgeSharing(pairwise=True),): PARTS,
    (KnowledgeSharing(pairwise=True, scope="backbone"),): [f"{slot}:backbone" for slot in PARTS],
    CON_CKS: [*(f"{slot}:head" for slot in PARTS), "global:backbone"],
    (Contrastive(), KnowledgeSharing(pairwise=True)): PARTS,
}


@pytest.mark.parametrize("penalties", TRAVEL, ids=repr)
def test_what_a_participant_is_sent(penalties):
    state = after_a_round(BANK, own=1)
    of_clusters = any(p.of_clusters for p in penalties)
    facts = {"has_centres": True, "cluster_weights": [0.5, 0.2, 0.3]} if of_clusters else {}
    for cls in (FeSEM, WeCFL):
        sent = cls(k=3, penalties=penalties).distribute(state, "p")
        assert sent.slots == ("cluster-1",)
        assert sorted(sent.to_train) == sorted({*TRAVEL[penalties]} - {"cluster-1"})
        assert sent.scalars == facts
    sent = IFCA(k=3, penalties=penalties).distribute(state, "p")
    assert list(sent.slots) == PARTS
    assert sorted(sent.to_train) == sorted({*TRAVEL[penalties]} - {*PARTS})
    assert sent.scalars == facts
    whole = {*list_travelling((*sent.slots, *sent.to_train))} - {*PARTS}  # parts of the K models need not travel
    assert whole == {slot for slot in TRAVEL[penalties] if slot.startswith(GLOBAL)}


def test_parts_of_models_that_travel_whole_do_not_travel_again():
    assert list_travelling(["a", "b:head", "a:head", "b:head", "a", "b:backbone"]) == ["a", "b:head", "b:backbone"]
    assert list_travelling(["a:head", "a"]) == ["a"]
    assert list_travelling([]) == []


CNN = Layout.of(FashionCNN((1, 8, 8), 3))


def noise(seed: int) -> Params:
    rng = np.random.default_rng(seed)
    vector = np.abs(rng.normal(size=CNN.size)).astype(np.float32)
    return Params(CNN, vector, rng.integers(0, 99, CNN.counter_size))


NOISE = {**{slot: noise(i) for i, slot in enumerate(PARTS)}, GLOBAL: noise(9)}


def in_the_middle(method, **schedule) -> Server:
    """Two participants of cluster 0 and one of cluster 1 on one site, one of cluster 1 on another."""
    sites, clusters = {"a": "s1", "b": "s1", "c": "s1", "d": "s2"}, {"a": 0, "b": 0, "c": 1, "d": 1}
    state = ServerState(NOISE, clusters, 1, {"has_centres": True, "common_weights": [0.5, 0.5, 0.0]})
    people = [Participant(name, site, 5) for name, site in sites.items()]
    return Server(method, CNN, people, ServerSettings(5, **{"evaluate_every": 9, **schedule}), state)


def count_bytes(slot: str) -> int:
    whole, _, part = slot.partition(":")
    return sum(
        array.nbytes
        for (name, array), entry in zip(NOISE[whole].arrays().items(), CNN.entries)
        if part in ("", "head" if entry.head else "backbone") or (part == "fc" and entry.fc)
    )


@pytest.mark.parametrize(
    ("penalties", "first", "second"),
    [
        ((), ["cluster-0", "cluster-1"], ["cluster-1"]),
        (CON_CKS[:1], ["cluster-0", "cluster-1", "cluster-2:head"], ["cluster-1", "cluster-0:head", "cluster-2:head"]),
        (CON_CKS[1:], ["cluster-0", "cluster-1", "global:backbone"], ["cluster-1", "global:backbone"]),
        (
            CON_CKS,
            ["cluster-0", "cluster-1", "cluster-2:head", "global:backbone"],
            ["cluster-1", "cluster-0:head", "cluster-2:head", "global:backbone"],
        ),
        ((REPRESENTATIONS, Contrastive(scope="fc")), None, None),
    ],
)
def test_each_part_travels_once_to_a_site_and_is_counted(penalties, first, second):
    if first is None:
        first = ["cluster-0", "cluster-1", "cluster-2:backbone", "cluster-2:fc"]
        second = ["cluster-1", *(f"cluster-{k}:{part}" for part in ("backbone", "fc") for k in (0, 2))]
    server = in_the_middle(WeCFL(k=3, penalties=penalties))
    orders = server.tasks()
    by_site = {"s1": "abc", "s2": "d"}
    for site, expected in (("s1", first), ("s2", second)):
        assert set(list_travelling(slot for n in by_site[site] for slot in orders[n].slots)) == set(expected)
    server.round.fail(list("abcd"), "power cut")
    server.finish_round()
    assert server.progress.record["bytes_down"] == sum(count_bytes(slot) for slot in (*first, *second))


@pytest.mark.parametrize("penalties", [(), *TRAVEL], ids=repr)
def test_parts_arrive_through_flare_as_they_are_in_the_bank(penalties):
    server = in_the_middle(WeCFL(k=3, penalties=penalties))
    orders = server.tasks()
    needed = [slot for order in orders.values() for slot in order.slots]
    sent = add_parts(server.state.bank, list_travelling(needed))
    message = wire.to_shareable(wire.encode_models(sent), {"tasks": wire.encode_tasks(orders)})
    arrived, models, _ = wire.decode_task(message, CNN)
    assert arrived == orders
    assert set(models) == set(needed)
    for slot, model in add_parts(server.state.bank, needed).items():
        whole, _, part = slot.partition(":")
        assert models[slot].layout == model.layout == CNN.of_part(part or "all")
        np.testing.assert_array_equal(models[slot].vector, model.vector)
        np.testing.assert_array_equal(models[slot].counters, model.counters)
        np.testing.assert_array_equal(model.part("all"), NOISE[whole].part(part or "all"))


def test_only_those_who_train_are_sent_what_the_penalties_need():
    server = in_the_middle(WeCFL(k=3, penalties=CON_CKS), sample=2, evaluate_every=1)
    orders = server.tasks()
    assert sorted(order.train for order in orders.values()) == [False, False, True, True]
    for name, order in orders.items():
        own = cluster_slot(server.state.assignment[name])
        extra = {f"{slot}:head" for slot in PARTS} | {"global:backbone"} if order.train else set()
        assert order.slots[0] == own
        assert set(order.slots) == {own} | extra


@pytest.mark.parametrize("cls", CLUSTERING, ids=name_of)
def test_methods_around_pass_on_what_the_penalties_need(cls):
    method, state = cls(k=3, penalties=CON_CKS), after_a_round(BANK)
    alone = method.distribute(state, "p")
    cam = CAM(base=method, warmup=0).distribute(replace(state, bank={**BANK, "shared": coin(0, 0)}), "p")
    assert (cam.slots[1:], cam.to_train, cam.scalars) == (alone.slots, alone.to_train, alone.scalars)
    whole = replace(state, bank={f"0.{slot}": m for slot, m in BANK.items()}, extras={"0": state.extras})
    together = Ensemble(parts=(method,)).distribute(whole, "p")
    assert together.to_train == tuple(f"0.{slot}" for slot in alone.to_train)
    assert together.scalars == {"0": alone.scalars}


def test_a_site_needs_no_more_than_it_was_sent():
    with pytest.raises(KeyError):
        add_parts({"cluster-0": NOISE["cluster-0"]}, ["cluster-1:head"])


# What the server knows

PEOPLE = [("a", 1, 0, (1, 1)), ("b", 3, 0, (5, 5)), ("c", 4, 1, (10, 12)), ("d", 2, 1, (13, 9))]


def next_state(method, people=PEOPLE):
    if method.traits.assigns_on_site:
        updates = [update(n, s, cluster_slot(c), *at, cluster=c) for n, s, c, at in people]
        state = ServerState({cluster_slot(k): coin(0, 0) for k in range(method.clusters)})
    else:
        updates = [Update(n, s, {GLOBAL: coin(*at)}) for n, s, _, at in people]
        state = method.start(lambda i: coin(0, 0))
    return method.aggregate(state, updates, method.assign(state, updates))


@pytest.mark.parametrize(
    ("cls", "weights", "common"),
    [
        (IFCA, [0.4, 0.6], [(16 + 66) / 10, (16 + 66) / 10]),
        (WeCFL, [0.4, 0.6], [(16 + 66) / 10, (16 + 66) / 10]),
        (FeSEM, [0.5, 0.5], [29 / 4, 27 / 4]),
    ],
)
def test_the_common_model_is_the_weighted_mean_of_the_centres(cls, weights, common):
    """Thesis Eq. 5.6; with psi it is the weighted mean of all participants' models."""
    state = next_state(cls(k=2, penalties=(KnowledgeSharing(),)))
    own = [state.assignment["a"], state.assignment["c"]]  # k-means numbers the clusters as it likes
    assert [state.extras["common_weights"][k] for k in own] == pytest.approx(weights)
    assert sum(state.extras["common_weights"]) == pytest.approx(1)
    np.testing.assert_allclose(state.bank[GLOBAL].vector, common, rtol=1e-6)
    centres = sum(w * state.bank[cluster_slot(k)].vector for k, w in enumerate(state.extras["common_weights"]))
    np.testing.assert_allclose(state.bank[GLOBAL].vector, centres, rtol=1e-6)


def test_a_cluster_without_participants_has_no_weight():
    state = next_state(IFCA(k=3, penalties=(KnowledgeSharing(),)))
    assert state.extras["common_weights"] == pytest.approx([0.4, 0.6, 0.0])
    np.testing.assert_allclose(state.bank[GLOBAL].vector, [8.2, 8.2], rtol=1e-6)


def test_ifca_keeps_no_common_model_without_penalties():
    state = next_state(IFCA(k=2))
    assert GLOBAL not in state.bank
    assert not state.extras


@pytest.mark.parametrize("penalty", [*KINDS, REPRESENTATIONS], ids=repr)
def test_the_numbers_of_the_clusters_do_not_matter(penalty):
    method, weights = WeCFL(k=3, penalties=(penalty,)), np.array([0.5, 0.2, 0.3])
    bank = draw_bank(worker_of())
    first = compute_move(method, after_a_round(bank, weights), worker_of())
    for order in permutations(range(3)):  # cluster k is called order[k]
        renamed = {cluster_slot(order[k]): bank[cluster_slot(k)] for k in range(3)}
        state = after_a_round({**bank, **renamed}, weights[np.argsort(order)], own=order[0])
        np.testing.assert_allclose(compute_move(method, state, worker_of()).vector, first.vector, atol=1e-6)


# Refusals, and the way through a job

NAN, INF = float("nan"), float("inf")
BAD = {
    "proximal": [
        *[({"mu": v}, f"mu = {v!r} should be >= 0") for v in (-0.1, NAN, INF, -INF, -1)],
        *[({"mu": v}, f"mu = {v!r} should be float, not ") for v in ("0.5", True, None, [0.5])],
        ({"scope": "tail"}, "scope = 'tail' should be one of 'all', 'fc', 'head', 'backbone'"),
        ({"scope": ["head"]}, "scope = ['head'] should be one of 'all', "),
        ({"scope": None}, "scope = None should be 'all' or 'fc' or 'head' or 'backbone', not NoneType"),
        ({"lam": 1}, "unknown setting 'lam'; it has: scope, mu"),
    ],
    "contrastive": [
        *[({"mu": v}, f"mu = {v!r} should be >= 0") for v in (-0.1, NAN, INF)],
        *[({"mu": v}, f"mu = {v!r} should be float, not ") for v in ("0.5", False, None)],
        *[({"tau": v}, f"tau = {v!r} should be > 0") for v in (0, 0.0, -1.0, NAN, INF)],
        *[({"tau": v}, f"tau = {v!r} should be float, not ") for v in ("1", True, None)],
        ({"on": "logits"}, "on = 'logits' should be 'parameters' or 'representations'"),
        ({"on": 1}, "on = 1 should be 'parameters' or 'representations'"),
        ({"scope": "neck"}, "scope = 'neck' should be one of"),
        *[
            (
                {"on": "representations", "scope": scope},
                f"scope = {scope!r} does not go with on = 'representations', which are the backbone's outputs; leave",
            )
            for scope in ("head", "backbone", "fc")
        ],
        ({"on": "representations", "mode": "eval"}, "mode = 'eval' should be 'evaluation' or 'training'"),
        ({"mode": True}, "mode = True should be 'evaluation' or 'training'"),
        (
            {"mode": "training"},
            "mode = 'training' does not go with on = 'parameters', which have no mode; leave it out",
        ),
        ({"temperature": 1}, "unknown setting 'temperature'; it has: scope, mu, tau, on, mode"),
    ],
    "knowledge_sharing": [
        *[({"lam": v}, f"lam = {v!r} should be >= 0") for v in (-0.1, NAN, INF)],
        *[({"lam": [0.1, v]}, f"lam = {v!r} should be >= 0") for v in (-0.1, NAN, INF)],
        *[({"lam": v}, f"lam = {v!r} should be a number, or one per cluster") for v in ("1", True, None, {"a": 1})],
        *[({"lam": [0.1, v]}, f"lam = (0.1, {v!r}) should be a number, or one") for v in ("1", True, None, [1])],
        *[
            ({"lam": v}, f"lam = {v} has {len(v)} values for 2 clusters; give one number, or 2")
            for v in ([], [0.1], [0.1, 0.2, 0.3])
        ],
        ({"pairwise": 1}, "pairwise = 1 should be bool, not int"),
        ({"pairwise": "yes"}, "pairwise = 'yes' should be bool, not str"),
        ({"scope": "neck"}, "scope = 'neck' should be one of"),
        ({"mu": 1}, "unknown setting 'mu'; it has: scope, lam, pairwise"),
    ],
}
CASES = [(name, settings, says) for name, cases in BAD.items() for settings, says in cases]


catch_config_error = partial(catch_refusal, error=ConfigError)


@pytest.mark.parametrize(("name", "settings", "says"), CASES, ids=lambda value: str(value)[:40])
def test_a_wrong_value_is_refused_by_name(name, settings, says):
    spec = {"method": "wecfl", "k": 2, "penalties": [{"penalty": name, **settings}]}
    assert catch_config_error(lambda: build_method(spec)).startswith(f"penalty {name}: {says}")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("proximal", "penalty 'proximal' should be {'penalty': name, ...}, with its settings"),
        (3, "penalty 3 should be {'penalty': name, ...}"),
        (Proximal, "should be {'penalty': name, ...}"),
        ({}, "penalty None is unknown; there are proximal, contrastive, knowledge_sharing, or package.Class"),
        ({"mu": 1}, "penalty None is unknown; there are "),
        ({"penalty": "contrast"}, "penalty 'contrast' is unknown; there are "),
        ({"penalty": ["proximal"]}, "penalty ['proximal'] is unknown; there are "),
        ({"penalty": "nowhere.Penalty"}, "penalty: 'nowhere.Penalty' cannot be imported here"),
        ({"penalty": "cfl_flare.models.MLP"}, "'cfl_flare.models.MLP' is not a cfl_flare.methods.penalties.Penalty"),
        ({"penalty": f"{HERE}.Shrink", "by": 1}, "penalty Shrink: unknown setting 'by'; it has: scope, strength"),
        ({"penalty": f"{HERE}.Unfinished"}, "penalty Unfinished: TypeError: "),
    ],
    ids=repr,
)
def test_what_is_no_penalty_is_refused(spec, says):
    assert says in catch_config_error(lambda: build_penalty(spec))


@pytest.mark.parametrize("penalties", ["proximal", {"penalty": "proximal"}, 3, None, Proximal()], ids=repr)
def test_what_is_no_list_of_penalties_is_refused(penalties):
    says = f"method wecfl: penalties = {penalties!r} should be a list of penalties"
    assert catch_config_error(lambda: build_method({"method": "wecfl", "k": 2, "penalties": penalties})) == says
    assert catch_config_error(
        lambda: WeCFL(k=2, penalties=[penalties] if penalties != Proximal() else Proximal())
    ).endswith("should be a list of penalties")


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "finetune"])
@pytest.mark.parametrize("penalty", ["contrastive", "knowledge_sharing"])
def test_a_penalty_of_clusters_needs_clusters(method, penalty):
    line = catch_config_error(lambda: build_method({"method": method, "penalties": [{"penalty": penalty}]}))
    there = "ifca, fesem or wecfl, with k >= 1, or your own that declares the trait shares_centres"
    assert line == f"penalty {penalty}: needs a method with clusters: {there}"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"method": "local"},
            "method local: penalties = ['{}'] need a common model, and there is none; leave them out",
        ),
        (
            {"method": "cam", "base": {"method": "ifca", "k": 2}},
            "method cam: penalties = ['{}'] belong to the methods inside it; give them there",
        ),
        (
            {"method": "cam", "base": "ifca"},
            "method cam: base = 'ifca' should be a method that clusters",
        ),
        (
            {"method": "ensemble", "parts": [{"method": "fedavg"}]},
            "method ensemble: penalties = ['{}'] belong to the methods inside it; give them there",
        ),
        (
            {"method": "ifca", "k": 2, "shared_backbone": True},
            "method ifca: penalties = ['{}'] do not go with shared_backbone = True, where no whole",
        ),
    ],
    ids=lambda value: value["method"] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("penalty", ["proximal", "contrastive", "knowledge_sharing"])
def test_methods_that_take_no_penalties(spec, says, penalty):
    assert catch_config_error(lambda: build_method({**spec, "penalties": [{"penalty": penalty}]})).startswith(
        says.format(penalty)
    )


def test_local_takes_an_empty_list():
    assert Local(penalties=[]).penalties == ()


@pytest.mark.parametrize(
    ("model", "penalty", "setting"),
    [
        (NoLinear(), Contrastive(scope="head"), "scope = 'head'"),
        (NoLinear(), KnowledgeSharing(scope="backbone"), "scope = 'backbone'"),
        (NoLinear(), Proximal(scope="fc"), "scope = 'fc'"),
        (NoLinear(), REPRESENTATIONS, "on = 'representations'"),
        (Logistic((1, 8, 8), 10), Contrastive(scope="backbone"), "scope = 'backbone'"),
        (Logistic((1, 8, 8), 10), REPRESENTATIONS, "on = 'representations'"),
    ],
    ids=repr,
)
def test_a_model_without_the_part_is_refused_before_a_round(model, penalty, setting):
    method = WeCFL(k=2, cluster_on="all", penalties=(penalty,))
    layout = Layout.of(model)
    for whole in (method, CAM(base=method), Ensemble(parts=(FedAvg(), method))):
        line = catch_config_error(partial(whole.check, layout))
        assert line.startswith(f"penalty {penalty.name}: {setting} does not fit the model: the model has no ")


@dataclass(frozen=True, kw_only=True)
class Shrink(Penalty):
    """A penalty of one's own: towards zero."""

    name: ClassVar[str] = "shrink"
    short: ClassVar[str] = "shr"

    strength: float = 0.1

    def list_terms(self, download, own, clusters):
        start = download.model(own)
        places = start.layout.select(self.scope)
        return [Pull(self.strength, np.zeros_like(start.part(self.scope)), places)]


@dataclass(frozen=True, kw_only=True)
class Unfinished(Penalty):
    """One that adds nothing."""

    name: ClassVar[str] = "unfinished"
    short: ClassVar[str] = "unf"


@pytest.mark.parametrize("cls", CLUSTERING, ids=name_of)
def test_a_job_file_keeps_an_own_penalty(cls):
    penalties = (Shrink(strength=0.5, scope="head"), Contrastive(mu=5, tau=0.1))
    for method in (cls(k=2, penalties=penalties), CAM(base=cls(k=2, penalties=penalties))):
        again = build_method(json.loads(json.dumps(describe_method(method))))
        assert again == method
        assert again.label == method.label


def test_a_penalty_of_ones_own_goes_by_its_class_path_past_the_sites_policy():
    spec = describe_method(FedAvg(penalties=(Shrink(strength=0.5),)))
    assert spec["penalties"] == [{"penalty": f"{HERE}.Shrink", "scope": "all", "strength": 0.5}]
    asked = []
    method = build_method(spec, asked.append)
    assert asked == [f"{HERE}.Shrink"]
    assert method.label == "fedavg-shr"
    worker = make_coin_learner([0, 1])
    np.testing.assert_allclose(compute_move(method, ServerState({GLOBAL: coin(1, 1)}), worker).vector, [-0.5, -0.5])

    def refuse(path):
        raise ConfigError(f"{path} is not allowed here")

    assert catch_config_error(lambda: build_method(spec, refuse)) == f"{HERE}.Shrink is not allowed here"


# The command line


def test_a_penalty_is_added_to_the_method_before_it():
    arguments = "run --method fedavg --method wecfl:k=2 --penalty contrastive:mu=2,scope=head --penalty"
    arguments += " knowledge_sharing:lam=[0.1,1],scope=backbone --method ifca:k=2 --penalty proximal"
    methods = [build_named(*given) for given in parser().parse_args(arguments.split()).method]
    assert methods == [
        FedAvg(),
        WeCFL(k=2, penalties=(Contrastive(mu=2, scope="head"), KnowledgeSharing(lam=(0.1, 1), scope="backbone"))),
        IFCA(k=2, penalties=(Proximal(),)),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--penalty contrastive", "--penalty contrastive: there is no --method before it to add it to"),
        ("--penalty contrastive --method wecfl:k=2", "there is no --method before it to add it to"),
        ("--method fedavg --penalty contrastive", "penalty contrastive: needs a method with clusters: ifca, "),
        ("--method local --penalty proximal", "method local: penalties = ['proximal'] need a common model"),
        ("--method wecfl:k=2 --penalty nope", "penalty 'nope' is unknown; there are proximal, "),
        ("--method wecfl:k=2 --penalty contrastive:mu", "'contrastive:mu': 'mu' is not key=value; write name:key="),
        ("--method wecfl:k=2 --penalty contrastive:mu=nan", "penalty contrastive: mu = 'nan' should be float, not str"),
        ("--method wecfl:k=2 --penalty contrastive:mu=-1", "penalty contrastive: mu = -1 should be >= 0"),
        ("--method wecfl:k=2 --penalty knowledge_sharing:lam=[1,2,3]", "has 3 values for 2 clusters; give one number"),
        ("--method wecfl:k=2,penalties=[] --penalty proximal", "--method wecfl:k=2,penalties=[]: give its penalties "),
        ("--method wecfl:k=2,penalties=proximal", "penalties = 'proximal' should be a list of penalties"),
        ("--model logistic --method wecfl:k=2 --penalty contrastive:on=representations", "on = 'representations' does"),
    ],
)
def test_the_command_line_refuses(arguments, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--out", "out", *arguments.split()]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert says in output.err
    assert output.err.startswith("cfl-flare: ") and output.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_line_lists_penalties(capsys):
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    for word in ("penalties", "contrastive", "tau (1.0)", "knowledge_sharing", "lam (0.01)", "proximal"):
        assert word in shown
