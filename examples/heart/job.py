# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Heart disease in the tables of four hospitals."""

import argparse

import rich
from model import HeartModel
from nvflare.recipe.sim_env import SimEnv

from cfl_flare import ClusteredRecipe, find_runs, results_table
from cfl_flare.data.hospitals import FOLDER, HEART

HOSPITALS = ("cleveland", "hungary", "switzerland", "long-beach")
DATA = FOLDER / HEART


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--method", default="wecfl:k=2", help="fedavg, wecfl:k=2, ifca:k=2, ...")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--fold", type=int, choices=range(5), default=0, help="which fifth of the patients is for testing"
    )
    parser.add_argument("--workspace", default="cfl-runs", help="folder of the simulator's files and of the results")
    return parser.parse_args()


def main() -> None:
    """Runs the job and prints each hospital's results and the table of all runs in the workspace."""
    args = arguments()
    recipe = ClusteredRecipe(
        name=f"heart-{args.method.partition(':')[0]}-{args.fold}",
        method=args.method,
        model=HeartModel(),
        train_script="client.py",
        train_args=f"--data {DATA} --fold {args.fold}",
        num_rounds=args.rounds,
        min_clients=len(HOSPITALS),
    )
    recipe.execute(SimEnv(num_clients=len(HOSPITALS), clients=list(HOSPITALS), workspace_root=args.workspace))
    rich.print(results_table(find_runs(args.workspace)))


if __name__ == "__main__":
    main()
