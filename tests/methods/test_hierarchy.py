# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cfl_flare.engine.round
from cfl_flare.clustering.agglomerative import compute_decomposed_cosines
from cfl_flare.core.errors import ConfigError, TooFewAnswersError
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import ServerSettings
from cfl_flare.extensions import present_results
from cfl_flare.methods import FLHC, Ensemble, FedAvg, FedGroup, Method, Proximal, build_method
from cfl_flare.methods.state import Assignment, ServerState, Update
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.play import MODEL, assert_same_bank, list_answered_slots, list_sent_slots, play_rounds
from tests.helpers.tiny import LAYOUT, coin, initial, make_updates, read_model, update
from tests.helpers.tiny import rounds as tiny_rounds

# Two opposed directions; the second pair moves twice as far.
OPPOSED = {"a": (1, 0), "b": (1, 0.1), "c": (-2, 0), "d": (-2, 0.2)}
SAMPLES = {"a": 3, "b": 1, "c": 1, "d": 1}


def step_with_assignment(method: Method, state: ServerState, updates: list[Update]) -> tuple[ServerState, Assignment]:
    assignment = method.assign(state, updates)
    return method.aggregate(state, updates, assignment), assignment


def flhc(**more: Any) -> FLHC:
    return FLHC(**{"rounds_before": 1, "k": 2, **more})


def ready(method: Method) -> ServerState:
    """The state in which FL+HC clusters: one round of FedAvg is over, in which all moved by (1, 1)."""
    state, assignment = step_with_assignment(
        method, method.start(initial), make_updates(dict.fromkeys("abcd", (1, 1)), "global")
    )
    assert assignment == {}
    np.testing.assert_array_equal(state.bank["global"].vector, [1, 1])
    return state


def test_flhc_averages_all_then_clusters_the_updates_then_averages_inside() -> None:
    method = flhc()
    state = ready(method)
    assert method.count_clusters(state) == 0
    assert {method.distribute(state, n).slots for n in "abcd"} == {("global",)}
    state, assignment = step_with_assignment(method, state, make_updates(OPPOSED, "global"))
    assert assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert method.count_clusters(state) == 2
    assert read_model(state, "cluster-0") == [2, 1.025]  # (1, 1) + (3 * (1, 0) + (1, 0.1)) / 4
    assert read_model(state, "cluster-1") == [-1, 1.1]
    assert read_model(state, "global") == [1, 1]  # stays, for those who come later
    assert [method.distribute(state, n).slots for n in "ac"] == [("cluster-0",), ("cluster-1",)]
    later = [update("a", 3, "cluster-0", -9, 0), update("b", 1, "cluster-0", -9, 4), update("d", 1, "cluster-1", 5, 0)]
    state, again = step_with_assignment(method, state, later)
    assert again == {"a": 0, "b": 0, "d": 1}  # for ever, whatever the updates say
    assert read_model(state, "cluster-0") == [-7, 2.025]
    assert read_model(state, "cluster-1") == [4, 1.1]
    assert state.assignment["c"] == 1


def test_flhc_s_weights_may_be_uniform() -> None:
    method = flhc(weighting="uniform")
    state, _ = step_with_assignment(method, ready(method), make_updates(OPPOSED, "global"))
    assert read_model(state, "cluster-0") == [2, 1.05]


@pytest.mark.parametrize(
    ("settings", "clusters"),
    [
        ({"linkage": "complete", "threshold": 0.05}, [0, 1, 2, 3]),  # 0.1 and 0.2 apart
        ({"linkage": "complete", "threshold": 0.15}, [0, 0, 1, 2]),
        ({"linkage": "complete", "threshold": 0.25}, [0, 0, 1, 1]),
        ({"linkage": "complete", "threshold": 2.9}, [0, 0, 1, 1]),  # 3.007 from one end to the other
        ({"linkage": "complete", "threshold": 3.1}, [0, 0, 0, 0]),
        ({"linkage": "average", "metric": "cosine", "threshold": 1.5}, [0, 0, 1, 1]),
        ({"linkage": "single", "metric": "manhattan", "threshold": 3.05}, [0, 0, 0, 0]),  # 3 from a to c
        ({"threshold": 1}, [0, 0, 1, 1]),
        ({"k": 3}, [0, 0, 1, 2]),
        ({"k": 4, "cluster_on": ["head.weight"]}, [0, 1, 2, 3]),
    ],
)
def test_flhc_s_number_of_clusters(settings: dict[str, Any], clusters: list[int]) -> None:
    method = FLHC(rounds_before=1, **settings)
    state, assignment = step_with_assignment(method, ready(method), make_updates(OPPOSED, "global"))
    assert list(assignment.values()) == clusters
    assert method.count_clusters(state) == len(set(clusters))


