# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Hostile participants: clipping, robust statistics, outliers and capped weights, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cfl_flare.cli.specs import build_named
from cfl_flare.clustering.robust import compute_median, compute_trimmed_mean, find_isolated, select_by_krum
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.params import Entry, Layout, Params
from cfl_flare.core.shares import capped
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.clipping import Norms, Statistics, clip_updates, list_layers
from cfl_flare.engine.round import Spool
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.settings import CLIP_NORM
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import CAM, CFL, IFCA, METHODS, FedAvg, Participant, ServerState, Update, WeCFL
from cfl_flare.models import FashionCNN
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.tiny import answer_round, make_spread_start, start_server, update

SAMPLES = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
PEOPLE = [Participant(name, f"site-{name}", n) for name, n in SAMPLES.items()]


start_spread_server = partial(start_server, people=PEOPLE, start=make_spread_start)


def play_moves(running: Server, moves: dict[str, tuple[float, float]], cluster: dict[str, int] | None = None) -> dict:
    """A round in which participants move so far; those that choose, choose ``cluster``."""

    def move(name: str, task: Task) -> Update:
        chosen = None if cluster is None else cluster[name]
        slot = task.slots[0] if chosen is None else f"cluster-{chosen}"
        return update(name, running.participants[name].samples, slot, *moves[name], chosen)

    return answer_round(running, move)


MOVES = {"a": (1.0, 0.0), "b": (2.0, 0.0), "c": (3.0, 0.0), "d": (4.0, 0.0), "e": (1000.0, 0.0)}


def test_an_update_is_clipped_to_a_multiple_of_the_median():
    running = start_spread_server(FedAvg(), clip_norm=2.0)
    record = play_moves(running, MOVES)
    # The median is 3, so e moves by 6: (1*1 + 2*2 + 3*3 + 4*4 + 5*6) / 15.
    assert running.state.bank["global"].vector.tolist() == [4.0, 0.0]
    assert record["clipped"] == {"e": pytest.approx(1000 / 6)}


def test_honest_updates_are_not_touched():
    honest = {**MOVES, "e": (5.0, 0.0)}
    with_bound, without = start_spread_server(FedAvg()), start_spread_server(FedAvg(), clip_norm=0)
    assert "clipped" not in play_moves(with_bound, honest)
    play_moves(without, honest)
    assert with_bound.state.bank["global"].vector.tobytes() == without.state.bank["global"].vector.tobytes()


def test_of_two_the_one_that_moved_less_is_the_measure():
    running = start_spread_server(FedAvg(weighting="uniform"), people=PEOPLE[:2], clip_norm=10.0)
    record = play_moves(running, {"a": (1.0, 0.0), "b": (1000.0, 0.0)})
    assert record["clipped"] == {"b": 100.0}
    assert running.state.bank["global"].vector.tolist() == [5.5, 0.0]


@pytest.mark.parametrize(
    ("aggregation", "weighting", "mean"),
    [
        ("median", "samples", 4.0),  # 1 + 2 + 3 samples are below it, 5 above
        ("median", "uniform", 3.0),
        ("trimmed_mean", "samples", 3.8),  # without five samples at either end: (1*3 + 4*4) / 5
        ("trimmed_mean", "uniform", 3.0),
        ("mean", "samples", 5030 / 15),
    ],
)
def test_robust_statistics_replace_the_mean(aggregation, weighting, mean):
    running = start_spread_server(FedAvg(weighting=weighting), clip_norm=0, aggregation=aggregation)
    play_moves(running, MOVES)
    assert running.state.bank["global"].vector.tolist() == pytest.approx([mean, 0.0])


def sized(**samples: int) -> list[Participant]:
    return [Participant(name, f"site-{name}", count) for name, count in samples.items()]


