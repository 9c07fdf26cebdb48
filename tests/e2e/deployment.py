# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A provisioned FLARE system on this machine: a server and hospitals as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import psutil
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from cfl_flare.cli import main
from tests.helpers import warm

ADMIN = "admin@hospitals.org"
SERVER = "localhost"
NVFLARE = "from nvflare.cli import main; main()"
COARSE = "hospital-2"  # the hospital with the guide's policy on what leaves it
GUIDE = Path(__file__).parents[2] / "docs" / "operator-guide.md"
ROOT = Path(__file__).parents[2]
START = Path(__file__).parent / "start"
# Three hospitals in two or three clusters: each agrees that others see its model, and counts in full.
TRUSTING = {"min_sites_per_cluster": 1, "min_samples_per_cluster": 1, "max_weight_share": 1.0}
PROJECT = """
api_version: 3
name: trial
participants:
  - {{name: localhost, type: server, org: hospitals, fed_learn_port: {port}}}
{sites}
  - {{name: {admin}, type: admin, org: hospitals, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return int(s.getsockname()[1])


def cache_home() -> str:
    """Where this user keeps the report's script, which other homes need not make anew."""
    return os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")


def until(what: str, ready: Callable[[], object], seconds: float = 300) -> None:
    """Waits for a condition, so that no test depends on how fast the machine is."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.2)


def commands_with(text: str) -> list[psutil.Process]:
    """Other processes that have this in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if text in words and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


