# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Three hospitals and a server, provisioned and started as operators do it: faults and resuming."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import Npz, SiteData
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.models import MLP, Logistic
from cfl_flare.results.run_dir import Run, load_run
from cfl_flare.results.served import load_model
from cfl_flare.training.privacy import Spend, epsilon_of, rdp_of
from tests.e2e.deployment import ADMIN, COARSE, SERVER, TRUSTING, Deployment, until
from tests.helpers.resumed import assert_same_models, read_models

pytestmark = pytest.mark.slow
ROUNDS, LATE = 16, "hospital-3"
JOB_ID = r"[0-9a-f]{8}-[0-9a-f-]{27}"


def export_provisioned_job(trial: Deployment, name: str, method: str, **settings) -> Path:
    """The folder of a job, as its author exports it: it knows no site's path."""
    values = {"num_rounds": ROUNDS, "min_clients": 3, "training": {"lr": 0.05}, "task_timeout": 240, **TRUSTING}
    values["model"] = Logistic((3, 14, 14), 8)
    recipe = ClusteredRecipe(name=name, method=method, data=SiteData(), **{**values, **settings})
    recipe.export(str(trial.folder / "jobs"))
    return trial.folder / "jobs" / name


def everything(trial: Deployment, run_name: str, results: Path) -> dict[str, dict[str, np.ndarray]]:
    """The models of the server's results, and those that the hospitals hold."""
    held: dict[str, dict[str, np.ndarray]] = {}
    for site in trial.sites:
        held |= read_models(trial.state_root(site) / run_name / site / "served")
    return {**held, **read_models(results / "cfl" / "clusters")}


@pytest.fixture(scope="module")
def undisturbed_runs(trial) -> dict[str, tuple[dict[str, dict[str, np.ndarray]], Run]]:
    """One run of each method without a fault: WeCFL by FLARE's command line, Ditto by its API."""
    job = export_provisioned_job(trial, "wecfl", "wecfl:k=2")
    kit = ["--startup-kit", str(trial.admin)]
    job_id = re.findall(JOB_ID, trial.command("nvflare", "job", "submit", "-j", str(job), *kit))[0]
    assert "COMPLETED" in trial.command("nvflare", "job", "wait", job_id, "--timeout", "300", "--interval", "1", *kit)
    trial.command("nvflare", "job", "download", job_id, "-o", str(trial.folder / "downloaded"), *kit)
    (results,) = (trial.folder / "downloaded").glob("**/workspace")
    ended, other = trial.run(export_provisioned_job(trial, "ditto", "ditto"))
    assert ended == "FINISHED:COMPLETED"
    folders = {"wecfl": results, "ditto": other}
    return {name: (everything(trial, name, f), load_run(f / "cfl")) for name, f in folders.items()}


def test_hospitals_find_their_groups_and_keep_what_they_are_served(trial, undisturbed_runs):
    _, run = undisturbed_runs["wecfl"]
    clusters = {p["name"]: p["cluster"] for p in run.summary["participants"]}
    assert clusters["hospital-1"] == clusters["hospital-2"] != clusters["hospital-3"]
    assert run.summary["final"]["served_accuracy"] > 0.5
    assert not run.summary["sites_left_out"]
    assert (run.folder / "accuracy.png").is_file() and (run.folder.parent / "metrics").is_dir()
    for participant in run.summary["participants"]:
        site = participant["name"]
        held = trial.state_root(site) / "wecfl" / site
        assert [p.stem for p in (held / "served").iterdir()] == [site]
        theirs = load_arrays(held / "served" / f"{site}.safetensors")[0]
        own = load_arrays(run.folder / "clusters" / f"cluster-{clusters[site]}.safetensors")[0]
        assert_same_models({"": theirs}, {"": own}, atol=1e-6)
        out = trial.folder / f"{site}.csv"
        assert main(["predict", str(held), "--data", str(trial.data[site]), "--out", str(out)]) == 0
        lines = out.read_text().splitlines()
        _, test = Npz(str(trial.data[site])).load()
        correct = np.mean([int(line.split(",")[1]) == y for line, y in zip(lines[1:], test.y)])
        rough = 0.025 if site == COARSE else 0  # what it sends is rounded to 0.05
        assert correct == pytest.approx(participant["served_accuracy"], abs=1e-6 + rough)
        assert ("served_loss" in participant) == (site != COARSE)
        assert participant["samples"] == (250 if site == COARSE else 240)