@pytest.mark.parametrize(
    ("aggregation", "mean"),
    [
        ("median", 3.5),  # a's 60 samples count as 20: 30 are on either side
        ("trimmed_mean", 3.5),  # without 20 at either end: (10*3 + 10*4) / 20
        ("mean", (60 * 10 + 10 * (1 + 2 + 3 + 4)) / 100),
    ],
)
def test_no_robust_statistic_is_the_largest_hospitals(aggregation, mean):
    people = sized(a=60, b=10, c=10, d=10, e=10)
    running = start_spread_server(FedAvg(), people=people, clip_norm=0, aggregation=aggregation)
    moves = {"a": (10.0, 0.0), "b": (1.0, 0.0), "c": (2.0, 0.0), "d": (3.0, 0.0), "e": (4.0, 0.0)}
    record = play_moves(running, moves)
    assert running.state.bank["global"].vector.tolist() == pytest.approx([mean, 0.0])
    lowered = {} if aggregation == "mean" else {"lowered_shares": {"a": [0.6, 0.3333]}}
    assert {key: record[key] for key in record.keys() & {"lowered_shares"}} == lowered


@pytest.mark.parametrize("aggregation", ["median", "trimmed_mean"])
@pytest.mark.parametrize(("liars", "byzantine"), [("e", 1), ("de", 2)])
def test_liars_about_their_samples_cannot_leave_the_honest_ones(aggregation, liars, byzantine):
    people = sized(a=5, b=6, c=7, d=10**9 if "d" in liars else 8, e=10**9)
    settings = {"clip_norm": 0, "aggregation": aggregation, "byzantine": byzantine}
    running = start_spread_server(FedAvg(), people=people, **settings)
    play_moves(running, {**MOVES, **dict.fromkeys(liars, (1e6, 0.0))})
    assert 1.0 <= running.state.bank["global"].vector[0] <= 4.0


def test_krum_averages_those_that_it_keeps_by_their_samples_and_says_whom_it_leaves_out():
    running = start_spread_server(FedAvg(), clip_norm=0, aggregation="krum")
    record = play_moves(running, MOVES)
    assert record["left_out"] == ["e"]
    assert running.state.bank["global"].vector.tolist() == [3.0, 0.0]  # (1*1 + 2*2 + 3*3 + 4*4) / 10


def test_each_cluster_has_its_own_median():
    running = start_spread_server(IFCA(k=2), clip_norm=0, aggregation="median")
    play_moves(running, {**MOVES, "d": (-1.0, 0.0), "e": (-3.0, 2.0)}, {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1})
    assert running.state.bank["cluster-0"].vector.tolist() == [2.0, 0.0]
    assert running.state.bank["cluster-1"].vector.tolist() == [8.0, 1.0]  # it started from (10, 0)


def test_members_that_come_from_other_clusters_count_where_they_end():
    """WeCFL averages trained models, wherever their training started."""
    running = start_spread_server(WeCFL(k=2, weighting="uniform", starts=1), clip_norm=0, aggregation="median")
    play_moves(running, {**MOVES, "d": (90.0, 0.0), "e": (100.0, 0.0)})
    assert running.state.assignment == {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1}
    assert running.state.bank["cluster-0"].vector.tolist() == [2.0, 0.0]
    assert running.state.bank["cluster-1"].vector.tolist() == [95.0, 0.0]
    play_moves(running, {"a": (0.0, 0.0), "b": (1.0, 0.0), "c": (91.0, 0.0), "d": (0.0, 0.0), "e": (1.0, 0.0)})
    assert running.state.assignment["c"] == 1  # at 93, beside 95 and 96
    assert running.state.bank["cluster-1"].vector.tolist() == [95.0, 0.0]
    assert running.state.bank["cluster-0"].vector.tolist() == [2.5, 0.0]


def test_an_outlier_is_left_out_before_the_clustering_and_reported():
    moves = {"a": (1.0, 0.0), "b": (1.5, 0.0), "c": (9.0, 0.0), "d": (9.5, 0.0), "e": (200.0, 0.0)}
    misled = start_spread_server(WeCFL(k=2, weighting="uniform"), clip_norm=0)
    play_moves(misled, moves)
    assert misled.state.assignment == {"a": 0, "b": 0, "c": 0, "d": 0, "e": 1}
    running = start_spread_server(WeCFL(k=2, weighting="uniform"), clip_norm=0, reject_outliers=True)
    record = play_moves(running, moves)
    assert running.state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert record["failed"]["e"].startswith("outlier: its model is 381 times as far")
    assert record["trained"] == ["a", "b", "c", "d"]
    assert running.rejected["outlier"] == 1