class Deployment:
    """A provisioned system; each of its processes is started and stopped by its own handle.

    Args:
        folder: everything is written in it.
        data: each hospital's own file.
        floor: the fewest sites of a cluster that each operator asks for; with 1, jobs may be `TRUSTING`.
        relays: the relay through which a site reaches the server, if it does not connect directly.
    """

    def __init__(self, folder: Path, data: dict[str, Path], floor: int = 1, relays: Mapping[str, str] | None = None):
        self.folder, self.data, self.sites = folder, data, list(data)
        self.processes: dict[str, subprocess.Popen] = {}
        self.daemons: list[int] = []  # all that were started
        self.settings: dict[str, dict[str, str]] = {}  # what else a site's operator sets in its environment
        self.relays = [*dict.fromkeys((relays or {}).values())]
        through = {site: f", connect_to: {{name: {relay}}}" for site, relay in (relays or {}).items()}
        listening = "listening_host: {{default_host: localhost, port: {port}}}"
        lines = [
            f"{{name: {r}, type: relay, org: hospitals, {listening.format(port=free_port())}}}" for r in self.relays
        ]
        lines += [f"{{name: {site}, type: client, org: hospitals{through.get(site, '')}}}" for site in data]
        sites = "\n".join(f"  - {line}" for line in lines)
        (folder / "tmp").mkdir()  # FLARE leaves a folder for each job with errors
        (folder / "project.yml").write_text(PROJECT.format(port=free_port(), sites=sites, admin=ADMIN))
        self.command("nvflare", "provision", "-p", str(folder / "project.yml"), "-w", str(folder / "ws"))
        self.kits = folder / "ws" / "trial" / "prod_00"
        self.admin = self.kits / ADMIN
        for name in (SERVER, *data):
            # Even with its errors sent to the server, nothing of a site's own may be seen there.
            assert main(["site", "prepare", str(self.kits / name), "--no-keep-logs"]) == 0
        for name in data:
            self.ask_for(name, floor)
        self._keep_inside()
        if COARSE in data:
            found = re.findall(r"^```json\n(.*?)^```$", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
            (policy,) = [block for block in found if "EgressFilter" in block]
            (self.kits / COARSE / "local" / "privacy.json").write_text(policy)

    def ask_for(self, site: str, floor: int) -> None:
        """An operator's floor, from the next job on."""
        assert (
            main(["site", "prepare", str(self.kits / site), "--no-keep-logs", "--min-sites-per-cluster", str(floor)])
            == 0
        )

    def _keep_inside(self) -> None:
        """FLARE's own places are below /tmp/nvflare; and nobody waits ten seconds for a job to be scheduled."""
        resources = self.kits / SERVER / "local" / "resources.json"
        content = json.loads(resources.read_text().replace("/tmp/nvflare", str(self.folder / "nvflare")))
        next(c for c in content["components"] if c["id"] == "job_scheduler")["args"]["min_schedule_interval"] = 1
        resources.write_text(json.dumps(content))

    def env(self, name: str = "") -> dict[str, str]:
        """The environment of a process, with what the operator of a kit sets."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": f"{START}{os.pathsep}{ROOT}",
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": cache_home(),
            "OMP_NUM_THREADS": "1",
        }
        env |= {"CFL_STATE_ROOT": str(self.state_root(name)), "TMPDIR": str(self.folder / "tmp")}
        env |= {"CFL_FAULTS": str(self.faults(name))}
        env.pop("CFL_DATA_ROOT", None)
        env |= {"CFL_DATA": str(self.data[name])} if name in self.data else {}
        return {**env, **self.settings.get(name, {})}

    def faults(self, name: str) -> Path:
        """What makes a site's next job answer wrongly or late; see ``start/sitecustomize.py``."""
        return self.folder / f"{name}.faults"

    def state_root(self, name: str) -> Path:
        return self.folder / "state" / (name or "nobody")

    def command(self, *words: str) -> str:
        """Runs a command of a user's and returns what it printed."""
        command = [sys.executable, "-c", NVFLARE, *words[1:]] if words[0] == "nvflare" else words
        done = subprocess.run(command, capture_output=True, text=True, timeout=330, env=self.env(), cwd=self.folder)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *names: str, inside: tuple[str, ...] = ()) -> None:
        """Starts kits by FLARE's own script, which becomes the server or the site itself; inside a command if given."""
        for name in names:
            script, env = self.kits / name / "startup" / "sub_start.sh", self.env(name)
            if inside:  # what the command changes would not hold for a process that another one forks
                env.pop(warm.SOCKET, None)
            with (self.folder / f"{name}.out").open("a") as out:
                self.processes[name] = subprocess.Popen(
                    [*inside, "bash", str(script), "--once"],
                    env=env,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            self.daemons.append(self.processes[name].pid)

    def start_all(self) -> None:
        self.start(SERVER, *self.relays, *self.sites)
        self.until_connected()

    def until_connected(self) -> None:
        def connected() -> bool:
            try:
                with self.session(timeout=5) as session:
                    return {c.name for c in session.get_system_info().client_info} == set(self.sites)
            except Exception:
                return False

        until("the sites to connect", connected)

    def registrations(self, site: str) -> int:
        """How often a site has registered with the server."""
        log = self.kits / site / "log.txt"
        return log.read_text().count("Successfully registered client") if log.is_file() else 0

    def until_registered(self, site: str, before: int) -> None:
        """Waits for a site to register anew: the server counts one that was killed as connected for a while.

        A site that starts deletes a request to stop that came before it was up.
        """
        until(f"{site} to register", lambda: self.registrations(site) > before)

    def session(self, timeout: float = 60) -> _Closing:
        return _Closing(new_secure_session(ADMIN, str(self.admin), timeout=timeout))

    def jobs_of(self, name: str) -> list[psutil.Process]:
        """The job processes of a kit; they have sessions of their own."""
        return self.jobs_of_pid(self.processes[name].pid)

    def kill(self, name: str, jobs: bool = True) -> None:
        """Kills a kit's process, and its jobs' if asked."""
        process = self.processes.pop(name)
        children = self.jobs_of_pid(process.pid)
        process.kill()
        process.wait(30)
        for child in children if jobs else ():
            child.kill()

    @staticmethod
    def jobs_of_pid(pid: int) -> list[psutil.Process]:
        try:
            return [*psutil.Process(pid).children(recursive=True), *warm.started_by(pid)]
        except psutil.NoSuchProcess:
            return warm.started_by(pid)

    def stop(self) -> None:
        """Stops all that is left, whatever a test did."""
        for name in list(self.processes):
            self.kill(name)
        for process in (*self.leftovers(), *(job for pid in self.daemons for job in warm.started_by(pid))):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def leftovers(self) -> list[psutil.Process]:
        """Processes that work in this deployment's folder: orphans of a killed parent."""
        return commands_with(str(self.kits))

    def run(self, job: Path, seconds: float = 300) -> tuple[str, Path]:
        """Submits a job by FLARE's API and waits; returns how it ended, and the server's run directory."""
        with self.session() as session:
            job_id = session.submit_job(str(job))
            return self.wait(session, job_id, seconds)

    def wait(self, session: Session, job_id: str, seconds: float = 300) -> tuple[str, Path]:
        meta = session.wait_for_job(job_id, timeout=seconds, poll_interval=0.5)
        return str(meta["status"]), Path(session.download_job_result(job_id)) / "workspace"

    def rounds(self, run_name: str) -> int:
        """Rounds of a run that the server has written a checkpoint of."""
        found = (self.state_root(SERVER) / run_name).glob("*/round-*.json")
        return max((int(path.stem.removeprefix("round-")) for path in found), default=0)


class _Closing:
    """A session that is closed at the end."""

    def __init__(self, session: Session):
        self._session = session

    def __enter__(self) -> Session:
        return self._session

    def __exit__(self, *exception: object) -> None:
        self._session.close()


def find_blood_images() -> Path:
    """The images of blood cells; a test is skipped where they are not."""
    import pytest  # here, because benchmarks use this file as well

    root = os.environ.get("CFL_DATA_ROOT")
    if not root or not (Path(root) / "bloodmnist28.npz").is_file():
        pytest.skip("CFL_DATA_ROOT holds no bloodmnist28.npz")
    return Path(root) / "bloodmnist28.npz"


def write_hospitals(source: Path, folder: Path, count: int = 3, train: int = 240, test: int = 80) -> dict[str, Path]:
    """Each hospital's file, cut from one set, two images a patient; the last names the classes by another scheme."""
    folder.mkdir(parents=True)
    files = {}
    with np.load(source) as arrays:
        for i in range(count):
            cut = {}
            for split, size in (("train", train), ("test", test)):
                images = arrays[f"{split}_images"][i * size : (i + 1) * size, ::2, ::2]
                labels = arrays[f"{split}_labels"][i * size : (i + 1) * size]
                cut |= {f"{split}_images": images, f"{split}_labels": (labels + 3 * (i == count - 1)) % 8}
                cut[f"{split}_pid"] = np.array([f"{split} {number // 2}" for number in range(size)])
            files[f"hospital-{i + 1}"] = folder / f"ward {i + 1}.npz"
            np.savez(files[f"hospital-{i + 1}"], **cut)
    return files


def deployed(folder: Path, data: dict[str, Path], patients: str = "") -> Iterator[Deployment]:
    """A running deployment, for a fixture; the first hospital says that these arrays name its patients."""
    deployment = Deployment(folder, data)
    deployment.settings[deployment.sites[0]] = {"CFL_PATIENT": patients} if patients else {}
    try:
        deployment.start_all()
        yield deployment
    finally:
        deployment.stop()