def test_a_large_start_model_goes_to_the_server_alone(trial, monkeypatch):
    """FLARE's connections by http break at 4 MiB of job files; this model has 7 MB, and no site gets it as a file."""
    monkeypatch.chdir(trial.folder)
    torch.manual_seed(7)
    model = MLP((3, 14, 14), 8, (3000,))
    save_file(model.state_dict(), "start.safetensors")
    large = {"model": model, "initial_ckpt": "start.safetensors", "site_names": (*trial.sites,)}
    still = {"training": {"lr": 1e-9, "local_steps": 1}}
    job = export_provisioned_job(trial, "large", "fedavg", num_rounds=1, **large, **still)
    assert [path.parts[-3] for path in job.rglob("start.safetensors")] == ["app_server"]
    ended, results = trial.run(job)
    assert ended == "FINISHED:COMPLETED"
    run, sent = load_run(results / "cfl"), load_arrays(results / "cfl" / "clusters" / "global.safetensors")[0]
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(sent[name], array.numpy(), atol=1e-6)
    of_layers = sum(array.numel() for array in model.state_dict().values())
    assert run.rounds[0]["bytes_up"] == 3 * 4 * of_layers
    assert run.rounds[0]["bytes_down"] == 2 * run.rounds[0]["bytes_up"]  # and the last model, to be measured


def test_a_personal_model_stays_with_its_hospital(trial, undisturbed_runs):
    held, run = undisturbed_runs["ditto"]
    assert set(held) == {*trial.sites, "global"}
    assert load_model(run.folder).head.weight.shape == (8, 588)
    assert not np.allclose(held["hospital-1"]["head.weight"], held["hospital-2"]["head.weight"])


def test_hospitals_that_agreed_on_nothing_are_careful_with_each_other(trial):
    """Three hospitals are as few as a model needs, so there is one cluster, and no site outweighs half of the rest."""
    ended, results = trial.run(
        export_provisioned_job(trial, "careful", "wecfl:k=2", num_rounds=3, **dict.fromkeys(TRUSTING))
    )
    assert ended == "FINISHED:COMPLETED"
    run = load_run(results / "cfl")
    assert len({p["cluster"] for p in run.summary["participants"]}) == 1
    asked = {name: run.summary["run"][name] for name in (*TRUSTING, "merge_small_clusters", "hold_small_clusters")}
    assert list(asked.values()) == [3, 30, 1 / 3, True, True]
    assert not any("held_back" in record for record in run.rounds)
    ended, results = trial.run(
        export_provisioned_job(trial, "alone", "cfl:eps1=1,eps2=2", num_rounds=3, **dict.fromkeys(TRUSTING))
    )
    assert ended != "FINISHED:COMPLETED"
    assert "min_sites_per_cluster = 3: method cfl computes more than means" in (results / "log.txt").read_text()


def test_a_hospital_s_ledger_pays_for_one_job_and_not_for_a_second(trial, capsys, monkeypatch):
    kit, private = trial.kits / "hospital-1", {"lr": 0.05, "dp": "epsilon=2.5"}
    limits, policy = kit / "local" / "cfl.json", kit / "local" / "privacy.json"
    before = limits.read_bytes()
    assert main(["site", "prepare", str(kit), "--no-keep-logs", "--epsilon-budget", "3"]) == 0
    try:
        ended, results = trial.run(export_provisioned_job(trial, "private", "fedavg", num_rounds=2, training=private))
        summary = load_run(results / "cfl").summary
        assert ended == "FINISHED:COMPLETED" and not summary["sites_left_out"]
        samples = {participant["name"]: participant["samples"] for participant in summary["participants"]}
        # Of 120 patients, and of 240 images; the noise has a standard deviation of 12.4.
        assert samples["hospital-1"] < 180 < samples["hospital-2"]
        monkeypatch.setenv("CFL_STATE_ROOT", str(trial.state_root("hospital-1")))
        capsys.readouterr()
        assert main(["site", "ledger", "--json", "--kit", str(kit)]) == 0
        spent = json.loads(capsys.readouterr().out)
        assert spent["places"] == [str(trial.data["hospital-1"].resolve())] and spent["patients"] == ["pid"]
        assert [job["run"] for job in spent["jobs"].values()] == ["private"]
        assert 2 < spent["epsilon"] <= 2.5 and spent["left"] < 2.5
        again = export_provisioned_job(trial, "again", "fedavg", num_rounds=1, min_clients=2, seed=7, training=private)
        ended, results = trial.run(again)
        assert ended == "FINISHED:COMPLETED"
        left_out = load_run(results / "cfl").summary["sites_left_out"]
        assert left_out.keys() == {"hospital-1"} and "budget" in left_out["hospital-1"]
    finally:
        limits.write_bytes(before)
        policy.unlink()