def test_outliers_are_left_out_whether_or_not_the_server_compares_models():
    for method in (FedAvg(), CAM(base=WeCFL(k=2), warmup=1), IFCA(k=2)):
        running = start_spread_server(method, clip_norm=0, reject_outliers=True)
        choices = dict.fromkeys(SAMPLES, 0) if isinstance(method, IFCA) else None
        record = play_moves(running, MOVES, choices)
        assert list(record["failed"]) == ["e"], method.label


def test_no_site_has_more_than_its_share_of_a_cluster():
    people = [Participant("a", "one", 1), Participant("b", "two", 1), Participant("c", "three", 1), PEOPLE[4]]
    people[3] = Participant("e", "four", 10**9)
    running = start_spread_server(FedAvg(), people=people, clip_norm=0, max_weight_share=0.4)
    record = play_moves(running, {"a": (0.0, 0.0), "b": (0.0, 0.0), "c": (0.0, 0.0), "e": (10.0, 0.0)})
    assert running.state.bank["global"].vector.tolist() == pytest.approx([4.0, 0.0])
    assert record["lowered_shares"] == {"e": [1.0, 0.4]}


def test_a_site_of_many_participants_is_one_site():
    people = [Participant(n, "one" if n in "abc" else f"site-{n}", 1) for n in SAMPLES]
    running = start_spread_server(FedAvg(), people=people, clip_norm=0, max_weight_share=0.5)
    play_moves(running, {**dict.fromkeys("abc", (10.0, 0.0)), "d": (0.0, 0.0), "e": (0.0, 0.0)})
    assert running.state.bank["global"].vector.tolist() == pytest.approx([5.0, 0.0])


@pytest.mark.parametrize("value", [np.float32(3.4e38), -2e9, np.inf, np.nan])
def test_a_huge_value_is_refused(value):
    running = start_spread_server(FedAvg())
    running.tasks()
    with pytest.raises(PayloadError, match=r"a: global holds"):
        running.accept(Result("a", update("a", 1, "global", 0.0, value)), "site-a")


def test_a_method_of_more_than_means_is_refused_a_robust_statistic():
    with pytest.raises(ConfigError, match=r"aggregation = 'median' replaces means .* cfl computes more than means"):
        start_spread_server(CFL(eps1=1, eps2=2), aggregation="median")


# ---- Small clusters are held back ----

REAL = {"min_sites_per_cluster": 2, "hold_small_clusters": True, "clip_norm": 0}


def test_a_model_that_one_site_trained_stays_as_it_was():
    running = start_spread_server(IFCA(k=2), **REAL)
    record = play_moves(running, MOVES, {"a": 0, "b": 0, "c": 0, "d": 0, "e": 1})
    assert running.state.bank["cluster-0"].vector.tolist() == [3.0, 0.0]
    assert running.state.bank["cluster-1"].vector.tolist() == [10.0, 0.0]
    assert record["held_back"] == ["e"]
    assert record["small_clusters"] == [1]
    assert running.state.assignment["e"] == 1


def test_so_it_does_if_the_others_of_its_cluster_are_not_in_the_round():
    running = start_spread_server(WeCFL(k=2, weighting="uniform"), **REAL)
    play_moves(running, {**MOVES, "d": (90.0, 0.0), "e": (100.0, 0.0)})
    assert running.state.bank["cluster-1"].vector.tolist() == [95.0, 0.0]
    tasks = running.tasks()
    for name in ("a", "b", "d"):
        slot = tasks[name].slots[0]
        running.accept(
            Result(name, update(name, SAMPLES[name], slot, 1.0, 0.0), {"metrics": {"served_accuracy": 0.5}}),
            f"site-{name}",
        )
    running.finish_round()
    assert running.state.bank["cluster-0"].vector.tolist() == [3.0, 0.0]
    assert running.state.bank["cluster-1"].vector.tolist() == [95.0, 0.0]


def test_a_round_of_one_site_moves_nothing():
    running = start_spread_server(CAM(base=IFCA(k=2), warmup=1), **REAL, min_answers=1)
    running.tasks()
    running.accept(Result("a", update("a", 1, "shared", 1.0, 0.0)), "site-a")
    before = running.state.bank
    running.finish_round()
    assert running.state.round == 1
    assert {slot: m.vector.tolist() for slot, m in running.state.bank.items()} == {
        slot: m.vector.tolist() for slot, m in before.items()
    }


