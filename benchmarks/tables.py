# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of a published table, measured: every method on every partition with every seed, in the in-process loop.

``run`` measures cells. A finished cell is not run again, and one that was stopped goes on from its last checkpoint.
Several of these processes may work on the same folder, each takes the next free cell. ``report`` reads the finished
cells and writes a table as JSON and Markdown, with the published figures beside ours, and a figure. ``ensembles``
adds the logits of finished cells' models. ``keep`` copies what ``report`` needs to where it can be committed.

    CFL_DATA_ROOT=... python benchmarks/tables.py run --out cells --rows fedavg ifca --partitions dirichlet --seeds 0 1
    python benchmarks/tables.py report --cells cells --out benchmarks/results/family
"""

from __future__ import annotations

import argparse
import fcntl
import json
import resource
import shutil
import subprocess
import time
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from cfl_flare.cli import build_named
from cfl_flare.data import DataConfig, Npz
from cfl_flare.loop import run_loop
from cfl_flare.server import ServerSettings
from cfl_flare.store import Store
from cfl_flare.summary import RoundMetrics
from cfl_flare.training.settings import TrainSettings

MODEL = {"class_path": "cfl_flare.models.FashionCNN", "args": {"input_shape": [1, 28, 28], "num_classes": 10}}
# The thesis's settings (sec. 3.5). Its reference code keeps the momentum, and its accuracies depend on it.
TRAINING = TrainSettings(lr=0.001, momentum=0.9, batch_size=32, local_steps=10, keep_momentum=True)
PARTITIONS: dict[str, dict[str, Any]] = {
    "cluster_dirichlet": {"partition": "cluster_dirichlet", "a_between": 0.1, "a_within": 10.0, "groups": 10},
    "cluster_n_class": {"partition": "cluster_n_class", "n_group": 3, "n_client": 2, "groups": 10},
    "dirichlet": {"partition": "dirichlet", "alpha": 0.1},
}
IFCA, FEW_SHOT = "k=10,assignment_samples=320", "k=10,clustering_rounds=10"
CON, REP, CKS = "contrastive:mu=2,tau=0.1", "contrastive:on=representations,mu=0.5,tau=1", "knowledge_sharing:lam=0.1"
CON_CKS = (f"{CON},scope=head", f"{CKS},scope=backbone")
# A method and its penalties. The thesis clusters in the first ten rounds alone where FeSEM and WeCFL have penalties.
ROWS: dict[str, tuple[str, ...]] = {
    "fedavg": ("fedavg",),
    "ifca": (f"ifca:{IFCA}",),
    "fesem": ("fesem:k=10",),
    "wecfl": ("wecfl:k=10",),
    "wecfl-con-para": (f"wecfl:{FEW_SHOT}", CON),
    "wecfl-con-rep": (f"wecfl:{FEW_SHOT}", REP),
    "wecfl-cks": (f"wecfl:{FEW_SHOT}", CKS),
    "wecfl-con-cks": (f"wecfl:{FEW_SHOT}", *CON_CKS),
    "ifca-con-para": (f"ifca:{IFCA}", CON),
    "ifca-cks": (f"ifca:{IFCA}", CKS),
    "ifca-cam": (f"ifca-cam:{IFCA},warmup=18",),
    "fesem-cam": ("fesem-cam:k=10,warmup=18",),
}


@cache
def commit() -> str:
    """The commit that is checked out where this file lies, when it is first asked for."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class Attempts:
    """What each attempt at a cell has cost, written after every round: a stopped process has no time to say it.

    Args:
        path: the JSON file.
    """

    def __init__(self, path: Path):
        self._path = path
        self.all: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        self.all.append({"commit": commit(), "rounds": 0, "wall_seconds": 0.0, "cpu_seconds": 0.0})
        self._wall, self._cpu = time.monotonic(), self._used()

    def _used(self) -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def count(self, measured: RoundMetrics) -> None:
        """Takes note of one more round."""
        now = self.all[-1]
        now["rounds"] += 1
        now["wall_seconds"] = round(time.monotonic() - self._wall, 1)
        now["cpu_seconds"] = round(self._used() - self._cpu, 1)
        write(self._path, json.dumps(self.all))

    def total(self, key: str) -> float:
        """The sum over all attempts."""
        return round(sum(attempt[key] for attempt in self.all), 1)


