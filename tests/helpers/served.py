# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The models that a run serves its participants, and a participant's own digits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cfl_flare import load_model
from cfl_flare.data import DataConfig, DataSource, Digits
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.runtime import Split
from cfl_flare.training.settings import TrainSettings


def check_reported(folder: Path, served: Path | None = None, source: DataSource | None = None) -> None:
    """Every participant's own model measures on its own test split what the run reported of it.

    Args:
        folder: the run's.
        served: where the participants' models are, if not there.
        source: what was dealt out; None for digits.
    """
    summary = load_run(folder).summary
    task, data = TrainSettings(**summary["training"]).built_task(), DataConfig(**summary["data"])
    hosted = {one.name: one for one in data.host(source or Digits(), "local", 0, 1)}
    assert len(hosted) == len(summary["participants"]) > 1
    for reported in summary["participants"]:
        split = Split.of(hosted[reported["name"]].test.x, hosted[reported["name"]].test.y, task=task)
        with torch.no_grad():
            measured = task.measured(load_model(served or folder, participant=reported["name"])(split.x), split.y)
        assert measured
        for name, value in measured.items():
            assert reported[f"served_{name}"] == pytest.approx(value, abs=1e-5), (reported["name"], name)


def write_digits_npz(path: Path, size: int = 8, top: int = 9, count: int = 40) -> Path:
    """Digits of one participant in MedMNIST's layout."""
    train, test = Digits().load()
    arrays = {}
    for name, samples in (("train", train), ("test", test)):
        some = samples.take(np.random.default_rng(0).permutation(len(samples))[:count])
        arrays[f"{name}_images"] = np.pad((255 * some.x[:, 0]).astype(np.uint8), ((0, 0), *[(0, size - 8)] * 2))
        arrays[f"{name}_labels"] = np.where(some.y == 9, top, some.y)
    np.savez(path, **arrays)
    return path