@pytest.mark.parametrize(
    ("metric", "cluster"),
    [("euclidean", 0), ("manhattan", 0), ("cosine", 1)],  # a small step in the second cluster's direction
)
def test_a_later_participant_joins_the_cluster_with_the_nearest_mean_update(metric: str, cluster: int) -> None:
    method = flhc(metric=metric, linkage="complete")
    state, _ = step_with_assignment(method, ready(method), make_updates(OPPOSED, "global"))
    state, _ = step_with_assignment(
        method, state, [update("a", 3, "cluster-0", 50, 50), update("c", 1, "cluster-1", -50, 0)]
    )
    before = {slot: read_model(state, slot) for slot in state.bank}
    assert method.distribute(state, "new").slots == ("global",)
    state, assignment = step_with_assignment(method, state, [update("new", 9, "global", -0.4, 0)])
    assert assignment == {"new": cluster}
    assert {slot: read_model(state, slot) for slot in state.bank} == before  # it counts in no mean yet
    assert method.distribute(state, "new").slots == (f"cluster-{cluster}",)


def test_flhc_clusters_in_the_first_round_that_succeeds_and_asks_everyone_until_then() -> None:
    method = flhc(rounds_before=2, k=3)
    state = method.start(initial)
    assert [method.plan(replace(state, round=r)).fewest for r in range(4)] == [1, 1, 3, 3]
    assert [method.plan(replace(state, round=r)).everyone for r in range(4)] == [False, False, True, True]
    state, _ = step_with_assignment(method, replace(state, round=3), make_updates(OPPOSED, "global"))
    assert not method.plan(state).everyone
    assert method.plan(state).fewest == 1
    with pytest.raises(TooFewAnswersError, match="fewer than 5 valid results"):
        tiny_rounds(method=FLHC(rounds_before=1, k=5), count=5)


def test_flhc_asks_everyone_once_though_a_run_samples() -> None:
    played = play_rounds(flhc(), 4, sample=2)
    assert [sum(o.train for o in one.orders.values()) for one in played] == [2, 6, 2, 2, 0]
    assert list_sent_slots(played[1]) == list_answered_slots(played[1]) == {("global",)}
    assert list_sent_slots(played[2]) <= {("cluster-0",), ("cluster-1",)}
    assert len(played[-1].after.assignment) == 6


def test_fedgroup_by_hand() -> None:
    """Its groups are those of the directions, where a and c alone would be parted by their lengths."""
    method = FedGroup(k=2, dimensions=1)
    moves = {"a": (1, 0), "b": (8, 1), "c": (0, 1), "d": (1, 8)}
    lengths = np.array([1, np.sqrt(65), 1, np.sqrt(65)])
    # Sums of squares and products: [[66, 16], [16, 66]]; the first singular direction is (1, 1) / sqrt 2.
    rows = np.array(list(moves.values()))
    cosines = rows @ np.array([1, 1]) / np.sqrt(2) / lengths
    np.testing.assert_allclose(np.abs(compute_decomposed_cosines(rows, 1)[:, 0]), cosines)
    state, assignment = step_with_assignment(FedGroup(k=2), method.start(initial), make_updates(moves, "global"))
    assert assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert read_model(state, "cluster-0") == [2.75, 0.25]  # (3 * (1, 0) + (8, 1)) / 4
    assert read_model(state, "cluster-1") == [0.5, 4.5]
    assert read_model(state, "global") == [0, 0]
    # The mean update of group 1 is (0.5, 4.5), whatever its model became since.
    state, _ = step_with_assignment(method, state, [update("d", 1, "cluster-1", 90, 0)])
    after, joined = step_with_assignment(
        method, state, [update("new", 1, "global", 0.1, 0.2), update("a", 3, "cluster-0", 1, 1)]
    )
    assert joined == {"new": 1, "a": 0}
    assert read_model(after, "cluster-1") == [90.5, 4.5]
    assert read_model(after, "cluster-0") == [3.75, 1.25]


def test_fedgroup_has_no_more_dimensions_than_one_less_than_participants() -> None:
    method = FedGroup(k=2, dimensions=50)
    _, assignment = step_with_assignment(method, method.start(initial), make_updates(OPPOSED, "global"))
    assert assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert method.plan(method.start(initial)).fewest == 2


@pytest.mark.parametrize(
    "method", [FLHC(rounds_before=1, k=1), FLHC(rounds_before=0, threshold=1e9), FedGroup(k=1)], ids=lambda m: m.label
)
def test_one_cluster_is_fedavg(method: Method) -> None:
    one, fedavg = (
        play_rounds(method, 4, keep_momentum=True, momentum=0.9),
        play_rounds(FedAvg(), 4, keep_momentum=True, momentum=0.9),
    )
    np.testing.assert_array_equal(one[-1].after.bank["cluster-0"].vector, fedavg[-1].after.bank["global"].vector)


def test_updates_on_disk_give_equal_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for limit in (2**30, 0):
        monkeypatch.setattr(cfl_flare.engine.round, "SPOOL_BYTES", limit)
        found.append(play_rounds(flhc(threshold=0.5, k=None), 3)[-1].after)
    assert_same_bank(found[0].bank, found[1].bank)
    assert found[0].assignment == found[1].assignment


