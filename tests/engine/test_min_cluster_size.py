# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters of too few sites or samples: the server assigns so that there are none, or they are held back."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cfl_flare.cli.specs import build_named
from cfl_flare.clustering.floor import Census, Sizes
from cfl_flare.clustering.kmeans import find_nearest, run_first_kmeans, run_lloyd
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.min_cluster_size import census_of
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.settings import Floor
from cfl_flare.engine.task import Result
from cfl_flare.methods import CAM, IFCA, FedAvg, Method, Participant, Update, WeCFL
from tests.helpers.tiny import LAYOUT, initial, start_server, update

REAL = ServerSettings(30).at_real_sites()
FLOORED = {"min_sites_per_cluster": 2}
PEOPLE = [Participant(n, f"site-{n}", 1) for n in "abcdef"]
MODELS = {"a": (0, 0), "b": (2, 0), "c": (9, 0), "d": (1, 0), "e": (6, 0), "f": (1, 1)}


start_long_server = partial(start_server, people=PEOPLE, num_rounds=30)


def play_two_weight_round(running: Server, models: dict[str, tuple[float, float]] = MODELS) -> dict:
    """Each participant sends this model, those without one nothing."""
    for name, task in running.tasks().items():
        if name in models and task.train:
            (slot,) = task.slots
            a, b = (float(v - s) for v, s in zip(models[name], running.state.bank[slot].vector))
            metrics = {"served_accuracy": 0.5} if task.evaluate else {}
            running.accept(
                Result(name, update(name, 1, slot, a, b), {"metrics": metrics}), running.participants[name].site
            )
    running.finish_round()
    assert running.progress.record is not None
    return running.progress.record


def join_group_names(running: Server) -> list[str]:
    """The members of each cluster in use."""
    clusters: dict[int, str] = {}
    for name, cluster in sorted(running.state.assignment.items()):
        clusters[cluster] = clusters.get(cluster, "") + name
    return sorted(clusters.values())


# ---- Where the server assigns ----


def noisy(counts: tuple[int, ...], method: Method, seed: int, rounds: int = 30) -> tuple[Server, list[Counter], list]:
    """A run at real sites whose participants train towards their group's optimum, with noise; sizes and records."""
    truth, rng = np.repeat(np.arange(len(counts)), counts), np.random.default_rng(seed)
    optima = 2.5 * np.array([[np.cos(angle), np.sin(angle)] for angle in 2 * np.pi * np.arange(3) / 3])
    people = [Participant(f"p{i:02}", f"hospital-{i}", 40, int(g)) for i, g in enumerate(truth)]
    running = Server(method, LAYOUT, people, replace(REAL, num_rounds=rounds), method.start(initial))
    sizes, records = [], []
    for _ in range(rounds):
        for i, (name, task) in enumerate(running.tasks().items()):
            slot = task.slots[0]
            halfway = (optima[truth[i]] - running.state.bank[slot].vector) / 2 + rng.normal(0, 1, 2)
            metrics = {"served_accuracy": 0.5} if task.evaluate else {}
            running.accept(
                Result(name, update(name, 40, slot, *map(float, halfway)), {"metrics": metrics}), f"hospital-{i}"
            )
        running.finish_round()
        sizes.append(Counter(running.state.assignment.values()))
        records.append(running.progress.record)
    return running, sizes, records


@pytest.mark.parametrize("counts", [(3, 3, 10), (4, 4, 4), (3, 13)])
@pytest.mark.parametrize("method", ["wecfl:k={}", "fesem:k={}", "cgpfl:k={},lam=0.1", "wecfl:k={},starts=1"])
def test_groups_stay_for_30_rounds(counts, method):
    """Merging had left 1 or 2 clusters of 3 within these rounds, for each of the seeds."""
    for seed in range(3):
        _, sizes, records = noisy(counts, build_named(method.format(len(counts))), seed)
        assert all(len(of) == len(counts) and min(of.values()) >= 3 for of in sizes)
        assert not any(record["small_clusters"] for record in records)


