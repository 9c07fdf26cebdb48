# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Rounds with 2 to 32 sites of one participant, beside FLARE's own FedAvgRecipe, and what sites cost that wait.

``rounds``: one job in FLARE's simulator, all sites at once, each a process. In a round a site measures the model on 8
samples and takes one step of batch 8, by cfl_flare's own training and by a script of FedAvgRecipe. The small model has
25,450 parameters, the large one 11 million. ``bank`` is IFCA with ten models, all of which travel to each site. The
server's files say when a round ends. At that moment the processor time of all processes is read, and their memory: of
the simulator's process, where the server runs, and of the largest site. Seconds are medians over rounds, processor
seconds are means; those by two cores are what no waiting could save.

``provisioned``: the same at provisioned sites on this machine, with WeCFL and with FLARE's recipe for NumPy: seconds
of a round, and what the server's job process takes for each site. With ``--each 10`` sites reach the server through
FLARE's relays, ten a relay. So that many fit, the script needs NumPy alone, and jobs' processes are forked from one
that has imported FLARE; nothing of FLARE is replaced.

``idle``: three provisioned sites on this machine, one of which trains for a minute without using the processor. What
the server's and the other sites' processes of the job take meanwhile.

    python benchmarks/many_sites.py rounds --out many-sites.json
    PYTHONPATH=. python benchmarks/many_sites.py provisioned --sites 2 8 16 32 --out provisioned.json
    PYTHONPATH=. python benchmarks/many_sites.py provisioned --sites 40 --each 10 --programs wecfl --out relays.json
    PYTHONPATH=. python benchmarks/many_sites.py idle --out idle.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from common import in_own_process, provenance, tell
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.data import Npz
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.models import MLP

HIDDEN = {"small": 32, "large": 14_000}
SITES, ROUNDS, SHAPE, SAMPLES = (2, 8, 16, 32), {"small": 20, "large": 6}, (1, 28, 28), 40
PROGRAMS = {
    "fedavg": "fedavg",
    "ifca": "ifca:k=2,assignment_samples=8",
    "wecfl": "wecfl:k=2",
    "wecfl-head": "wecfl:k=2,cluster_on=head",
    "bank": "ifca:k=10,assignment_samples=8",
    "bank-float16": "ifca:k=10,assignment_samples=8",
}
FLARE = "recipe"  # FedAvgRecipe
CLIENT = """
import argparse

import numpy as np
import nvflare.client as flare
import torch
import torch.nn.functional as F

from cfl_flare.models import MLP

parser = argparse.ArgumentParser()
parser.add_argument("--file")
parser.add_argument("--hidden", type=int)
given = parser.parse_args()
torch.set_num_threads(1)
flare.init()
index = int(flare.get_site_name().rpartition("-")[2]) - 1
file = np.load(given.file, allow_pickle=False)
x, y = (torch.from_numpy(file[name][index * 40 : (index + 1) * 40]) for name in ("train_images", "train_labels"))
model = MLP((1, 28, 28), 10, (given.hidden,))
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    model.load_state_dict({k: torch.as_tensor(v) for k, v in received.params.items()})
    with torch.no_grad():
        accuracy = (model(x[:8]).argmax(1) == y[:8]).float().mean().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    F.cross_entropy(model(x[8:16]), y[8:16]).backward()
    optimizer.step()
    flare.send(flare.FLModel(params=model.state_dict(), metrics={"accuracy": accuracy}))
"""


class Watch:
    """When rounds ended, and what processes had used and held by then."""

    def __init__(self, ended: Callable[[], int], held: Callable[[], dict[str, float]]):
        self.marks: list[dict[str, float]] = []
        self._ended, self._held, self._done = ended, held, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            while (rounds := self._ended()) > len(self.marks):
                mark = {"time": time.monotonic(), **self._held()}
                self.marks += [mark] * (rounds - len(self.marks))

    def close(self) -> list[dict[str, float]]:
        self._done.set()
        self._thread.join()
        return self.marks


