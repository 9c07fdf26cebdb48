# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The examples: commands of their READMEs as they are printed there, with fewer rounds and sites; and the tutorial."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cfl_flare import __version__, find_runs

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RESEARCH = ROOT / "contrib" / "research" / "clustered-fl"
NAMES = ("blood_cells", "heart", "lightning", "lora", "segmentation", "survival", "unchanged_script")
FOLDERS = [*(EXAMPLES / name for name in NAMES), RESEARCH]
FEW = ("--rounds", "2")
SECTIONS = (
    "Abstract",
    "Objective",
    "Setup",
    "Run Instructions",
    "Expected Results",
    "License",
    "Requirements",
    "Citation",
)


def list_commands(folder: Path) -> list[str]:
    """The README's, which are typed in the example's folder."""
    blocks = re.findall(r"^```(?:sh|bash)\n(.*?)^```$", (folder / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.startswith("python job.py")]


def run_example(source: Path, method: str, folder: Path, *options: str) -> str:
    """Runs the README's command with this method, or recipe, in a copy of the example; returns what it printed."""
    (command,) = [line for line in list_commands(source) if method in line]
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("cfl-runs", "__pycache__"))
    words = [sys.executable, *shlex.split(command)[1:], *options]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def cluster_of(folder: Path, metric: str = "accuracy") -> dict[str, int]:
    """Which cluster each site of the only run below a folder is in; all of them were measured."""
    (found,) = find_runs(folder / "cfl-runs")
    assert found.rounds[-1]["failed"] == {}
    assert 0 <= found.summary["final"][f"served_{metric}"] <= 1
    return {p["name"]: p["cluster"] for p in found.summary["participants"]}


def two_groups(cluster: dict[str, int]) -> bool:
    """Whether sites with odd and with even numbers are in one cluster each."""
    return cluster["site-1"] == cluster["site-3"] != cluster["site-2"] == cluster["site-4"]


@pytest.fixture
def blood_images(data_root):
    if not (data_root / "bloodmnist28.npz").is_file():
        pytest.skip("CFL_DATA_ROOT holds no bloodmnist28.npz")


def test_every_example_is_listed():
    assert {path.parent.name for path in EXAMPLES.glob("*/job.py")} == set(NAMES)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_example_is_whole(folder):
    assert {"job.py", "client.py", "model.py", "README.md"} <= {p.name for p in folder.iterdir()}
    assert list_commands(folder)
    assert not re.search(r"^(from|import) cfl_flare", (folder / "client.py").read_text(), re.MULTILINE)


def test_the_research_folder_keeps_flare_s_conventions():
    assert re.fullmatch(r"[a-z0-9-]{1,35}", RESEARCH.name)
    text = (RESEARCH / "README.md").read_text()
    assert text.startswith("# ")
    assert set(SECTIONS) <= set(re.findall(r"^## (.*)$", text, re.MULTILINE))
    assert "```bibtex" in text
    (flare,) = re.findall(r'"(nvflare[^"]+)"', (ROOT / "pyproject.toml").read_text())
    major, minor = map(int, __version__.split(".")[:2])
    ours = f"cfl-flare>={__version__},<{major}.{minor + 1}"
    assert (RESEARCH / "requirements.txt").read_text().splitlines() == [flare, ours]


