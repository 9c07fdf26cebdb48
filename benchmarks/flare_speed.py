# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The thesis's scale through FLARE: wall and CPU seconds, beside the bare work and beside FLARE's ordinary use.

200 participants of Fashion-MNIST (cluster-wise Dirichlet), its CNN, 10 steps of batch 32, everyone in every round,
measured in every round, on two sites. Each job runs twice, with few rounds and with more: the difference is that of the
rounds, and what is left is the start. The bare work is the same steps and the same test samples in a plain torch loop,
right before and after (`speed.py`): alone on the machine, and as two processes at once, one a site, since two
sites slow each other down. A hundred rounds are extrapolated from these.

FLARE's ordinary use is FedAvgRecipe with one client a participant on two threads: each task starts a process of its
own. It is measured with fewer clients, and extrapolated to 200.

    CFL_DATA_ROOT=... python benchmarks/flare_speed.py --out benchmarks/results/flare-speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe.sim_env import SimEnv
from own_process import in_own_process, tell, told
from provenance import provenance
from speed import MODEL, bare, data_config

from cfl_flare.data import Npz
from cfl_flare.flare import ClusteredRecipe, simulator
from cfl_flare.models import FashionCNN
from cfl_flare.results.run_dir import find_runs
from cfl_flare.training.settings import TrainSettings

WARMUP = 2
METHODS = {
    "fedavg": "fedavg",
    "wecfl": "wecfl:k=10",
    "ifca": "ifca:k=10,assignment_samples=320",
    "ifca-cam": f"ifca-cam:k=10,assignment_samples=320,warmup={WARMUP}",  # measured after the warm-up
}
FEW, MORE, SITES = 3, 8, 2
CLIENTS, THREADS, ORDINARY = 20, 2, (1, 3)


def used() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    both = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def job(name: str, participants: int, rounds: int, folder: str) -> dict[str, float]:
    """A clustered job, in this process; what it sent in its last round beside the time."""
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


def ordinary(clients: int, rounds: int, folder: str) -> dict[str, float]:
    """FLARE's FedAvgRecipe, one client a participant."""
    shares = Path(folder) / "shares"
    shares.mkdir()
    people = data_config(200).host(Npz("fashionmnist.npz"), "local", 0, 1)[:clients]
    for i, data in enumerate(people):
        splits: dict[str, Any] = {"x": data.train.x, "y": data.train.y, "test_x": data.test.x, "test_y": data.test.y}
        np.savez(shares / f"site-{i + 1}.npz", **splits)
    script = str(Path(__file__).with_name("ordinary_client.py"))
    recipe = FedAvgRecipe(
        name="job",
        model=FashionCNN((1, 28, 28), 10),
        min_clients=clients,
        num_rounds=rounds,
        train_script=script,
        train_args=f"--shares {shares}",
    )
    recipe.execute(SimEnv(num_clients=clients, num_threads=THREADS, workspace_root=folder))
    return {}


def one(what: str, count: int, rounds: int) -> None:
    """Runs a job in this process, or the bare work of a site (in place of rounds), and says what it took."""
    if what == "bare":
        work = bare(data_config(count).host(Npz("fashionmnist.npz"), f"site-{rounds + 1}", rounds, SITES), 3)
        return tell({"cpu_seconds": work["ideal"] + work["evaluation"]})
    started, before = time.monotonic(), used()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CFL_STATE_ROOT"] = str(Path(folder) / "state")
        found = ordinary(count, rounds, folder) if what == "ordinary" else job(what, count, rounds, folder)
        took = {"wall_seconds": time.monotonic() - started, "cpu_seconds": used() - before}
    return tell({**took, **found})


def side_by_side(participants: int) -> float:
    """CPU seconds of the bare work of a round where every site's share is a process of its own, all at once."""
    commands = [[sys.executable, __file__, "--one", "bare", str(participants), str(site)] for site in range(SITES)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return sum(told(process.communicate()[0])["cpu_seconds"] for process in running)


def difference(what: str, count: int, few: int, more: int) -> dict[str, Any]:
    """What a round takes, from two jobs."""
    short, long = (in_own_process(__file__, "--one", what, count, rounds) for rounds in (few, more))
    rounds = {k: (long[k] - short[k]) / (more - few) for k in ("wall_seconds", "cpu_seconds")}
    start = {k: short[k] - few * rounds[k] for k in rounds}
    return {"jobs": {str(few): short, str(more): long}, "a_round": rounds, "start": start}


def check_rounds(rows: Sequence[str], few: int, more: int) -> None:
    """Ends the script if two jobs of so many rounds do not tell what a round takes.

    Raises:
        SystemExit: with the smallest numbers that do.
    """
    fewest = WARMUP + 1 if "ifca-cam" in rows else 2  # a job's bytes are those of its last round but one
    if set(rows) != {"ordinary"} and not fewest <= few < more:
        sys.exit(
            f"flare_speed.py: --rounds {few} {more} should be at least {fewest} {fewest + 1}, and the second larger"
        )


def main() -> None:
    """All that the file does not have yet."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("flare-speed.json"))
    options.add_argument("--participants", type=int, default=200)
    options.add_argument("--rounds", type=int, nargs=2, default=[FEW, MORE])
    options.add_argument("--clients", type=int, default=CLIENTS, help="of the ordinary use")
    options.add_argument("--rows", nargs="+", choices=[*METHODS, "ordinary"], default=[*METHODS, "ordinary"])
    options.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.one:
        return one(given.one[0], int(given.one[1]), int(given.one[2]))
    check_rounds(given.rows, *given.rounds)
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
    for row in given.rows:
        if row in result["rows"]:
            continue
        if row == "ordinary":
            found = difference(row, given.clients, *ORDINARY)
            found["wall_seconds_of_a_round_of_200"] = 200 / given.clients * found["a_round"]["wall_seconds"]
        else:
            people = data_config(given.participants).host(Npz("fashionmnist.npz"), "local", 0, 1)
            both = [side_by_side(given.participants)]
            before, found, after = bare(people, 1), difference(row, given.participants, *given.rounds), bare(people, 1)
            both.append(side_by_side(given.participants))
            least = sum(b["ideal"] + b["evaluation"] for b in (before, after)) / 2
            took = found["a_round"]["cpu_seconds"]
            found |= {"bare_cpu_seconds": least, "ratio": took / least}
            found |= {"bare_side_by_side_cpu_seconds": sum(both) / 2, "ratio_side_by_side": took / (sum(both) / 2)}
            found["wall_seconds_of_100_rounds"] = (
                found["start"]["wall_seconds"] + 100 * found["a_round"]["wall_seconds"]
            )
        setting = {"participants": given.participants, "sites": SITES, "rounds": given.rounds, "clients": given.clients}
        result["rows"][row] = {**found, "setting": setting, **provenance()}
        print(row, json.dumps({k: v for k, v in found.items() if k != "jobs"}), flush=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
