# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs in FLARE's simulator: what a round takes at the thesis's scale.

Wall and CPU seconds of 200 participants of Fashion-MNIST (cluster-wise Dirichlet), its CNN, 10 steps of batch 32,
everyone in every round, measured in every round, on two sites. Each job runs twice, with few rounds and with more: the
difference is that of the rounds, and what is left is the start. The bare work is the same steps and the same test
samples in a plain torch loop, right before and after (`speed.py`). A hundred rounds are extrapolated from these.

    CFL_DATA_ROOT=... python benchmarks/flare_speed.py --out benchmarks/results/flare-speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import in_own_process, provenance, tell
from speed import MODEL, bare, data_config

from cfl_flare.data import Npz
from cfl_flare.flare import ClusteredRecipe, simulator
from cfl_flare.results.run_dir import find_runs
from cfl_flare.training.settings import TrainSettings

WARMUP = 2
METHODS = {
    "fedavg": "fedavg",
    "wecfl": "wecfl:k=10",
    "ifca": "ifca:k=10,assignment_samples=320,race=False",
    "ifca-race": "ifca:k=10,assignment_samples=320,race=True",
    "ifca-cam": f"ifca-cam:k=10,assignment_samples=320,race=False,warmup={WARMUP}",  # measured after the warm-up
    "ifca-cam-race": f"ifca-cam:k=10,assignment_samples=320,race=True,warmup={WARMUP}",
}
FEW, MORE, SITES = 3, 8, 2


def count_seconds() -> float:
    """Returns CPU seconds of this process and of those that it has waited for."""
    both = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def run_job(name: str, participants: int, rounds: int, folder: str) -> dict[str, float]:
    """Runs a clustered job in this process, and returns the bytes of its last round but one."""
    recipe = ClusteredRecipe(
        name="job",
        method=METHODS[name],
        model=MODEL,
        data=Npz("fashionmnist.npz"),
        participants=participants,
        partition={"partition": "cluster_dirichlet"},
        num_rounds=rounds,
        min_clients=SITES,
        training=TrainSettings(),
        key_metric="",
    )
    recipe.execute(simulator(SITES, Path(folder)))
    (run,) = find_runs(folder)
    return {"bytes_down": run.rounds[-2]["bytes_down"], "bytes_up": run.rounds[-2]["bytes_up"]}


def measure_one(what: str, count: int, rounds: int) -> None:
    """Runs a job in this process, and tells what it took."""
    started, before = time.monotonic(), count_seconds()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CFL_STATE_ROOT"] = str(Path(folder) / "state")
        figures = run_job(what, count, rounds, folder)
        took = {"wall_seconds": time.monotonic() - started, "cpu_seconds": count_seconds() - before}
    tell({**took, **figures})


def measure_difference(what: str, count: int, few: int, more: int) -> dict[str, Any]:
    """Returns what a round takes, from two jobs."""
    short, long = (in_own_process(__file__, "--one", what, count, rounds) for rounds in (few, more))
    a_round = {key: (long[key] - short[key]) / (more - few) for key in ("wall_seconds", "cpu_seconds")}
    start = {key: short[key] - few * a_round[key] for key in a_round}
    return {"jobs": {str(few): short, str(more): long}, "a_round": a_round, "start": start}


def measure_row(row: str, participants: int, rounds: Sequence[int]) -> dict[str, Any]:
    """Returns what a method's round takes, beside the bare work before and after."""
    people = data_config(participants).host(Npz("fashionmnist.npz"), "local", 0, 1)
    before = bare(people, 1)
    figures = measure_difference(row, participants, *rounds)
    after = bare(people, 1)

    least = sum(work["ideal"] + work["evaluation"] for work in (before, after)) / 2
    figures |= {"bare_cpu_seconds": least, "ratio": figures["a_round"]["cpu_seconds"] / least}
    hundred = figures["start"]["wall_seconds"] + 100 * figures["a_round"]["wall_seconds"]
    return {**figures, "wall_seconds_of_100_rounds": hundred}


def check_rounds(rows: Sequence[str], few: int, more: int) -> None:
    """Ends the script if two jobs of so many rounds do not tell what a round takes.

    Raises:
        SystemExit: with the smallest numbers that do.
    """
    warm = {"ifca-cam", "ifca-cam-race"} & {*rows}
    fewest = WARMUP + 1 if warm else 2  # a job's bytes are those of its last round but one
    if not fewest <= few < more:
        sys.exit(
            f"flare_speed.py: --rounds {few} {more} should be at least {fewest} {fewest + 1}, and the second larger"
        )


def main() -> None:
    """Runs the command line: all that the file does not have yet."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("flare-speed.json"))
    options.add_argument("--participants", type=int, default=200)
    options.add_argument("--rounds", type=int, nargs=2, default=[FEW, MORE])
    options.add_argument("--rows", nargs="+", choices=METHODS, default=list(METHODS))
    options.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.one:
        what, count, rounds = given.one
        measure_one(what, int(count), int(rounds))
        return
    check_rounds(given.rows, *given.rounds)
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
    for row in given.rows:
        if row not in result["rows"]:
            figures = measure_row(row, given.participants, given.rounds)
            setting = {"participants": given.participants, "sites": SITES, "rounds": given.rounds}
            result["rows"][row] = {**figures, "setting": setting, **provenance()}
            print(row, json.dumps({key: value for key, value in figures.items() if key != "jobs"}), flush=True)
            given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