def test_samples_count_as_well():
    running = start_spread_server(IFCA(k=2), min_samples_per_cluster=6, hold_small_clusters=True, clip_norm=0)
    record = play_moves(running, MOVES, {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1})
    assert record["held_back"] == ["a", "b"]  # 3 samples; c, d and e have 12


def test_real_sites_are_careful_unless_the_job_says_otherwise():
    unset = ServerSettings(1).at_real_sites()
    assert (unset.floor.sites, unset.floor.samples) == (3, 30)
    assert unset.merge_small_clusters
    assert unset.hold_small_clusters
    assert unset.max_weight_share == 1 / 3
    assert unset.longest_update == 2
    assert ServerSettings(1).in_simulation().longest_update == ServerSettings(1).longest_update == 10
    assert ServerSettings(1, clip_norm=0).at_real_sites().longest_update is None
    written = ServerSettings(1, min_sites_per_cluster=1, min_samples_per_cluster=1, max_weight_share=1.0)
    real = written.at_real_sites()
    assert not real.merge_small_clusters
    assert not real.hold_small_clusters
    assert real.max_weight_share == 1.0


def test_fewer_sites_than_a_cluster_needs_are_refused_at_once():
    with pytest.raises(ConfigError, match=r"a model needs 3 sites .* but all that take part are 2 sites with 3; wait"):
        start_spread_server(FedAvg(), people=PEOPLE[:2], hold_small_clusters=True, min_sites_per_cluster=3)
    with pytest.raises(ConfigError, match="cfl computes more than means of models, so that a model of fewer sites"):
        start_spread_server(CFL(eps1=1, eps2=2), hold_small_clusters=True, min_sites_per_cluster=3)


# ---- The statistics ----

ROWS = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)


@given(ROWS, st.floats(1e3, 1e8, width=32))
def test_one_hostile_row_cannot_leave_the_honest_ones(honest, huge):
    rows = [np.array([v], np.float32) for v in [*honest, huge]]
    if len(honest) > 1:
        for found in (compute_median(rows), compute_trimmed_mean(rows, 1)):
            assert min(honest) - 1e-3 <= found[0] <= max(honest) + 1e-3 or len(honest) == 1


WEIGHED = st.lists(st.tuples(st.floats(-100, 100, width=32), st.integers(1, 50)), min_size=1, max_size=8)


def statistics_of(weighed: list[tuple[float, int]], scale: float = 1.0) -> list[float]:
    """Their weighted median, and their trimmed means without one and two."""
    rows, weights = [np.array([v], np.float32) for v, _ in weighed], [scale * w for _, w in weighed]
    found = [
        compute_median(rows, weights),
        compute_trimmed_mean(rows, 1, weights),
        compute_trimmed_mean(rows, 2, weights),
    ]
    return [float(value[0]) for value in found]


@given(WEIGHED, st.randoms(), st.floats(1e-6, 1e6))
def test_neither_order_nor_scale_of_weights_matters(weighed, random, scale):
    before = statistics_of(weighed)
    random.shuffle(weighed)
    assert statistics_of(weighed, scale) == pytest.approx(before, abs=1e-4)


