# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs in FLARE's simulator: what a round takes at the thesis's scale, and what a training script costs.

``rounds``: wall and CPU seconds of 200 participants of Fashion-MNIST (cluster-wise Dirichlet), its CNN, 10 steps of
batch 32, everyone in every round, measured in every round, on two sites. Each job runs twice, with few rounds and with
more: the difference is that of the rounds, and what is left is the start. The bare work is the same steps and the same
test samples in a plain torch loop, right before and after (`speed.py`): alone on the machine, and as two processes at
once, one a site, since two sites slow each other down. A hundred rounds are extrapolated from these.

FLARE's ordinary use is FedAvgRecipe with one client a participant on two threads: each task starts a process of its
own. It is measured with fewer clients, and extrapolated to 200.

``script``: WeCFL on sites of blood cells, by a training script of FLARE's Client API and by cfl_flare's own training.
The script, its network and its shares of the data are those of ``examples/blood_cells``; batch size, learning rate,
momentum and epochs are the same. Each run is a job of its own. Finished runs are not run again.

    CFL_DATA_ROOT=... python benchmarks/flare_speed.py rounds --out benchmarks/results/flare-speed.json
    CFL_DATA_ROOT=... python benchmarks/flare_speed.py script --out benchmarks/results/training-script.json
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
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import commit, in_own_process, provenance, tell, told
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import set_per_site_config
from speed import MODEL, bare, data_config

from cfl_flare.data import DataSource, Npz, Samples
from cfl_flare.flare import ClusteredRecipe, simulator
from cfl_flare.models import FashionCNN
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
CLIENTS, THREADS, ORDINARY = 20, 2, (1, 3)


# FLARE used the ordinary way. In a round it does what a participant of cfl_flare does: it measures the model on its
# test split, and takes ten steps.
CLIENT = """
import argparse
from pathlib import Path

import numpy as np
import nvflare.client as flare
import torch
import torch.nn.functional as F

from cfl_flare.models import FashionCNN


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shares", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)

    flare.init()
    share = np.load(args.shares / f"{flare.get_site_name()}.npz", allow_pickle=False)
    arrays = {name: torch.from_numpy(share[name]) for name in ("x", "y", "test_x", "test_y")}
    model = FashionCNN((1, 28, 28), 10)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict({k: torch.as_tensor(v) for k, v in received.params.items()})
        model.eval()
        with torch.no_grad():
            predicted = torch.cat([model(part).argmax(1) for part in arrays["test_x"].split(64)])
        accuracy = (predicted == arrays["test_y"]).float().mean().item()
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        order = torch.cat([torch.randperm(len(arrays["y"])) for _ in range(1 + 320 // len(arrays["y"]))])
        for batch in order[:320].split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(arrays["x"][batch]), arrays["y"][batch]).backward()
            optimizer.step()
        flare.send(flare.FLModel(params=model.state_dict(), metrics={"accuracy": accuracy}))


if __name__ == "__main__":
    main()
"""


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
    script = Path(folder) / "ordinary_client.py"
    script.write_text(CLIENT)
    recipe = FedAvgRecipe(
        name="job",
        model=FashionCNN((1, 28, 28), 10),
        min_clients=clients,
        num_rounds=rounds,
        train_script=str(script),
        train_args=f"--shares {shares}",
    )
    recipe.execute(SimEnv(num_clients=clients, num_threads=THREADS, workspace_root=folder))
    return {}


def one(what: str, count: int, rounds: int) -> None:
    """Runs a job in this process, or the bare work of a site (in place of rounds), and says what it took."""
    if what == "bare":
        work = bare(data_config(count).host(Npz("fashionmnist.npz"), f"site-{rounds + 1}", rounds, SITES), 3)
        return tell({"cpu_seconds": work["ideal"] + work["evaluation"]})
    if what in KINDS:
        return script_job(what, rounds)
    started, before = time.monotonic(), used()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CFL_STATE_ROOT"] = str(Path(folder) / "state")
        figures = ordinary(count, rounds, folder) if what == "ordinary" else job(what, count, rounds, folder)
        took = {"wall_seconds": time.monotonic() - started, "cpu_seconds": used() - before}
    return tell({**took, **figures})