def test_what_the_floor_moved_is_recorded_and_logged(caplog):
    with caplog.at_level(logging.INFO):
        _, _, records = noisy((3, 3, 10), WeCFL(k=3), seed=0)
    moved = [record for record in records if "moved_for_floor" in record]
    assert moved and all(cluster in (0, 1, 2) for record in moved for cluster in record["moved_for_floor"].values())
    name, cluster = next(iter(moved[0]["moved_for_floor"].items()))
    line = f"round {moved[0]['round']}, at least 3 sites and 30 training samples a cluster: kept out of the cluster"
    (said,) = (text for text in caplog.messages if text.startswith(line))
    assert f"{name} (cluster {cluster})" in said


def test_the_nearest_participant_fills_a_cluster_up():
    running = start_long_server(WeCFL(k=2, weighting="uniform"), **FLOORED)
    record = play_two_weight_round(running, {**MODELS, "e": (3, 0)})
    assert join_group_names(running) == ["abdf", "ce"]
    assert record["small_clusters"] == [] and record["moved_for_floor"] == {"e": 0}


def test_without_a_floor_nothing_is_said_and_without_its_use_it_is_only_reported():
    assert not {"small_clusters", "moved_for_floor"} & play_two_weight_round(start_long_server(WeCFL(k=2))).keys()
    alone = start_long_server(WeCFL(k=2, weighting="uniform"), merge_small_clusters=False, **FLOORED)
    record = play_two_weight_round(alone, {**MODELS, "e": (3, 0)})
    assert record["small_clusters"] == [1] and join_group_names(alone) == ["abdef", "c"]


def test_absent_members_count_and_late_ones_join():
    running = start_long_server(WeCFL(k=2, weighting="uniform"), **FLOORED)
    play_two_weight_round(running, {n: v for n, v in MODELS.items() if n != "f"})
    assert join_group_names(running) == ["abd", "ce"]
    record = play_two_weight_round(running, {"a": (0, 0), "b": (2, 0), "c": (9, 0), "f": (8, 0)})  # d and e are absent
    assert join_group_names(running) == ["abd", "cef"] and "moved_for_floor" not in record
    play_two_weight_round(running, {"c": (0, 0), "e": (0, 0)})  # both would leave f alone
    assert [len(group) for group in join_group_names(running)] in ([4, 2], [2, 4])


def test_several_participants_of_a_hospital_are_one_site():
    people = [replace(p, site="clinic" if p.name in "ce" else p.site) for p in PEOPLE]
    running = start_long_server(WeCFL(k=2, weighting="uniform"), people=people, **FLOORED)
    play_two_weight_round(running)
    for group in join_group_names(running):
        assert len({running.participants[name].site for name in group}) >= 2


def test_clusters_that_are_found_once_are_filled_up_when_they_are_found():
    for method in ("fl-hc:k=2,rounds_before=0", "fedgroup:k=2"):
        running = start_long_server(build_named(method), **FLOORED)
        models = {**dict.fromkeys("abdef", (1, 0)), "c": (-9, 1), "f": (1, 0.5)}
        record = play_two_weight_round(running, models)
        assert record["small_clusters"] == [] and len(join_group_names(running)) == 2
        assert min(map(len, join_group_names(running))) == 2
        assert join_group_names(running) == (play_two_weight_round(running, models), join_group_names(running))[1]


def test_a_method_that_does_not_ask_for_sizes_is_put_under_the_floor():
    class Careless(WeCFL):
        def assign(self, state, updates):
            return {u.participant: int(u.participant == "c") for u in updates}

    running = start_long_server(Careless(k=2, weighting="uniform"), **FLOORED)
    record = play_two_weight_round(running)
    assert join_group_names(running) == ["abdf", "ce"] and record["moved_for_floor"] == {"e": 0}


def test_wrappers_pass_the_floor_on():
    method = CAM(base=WeCFL(k=2, weighting="uniform"), warmup=1)
    assert start_long_server(method, **FLOORED).floor.possible == 2
    running = start_long_server(build_named("fedavg+fesem:k=2"), **FLOORED)
    for name, task in running.tasks().items():
        moved = {slot: update(name, 1, slot, *map(float, MODELS[name])).diffs[slot] for slot in task.slots}
        running.accept(Result(name, replace(update(name, 1, "x", 0, 0), diffs=moved, main=None)), f"site-{name}")
    running.finish_round()
    assert min(map(len, join_group_names(running))) == 2 and len(join_group_names(running)) == 2


