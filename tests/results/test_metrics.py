# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""By which numbers a run decides: means that no single site moves far, and honest means as they are."""

import numpy as np
import pytest

from cfl_flare.methods import Participant, ServerState
from cfl_flare.results.metrics import Metric, measure_round, steady_average
from tests.tiny import coin

STATE = ServerState({"cluster-0": coin(0, 0), "cluster-1": coin(0, 0)}, assignment={"a": 0, "b": 0, "c": 1, "d": 1})
PEOPLE = {n: Participant(n, n, s) for n, s in zip("abcd", (10, 20, 30, 40))}
RECORD = {"round": 0, "trained": []}


def decided(values: dict[str, float], name: str = "served_loss", share: float | None = None) -> dict[str, float]:
    return measure_round(RECORD, {n: {name: v} for n, v in values.items()}, PEOPLE, STATE, 2, share).deciding()


@pytest.mark.parametrize("name", ["served_accuracy", "served_macro_f1", "served_dice"])
def test_shares_decide_as_they_are_recorded(name):
    values = {"a": 0.1, "b": 0.9, "c": 0.92, "d": 0.95}
    measured = measure_round(RECORD, {n: {name: v} for n, v in values.items()}, PEOPLE, STATE, 2)
    assert measured.deciding() == measured.scalars()


def test_honest_losses_decide_as_they_are_recorded():
    values = {"a": 1.0, "b": 1.3, "c": 0.8, "d": 1.1}
    measured = measure_round(RECORD, {n: {"served_loss": v} for n, v in values.items()}, PEOPLE, STATE, 2)
    assert measured.deciding() == measured.scalars()


@pytest.mark.parametrize("value", [1e9, -1e9])
def test_one_outlier_moves_a_decision_by_little(value):
    """The median of 1, 1.2, 1.4 and the outlier is 1.3 or 1.1, the median deviation 0.2: within 1 of the median."""
    honest = decided({"a": 1.0, "b": 1.2, "c": 1.4, "d": 1.2})["served_loss"]
    values = {"a": 1.0, "b": 1.2, "c": 1.4, "d": value}
    assert abs(decided(values)["served_loss"] - honest) < 0.5
    record = measure_round(RECORD, {n: {"served_loss": v} for n, v in values.items()}, PEOPLE, STATE, 2).record
    assert abs(record["served_loss"]) > 1e8  # as reported
    assert abs(decided(values)["served_loss_unweighted"] - 1.2) < 0.5


def test_a_share_that_is_none_is_an_outlier():
    assert decided({"a": 0.5, "b": 0.5, "c": 0.5, "d": 1e6}, "served_accuracy")["served_accuracy"] == 0.5


def test_a_site_decides_with_its_share_of_the_weight():
    huge = dict(PEOPLE, d=Participant("d", "d", 10**9))
    metrics = {n: {"served_accuracy": float(n == "d")} for n in PEOPLE}
    assert measure_round(RECORD, metrics, huge, STATE, 2).deciding()["served_accuracy"] > 0.99
    bounded = measure_round(RECORD, metrics, huge, STATE, 2, 1 / 3).deciding()
    assert bounded["served_accuracy"] == 0  # as most have it
    recorded = measure_round(RECORD, metrics, huge, STATE, 2, 1 / 3).record
    assert recorded["served_accuracy"] == pytest.approx(1 / 3, abs=0.01)
    assert bounded["served_accuracy_unweighted"] == 0 and recorded["served_accuracy_unweighted"] == 0.25


def test_many_participants_of_one_site_have_its_share():
    metrics = {n: {"x": float(n in "cd")} for n in "abcd"}
    weights, sites = dict.fromkeys("abcd", 1.0), {"a": "one", "b": "two", "c": "three", "d": "three"}
    assert steady_average({n: {"accuracy": m["x"]} for n, m in metrics.items()}, weights, sites, 1 / 3) == {
        "accuracy": pytest.approx(1 / 3)
    }
    assert np.isclose(steady_average({"a": {"loss": 3.0}, "b": {"loss": 5.0}}, weights, sites, 1.0)["loss"], 4)


def test_the_worst_are_those_at_the_other_end_than_the_best():
    values = {"a": -0.2, "b": 0.9, "c": -3.5, "d": 0.1}
    own = {n: {"served_r2": v, "served_loss": v, "served_dice": v} for n, v in values.items()}
    ranked = (Metric("r2"), Metric("loss", "min"), Metric("accuracy"))
    record = measure_round(RECORD, own, PEOPLE, STATE, 2, None, ranked).record
    assert (record["served_worst_r2"], record["served_worst_loss"]) == (-3.5, 0.9)
    assert not {"served_worst_dice", "served_worst_accuracy"} & record.keys()
    seven = {str(i): {"served_loss": float(i)} for i in range(7)}
    people = {name: Participant(name, name, 1) for name in seven}
    record = measure_round(RECORD, seven, people, STATE, 2, None, [Metric("loss", "min")]).record
    assert record["served_bottom_loss"] == 4.0  # of 2 to 6


def test_without_a_word_accuracy_is_ranked():
    own = {n: {"served_accuracy": v, "served_loss": v} for n, v in zip("abcd", (0.1, 0.9, 0.5, 0.6))}
    record = measure_round(RECORD, own, PEOPLE, STATE, 2).record
    assert {key for key in record if "worst" in key or "bottom" in key} == {
        "served_worst_accuracy",
        "served_bottom_accuracy",
        "worst_participants",
    }
    assert record["worst_participants"] == {"accuracy": {"a": 0.1, "c": 0.5, "d": 0.6, "b": 0.9}}
    assert record["served_worst_accuracy"] == 0.1


def test_a_mean_is_of_those_for_whom_it_is_defined_and_says_of_how_many():
    metrics = {n: {"served_accuracy": 0.5, "served_auroc": v} for n, v in zip("abc", (0.5, 0.75, 1.0))}
    metrics["d"] = {"served_accuracy": 0.5}
    record = measure_round(RECORD, metrics, PEOPLE, STATE, 2).record
    assert record["served_auroc"] == pytest.approx((10 * 0.5 + 20 * 0.75 + 30 * 1.0) / 60)
    assert record["defined"] == {"served_auroc": 3}
    assert record["clusters"]["cluster-1"]["served_auroc"] == 1


def test_where_all_have_the_same_nothing_is_said_of_how_many():
    metrics = {n: {"served_accuracy": 0.5} for n in "abc"}  # d was not measured
    metrics["a"] = {**metrics["a"], "trained_accuracy": 0.5}  # the others were not asked to train
    assert "defined" not in measure_round(RECORD, metrics, PEOPLE, STATE, 2).record
    assert "defined" not in measure_round(RECORD, {}, PEOPLE, STATE, 2).record
    alone = {"a": {"trained_accuracy": 0.5}}  # the round was not measured
    assert "defined" not in measure_round(RECORD, alone, PEOPLE, STATE, 2).record


def test_one_of_six_does_not_end_a_run_by_patience():
    people = {n: Participant(n, n, 10**9 if n == "f" else 10) for n in "abcdef"}
    means = []
    for number in range(8):
        honest = {n: {"served_accuracy": 0.3 + 0.05 * number + 0.02 * i} for i, n in enumerate("abcde")}
        lie = {"f": {"served_accuracy": float(number == 0)}}
        measured = measure_round({**RECORD, "round": number}, honest | lie, people, STATE, 2, 1 / 3)
        means.append(measured.deciding()["served_accuracy"])
    assert max(range(8), key=means.__getitem__) == 7 and max(means[1:4]) > means[0]