def test_a_hospital_takes_part_in_no_job_that_hollows_out_its_floor(trial):
    """A floor of three in words: no model is held back, or nearly all of one is the largest hospital's."""
    agreed, strict = trial.sites[:2], "hospital-3"
    trial.ask_for(strict, 3)
    try:
        three = {"min_sites_per_cluster": 3, "min_samples_per_cluster": 30, "max_weight_share": None, "num_rounds": 1}
        ended, results = trial.run(
            export_provisioned_job(trial, "hollow", "ifca:k=3", hold_small_clusters=False, **three)
        )
        assert ended == "FINISHED:COMPLETED"
        run = load_run(results / "cfl")
        assert run.summary["sites_left_out"].keys() == {strict}
        assert run.summary["sites_left_out"][strict].startswith("floor: ")
        assert run.rounds[0]["trained"] == agreed
        assert "models of fewer are not held back" in (results / "log.txt").read_text()
        site_log = "".join(path.read_text() for path in (trial.kits / strict).glob("*/log.txt"))
        assert "hold_small_clusters = False, as the server states it, is weaker than the True" in site_log
        # From other models: beside the means of two sites from the same ones, one of three gives the third's.
        ended, results = trial.run(export_provisioned_job(trial, "three", "fedavg", seed=1, **three))
        assert ended == "FINISHED:COMPLETED"
        assert load_run(results / "cfl").rounds[0]["trained"] == trial.sites
    finally:
        trial.ask_for(strict, 1)


class Console:
    """FLARE's admin console in a terminal of its own."""

    def __init__(self, trial: Deployment):
        self._own, theirs = pty.openpty()
        command = ["bash", str(trial.admin / "startup" / "fl_admin.sh")]
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=trial.env(), start_new_session=True
        )
        os.close(theirs)

    def says(self, pattern: str, seconds: float = 300) -> str:
        """Reads until something is said."""
        text, deadline = "", time.monotonic() + seconds
        while not (found := re.search(pattern, text)):
            assert time.monotonic() < deadline, f"no {pattern!r} in {text!r}"
            if select.select([self._own], [], [], 0.5)[0]:
                text += os.read(self._own, 65536).decode(errors="replace")
        return found[0]

    def type(self, line: str) -> None:
        os.write(self._own, f"{line}\n".encode())

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        os.close(self._own)


def test_a_broken_site_is_left_out_and_a_paused_one_comes_back(trial):
    """Hospital-3's file is gone; hospital-2 stands still for longer than a round may take.

    When its file is back, hospital-3 takes part from the next submission on.
    """
    trial.data["hospital-3"].rename(trial.folder / "elsewhere.npz")
    try:
        with trial.session() as session:
            job = export_provisioned_job(trial, "paused", "fedavg", task_timeout=10, num_rounds=10, max_missed_tasks=10)
            job_id = session.submit_job(str(job))
            until("the first rounds", lambda: trial.rounds("paused") >= 1)
            paused = trial.jobs_of("hospital-2")
            for process in paused:
                process.suspend()
            before = trial.rounds("paused")
            until("the round to go on without it", lambda: trial.rounds("paused") > before + 1)
            for process in paused:
                process.resume()
            ended, results = trial.wait(session, job_id)
    finally:
        (trial.folder / "elsewhere.npz").rename(trial.data["hospital-3"])
    assert ended == "FINISHED:COMPLETED"
    run = load_run(results / "cfl")
    assert run.summary["sites_left_out"].keys() == {"hospital-3"}
    assert run.summary["sites_left_out"]["hospital-3"].startswith("missing: ")
    missed = [r["round"] for r in run.rounds if r["failed"]]
    assert 1 <= len(missed) <= 3
    assert run.rounds[missed[0]]["failed"] == {"hospital-2": "no result in time"}
    assert run.rounds[missed[0]]["trained"] == ["hospital-1"]
    assert 10 <= run.rounds[missed[0]]["seconds"] < 20  # no round waits longer than its timeout
    assert run.rounds[-1]["trained"] == ["hospital-1", "hospital-2"]
    logs = (trial.folder / "nvflare").glob("**/ERRORLOG_hospital-3")  # of each job, streamed by --no-keep-logs
    assert any("task 'check' failed: missing" in log.read_text() for log in logs)
    at_server = [results.parent, trial.folder / "nvflare", trial.kits / SERVER]
    files = [path for folder in at_server for path in folder.glob("**/*") if path.is_file()]
    assert not [path for path in files if b"ward 3" in path.read_bytes()]
    ended, results = trial.run(export_provisioned_job(trial, "paused", "fedavg", num_rounds=12, resume_from="paused"))
    assert ended == "FINISHED:COMPLETED"
    later = load_run(results / "cfl")
    assert later.summary["resumed_at"] == 10
    assert [r["trained"] for r in later.rounds] == [list(trial.sites)] * 2


