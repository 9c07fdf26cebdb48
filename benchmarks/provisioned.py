# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Rounds at provisioned sites on this machine, beside FLARE's own recipe for NumPy.

A round's seconds, and what the server's job process takes for each site, with WeCFL and with FLARE's recipe. Seconds
are medians over rounds, processor seconds are means. With ``--each 10`` sites reach the server through FLARE's relays,
ten a relay. So that many fit, the script needs NumPy alone, and jobs' processes are forked from one that has imported
FLARE. Nothing of FLARE is replaced.

    PYTHONPATH=. python benchmarks/provisioned.py --sites 2 8 16 32 --out provisioned.json
    PYTHONPATH=. python benchmarks/provisioned.py --sites 40 --each 10 --programs wecfl --out relays.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from common import provenance, write_json
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.fuel.flare_api.api_spec import NoConnection

from cfl_flare.flare import ClusteredRecipe

OURS, FLARE = "wecfl", "recipe"
METHOD = "wecfl:k=2"
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


def used(of: list[psutil.Process]) -> float:
    """Processor seconds of processes."""
    return sum(sum(process.cpu_times()[:2]) for process in of)


def provisioned(program: str, sites: int, each: int, rounds: int) -> dict[str, Any]:
    """One job at provisioned sites, ``each`` of them behind a relay; 0 for none."""
    from tests.e2e.deployment import SERVER, Deployment
    from tests.helpers import warm

    names = [f"site-{i + 1}" for i in range(sites)]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as at_end:
        at_end.callback(warm.start_forking())
        subprocess.Popen = warm.Popen  # type: ignore[misc]
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
            recipe_of(program, sites, rounds, folder).export(str(folder / "jobs"))

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


def recipe_of(program: str, sites: int, rounds: int, folder: Path) -> Any:
    from tests.e2e.deployment import TRUSTING

    script, weights = folder / "cheap_client.py", np.zeros(NUMBERS, np.float32)
    script.write_text(CHEAP)
    common = {"name": "cheap", "min_clients": sites, "num_rounds": rounds, "train_script": str(script)}
    if program == FLARE:
        return NumpyFedAvgRecipe(model=weights, **common)
    model = {"weights": weights}
    return ClusteredRecipe(method=METHOD, model=model, task_timeout=600, **common, **TRUSTING)


def main() -> None:
    """Runs the command line: all that the file does not have yet."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--sites", type=int, nargs="+", default=[2, 8, 16, 32])
    options.add_argument("--each", type=int, default=0, help="sites of a relay; 0 for no relays")
    options.add_argument("--programs", nargs="+", choices=[OURS, FLARE], default=[OURS, FLARE])
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--out", type=Path, required=True, help="a JSON file")
    given = options.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
    for sites, program in product(given.sites, given.programs):
        key = f"{program}-{sites}"
        if key not in result["rows"]:
            row = provisioned(program, sites, given.each, given.rounds)
            result["rows"][key] = {**row, "sites_a_relay": given.each, **provenance()}
            write_json(given.out, result, indent=1)
            print(key, json.dumps({k: v for k, v in row.items() if k != "server_mb_by_round"}), flush=True)


if __name__ == "__main__":
    main()
