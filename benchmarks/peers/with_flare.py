# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""cfl_flare in its loop and in FLARE's simulator, and FLARE's FedAvgRecipe with one client a participant.

    python with_flare.py PLACE-METHOD SHARES ROUNDS

The recipe's training script is this file, with the shares alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nvflare.client as flare
import torch
from work import BATCH, EPOCHS, LR, Net, accuracy, order, shares_of, size, tell, train

METHODS = {"fedavg": "fedavg", "ifca": "ifca:k=4,assignment_samples=320", "fesem": "fesem:k=4"}
SITES = 2


def run_cfl_flare(place: str, method: str, shares: Path, rounds: int, folder: Path) -> list[float]:
    """A run in the loop or in FLARE's simulator; the mean accuracy of its last round."""
    from cfl_flare.cli.specs import build_named
    from cfl_flare.data import Npz
    from cfl_flare.engine.loop import run_loop
    from cfl_flare.engine.plan import RunPlan
    from cfl_flare.flare import ClusteredRecipe, simulator
    from cfl_flare.results.run_dir import find_runs

    settings = {
        "method": build_named(METHODS[method]),
        "model": {"class_path": "work.Net", "args": {}},
        "data": Npz(str(shares), key="owner"),
        "participants": len(shares_of(shares)),
        "partition": {"partition": "natural"},
        "min_clients": SITES,
        "training": {"lr": LR, "momentum": 0.0, "batch_size": BATCH, "local_epochs": EPOCHS},
        "num_rounds": rounds,
    }
    if place == "loop":
        run_loop(RunPlan.of(**settings), folder / "run")
    else:
        ClusteredRecipe(name="job", **settings).execute(simulator(SITES, folder))
    (run,) = find_runs(folder)
    return [run.rounds[-1]["served_accuracy"]]


def run_recipe(shares: Path, rounds: int, folder: Path) -> list[float]:
    """FLARE's FedAvg; the accuracies of its last model."""
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.recipe.sim_env import SimEnv

    people = shares_of(shares)
    recipe = FedAvgRecipe(
        name="job",
        model=Net(),
        min_clients=len(people),
        num_rounds=rounds,
        train_script=str(Path(__file__).resolve()),
        train_args=str(shares),
    )
    recipe.execute(SimEnv(num_clients=len(people), num_threads=len(people), workspace_root=str(folder)))
    model = Net()
    (file,) = folder.rglob("FL_global_model.pt")
    model.load_state_dict(torch.load(file, weights_only=True)["model"])
    return [accuracy(model, share) for share in people]


def train_client(shares: Path) -> None:
    """A client of FLARE's recipe: it measures the model that it receives, and trains it."""
    torch.set_num_threads(1)
    flare.init()
    share = shares_of(shares)[int(flare.get_site_name().removeprefix("site-")) - 1]
    model = Net()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict({name: torch.as_tensor(array) for name, array in received.params.items()})
        metrics = {"accuracy": accuracy(model, share)}
        train(model, share)
        flare.send(flare.FLModel(params=model.state_dict(), metrics=metrics))


def main() -> None:
    """Runs the method, and prints the accuracy."""
    given = order(*(f"{place}-{name}" for place in ("loop", "simulator") for name in METHODS), "recipe-fedavg")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CFL_STATE_ROOT"] = str(folder / "state")
        if given.library == "recipe":
            served = run_recipe(given.shares, given.rounds, folder)
        else:
            served = run_cfl_flare(given.library, given.method, given.shares, given.rounds, folder)
    tell(served, size(Net()), "nvflare", "torch")


if __name__ == "__main__":
    train_client(Path(sys.argv[1])) if len(sys.argv) == 2 else main()