def processes() -> dict[str, float]:
    """Processor seconds of all processes below this one, and MB of the server's and of the largest site's."""
    used, server, sites = 0.0, 0.0, [0.0]
    for process in psutil.Process().children(recursive=True):
        try:
            times, memory, command = process.cpu_times(), process.memory_info().rss / 2**20, process.cmdline()
        except psutil.Error:
            continue
        used += times.user + times.system
        if any("simulator_worker" in word for word in command):
            sites.append(memory)
        else:
            server = max(server, memory)
    return {"cpu": used, "server_mb": server, "site_mb": max(sites)}


def one(program: str, size: str, sites: int, rounds: int) -> dict[str, Any]:
    """One job."""
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), Path(name) / "data.npz"
        os.environ["CFL_STATE_ROOT"] = str(folder / "state")
        rng, count = np.random.default_rng(0), sites * SAMPLES
        x, y = rng.random((count, *SHAPE[1:]), np.float32), rng.integers(0, 10, count)
        np.savez(file, train_images=x, train_labels=y, test_images=x[: 8 * sites], test_labels=y[: 8 * sites])
        env = SimEnv(num_clients=sites, num_threads=sites, workspace_root=str(folder / "work"))
        watch = Watch(lambda: rounds_in(folder / "work", program == FLARE), processes)
        recipe_of(program, size, sites, rounds, file).execute(env)
        marks = watch.close()
    steps = [{key: b[key] - a[key] for key in ("time", "cpu")} for a, b in pairwise(marks[1:])]
    return {
        "seconds": float(np.median([step["time"] for step in steps])),
        "cpu_seconds": float(np.mean([step["cpu"] for step in steps])),
        "server_mb": max(mark["server_mb"] for mark in marks),
        "site_mb": max(mark["site_mb"] for mark in marks),
        "server_mb_by_round": [round(mark["server_mb"], 1) for mark in marks],
        "rounds": rounds,
    }


def recipe_of(program: str, size: str, sites: int, rounds: int, file: Path) -> Any:
    model = MLP(SHAPE, 10, (HIDDEN[size],))
    if program == FLARE:
        script = file.parent / "many_sites_client.py"
        script.write_text(CLIENT)
        common = {"train_script": str(script), "train_args": f"--file {file} --hidden {HIDDEN[size]}"}
        return FedAvgRecipe(name="job", model=model, min_clients=sites, num_rounds=rounds, **common)
    return ClusteredRecipe(
        name="job",
        method=PROGRAMS[program],
        model=model,
        data=Npz(str(file)),
        participants=max(12, 2 * sites) if program.startswith("bank") else sites,  # as many as models, at least
        partition={"partition": "iid"},
        num_rounds=rounds,
        min_clients=sites,
        training={"batch_size": 8, "local_steps": 1},
        transfer="float16" if program.endswith("float16") else "float32",
        key_metric="",
    )


def rounds_in(work: Path, of_flare: bool) -> int:
    """How many rounds have ended, by the records of cfl_flare or by FLARE's log, which says when one starts."""
    server = work / "job" / "server"
    file = server / "log.txt" if of_flare else server / "simulate_job" / "cfl" / "rounds.jsonl"
    text = file.read_text(errors="replace") if file.exists() else ""
    return max(0, len(re.findall(r"Round \d+ started", text)) - 1) if of_flare else text.count("\n")


def measure_rounds(given: argparse.Namespace) -> None:
    """``rounds``: all that the file does not have yet."""
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
    for size in given.sizes:
        for sites in given.sites:
            for program in given.programs:
                key = f"{program}-{size}-{sites}"
                if key not in result["rows"]:
                    rounds = given.rounds or ROUNDS[size]
                    row = in_own_process(__file__, "one", program, size, sites, rounds)
                    result["rows"][key] = {**row, **provenance()}
                    given.out.write_text(json.dumps(result, indent=1) + "\n")
                    shown = {k: round(v, 3) for k, v in row.items() if k != "server_mb_by_round"}
                    print(key, json.dumps(shown), flush=True)


# ---- Provisioned sites ----


NUMBERS = 25_450
CHEAP = """
import numpy as np
import nvflare.client as flare

flare.init()
number = int(flare.get_site_name().rpartition("-")[2])
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    moved = {name: array + np.float32(1 - 2 * (number % 2)) for name, array in received.params.items()}
    flare.send(flare.FLModel(params=moved, metrics={"accuracy": 0.5}))
"""