SCRIPT = """
import os

import numpy as np
import nvflare.client as flare
import torch

from cfl_flare.models import Logistic

flare.init()
with np.load(os.environ["CFL_DATA"]) as arrays:
    x = torch.tensor(arrays["train_images"].transpose(0, 3, 1, 2) / 255, dtype=torch.float32)
    y = torch.tensor(arrays["train_labels"].ravel().astype(np.int64))
model = Logistic((3, 14, 14), 8)
while flare.is_running():
    received = flare.receive()
    model.load_state_dict(received.params)
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    metrics, steps = {"accuracy": accuracy}, {"NUM_STEPS_CURRENT_ROUND": 10}
    flare.send(flare.FLModel(params=model.state_dict(), metrics=metrics, meta=steps))
"""


def test_a_training_script_runs_at_hospitals(trial, monkeypatch):
    """A script of FLARE's Client API, which the job carries; the hospitals' policy allows it to."""
    (trial.folder / "client.py").write_text(SCRIPT)
    monkeypatch.chdir(trial.folder)
    common = {"model": Logistic((3, 14, 14), 8), "num_rounds": 4, "min_clients": 3, "task_timeout": 240, **TRUSTING}
    recipe = ClusteredRecipe(name="script", method="wecfl:k=2", train_script="client.py", **common)
    recipe.export(str(trial.folder / "jobs"))
    assert (trial.folder / "jobs" / "script" / "app" / "custom" / "client.py").is_file()
    ended, results = trial.run(trial.folder / "jobs" / "script")
    assert ended == "FINISHED:COMPLETED"
    run = load_run(results / "cfl")
    clusters = {p["name"]: p["cluster"] for p in run.summary["participants"]}
    assert clusters["hospital-1"] == clusters["hospital-2"] != clusters["hospital-3"]
    assert run.rounds[-2]["served_accuracy"] > run.rounds[0]["served_accuracy"]
    assert "served_accuracy" not in run.rounds[-1]  # for which it would train once more
    assert not any(r["failed"] for r in run.rounds)


def test_a_training_script_spends_from_the_ledger(trial, capsys, monkeypatch):
    """Of a script that says what it spends, results leave; of one that does not, none."""
    kit = trial.kits / "hospital-2"
    limits, policy = kit / "local" / "cfl.json", kit / "local" / "privacy.json"
    before = {file: file.read_bytes() for file in (limits, policy)}
    assert main(["site", "prepare", str(kit), "--no-keep-logs", "--epsilon-budget", "900"]) == 0
    monkeypatch.chdir(trial.folder)
    spend = 'steps["privacy"] = [{"noise_multiplier": 2.0, "sample_rate": 1.0, "steps": 3}]'
    runs, saying = {}, SCRIPT.replace("    flare.send(", f"    {spend}\n    flare.send(")
    try:
        for name, script in (("says", saying), ("silent", SCRIPT)):
            (trial.folder / f"{name}.py").write_text(script)
            settings = {"num_rounds": 2, "min_clients": 2, "task_timeout": 240, "seed": 31 + len(runs), **TRUSTING}
            model = Logistic((3, 14, 14), 8)
            recipe = ClusteredRecipe(name=name, method="fedavg", model=model, train_script=f"{name}.py", **settings)
            recipe.export(str(trial.folder / "jobs"))
            ended, results = trial.run(trial.folder / "jobs" / name)
            assert ended == "FINISHED:COMPLETED"
            runs[name] = [sorted(r["failed"]) for r in load_run(results / "cfl").rounds]
        monkeypatch.setenv("CFL_STATE_ROOT", str(trial.state_root("hospital-2")))
        capsys.readouterr()
        assert main(["site", "ledger", "--json", "--kit", str(kit)]) == 0
        jobs = json.loads(capsys.readouterr().out)["jobs"].values()
    finally:
        for file, content in before.items():
            file.write_bytes(content)
    assert runs["says"][0] == [] and runs["silent"][0] == ["hospital-2"]
    *_, spent = (job["epsilon"] for job in jobs if job["participants"] == ["hospital-2"])
    assert spent == pytest.approx(epsilon_of(rdp_of([Spend("script", "train", 2.0, 1.0, 3)] * 2), 1e-5))


