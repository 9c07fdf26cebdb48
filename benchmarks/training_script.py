# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""WeCFL on sites of blood cells, by a training script of FLARE's Client API and by cfl_flare's own training.

The script, its network and its shares of the data are those of ``examples/blood_cells``; batch size, learning rate,
momentum and epochs are the same. Each run is a job in FLARE's simulator, in a process of its own. Finished runs are not
run again. Writes one JSON file.

    CFL_DATA_ROOT=... python benchmarks/training_script.py --out benchmarks/results/training-script.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import set_per_site_config
from own_process import in_own_process, tell
from provenance import commit

from cfl_flare.data import DataSource, Samples
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.results.run_dir import find_runs

EXAMPLE = Path(__file__).parents[1] / "examples" / "blood_cells"
FILE, SAMPLES, LR, CLIENTS, ROUNDS = "bloodmnist28.npz", 600, 0.02, 8, 10


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

        share = client.load_share(FILE, f"site-{self.index + 1}", CLIENTS, SAMPLES)
        train, test = (Samples(x.numpy().astype(np.float32), y.numpy()) for x, y in (share["train"], share["test"]))
        return train, test


def recipe_of(kind: str, seed: int) -> ClusteredRecipe:
    """The job, by the script or by cfl_flare's own training."""
    from model import BloodNet  # the example's

    common = {"name": f"{kind}-{seed}", "method": "wecfl:k=2", "model": BloodNet(), "num_rounds": ROUNDS, "seed": seed}
    common |= {"min_clients": CLIENTS}
    if kind == "script":
        arguments = f"--file {FILE} --sites {CLIENTS} --samples {SAMPLES} --lr {LR}"
        return ClusteredRecipe(**common, train_script="client.py", train_args=arguments)
    training = {"lr": LR, "momentum": 0.9, "batch_size": 32, "local_epochs": 1}
    recipe = ClusteredRecipe(**common, data={"class_path": "training_script.Share", "args": {}}, training=training)
    set_per_site_config(recipe, {f"site-{i + 1}": {"data_args": {"index": i}} for i in range(CLIENTS)})
    return recipe


def run_one(kind: str, seed: int) -> None:
    """One job in this process, from the example's folder; prints what came out as one line of JSON."""
    os.chdir(EXAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        env = SimEnv(clients=[f"site-{i + 1}" for i in range(CLIENTS)], num_threads=CLIENTS, workspace_root=folder)
        recipe_of(kind, seed).execute(env)
        (run,) = find_runs(folder)
        clusters = [p["cluster"] for p in sorted(run.summary["participants"], key=lambda p: p["name"])]
        found = {
            "kind": kind,
            "seed": seed,
            "clusters": clusters,
            "groups_found": clusters in ([0, 1] * (CLIENTS // 2), [1, 0] * (CLIENTS // 2)),
            "accuracy": round(run.rounds[-1]["served_accuracy"], 4),
            "worst_accuracy": round(run.rounds[-1]["served_worst_accuracy"], 4),
            "seconds_a_round": round(float(np.median([r["seconds"] for r in run.rounds[1:]])), 2),
            "failed": sum(len(r["failed"]) for r in run.rounds),
        }
    tell(found)


def main() -> None:
    """All runs, each in a process of its own."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("training-script.json"))
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--one", nargs=2, metavar=("KIND", "SEED"), help="this run alone, in this process")
    given = options.parse_args()
    if given.one:
        run_one(given.one[0], int(given.one[1]))
        return
    setting = {"file": FILE, "clients": CLIENTS, "rounds": ROUNDS, "samples": SAMPLES, "lr": LR}
    known: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"runs": []}
    path = os.pathsep.join([str(EXAMPLE), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    for seed in given.seeds:
        for kind in ("script", "own"):
            if any((run["kind"], run["seed"]) == (kind, seed) for run in known["runs"]):
                continue
            env = {**os.environ, "PYTHONPATH": path}
            found = in_own_process(str(Path(__file__).resolve()), "--one", kind, seed, env=env)
            known["runs"].append({**found, "commit": commit()})
            said = " ".join(["python", "benchmarks/training_script.py", *sys.argv[1:]])
            given.out.write_text(json.dumps({"command": said, "setting": setting, "runs": known["runs"]}, indent=1))
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