def test_cfl_makes_no_split_of_which_a_half_would_be_small():
    def split(floor: int, models: dict) -> list[str]:
        running = start_long_server(build_named("cfl:eps1=9,eps2=0.1"), min_sites_per_cluster=floor)
        play_two_weight_round(running, models)
        return join_group_names(running)

    models = {**dict.fromkeys("abdef", (1.0, 0.0)), "c": (-5.0, 0.1), "f": (1.0, 0.3), "e": (1.0, 0.1)}
    assert split(1, models) == ["abdef", "c"]
    assert [len(group) for group in split(2, models)] in ([4, 2], [2, 4])
    assert split(4, models) == ["abcdef"]


def test_more_clusters_than_can_be_are_not_used(caplog):
    with caplog.at_level(logging.WARNING):
        running = start_long_server(WeCFL(k=4, weighting="uniform"), **FLOORED)
    assert (
        "Of the 4 clusters that were asked for, 3 are used: no more can have 2 sites and 1 training samples each"
        in caplog.text
    )
    play_two_weight_round(running)
    assert len(join_group_names(running)) == 3 and running.floor.possible == 3
    play_two_weight_round(running)
    assert len(join_group_names(running)) == 3


def test_a_first_round_of_too_few_makes_fewer_clusters_and_later_ones_more():
    running = start_long_server(WeCFL(k=2, weighting="uniform"), sample=3, seed=1, **FLOORED)
    for _ in range(8):
        record = play_two_weight_round(running)
    assert record["small_clusters"] == []
    assert min(map(len, join_group_names(running))) >= 2


def test_what_a_floor_cannot_be_about_is_refused():
    with pytest.raises(ConfigError, match="min_sites_per_cluster = 1 sites, and there are none; raise that"):
        ServerSettings(2, merge_small_clusters=True)
    with pytest.raises(ConfigError, match="min_sites_per_cluster = 0 should be >= 1"):
        ServerSettings(2, min_sites_per_cluster=0)


def test_small_clusters_are_those_in_use():
    people = [Participant(n, site, 1) for n, site in (("a", "one"), ("b", "two"), ("c", "one"))]
    assert census_of(people, Floor(2, 1)).small({"a": 0, "b": 0, "c": 4}.items()) == {4}


# ---- Where participants choose ----


def ifca_round(running: Server, picks: dict[str, int], moved: float) -> dict:
    """Each participant moves the model that it picks by so much."""
    for name, task in running.tasks().items():
        answer = replace(update(name, 1, f"cluster-{picks[name]}", moved, 0), cluster=picks[name])
        metrics = {"served_accuracy": 0.5} if task.evaluate else {}
        running.accept(Result(name, answer, {"metrics": metrics}), running.participants[name].site)
    running.finish_round()
    assert running.progress.record is not None
    return running.progress.record


def test_a_cluster_that_few_chose_is_held_back_and_comes_back_with_its_members():
    running = start_long_server(IFCA(k=3), hold_small_clusters=True, **FLOORED)
    alone = {"a": 0, "b": 0, "c": 2, "d": 0, "e": 1, "f": 1}
    record = ifca_round(running, alone, moved=3)
    assert record["held_back"] == ["c"] and record["small_clusters"] == [2] and running.state.assignment == alone
    assert running.state.bank["cluster-2"].vector.tolist() == [2, -2]  # as it was
    assert running.state.bank["cluster-0"].vector.tolist() == [3, 0]
    assert all(task.slots == ("cluster-0", "cluster-1", "cluster-2") for task in running.tasks().values())
    record = ifca_round(running, {**alone, "d": 2}, moved=1)
    assert "held_back" not in record and record["small_clusters"] == []
    assert running.state.bank["cluster-2"].vector.tolist() == [3, -2]


def test_as_many_models_are_offered_as_can_be_large_enough(caplog):
    """Else each of four hospitals could pick another model, and all would be held back for good."""
    with caplog.at_level(logging.WARNING):
        running = start_long_server(IFCA(k=4), **FLOORED)
    assert "Of the 4 clusters that were asked for, 3 are used" in caplog.text
    assert all(task.slots == ("cluster-0", "cluster-1", "cluster-2") for task in running.tasks().values())
    offered = running.method.list_models(running.floor.shown_to(running.state), LAYOUT)
    assert set(offered) == {"cluster-0", "cluster-1", "cluster-2"}


