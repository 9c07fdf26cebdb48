# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The server's checks and its schedule, without FLARE, and what is checked before the first run starts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch import nn

import cfl_flare.engine.round
from cfl_flare.core.errors import ConfigError, PayloadError, TooFewAnswersError
from cfl_flare.core.params import Params
from cfl_flare.data import Digits
from cfl_flare.engine import preflight
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.engine.server import count_of
from cfl_flare.engine.task import Result
from cfl_flare.methods import IFCA, FedAvg, Participant, Update, WeCFL
from cfl_flare.models import Logistic
from cfl_flare.training.settings import TrainSettings
from tests.helpers.tiny import LAYOUT, coin, start_server, update

PEOPLE = [Participant("a", "site-1", 1), Participant("b", "site-1", 3), Participant("c", "site-2", 2)]


start_coin_server = partial(start_server, people=PEOPLE)


def good(name: str, a: float = 1, b: float = 1, samples: int | None = None) -> Result:
    """A result with the samples that its participant named before."""
    known = next((p.samples for p in PEOPLE if p.name == name), 1)
    return Result(name, update(name, known if samples is None else samples, "global", a, b))


def test_a_round_in_any_order_of_arrival_gives_equal_bits():
    results = []
    for order in ("abc", "cab"):
        s = start_coin_server()
        s.tasks()
        for name in order:
            s.accept(good(name, 0.1 * "abc".index(name), 1 / 3), "site-2" if name == "c" else "site-1")
        s.finish_round()
        results.append(s.state.bank["global"].vector)
    np.testing.assert_array_equal(*results)


def test_a_participant_that_joins_between_rounds_trains_and_counts_from_the_next_one():
    s = start_coin_server(max_weight_share=0.5)
    s.tasks()
    for name, samples in (("a", 1), ("b", 3), ("c", 2)):
        s.accept(Result(name, update(name, samples, "global", 1, 1)), "site-2" if name == "c" else "site-1")
    s.finish_round()
    s.admit([*PEOPLE, Participant("d", "site-3", 100)])
    assert s.tasks()["d"].train
    for name, samples, site in (("a", 1, "site-1"), ("b", 3, "site-1"), ("c", 2, "site-2"), ("d", 100, "site-3")):
        s.accept(Result(name, update(name, samples, "global", float(name == "d"), 1)), site)
    before = s.state.bank["global"].vector.copy()
    s.finish_round()
    assert s.progress.record["trained"] == ["a", "b", "c", "d"]
    moved = (s.state.bank["global"].vector - before)[0]
    assert 0 < moved <= 0.5 + 1e-6  # its share of the weight is bounded like anyone's


