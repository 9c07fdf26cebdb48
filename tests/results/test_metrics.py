# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""By which numbers a run is judged: means, metrics of any name, and whether it was still improving at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.early_stopping import EarlyStopping
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import FedAvg, Participant, ServerState
from cfl_flare.results.metrics import (
    Metric,
    best_end,
    is_share,
    leading,
    measure_round,
    of_training,
    reported,
    steady_average,
)
from cfl_flare.results.remarks import gain_at_end, improving
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.tables import results_table
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.play import MODEL
from tests.helpers.tiny import coin

STATE = ServerState({"cluster-0": coin(0, 0), "cluster-1": coin(0, 0)}, assignment={"a": 0, "b": 0, "c": 1, "d": 1})
PEOPLE = {n: Participant(n, n, s) for n, s in zip("abcd", (10, 20, 30, 40))}
RECORD = {"round": 0, "trained": []}


def decide_metrics(values: dict[str, float], name: str = "served_loss", share: float | None = None) -> dict[str, float]:
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
    honest = decide_metrics({"a": 1.0, "b": 1.2, "c": 1.4, "d": 1.2})["served_loss"]
    values = {"a": 1.0, "b": 1.2, "c": 1.4, "d": value}
    assert abs(decide_metrics(values)["served_loss"] - honest) < 0.5
    record = measure_round(RECORD, {n: {"served_loss": v} for n, v in values.items()}, PEOPLE, STATE, 2).record
    assert abs(record["served_loss"]) > 1e8  # as reported
    assert abs(decide_metrics(values)["served_loss_unweighted"] - 1.2) < 0.5


def test_a_share_that_is_none_is_an_outlier():
    assert decide_metrics({"a": 0.5, "b": 0.5, "c": 0.5, "d": 1e6}, "served_accuracy")["served_accuracy"] == 0.5


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


# ---- Metrics of any name ----


@pytest.mark.parametrize(
    ("names", "end"),
    [
        (["loss", "val_loss", "val/crossEntropyLoss", "logloss", "train/MAE", "MeanSquaredError", "rmse"], "min"),
        (["brier_score", "HD95", "hd95", "hausdorffDistance", "error_rate", "nll", "relative-error"], "min"),
        (
            ["accuracy", "val_acc", "dice", "DiceScore", "BinaryAUROC", "r2", "R2Score", "c-index", "f1", "macro_f1"],
            "max",
        ),
        (
            ["neg_mean_squared_error", "neg_log_loss", "log_likelihood", "npv", "tpr", "true_negative_rate", "ari"],
            "max",
        ),
        (["neg_log_likelihood", "negLogLikelihood", "negative_log_likelihood", "NLL", "neg_accuracy"], "min"),
        (["cross_entropy", "CrossEntropy", "val_binary_crossentropy", "kl_divergence", "perplexity"], "min"),
        (["surface_distance", "HausdorffDistance95", "95HD", "hd_95", "assd", "EMD", "l2_distance"], "min"),
        (["fpr", "FPR95", "fpr_at_95_tpr", "false_positive_rate", "FalseNegatives", "miss_rate", "eer"], "min"),
        (["davies_bouldin_index", "dissimilarity", "inaccuracy", "misclassificationRate"], "min"),
        (["score", "val_score", "meanIoU", "mIoU", "AP50", "tpr_at_1pct_fpr", "surface_dice", "rand_index"], "max"),
        (["gain", "lossless_ratio", "mission", "epoch", "x", "accuracy_gap", "auc_std", "loss_std"], None),
        (["spearmanr", "matthews_corrcoef", "NSD", "mean_nsd", "trueNegatives", "d2_pinball_score", "f_beta"], "max"),
        (["exact_match", "tversky", "explained_variance", "negative_predictive_value", "gMean", "val_icc"], "max"),
        (["top5_err", "nlpd", "neg_log_predictive_density", "fall_out", "RAE", "negative_cosine_similarity"], "min"),
        (["accuracy_improvement", "error_reduction", "delta_auc", "accuracy_se", "pearson_pvalue", "1-auc"], None),
        (["loss_weight", "kl_weight", "f1_threshold", "y_true_mean", "rounds_to_accuracy", "recall_negative"], None),
        (["DiceCE", "risk_score", "entropy", "size_entropy", "rate", "time"], None),
    ],
)
def test_a_name_says_which_end_is_best_or_nothing(names, end):
    assert {name: best_end(name) for name in names} == dict.fromkeys(names, end)