def test_what_differs_between_the_recipes_is_what_the_readme_shows():
    folder = EXAMPLES / "unchanged_script"
    ((shown),) = re.findall(r"^```diff\n(.*?)^```$", (folder / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    job = (folder / "job.py").read_text()
    assert all(line[1:].strip() in job for line in shown.splitlines())


@pytest.mark.slow
def test_blood_cells_with_wecfl(blood_images, tmp_path):
    folder = tmp_path / "example"
    assert "wecfl (K=2)" in run_example(EXAMPLES / "blood_cells", "wecfl:k=2", folder, *FEW, "--clients", "4")
    assert two_groups(cluster_of(folder))


@pytest.mark.slow
def test_blood_cells_with_ifca(blood_images, tmp_path):
    folder = tmp_path / "example"
    assert "ifca (K=2)" in run_example(EXAMPLES / "blood_cells", "ifca:k=2", folder, *FEW, "--clients", "2")
    assert set(cluster_of(folder)) == {"site-1", "site-2"}


@pytest.mark.slow
def test_lightning_with_ifca(blood_images, tmp_path):
    pytest.importorskip("pytorch_lightning")
    folder = tmp_path / "example"
    assert "ifca (K=2)" in run_example(EXAMPLES / "lightning", "ifca:k=2", folder, *FEW, "--clients", "2")
    assert set(cluster_of(folder)) == {"site-1", "site-2"}


@pytest.mark.slow
def test_a_script_for_flare_s_own_recipe(tmp_path):
    folder = tmp_path / "example"
    printed = run_example(EXAMPLES / "unchanged_script", "--recipe fedavg", folder, *FEW, "--clients", "2")
    result = folder / re.findall(r"^results: (.*)$", printed, re.MULTILINE)[-1]
    assert list(result.rglob("FL_global_model.pt"))


@pytest.mark.slow
def test_the_same_script_clustered(tmp_path):
    folder = tmp_path / "example"
    assert "wecfl (K=2)" in run_example(
        EXAMPLES / "unchanged_script", "--recipe clustered", folder, *FEW, "--clients", "2"
    )
    cluster = cluster_of(folder)
    assert cluster["site-1"] != cluster["site-2"]


@pytest.mark.slow
def test_heart_disease_of_four_hospitals(tmp_path):
    folder = tmp_path / "example"
    assert "wecfl (K=2)" in run_example(EXAMPLES / "heart", "wecfl:k=2", folder, *FEW)
    assert set(cluster_of(folder)) == {"cleveland", "hungary", "switzerland", "long-beach"}
    done = subprocess.run([sys.executable, "compare.py"], cwd=folder, capture_output=True, text=True, timeout=100)
    rows = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert rows == ["accuracy / AUC", "wecfl (K=2)", "majority class", "alone"], done.stderr


@pytest.mark.slow
def test_segmentation_with_two_scanners(tmp_path):
    pytest.importorskip("monai", reason="the segmentation example needs monai, of the extra 'examples'")
    folder = tmp_path / "example"
    assert "wecfl (K=2)" in run_example(EXAMPLES / "segmentation", "wecfl:k=2", folder, *FEW)
    assert two_groups(cluster_of(folder, "dice"))


@pytest.mark.slow
def test_survival_in_numpy(tmp_path):
    folder = tmp_path / "example"
    assert "wecfl (K=2)" in run_example(EXAMPLES / "survival", "wecfl:k=2", folder, *FEW, "--clients", "2")
    assert set(cluster_of(folder, "c_index").values()) == {0, 1}


@pytest.mark.slow
def test_adapters_of_a_transformer(tmp_path):
    pytest.importorskip("peft", reason="the LoRA example needs peft, of the extra 'examples'")
    folder = tmp_path / "example"
    assert "wecfl (K=2)" in run_example(EXAMPLES / "lora", "wecfl:k=2", folder, *FEW, "--clients", "2")
    assert set(cluster_of(folder).values()) == {0, 1}
    (found,) = find_runs(folder / "cfl-runs")
    assert found.rounds[-1]["bytes_up"] == 2 * 4 * 2_178, "what travels is not the adapters and the classifier"


@pytest.mark.slow
def test_the_research_folder(tmp_path):
    folder = tmp_path / "example"
    options = ("--num_clients", "2", "--num_rounds", "2", "--workspace", "cfl-runs")
    assert "ifca (K=2)" in run_example(RESEARCH, "ifca:k=2", folder, *options)
    assert set(cluster_of(folder)) == {"site-1", "site-2"}


@pytest.mark.slow
def test_the_tutorial(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="the tutorial needs nbclient, of the extra 'examples'")
    nbformat = pytest.importorskip("nbformat")
    shutil.copytree(
        EXAMPLES / "unchanged_script", tmp_path / "unchanged_script", ignore=shutil.ignore_patterns("cfl-runs")
    )
    notebook = nbformat.read(EXAMPLES / "tutorial.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) == 5
    assert not any(cell.outputs for cell in code), "outputs hold the paths of the machine that ran it"
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    said = "".join(output.get("text", "") for output in code[4].outputs)
    rows = re.findall(r"site-\d, in cluster (\d): FedAvg \S+, cluster 0 (\S+), cluster 1 (\S+)", said)
    assert len(rows) == 4
    assert all(float(row[1 + int(row[0])]) > float(row[2 - int(row[0])]) + 0.3 for row in rows), said
