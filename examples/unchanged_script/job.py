# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One script, two recipes: FLARE's FedAvgRecipe, and ClusteredRecipe."""

import argparse

import rich
from model import DigitNet
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.flare import ClusteredRecipe
from cfl_flare.results.run_dir import find_runs
from cfl_flare.results.tables import results_table


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--recipe", choices=("fedavg", "clustered"), default="clustered", help="FLARE's or ours")
    parser.add_argument("--method", default="wecfl:k=2", help="of the clustered recipe: fedavg, fesem:k=2, ...")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workspace", default="cfl-runs", help="folder of the simulator's files and of the results")
    return parser.parse_args()


def main() -> None:
    """Runs one of the two jobs."""
    args = arguments()
    job = {
        "model": DigitNet(),
        "train_script": "client.py",
        "train_args": f"--lr {args.lr}",
        "num_rounds": args.rounds,
        "min_clients": args.clients,
    }
    if args.recipe == "fedavg":
        recipe = FedAvgRecipe(name="unchanged-fedavg", **job)
    else:
        recipe = ClusteredRecipe(name="unchanged-clustered", method=args.method, **job)
    run = recipe.execute(SimEnv(num_clients=args.clients, workspace_root=args.workspace))
    if args.recipe == "fedavg":
        print(f"results: {run.get_result()}")
    else:
        rich.print(results_table(find_runs(args.workspace)))


if __name__ == "__main__":
    main()
