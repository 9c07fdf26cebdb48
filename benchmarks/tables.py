# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of a published table, measured: every method on every partition with every seed.

A plan says what belongs to a paper (``plans/``). ``run`` measures cells, in the in-process loop, each in a folder of
its own, and adds finished ones to the file of all cells (``cells.py``). A finished cell is not run again, and one that
was stopped goes on from its last checkpoint. Several of these processes may work on the same folder, each takes the
next free cell. A row is a name of the plan's or any method, with penalties and private layers if it says some, and a
plan's settings can be changed for some cells. ``report`` reads the file of cells and writes a table as JSON and
Markdown, with the published figures beside ours. `reports.py` keeps cells.

    CFL_DATA_ROOT=... python benchmarks/tables.py run --out cells --table 3.1
    CFL_DATA_ROOT=... python benchmarks/tables.py run --out cells --rows fedavg ifca --partitions dirichlet --seeds 0 1
    CFL_DATA_ROOT=... python benchmarks/tables.py run --plan fedac --out cells --rows fedavg fedac:k=3,mu=1 --set lr=0.1
    CFL_DATA_ROOT=... python benchmarks/tables.py run --out cells --rows "wecfl:k=3 + private=norm" --table 3.1
    python benchmarks/tables.py report --cells cells --out family
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from common import AFTER, FACTS, add_cells, commit, load_cell, read_cells, write_json
from plans import PLANS, Plan
from plans.hospitals import save_scores

from cfl_flare.cli.specs import build_named
from cfl_flare.core.config import parse_spec, require
from cfl_flare.core.errors import CFLError
from cfl_flare.core.private import Division
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.loop import model_factory, run_loop
from cfl_flare.engine.plan import JobSettings, RunPlan
from cfl_flare.engine.settings import SiteSettings
from cfl_flare.engine.site import check_private
from cfl_flare.results.store import Store

# ---- Cells ----


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
        both = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(used.ru_utime + used.ru_stime for used in both)

    def count(self) -> None:
        """Takes note of one more round."""
        now = self.all[-1]
        now["rounds"] += 1
        now["wall_seconds"] = round(time.monotonic() - self._wall, 1)
        now["cpu_seconds"] = round(self._used() - self._cpu, 1)
        write_json(self._path, self.all)

    def total(self, key: str) -> float:
        """The sum over all attempts."""
        return round(sum(attempt[key] for attempt in self.all), 1)


def cell_name(plan: Plan, row: str, partition: str, seed: int, settings: Mapping[str, Any]) -> str:
    """A cell's folder; what a file system may not like in a row or a setting becomes a dash."""
    changes = "".join(f"-{key}={value}" for key, value in settings.items())
    name = re.sub(r"[^\w.,=+-]+", "-", row + changes)
    return f"{partition}/{name}-m{plan.participants}-r{plan.rounds}-s{seed}"


