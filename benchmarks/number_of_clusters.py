# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How often ``k=auto`` finds the number of clusters, and how often its set of numbers has it.

Participants train one model by FedAvg for five rounds. ``k=auto`` then sees the directions of the round's updates from
their mean. Groups are true groups of the deal; one group is a federation without any.

    CFL_DATA_ROOT=... python benchmarks/number_of_clusters.py --out benchmarks/results/number-of-clusters-set.json

It saves after each run and continues where it was.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from common import measure_missing
from plans import PLANS

from cfl_flare.clustering.gap import compute_directions, describe_count, estimate_clusters
from cfl_flare.clustering.measures import compute_inner_products
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.methods import FedAvg

ROUNDS, SITES = 5, 16


class Case(NamedTuple):
    """Data and how it is dealt.

    Attributes:
        plan: whose source, network and training are taken.
        partition: the rule, as on the command line or as a job says it.
        groups: the true number of them.
    """

    plan: str
    partition: Any
    groups: int


CASES = {
    "iid": Case("digits", "iid", 1),
    "permuted 3": Case("digits", "label_permutation:groups=3", 3),
    "scanners 2": Case("digits", "scanner:groups=2", 2),
    **{f"blood, {name}": Case("blood", rule, 4) for name, rule in PLANS["blood"].partitions.items()},
}


def inner_products_of(case: Case, sites: int, seed: int) -> np.ndarray:
    """Trains FedAvg, and returns the inner products ``(m, m)`` of the last round's updates."""
    matrices = list[np.ndarray]()
    usual = FedAvg.aggregate

    def watched(self: FedAvg, state: Any, updates: Any, assignment: Any) -> Any:
        matrices.append(
            compute_inner_products(np.stack([self.select_features(update.main_diff) for update in updates]))
        )
        return usual(self, state, updates, assignment)

    plan = PLANS[case.plan]
    data = plan.data(next(iter(plan.partitions)), seed)
    run = RunPlan(
        method=FedAvg(),
        model=plan.model,
        reader=plan.source,
        data=replace(data, partition=case.partition, participants=sites, indicator_samples=0),
        server=replace(plan.scheduled(seed), num_rounds=ROUNDS, evaluate_every=ROUNDS),
        training=plan.training,
    )
    with patch.object(FedAvg, "aggregate", watched):
        run_loop(run)
    return matrices[-1]


def measure(case: str, sites: int, seed: int) -> dict[str, Any]:
    """Returns the number and the set that ``k=auto`` found."""
    points = compute_directions(inner_products_of(CASES[case], sites, seed))
    number = estimate_clusters(points @ points.T, min(10, sites // 2))
    return {"k": number.k, "set": describe_count(number)["set"]}


def summarize(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Counts for each case and number of sites how often the number and the set were right."""
    table = []
    for name, sites in dict.fromkeys((row["case"], row["sites"]) for row in rows):
        chosen = [row for row in rows if (row["case"], row["sites"]) == (name, sites)]
        groups = CASES[name].groups
        sets = [row["set"] for row in chosen]
        line = {"case": name, "sites": sites, "runs": len(chosen)}
        line["right"] = sum(row["k"] == groups for row in chosen)
        line["set_has_it"] = sum(low <= groups <= high for low, high in sets)
        line["single"] = sum(low == high for low, high in sets)
        line["mean_size"] = round(statistics.fmean(high - low + 1 for low, high in sets), 1)
        table.append(line)
    return {"summary": table}


def main() -> None:
    """Runs the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--sites", nargs="+", type=int, default=[SITES])
    options.add_argument("--seeds", nargs="+", type=int, default=list(range(300, 317)))
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    wanted = (
        {"case": case, "sites": sites, "seed": seed}
        for seed, case, sites in product(given.seeds, given.cases, given.sites)
    )
    measure_missing(given.out, wanted, measure, summarize, rounds=ROUNDS)


if __name__ == "__main__":
    main()