def side_by_side(participants: int) -> float:
    """CPU seconds of the bare work of a round where every site's share is a process of its own, all at once."""
    commands = [[sys.executable, __file__, "one", "bare", str(participants), str(site)] for site in range(SITES)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return sum(told(process.communicate()[0])["cpu_seconds"] for process in running)


def difference(what: str, count: int, few: int, more: int) -> dict[str, Any]:
    """What a round takes, from two jobs."""
    short, long = (in_own_process(__file__, "one", what, count, rounds) for rounds in (few, more))
    rounds = {k: (long[k] - short[k]) / (more - few) for k in ("wall_seconds", "cpu_seconds")}
    start = {k: short[k] - few * rounds[k] for k in rounds}
    return {"jobs": {str(few): short, str(more): long}, "a_round": rounds, "start": start}


def check_rounds(rows: Sequence[str], few: int, more: int) -> None:
    """Ends the script if two jobs of so many rounds do not tell what a round takes.

    Raises:
        SystemExit: with the smallest numbers that do.
    """
    warm = {"ifca-cam", "ifca-cam-race"} & {*rows}
    fewest = WARMUP + 1 if warm else 2  # a job's bytes are those of its last round but one
    if set(rows) != {"ordinary"} and not fewest <= few < more:
        sys.exit(
            f"flare_speed.py: --rounds {few} {more} should be at least {fewest} {fewest + 1}, and the second larger"
        )


def measure_rounds(given: argparse.Namespace) -> None:
    """``rounds``: all that the file does not have yet."""
    check_rounds(given.rows, *given.rounds)
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
    for row in given.rows:
        if row in result["rows"]:
            continue
        if row == "ordinary":
            figures = difference(row, given.clients, *ORDINARY)
            figures["wall_seconds_of_a_round_of_200"] = 200 / given.clients * figures["a_round"]["wall_seconds"]
        else:
            people = data_config(given.participants).host(Npz("fashionmnist.npz"), "local", 0, 1)
            both = [side_by_side(given.participants)]
            before, figures, after = (
                bare(people, 1),
                difference(row, given.participants, *given.rounds),
                bare(people, 1),
            )
            both.append(side_by_side(given.participants))
            least = sum(b["ideal"] + b["evaluation"] for b in (before, after)) / 2
            took = figures["a_round"]["cpu_seconds"]
            figures |= {"bare_cpu_seconds": least, "ratio": took / least}
            figures |= {"bare_side_by_side_cpu_seconds": sum(both) / 2, "ratio_side_by_side": took / (sum(both) / 2)}
            figures["wall_seconds_of_100_rounds"] = (
                figures["start"]["wall_seconds"] + 100 * figures["a_round"]["wall_seconds"]
            )
        setting = {"participants": given.participants, "sites": SITES, "rounds": given.rounds, "clients": given.clients}
        result["rows"][row] = {**figures, "setting": setting, **provenance()}
        print(row, json.dumps({k: v for k, v in figures.items() if k != "jobs"}), flush=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")


# ---- A training script ----


KINDS = ("script", "own")
EXAMPLE = Path(__file__).parents[1] / "examples" / "blood_cells"
BLOOD, SAMPLES, LR, WARDS, SCRIPT_ROUNDS = "bloodmnist28.npz", 600, 0.02, 8, 10


class Share(DataSource):
    """A site's share of the blood cells, as the example's script cuts it.

    Args:
        index: of the site.
    """

    def __init__(self, index: int = 0):
        self.index = index

    def load(self) -> tuple[Samples, Samples]:
        """Training and test samples."""
        import client  # the example's

        share = client.load_share(BLOOD, f"site-{self.index + 1}", WARDS, SAMPLES)
        train, test = (Samples(x.numpy().astype(np.float32), y.numpy()) for x, y in (share["train"], share["test"]))
        return train, test


def recipe_of(kind: str, seed: int) -> ClusteredRecipe:
    """The job, by the script or by cfl_flare's own training."""
    from model import BloodNet  # the example's

    common = {
        "name": f"{kind}-{seed}",
        "method": "wecfl:k=2",
        "model": BloodNet(),
        "num_rounds": SCRIPT_ROUNDS,
        "seed": seed,
    }
    common |= {"min_clients": WARDS}
    if kind == "script":
        arguments = f"--file {BLOOD} --sites {WARDS} --samples {SAMPLES} --lr {LR}"
        return ClusteredRecipe(**common, train_script="client.py", train_args=arguments)
    training = {"lr": LR, "momentum": 0.9, "batch_size": 32, "local_epochs": 1}
    recipe = ClusteredRecipe(**common, data={"class_path": "flare_speed.Share", "args": {}}, training=training)
    set_per_site_config(recipe, {f"site-{i + 1}": {"data_args": {"index": i}} for i in range(WARDS)})
    return recipe


def script_job(kind: str, seed: int) -> None:
    """One job in this process, from the example's folder; prints what came out as one line of JSON."""
    os.chdir(EXAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        env = SimEnv(clients=[f"site-{i + 1}" for i in range(WARDS)], num_threads=WARDS, workspace_root=folder)
        recipe_of(kind, seed).execute(env)
        (run,) = find_runs(folder)
        clusters = [p["cluster"] for p in sorted(run.summary["participants"], key=lambda p: p["name"])]
        figures = {
            "kind": kind,
            "seed": seed,
            "clusters": clusters,
            "groups_found": clusters in ([0, 1] * (WARDS // 2), [1, 0] * (WARDS // 2)),
            "accuracy": round(run.rounds[-1]["served_accuracy"], 4),
            "worst_accuracy": round(run.rounds[-1]["served_worst_accuracy"], 4),
            "seconds_a_round": round(float(np.median([r["seconds"] for r in run.rounds[1:]])), 2),
            "failed": sum(len(r["failed"]) for r in run.rounds),
        }
    tell(figures)


def measure_script(given: argparse.Namespace) -> None:
    """``script``: all runs that the file does not have yet, each in a process of its own."""
    setting = {"file": BLOOD, "clients": WARDS, "rounds": SCRIPT_ROUNDS, "samples": SAMPLES, "lr": LR}
    known: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"runs": []}
    path = os.pathsep.join([str(EXAMPLE), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = {(run["kind"], run["seed"]) for run in known["runs"]}
    for seed, kind in product(given.seeds, KINDS):
        if (kind, seed) not in done:
            script = str(Path(__file__).resolve())
            figures = in_own_process(script, "one", kind, 0, seed, env={**os.environ, "PYTHONPATH": path})
            known["runs"].append({**figures, "commit": commit()})
            said = {"command": provenance()["command"], "setting": setting}
            given.out.write_text(json.dumps({**said, "runs": known["runs"]}, indent=1))
            print(json.dumps(figures), flush=True)


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = options.add_subparsers(required=True)
    timing = commands.add_parser("rounds", help="what a round takes")
    timing.set_defaults(do=measure_rounds)
    timing.add_argument("--out", type=Path, default=Path("flare-speed.json"))
    timing.add_argument("--participants", type=int, default=200)
    timing.add_argument("--rounds", type=int, nargs=2, default=[FEW, MORE])
    timing.add_argument("--clients", type=int, default=CLIENTS, help="of the ordinary use")
    timing.add_argument("--rows", nargs="+", choices=[*METHODS, "ordinary"], default=[*METHODS, "ordinary"])
    script = commands.add_parser("script", help="a training script and cfl_flare's own training")
    script.set_defaults(do=measure_script)
    script.add_argument("--out", type=Path, default=Path("training-script.json"))
    script.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    alone = commands.add_parser("one", help="one job in this process")
    alone.set_defaults(do=lambda given: one(given.what, given.count, given.rounds))
    alone.add_argument("what", choices=[*METHODS, "ordinary", "bare", *KINDS])
    alone.add_argument("count", type=int)
    alone.add_argument("rounds", type=int, help="or the number of a site, or a seed")
    given = options.parse_args()
    torch.set_num_threads(1)
    given.do(given)


if __name__ == "__main__":
    main()
