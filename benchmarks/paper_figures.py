# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Two figures of papers that are no tables of cells.

``similarity``: which likeness of models tells that their participants' labels are alike (FedAC sec. 4.3, Fig. 2)? As in
the paper, participants train by FedAvg for 20 epochs (here all of them in each of 20 rounds of one epoch). Then each
goes on alone, and all pairs of the models that come out are compared: low-rank cosine (LrCos), cosine without
reduction, and L2 distance. Each is compared with the Kullback-Leibler divergence of the pair's label distributions, the
mean of both directions, by Spearman's correlation over the pairs. 1 would be the same order: a cosine counts as the
distance 1 - cos. The models' differences from the common model are compared too, of which L2 is the same. The paper
does not say for how long participants train alone. A picture of the matrices is drawn beside the JSON file.

``order``: does CUAU order participants by how heterogeneous their data is (FedCUAU sec. 5, Fig. 1 and Prop. 1)? It is
stage 1 alone, on the four tiers of the paper's Table 2. Every participant trains the same untrained model, and CUAU is
the distance of its last layer's update from the mean one. It is compared with the tiers, and with the distance of the
participant's label distribution from that of all (sum_i |p_k(y = i) - p(y = i)|, Prop. 1), for several seeds, learning
rates and numbers of local epochs. The paper has one epoch, and a learning rate of 0.1.

    CFL_DATA_ROOT=... python benchmarks/paper_figures.py similarity --out benchmarks/results/fedac/similarity.json
    CFL_DATA_ROOT=... python benchmarks/paper_figures.py order --seeds 0 1 --out benchmarks/results/fedcuau/order.json
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
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from common import COLOURS, provenance, save
from matplotlib.figure import Figure
from plans import PLANS, Plan
from plans.plan import learner_of, runtime_of
from scipy.stats import spearmanr
from sklearn.metrics.pairwise import cosine_distances, euclidean_distances

from cfl_flare.cli.specs import build_named
from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import ParticipantData
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.methods import FedCUAU, Update
from cfl_flare.methods.cuau import AU
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.learner import Learner

# ---- FedAC's Fig. 2 ----


DIMENSIONS = 50  # D (sec. 4.3)
SMOOTHING = 0.01  # of a label's probability, so that a label that somebody lacks makes no infinity


def label_divergences(labels: list[np.ndarray], smoothing: float = SMOOTHING) -> np.ndarray:
    """``(m, m)`` mean of KL(p_i || p_j) and KL(p_j || p_i) of the participants' label distributions.

    >>> label_divergences([np.array([0, 1]), np.array([0, 1, 0, 1])]).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    classes = 1 + max(int(part.max()) for part in labels)
    counts = np.stack([np.bincount(part, minlength=classes) for part in labels])
    p = counts / counts.sum(axis=1, keepdims=True) + smoothing
    p /= p.sum(axis=1, keepdims=True)
    log = np.log(p)
    forward = (p * log).sum(axis=1)[:, None] - p @ log.T
    return np.asarray((forward + forward.T) / 2)


def distances(models: np.ndarray) -> dict[str, np.ndarray]:
    """``(m, m)`` by each likeness of models ``(m, d)``; the largest is the least alike."""
    from cfl_flare.clustering.measures import directions, mapped

    rows = list(models)
    low = mapped(rows, directions(rows, DIMENSIONS))
    return {"LrCos": cosine_distances(low), "cosine": cosine_distances(models), "L2": euclidean_distances(models)}


def correlations(matrices: dict[str, np.ndarray], divergences: np.ndarray) -> dict[str, float]:
    """Spearman's, over the pairs."""
    pairs = np.triu_indices(len(divergences), 1)
    return {name: float(spearmanr(matrix[pairs], divergences[pairs]).statistic) for name, matrix in matrices.items()}