@given(ROWS, st.integers(1, 50))
def test_equal_weights_are_none(values, weight):
    expected, ordered = [float(np.median(values))], sorted(values)
    for hostile in (1, 2):
        cut = min(hostile, (len(values) - 1) // 2)
        expected.append(float(np.mean(ordered[cut : len(values) - cut])))
    assert statistics_of([(value, weight) for value in values]) == pytest.approx(expected, abs=1e-4)


@given(WEIGHED)
def test_a_weight_is_as_many_rows(weighed):
    """Of a median; how much a trimmed mean leaves out depends on the heaviest row."""
    repeated = [value for value, weight in weighed for _ in range(weight)]
    assert statistics_of(weighed)[0] == pytest.approx(float(np.median(repeated)), abs=1e-4)


@given(WEIGHED, WEIGHED, st.sampled_from([-1e8, 1e8]))
def test_hostile_rows_of_less_than_half_of_the_weight_cannot_leave_the_honest_ones(honest, hostile, far):
    values = [value for value, _ in honest]
    liars = [(far, weight) for _, weight in hostile]
    if sum(weight for _, weight in liars) < sum(weight for _, weight in honest):
        assert min(values) - 1e-3 <= statistics_of([*honest, *liars])[0] <= max(values) + 1e-3
    first = liars[:1]  # whatever its weight, as long as the others have half
    if first[0][1] < sum(weight for _, weight in honest):
        assert min(values) - 1e-3 <= statistics_of([*honest, *first])[1] <= max(values) + 1e-3


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=8))
def test_krum_and_isolation_drop_a_distant_row(honest):
    rows = [np.array([v]) for v in [*honest, 1e6]]
    assert len(honest) not in select_by_krum(rows, 1)
    assert set(find_isolated(rows, 1)) <= {len(honest)}
    assert len(honest) in find_isolated(rows, 1)


@given(st.dictionaries(st.text(max_size=2), st.floats(1e-3, 1e9), min_size=1), st.floats(0.05, 1.0))
def test_capped_weights(weights, share):
    new = capped(weights, share)
    assert all(new[name] <= weights[name] for name in weights)
    if len(weights) * share > 1:
        assert max(new.values()) <= share * sum(new.values()) * (1 + 1e-9)
    else:
        assert max(new.values()) == pytest.approx(min(new.values())) or new == weights
    if max(weights.values()) <= share * sum(weights.values()):
        assert new == weights


def test_colluders_do_not_vouch_for_each_other():
    rows = [np.array([v]) for v in (0.0, 1.0, 2.0, 3.0, 4.0, 500.0, 500.1)]
    assert set(find_isolated(rows, 2)) == {5, 6}
    assert find_isolated(rows[:2], 1) == {}


# ---- All methods ----

DATA = DataConfig(participants=9, partition="label_permutation:groups=3", indicator_samples=10)
SPECS = (
    *("fedavg", "fedprox", "finetune", "local", "fedper", "fedbabu", "ditto", "per-fedavg", "ifca:k=3", "fesem:k=3"),
    *("ifca:k=3,shared_backbone=True", "wecfl:k=3", "cgpfl:k=3", "fedac:k=3", "fedds:k=3", "feddsmic:k=3"),
    *("fedcuau:k=2", "cfl:eps1=9,eps2=0", "fl-hc:k=3,rounds_before=1", "fedgroup:k=3", "ifca-cam:k=3,warmup=1"),
    *("wecfl:k=auto,warmup=1", "fesem-cam:k=3,warmup=1", "fedavg+:k=2", "fedavg+ifca:k=3", "fedavg+fesem:k=3"),
    *("cfl-gp:k=2", "clove:k=2", "clove:k=3,silhouette=True"),
    "groups:groups={'p0':'a','p1':'a','p2':'b','p3':'b','p4':'b'},warmup=1",
)


@pytest.mark.parametrize("spec", SPECS)
def test_every_method_works_behind_every_defence(spec):
    """All at once, so tight that each has something to do; a method of more than means has those that it may have."""
    method = build_named(spec)
    settings = {"clip_norm": 1.0, "max_weight_share": 0.2, "reject_outliers": True, "sample": 0.9}
    if method.traits.averages_only or method.traits.mergeable:
        settings |= {"aggregation": "trimmed_mean", "hold_small_clusters": True, "min_samples_per_cluster": 200}
    model = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
    training = TrainSettings(lr=0.05, local_steps=4)
    ran = run_loop(
        method=method,
        model=model,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(3, **settings),
        training=training,
    )
    assert ran.state.round == 3
    assert all(np.isfinite(model.vector).all() for model in ran.state.bank.values())


def test_every_method_is_among_them():
    assert (
        METHODS.keys() - {"cam", "ensemble", "hypcluster", "auto-k"}
        == {s.partition(":")[0] for s in SPECS} & METHODS.keys()
    )


