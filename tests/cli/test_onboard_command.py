# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that let newcomers join."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.data import Digits
from cfl_flare.data.samples import normalised
from cfl_flare.methods import FedAvg
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import load_run
from tests.joining import kept_files, run_of


def npz(path: Path, size: int = 8, top: int = 9, count: int = 40) -> Path:
    """Digits of one participant in MedMNIST's layout."""
    train, test = Digits().load()
    arrays = {}
    for name, samples in (("train", train), ("test", test)):
        some = samples.take(np.random.default_rng(0).permutation(len(samples))[:count])
        arrays[f"{name}_images"] = np.pad((255 * some.x[:, 0]).astype(np.uint8), ((0, 0), *[(0, size - 8)] * 2))
        arrays[f"{name}_labels"] = np.where(some.y == 9, top, some.y)
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("name", ["wecfl", "fedavg+", "fedavg", "fedper"])
def test_the_command_saves_a_model_that_predicts_as_it_says(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data, out = npz(tmp_path / "own.npz"), tmp_path / "out"
    folder = Path(shutil.copytree(runs(name), tmp_path / "cfl"))
    assert main(["onboard", str(folder), "--data", str(data), "--name", "ward", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert str(out / "model.safetensors") in said
    row = next(line for line in said.splitlines() if line.startswith("ward"))
    assert ("no clusters" in row) == (name != "wecfl")
    assert ("closest in direction" in row) == (name == "wecfl")
    import torch

    arrays = np.load(data)
    model = read_model(out / "model.safetensors")
    x = torch.from_numpy(normalised(arrays["test_images"][:, None]))
    right = (model(x).argmax(1).numpy() == arrays["test_labels"]).mean()
    assert f"{right:.3f}" in row
    assert main(["onboard", str(folder), "--data", str(data), "--name", "ward"]) == 0
    again = read_model(folder / "newcomers" / "ward" / "model.safetensors")
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)
    capsys.readouterr()
    assert main(["onboard", str(folder), "--data", str(data), "--name", "ward"]) == 2
    assert "--name = 'ward': a newcomer of that name has joined" in capsys.readouterr().err


def test_the_command_reads_the_indicator_file(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file = npz(tmp_path / "own.npz"), npz(tmp_path / "indicator.npz", count=400)
    words = ["onboard", str(runs("fedds")), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    wanted = "compares models on 10 indicator samples of each class; name a file with them: --indicator-file"
    assert wanted in capsys.readouterr().err
    assert main([*words, "--indicator-file", str(tmp_path / "nowhere.npz")]) == 2
    assert "nowhere.npz' is not a file" in capsys.readouterr().err
    assert main([*words, "--indicator-file", str(file)]) == 0
    assert "smallest KL divergence" in capsys.readouterr().out


@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """A method of the user's own."""

    name: ClassVar[str] = "mine"


def test_a_class_that_is_not_the_package_s_own_has_to_be_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = run_of(Mine(), tmp_path / "cfl", rounds=1), npz(tmp_path / "own.npz")
    assert main(["onboard", str(folder), "--data", str(data)]) == 2
    assert "the run names tests.cli.test_onboard_command.Mine, which is not cfl_flare's own" in capsys.readouterr().err
    assert not (folder / "newcomers").exists()
    assert main(["onboard", str(folder), "--data", str(data), "--allow", "tests.cli.test_onboard_command.Mine"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"data": partial(npz, size=9)}, r"MLP does not take samples of shape \(1, 9, 9\) .*bring the samples to what"),
        ({"data": partial(npz, top=11)}, r"label 11 does not fit .*\(1, 10\); .*bring the labels to its classes"),
        ({"--name": "a/b"}, r"--name = 'a/b' should be letters"),
        ({"--name": "p1"}, r"'p1' is a participant of the run; give it another name"),
        ({"--out": "."}, r"--out = '.*' is not an empty folder"),
        ({"--rounds": "0"}, r"rounds = 0 should be a whole number >= 1"),
        ({"--indicator-file": "x.npz"}, r"fedavg: needs no indicator samples; leave --indicator-file out"),
        ({"run": "nowhere"}, r"nowhere holds no finished run"),
    ],
)
def test_the_command_refuses(
    runs: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(runs("fedavg"), tmp_path / "cfl"))
    make = words.pop("data", npz)
    run = words.pop("run", str(folder))
    given = [word for pair in words.items() for word in pair]
    before = kept_files(folder)
    assert main(["onboard", run, "--data", str(make(tmp_path / "own.npz")), *given]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said), said
    assert kept_files(folder) == before


def test_a_simulation_s_newcomers_stand_in_the_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--loop", "--rounds", "2", "--method", "wecfl:k=3", "--method", "fedavg", "--out", str(tmp_path)]
    assert main([*words, "--unseen", "0.25"]) == 0
    lines = capfd.readouterr().out.splitlines()
    header = next(line for line in lines if line.startswith("method"))
    column = header.split().index("unseen")
    for run, name in (("fedavg", "fedavg"), ("wecfl-k3", "wecfl")):
        newcomers = load_run(tmp_path / run).newcomers
        assert newcomers is not None
        row = next(line for line in lines if line.startswith(name) and "/2" not in line).replace(" (K=3)", "")
        assert row.split()[column] == f"{newcomers['served_accuracy']:.3f}"
        assert len(newcomers["participants"]) == 6
        assert len(load_run(tmp_path / run).summary["participants"]) == 18
