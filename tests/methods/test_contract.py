# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The contract itself: its size, what combinations pass on, and arrays that are not models."""

import inspect
from abc import ABC
from dataclasses import fields, replace

import numpy as np
import pytest

from cfl_flare.clustering.floor import Census, Floor
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.checks import MAX_LENGTH, check_arrays, check_update
from cfl_flare.engine.initial_models import check_initial
from cfl_flare.methods import (
    CAM,
    IFCA,
    METHODS,
    AutoK,
    Ditto,
    Download,
    Ensemble,
    FedAvg,
    FedCUAU,
    FedPer,
    FeSEM,
    Local,
    Method,
    ServerState,
    Traits,
    Update,
    WeCFL,
)
from cfl_flare.methods.base import STEPS
from cfl_flare.methods.state import Mapped
from cfl_flare.methods.wrapper import Clustering, Wrapper
from tests.tiny import LAYOUT, coin, initial, update

TOOLS = {"choices", "with_penalties", "trained", "predictor", "features", "weight", "means", "centres"}
TOOLS |= {"cluster_weights", "common", "with_common", "by_slot", "by_cluster", "counted"}
NAMES = {"traits", "label", "where", "clusters"}


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
            assert not overridden & TOOLS - {"weight"}, name


def test_a_wrapper_answers_every_step():
    assert set(STEPS) - set(Wrapper.INTERACTING) <= vars(Wrapper).keys()
    assert "traits" in vars(Wrapper)
    for cls in (CAM, Ensemble, AutoK):
        assert set(Wrapper.INTERACTING) <= vars(cls).keys()
    with pytest.raises(ConfigError, match=r"Forgetful: a wrapper defines start, distribute, .* for its parts"):
        type("Forgetful", (Wrapper,), {})


def test_every_trait_of_a_combination_has_a_rule_or_is_the_leader_s():
    parts = [Traits(), Traits(clusters=3, mergeable=True, joins_by="x", starts_on_site=True, averages_only=True)]
    whole = Traits.of_parts(parts, 1, serves_one=True)
    assert (whole.clusters, whole.mergeable, whole.joins_by) == (3, True, "x")
    assert whole.starts_on_site  # as any part
    assert not whole.averages_only  # as all parts
    assert whole.serves_one  # the combination's own


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
    np.testing.assert_array_equal(seen.vector(moved), [1, 2])
    inside = Ensemble(parts=(FedAvg(), fesem))
    state = inside.start(initial)  # FeSEM's model is from seed 1: (1, -1)
    moved = Update("a", 3, {"0.global": coin(9, 9), "1.global": coin(1, 2)}, main="1.global")
    seen = Clustering.of(inside, state)
    np.testing.assert_array_equal(seen.vector(moved), [2, 1])
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
    assert sent.expected(cluster) == expected
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
    assert IFCA(k=3).choices(replace(state, census=census)) == {0: "cluster-0", 1: "cluster-1"}
    assert len(IFCA(k=3).choices(state)) == 3
    assert WeCFL(k=3).traits.cluster_on == "fc"
