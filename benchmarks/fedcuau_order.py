# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Does CUAU order participants by how heterogeneous their data is (FedCUAU sec. 5, Fig. 1 and Prop. 1)?

Stage 1 alone, on the four tiers of the paper's Table 2: every participant trains the same untrained model, and CUAU is
the distance of its last layer's update from the mean one. It is compared with the tiers, and with the distance of the
participant's label distribution from that of all (sum_i |p_k(y = i) - p(y = i)|, Prop. 1), for several seeds, learning
rates and numbers of local epochs (the paper has one epoch, and a learning rate of 0.1).

    CFL_DATA_ROOT=... python benchmarks/fedcuau_order.py --seeds 0 1 2 --out benchmarks/results/fedcuau/order.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from colours import COLOURS
from learners import learner_of, runtime_of
from matplotlib.figure import Figure
from plans import PLANS, Plan
from png import save
from provenance import provenance
from scipy.stats import spearmanr

from cfl_flare.cli.specs import build_named
from cfl_flare.data import ParticipantData
from cfl_flare.methods import FedCUAU, Update
from cfl_flare.methods.cuau import AU
from cfl_flare.training.learner import Learner


def stage_one(learner: Learner, epochs: int) -> Update:
    """`FedCUAU.client_update` with any number of local epochs."""
    start = learner.initial(0)
    trained = learner.in_round(0).train(start, purpose="stage 1", epochs=epochs)
    return Update(learner.participant, learner.samples, {AU: (trained - start).take(start.layout.head)})


def label_distances(labels: Sequence[np.ndarray]) -> np.ndarray:
    """``(m,)`` sum_i |p_k(y = i) - p(y = i)| of each participant's labels, p being that of all of them together.

    >>> label_distances([np.array([0, 0]), np.array([0, 1])])
    array([0.5, 0.5])
    """
    classes = 1 + max(int(own.max()) for own in labels)
    counts = np.stack([np.bincount(own, minlength=classes) for own in labels])
    own = counts / counts.sum(axis=1, keepdims=True)
    return np.asarray(np.abs(own - counts.sum(axis=0) / counts.sum()).sum(axis=1))


def measured(plan: Plan, people: Sequence[ParticipantData], seed: int, epochs: int) -> dict[str, Any]:
    """One stage 1: the participants' CUAU, their clusters, and how far both go with the tiers."""
    tiers = [data.group or 0 for data in people]
    method = build_named(f"fedcuau:k={len(set(tiers))}")
    assert isinstance(method, FedCUAU)
    work = runtime_of(plan.model, plan.training, seed)
    updates = [stage_one(learner_of(work, data), epochs) for data in people]
    state = method.aggregate(method.start(work.initial), updates, {})
    cuau = [float(np.linalg.norm((update.diffs[AU] - state.bank[AU]).vector)) for update in updates]
    distances = label_distances([data.train.y for data in people])
    found = [state.assignment[data.name] for data in people]
    return {
        "seed": seed,
        "lr": plan.training.lr,
        "epochs": epochs,
        "with_tiers": float(spearmanr(cuau, tiers).statistic),
        "with_label_distance": float(spearmanr(cuau, distances).statistic),
        "in_own_tier": float(np.mean(np.equal(found, tiers))),
        "mean_by_tier": [float(np.mean([c for c, t in zip(cuau, tiers) if t == tier])) for tier in sorted(set(tiers))],
        "participants": [{"tier": t, "cuau": c, "label_distance": float(d)} for t, c, d in zip(tiers, cuau, distances)],
    }


def table(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over seeds, for each learning rate and number of epochs."""
    groups: dict[tuple[float, int], list[dict[str, Any]]] = defaultdict(list)
    for one in results:
        groups[one["lr"], one["epochs"]].append(one)
    keys = ("with_tiers", "with_label_distance", "in_own_tier")
    return [
        {
            **{"lr": lr, "epochs": epochs, "seeds": len(members)},
            **{key: statistics.fmean(one[key] for one in members) for key in keys},
            "mean_by_tier": np.mean([one["mean_by_tier"] for one in members], axis=0).tolist(),
        }
        for (lr, epochs), members in groups.items()
    ]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table."""
    tiers = range(len(rows[0]["mean_by_tier"]))
    titles = ["lr", "epochs", "seeds", "Spearman with tier", "with label distance", "in own tier"]
    titles += [f"CUAU of C{t + 1}" for t in tiers]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        figures = [f"{row[k]:.2f}" for k in ("with_tiers", "with_label_distance", "in_own_tier")]
        means = [f"{value:.3g}" for value in row["mean_by_tier"]]
        lines.append(f"| {row['lr']:g} | {row['epochs']} | {row['seeds']} | {' | '.join([*figures, *means])} |")
    return "\n".join(lines) + "\n"


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """CUAU by label distance, a colour a tier: a panel a learning rate and number of epochs, of the first seed."""
    shown = [one for one in results if one["seed"] == results[0]["seed"]]
    figure = Figure(figsize=(4 * len(shown), 4), layout="constrained")
    for axes, one in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown):
        for tier in range(len(one["mean_by_tier"])):
            own = [p for p in one["participants"] if p["tier"] == tier]
            axes.scatter(
                [p["label_distance"] for p in own], [p["cuau"] for p in own], 12, COLOURS[tier], label=f"C{tier + 1}"
            )
        axes.set(title=f"lr {one['lr']:g}, {one['epochs']} epochs", xlabel="distance of the label distributions")
    figure.axes[0].set_ylabel("CUAU")
    figure.axes[0].legend(fontsize="small")
    save(figure, path)


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options.add_argument("--lr", nargs="+", type=float, default=[0.1, 0.01])
    options.add_argument("--epochs", nargs="+", type=int, default=[1, 5])
    options.add_argument("--model", help="one of the package's networks; default the plan's")
    options.add_argument("--participants", type=int, default=PLANS["fedcuau"].participants)
    options.add_argument("--out", type=Path, required=True, help="a JSON file")
    given = options.parse_args()
    torch.set_num_threads(1)
    plan = PLANS["fedcuau"].altered(
        {"participants": given.participants, **({"model": given.model} if given.model else {})}
    )
    results = []
    for seed in given.seeds:
        people = plan.data("tiers", seed).host(plan.source, "local", 0, 1)
        for lr, epochs in product(given.lr, given.epochs):
            trained = replace(plan, training=replace(plan.training, lr=lr))
            results.append(measured(trained, people, seed, epochs))
            print({key: results[-1][key] for key in ("seed", "lr", "epochs", "with_tiers", "in_own_tier")}, flush=True)
    rows = table(results)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    content = provenance() | {
        "model": plan.model,
        "partition": plan.partitions["tiers"],
        "rows": rows,
        "results": results,
    }
    given.out.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
