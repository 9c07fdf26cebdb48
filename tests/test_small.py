# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters of too few sites: reported, or merged into the nearest other one."""

import pytest

from cfl_flare.errors import ConfigError
from cfl_flare.methods import IFCA, METHODS, FedDS, Method, Participant, WeCFL
from cfl_flare.server import Server, ServerSettings
from cfl_flare.site import Answer
from cfl_flare.small import regrouped, small_clusters
from tests.tiny import LAYOUT, coin, initial, update

PEOPLE = [Participant(n, site, 1) for n, site in (("a", "one"), ("b", "two"), ("c", "two"), ("d", "three"))]
MODELS = {"a": (0, 0), "b": (2, 0), "c": (9, 0), "d": (1, 0)}


def server(method: Method, **settings) -> Server:
    return Server(method, LAYOUT, PEOPLE, ServerSettings(2, **settings), method.start(initial))


def one_round(running: Server, models: dict[str, tuple[float, float]] = MODELS) -> dict:
    for name, order in running.orders().items():
        (slot,) = order.slots
        start = running.state.bank[slot].vector
        a, b = (float(v - s) for v, s in zip(models[name], start))
        metrics = {"served_accuracy": 0.5} if order.evaluate else {}
        running.accept(Answer(name, update(name, 1, slot, a, b), metrics), running.participants[name].site)
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
    assert small_clusters(given, people, 2) == [2]
    assert regrouped(method, state, updates, given, people, 2) == {**given, "c": 0}
    assert regrouped(method, state, updates, given, people, 9) == given  # there is no other one


def test_only_methods_that_can_are_asked_to():
    assert {name for name, cls in METHODS.items() if cls.regroups} == {"wecfl", "fesem", "cgpfl", "fedds", "feddsmic"}
    for method in (IFCA(k=2), METHODS["fedavg"]()):
        with pytest.raises(ConfigError, match=r"merge_small_clusters: method .* has no step in which they could be"):
            server(method, min_sites_per_cluster=2, merge_small_clusters=True)
    server(FedDS(k=2), min_sites_per_cluster=2, merge_small_clusters=True)
    with pytest.raises(ConfigError, match="min_sites_per_cluster = 1 sites, which there are none; raise that"):
        ServerSettings(2, merge_small_clusters=True)
    with pytest.raises(ConfigError, match="min_sites_per_cluster = 0 should be >= 1"):
        ServerSettings(2, min_sites_per_cluster=0)
