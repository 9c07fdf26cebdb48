# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong at hospitals, at the server and between them, and what the operator's guide promises for it.

The tests run in order, on one deployment: four hospitals are provisioned, two start, the third joins later, and the
fourth never comes. Where nothing is lost, the final models are those of a run without a fault.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from nvflare.recipe.utils import set_per_site_config

from cfl_flare.data import SiteData
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.per_site import ASK_EVERY, DEAF, LOST
from cfl_flare.models import Logistic
from cfl_flare.results.run_dir import Run, load_run
from tests.e2e.deployment import SERVER, TRUSTING, Deployment, find_blood_images, until, write_hospitals
from tests.helpers import warm
from tests.helpers.resumed import assert_same_models, read_models

pytestmark = pytest.mark.slow
ROUNDS = 12
# A site's own view of the files, in which what outlives a job is on a disk that is too small for a model.
SMALL_DISK = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
SMALL_DISK += ('mkdir -p "$CFL_STATE_ROOT" && mount -t tmpfs -o size=16k tmpfs "$CFL_STATE_ROOT" && exec "$@"', "sh")
ONE, TWO, THREE, FOUR = (f"hospital-{i}" for i in (1, 2, 3, 4))


class Faulty(Deployment):
    """A deployment whose hospitals can be made to answer wrongly."""

    def env(self, name: str = "") -> dict[str, str]:
        env = super().env(name)
        env.pop(warm.SOCKET, None)  # a process that dies is its daemon's own child, as at a hospital
        return env

    def exported(self, name: str, method: str, sites: list[str] | None = None, **settings) -> Path:
        values = {"num_rounds": ROUNDS, "min_clients": 2, "task_timeout": 240, **TRUSTING}
        values |= {} if "train_script" in settings else {"data": SiteData(), "training": {"lr": 0.05}}
        recipe = ClusteredRecipe(name=name, method=method, model=Logistic((3, 14, 14), 8), **{**values, **settings})
        if sites:
            set_per_site_config(recipe, {site: {} for site in sites})
        recipe.export(str(self.folder / "jobs"))
        return self.folder / "jobs" / name

    def submit(self, job: Path) -> str:
        with self.session() as session:
            return str(session.submit_job(str(job)))

    def ended(self, job_id: str) -> tuple[str, Run]:
        with self.session() as session:
            status, results = self.wait(session, job_id)
        return status, load_run(results / "cfl")

    def after(self, name: str, rounds: int) -> None:
        until(f"round {rounds} of {name}", lambda: self.rounds(name) >= rounds)

    def restart(self, *names: str, inside: tuple[str, ...] = ()) -> None:
        """The daemon's part: clients were killed, and are started again."""
        before = {name: self.registrations(name) for name in names}
        for name in self.processes.keys() & names:
            self.kill(name)
        self.start(*names, inside=inside)
        for name in names:
            self.until_registered(name, before[name])

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """A hospital's job processes stand still."""
        processes = self.jobs_of(name)
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    def log(self, job_id: str) -> str:
        """The log of a job's server process; it is in the job's folder until the job has ended."""
        return (self.kits / SERVER / job_id / "log.txt").read_text()


@pytest.fixture(scope="module")
def faulty_trial(tmp_path_factory) -> Iterator[Faulty]:
    source = find_blood_images()
    folder = tmp_path_factory.mktemp("faults")
    deployment = Faulty(folder, write_hospitals(source, folder / "data", count=4))
    try:
        deployment.start(SERVER, ONE, TWO)
        for site in (ONE, TWO):
            deployment.until_registered(site, 0)
        yield deployment
    finally:
        deployment.stop()


def assert_same_clusters(one: Run, other: Run) -> None:
    found, expected = (read_models(run.folder / "clusters") for run in (other, one))
    assert_same_models(found, expected, atol=1e-6)


def test_late_slow_and_absent_hospitals(faulty_trial):
    """The third connects in the job's middle, the first stands still for longer than a round may take."""
    sites = [ONE, TWO, THREE, FOUR]
    waiting = {"task_timeout": 12, "max_missed_tasks": 40}
    job_id = faulty_trial.submit(faulty_trial.exported("late", "fedavg", sites, num_rounds=40, **waiting))
    faulty_trial.after("late", 1)
    with faulty_trial.paused(
        ONE
    ):  # its rounds last as long as they may, so that the job does not end before the third is up
        before = faulty_trial.rounds("late")
        faulty_trial.start(THREE)
        until("the third hospital to join", lambda: f"{THREE} joined" in faulty_trial.log(job_id))
        until("rounds to go on without the first", lambda: faulty_trial.rounds("late") > before + 1)
    status, run = faulty_trial.ended(job_id)
    assert status == "FINISHED:COMPLETED"
    assert run.summary["sites_left_out"] == {FOUR: "it was not connected when the job started"}
    assert {p["name"] for p in run.summary["participants"]} == {ONE, TWO, THREE}
    assert run.rounds[0]["trained"] == [ONE, TWO] and run.rounds[-1]["trained"] == [ONE, TWO, THREE]
    failed = {name: reason for r in run.rounds for name, reason in r["failed"].items()}
    assert failed.keys() == {ONE} and failed[ONE] in ("no result in time", LOST)


