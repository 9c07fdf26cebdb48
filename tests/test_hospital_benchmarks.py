# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of real hospitals add: FLamby's data, patients by date, calibration, and who gains."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cfl_flare.core.errors import DataError

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import kept
from common import Cell
from plans import PLANS, hospitals
from plans.plan import own_training
from sources import FLambyHeart, Years

needs_files = pytest.mark.skipif(
    not (Path(os.environ.get("CFL_DATA_ROOT", "")) / "heart/processed.va.data").exists(), reason="no files of patients"
)


# ---- What a row's training has of its own ----


def test_a_row_says_its_own_training_and_the_plan_keeps_its_own() -> None:
    plan = PLANS["stroke"]
    row = plan.of_row("ifca:k=2 + private=bias + train:lr=0.05,rounds=7,hidden=3")
    assert (row.training.lr, row.rounds) == (0.05, 7)
    assert row.model["args"]["hidden"] == [3] and plan.model["args"]["hidden"] == []
    assert plan.method("fedavg + train:lr=0.05 + proximal:mu=1") == ("fedavg", "proximal:mu=1")
    assert own_training(("fedavg", "private=bias")) == {}


def test_the_seed_draws_the_patients_of_the_test_split_too() -> None:
    plan = PLANS["stroke"]
    assert [plan.source_of(seed).seed for seed in (0, 4)] == [0, 4]  # type: ignore[attr-defined]
    assert PLANS["blood"].source_of(4) is PLANS["blood"].source
    config = plan.altered({"measured_on": "validation"}).data("natural", 100)
    assert (config.validation, config.measured_on, config.seed) == (0.25, "validation", 100)


def test_a_servers_optimizer_may_belong_to_a_row() -> None:
    plan = PLANS["flamby-heart"]
    settings = plan.of_row("fedadagrad").scheduled(42)
    assert (settings.server_optimizer, settings.server_lr, settings.num_rounds) == ("adagrad", 0.316228, 15)
    assert plan.of_row("fedavg").scheduled(42).server_optimizer is None
    pooled = plan.of_row("pooled")
    assert pooled.source.pooled and pooled.rounds == 1 and pooled.training.local_epochs == 50  # type: ignore[attr-defined]


# ---- Data ----


@needs_files
def test_flambys_patients_are_as_many_as_it_says() -> None:
    train, test = FLambyHeart().load()
    assert train.key is not None and test.key is not None
    assert np.bincount(train.key).tolist() == [199, 172, 30, 85]
    assert np.bincount(test.key).tolist() == [104, 89, 16, 45]
    # Its constant predictions are right at so many of each hospital's test patients.
    shares = [test.y[test.key == k].mean() for k in range(4)]
    assert np.round(shares, 4).tolist() == [0.4615, 0.3708, 0.9375, 0.7778]


@needs_files
def test_flambys_features_are_scaled_by_each_hospitals_own_training_patients() -> None:
    train, _ = FLambyHeart().load()
    assert train.x.shape[1] == 13 and train.key is not None
    seen = 2 * train.x[train.key == 0] - 1  # as the network sees them
    assert np.allclose(seen.mean(axis=0), 0, atol=1e-5) and np.allclose(seen.std(axis=0, ddof=1), 1, atol=1e-5)
    pooled, _ = FLambyHeart(pooled=True).load()
    assert pooled.key is not None and np.bincount(pooled.key).tolist() == [486] * 4
    assert np.allclose((2 * pooled.x[:486] - 1).mean(axis=0), 0, atol=1e-5)


def test_a_missing_folder_of_patients_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    with pytest.raises(DataError, match=r"processed\.cleveland\.data"):
        FLambyHeart().load()


def test_random_parts_have_the_sizes_of_those_by_date_and_all_their_patients() -> None:
    by_date, at_random = Years().load(), Years(parts="random", seed=3).load()
    for one, other in zip(by_date, at_random):
        assert one.key is not None and other.key is not None
        for a, b in zip(np.unique(one.key, return_counts=True), np.unique(other.key, return_counts=True)):
            assert (a == b).all() and (len(a) == 89)
    assert by_date[0].y.sum() + by_date[1].y.sum() == at_random[0].y.sum() + at_random[1].y.sum()
    assert by_date[0].y.tolist() != at_random[0].y.tolist()
    swapped = Years(swapped=True).load()
    assert np.array_equal(swapped[0].y, by_date[1].y) and np.array_equal(swapped[1].y, by_date[0].y)


# ---- Figures ----


def test_calibration_error_by_hand() -> None:
    counts = np.zeros((1, 2, 200))
    chance = hospitals.probabilities(200)
    low, high = (int(np.abs(chance - p).argmin()) for p in (0.25, 0.75))
    counts[0, :, low], counts[0, :, high] = (3, 1), (2, 2)  # 1 of 4 at 0.25, and 2 of 4 at 0.75
    expected = (abs(1 - 4 * chance[low]) + abs(2 - 4 * chance[high])) / 8
    assert hospitals.calibration_error(counts) == pytest.approx(expected)
    assert hospitals.calibration_error(counts) == pytest.approx(0.125, abs=0.02)
    opposite = counts[:, ::-1, ::-1]  # the other class, whose probabilities are 1 - p
    assert hospitals.calibration_error(opposite) == pytest.approx(expected)


def cell(losses: list[float | None]) -> Cell:
    after: dict[str, Any] = {"hospitals": {"served_loss": losses}}
    return Cell("a", {}, {}, [], after)


def test_hospitals_gain_by_the_mean_of_all_seeds() -> None:
    mine = kept.losses({0: cell([0.2, 0.5, None]), 1: cell([0.5, 0.3, None])})
    theirs = kept.losses({1: cell([0.3, 0.5, None]), 0: cell([0.3, 0.4, None])})
    assert kept.gaining(mine, theirs) == (1, 2)  # 0.35 against 0.3, and 0.4 against 0.45
    assert kept.gaining(mine, mine) == (0, 2)