def test_holding_and_capping_read_no_model_from_disk(monkeypatch):
    monkeypatch.setattr("cfl_flare.engine.round.SPOOL_BYTES", 0)
    names: list[str] = []
    read = Spool.read
    monkeypatch.setattr(Spool, "read", lambda spool, head: names.append(head.participant) or read(spool, head))
    counts, cluster_0 = [], []
    for settings in ({"clip_norm": 0}, {**REAL, "max_weight_share": 0.5}):
        names.clear()
        running = start_spread_server(IFCA(k=2), **settings)
        play_moves(running, MOVES, {"a": 0, "b": 0, "c": 0, "d": 0, "e": 1})
        counts.append(len(names))
        cluster_0.append(running.state.bank["cluster-0"].vector.tolist())
    assert 0 < counts[1] <= counts[0]
    assert cluster_0[0] == pytest.approx(cluster_0[1])
    assert running.state.bank["cluster-1"].vector.tolist() == [10.0, 0.0]


# ---- The bounds of what one update moves ----


NORMED_LAYOUT = Layout.of(
    nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1, bias=False))
)
BANK = {"global": Params(NORMED_LAYOUT, np.array([0, 0, 0, 1], np.float32), np.zeros(1, np.int64))}


def normed_update(name: str, *moves: float) -> Update:
    return Update(
        name, 1, {"global": Params(NORMED_LAYOUT, np.array(moves, np.float32), np.zeros(1, np.int64))}, main="global"
    )


def bounded(updates: list[Update], bound: float = CLIP_NORM) -> list[Update]:
    norms, statistics = Norms(), Statistics()
    for one in updates:
        norms.add(one)
        statistics.add(one, BANK)
    return list(clip_updates(updates, norms.excess(bound, bound), statistics.excess(bound)[0]))


SIZES = st.floats(0.25, 1.875, width=32)  # each within ten times any other
SIGNS = st.sampled_from([-1.0, 1.0])
HONEST = st.lists(
    st.builds(lambda a, i, b, j, m, v: (a * i, b * j, m, v), SIZES, SIGNS, SIZES, SIGNS, SIZES, SIZES),
    min_size=3,
    max_size=7,
)
ANYTHING = st.floats(-1e8, 1e8, width=32)


@given(HONEST)
def test_honest_updates_are_never_changed_by_the_default(moves):
    updates = [normed_update(f"p{i}", *move) for i, move in enumerate(moves)]
    assert all(after is before for after, before in zip(bounded(updates), updates, strict=True))


@given(HONEST, st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING), st.randoms())
def test_the_order_of_participants_does_not_matter(moves, hostile, random):
    updates = [normed_update(f"p{i}", *move) for i, move in enumerate([*moves, hostile])]
    vectors = {one.participant: one.main_diff.vector.tobytes() for one in bounded(updates)}
    random.shuffle(updates)
    assert vectors == {one.participant: one.main_diff.vector.tobytes() for one in bounded(updates)}


@given(HONEST, st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING))
def test_one_liar_moves_each_layer_and_each_statistic_so_far_and_no_further(moves, hostile):
    rows = np.abs([[*move] for move in moves])
    *honest, liar = bounded([normed_update(f"p{i}", *move) for i, move in enumerate([*moves, hostile])])
    assert [one.main_diff.vector.tolist() for one in honest] == [np.float32(move).tolist() for move in moves]
    moved = np.abs(liar.main_diff.vector.astype(np.float64))
    assert (moved[:2] <= CLIP_NORM * rows[:, :2].max(axis=0) * (1 + 1e-5)).all()
    variance, most = 1 + float(liar.main_diff.vector[3]), 1 + rows[:, 3].max()
    assert 0.099 <= variance <= CLIP_NORM * most * 1.001
    assert moved[2] <= rows[:, 2].max() + CLIP_NORM * np.sqrt(most) * 1.001


def test_layers_are_modules_and_single_buffers():
    assert list_layers(NORMED_LAYOUT) == {
        "0": slice(0, 1),
        "2": slice(1, 2),
        "1.running_mean": slice(2, 3),
        "1.running_var": slice(3, 4),
    }
    assert list(list_layers(Layout.of(nn.Linear(2, 2))).values()) == [slice(0, 4), slice(4, 6)]
    assert list(list_layers(Layout.of(nn.Sequential(nn.Linear(2, 2)))).values()) == [slice(0, 6)]


