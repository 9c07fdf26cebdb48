# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The contract, with what holds for every method; methods by their names, and the way through a job file."""

import dataclasses
import inspect
from abc import ABC
from dataclasses import fields, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cfl_flare.clustering.floor import Census, Floor
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.initial_models import check_initial
from cfl_flare.engine.server import ServerSettings
from cfl_flare.engine.task import MAX_LENGTH, check_arrays, check_update
from cfl_flare.methods import (
    CAM,
    COMBINATIONS,
    IFCA,
    METHODS,
    PENALTIES,
    AutoK,
    Contrastive,
    Ditto,
    Download,
    Ensemble,
    FedAvg,
    FedCUAU,
    FedPer,
    FedProx,
    FeSEM,
    Local,
    Method,
    Proximal,
    ServerState,
    Traits,
    Update,
    WeCFL,
    build_method,
)
from cfl_flare.methods.base import STEPS
from cfl_flare.methods.state import Mapped
from cfl_flare.methods.wrapper import Clustering, Wrapper
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.tiny import LAYOUT, coin, compute_objective, initial, update

TOOLS = {
    "list_choices",
    "add_penalties",
    "train_slot",
    "build_predictor",
    "select_features",
    "weight",
    "compute_means",
    "compute_centres",
}
TOOLS |= {
    "compute_cluster_weights",
    "average_centres",
    "update_common",
    "count_by_slot",
    "count_by_cluster",
    "read_counts",
    "join_by_aggregate",
    "publish",
}
NAMES = {"slots", "traits", "label", "where", "clusters"}


def test_the_contract_has_at_most_fifteen_steps_and_no_others():
    public = {name for name in vars(Method) if not name.startswith("_")}
    settings = {f.name for f in fields(Method)}
    assert public - settings - TOOLS - NAMES == set(STEPS)
    assert len(STEPS) <= 15


def test_methods_override_steps_and_few_other_things():
    for name, cls in METHODS.items():
        if not issubclass(cls, Wrapper):
            own = {n for base in cls.__mro__ if base not in (Method, ABC, object) for n in vars(base)}
            overridden = own & vars(Method).keys()
            assert not overridden & TOOLS - {"weight", "publish"}, name


def test_a_wrapper_answers_every_step():
    assert set(STEPS) - set(Wrapper.INTERACTING) <= vars(Wrapper).keys()
    assert "traits" in vars(Wrapper)
    for cls in (CAM, Ensemble, AutoK):
        assert set(Wrapper.INTERACTING) <= vars(cls).keys()
    with pytest.raises(ConfigError, match=r"Forgetful: a wrapper defines start, distribute, .* for its parts"):
        type("Forgetful", (Wrapper,), {})


def test_every_trait_of_a_combination_has_a_rule_or_is_the_leader_s():
    class Part(FedAvg):
        given: ClassVar[Traits]
        traits = property(lambda self: self.given)

    class Plain(Part):
        given = Traits(serves_one=True)

    class Clustering(Part):
        given = replace(Plain.given, clusters=3, mergeable=True, joins_by="x", starts_on_site=True, averages_only=True)

    whole = Ensemble(parts=(Plain(), Clustering())).traits
    assert (whole.clusters, whole.mergeable, whole.joins_by) == (3, True, "x")
    assert whole.starts_on_site  # as any part
    assert not whole.averages_only  # as all parts
    assert not whole.serves_one  # the combination's own


@pytest.mark.parametrize("part", [Ditto(), FedPer(), Local()], ids=lambda m: m.name)
def test_a_checkpoint_is_refused_inside_an_ensemble_as_outside_of_it(part):
    says = "each participant begins with a model that its site builds"
    for method in (part, Ensemble(parts=(part,))):
        with pytest.raises(ConfigError, match=says):
            check_initial(method, LAYOUT)


def test_an_ensemble_draws_as_the_part_that_clusters():
    state = ServerState({}, round=4)
    inner = FedCUAU(k=2).plan(state)
    assert (inner.draw, inner.everyone, inner.fewest) == (3, True, 2)
    assert Ensemble(parts=(FedAvg(), FedCUAU(k=2))).plan(state) == inner