def test_a_warm_start_has_no_small_cluster():
    running = start_long_server(IFCA(k=2, warm_start=True), **FLOORED)
    assert (
        play_two_weight_round(running, {**dict.fromkeys("abdef", (1, 0)), "c": (-9, 1), "f": (1, 0.5)})[
            "small_clusters"
        ]
        == []
    )
    assert min(map(len, join_group_names(running))) == 2


# ---- Jobs that keep to a floor in words alone ----


TWO_LAYERS = Layout.of(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)))
FIRST, SECOND = (e.name for e in TWO_LAYERS.entries)
SAMPLES = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
FIVE_PEOPLE = [Participant(name, f"site-{name}", n) for name, n in SAMPLES.items()]
THREE = {"min_sites_per_cluster": 3, "hold_small_clusters": True, "clip_norm": 0}
STEPS = {name: (float(i), 10.0 * i) for i, name in enumerate(SAMPLES, 1)}


def make_two_layer_model(a: float, b: float) -> Params:
    return Params(TWO_LAYERS, np.array([a, b], np.float32))


def floored_server(method: Method, people: list[Participant] = FIVE_PEOPLE, **settings) -> Server:
    return Server(
        method,
        TWO_LAYERS,
        people,
        ServerSettings(3, **{**THREE, **settings}),
        method.start(lambda i: make_two_layer_model(0, 0)),
    )


def filtered_round(
    running: Server, moves: dict[str, tuple[float, float]], removed: dict[str, str] | None = None
) -> dict:
    """A round in which some participants answer, and sites' filters have removed one of the model's two arrays."""
    for name, task in running.tasks().items():
        if name in moves:
            arrays = {e.name: np.full(e.shape, v, np.float32) for e, v in zip(TWO_LAYERS.entries, moves[name])}
            arrays.pop((removed or {}).get(name, ""), None)
            diffs = {task.slots[0]: TWO_LAYERS.pack(arrays, allow_missing=True)}
            who = running.participants[name]
            running.accept(Result(name, Update(name, who.samples, diffs), {"metrics": {}}), who.site)
    running.finish_round()
    assert running.progress.record is not None
    return running.progress.record


@pytest.mark.parametrize("aggregation", ["mean", "krum"])
def test_an_array_that_filters_leave_to_few_sites_stays_as_it_was(aggregation):
    """``ExcludeVars`` at all sites but two: their mean would be in what everybody is sent."""
    running = floored_server(FedAvg(), aggregation=aggregation)
    record = filtered_round(running, STEPS, dict.fromkeys("abc", SECOND))
    moved = running.state.bank["global"].vector
    assert moved[0] != 0.0
    assert moved[1] == 0.0
    assert record["arrays_held_back"] == [SECOND]


def test_an_array_of_enough_sites_is_their_mean_alone():
    running = floored_server(FedAvg(weighting="uniform"))
    record = filtered_round(running, STEPS, dict.fromkeys("ab", SECOND))
    assert running.state.bank["global"].vector.tolist() == [3.0, 40.0]  # c, d, e: 30, 40, 50
    assert "arrays_held_back" not in record


def test_samples_and_shares_count_in_an_array_as_in_a_mean():
    few = floored_server(FedAvg(), min_samples_per_cluster=7)
    assert filtered_round(few, STEPS, dict.fromkeys("de", SECOND))["arrays_held_back"] == [SECOND]  # 1 + 2 + 3 samples
    people = [replace(p, samples=10_000 if p.name in "abc" else 1) for p in FIVE_PEOPLE]
    largest = floored_server(FedAvg(), people, max_weight_share=1 / 3)
    filtered_round(largest, STEPS, dict.fromkeys("bc", SECOND))  # a, with 10,000 samples, and two with one
    assert largest.state.bank["global"].vector[1] == 0.0


def test_arrays_are_counted_behind_wrappers():
    running = floored_server(CAM(base=IFCA(k=2), warmup=1))
    record = filtered_round(running, dict.fromkeys("abcde", (1.0, 1.0)), dict.fromkeys("abc", SECOND))
    assert running.state.bank["shared"].vector.tolist() == [1.0, 0.0]
    assert record["arrays_held_back"] == [SECOND]


