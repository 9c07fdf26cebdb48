# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the cells of a published table: every row on every partition with every seed, through the in-process loop.

A finished cell is not run again, and one that was stopped goes on from its last checkpoint. Several of these processes
may work on the same folder, each takes the next free cell.

    CFL_DATA_ROOT=... python benchmarks/tables.py --out cells --rows fedavg ifca --partitions dirichlet --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import fcntl
import json
import resource
import subprocess
import time
from itertools import product
from pathlib import Path
from typing import Any

from cfl_flare.cli import build_named
from cfl_flare.data import DataConfig, Npz
from cfl_flare.loop import run_loop
from cfl_flare.server import ServerSettings
from cfl_flare.training.settings import TrainSettings

MODEL = {"class_path": "cfl_flare.models.FashionCNN", "args": {"input_shape": [1, 28, 28], "num_classes": 10}}
# The thesis's settings (sec. 3.5). Its reference code keeps the momentum, and its accuracies depend on it.
TRAINING = TrainSettings(lr=0.001, momentum=0.9, batch_size=32, local_steps=10, keep_momentum=True)
PARTITIONS: dict[str, dict[str, Any]] = {
    "cluster_dirichlet": {"partition": "cluster_dirichlet", "a_between": 0.1, "a_within": 10.0, "groups": 10},
    "cluster_n_class": {"partition": "cluster_n_class", "n_group": 3, "n_client": 2, "groups": 10},
    "dirichlet": {"partition": "dirichlet", "alpha": 0.1},
}
ROWS = {
    "fedavg": "fedavg",
    "ifca": "ifca:k=10,assignment_samples=320",
    "fesem": "fesem:k=10",
    "wecfl": "wecfl:k=10",
}


def commit() -> str:
    """The commit that is checked out where this file lies."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_cell(folder: Path, row: str, partition: str, seed: int, participants: int, rounds: int) -> None:
    """Runs one cell, if no other process has it and it is not done."""
    if (folder / "cell.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        started, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        run_loop(
            method=build_named(ROWS[row]),
            model=MODEL,
            source=Npz(path="fashionmnist.npz"),
            data=DataConfig(participants, PARTITIONS[partition], seed),
            settings=ServerSettings(rounds, seed),
            training=TRAINING,
            folder=folder,
        )
        used = resource.getrusage(resource.RUSAGE_SELF)
        facts = {
            "row": row,
            "method": ROWS[row],
            "partition": partition,
            "seed": seed,
            "participants": participants,
            "rounds": rounds,
            "commit": commit(),
            "wall_seconds": round(time.monotonic() - started, 1),
            "cpu_seconds": round(used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime, 1),
        }
        (folder / "cell.json").write_text(json.dumps(facts, indent=1))


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    options.add_argument("--partitions", nargs="+", choices=PARTITIONS, default=list(PARTITIONS))
    options.add_argument("--seeds", nargs="+", type=int, default=[0])
    options.add_argument("--participants", type=int, default=50)
    options.add_argument("--rounds", type=int, default=60)
    given = options.parse_args()
    for seed, partition, row in product(given.seeds, given.partitions, given.rows):
        name = f"{partition}/{row}-m{given.participants}-r{given.rounds}-s{seed}"
        run_cell(given.out / name, row, partition, seed, given.participants, given.rounds)
        print(name, flush=True)


if __name__ == "__main__":
    main()
