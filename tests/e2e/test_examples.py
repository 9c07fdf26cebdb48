# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The examples: every command of their READMEs as it is printed there, with fewer rounds and sites."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cfl_flare.results.run_dir import find_runs

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("blood_cells", "lightning", "unchanged_script")


def commands(example: str) -> list[str]:
    """The README's, which are typed in the example's folder."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (EXAMPLES / example / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.startswith("python job.py")]


def run(example: str, method: str, folder: Path, sites: int) -> str:
    """Runs the README's command with this method, or recipe, in a copy of the example; returns what it printed."""
    (command,) = [line for line in commands(example) if method in line]
    shutil.copytree(EXAMPLES / example, folder, ignore=shutil.ignore_patterns("cfl-runs", "__pycache__"))
    words = [sys.executable, *shlex.split(command)[1:], "--rounds", "2", "--clients", str(sites)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def cluster_of(folder: Path) -> dict[str, int]:
    """Which cluster each site of the only run below a folder is in; all of them were measured."""
    (found,) = find_runs(folder / "cfl-runs")
    assert found.rounds[-1]["failed"] == {}
    assert 0 <= found.summary["final"]["served_accuracy"] <= 1
    return {p["name"]: p["cluster"] for p in found.summary["participants"]}


@pytest.fixture
def blood(data_root):
    if not (data_root / "bloodmnist28.npz").is_file():
        pytest.skip("CFL_DATA_ROOT holds no bloodmnist28.npz")


@pytest.mark.parametrize("example", NAMES)
def test_an_example_is_whole(example):
    assert {"job.py", "client.py", "model.py", "README.md"} <= {p.name for p in (EXAMPLES / example).iterdir()}
    assert commands(example)
    assert not re.search(r"^(from|import) cfl_flare", (EXAMPLES / example / "client.py").read_text(), re.MULTILINE)


def test_what_differs_between_the_recipes_is_what_the_readme_shows():
    folder = EXAMPLES / "unchanged_script"
    ((shown),) = re.findall(r"^```diff\n(.*?)^```$", (folder / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    job = (folder / "job.py").read_text()
    assert all(line[1:].strip() in job for line in shown.splitlines())


@pytest.mark.slow
def test_blood_cells_with_wecfl(blood, tmp_path):
    printed = run("blood_cells", "wecfl:k=2", tmp_path / "example", sites=4)
    assert "wecfl (K=2)" in printed
    cluster = cluster_of(tmp_path / "example")
    assert cluster["site-1"] == cluster["site-3"] != cluster["site-2"] == cluster["site-4"]


@pytest.mark.slow
def test_blood_cells_with_ifca(blood, tmp_path):
    assert "ifca (K=2)" in run("blood_cells", "ifca:k=2", tmp_path / "example", sites=2)
    assert set(cluster_of(tmp_path / "example")) == {"site-1", "site-2"}


@pytest.mark.slow
def test_lightning_with_ifca(blood, tmp_path):
    pytest.importorskip("pytorch_lightning")
    assert "ifca (K=2)" in run("lightning", "ifca:k=2", tmp_path / "example", sites=2)
    assert set(cluster_of(tmp_path / "example")) == {"site-1", "site-2"}


@pytest.mark.slow
def test_a_script_for_flare_s_own_recipe(tmp_path):
    printed = run("unchanged_script", "--recipe fedavg", tmp_path / "example", sites=2)
    result = tmp_path / "example" / re.findall(r"^results: (.*)$", printed, re.MULTILINE)[-1]
    assert list(result.rglob("FL_global_model.pt"))


@pytest.mark.slow
def test_the_same_script_clustered(tmp_path):
    assert "wecfl (K=2)" in run("unchanged_script", "--recipe clustered", tmp_path / "example", sites=2)
    cluster = cluster_of(tmp_path / "example")
    assert cluster["site-1"] != cluster["site-2"]
