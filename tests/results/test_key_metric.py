# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of any name: which end is best, what a record makes of them, and which one tells how good a run is."""

import pytest

from cfl_flare.results.metrics import Metric, best_end, is_share, leading, of_training, reported


@pytest.mark.parametrize(
    ("names", "end"),
    [
        (["loss", "val_loss", "val/crossEntropyLoss", "logloss", "train/MAE", "MeanSquaredError", "rmse"], "min"),
        (["brier_score", "HD95", "hd95", "hausdorffDistance", "error_rate", "nll", "relative-error"], "min"),
        (
            ["accuracy", "val_acc", "dice", "DiceScore", "BinaryAUROC", "r2", "R2Score", "c-index", "f1", "macro_f1"],
            "max",
        ),
        (["neg_mean_squared_error", "negLogLikelihood"], "max"),
        (["gain", "lossless_ratio", "mission", "epoch", "x"], None),
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
        ([], ["gain"], Metric("gain")),
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
