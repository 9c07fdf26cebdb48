# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs in deployments that this file starts itself: a POC, a killed server's, and one without room on its disk."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.prod_env import ProdEnv

from cfl_flare.cli import main
from cfl_flare.data import Digits, SiteData
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.models import MLP, Logistic
from cfl_flare.results.run_dir import load_run
from tests.e2e.deployment import (
    GUIDE,
    SERVER,
    TRUSTING,
    Deployment,
    commands_with,
    deployed,
    find_blood_images,
    until,
    write_hospitals,
)
from tests.helpers.processes import can_mount, on_small_disk

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ghost_trial(tmp_path_factory) -> Iterator[Deployment]:
    """A deployment of its own, whose server is killed."""
    source = find_blood_images()
    folder = tmp_path_factory.mktemp("ghost")
    yield from deployed(folder, write_hospitals(source, folder / "data", count=2))


def export_ghost_job(trial: Deployment, name: str, rounds: int) -> Path:
    model, settings = Logistic((3, 14, 14), 8), {"min_clients": 2, "task_timeout": 240, **TRUSTING}
    recipe = ClusteredRecipe(name=name, method="fedavg", model=model, data=SiteData(), num_rounds=rounds, **settings)
    recipe.export(str(trial.folder / "jobs"))
    return trial.folder / "jobs" / name


def store(trial: Deployment) -> Path:
    """The job store, as the guide says where it is named."""
    resources = json.loads((trial.kits / SERVER / "local" / "resources.json").read_text())
    (manager,) = (c for c in resources["components"] if c["id"] == "job_manager")
    return Path(manager["args"]["uri_root"])


@pytest.mark.parametrize("who", ["hospital-2", SERVER])
def test_the_author_learns_whose_kit_is_not_prepared(ghost_trial, capsys, who):
    """FLARE refuses the job's components there, before any of cfl_flare's code runs, and ends the job."""
    resources = ghost_trial.kits / who / "local" / "resources.json"
    prepared = resources.read_text()
    content = json.loads(prepared)
    content["class_allow_list"] = [path for path in content["class_allow_list"] if not path.startswith("cfl_flare.")]
    resources.write_text(json.dumps(content))
    try:
        ended, results = ghost_trial.run(export_ghost_job(ghost_trial, f"without-{who}", 2))
    finally:
        resources.write_text(prepared)
    assert ended != "FINISHED:COMPLETED"
    assert main(["show", str(results.parent)]) == 1
    said = capsys.readouterr().out
    if who == SERVER:
        assert "the server's kit does not allow cfl_flare.flare.controller.ClusteredController" in said
    else:
        # FLARE ends the job at once: the server may hear why, or not hear the site at all.
        assert f"without-{who}: no results" in said and "cfl-flare site check --kit KIT" in said
        assert re.search(f"- {who}: its job process (ended|gave no sign)", said)


def test_where_flare_keeps_a_job_and_what_it_deletes(ghost_trial):
    default = json.loads((ghost_trial.kits / SERVER / "local" / "resources.json.default").read_text())
    (manager,) = (c for c in default["components"] if c["id"] == "job_manager")
    assert (
        manager["args"]["uri_root"] == "/tmp/nvflare/jobs-storage"
        and "`/tmp/nvflare/jobs-storage`" in GUIDE.read_text()
    )
    with ghost_trial.session() as session:
        job_id = session.submit_job(str(export_ghost_job(ghost_trial, "short", 2)))
        ended, _ = ghost_trial.wait(session, job_id)
    assert ended == "FINISHED:COMPLETED"
    for site in ghost_trial.sites:  # a site's folder of the job stays, with its log
        assert "worked for 1 participants" in (ghost_trial.kits / site / job_id / "log.txt").read_text()
        assert (ghost_trial.kits / site / "log.txt").is_file()
    until("the server to delete its folder of the job", lambda: not (ghost_trial.kits / SERVER / job_id).exists())
    assert (store(ghost_trial) / job_id / "workspace").is_file()


def test_a_job_that_stays_at_running_is_removed_as_the_guide_says(ghost_trial):
    with ghost_trial.session() as session:
        job_id = session.submit_job(str(export_ghost_job(ghost_trial, "ghost", 1000)))
        until("a round", lambda: ghost_trial.rounds("ghost") > 0)
    ghost_trial.kill(SERVER)
    ghost_trial.start(SERVER)
    ghost_trial.until_connected()
    with ghost_trial.session() as session:
        assert session.get_job_meta(job_id)["status"] == "RUNNING"
        for command, reason in ((session.abort_job, "is not running"), (session.delete_job, "is still running")):
            with pytest.raises(Exception, match=reason):
                command(job_id)
        assert session.get_job_meta(job_id)["status"] == "RUNNING"
        (edit,) = re.findall(r"^(sed -i .*) <job store>/<job id>/meta$", GUIDE.read_text(), flags=re.MULTILINE)
        subprocess.run(f"{edit} {store(ghost_trial)}/{job_id}/meta", shell=True, check=True)
        assert session.get_job_meta(job_id)["status"] == "FINISHED:ABNORMAL"
        session.delete_job(job_id)
        assert job_id not in [one["job_id"] for one in session.list_jobs()]
    assert not (store(ghost_trial) / job_id).exists()
    ended, _ = ghost_trial.run(export_ghost_job(ghost_trial, "next", 1))
    assert ended == "FINISHED:COMPLETED"


# ---- A job whose state root is a disk that fills up ----


RUN = """
import os, sys
os.environ["CFL_STATE_ROOT"] = sys.argv[1]
from cfl_flare.cli import main
words = "run --sites 2 --participants 3 --rounds 3 --method ditto --model mlp:hidden=[200]".split()
sys.exit(main([*words, "--out", {out!r}]))
"""


@pytest.mark.skipif(not can_mount(), reason="this user may not mount a file system")
def test_a_job_ends_well_without_room_for_checkpoints_and_memories(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    done = on_small_disk(tmp_path / "state", RUN.format(out=str(tmp_path / "out")), 40)  # a model has 60 kB
    assert done.returncode == 0, done.stdout + done.stderr
    run = load_run(tmp_path / "out" / "ditto")
    assert len(run.rounds) == 3 and not any(line["failed"] for line in run.rounds)
    assert (tmp_path / "out" / "ditto" / "accuracy.png").is_file()
    log = (tmp_path / "out" / "ditto" / "flare.log").read_text()
    path = tmp_path / "state" / "ditto" / "simulator_server"
    for number in (1, 2, 3):
        assert f"no checkpoint after round {number}: cannot write {path}/round-{number:06d}.safetensors: " in log
    assert log.count("writing what participants remember failed: disk") >= 4
    assert "No space left on device; free space on its disk, or use another one; meanwhile, a run would resume" in log


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


def make_poc_recipe(**settings) -> ClusteredRecipe:
    values = {"name": "poc", "method": "wecfl:k=3", "model": MLP((1, 8, 8), 10), "data": Digits(), "participants": 6}
    values |= {"partition": "label_permutation:groups=3", "num_rounds": 3, "min_clients": 2}
    values |= {"training": {"lr": 0.05}}
    return ClusteredRecipe(**{**values, **settings})


def test_the_recipe_of_the_simulator_runs_in_a_poc_and_a_later_job_is_aborted(poc, tmp_path, monkeypatch):
    (tmp_path / "slow_mlp.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    run = make_poc_recipe().execute(poc)
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
    job = make_poc_recipe(name="slow", model=model, training={"local_steps": 100}, num_rounds=2, byoc=True, **TRUSTING)
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