def run_cell(folder: Path, plan: Plan, row: str, partition: str, seed: int, settings: Mapping[str, Any]) -> None:
    """Runs one cell, if no other process has it and it is not done.

    Args:
        folder: the cell's own.
        plan: with the settings already in it.
        row: of the plan, or a method.
        partition: of the plan.
        seed: of partition, models and batches.
        settings: those that are not the plan's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        if (folder / FACTS).exists():
            return
        attempts = Attempts(folder / "attempts.json")
        plan = plan.of_row(row)
        spec, *penalties = plan.method(row)
        method, private = build_named(spec, penalties), plan.private(row)
        server = run_loop(
            RunPlan(
                method=method,
                model=plan.model,
                reader=plan.source_of(seed),
                data=plan.data(partition, seed),
                server=plan.scheduled(seed),
                training=plan.training,
                site=SiteSettings(keep_served=False),
                job=JobSettings(min_clients=1, private=private),
            ),
            folder=folder,
            on_round=lambda measured: attempts.count(),
            checkpoints=Checkpoints(Store(folder / "checkpoints"), every=10),
        )
        if plan.training.score_bins:
            save_scores(folder, server)
        if plan.after is not None:
            write_json(folder / AFTER, plan.after(plan, folder))
        facts = {
            "plan": plan.name,
            "row": row,
            "method": " + ".join(plan.said(row)),
            "partition": partition,
            "seed": seed,
            "participants": plan.participants,
            "rounds": plan.rounds,
            "settings": dict(settings),
            "commit": commit(),
            "torch": str(torch.__version__),
            "wall_seconds": attempts.total("wall_seconds"),
            "cpu_seconds": attempts.total("cpu_seconds"),
            "attempts": attempts.all,
        }
        write_json(folder / FACTS, facts, indent=1)
        (folder / "attempts.json").unlink()
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def run(given: argparse.Namespace) -> None:
    """``run``."""
    commit()  # the code that is running, whatever is checked out meanwhile
    plan = PLANS[given.plan]
    _, settings = parse_spec("set:" + ",".join(given.set))
    schedule = {key: getattr(given, key) for key in ("participants", "rounds") if getattr(given, key) is not None}
    altered = plan.altered({**settings, **schedule})
    unknown = [table for table in given.table if table not in plan.tables]
    there = ", ".join(plan.tables) or "none"
    require(not unknown, f"plan {plan.name}: table {''.join(unknown[:1])!r} is unknown; there are {there}")
    asked_for = [plan.tables[table] for table in given.table] or [(list(plan.partitions), list(plan.rows))]
    partitions = given.partitions or list(dict.fromkeys(p for some, _ in asked_for for p in some))
    rows = plan.expanded(given.rows or list(dict.fromkeys(row for _, some in asked_for for row in some)))
    for partition in partitions:
        there = ", ".join(plan.partitions)
        require(partition in plan.partitions, f"plan {plan.name}: partition {partition!r} is unknown; there: {there}")
    for row in rows:  # what is wrong is said before the first cell
        (method, *penalties), private, row_settings = altered.method(row), altered.private(row), altered.of_row(row)
        built = build_named(method, penalties)
        check_private(built, Division.of(model_factory(row_settings.model)(), private), private, row_settings.rounds)
    cells = read_cells(given.out)
    require(
        all(cell.plan.name == plan.name for cell in cells),
        f"{given.out} holds cells of another plan; give plan {plan.name} a folder of its own",
    )
    done = {cell.name for cell in cells}
    for seed, partition, row in product(given.seeds, partitions, rows):
        name = cell_name(altered, row, partition, seed, settings)
        if name not in done:
            run_cell(given.out / name, altered, row, partition, seed, settings)
            if (given.out / name / FACTS).exists():  # not where another process is at it
                add_cells(given.out, [load_cell(given.out, name)])
        print(name, flush=True)


def report(given: argparse.Namespace) -> None:
    """``report``."""
    from report import write_report

    write_report(given.cells, given.out)


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = options.add_subparsers(required=True)
    running = commands.add_parser("run", help="measure cells")
    running.set_defaults(do=run)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--plan", choices=PLANS, default="family", help="which paper's (%(default)s)")
    running.add_argument("--table", nargs="+", default=[], help="the rows and partitions of a table of the paper")
    running.add_argument("--rows", nargs="+", help="names of rows or sweeps, or methods; default the table's")
    running.add_argument("--partitions", nargs="+", help="default the table's")
    running.add_argument("--seeds", nargs="+", type=int, default=[0])
    running.add_argument("--participants", type=int, help="default the plan's")
    running.add_argument("--rounds", type=int, help="default the plan's")
    running.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings that are not the plan's")
    reporting = commands.add_parser("report", help="write the table of the finished cells")
    reporting.set_defaults(do=report)
    reporting.add_argument("--cells", type=Path, required=True, help="the folder of the file of cells")
    reporting.add_argument("--out", type=Path, required=True, help="the files' name without its ending")
    given = options.parse_args()
    try:
        given.do(given)
    except CFLError as error:
        sys.exit(f"tables.py: {error}")


if __name__ == "__main__":
    main()