def provisioned(program: str, sites: int, each: int, rounds: int) -> dict[str, Any]:
    """One job at provisioned sites, ``each`` of them behind a relay; 0 for none."""
    from tests import warm
    from tests.e2e.deployment import SERVER, Deployment

    names = [f"site-{i + 1}" for i in range(sites)]
    with tempfile.TemporaryDirectory() as name, warm.started(Path(name)):
        folder = Path(name)
        (folder / "trial").mkdir()
        data = {site: folder / f"{site}.npz" for site in names}
        relays = {site: f"relay-{i // each}" for i, site in enumerate(names)} if each else {}
        with contextlib.redirect_stdout(io.StringIO()):  # what a kit's preparation changes
            trial = Deployment(folder / "trial", data, relays=relays)
        if program == FLARE:
            as_flare_made(trial.kits, (SERVER, *names), trial.folder)
        try:
            start_by_tens(trial, SERVER, each)
            cheap_recipe(program, sites, rounds, folder).export(str(folder / "jobs"))

            def held() -> dict[str, float]:
                jobs = trial.jobs_of(SERVER)
                return {"cpu": used(jobs), "server_mb": max([0.0, *(p.memory_info().rss / 2**20 for p in jobs)])}

            def ended() -> int:
                if program == FLARE:
                    logs = [*(trial.kits / SERVER).glob("*/log.txt")]
                    return max(0, sum(len(re.findall(r"Round \d+ started", log.read_text())) for log in logs) - 1)
                files = [*(trial.kits / SERVER).glob("*/cfl/rounds.jsonl")]
                return sum(file.read_bytes().count(b"\n") for file in files)

            watch = Watch(ended, held)
            status = outcome(trial, folder / "jobs" / "cheap")
            marks = watch.close()
        finally:
            trial.stop()
    steps = [{key: b[key] - a[key] for key in ("time", "cpu")} for a, b in pairwise(marks[1:])]
    return {
        "ended": status,
        "seconds": float(np.median([step["time"] for step in steps])),
        "server_cpu_seconds_a_site": float(np.mean([step["cpu"] for step in steps])) / sites,
        "server_mb": max(mark["server_mb"] for mark in marks),
        "server_mb_by_round": [round(mark["server_mb"], 1) for mark in marks],
        "rounds": rounds,
    }


def outcome(trial: Any, job: Path) -> str:
    """How a job ended. While many sites start on one machine, its server may not answer in time."""
    with trial.session() as session:
        job_id = session.submit_job(str(job))
    while True:
        try:
            with trial.session() as session:
                return str(trial.wait(session, job_id, 1200)[0])
        except NoConnection:
            time.sleep(5)


def as_flare_made(kits: Path, names: Sequence[str], folder: Path) -> None:
    """Kits take jobs of FLARE's own recipes again; FLARE's folders and the pause between jobs are the deployment's."""
    for local in (kits / name / "local" for name in names):
        content = json.loads(
            (local / "resources.json.default").read_text().replace("/tmp/nvflare", f"{folder}/nvflare")
        )
        for component in content["components"]:
            if component["id"] == "job_scheduler":
                component["args"]["min_schedule_interval"] = 1
        (local / "resources.json").write_text(json.dumps(content))


