# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clustered federated learning beside FedAvg, on sites that label the same digits by two schemes."""

import argparse

import rich
from model import DigitNet
from nvflare.recipe.sim_env import SimEnv

from cfl_flare import ClusteredRecipe, find_runs, results_table


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--method", default="wecfl:k=2", help="fedavg, ifca:k=2, fesem:k=2, wecfl:k=2, ...")
    parser.add_argument("--num_clients", type=int, default=6, help="at most 10")
    parser.add_argument("--num_rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first models")
    parser.add_argument("--workspace", default="/tmp/nvflare/clustered-fl", help="of the simulator and of the results")
    return parser.parse_args()


def main() -> None:
    """Runs the job in FLARE's simulator and prints the results of all runs in the workspace."""
    args = arguments()
    recipe = ClusteredRecipe(
        name=f"clustered-fl-{args.method.partition(':')[0]}",
        method=args.method,
        model=DigitNet(),
        train_script="client.py",
        num_rounds=args.num_rounds,
        min_clients=args.num_clients,
        seed=args.seed,
    )
    recipe.execute(SimEnv(num_clients=args.num_clients, workspace_root=args.workspace))
    rich.print(results_table(find_runs(args.workspace)))


if __name__ == "__main__":
    main()