def test_what_clusters_is_seen_through_every_wrapper():
    fesem = FeSEM(k=2, cluster_on="all")
    whole = CAM(base=fesem, warmup=0)
    state = whole.start(initial)
    moved = Update("a", 1, {"global": coin(1, 2), "shared": coin(9, 9)}, main="global")
    seen = Clustering.of(whole, state)
    assert seen.method is fesem
    np.testing.assert_array_equal(seen.compute_vector(moved), [1, 2])
    inside = Ensemble(parts=(FedAvg(), fesem))
    state = inside.start(initial)  # FeSEM's model is from seed 1: (1, -1)
    moved = Update("a", 3, {"0.global": coin(9, 9), "1.global": coin(1, 2)}, main="1.global")
    seen = Clustering.of(inside, state)
    np.testing.assert_array_equal(seen.compute_vector(moved), [2, 1])
    np.testing.assert_array_equal(seen.moved(moved).vector, [1, 2])
    assert seen.weight(moved) == 1  # FeSEM is uniform


@pytest.mark.parametrize(
    ("sent", "cluster", "expected"),
    [
        (Download(("global",)), None, ("global",)),
        (Download(("a", "b")), None, ("a",)),
        (Download(returns=("au",)), None, ("au",)),
        (Download(("c0", "c1"), choices={0: "c0", 1: "c1"}), 1, ("c1",)),
        (Download(("b", "c0"), choices={0: "c0"}, returns=("b",)), 0, ("c0", "b")),
        (Download(("s", "c0"), choices={0: "c0"}, returns=("s",), trains_choice=False), 0, ("s",)),
    ],
)
def test_a_download_says_what_must_come_back(sent, cluster, expected):
    assert sent.list_expected(cluster) == expected
    state = ServerState(dict.fromkeys(("global", "a", "b", "c0", "c1", "s", "au"), coin(0, 0)))
    check_update(Update("p", 1, dict.fromkeys(expected, coin(1, 1)), cluster), sent, state, "m")
    with pytest.raises(PayloadError, match="sent the models"):
        check_update(Update("p", 1, {"other": coin(1, 1)}, cluster), sent, state, "m")


HISTOGRAM = {"histogram": (3,), "losses": (None,)}


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({}, "arrays"),
        ({"histogram": np.ones(3)}, "arrays"),
        ({"histogram": np.ones(3), "losses": np.ones(2), "more": np.ones(1)}, "arrays"),
        ({"histogram": np.ones(4), "losses": np.ones(2)}, "shape"),
        ({"histogram": np.ones((3, 1)), "losses": np.ones(2)}, "shape"),
        ({"histogram": np.ones(3), "losses": np.ones(MAX_LENGTH + 1)}, "shape"),
        ({"histogram": np.array([1, np.nan, 2]), "losses": np.ones(2)}, "non_finite"),
        ({"histogram": np.ones(3), "losses": np.array([np.inf])}, "non_finite"),
        ({"histogram": np.array(["a", "b", "c"]), "losses": np.ones(2)}, "dtype"),
        ({"histogram": np.ones(3, complex), "losses": np.ones(2)}, "dtype"),
        ({"histogram": np.array([{}, 1, 2], object), "losses": np.ones(2)}, "dtype"),
        ({"histogram": [1, 2, 3], "losses": np.ones(2)}, "dtype"),
    ],
)
def test_arrays_that_were_not_asked_for_or_are_unsound_are_refused(arrays, code):
    with pytest.raises(PayloadError) as refused:
        check_arrays("p", arrays, HISTOGRAM)
    assert refused.value.code == code


def test_arrays_that_were_asked_for_are_taken():
    check_arrays("p", {"histogram": np.arange(3), "losses": np.ones(7, np.float16)}, HISTOGRAM)


def test_updates_can_be_seen_through_a_function_and_sliced():
    seen = Mapped([update(n, 1, "global", 1, 1) for n in "abc"], lambda u: Update(u.participant, 5))
    assert [u.samples for u in seen[1:]] == [5, 5]
    assert (len(seen), seen[0].participant) == (3, "a")


def test_start_takes_the_participants_where_a_method_needs_them():
    for name in ("fedavg", "fedds", "wecfl"):
        assert "participants" in inspect.signature(METHODS[name].start).parameters


def test_as_many_clusters_are_offered_as_can_be_large_enough():
    four = {name: f"site-{name}" for name in "abcd"}
    census = Census(Floor(2, 1), four, dict.fromkeys(four, 1))
    state = ServerState({f"cluster-{k}": coin(k, k) for k in range(3)})
    assert IFCA(k=3).list_choices(replace(state, census=census)) == {0: "cluster-0", 1: "cluster-1"}
    assert len(IFCA(k=3).list_choices(state)) == 3
    assert WeCFL(k=3).traits.cluster_on == "fc"


DATA = DataConfig(6, {"partition": "label_permutation", "groups": 2})
MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [8]}}

values = st.floats(-5, 5, width=32)
crowd = st.lists(st.tuples(st.integers(1, 50), values, values, st.integers(0, 1)), min_size=3, max_size=12)