@pytest.mark.parametrize(
    ("aggregation", "byzantine", "needed"),
    [("median", 1, 5), ("trimmed_mean", 1, 5), ("trimmed_mean", 2, 7), ("krum", 1, 4)],
)
def test_a_robust_statistic_of_few_sites_is_refused(aggregation, byzantine, needed):
    """Krum of three averages two; a median of three is somebody's value, coordinate by coordinate."""
    people = [Participant(name, f"site-{name}", 1) for name in "abcdefg"]
    settings = {"aggregation": aggregation, "byzantine": byzantine}
    for count in range(3, needed):
        with pytest.raises(ConfigError, match=rf"a model needs {needed} sites .*{aggregation}.* are {count} sites"):
            floored_server(FedAvg(), people[:count], **settings)
    running = floored_server(FedAvg(), people[:needed], **settings)
    filtered_round(running, {p.name: (float(i), 0.0) for i, p in enumerate(people[:needed], 1)})
    assert running.state.bank["global"].vector[0] > 0
    running = floored_server(FedAvg(), people, **settings)
    record = filtered_round(running, {p.name: (5.0, 5.0) for p in people[: needed - 1]})  # the others do not answer
    assert running.state.bank["global"].vector.tolist() == [0.0, 0.0]
    assert record["held_back"] == sorted("abcdefg"[: needed - 1])


@pytest.mark.parametrize("aggregation", ["median", "krum"])
def test_no_robust_statistic_is_mostly_of_one_site(aggregation):
    """A site of many participants is one site: five sites, but most of the rows are the first one's."""
    people = [Participant(f"p{i}", "site-0" if i < 8 else f"site-{i}", 1) for i in range(12)]
    running = floored_server(FedAvg(), people, aggregation=aggregation, max_weight_share=1 / 3)
    record = filtered_round(
        running, {p.name: (1.0 if p.site == "site-0" else 9.0 + i, 0.0) for i, p in enumerate(people)}
    )
    moved = running.state.bank["global"].vector[0]
    assert moved == 17.5 if aggregation == "median" else moved > 1.0  # site-0's models count as two of six
    assert "held_back" not in record
    assert record["lowered_shares"] == {f"p{i}": [0.0833, 0.0417] for i in range(8)}


def test_of_a_median_no_site_has_more_than_a_fifth_where_means_are_held_back():
    """At a third, half of a median's parameters would be the largest hospital's own."""
    people = [replace(p, samples=60 if p.name == "a" else 10) for p in FIVE_PEOPLE]
    running = floored_server(FedAvg(), people, aggregation="median", max_weight_share=1 / 3)
    record = filtered_round(running, {name: (move, 0.0) for name, move in zip("abcde", (10.0, 1.0, 2.0, 3.0, 4.0))})
    assert running.state.bank["global"].vector[0] == 3.0  # 3.5 at a third
    assert record["lowered_shares"] == {"a": [0.6, 0.2]}


def test_krum_that_keeps_too_few_samples_is_held_back():
    people = [replace(p, samples=100 if p.name == "e" else 1) for p in FIVE_PEOPLE]
    running = floored_server(FedAvg(), people, aggregation="krum", min_samples_per_cluster=50)
    record = filtered_round(running, {p.name: (99.0 if p.name == "e" else 1.0, 0.0) for p in people})
    assert (record["left_out"], record["held_back"]) == (["e"], list("abcde"))
    assert running.state.bank["global"].vector.tolist() == [0.0, 0.0]


def test_the_largest_hospital_s_model_is_no_mean():
    for share in (1.0, 0.51):
        with pytest.raises(ConfigError, match=f"max_weight_share = {share} at real sites gives others the model"):
            ServerSettings(1, max_weight_share=share).at_real_sites()
    agreed = ServerSettings(1, max_weight_share=1.0, min_sites_per_cluster=1).at_real_sites()
    assert agreed.max_weight_share == 1.0
    people = [Participant("a", "one", 10**6), Participant("b", "two", 1), Participant("c", "three", 1)]
    running = floored_server(FedAvg(), people, max_weight_share=0.5)
    filtered_round(running, {"a": (1.0, 0.0), "b": (0.0, 0.0), "c": (0.0, 0.0)})
    assert running.state.bank["global"].vector[0] == 0.5  # it was 0.999998


# ---- The cheapest assignment, against all assignments of small cases ----


DRAWS = st.integers(0, 2**20)


