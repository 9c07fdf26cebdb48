# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which likeness of models tells that their participants' labels are alike (FedAC sec. 4.3, Fig. 2)?

As in the paper, participants train by FedAvg for 20 epochs (here all of them in each of 20 rounds of one epoch), then
each goes on alone, and all pairs of the models that come out are compared: low-rank cosine (LrCos), cosine without
reduction, and L2 distance. Each is laid beside the Kullback-Leibler divergence of the pair's label distributions, the
mean of both directions, by Spearman's correlation over the pairs. 1 would be the same order: a cosine counts as the
distance 1 - cos. Besides the models themselves, as in the paper, also their differences from the common model are
compared, of which L2 is the same. The paper does not say for how long participants train alone.

    CFL_DATA_ROOT=... python benchmarks/fedac_similarity.py --out benchmarks/results/fedac/similarity
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from learners import learner_of, runtime_of
from matplotlib.figure import Figure
from plans import PLANS, Plan
from png import save
from provenance import provenance
from scipy.stats import spearmanr
from sklearn.metrics.pairwise import cosine_distances, euclidean_distances

from cfl_flare.cli.specs import build_named
from cfl_flare.core.arrays import load_arrays
from cfl_flare.engine.loop import run_loop
from cfl_flare.results.run_dir import load_run

DIMENSIONS = 50  # D (sec. 4.3)
SMOOTHING = 0.01  # of a label's probability, so that a label that somebody lacks makes no infinity


def label_divergences(labels: list[np.ndarray], smoothing: float = SMOOTHING) -> np.ndarray:
    """``(m, m)`` mean of KL(p_i || p_j) and KL(p_j || p_i) of the participants' label distributions.

    >>> label_divergences([np.array([0, 1]), np.array([0, 1, 0, 1])]).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    classes = 1 + max(int(own.max()) for own in labels)
    counts = np.stack([np.bincount(own, minlength=classes) for own in labels])
    p = counts / counts.sum(axis=1, keepdims=True) + smoothing
    p /= p.sum(axis=1, keepdims=True)
    log = np.log(p)
    forward = (p * log).sum(axis=1)[:, None] - p @ log.T
    return np.asarray((forward + forward.T) / 2)


def distances(models: np.ndarray) -> dict[str, np.ndarray]:
    """``(m, m)`` by each likeness of models ``(m, d)``; the largest is the least alike."""
    from cfl_flare.clustering.measures import directions, mapped, similarity

    rows = list(models)
    low = mapped(rows, directions(rows, DIMENSIONS))
    return {"LrCos": 1 - similarity(low, low), "cosine": cosine_distances(models), "L2": euclidean_distances(models)}


def correlations(found: dict[str, np.ndarray], divergences: np.ndarray) -> dict[str, float]:
    """Spearman's, over the pairs."""
    pairs = np.triu_indices(len(divergences), 1)
    return {name: float(spearmanr(own[pairs], divergences[pairs]).statistic) for name, own in found.items()}


def trained(plan: Plan, partition: str, seed: int, alone: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The participants' models ``(m, d)``, the common model ``(d,)`` before that, the labels' KL, its accuracy."""
    data = plan.data(partition, seed)
    with TemporaryDirectory() as folder:
        run_loop(
            method=build_named("fedavg"),
            model=plan.model,
            source=plan.source,
            data=data,
            settings=plan.scheduled(seed),
            training=plan.training,
            folder=Path(folder),
        )
        arrays, _ = load_arrays(Path(folder) / "clusters" / "global.safetensors")
        accuracy = load_run(folder).summary["final"]["served_accuracy"]
    work = runtime_of(plan.model, plan.training, seed)
    common, models, labels = work.resident.layout.pack(arrays), [], []
    for own in data.host(plan.source, "local", 0, 1):
        model = common
        for i in range(alone):
            model = learner_of(work, own, plan.rounds + i).train(model, purpose="alone")
        models.append(model.part("all"))
        labels.append(own.train.y)
    return np.stack(models), common.part("all"), label_divergences(labels), accuracy


def measured(plan: Plan, partition: str, seed: int, alone: int) -> dict[str, Any]:
    """One row."""
    models, common, divergences, accuracy = trained(plan, partition, seed, alone)
    return {
        **{"partition": partition, "seed": seed, "epochs": plan.rounds, "alone": alone, "common_accuracy": accuracy},
        "models": correlations(distances(models), divergences),
        "differences": correlations(distances(models - common), divergences),
        "matrices": {"KL": divergences.tolist(), **{k: d.tolist() for k, d in distances(models).items()}},
    }


def markdown(rows: list[dict[str, Any]]) -> str:
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


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The paper's Fig. 2: the matrices, a line of panels a row."""
    figure = Figure(figsize=(16, 4 * len(rows)), layout="constrained")
    for line, r in zip(figure.subplots(len(rows), 4, squeeze=False), rows):
        for axes, (name, matrix) in zip(line, r["matrices"].items()):
            figure.colorbar(axes.imshow(matrix), ax=axes, shrink=0.7)
            axes.set_title(f"{name}: {r['partition']}, seed {r['seed']}")
    save(figure, path, dpi=50)


def main() -> None:
    """The command line."""
    plan = PLANS["fedac"]
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--partitions", nargs="+", choices=plan.partitions, default=list(plan.partitions))
    options.add_argument("--seeds", nargs="+", type=int, default=[0])
    options.add_argument("--participants", type=int, default=plan.participants)
    options.add_argument("--epochs", type=int, default=20, help="of FedAvg (%(default)s)")
    options.add_argument("--alone", nargs="+", type=int, default=[1, 20], help="epochs after them")
    options.add_argument("--out", type=Path, required=True, help="the files' name without its ending")
    given = options.parse_args()
    everyone = {"participants": given.participants, "sample": 1.0, "local_steps": None, "local_epochs": 1}
    altered = plan.altered({**everyone, "rounds": given.epochs, "evaluate_every": given.epochs})
    rows = []
    for partition in given.partitions:
        for seed in given.seeds:
            for alone in given.alone:
                rows.append(measured(altered, partition, seed, alone))
                print(partition, seed, alone, rows[-1]["models"], rows[-1]["differences"], flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    draw(rows, Path(f"{given.out}.png"))
    kept = [{key: value for key, value in row.items() if key != "matrices"} for row in rows]
    Path(f"{given.out}.json").write_text(
        json.dumps(provenance() | {"model": altered.model, "rows": kept}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