def test_a_scripts_running_statistics_are_known_by_their_names():
    names = ("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    layout = Layout(tuple(Entry(name, (1,), "parameter", False, False, i) for i, name in enumerate(names)))
    assert list(list_layers(layout)) == ["bn", "bn.running_mean", "bn.running_var"]
    bank = {"global": Params(layout, np.array([1, 0, 0, 1], np.float32))}
    statistics = Statistics()
    for name, variance in {"a": 0.1, "b": -0.1, "c": 0.0, "liar": -9.0}.items():
        diff = Params(layout, np.array([0, 0, 0, variance], np.float32))
        statistics.add(Update(name, 1, {"global": diff}, main="global"), bank)
    ranges, excess = statistics.excess(10.0)
    assert list(ranges) == [("liar", "global")]
    assert excess.keys() == {("main", "bn.running_var")}


def test_a_layer_that_only_some_updates_carry_is_measured_among_those():
    head = NORMED_LAYOUT.restricted(["2.weight"])
    updates = [normed_update(name, 1.0, 1.0, 0.0, 0.0) for name in "abc"]
    updates += [
        Update(name, 1, {"global": Params(head, np.array([move], np.float32))}, main="global")
        for name, move in {"d": 1.0, "liar": 40.0}.items()
    ]
    after = {one.participant: one.main_diff.vector.tolist() for one in bounded(updates)}
    assert after["liar"] == [10.0]
    assert after["d"] == [1.0]


def round_of_normed(**settings) -> tuple[float, dict]:
    """The model's running variance after one round of four participants, and the round's record.

    They have 1, 2, 3 and 4 samples. Three raise the variance of 1 by 0.1, and the last one, whose data is rare, by 30.
    """
    running = Server(FedAvg(), NORMED_LAYOUT, PEOPLE[:4], ServerSettings(3, **settings), ServerState(dict(BANK)))
    running.tasks()
    for name, moved in zip("abcd", (0.1, 0.1, 0.1, 30.0)):
        sent = replace(normed_update(name, 1.0, 1.0, 0.0, moved), samples=SAMPLES[name])
        running.accept(Result(name, sent, {}), f"site-{name}")
    running.finish_round()
    record = running.progress.record
    assert record is not None
    return float(running.state.bank["global"].vector[3]), record


def test_a_simulation_averages_running_statistics_unclipped():
    variance, record = round_of_normed()
    assert "clipped" not in record
    assert variance == pytest.approx(1 + (1 * 0.1 + 2 * 0.1 + 3 * 0.1 + 4 * 30) / 10)


def test_real_sites_clip_running_statistics():
    """The median moves the variance by 0.1, so that nobody moves it by more than 1."""
    variance, record = round_of_normed(clip_statistics=True)
    assert record["clipped"] == {"d": pytest.approx(30)}
    assert variance == pytest.approx(1 + (1 * 0.1 + 2 * 0.1 + 3 * 0.1 + 4 * 1) / 10)


def test_who_clips_running_statistics():
    settings = ServerSettings(1)
    assert settings.at_real_sites().clips_statistics
    assert not settings.in_simulation().clips_statistics
    assert ServerSettings(1, reject_outliers=True).in_simulation().clips_statistics
    assert not ServerSettings(1, clip_statistics=False).at_real_sites().clips_statistics
    assert not ServerSettings(1, clip_norm=0).at_real_sites().clips_statistics


def test_rare_classes_do_not_clip_batch_norm():
    """Each participant has two of ten digits. FedAvg is then still the weighted mean, bit for bit."""

    def train(**settings) -> Server:
        return run_loop(
            method=FedAvg(),
            model=FashionCNN([1, 8, 8], 10),
            source=Digits(),
            data=DataConfig(participants=40, partition="n_class:n=2"),
            settings=ServerSettings(4, evaluate_every=4, **settings),
            training=TrainSettings(lr=0.3),
        )

    by_default = train().state.bank["global"].vector.tobytes()
    assert by_default == train(clip_norm=0).state.bank["global"].vector.tobytes()
    assert by_default != train(clip_statistics=True).state.bank["global"].vector.tobytes()
