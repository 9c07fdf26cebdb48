# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A contributor's method, as docs/add-a-method.md has it: a user's file that clusters by label histograms."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import build_method
from cfl_flare.results.store import Store
from cfl_flare.training.settings import TrainSettings
from tests.joining import MODEL
from tests.loop import run_loop
from tests.results.test_checkpoints import Stopped

GUIDE = Path(__file__).parents[1] / "docs" / "add-a-method.md"
METHOD = "histograms.ByLabels:k=3,classes=10"
RUN = ["--participants", "9", "--partition", "cluster_n_class:groups=3", "--method", METHOD, "--rounds", "3"]


def code() -> str:
    """The second Python block of the guide."""
    return re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)[1]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's file, from which modules are imported."""
    (tmp_path / "histograms.py").write_text(code())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "histograms", raising=False)
    return tmp_path


def cfl(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "cfl_flare.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def the_run(folder: Path) -> Path:
    (found,) = folder.glob("by-labels*")
    return found


def check_results(run: Path) -> None:
    """The groups were found by the histograms; analysis, figures and models are there, and no histogram is a model."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["final"]["ari"] == 1
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert rounds[0]["clusterability"] == [None] * 3  # nobody moved a model in it
    assert rounds[0]["objective"] > 0
    assert rounds[0]["bytes_up"] == 9 * 10 * 4 or rounds[0]["bytes_up"] == 9 * 10 * 8
    assert rounds[1]["intra_cosine"] > rounds[1]["inter_cosine"]
    assert {p.name for p in run.glob("*.png")} == {"accuracy.png", "cluster_sizes.png", "flows.png", "analysis.png"}
    assert {p.stem for p in (run / "clusters").iterdir()} == {"global", *(f"cluster-{k}" for k in range(3))}
    assert "histogram" not in str(load_arrays(run / "clusters" / "cluster-0.safetensors")[0].keys())


def test_it_is_short_and_uses_nothing_private() -> None:
    text = code()
    assert len(text.splitlines()) <= 60
    private = [n.attr for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute) and n.attr.startswith("_")]
    assert private == []


def test_in_the_loop_with_figures_and_newcomers(user: Path) -> None:
    cfl(user, "run", "--loop", "--keep-features", "--out", "out", *RUN)
    run = the_run(user / "out")
    check_results(run)
    assert len(list((run / "features").iterdir())) == 3
    images = Digits().load()[0]
    few = [i for i in range(len(images.y)) if images.y[i] in (0, 1, 2)][:60]
    splits = {"train": few[:40], "test": few[40:]}
    arrays = {f"{s}_images": (images.x[i][:, 0] * 255).astype(np.uint8) for s, i in splits.items()}
    np.savez(user / "ward.npz", **arrays, **{f"{s}_labels": images.y[i] for s, i in splits.items()})
    cfl(user, "onboard", str(run), "--data", "ward.npz", "--allow", "histograms.ByLabels")
    assert (run / "newcomers" / "newcomer" / "model.safetensors").is_file()


def test_a_stopped_run_goes_on_to_the_same_end(user: Path) -> None:
    method = build_method({"method": "histograms.ByLabels", "k": 3, "classes": 10})
    settings = {
        "method": method,
        "model": MODEL,
        "source": Digits(),
        "data": DataConfig(9, {"partition": "cluster_n_class", "groups": 3}),
        "settings": ServerSettings(4, sample=5),
        "training": TrainSettings(lr=0.1, local_steps=3),
    }
    whole = run_loop(**settings)

    def stop(measured) -> None:
        if measured.record["round"] == 1:
            raise Stopped

    store = Store(user / "checkpoints")
    with pytest.raises(Stopped):
        run_loop(**settings, checkpoints=store, checkpoint_every=1, on_round=stop, folder=user / "run")
    resumed = run_loop(**settings, checkpoints=store, checkpoint_every=1, folder=user / "run")
    assert resumed.state.assignment == whole.state.assignment
    assert resumed.state.arrays.keys() == whole.state.arrays.keys() != set()
    for name, array in whole.state.arrays.items():
        np.testing.assert_array_equal(resumed.state.arrays[name], array)
    for slot, model in whole.state.bank.items():
        np.testing.assert_array_equal(resumed.state.bank[slot].vector, model.vector)


@pytest.mark.slow
def test_through_flare_it_ends_as_in_the_loop(user: Path) -> None:
    cfl(user, "run", "--loop", "--out", "loop", *RUN)
    cfl(user, "run", "--out", "flare", *RUN)
    loop, flare = the_run(user / "loop"), the_run(user / "flare")
    check_results(flare)
    assert (flare / "assignments.jsonl").read_text() == (loop / "assignments.jsonl").read_text()
    for path in (loop / "clusters").iterdir():
        one, other = load_arrays(path)[0], load_arrays(flare / "clusters" / path.name)[0]
        for name, array in one.items():
            np.testing.assert_array_equal(other[name], array)
