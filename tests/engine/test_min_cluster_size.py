# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters of too few sites: reported, or merged into the nearest other one."""

from dataclasses import replace

import pytest

from cfl_flare.cli.specs import build_named
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.min_cluster_size import merged, small_clusters
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.settings import Floor
from cfl_flare.engine.site import Result
from cfl_flare.methods import CAM, IFCA, METHODS, FedDS, Method, Participant, WeCFL
from tests.tiny import LAYOUT, coin, initial, update

PEOPLE = [Participant(n, site, 1) for n, site in (("a", "one"), ("b", "two"), ("c", "two"), ("d", "three"))]
MODELS = {"a": (0, 0), "b": (2, 0), "c": (9, 0), "d": (1, 0)}


def server(method: Method, **settings) -> Server:
    return Server(method, LAYOUT, PEOPLE, ServerSettings(2, **settings), method.start(initial))


def one_round(running: Server, models: dict[str, tuple[float, float]] = MODELS) -> dict:
    for name, order in running.tasks().items():
        (slot,) = order.slots
        start = running.state.bank[slot].vector
        a, b = (float(v - s) for v, s in zip(models[name], start))
        metrics = {"served_accuracy": 0.5} if order.evaluate else {}
        running.accept(Result(name, update(name, 1, slot, a, b), metrics), running.participants[name].site)
    running.finish_round()
    assert running.progress.record is not None
    return running.progress.record


def test_a_cluster_of_one_site_is_reported():
    running = server(WeCFL(k=2, weighting="uniform"), min_sites_per_cluster=2)
    record = one_round(running)
    assert running.state.assignment == {"a": 0, "b": 0, "c": 1, "d": 0}
    assert record["small_clusters"] == [1]
    assert running.state.bank["cluster-1"].vector.tolist() == [9, 0]


def test_it_is_merged_into_the_nearest_other_one_if_that_is_asked_for():
    running = server(WeCFL(k=2, weighting="uniform"), min_sites_per_cluster=2, merge_small_clusters=True)
    record = one_round(running)
    assert set(running.state.assignment.values()) == {0}
    assert record["small_clusters"] == []
    assert running.state.bank["cluster-0"].vector.tolist() == [3, 0]
    assert one_round(running)["small_clusters"] == []  # and in later rounds


def test_without_the_setting_nothing_is_said():
    assert "small_clusters" not in one_round(server(WeCFL(k=2)))


def test_the_nearest_of_several():
    crowd = [*PEOPLE, Participant("e", "one", 1), Participant("f", "two", 1)]
    people = {p.name: p for p in crowd}
    where = {**MODELS, "e": (-9, 0), "f": (-8, 0)}
    updates = [update(n, 1, "global", *values) for n, values in where.items()]
    method = WeCFL(k=3)
    state = method.start(lambda i: coin(0, 0))
    given = {"a": 0, "b": 0, "d": 0, "e": 1, "f": 1, "c": 2}
    assert small_clusters(given, people, Floor(2, 1)) == [2]
    assert merged(method, state, updates, given, people, Floor(2, 1)) == {**given, "c": 0}
    assert merged(method, state, updates, given, people, Floor(9, 1)) == given  # there is no other one


def test_only_methods_that_can_are_asked_to():
    assert not METHODS["fedac"](k=2).traits.mergeable
    assert not METHODS["fedcuau"](k=2).traits.mergeable
    for method in (METHODS["fedavg"](), METHODS["cfl"](eps1=1, eps2=2)):
        with pytest.raises(ConfigError, match=r"merge_small_clusters: method .* cannot merge clusters"):
            server(method, min_sites_per_cluster=2, merge_small_clusters=True)
    for method in (
        FedDS(k=2),
        CAM(base=IFCA(k=2), warmup=1),
        build_named("fedavg+ifca:k=2"),
        METHODS["fedgroup"](k=2),
    ):
        server(method, min_sites_per_cluster=2, merge_small_clusters=True)
    with pytest.raises(ConfigError, match="min_sites_per_cluster = 1 sites, and there are none; raise that"):
        ServerSettings(2, merge_small_clusters=True)
    with pytest.raises(ConfigError, match="min_sites_per_cluster = 0 should be >= 1"):
        ServerSettings(2, min_sites_per_cluster=0)


def ifca_round(running: Server, picks: dict[str, int], moved: float) -> dict:
    """Each participant moves the model that it picks by so much."""
    for name, order in running.tasks().items():
        one = update(name, 1, f"cluster-{picks[name]}", moved, 0)
        answer = Result(name, replace(one, cluster=picks[name]), {"served_accuracy": 0.5} if order.evaluate else {})
        running.accept(answer, running.participants[name].site)
    running.finish_round()
    assert running.progress.record is not None
    return running.progress.record


def test_a_model_that_one_site_alone_picked_is_offered_no_more():
    """IFCA: what its members trained is dropped, and they pick among the other models from then on."""
    running = server(IFCA(k=3), min_sites_per_cluster=2, merge_small_clusters=True)
    before = {slot: model.vector.tolist() for slot, model in running.state.bank.items()}
    assert ifca_round(running, {"a": 0, "b": 0, "c": 2, "d": 0}, moved=3)["small_clusters"] == []
    assert running.state.assignment == {"a": 0, "b": 0, "c": 0, "d": 0}
    after = {slot: model.vector.tolist() for slot, model in running.state.bank.items()}
    assert after["cluster-0"] == [before["cluster-0"][0] + 3, before["cluster-0"][1]]
    assert (after["cluster-1"], after["cluster-2"]) == (before["cluster-1"], before["cluster-2"])
    assert all(order.slots == ("cluster-0", "cluster-1") for order in running.tasks().values())
    assert set(running.method.models(running.state, LAYOUT)) == {"cluster-0", "cluster-1"}
    with pytest.raises(PayloadError, match=r"cluster = 2 should be one of \[0, 1\]"):
        running.accept(Result("c", replace(update("c", 1, "cluster-2", 1, 0), cluster=2), {}), "two")


def test_in_later_rounds_it_stays_closed():
    running = server(IFCA(k=3), min_sites_per_cluster=2, merge_small_clusters=True)
    ifca_round(running, {"a": 0, "b": 0, "c": 2, "d": 0}, moved=3)
    ifca_round(running, {"a": 0, "b": 0, "c": 1, "d": 0}, moved=1)
    assert running.state.extras["closed"] == [1, 2]
    assert {slots for order in running.tasks().values() for slots in order.slots} == {"cluster-0"}


def test_clusters_that_are_found_once_are_merged_when_they_are_found():
    running = server(METHODS["fl-hc"](k=2, rounds_before=0), min_sites_per_cluster=2, merge_small_clusters=True)
    assert one_round(running)["small_clusters"] == []
    assert set(running.state.assignment.values()) == {0}
    assert running.state.bank["cluster-0"].vector.tolist() == [3, 0]
    alone = server(METHODS["fl-hc"](k=2, rounds_before=0), min_sites_per_cluster=2)
    assert one_round(alone)["small_clusters"] == [1]
