# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The blood cells of several hospitals with PyTorch Lightning; half of them number the kinds by another scheme."""

import argparse
import os
from pathlib import Path

import rich
from model import BloodModule
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.flare import ClusteredRecipe
from cfl_flare.results.run_dir import find_runs
from cfl_flare.results.tables import results_table


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--method", default="wecfl:k=2", help="fedavg, wecfl:k=2, ifca:k=2, ...")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--samples", type=int, default=600, help="most images of a site's split")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1, help="of the first models")
    parser.add_argument("--file", default="bloodmnist28.npz", help="in the folder that $CFL_DATA_ROOT names")
    parser.add_argument("--workspace", default="cfl-runs", help="folder of the simulator's files and of the results")
    args = parser.parse_args()
    if not (Path(os.environ.get("CFL_DATA_ROOT", "")) / args.file).is_file():
        parser.error(f"no {args.file} in the folder that $CFL_DATA_ROOT names; README.md says where to get it")
    return args


def main() -> None:
    """Runs the job and prints the results of all runs in the workspace."""
    args = arguments()
    recipe = ClusteredRecipe(
        name=f"lightning-{args.method.partition(':')[0]}",
        method=args.method,
        model=BloodModule(),
        train_script="client.py",
        train_args=f"--file {args.file} --sites {args.clients} --samples {args.samples} --lr {args.lr}",
        num_rounds=args.rounds,
        min_clients=args.clients,
        seed=args.seed,
    )
    recipe.execute(SimEnv(num_clients=args.clients, workspace_root=args.workspace))
    rich.print(results_table(find_runs(args.workspace)))


if __name__ == "__main__":
    main()