def trained(plan: Plan, partition: str, seed: int, alone: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The participants' models ``(m, d)``, the common model ``(d,)`` before that, the labels' KL, its accuracy."""
    data = plan.data(partition, seed)
    with TemporaryDirectory() as folder:
        run_loop(
            RunPlan(
                method=build_named("fedavg"),
                model=plan.model,
                reader=plan.source,
                data=data,
                server=plan.scheduled(seed),
                training=plan.training,
            ),
            folder=Path(folder),
        )
        arrays, _ = load_arrays(Path(folder) / "clusters" / "global.safetensors")
        accuracy = load_run(folder).summary["final"]["served_accuracy"]
    work = runtime_of(plan.model, plan.training, seed)
    common, models, labels = work.resident.layout.pack(arrays), [], []
    for participant in data.host(plan.source, "local", 0, 1):
        model = common
        for i in range(alone):
            model = learner_of(work, participant, plan.rounds + i).train(model, purpose="alone")
        models.append(model.part("all"))
        labels.append(participant.train.y)
    return np.stack(models), common.part("all"), label_divergences(labels), accuracy


def similarity(plan: Plan, partition: str, seed: int, alone: int) -> dict[str, Any]:
    """One row."""
    models, common, divergences, accuracy = trained(plan, partition, seed, alone)
    return {
        **{"partition": partition, "seed": seed, "epochs": plan.rounds, "alone": alone, "common_accuracy": accuracy},
        "models": correlations(distances(models), divergences),
        "differences": correlations(distances(models - common), divergences),
        "matrices": {"KL": divergences.tolist(), **{k: d.tolist() for k, d in distances(models).items()}},
    }


def similarity_table(rows: list[dict[str, Any]]) -> str:
    """A line a row."""
    columns = [*(("models", name) for name in rows[0]["models"]), ("differences", "LrCos"), ("differences", "cosine")]
    titles = [
        "partition",
        "seed",
        "epochs + alone",
        "accuracy of the common model",
        *(f"{name} of {kind}" for kind, name in columns),
    ]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for r in rows:
        figures = [f"{r[kind][name]:.2f}" for kind, name in columns]
        first = [r["partition"], str(r["seed"]), f"{r['epochs']} + {r['alone']}", f"{100 * r['common_accuracy']:.1f}"]
        lines.append(f"| {' | '.join([*first, *figures])} |")
    return "\n".join(lines) + "\n"


def draw_similarity(rows: list[dict[str, Any]], path: Path) -> None:
    """The paper's Fig. 2: the matrices, a line of panels a row."""
    figure = Figure(figsize=(16, 4 * len(rows)), layout="constrained")
    for line, r in zip(figure.subplots(len(rows), 4, squeeze=False), rows):
        for axes, (name, matrix) in zip(line, r["matrices"].items()):
            figure.colorbar(axes.imshow(matrix), ax=axes, shrink=0.7)
            axes.set_title(f"{name}: {r['partition']}, seed {r['seed']}")
    save(figure, path, dpi=50)


def similarity_command(given: argparse.Namespace) -> None:
    """``similarity``."""
    plan = PLANS["fedac"]
    everyone = {"participants": given.participants or plan.participants, "sample": 1.0, "local_steps": None}
    rounds = {"local_epochs": 1, "rounds": given.epochs, "evaluate_every": given.epochs}
    altered = plan.altered({**everyone, **rounds})
    rows = []
    for partition, seed, alone in product(given.partitions, given.seeds, given.alone):
        rows.append(similarity(altered, partition, seed, alone))
        print(partition, seed, alone, rows[-1]["models"], rows[-1]["differences"], flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    draw_similarity(rows, given.out.with_suffix(".png"))
    numbers = [{key: value for key, value in row.items() if key != "matrices"} for row in rows]
    given.out.write_text(json.dumps(provenance() | {"model": altered.model, "rows": numbers}, indent=1) + "\n")


# ---- FedCUAU's Fig. 1 ----


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
    classes = 1 + max(int(part.max()) for part in labels)
    counts = np.stack([np.bincount(part, minlength=classes) for part in labels])
    shares = counts / counts.sum(axis=1, keepdims=True)
    return np.asarray(np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1))


def order(plan: Plan, people: Sequence[ParticipantData], seed: int, epochs: int) -> dict[str, Any]:
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


def over_seeds(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over seeds, for each learning rate and number of epochs."""
    groups: dict[tuple[float, int], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        groups[result["lr"], result["epochs"]].append(result)
    keys = ("with_tiers", "with_label_distance", "in_own_tier")
    return [
        {
            **{"lr": lr, "epochs": epochs, "seeds": len(members)},
            **{key: statistics.fmean(member[key] for member in members) for key in keys},
            "mean_by_tier": np.mean([member["mean_by_tier"] for member in members], axis=0).tolist(),
        }
        for (lr, epochs), members in groups.items()
    ]


def order_table(rows: Sequence[dict[str, Any]]) -> str:
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


def draw_order(results: Sequence[dict[str, Any]], path: Path) -> None:
    """CUAU by label distance, a colour a tier: a panel a learning rate and number of epochs, of the first seed."""
    shown = [result for result in results if result["seed"] == results[0]["seed"]]
    figure = Figure(figsize=(4 * len(shown), 4), layout="constrained")
    for axes, result in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown):
        for tier in range(len(result["mean_by_tier"])):
            tier_members = [p for p in result["participants"] if p["tier"] == tier]
            axes.scatter(
                [p["label_distance"] for p in tier_members],
                [p["cuau"] for p in tier_members],
                12,
                COLOURS[tier],
                label=f"C{tier + 1}",
            )
        axes.set(title=f"lr {result['lr']:g}, {result['epochs']} epochs", xlabel="distance of the label distributions")
    figure.axes[0].set_ylabel("CUAU")
    figure.axes[0].legend(fontsize="small")
    save(figure, path)


def order_command(given: argparse.Namespace) -> None:
    """``order``."""
    torch.set_num_threads(1)
    changes = {key: value for key in ("participants", "model") if (value := getattr(given, key))}
    plan = PLANS["fedcuau"].altered(changes)
    results = []
    for seed in given.seeds:
        people = plan.data("tiers", seed).host(plan.source, "local", 0, 1)
        for lr, epochs in product(given.lr, given.epochs):
            trained = replace(plan, training=replace(plan.training, lr=lr))
            results.append(order(trained, people, seed, epochs))
            print({key: results[-1][key] for key in ("seed", "lr", "epochs", "with_tiers", "in_own_tier")}, flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"model": plan.model, "partition": plan.partitions["tiers"], "rows": over_seeds(results)}
    given.out.write_text(json.dumps(provenance() | content | {"results": results}) + "\n")


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = options.add_subparsers(required=True)
    likeness = commands.add_parser("similarity", help="FedAC's Fig. 2")
    likeness.set_defaults(do=similarity_command)
    partitions = list(PLANS["fedac"].partitions)
    likeness.add_argument("--partitions", nargs="+", choices=partitions, default=partitions)
    likeness.add_argument("--seeds", nargs="+", type=int, default=[0])
    likeness.add_argument("--epochs", type=int, default=20, help="of FedAvg (%(default)s)")
    likeness.add_argument("--alone", nargs="+", type=int, default=[1, 20], help="epochs after them")
    ordering = commands.add_parser("order", help="FedCUAU's Fig. 1")
    ordering.set_defaults(do=order_command)
    ordering.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    ordering.add_argument("--lr", nargs="+", type=float, default=[0.1, 0.01])
    ordering.add_argument("--epochs", nargs="+", type=int, default=[1, 5])
    ordering.add_argument("--model", help="one of the package's networks; default the plan's")
    for command in (likeness, ordering):
        command.add_argument("--participants", type=int, help="default the plan's")
        command.add_argument("--out", type=Path, required=True, help="a JSON file")
    given = options.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