def test_a_site_that_stands_still_has_not_ended(faulty_trial):
    """Its client and its job process are stopped for longer than a silence, and go on: it trains to the job's end."""
    job_id = faulty_trial.submit(faulty_trial.exported("still", "fedavg", num_rounds=400, max_missed_tasks=400))
    faulty_trial.after("still", 1)
    processes = [psutil.Process(faulty_trial.processes[TWO].pid), *faulty_trial.jobs_of(TWO)]
    for process in processes:
        process.suspend()
    try:
        until("the site to be lost", lambda: f"{TWO} is lost" in faulty_trial.log(job_id), 600)
        time.sleep(2 * ASK_EVERY)  # the server's component is asked meanwhile
    finally:
        for process in processes:
            process.resume()
    until("the site to be heard", lambda: f"{TWO} is heard again" in faulty_trial.log(job_id))
    before = faulty_trial.rounds("still")
    until("ten rounds more", lambda: faulty_trial.rounds("still") >= min(before + 10, 400))
    assert "its job process has ended" not in faulty_trial.log(job_id)
    status, run = faulty_trial.ended(job_id)
    assert status == "FINISHED:COMPLETED"
    assert TWO in run.rounds[-1]["trained"]


@pytest.fixture
def everyone(faulty_trial) -> None:
    """All hospitals but the fourth are there, also if a test runs alone."""
    faulty_trial.restart(*{ONE, TWO, THREE} - faulty_trial.processes.keys())


@pytest.fixture(scope="module")
def undisturbed_run(faulty_trial) -> Run:
    if THREE not in faulty_trial.processes:
        faulty_trial.restart(THREE)
    status, run = faulty_trial.ended(
        faulty_trial.submit(faulty_trial.exported("undisturbed", "wecfl:k=2", min_clients=3))
    )
    assert status == "FINISHED:COMPLETED" and not any(r["failed"] for r in run.rounds)
    return run


def test_a_client_that_its_daemon_restarts_loses_nothing(faulty_trial, undisturbed_run):
    """Its round waits until it is back, and the job ends as if nothing had been."""
    job_id = faulty_trial.submit(faulty_trial.exported("restarted", "wecfl:k=2", min_clients=3))
    faulty_trial.after("restarted", 3)
    faulty_trial.restart(TWO)
    status, run = faulty_trial.ended(job_id)
    assert status == "FINISHED:COMPLETED"
    assert not any(r["failed"] for r in run.rounds)
    assert_same_clusters(undisturbed_run, run)