def test_shares_are_told_by_name_and_range():
    assert is_share("served_accuracy", 0, 1) and is_share("dice", 0.2, 0.9)
    assert not is_share("accuracy", 12, 71)  # per cent
    assert not is_share("r2", -0.3, 0.9)
    assert not is_share("loss", 0.1, 0.2)


@pytest.mark.parametrize(
    "name",
    ["dice", "served_dice", "served_worst_dice", "bottom_dice", "served_dice_unweighted", "cluster-12/served_dice"],
)
def test_what_a_record_makes_of_a_metric_is_traced_back(name):
    assert Metric(name, "min").of_participants == Metric("dice", "min")


def test_names_may_hold_a_slash():
    record = {
        "served_val/dice": 0.5,
        "cluster-1/served_val/dice": 0.4,
        "cluster-1/size": 3.0,
        "served_worst_val/dice": 0.1,
    }
    found = {name: Metric(name).of(record) for name in ("val/dice", "cluster-1/val/dice", "cluster-1/size")}
    assert found == {"val/dice": 0.5, "cluster-1/val/dice": 0.4, "cluster-1/size": 3.0}
    assert Metric("worst_val/dice").of(record) == 0.1
    assert Metric("val/loss").of(record) is None
    assert Metric("cluster-1/val/dice").of_participants.name == "val/dice"


def test_one_participant_adds_no_metric_to_those_of_the_others():
    honest = {"served_dice": 0.5, "served_loss": 1.0, "trained_loss": 1.0, "name": "a"}
    odd = {"served_accuracy": 1.0, "served_dice": 0.1, "served_loss": 2.0}
    assert reported([honest, honest, odd], 3) == ["dice", "loss"]
    assert reported([honest, {**honest, "served_accuracy": 1.0}], 2) == ["dice", "loss"]
    assert reported([honest], 3) == []  # the others say nothing, and one of three decides for nobody
    assert reported([{"served_a": 1.0}, {"served_b": 1.0}], 2) == []  # nothing is common
    assert reported([], 0) == reported([{"trained_loss": 1.0}], 1) == []


@pytest.mark.parametrize(
    ("wanted", "names", "found"),
    [
        ([Metric("loss", "min")], ["accuracy", "loss"], Metric("loss", "min")),
        ([Metric("worst_dice")], ["accuracy", "dice"], Metric("dice")),
        ([Metric("ari")], ["dice", "accuracy"], Metric("accuracy")),
        ([Metric("accuracy"), Metric("hd95", "min")], ["dice", "hd95"], Metric("hd95", "min")),
        ([Metric("accuracy")], ["loss", "hd95", "dice", "alpha"], Metric("dice")),
        ([Metric("accuracy")], ["train_acc", "val_acc", "train_loss"], Metric("val_acc")),
        ([Metric("accuracy")], ["epoch", "val_loss"], Metric("val_loss", "min")),
        ([], ["loss", "mae"], Metric("mae", "min")),
        ([], ["gain"], Metric("gain", None)),
        ([], [], Metric("accuracy")),
    ],
)
def test_the_metric_that_tells_how_good_a_run_is(wanted, names, found):
    assert leading(wanted, names) == leading(wanted, names[::-1]) == found


def test_metrics_of_training():
    assert [n for n in ("loss", "val_loss", "train_acc", "trained", "dice", "hd95") if of_training(n)] == [
        "loss",
        "val_loss",
        "train_acc",
    ]


# ---- Convergence ----


def curve(rounds: int, speed: float, noise: float = 0.0, seed: int = 0) -> list[float]:
    """From 0.5 towards 0.9."""
    drawn = np.random.default_rng(seed).normal(0, noise, rounds)
    return (0.9 - 0.4 * np.exp(-speed * np.arange(rounds)) + drawn).tolist()


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("rounds", [10, 20, 100])
def test_noise_alone_is_taken_for_a_gain_in_one_of_twenty_runs(rounds: int, mode: str) -> None:
    rng = np.random.default_rng(rounds)
    alarms = [gain_at_end(range(rounds), rng.normal(0.9, 0.01, rounds).tolist(), mode) is not None for _ in range(4000)]
    print(f"false alarms of {rounds} rounds, {mode}: {np.mean(alarms):.3f}")
    assert np.mean(alarms) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)