@pytest.mark.parametrize("part", [flhc(), FedGroup(k=2)], ids=lambda m: m.name)
def test_beside_another_method(part: Method) -> None:
    both, alone = play_rounds(Ensemble(parts=(FedAvg(), part)), 3), play_rounds(part, 3, first=1, streams="1.")
    assert_same_bank(both[-1].after.bank, alone[-1].after.bank, "1.")
    assert both[-1].after.assignment == alone[-1].after.assignment


@pytest.mark.parametrize(
    "method",
    [
        FLHC(rounds_before=1, k=3),
        FLHC(rounds_before=1, threshold=0.5, metric="cosine", linkage="complete"),
        FedGroup(k=3),
    ],
    ids=["k", "threshold", "fedgroup"],
)
def test_the_groups_of_the_digits_are_found(method: Method, tmp_path: Path) -> None:
    server = run_loop(
        method=method,
        model=MODEL,
        source=Digits(),
        data=DataConfig(9, {"partition": "label_permutation", "groups": 3}),
        settings=ServerSettings(6, keep_features=True),
        training=TrainSettings(lr=0.1, local_steps=10),
        folder=tmp_path,
    )
    run = load_run(tmp_path)
    assert run.summary["final"]["ari"] == 1.0
    assert run.summary["clusters"] == 3
    assert run.rounds[-1]["cluster_sizes"] == [3, 3, 3]
    assert {p.stem for p in (tmp_path / "clusters").iterdir()} == {"global", "cluster-0", "cluster-1", "cluster-2"}
    assert present_results(tmp_path) == []
    assert json.loads(json.dumps(dict(server.state.extras))) == server.state.extras


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "threshold = None and k = None: give exactly one of them"),
        ({"k": 2, "threshold": 1.0}, "threshold = 1.0 and k = 2: give exactly one of them"),
        ({"k": 0}, "k = 0 should be in .1, 1000."),
        ({"threshold": 0.0}, "threshold = 0.0 should be > 0"),
        ({"threshold": float("nan")}, "threshold = nan should be > 0"),
        ({"k": 2, "rounds_before": -1}, "rounds_before = -1 should be >= 0"),
        ({"k": 2, "metric": "l3"}, r"metric = 'l3' should be one of 'euclidean', 'cosine', 'manhattan'"),
        ({"k": 2, "linkage": "centroid"}, r"linkage = 'centroid' should be one of 'ward', "),
        (
            {"k": 2, "metric": "cosine"},
            "linkage = 'ward' needs metric = 'euclidean', not 'cosine'; take another linkage",
        ),
        ({"k": 2, "cluster_on": "tail"}, "cluster_on = 'tail' should be one of"),
        ({"k": 2, "cluster_on": 3}, "cluster_on = 3 should be one of .* or a list of names"),
        ({"k": "2"}, "k = '2' should be int | None, not str"),
        ({"k": 2, "penalties": [{"penalty": "contrastive"}]}, "needs a method with clusters: ifca, fesem or wecfl"),
    ],
)
def test_flhc_refuses(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "fl-hc", **spec})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "setting 'k' is missing"),
        ({"k": 0}, "k = 0 should be in .1, 1000."),
        ({"k": 2, "dimensions": 0}, "dimensions = 0 should be >= 1 or None"),
        ({"k": 2, "starts": 0}, "starts = 0 should be in .1, 1000."),
        ({"k": 2, "seed": -1}, r"seed = -1 should be in 0\.\.2\*\*32 - 1"),
        ({"k": 2, "cluster_on": "tail"}, "cluster_on = 'tail' should be one of"),
    ],
)
def test_fedgroup_refuses(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "fedgroup", **spec})


def test_what_does_not_fit_the_run_or_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="rounds_before = 3 leaves none of 3 rounds; lower it"):
        FLHC(k=2).check(LAYOUT, 3)
    with pytest.raises(ConfigError, match="cluster_on = 'backbone' does not fit the model"):
        FedGroup(k=2, cluster_on="backbone").check(LAYOUT)
    with pytest.raises(ConfigError, match=r"k = 3 clusters need as many participants .* only 2 of 6 take part"):
        play_rounds(FedGroup(k=3), 2, sample=2)
    with pytest.raises(ConfigError, match="k = 5 clusters need at least 5 participants"):
        step_with_assignment(flhc(k=5), ready(flhc(k=5)), make_updates(OPPOSED, "global"))


def test_a_proximal_term_holds_a_participant_near_its_cluster() -> None:
    free, held = (play_rounds(FedGroup(k=2, penalties=p), 3)[-1].after for p in ((), (Proximal(mu=5.0),)))
    assert free.assignment == held.assignment
    assert not np.array_equal(free.bank["cluster-0"].vector, held.bank["cluster-0"].vector)
    assert coin(1, 2).layout == LAYOUT
