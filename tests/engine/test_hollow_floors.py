# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that keep to a floor in words alone: filters, robust statistics and weights that leave one site's model."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.methods import CAM, IFCA, FedAvg, Method, Participant, Update

LAYOUT = Layout.of(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)))
FIRST, SECOND = (e.name for e in LAYOUT.entries)
SAMPLES = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
PEOPLE = [Participant(name, f"site-{name}", n) for name, n in SAMPLES.items()]
THREE = {"min_sites_per_cluster": 3, "hold_small_clusters": True, "clip_norm": None}
STEPS = {name: (float(i), 10.0 * i) for i, name in enumerate(SAMPLES, 1)}


def model(a: float, b: float) -> Params:
    return Params(LAYOUT, np.array([a, b], np.float32))


def server(method: Method, people: list[Participant] = PEOPLE, **settings) -> Server:
    return Server(
        method, LAYOUT, people, ServerSettings(3, **{**THREE, **settings}), method.start(lambda i: model(0, 0))
    )


def one_round(running: Server, moves: dict[str, tuple[float, float]], removed: dict[str, str] | None = None) -> dict:
    """A round in which some participants answer, and sites' filters have removed one of the model's two arrays."""
    for name, task in running.tasks().items():
        if name in moves:
            arrays = {e.name: np.full(e.shape, v, np.float32) for e, v in zip(LAYOUT.entries, moves[name])}
            arrays.pop((removed or {}).get(name, ""), None)
            diffs = {task.slots[0]: LAYOUT.pack(arrays, allow_missing=True)}
            who = running.participants[name]
            running.accept(Result(name, Update(name, who.samples, diffs), {"metrics": {}}), who.site)
    running.finish_round()
    assert running.progress.record is not None
    return running.progress.record


@pytest.mark.parametrize("aggregation", ["mean", "krum"])
def test_an_array_that_filters_leave_to_few_sites_stays_as_it_was(aggregation):
    """``ExcludeVars`` at all sites but two: their mean would be in what everybody is sent."""
    running = server(FedAvg(), aggregation=aggregation)
    record = one_round(running, STEPS, dict.fromkeys("abc", SECOND))
    moved = running.state.bank["global"].vector
    assert moved[0] != 0.0
    assert moved[1] == 0.0
    assert record["arrays_held_back"] == [SECOND]


def test_an_array_of_enough_sites_is_their_mean_alone():
    running = server(FedAvg(weighting="uniform"))
    record = one_round(running, STEPS, dict.fromkeys("ab", SECOND))
    assert running.state.bank["global"].vector.tolist() == [3.0, 40.0]  # c, d, e: 30, 40, 50
    assert "arrays_held_back" not in record


def test_samples_and_shares_count_in_an_array_as_in_a_mean():
    few = server(FedAvg(), min_samples_per_cluster=7)
    assert one_round(few, STEPS, dict.fromkeys("de", SECOND))["arrays_held_back"] == [SECOND]  # 1 + 2 + 3 samples
    people = [replace(p, samples=10_000 if p.name in "abc" else 1) for p in PEOPLE]
    largest = server(FedAvg(), people, max_weight_share=1 / 3)
    one_round(largest, STEPS, dict.fromkeys("bc", SECOND))  # a, with 10,000 samples, and two with one
    assert largest.state.bank["global"].vector[1] == 0.0


def test_arrays_are_counted_behind_wrappers():
    running = server(CAM(base=IFCA(k=2), warmup=1))
    record = one_round(running, dict.fromkeys("abcde", (1.0, 1.0)), dict.fromkeys("abc", SECOND))
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
            server(FedAvg(), people[:count], **settings)
    running = server(FedAvg(), people[:needed], **settings)
    one_round(running, {p.name: (float(i), 0.0) for i, p in enumerate(people[:needed], 1)})
    assert running.state.bank["global"].vector[0] > 0
    running = server(FedAvg(), people, **settings)
    record = one_round(running, {p.name: (5.0, 5.0) for p in people[: needed - 1]})  # the others do not answer
    assert running.state.bank["global"].vector.tolist() == [0.0, 0.0]
    assert record["held_back"] == sorted("abcdefg"[: needed - 1])


@pytest.mark.parametrize("aggregation", ["median", "krum"])
def test_no_robust_statistic_is_mostly_of_one_site(aggregation):
    """A site of many participants is one site: five sites, but most of the rows are the first one's."""
    people = [Participant(f"p{i}", "site-0" if i < 8 else f"site-{i}", 1) for i in range(12)]
    running = server(FedAvg(), people, aggregation=aggregation, max_weight_share=1 / 3)
    record = one_round(running, {p.name: (1.0 if p.site == "site-0" else 9.0 + i, 0.0) for i, p in enumerate(people)})
    moved = running.state.bank["global"].vector[0]
    assert moved == 0.0 if aggregation == "median" else moved > 1.0
    assert ("held_back" in record) == (aggregation == "median")


def test_krum_that_keeps_too_few_samples_is_held_back():
    people = [replace(p, samples=100 if p.name == "e" else 1) for p in PEOPLE]
    running = server(FedAvg(), people, aggregation="krum", min_samples_per_cluster=50)
    record = one_round(running, {p.name: (99.0 if p.name == "e" else 1.0, 0.0) for p in people})
    assert (record["left_out"], record["held_back"]) == (["e"], list("abcde"))
    assert running.state.bank["global"].vector.tolist() == [0.0, 0.0]


def test_the_largest_hospital_s_model_is_no_mean():
    for share in (1.0, 0.51):
        with pytest.raises(ConfigError, match=f"max_weight_share = {share} at real sites gives others the model"):
            ServerSettings(1, max_weight_share=share).at_real_sites()
    agreed = ServerSettings(1, max_weight_share=1.0, min_sites_per_cluster=1).at_real_sites()
    assert agreed.max_weight_share == 1.0
    people = [Participant("a", "one", 10**6), Participant("b", "two", 1), Participant("c", "three", 1)]
    running = server(FedAvg(), people, max_weight_share=0.5)
    one_round(running, {"a": (1.0, 0.0), "b": (0.0, 0.0), "c": (0.0, 0.0)})
    assert running.state.bank["global"].vector[0] == 0.5  # it was 0.999998