def after_rounds(trial: Deployment, name: str, more: int = 3) -> None:
    """Waits until a run has done a few rounds more."""
    before = trial.rounds(name)
    until(f"some rounds of {name}", lambda: trial.rounds(name) >= before + more)


def kill_job_at(trial: Deployment, site: str) -> None:
    for process in trial.jobs_of(site):
        process.kill()


def resumed(trial: Deployment, job: Path, name: str) -> tuple[dict[str, dict[str, np.ndarray]], Run]:
    """Runs a job to its end; all models that it leaves, and what it recorded."""
    ended, results = trial.run(job)
    assert ended == "FINISHED:COMPLETED"
    run = load_run(results / "cfl")
    assert 0 < run.summary["resumed_at"] < ROUNDS
    return everything(trial, name, results), run


def test_a_site_s_job_dies_and_the_resumed_run_ends_as_if_nothing_had_been(trial, undisturbed_runs):
    """The job is submitted in the admin console, which also sees its end."""
    job = export_provisioned_job(trial, "wecfl-died", "wecfl:k=2")
    trial.faults(LATE).write_text(json.dumps({"delay": 1}))  # so that its end does not come before the site's
    console = Console(trial)
    try:
        console.says("User Name:")
        console.type(ADMIN)
        console.says("> $")
        console.type(f"submit_job {job}")
        job_id = re.findall(JOB_ID, console.says(f"Submitted job: {JOB_ID}"))[0]
        after_rounds(trial, "wecfl-died")
        kill_job_at(trial, "hospital-2")
        with trial.session() as session:
            until("the job's end", lambda: session.get_job_meta(job_id)["status"].startswith("FINISHED"))
        console.type("list_jobs")
        console.says(rf"{job_id}[^\n]*FINISHED:(?!COMPLETED)")
    finally:
        console.close()
        trial.faults(LATE).unlink()
    found, run = resumed(
        trial, export_provisioned_job(trial, "wecfl-died", "wecfl:k=2", resume_from="wecfl-died"), "wecfl-died"
    )
    expected, whole = undisturbed_runs["wecfl"]
    assert_same_models(found, expected, atol=1e-6)
    assert run.summary["final"]["served_loss"] == pytest.approx(whole.summary["final"]["served_loss"], abs=1e-6)


def test_a_site_s_job_dies_and_then_the_server_and_personal_models_are_as_if_nothing_had_been(trial, undisturbed_runs):
    """Last, as FLARE's own record of a job whose server was killed stays at RUNNING for ever."""
    trial.faults(LATE).write_text(json.dumps({"delay": 1}))
    with trial.session() as session:
        job_id = session.submit_job(str(export_provisioned_job(trial, "ditto-died", "ditto")))
        after_rounds(trial, "ditto-died")
        kill_job_at(trial, "hospital-2")
        ended, _ = trial.wait(session, job_id)
        assert ended != "FINISHED:COMPLETED"
        job = export_provisioned_job(trial, "ditto-died", "ditto", resume_from="ditto-died")
        session.submit_job(str(job))
        after_rounds(trial, "ditto-died")
    trial.kill(SERVER)
    trial.faults(LATE).unlink()
    trial.start(SERVER)
    trial.until_connected()
    found, run = resumed(trial, job, "ditto-died")
    expected, whole = undisturbed_runs["ditto"]
    assert_same_models(found, expected, atol=1e-6)
    assert run.summary["final"]["served_loss"] == pytest.approx(whole.summary["final"]["served_loss"], abs=1e-6)
