# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Real jobs in a proof-of-concept deployment: provisioned server and sites as processes of their own."""

import re
import time
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.prod_env import ProdEnv

from cfl_flare.data import Digits
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.models import MLP
from cfl_flare.results.run_dir import load_run
from tests.e2e.deployment import TRUSTING, commands_with

pytestmark = pytest.mark.slow


@pytest.fixture
def poc(tmp_path, monkeypatch):
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    env = PocEnv(num_clients=2, extra={"login_timeout": 120})  # the server may take long to start on a busy machine
    yield env
    env.stop()
    gone(str(tmp_path))
    env.stop(clean_up=True)


SLOW = """
import time
from cfl_flare.models import MLP


class SlowMLP(MLP):
    # An MLP whose training step takes a fifth of a second.
    def forward(self, x):
        if self.training:
            time.sleep(0.2)
        return super().forward(x)
"""


def gone(workspace: str) -> None:
    """Waits for the processes of a stopped POC: each POC's server has the same port, and certificates of its own."""
    _, stubborn = psutil.wait_procs(commands_with(workspace), timeout=60)
    for process in stubborn:
        process.kill()
    psutil.wait_procs(stubborn)


def recipe(**settings) -> ClusteredRecipe:
    values = {"name": "poc", "method": "wecfl:k=3", "model": MLP((1, 8, 8), 10), "data": Digits(), "participants": 6}
    values |= {"partition": "label_permutation:groups=3", "num_rounds": 3, "min_clients": 2}
    values |= {"training": {"lr": 0.05}}
    return ClusteredRecipe(**{**values, **settings})


def test_the_recipe_of_the_simulator_runs_in_a_poc_and_a_later_job_is_aborted(poc, tmp_path, monkeypatch):
    (tmp_path / "slow_mlp.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    run = recipe().execute(poc)
    assert poc.get_job_result(run.job_id, timeout=300)
    (kit,) = (tmp_path / "poc").glob(f"*/prod_00/{poc.username}")
    aborted_within_five_seconds(kit, poc.username, tmp_path / "poc")
    result = Path(run.get_result(timeout=300, clean_up=False))
    found = load_run(next(result.rglob("summary.json")).parent)
    assert found.summary["rounds"] == 3
    assert found.summary["final"]["ari"] == 1.0
    assert {p["site"] for p in found.summary["participants"]} == {"site-1", "site-2"}
    assert next(result.rglob("metrics_summary.json")).is_file()


def aborted_within_five_seconds(kit: Path, username: str, workspace: Path) -> None:
    """A round of this model takes 3 participants x 100 steps x 0.2 s = a minute a site."""
    model = {"class_path": "slow_mlp.SlowMLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
    job = recipe(name="slow", model=model, training={"local_steps": 100}, num_rounds=2, byoc=True, **TRUSTING)
    run = job.execute(ProdEnv(str(kit), login_timeout=120, username=username))
    logs = {}
    deadline = time.monotonic() + 240
    while len(logs) < 2 and time.monotonic() < deadline:
        found = [p for p in workspace.glob(f"**/site-*/{run.job_id}/log.txt") if "name=train" in p.read_text()]
        logs = {p.parents[1].name: p for p in found}
        time.sleep(0.5)
    time.sleep(3)  # into the round
    session = new_secure_session(username, str(kit), timeout=120)
    aborted = datetime.now()
    session.abort_job(run.job_id)
    session.close()
    ends = []
    while len(ends) < 2 and time.monotonic() < deadline + 60:
        ends = [m for p in logs.values() if (m := re.search(r"(\S+ \S+),\d+ .*aborted while p", p.read_text()))]
        time.sleep(0.5)
    waits = [(datetime.fromisoformat(m[1]) - aborted).total_seconds() for m in ends]
    assert len(waits) == 2
    assert max(waits) < 5