def test_what_was_cut_short_is_seen_and_what_has_converged_is_not() -> None:
    short = [gain_at_end(range(20), curve(20, 0.05, 0.003, seed), "max") is not None for seed in range(100)]
    done = [gain_at_end(range(100), curve(100, 0.1, 0.003, seed), "max") is not None for seed in range(100)]
    assert np.mean(short) > 0.9 and np.mean(done) < 0.12
    assert gain_at_end(range(100), curve(100, 0.1), "max") is None  # smooth, and the rest is nothing beside the gain
    assert gain_at_end(range(20), [1 - value for value in curve(20, 0.05)], "min") == pytest.approx(0.034, abs=1e-3)
    assert gain_at_end(range(20), curve(20, 0.05), "min") is None  # it gets worse


def test_too_few_measured_rounds_say_nothing() -> None:
    assert gain_at_end(range(9), curve(9, 0.05), "max") is None
    assert improving([], Metric("accuracy")) is None
    lines: list[dict[str, Any]] = [
        {"round": i, "served_accuracy": v if i % 2 else None} for i, v in enumerate(curve(18, 0.05))
    ]
    assert improving(lines, Metric("accuracy")) is None
    lines = [{"round": 5 * i, "served_accuracy": value} for i, value in enumerate(curve(12, 0.05))]
    text = improving(lines, Metric("accuracy"))
    assert text is not None and text.startswith("not converged: accuracy still improved by 0.0")
    assert text.endswith("over the last 20 rounds; train longer")


@pytest.mark.parametrize(
    ("lr", "stop_cond", "said"), [(0.005, None, True), (0.1, None, False), (0.005, "loss <= 9", False)]
)
def test_a_run_says_it_in_summary_table_and_log(
    lr: float, stop_cond: str | None, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_loop(
        method=FedAvg(),
        model=MODEL,
        source=Digits(),
        data=DataConfig(6, "iid"),
        settings=ServerSettings(12 if lr < 0.1 else 40, stop_cond=stop_cond),
        training=TrainSettings(lr=lr, local_steps=5),
        folder=tmp_path,
    )
    run = load_run(tmp_path)
    assert ("improving" in run.summary) == said
    places = (str(results_table([run]).caption), caplog.text)
    assert [("not converged: " in text) for text in places] == [said] * 2


# ---- Metrics whose name does not say which end is best ----


def test_without_an_end_there_is_no_best_round() -> None:
    unknown = Metric.of_name("gain")
    assert unknown.mode is None
    assert unknown.best(None, 0, {"gain": 1.0}) is None
    assert Metric.of_name("gain", "min").best(None, 0, {"gain": 1.0}) == {"round": 0, "value": 1.0}
    assert Metric.of_name("cross_entropy").best({"round": 0, "value": 1.0}, 1, {"cross_entropy": 0.5})["round"] == 1


def test_nobody_is_the_worst_without_an_end() -> None:
    metrics = {"a": {"served_gain": 1.0}, "b": {"served_gain": 3.0}}
    people = {name: Participant(name, name, 1) for name in metrics}
    record = measure_round(RECORD, metrics, people, STATE, 2, None, [Metric("gain", None)]).record
    assert record["served_gain"] == 2.0
    assert not [key for key in record if "worst" in key]


def test_settings_say_the_end_of_an_unknown_metric() -> None:
    assert "key_metric_mode" in str(EarlyStopping.of("gain", None, None, None).unordered)
    assert EarlyStopping.of("gain", "max", None, None).unordered is None
    assert EarlyStopping.of("accuracy", None, None, None).unordered is None
    assert EarlyStopping.of("", None, None, None).unordered is None
    assert EarlyStopping.of("gain", None, "gain >= 3", 2).key == Metric("gain", "max")
    assert EarlyStopping.of("gain", "min", "gain = 3", 2).watched == Metric("gain", "min")
    with pytest.raises(ConfigError, match=r"patience = 2 waits for 'gain' .*; set key_metric_mode"):
        EarlyStopping.of("gain", None, None, 2)
    with pytest.raises(ConfigError, match=r"patience = 2 waits for 'gain' .*; write stop_cond with >= or <="):
        EarlyStopping.of(None, None, "gain = 3", 2)