def start_by_tens(trial: Any, server: str, each: int) -> None:
    """Starts all kits, so that they do not all import at once."""
    trial.start(server)
    time.sleep(10)
    for first in range(0, len(trial.sites), each or 10):
        relay = trial.relays[first // each : first // each + 1] if each else []
        trial.start(*relay, *trial.sites[first : first + (each or 10)])
        time.sleep(each or 10)
    trial.until_connected()


def cheap_recipe(program: str, sites: int, rounds: int, folder: Path) -> Any:
    from tests.e2e.deployment import TRUSTING

    script, weights = folder / "cheap_client.py", np.zeros(NUMBERS, np.float32)
    script.write_text(CHEAP)
    common = {"name": "cheap", "min_clients": sites, "num_rounds": rounds, "train_script": str(script)}
    if program == FLARE:
        return NumpyFedAvgRecipe(model=weights, **common)
    model = {"weights": weights}
    return ClusteredRecipe(method=PROGRAMS[program], model=model, task_timeout=600, **common, **TRUSTING)


def measure_provisioned(given: argparse.Namespace) -> None:
    """``provisioned``: all that the file does not have yet."""
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
    for sites in given.sites:
        for program in given.programs:
            key = f"{program}-{sites}"
            if key not in result["rows"]:
                row = provisioned(program, sites, given.each, given.rounds)
                result["rows"][key] = {**row, "sites_a_relay": given.each, **provenance()}
                given.out.write_text(json.dumps(result, indent=1) + "\n")
                shown = {k: v for k, v in row.items() if k != "server_mb_by_round"}
                print(key, json.dumps(shown), flush=True)


# ---- Sites that wait ----

SLEEPER = """
import time

import nvflare.client as flare

flare.init()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    if flare.get_site_name() == "hospital-3":
        time.sleep(90)
    flare.send(flare.FLModel(params=received.params, metrics={"accuracy": 0.5}))
"""


def measure_idle(given: argparse.Namespace) -> None:
    """``idle``."""
    from tests.e2e.deployment import SERVER, TRUSTING, deployed, hospitals

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        x, y = rng.integers(0, 256, (800, 28, 28, 3), np.uint8), rng.integers(0, 8, 800)
        np.savez(folder / "all.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
        (folder / "trial").mkdir()
        trials = deployed(folder / "trial", hospitals(folder / "all.npz", folder / "data"))
        trial = next(trials)
        os.chdir(folder)
        Path("sleeper.py").write_text(SLEEPER)
        common = {"num_rounds": 1, "min_clients": 3, "task_timeout": 240, **TRUSTING}
        recipe = ClusteredRecipe(
            name="idle", method="fedavg", model=MLP((3, 14, 14), 8), train_script="sleeper.py", **common
        )
        recipe.export("jobs")
        figures: dict[str, Any] = {}

        def look() -> None:
            """In the middle of the third site's minute and a half."""
            while not all((jobs := {name: trial.jobs_of(name) for name in (SERVER, "hospital-1")}).values()):
                time.sleep(1)
            time.sleep(35)
            before = {name: used(processes) for name, processes in jobs.items()}
            started = time.monotonic()
            time.sleep(30)
            minutes = (time.monotonic() - started) / 60
            spent = {name: (used(of) - before[name]) / minutes for name, of in jobs.items()}
            figures.update(server=spent[SERVER], site=spent["hospital-1"])

        watching = threading.Thread(target=look)
        watching.start()
        ended, _ = trial.run(folder / "jobs" / "idle")
        watching.join()
        next(trials, None)
    row = {"ended": ended, "cpu_seconds_a_minute": figures, **provenance()}
    given.out.write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row))


def used(of: list[psutil.Process]) -> float:
    """Processor seconds of processes."""
    return sum(sum(process.cpu_times()[:2]) for process in of)


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = options.add_subparsers(required=True)
    timing = commands.add_parser("rounds", help="what a round takes")
    timing.set_defaults(do=measure_rounds)
    timing.add_argument("--sizes", nargs="+", choices=HIDDEN, default=[*HIDDEN])
    timing.add_argument("--sites", type=int, nargs="+", default=[*SITES])
    timing.add_argument("--programs", nargs="+", choices=[*PROGRAMS, FLARE], default=["fedavg", FLARE])
    timing.add_argument("--rounds", type=int)
    real = commands.add_parser("provisioned", help="what a round takes at provisioned sites")
    real.set_defaults(do=measure_provisioned)
    real.add_argument("--sites", type=int, nargs="+", default=[*SITES])
    real.add_argument("--each", type=int, default=0, help="sites of a relay; 0 for no relays")
    real.add_argument("--programs", nargs="+", choices=["wecfl", FLARE], default=["wecfl", FLARE])
    real.add_argument("--rounds", type=int, default=12)
    idle = commands.add_parser("idle", help="what waiting takes")
    idle.set_defaults(do=measure_idle)
    for command in (timing, real, idle):
        command.add_argument("--out", type=Path, required=True, help="a JSON file")
    alone = commands.add_parser("one", help="one job in this process")
    alone.set_defaults(do=lambda given: tell(one(given.program, given.size, given.sites, given.rounds)))
    for name, kind in (("program", str), ("size", str), ("sites", int), ("rounds", int)):
        alone.add_argument(name, type=kind)
    given = options.parse_args()
    torch.set_num_threads(1)
    given.do(given)


if __name__ == "__main__":
    main()
