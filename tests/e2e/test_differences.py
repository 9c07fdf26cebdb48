# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Four provisioned hospitals with a floor of three: what they make of a job that leaves one of them out."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfl_flare.cli import main
from cfl_flare.data import SiteData
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.models import Logistic
from tests.e2e.deployment import SERVER, Deployment, deployed, hospitals

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> Iterator[Deployment]:
    source = Path(os.environ.get("CFL_DATA_ROOT", "")) / "bloodmnist28.npz"
    if not os.environ.get("CFL_DATA_ROOT") or not source.is_file():
        pytest.skip("CFL_DATA_ROOT holds no bloodmnist28.npz")
    folder = tmp_path_factory.mktemp("four")
    yield from deployed(folder, hospitals(source, folder / "data", count=4, train=60, test=40))


def submitted(trial: Deployment, name: str, sites: list[str], seed: int = 0) -> tuple[str, Path]:
    """How a job ended that its author sends to these sites, and the server's run directory."""
    model = Logistic((3, 14, 14), 8)
    common = {"num_rounds": 1, "min_clients": len(sites), "training": {"lr": 0.05}, "task_timeout": 240, "seed": seed}
    recipe = ClusteredRecipe(name=name, method="fedavg", model=model, data=SiteData(), **common)
    recipe.export(str(trial.folder / "jobs"))
    meta = trial.folder / "jobs" / name / "meta.json"
    content = json.loads(meta.read_text())
    (app,) = content["deploy_map"]
    meta.write_text(json.dumps({**content, "deploy_map": {app: ["server", *sites]}}))
    return trial.run(trial.folder / "jobs" / name)


def operator(trial: Deployment, site: str, *words: str) -> str:
    """What a command prints that an operator types beside the kit."""
    command = [sys.executable, "-c", "import sys; from cfl_flare.cli import main; sys.exit(main())", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=trial.env(site), cwd=trial.kits / site)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_job_without_one_of_the_sites_runs_once_the_operators_allow_it(four):
    for site in four.sites:
        assert main(["site", "prepare", str(four.kits / site), "--no-keep-logs", "--min-sites-per-cluster", "3"]) == 0
    ended, _ = submitted(four, "heart", four.sites)
    assert ended == "FINISHED:COMPLETED"
    left = four.sites[:3]
    ended, results = submitted(four, "lungs", left)
    assert ended != "FINISHED:COMPLETED" and not list((results / "cfl").glob("**/*.safetensors"))
    said = (results / "log.txt").read_text()
    assert "difference: its earlier jobs had almost the same sites" in said
    assert "hospital-4" not in said  # a site that is not in the job, and no site of it says who it was
    for site in left:
        log = "".join(path.read_text() for path in (four.kits / site).glob("*/log.txt"))
        (command,) = set(re.findall(r"the model of hospital-4 alone follows .*run 'cfl-flare (site allow \S+)'", log))
        assert "lungs" in operator(four, site, "site", "runs") and "allowed" in operator(four, site, *command.split())
        assert "heart" in operator(four, site, "site", "runs")
    ended, _ = submitted(four, "lungs", left, seed=1)
    assert ended == "FINISHED:COMPLETED"
    assert (four.state_root(SERVER) / "lungs").is_dir()