def test_a_killed_server_process_a_damaged_checkpoint_and_an_abort_resume_to_the_same_models(
    faulty_trial, undisturbed_run
):
    name = "resumed"
    faulty_trial.faults(TWO).write_text(json.dumps({"delay": 1}))  # so that neither end comes after the last round
    job_id = faulty_trial.submit(faulty_trial.exported(name, "wecfl:k=2", min_clients=3))
    faulty_trial.after(name, 3)
    for process in faulty_trial.jobs_of(SERVER):
        process.kill()
    with faulty_trial.session() as session:
        until("the job's end", lambda: session.get_job_meta(job_id)["status"].startswith("FINISHED"))
    newest = max(faulty_trial.state_root(SERVER).glob(f"{name}/*/round-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-100])
    resumed = faulty_trial.exported(name, "wecfl:k=2", min_clients=3, resume_from=name)
    job_id, damaged = faulty_trial.submit(resumed), int(newest.stem.removeprefix("round-"))
    until("the resumed run", lambda: faulty_trial.rounds(name) > damaged + 1)
    with faulty_trial.session() as session:
        session.abort_job(job_id)
        until("the job's end", lambda: session.get_job_meta(job_id)["status"] == "FINISHED:ABORTED")
    status, run = faulty_trial.ended(faulty_trial.submit(resumed))
    faulty_trial.faults(TWO).unlink()
    assert status == "FINISHED:COMPLETED" and run.summary["resumed_at"] > damaged
    assert_same_clusters(undisturbed_run, run)


def test_wrong_answers_fail_their_rounds_and_a_full_disk_and_a_lost_memory_none(faulty_trial, everyone):
    """With Ditto, whose participants keep a model of their own."""
    faulty_trial.faults(TWO).write_text(json.dumps({"1": "undecodable", "2": "TASK_UNKNOWN", "3": "RUN_MISMATCH"}))
    faulty_trial.restart(THREE, inside=SMALL_DISK)
    job_id = faulty_trial.submit(faulty_trial.exported("wrong", "ditto", min_clients=3))
    faulty_trial.after("wrong", 5)
    faulty_trial.kill(ONE)
    shutil.rmtree(faulty_trial.state_root(ONE) / "wrong")
    faulty_trial.start(ONE)
    status, run = faulty_trial.ended(job_id)
    faulty_trial.faults(TWO).unlink()
    assert status == "FINISHED:COMPLETED"
    reasons = {r["round"]: r["failed"] for r in run.rounds}
    assert "undecodable" in reasons[1][TWO]
    assert "TASK_UNKNOWN" in reasons[2][TWO] and "RUN_MISMATCH" in reasons[3][TWO]
    assert {name for failed in reasons.values() for name in failed} == {TWO} and not reasons[4]
    assert run.rounds[-1]["trained"] == [ONE, TWO, THREE]
    assert "No space left on device" in (faulty_trial.kits / THREE / job_id / "log.txt").read_text()


def test_hospitals_without_data_or_with_another_version_are_left_out_until_they_are_repaired(faulty_trial, everyone):
    """One is repaired in the middle of the job: its client is restarted, and it takes part."""
    faulty_trial.faults(THREE).write_text(json.dumps({"version": "0.0.1"}))
    faulty_trial.data[TWO].rename(faulty_trial.folder / "elsewhere.npz")
    try:
        job_id = faulty_trial.submit(faulty_trial.exported("unfit", "fedavg", min_clients=3, num_rounds=100))
        faulty_trial.after("unfit", 1)
        left_out = faulty_trial.log(job_id)
    finally:
        (faulty_trial.folder / "elsewhere.npz").rename(faulty_trial.data[TWO])
        faulty_trial.faults(THREE).unlink()
    with faulty_trial.paused(ONE):
        faulty_trial.restart(TWO)
        until("the job to start there again", lambda: f"{TWO} has come back" in faulty_trial.log(job_id))
        own = (
            faulty_trial.kits / TWO / job_id / "log.txt"
        )  # its process must be up before the rounds that are left are done
        until("its process to be up", lambda: own.read_text().count("client runner started") > 1)
    status, run = faulty_trial.ended(job_id)
    assert status == "FINISHED:COMPLETED"
    assert f"{TWO} is left out: missing" in left_out and f"{THREE} is left out:" in left_out
    assert run.summary["sites_left_out"].keys() == {THREE}
    assert run.rounds[0]["trained"] == [ONE] and run.rounds[-1]["trained"] == [ONE, TWO]


SCRIPT = """
import sys

import nvflare.client as flare
import torch

from cfl_flare.models import Logistic

flare.init()
model = Logistic((3, 14, 14), 8)
while flare.is_running():
    received = flare.receive()
    if flare.get_site_name() == "hospital-3" and received.current_round == 2:
        raise OSError("the scanner's share is gone")
    model.load_state_dict(received.params)
    flare.send(flare.FLModel(params=model.state_dict(), metrics={"accuracy": 0.5}, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
"""


def test_a_script_crashes_and_a_hospital_goes_for_good(faulty_trial, everyone, monkeypatch):
    (faulty_trial.folder / "client.py").write_text(SCRIPT)
    monkeypatch.chdir(faulty_trial.folder)
    job = faulty_trial.exported("script", "fedavg", train_script="client.py", num_rounds=12)
    job_id = faulty_trial.submit(job)
    faulty_trial.after("script", 4)
    faulty_trial.kill(TWO)
    status, run = faulty_trial.ended(job_id)
    assert status == "FINISHED:COMPLETED"
    assert run.rounds[-1]["trained"] == [ONE]
    assert run.rounds[-1]["failed"] == {TWO: LOST, THREE: "OSError in its script"}


def test_a_second_process_under_a_hospitals_identity_costs_that_hospital_the_job_and_nobody_else(faulty_trial):
    """FLARE's preflight check of a running client takes its token: the client is heard, and gets no task.

    The check starts the kit's client for five seconds. Here it stays until it has registered, however slow the machine.
    """
    faulty_trial.restart(ONE, TWO, THREE)
    before, client = faulty_trial.registrations(ONE), faulty_trial.processes.pop(ONE)
    faulty_trial.start(ONE)
    faulty_trial.until_registered(ONE, before)
    faulty_trial.kill(ONE)
    faulty_trial.processes[ONE] = client
    status, run = faulty_trial.ended(
        faulty_trial.submit(faulty_trial.exported("stolen", "fedavg", min_clients=2, num_rounds=2))
    )
    assert status == "FINISHED:COMPLETED"
    assert run.summary["sites_left_out"] == {ONE: DEAF}
    assert run.rounds[-1]["trained"] == [TWO, THREE]