BAD = {
    "unknown_participant": (Result("z", update("z", 1, "global", 1, 1)), "site-1"),
    "participant of another site": (good("c"), "site-1"),
    "failed": (Result("a", error="training"), "site-1"),
    "no update": (Result("a"), "site-1"),
    "zero samples": (good("a", samples=0), "site-1"),
    "negative samples": (good("a", samples=-5), "site-1"),
    "absurd samples": (good("a", samples=10**12), "site-1"),
    "samples no int": (good("a", samples=1.5), "site-1"),  # type: ignore[arg-type]
    "other samples than before": (good("b", samples=4), "site-1"),
    "samples a bool": (good("a", samples=True), "site-1"),
    "another slot": (Result("a", update("a", 1, "cluster-0", 1, 1)), "site-1"),
    "no slot": (Result("a", Update("a", 1)), "site-1"),
    "nan": (good("a", np.nan), "site-1"),
    "infinity": (good("a", np.inf), "site-1"),
    "shape": (Result("a", Update("a", 1, {"global": Params(LAYOUT, np.ones(3, np.float32))})), "site-1"),
    "metric": (replace(good("a"), answers={"metrics": {"served_accuracy": float("nan")}}), "site-1"),
    "cluster where the server assigns": (Result("a", update("a", 1, "global", 1, 1, cluster=0)), "site-1"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_answer_is_refused_and_the_round_goes_on_without_it(case):
    s = start_coin_server()
    s.tasks()
    with pytest.raises(PayloadError):
        s.accept(*BAD[case])
    s.accept(good("b", 2, 2), "site-1")
    s.accept(good("c", 7, 7), "site-2")
    s.finish_round()
    np.testing.assert_array_equal(s.state.bank["global"].vector, [4, 4])  # (3*2 + 2*7) / 5: nothing of the bad one
    assert sum(s.rejected.values()) == 1


@pytest.mark.parametrize("cluster", [-1, 2, None, 1.0, True, "0"])
def test_a_cluster_out_of_range_is_refused(cluster):
    s = start_coin_server(IFCA(k=2))
    s.tasks()
    with pytest.raises(PayloadError, match="cluster = "):
        s.accept(Result("a", update("a", 1, "cluster-0", 1, 1, cluster=cluster)), "site-1")


def test_a_second_answer_is_refused_and_the_first_one_counts():
    s = start_coin_server()
    s.tasks()
    s.accept(good("a", 1, 1), "site-1")
    with pytest.raises(PayloadError, match="second result"):
        s.accept(good("a", 9, 9), "site-1")
    s.finish_round()
    np.testing.assert_array_equal(s.state.bank["global"].vector, [1, 1])


def test_sampling_depends_on_seed_and_round_alone():
    s, t = start_coin_server(sample=2), start_coin_server(sample=2)
    assert s.sampled() == t.sampled()
    assert len(s.sampled()) == 2
    seen = set()
    for number in range(8):
        t.state = replace(t.state, round=number)
        seen |= {frozenset(t.sampled())}
    assert len(seen) > 1


def test_only_sampled_participants_are_asked_to_train():
    s = start_coin_server(sample=0.34)
    orders = s.tasks()
    assert [name for name, order in orders.items() if order.train] == sorted(s.sampled())
    assert len(orders) == 1  # nothing to measure before the first round
    other = next(name for name in "ab" if name not in orders)
    with pytest.raises(PayloadError, match="not asked"):
        s.accept(good(other), "site-1")


def test_served_models_are_measured_with_the_next_round_and_after_the_last_one():
    s = start_coin_server(num_rounds=2, evaluate_every=2)
    assert not any(order.evaluate for order in s.tasks().values())
    s.accept(good("a"), "site-1")
    s.finish_round()
    assert not any(order.evaluate for order in s.tasks().values())  # round 0 is not measured: every 2nd
    s.finish_round()
    last = s.tasks()
    assert s.finished
    assert all(order.evaluate and not order.train for order in last.values())


def test_metrics_belong_to_the_round_before_and_are_weighted_by_samples():
    s = start_coin_server()
    s.tasks()
    for name, site in (("a", "site-1"), ("b", "site-1"), ("c", "site-2")):
        s.accept(good(name), site)
    assert s.finish_round() is None
    s.tasks()
    for name, value, site in (("a", 0.0, "site-1"), ("b", 1.0, "site-1"), ("c", 0.5, "site-2")):
        s.accept(replace(good(name), answers={"metrics": {"served_accuracy": value}}), site)
    record = s.finish_round().record
    assert record["round"] == 0
    assert record["served_accuracy"] == pytest.approx((0 + 3 * 1 + 2 * 0.5) / 6)
    assert record["served_accuracy_unweighted"] == pytest.approx(0.5)
    assert record["served_worst_accuracy"] == 0.0
    assert record["served_bottom_accuracy"] == 0.5  # of the five worst, or of as many as there are


def test_bytes_count_a_model_once_a_site():
    s = start_coin_server()
    s.tasks()
    for name, site in (("a", "site-1"), ("b", "site-1"), ("c", "site-2")):
        s.accept(good(name), site)
    s.finish_round()
    s.tasks()
    record = s.finish_round().record
    assert record["bytes_down"] == 2 * LAYOUT.nbytes
    assert record["bytes_up"] == 3 * LAYOUT.nbytes


def test_a_run_in_which_every_round_failed_is_no_success():
    s = start_coin_server(num_rounds=2, max_failed_rounds=3)
    s.tasks()
    s.finish_round()
    s.tasks()
    with pytest.raises(TooFewAnswersError, match=r"2 rounds in a row had fewer than 1 valid results"):
        s.finish_round()


def test_too_few_answers_leave_the_models_alone_and_end_the_run_in_the_end():
    s = start_coin_server(min_answers=2, max_failed_rounds=2)
    s.tasks()
    s.accept(good("a", 5, 5), "site-1")
    s.finish_round()
    np.testing.assert_array_equal(s.state.bank["global"].vector, [0, 0])
    assert s.state.round == 1
    s.tasks()
    with pytest.raises(TooFewAnswersError, match=r"2 rounds in a row had fewer than 2 valid results.*no result"):
        s.finish_round()


def test_large_updates_wait_on_disk_and_give_equal_bits(monkeypatch, tmp_path):
    results = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for together, each in ((2**30, 2**30), (0, 2**30), (2**30, 0)):
        monkeypatch.setattr(cfl_flare.engine.round, "SPOOL_BYTES", together)
        monkeypatch.setattr(cfl_flare.engine.round, "LARGE_UPDATE", each)
        s = start_coin_server()
        s.tasks()
        s.accept(good("a", 0.1, 0.7), "site-1")
        s.accept(good("b", 0.3, 0.9), "site-1")
        assert bool(list(tmp_path.glob("cfl-spool-*/*.npy"))) == (0 in (together, each))
        s.finish_round()
        results.append(s.state.bank["global"].vector)
    assert np.all(results == results[0])
    assert not list(tmp_path.iterdir())


def test_wecfl_refuses_more_clusters_than_participants_take_part():
    with pytest.raises(
        ConfigError, match="k = 3 clusters need as many participants in the first round, but only 2 of 3"
    ):
        start_coin_server(WeCFL(k=3), sample=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_rounds": 0}, "num_rounds = 0 should be >= 1"),
        ({"seed": -1}, "seed = -1 should be >= 0"),
        ({"seed": "x"}, "seed = 'x' should be int"),
        ({"sample": 0}, "sample = 0 should be a share"),
        ({"sample": 1.5}, "sample = 1.5 should be a share"),
        ({"min_answers": 0.0}, "min_answers = 0.0 should be a share"),
        ({"evaluate_every": 0}, "evaluate_every = 0 should be >= 1"),
        ({"max_failed_rounds": 0}, "max_failed_rounds = 0 should be >= 1"),
        ({"keep_features": 1}, "keep_features = 1 should be bool"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        start_coin_server(**settings)


def test_shares_and_counts():
    assert [count_of(0.25, 100), count_of(0.001, 100), count_of(25, 100), count_of(500, 100)] == [25, 1, 25, 100]
    assert coin(1, 2).vector.dtype == np.float32


# ---- Preflight ----


RUN: dict[str, Any] = {"data": Digits(), "participants": 6, "partition": "iid", "num_rounds": 2, "min_clients": 1}
MODEL = Logistic((1, 8, 8), 10)


def test_all_methods_are_held_against_the_model_before_any_of_them_builds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = IFCA.start
    monkeypatch.setattr(IFCA, "start", lambda self, *args: started.append(self) or start(self, *args))
    plans = [RunPlan.of(method=m, model=MODEL, **RUN) for m in (IFCA(k=2), WeCFL(k=2, cluster_on="backbone"))]
    with pytest.raises(ConfigError, match="method wecfl: cluster_on = 'backbone'"):
        check_plans(plans)
    assert not started
    check_plans(plans[:1])
    assert len(started) == 1


def test_each_run_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from cfl_flare.flare import ClusteredRecipe

    calls = []
    layout = preflight._layout
    monkeypatch.setattr(preflight, "_layout", lambda module: calls.append(module) or layout(module))
    ClusteredRecipe(method=FedAvg(), model=MODEL, **RUN)
    assert len(calls) == 1
    ClusteredRecipe.of(RunPlan.of(method=FedAvg(), model=MODEL, **RUN))  # it has been
    assert len(calls) == 1


def test_a_share_above_one_can_never_be_reached() -> None:
    with pytest.raises(ConfigError, match=r"accuracy is a share in 0\.\.1 here; write 0\.8 for 80 per cent"):
        check_plans([RunPlan.of(method=FedAvg(), model=MODEL, **RUN, stop_cond="accuracy >= 80")])
    check_plans([RunPlan.of(method=FedAvg(), model=MODEL, **RUN, stop_cond="loss <= 80")])


@pytest.mark.parametrize("name", ["pooled_auroc", "pooled_macro_f1"])
def test_histograms_of_scores_are_asked_for_where_they_decide_and_where_there_are_classes(name: str) -> None:
    more: dict[str, Any] = {**RUN, "key_metric": name}
    with pytest.raises(ConfigError, match=f"names {name}, which needs histograms of scores; set score_bins to 200"):
        check_plans([RunPlan.of(method=FedAvg(), model=MODEL, **more)])
    check_plans([RunPlan.of(method=FedAvg(), model=MODEL, **more, training=TrainSettings(score_bins=200))])
    flat = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    with pytest.raises(ConfigError, match="score_bins = 200 needs a model that ends in a fully connected layer"):
        check_plans([RunPlan.of(method=FedAvg(), model=flat, **RUN, training=TrainSettings(score_bins=200))])
