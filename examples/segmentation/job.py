# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Segmentation of lesions in the scans of two kinds of scanners."""

import argparse

import rich
from model import LesionNet
from nvflare.recipe.sim_env import SimEnv

from cfl_flare import ClusteredRecipe, find_runs, results_table


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--method", default="wecfl:k=2", help="fedavg, wecfl:k=2, cfl:eps1=0.4,eps2=0.6, ...")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--samples", type=int, default=64, help="scans that a site trains on")
    parser.add_argument("--workspace", default="cfl-runs", help="folder of the simulator's files and of the results")
    return parser.parse_args()


def main() -> None:
    """Runs the job and prints the results of all runs in the workspace."""
    args = arguments()
    recipe = ClusteredRecipe(
        name=f"segmentation-{args.method.partition(':')[0]}",
        method=args.method,
        model=LesionNet(),
        train_script="client.py",
        train_args=f"--samples {args.samples}",
        num_rounds=args.rounds,
        min_clients=args.clients,
        key_metric="dice",
    )
    recipe.execute(SimEnv(num_clients=args.clients, workspace_root=args.workspace))
    rich.print(results_table(find_runs(args.workspace)))


if __name__ == "__main__":
    main()