def sizes(
    sites: list[int], samples: list[int], floor: tuple[int, int], others: dict[str, tuple[int, int, int]] | None = None
) -> Sizes:
    """Rows 0, 1, ... at these sites; others by name: cluster, site, samples."""
    others = others or {}
    where = {str(i): str(site) for i, site in enumerate(sites)} | {n: str(s) for n, (_, s, _) in others.items()}
    count = {str(i): n for i, n in enumerate(samples)} | {n: s for n, (_, _, s) in others.items()}
    census = Census(Floor(*floor), where, count)
    return census.of([str(i) for i in range(len(sites))], {n: k for n, (k, _, _) in others.items()})


def meets(labels: tuple[int, ...], given: Sizes, clusters: range) -> bool:
    """Whether each of these clusters has enough, spelled once more."""
    for k in clusters:
        names = [given.names[i] for i, label in enumerate(labels) if label == k]
        there = given.others.get(k)
        hospitals = {given.census.sites[n] for n in names} | set(there.sites if there else ())
        count = sum(given.census.samples[n] for n in names) + (there.samples if there else 0)
        if len(hospitals) < given.census.floor.sites or count < given.census.floor.samples:
            return False
    return True


def case(seed: int) -> tuple[Sizes, np.ndarray]:
    """A small case: sites with several rows, samples, members elsewhere, costs without ties."""
    rng = np.random.default_rng(seed)
    m, k = int(rng.integers(2, 8)), int(rng.integers(2, 4))
    sites = rng.integers(0, m, m) if rng.random() < 0.5 else np.arange(m)
    others = {f"o{j}": (int(rng.integers(k)), int(rng.integers(m + 2)), int(rng.integers(1, 9))) for j in range(2)}
    floor = (int(rng.integers(1, 4)), int(rng.choice([1, 1, 8, 14])))
    samples = rng.integers(1, 9, m).tolist()
    return sizes(sites.tolist(), samples, floor, others if rng.random() < 0.5 else None), rng.uniform(0, 5, (m, k))


@settings(deadline=None, max_examples=150)
@given(DRAWS)
def test_it_is_the_cheapest_that_meets_the_floor(seed: int) -> None:
    given, costs = case(seed)
    clusters = range(costs.shape[1])
    every = [p for p in product(clusters, repeat=len(costs)) if meets(p, given, clusters)]
    placed = given.assigned(costs.argmin(axis=1), lambda: costs, needed=clusters)
    if not every:
        return
    assert meets(tuple(placed.tolist()), given, clusters)
    price = {p: costs[range(len(costs)), list(p)].sum() for p in every}
    assert costs[range(len(costs)), placed].sum() == pytest.approx(min(price.values()), abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(DRAWS)
def test_what_meets_the_floor_stays_and_what_does_not_never_gets_smaller_clusters(seed: int) -> None:
    given, costs = case(seed)
    best = costs.argmin(axis=1)
    placed = given.assigned(best, lambda: costs)
    if given.met(best):
        assert placed is best and not given.census.moved
    together = Census(given.census.floor, given.census.sites, given.census.samples)
    rows = dict(zip(given.names, placed.tolist()))
    one_cluster = dict.fromkeys(given.names, 0)
    if not given.others and not together.small(one_cluster.items()):  # all of them in one cluster would do
        assert not together.small(rows.items())
    moved = {n: w for n, w, p in zip(given.names, best.tolist(), placed.tolist()) if w != p}
    assert given.census.moved == moved


@settings(deadline=None, max_examples=40)
@given(DRAWS)
def test_the_order_of_participants_does_not_matter(seed: int) -> None:
    given, costs = case(seed)
    order = np.random.default_rng(seed).permutation(len(costs))
    census = Census(given.census.floor, given.census.sites, given.census.samples)
    other = Sizes(census, tuple(given.names[i] for i in order), given.others, given.occupied)
    placed, again = (g.assigned(c.argmin(axis=1), lambda c=c: c) for g, c in ((given, costs), (other, costs[order])))
    assert placed[order].tolist() == again.tolist()


def test_a_hospital_with_several_participants_counts_once() -> None:
    """Cluster 1 has three participants of one hospital, cluster 0 two of another."""
    costs = np.array([[0.0, 9], [0, 8], [0, 7], [9, 0], [9, 0], [9, 0]])
    under = sizes([0, 0, 1, 2, 2, 2], [1] * 6, (2, 1))
    assert under.assigned(costs.argmin(axis=1), lambda: costs).tolist() == [0, 1, 0, 1, 1, 1]


def test_members_that_are_absent_count() -> None:
    costs = np.array([[0.0, 1], [0, 1], [1, 0]])
    absent = {"x": (1, 7, 5), "y": (1, 8, 5)}
    assert sizes([0, 1, 2], [1] * 3, (2, 1), absent).assigned(costs.argmin(axis=1), lambda: costs).tolist() == [0, 0, 1]
    assert sizes([0, 1, 2], [1] * 3, (3, 1), absent).assigned(costs.argmin(axis=1), lambda: costs).tolist() == [1, 1, 1]


def test_an_infinite_cost_is_the_last_choice() -> None:
    costs = np.array([[0.0, np.inf], [0, 2], [0, 1], [np.inf, np.inf]])
    placed = sizes([0, 1, 2, 3], [1] * 4, (2, 1)).assigned(np.zeros(4, int), lambda: costs, needed=(0, 1))
    assert placed.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("hosted", "floor", "clusters"),
    [([1] * 5, 3, 1), ([1] * 6, 3, 2), ([3, 3, 3], 3, 3), ([5, 5, 5, 5], 3, 6), ([9, 1, 1], 3, 1), ([1, 1], 3, 1)],
)
def test_how_many_clusters_can_be(hosted: list[int], floor: int, clusters: int) -> None:
    where = [str(s) for s, count in enumerate(hosted) for _ in range(count)]
    assert Floor(floor, 1).clusters(where, 1000) == clusters
    assert Floor(floor, 400).clusters(where, 1000) <= 2


