# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run was still improving when it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import FedAvg
from cfl_flare.report.facts import head
from cfl_flare.report.page import View
from cfl_flare.report.table import results_table
from cfl_flare.results.metrics import Metric
from cfl_flare.results.remarks import gain_at_end, improving
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from tests.loop import run_loop
from tests.play import MODEL


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
def test_a_run_says_it_in_summary_table_report_and_log(
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
    places = (str(results_table([run]).caption), " ".join(head(View(run)).text), caplog.text)
    assert [("not converged: " in text) for text in places] == [said] * 3