def run_contract_loop(method, rounds=3, **more):
    return run_loop(
        method=method,
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(rounds, **more),
        training=TrainSettings(lr=0.1, local_steps=3),
    )


def make_numbered_updates(people, clustered):
    return [
        Update(f"p{i}", n, {f"cluster-{c}" if clustered else "global": coin(a, b)}, c if clustered else None)
        for i, (n, a, b, c) in enumerate(people)
    ]


@settings(max_examples=30, deadline=None)
@given(people=crowd)
def test_equal_weights_give_the_plain_mean(people):
    method = FedAvg()
    updates = make_numbered_updates([(7, a, b, 0) for _, a, b, _ in people], clustered=False)
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
    updates = make_numbered_updates(people, clustered=True)
    known = {u.participant: int(next(iter(u.diffs))[-1]) for u in updates}  # who joins late goes by direction instead
    state = method.start(initial).after({"cluster-0": coin(-1, 0), "cluster-1": coin(2, 1)}, known)
    features = np.stack([state.rebuild_model(u).vector for u in updates])
    weights = np.array([method.weight(u) for u in updates])
    before = np.array([int(next(iter(u.diffs))[-1]) for u in updates])
    centres = np.stack([state.bank[f"cluster-{k}"].vector for k in range(2)]).astype(np.float64)
    assignment = method.assign(state, updates)
    labels = np.array([assignment[u.participant] for u in updates])
    after = method.aggregate(state, updates, assignment)
    moved = np.stack([after.bank[f"cluster-{k}"].vector for k in range(2)]).astype(np.float64)
    start = compute_objective(features, before, centres, weights)
    end = compute_objective(features, labels, moved, weights)
    assert end <= start * (1 + 1e-5) + 1e-5
    assert end <= compute_objective(features, labels, centres, weights) * (1 + 1e-5) + 1e-5  # M-step


@pytest.mark.parametrize("method", [IFCA(k=1), WeCFL(k=1)], ids=lambda m: m.name)
def test_one_cluster_is_fedavg(method):
    fedavg, clustered = run_contract_loop(FedAvg()), run_contract_loop(method)
    np.testing.assert_array_equal(clustered.state.bank["cluster-0"].vector, fedavg.state.bank["global"].vector)


@pytest.mark.parametrize("spec", [{"method": "fedavg"}, {"method": "ifca", "k": 2}, {"method": "local"}])
def test_the_same_seed_gives_the_same_run_and_another_seed_another(spec):
    one, two = run_contract_loop(build_method(spec), seed=1), run_contract_loop(build_method(spec), seed=1)
    other = run_contract_loop(build_method(spec), seed=2)
    for slot in one.state.bank:
        np.testing.assert_array_equal(one.state.bank[slot].vector, two.state.bank[slot].vector)
        assert not np.array_equal(one.state.bank[slot].vector, other.state.bank[slot].vector)
    assert one.state.assignment == two.state.assignment


def test_wecfl_finds_groups_that_one_model_cannot_serve():
    found = run_contract_loop(WeCFL(k=2), rounds=2)
    truth = {n: p.group for n, p in found.participants.items()}
    assert len({(truth[n], c) for n, c in found.state.assignment.items()}) == 2


# ---- Names ----


WEIGHTED = FeSEM(k=3, weighting="samples")


