# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAC's server: memory, disk and time with many participants of a model of a million parameters.

The participants do not train: each sends its group's direction and noise. A first round asks all of them, so that every
model is known; the others ask a quarter. Writes one JSON file.

    python benchmarks/fedac_memory.py --out benchmarks/results/fedac-memory.json
"""

from __future__ import annotations

import argparse
import json
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import commit

from cfl_flare.core.arrays import Archive
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Result
from cfl_flare.methods import Download, Participant, Update, build_method

GROUPS = 10


def resident() -> dict[str, float]:
    """MB of this process: its own memory, and pages of files that the system takes back when it needs them."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    own, files = (int(lines[key].split()[0]) / 1024 for key in ("RssAnon", "RssFile"))
    return {"own_mb": round(own), "file_pages_mb": round(files)}


class Peak:
    """The largest memory of its own that the process had, looked at twenty times a second."""

    def __init__(self) -> None:
        self.own_mb = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.own_mb = max(self.own_mb, resident()["own_mb"])
            time.sleep(0.05)


def answer(server: Server, name: str, number: int, layout: Layout) -> Update:
    """A made-up update: to the own group's place, with noise."""
    index = int(name[1:])
    group = np.random.default_rng(index % GROUPS).normal(size=layout.size).astype(np.float32)
    noise = np.random.default_rng([index, number]).normal(size=layout.size).astype(np.float32)
    sent: Download = server.method.distribute(server.state, name)
    slot = sent.slots[0]
    model = Params(layout, group + 0.3 * noise)
    return Update(name, 100, {slot: model - server.state.bank[slot]})


def measure(participants: int, size: int, rounds: int, folder: Path) -> dict[str, Any]:
    """One run."""
    layout = Layout.of(torch.nn.Sequential(torch.nn.Linear(1000, size // 1000), torch.nn.Linear(size // 1000, 10)))
    zero = Params(layout, np.zeros(layout.size, np.float32))
    method = build_method({"method": "fedac", "k": GROUPS, "tuning": False})
    people = [Participant(f"p{i}", "site", 100, i % GROUPS) for i in range(participants)]
    before, peak, archive = resident(), Peak(), Archive(folder)
    settings = ServerSettings(rounds, sample=1.0)
    server = Server(method, layout, people, settings, method.start(lambda i: zero), archive=archive)
    lines = []
    for number in range(rounds):
        if number == 1:
            server.settings = ServerSettings(rounds, sample=0.25)
        for name, order in server.tasks().items():
            given = answer(server, name, number, layout) if order.train else None
            server.accept(Result(name, given, {"served_accuracy": 0.5} if order.evaluate else {}), "site")
        started = time.process_time()
        server.finish_round()
        server.forget(server.state.round)
        spent = round(time.process_time() - started, 1)
        disk = sum(p.stat().st_size for p in folder.glob("*.npy")) // 2**20
        lines.append({"round": number, "server_cpu_seconds": spent, "archive_mb": disk, **resident()})
        print(lines[-1], flush=True)
    return {
        "participants": participants,
        "parameters": layout.size,
        "all_models_mb": round(participants * layout.nbytes / 2**20),
        "before": before,
        "peak_own_mb": peak.own_mb,
        "peak_with_file_pages_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "rounds": lines,
    }


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--participants", type=int, default=1000)
    options.add_argument("--parameters", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--archive", type=Path, default=None, help="folder for the models; default: a temporary one")
    given = options.parse_args()
    torch.set_num_threads(1)
    temporary = Archive()
    folder = given.archive or temporary.folder
    found = measure(given.participants, given.parameters, given.rounds, folder)
    given.out.write_text(json.dumps({"commit": commit(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
