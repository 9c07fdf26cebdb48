# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Survival in hospitals of two kinds, with a Cox regression in NumPy."""

import argparse

import rich
from model import initial
from nvflare.recipe.sim_env import SimEnv

from cfl_flare import ClusteredRecipe, find_runs, results_table


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--method", default="wecfl:k=2", help="fedavg, wecfl:k=2, fesem:k=2, ...")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--patients", type=int, default=300, help="of a hospital, to train on and as many to test on")
    parser.add_argument("--workspace", default="cfl-runs", help="folder of the simulator's files and of the results")
    return parser.parse_args()


def main() -> None:
    """Runs the job and prints the results of all runs in the workspace."""
    args = arguments()
    recipe = ClusteredRecipe(
        name=f"survival-{args.method.partition(':')[0]}",
        method=args.method,
        framework="numpy",
        model=initial(),
        train_script="client.py",
        train_args=f"--patients {args.patients}",
        num_rounds=args.rounds,
        min_clients=args.clients,
        key_metric="c_index",
    )
    recipe.execute(SimEnv(num_clients=args.clients, workspace_root=args.workspace))
    rich.print(results_table(find_runs(args.workspace)))


if __name__ == "__main__":
    main()