@pytest.mark.parametrize(
    ("spec", "method"),
    [
        ({"method": "ifca-cam", "k": 3}, CAM(base=IFCA(k=3))),
        (
            {"method": "ifca-cam", "k": 3, "warmup": 5, "updates": "alternating", "step": "damped", "finetune": True},
            CAM(base=IFCA(k=3), warmup=5, updates="alternating", step="damped", finetune=True),
        ),
        (
            {"method": "ifca-cam", "k": 3, "assignment_samples": 9, "weighting": "uniform"},
            CAM(base=IFCA(k=3, assignment_samples=9, weighting="uniform")),
        ),
        ({"method": "fesem-cam", "k": 3, "lam": 0.1}, CAM(base=WEIGHTED, lam=0.1)),
        ({"method": "fesem-cam", "k": 3, "weighting": "uniform"}, CAM(base=FeSEM(k=3))),
        (
            {"method": "wecfl-cam", "k": 3, "cluster_on": "all", "starts": 2, "clustering_rounds": 4, "warmup": 0},
            CAM(base=WeCFL(k=3, cluster_on="all", starts=2, clustering_rounds=4), warmup=0),
        ),
        (
            {"method": "wecfl-cam", "k": 3, "penalties": [{"penalty": "contrastive", "mu": 2.0}]},
            CAM(base=WeCFL(k=3, penalties=(Contrastive(mu=2.0),))),
        ),
        ({"method": "fedavg+", "k": 2}, Ensemble(parts=(FedAvg(), FedAvg()))),
        ({"method": "fedavg+", "k": 1, "vote": "logits"}, Ensemble(parts=(FedAvg(),), vote="logits")),
        (
            {"method": "fedprox+", "k": 2, "mu": 0.5, "weighting": "uniform", "finetune": True},
            Ensemble(parts=(FedProx(mu=0.5, weighting="uniform"),) * 2, finetune=True),
        ),
        ({"method": "fedavg+ifca", "k": 3}, Ensemble(parts=(FedAvg(), IFCA(k=3)), vote="logits")),
        (
            {"method": "fedavg+ifca", "k": 3, "vote": "probabilities", "finetune": True, "assignment_samples": 9},
            Ensemble(
                parts=(FedAvg(), IFCA(k=3, assignment_samples=9)), vote="probabilities", finetune=True
            ),
        ),
        (
            {"method": "fedavg+fesem", "k": 3, "penalties": [{"penalty": "proximal"}]},
            Ensemble(parts=(FedAvg(penalties=(Proximal(),)), FeSEM(k=3, penalties=(Proximal(),))), vote="logits"),
        ),
    ],
)  # fmt: skip
def test_settings_reach_the_method_that_they_are_of(spec, method):
    assert build_method(spec) == method


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"method": "ifca-cam"}, "^method ifca-cam: setting 'k' is missing and has no default$"),
        ({"method": "fedavg+"}, r"^method fedavg\+: setting 'k' is missing and has no default$"),
        ({"method": "fedavg+ifca"}, r"^method fedavg\+ifca: setting 'k' is missing and has no default$"),
        ({"method": "fedavg+", "k": 0}, r"^method fedavg\+: k = 0 should be a whole number in .1, 1000.$"),
        ({"method": "fedavg+", "k": 2.0}, r"^method fedavg\+: k = 2.0 should be a whole number in .1, 1000.$"),
        ({"method": "fedavg+", "k": True}, r"^method fedavg\+: k = True should be a whole number in .1, 1000.$"),
        ({"method": "fedavg+", "k": 2, "mu": 1.0}, r"^method fedavg\+: unknown setting 'mu'; it has: k, .*vote$"),
        ({"method": "ifca-cam", "k": 2, "vote": "logits"}, "^method ifca-cam: unknown setting 'vote'; it has: .*lam"),
        ({"method": "ifca-cam", "k": 2, "base": IFCA(k=2)}, "^method ifca-cam: unknown setting 'base'"),
        ({"method": "ifca-cam", "k": 2, "starts": 3}, "^method ifca-cam: unknown setting 'starts'"),
        ({"method": "fedavg+ifca", "k": 2, "parts": []}, r"^method fedavg\+ifca: unknown setting 'parts'"),
        ({"method": "ifca-cam", "k": 2, "shared_backbone": True}, "^method cam: base = ifca has its models in parts"),
        ({"method": "fesem-cam", "k": 0}, "^method fesem: k = 0 should be in .1, 1000.$"),
        ({"method": "cam+", "k": 2}, "^method 'cam\\+' is unknown; there are .*cam, ensemble, .*ifca-cam"),
    ],
)
def test_refusals_name_the_setting_in_one_line(spec, message):
    with pytest.raises(ConfigError, match=message) as refused:
        build_method(spec)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_named_settings_are_those_that_are_built(name):
    """What `Combination.settings` says are the defaults, are: given or not, the method is the same."""
    combination = COMBINATIONS[name]
    settings = combination.settings()
    needed = {key: 3 for key, default in settings.items() if default is dataclasses.MISSING}
    assert set(needed) == {"k"}
    if name == "fedavg+fesem":
        assert settings.pop("weighting") == ("samples", "uniform")
    assert build_method({"method": name, **settings, **needed}) == build_method({"method": name, **needed})
    assert combination.summary.endswith(".")


NEEDED = {"cfl": {"eps1": 0.5, "eps2": 1.0}, "groups": {"groups": {"a": "x", "b": "y"}}}


def settings_of(name: str) -> dict:
    """The settings without which a method cannot be built, and a number of clusters where there is one."""
    return NEEDED.get(name) or ({"k": 3} if "k" in {f.name for f in dataclasses.fields(METHODS[name])} else {})


def test_the_registries_know_their_classes_by_their_names():
    assert all(cls.name == name for name, cls in METHODS.items() if name != "hypcluster")
    assert all(cls.name == name for name, cls in PENALTIES.items())
    assert not METHODS.keys() & COMBINATIONS.keys()