def write(path: Path, text: str) -> None:
    """Writes a file that is never seen half-written."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def run_cell(folder: Path, row: str, partition: str, seed: int, participants: int, rounds: int) -> None:
    """Runs one cell, if no other process has it and it is not done."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        if (folder / "cell.json").exists():
            return
        attempts = Attempts(folder / "attempts.json")
        run_loop(
            method=build_named(*ROWS[row][:1], ROWS[row][1:]),
            model=MODEL,
            source=Npz(path="fashionmnist.npz"),
            data=DataConfig(participants, PARTITIONS[partition], seed),
            settings=ServerSettings(rounds, seed),
            training=TRAINING,
            folder=folder,
            on_round=attempts.count,
            checkpoints=Store(folder / "checkpoints"),
        )
        facts = {
            "row": row,
            "method": " + ".join(ROWS[row]),
            "partition": partition,
            "seed": seed,
            "participants": participants,
            "rounds": rounds,
            "commit": commit(),
            "wall_seconds": attempts.total("wall_seconds"),
            "cpu_seconds": attempts.total("cpu_seconds"),
            "attempts": attempts.all,
        }
        write(folder / "cell.json", json.dumps(facts, indent=1))
        (folder / "attempts.json").unlink()
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def run(given: argparse.Namespace) -> None:
    """``run``."""
    commit()  # the code that is running, whatever is checked out meanwhile
    for seed, partition, row in product(given.seeds, given.partitions, given.rows):
        name = f"{partition}/{row}-m{given.participants}-r{given.rounds}-s{seed}"
        run_cell(given.out / name, row, partition, seed, given.participants, given.rounds)
        print(name, flush=True)


def report(given: argparse.Namespace) -> None:
    """``report``."""
    from tables_report import write_report  # the script beside this one

    write_report(given.cells, given.out)


def keep(given: argparse.Namespace) -> None:
    """``keep``."""
    from tables_report import keep  # the script beside this one

    keep(given.cells, given.to)


def ensembles(given: argparse.Namespace) -> None:
    """``ensembles``."""
    from tables_ensembles import write_ensembles  # the script beside this one

    write_ensembles(given.cells, given.partition, given.suffix, given.out)


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = options.add_subparsers(required=True)
    running = commands.add_parser("run", help="measure cells")
    running.set_defaults(do=run)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    running.add_argument("--partitions", nargs="+", choices=PARTITIONS, default=list(PARTITIONS))
    running.add_argument("--seeds", nargs="+", type=int, default=[0])
    running.add_argument("--participants", type=int, default=50)
    running.add_argument("--rounds", type=int, default=60)
    reporting = commands.add_parser("report", help="write the table of the finished cells")
    reporting.set_defaults(do=report)
    reporting.add_argument("--cells", type=Path, required=True)
    reporting.add_argument("--out", type=Path, required=True, help="the files' name without its ending")
    keeping = commands.add_parser("keep", help="copy what the report needs of the finished cells, and no models")
    keeping.set_defaults(do=keep)
    keeping.add_argument("--cells", type=Path, required=True)
    keeping.add_argument("--to", type=Path, required=True)
    summing = commands.add_parser("ensembles", help="thesis Table 7.5 from the models of finished cells")
    summing.set_defaults(do=ensembles)
    summing.add_argument("--cells", type=Path, required=True)
    summing.add_argument("--partition", choices=PARTITIONS, default="cluster_dirichlet")
    summing.add_argument("--suffix", default="-m50-r60-s0", help="of the cells' names (%(default)s)")
    summing.add_argument("--out", type=Path, required=True, help="the file's name without its ending")
    given = options.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
