# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Newcomers to a run that went through FLARE's simulator, by the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import DataConfig, Digits
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import Run, load_run
from tests.cli.test_predict import check_reported

pytestmark = pytest.mark.slow


@pytest.fixture
def cfl(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command and returns what it printed."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: str) -> str:
        status, printed = main(words), capfd.readouterr()
        assert status == 0, printed
        return printed.out

    return run


def test_held_back_from_the_simulator_and_onboarded_to_what_it_left(cfl: Callable[..., str], tmp_path: Path) -> None:
    words = [
        "--method",
        "wecfl:k=3",
        "--rounds",
        "4",
        "--unseen",
        "0.25",
        "--participants",
        "12",
        "--local-epochs",
        "5",
        "--private",
        "bias",
    ]
    said = cfl("run", *words, "--out", str(tmp_path / "flare"))
    cfl("run", "--loop", *words, "--out", str(tmp_path / "loop"))
    flare, loop = (load_run(tmp_path / name / "wecfl-k3") for name in ("flare", "loop"))
    assert flare.newcomers == loop.newcomers
    assert flare.newcomers is not None
    assert f"{flare.newcomers['served_accuracy']:.3f}" in said
    assert flare.summary["final"]["ari"] == 1
    assert len(flare.summary["participants"]) == 9
    cluster_of = cluster_of_group(flare)
    check_reported(flare.folder)
    assert [p["cluster"] for p in flare.newcomers["participants"]] == [
        cluster_of[p["group"]] for p in flare.newcomers["participants"]
    ]

    # One of them as a participant of its own, from a file.
    newcomer = DataConfig(**flare.summary["data"]).newcomers(Digits())[0]
    arrays = {}
    for split in ("train", "test"):
        samples = getattr(newcomer, split)
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = (samples.x[:, 0] + 1) / 2, samples.y
    np.savez(tmp_path / "own.npz", **arrays)
    said = cfl("onboard", str(flare.folder), "--data", str(tmp_path / "own.npz"), "--name", newcomer.name)
    expected = flare.newcomers["participants"][0]
    row = next(line for line in said.splitlines() if line.startswith(newcomer.name)).split()
    assert row[1] == str(expected["cluster"])
    assert row[-2] == f"{expected['served_accuracy']:.3f}"
    path = flare.folder / "newcomers" / newcomer.name / "model.safetensors"
    model = read_model(path)(torch.from_numpy(newcomer.test.x)).argmax(1).numpy()
    assert np.mean(model == newcomer.test.y) == pytest.approx(expected["served_accuracy"])
    mine = load_arrays(path)[0]
    theirs = load_arrays(flare.folder / "clusters" / f"cluster-{expected['cluster']}.safetensors")[0]
    for name, array in mine.items():
        assert (array == theirs[name]).all() != name.endswith("bias")  # its private layers are its own


def cluster_of_group(run: Run) -> dict[int, int]:
    return {p["group"]: p["cluster"] for p in run.summary["participants"]}
