# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Runs in process that are killed after a round and go on, and the comparison of two runs' results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.methods import Method
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import Store
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop

MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [8]}}
PARTITION = {"partition": "label_permutation", "groups": 2}
DATA = DataConfig(4, PARTITION)
ROUNDS = 8
TRAINING = TrainSettings(lr=0.1, local_steps=3, keep_momentum=True)


class Stopped(Exception):
    """Stands for a killed process."""


def run_until(
    method: Method,
    folder: Path | None,
    checkpoints: Path | None = None,
    stop_at: int | None = None,
    training: TrainSettings = TRAINING,
    data: DataConfig = DATA,
    **more: Any,
) -> Server:
    """Run eight rounds, or raise `Stopped` when the round ``stop_at`` has been measured."""

    def stop(measured: RoundMetrics) -> None:
        if measured.record["round"] == stop_at:
            raise Stopped

    settings = {"seed": 3, **more}
    return run_loop(
        method=method,
        model=MODEL,
        source=Digits(),
        data=data,
        settings=ServerSettings(ROUNDS, **settings),
        training=training,
        folder=folder,
        on_round=stop,
        checkpoints=None if checkpoints is None else Store(checkpoints),
        checkpoint_every=3,
    )


def read_results(folder: Path) -> tuple[Any, Any, Any]:
    """Rounds, assignments with the summary, and models of a run, without its seconds."""
    run = load_run(folder)
    for record in (*run.rounds, run.summary, run.summary["final"]):
        record["seconds"] = 0
    models = {path.name: load_arrays(path) for path in sorted((folder / "clusters").glob("*"))}
    return run.rounds, (run.assignments, run.summary), models


def read_models(folder: Path, pattern: str = "*.safetensors") -> dict[str, dict[str, np.ndarray]]:
    """The arrays of a folder's models, by the path of their file in it without the ending."""
    files = sorted(folder.glob(pattern))
    return {str(path.relative_to(folder).with_suffix("")): load_arrays(path)[0] for path in files}


def assert_same_models(
    found: Mapping[str, Mapping[str, np.ndarray]], expected: Mapping[str, Mapping[str, np.ndarray]], atol: float = 0.0
) -> None:
    """Two sets of models have the same names and arrays, bit for bit or within a tolerance."""
    assert found.keys() == expected.keys() != set()
    for name, arrays in expected.items():
        for key, array in arrays.items():
            np.testing.assert_allclose(found[name][key], array, rtol=atol / 10, atol=atol, err_msg=f"{name} {key}")


def assert_same_runs(server: Server, other: Server, folder: Path, other_folder: Path) -> None:
    """Two runs have the same files and the same state, bit for bit."""
    rounds, texts, models = read_results(folder)
    other_rounds, other_texts, other_models = read_results(other_folder)
    assert rounds == other_rounds
    assert texts == other_texts
    assert models.keys() == other_models.keys()
    for name, (arrays, meta) in models.items():
        assert meta == other_models[name][1]
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, other_models[name][0][key])
    assert server.state.assignment == other.state.assignment
    np.testing.assert_equal(server.state.extras, other.state.extras)
    assert list(server.state.bank) == list(other.state.bank)
    for slot, params in server.state.bank.items():
        np.testing.assert_array_equal(params.vector, other.state.bank[slot].vector)