def groups(seed: int, counts: tuple[int, ...], apart: float) -> tuple[np.ndarray, np.ndarray]:
    """Points around centres on a line."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(counts)), counts)
    return rng.normal(0, 1, (len(truth), 4)) + apart * np.eye(4)[truth], truth


@settings(deadline=None, max_examples=25)
@given(DRAWS, st.sampled_from([(3, 3, 10), (4, 4, 4), (3, 13)]))
def test_kmeans_under_the_floor_has_every_cluster(seed: int, counts: tuple[int, ...]) -> None:
    points, truth = groups(seed, counts, apart=2.0)
    m, k, ones = len(points), len(counts), np.ones(len(points))
    under = sizes(list(range(m)), [10] * m, (3, 30))
    cold = run_first_kmeans(points.copy(), k, ones, sizes=under)
    warm = run_lloyd(points, np.stack([points[truth == j].mean(axis=0) for j in range(k)]), ones, sizes=under)
    for labels in (cold, warm):
        assert sorted(Counter(labels.tolist())) == list(range(k))
        assert min(Counter(labels.tolist()).values()) >= 3
    centres = np.stack([points[truth == j].mean(axis=0) for j in range(k)])
    for labels, free in ((cold, run_first_kmeans(points.copy(), k, ones)), (warm, run_lloyd(points, centres, ones))):
        if min(Counter(free.tolist()).values()) >= 3:
            assert labels.tolist() == free.tolist()


@settings(deadline=None, max_examples=25)
@given(DRAWS)
def test_no_other_assignment_to_its_centres_is_cheaper(seed: int) -> None:
    """A fixed point: the assignment is the cheapest one to the means that it has itself."""
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(9, 3)), rng.uniform(0.5, 3, 9)
    under = sizes(list(range(9)), [1] * 9, (3, 1))
    labels = run_first_kmeans(points.copy(), 3, weights, sizes=under)
    centres = np.stack([np.average(points[labels == j], axis=0, weights=weights[labels == j]) for j in range(3)])
    costs = weights[:, None] * np.square(points[:, None] - centres[None]).sum(axis=2)
    again = under.assigned(find_nearest(points, centres), lambda: costs, needed=range(3))
    assert costs[range(9), again].sum() == pytest.approx(costs[range(9), labels].sum())


def test_fewer_clusters_where_so_many_cannot_be() -> None:
    points, _ = groups(0, (2, 3), apart=9.0)
    assert run_first_kmeans(points, 2, np.ones(5), sizes=sizes([0, 1, 2, 3, 4], [1] * 5, (3, 1))).tolist() == [0] * 5
