# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which criterion finds the number of clusters in the updates of FedAvg's first rounds, and one where there are none?

Participants train one model on scikit-learn's digits, dealt in many ways. After 5 rounds each criterion sees the same
points, the directions of the round's updates from their mean; the first two also after 3 rounds:

* ``auto``: the one of ``k=auto``, see `cfl_flare.clustering.gap`.
* ``gap``: its gap statistic alone, whether or not the clusters come back in draws of the participants.
* ``gap-box``: the gap statistic with a uniform box along the principal axes (Tibshirani et al. 2001), and their rule.
* ``prediction-strength``: the largest K whose clusters are found again in the other half of the participants in at
  least 80 % of the pairs, mean and standard error over 20 splits (Tibshirani and Walther 2005).
* ``stability``: the largest K with an adjusted Rand index of at least 0.9 between clusterings of two draws of 80 % of
  the participants, mean of 10 (Ben-Hur et al. 2002).
* ``silhouette``: the largest mean silhouette (Rousseeuw 1987), if it is above the 95 % quantile of the largest ones of
  the gap's reference sets; else one.
* ``eigengap``: the largest gap between eigenvalues of the normalised Laplacian of a Gaussian similarity whose width is
  the median distance (von Luxburg 2007).

    python benchmarks/number_of_clusters.py --out benchmarks/results/number-of-clusters.json
    python benchmarks/number_of_clusters.py --criteria auto gap --seeds 200 201 202 203 204 205 206 207 208 209 \
        --out benchmarks/results/number-of-clusters-draws.json
    python benchmarks/number_of_clusters.py --criteria auto --sites 16 --seeds {300..316} \
        --cases iid "permuted 3" "scanners 2" "blood, labels" "blood, scanners" "blood, both" \
        --out benchmarks/results/number-of-clusters-set.json

``--runs`` measures whole runs instead: methods that find a number of clusters, beside WeCFL with the true number and
FedAvg. It saves after each run and continues where it was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from common import commit, provenance, save_rows
from plans import PLANS
from plans.plan import model
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import adjusted_rand_score

from cfl_flare.cli.specs import build_named
from cfl_flare.clustering.gap import _largest, _references, directions, is_clear, noted, number_of_clusters
from cfl_flare.clustering.measures import inner_products
from cfl_flare.core.seeds import stream
from cfl_flare.data.label_skew import IID
from cfl_flare.data.partitions import PARTITIONS
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.methods import FedAvg
from cfl_flare.results.run_dir import load_run

PLAN = PLANS["digits"]
EPOCHS = replace(PLAN.training, local_steps=None, local_epochs=2)
SIZES = {"partition": "quantity", "lo": 6, "hi": 45}
# Name: partition, true number of groups (None where labels differ without groups), training.
CASES: dict[str, tuple[Any, int | None, Any]] = {
    "iid": ("iid", 1, PLAN.training),
    "iid, 6 to 45 samples": ({**SIZES, "rule": "iid"}, 1, EPOCHS),
    "iid, one in four tiny": ("tiny", 1, EPOCHS),
    "dirichlet 0.5": ("dirichlet:alpha=0.5", None, PLAN.training),
    "dirichlet 0.1": ("dirichlet:alpha=0.1", None, PLAN.training),
    **{f"permuted {g}": (f"label_permutation:groups={g}", g, PLAN.training) for g in (2, 3, 4, 6, 10)},
    **{f"scanners {g}": (f"scanner:groups={g}", g, PLAN.training) for g in (2, 4)},
    **{f"classes {g}": (f"class_groups:groups={g},disjoint=True,alpha=10.0", g, PLAN.training) for g in (2, 4)},
    "label shares 4": ("cluster_dirichlet:groups=4,a_between=0.1,a_within=10.0", 4, PLAN.training),
    "permuted 3, 6 to 45 samples": ({**SIZES, "rule": "label_permutation", "groups": 3}, 3, EPOCHS),
    "iid, CNN": ("iid", 1, PLANS["family"].training),
    "permuted 3, CNN": ("label_permutation:groups=3", 3, PLANS["family"].training),
    "stroke": ("natural", None, PLANS["stroke"].training),
    "blood, iid": ("iid", 1, PLANS["blood"].training),
    "blood, dirichlet 0.1": ("dirichlet:alpha=0.1", None, PLANS["blood"].training),
    **{f"blood, {name}": (rule, 4, PLANS["blood"].training) for name, rule in PLANS["blood"].partitions.items()},
}
# Of another plan's data, with its network; digits otherwise.
OTHERS = {"iid, CNN": "family", "permuted 3, CNN": "family", "stroke": "stroke"}
OTHERS |= {case: "blood" for case in CASES if case.startswith("blood, ")}
WARMUPS = (3, 5)
# From so many sites on, Fashion-MNIST is dealt; digits are too few.
MANY = 100


@dataclass(frozen=True)
class Tiny(IID):
    """One participant in four has an eighth of the others' data, of the same labels."""

    name = "tiny"

    def shares(self, participants: int, pool: Any, rng: np.random.Generator) -> np.ndarray:
        """By participant and class."""
        sizes = rng.permutation(np.where(np.arange(participants) % 4, 8.0, 1.0))
        return np.repeat(sizes[:, None] / sizes.sum(), pool.classes, axis=1)


def grams(case: str, sites: int, seed: int) -> tuple[list[np.ndarray], list[int | None]]:
    """The inner products of each round's updates, and the participants' true groups."""
    partition, _, training = CASES[case]
    matrices, usual = list[np.ndarray](), FedAvg.aggregate

    def watched(self: FedAvg, state: Any, updates: Any, assignment: Any) -> Any:
        matrices.append(inner_products(np.stack([self.features(u.main_diff) for u in updates])))
        return usual(self, state, updates, assignment)

    rounds, many = max(WARMUPS), sites >= MANY
    plan = PLANS[OTHERS.get(case, "family" if many else PLAN.name)]
    module = plan.model if case in OTHERS or not many else model("mlp", (1, 28, 28), 10)
    data = plan.data(next(iter(plan.partitions)), seed) if case in OTHERS else PLAN.data("iid", seed)
    with patch.object(FedAvg, "aggregate", watched), patch.dict(PARTITIONS, {"tiny": Tiny}):
        data = replace(data, partition=partition, participants=sites, indicator_samples=0)
        server = run_loop(
            RunPlan(
                method=FedAvg(),
                model=module,
                reader=plan.source,
                data=data,
                server=replace(plan.scheduled(seed), num_rounds=rounds, evaluate_every=rounds),
                training=training,
            )
        )
    return matrices, [p.group for p in server.participants.values()]


def ward(points: np.ndarray, k: int) -> np.ndarray:
    """Labels ``(m,)``."""
    return cut(linkage(points, "ward"), k)


def cut(tree: np.ndarray, k: int) -> np.ndarray:
    """Labels from 0; scipy's cut_tree takes long."""
    return np.asarray(fcluster(tree, k, "maxclust") - 1)


def box(points: np.ndarray, most: int, seed: int) -> int:
    """The gap statistic as published: the first K with Gap(K) >= Gap(K + 1) - s(K + 1)."""
    rng, low, high = stream(seed, "box"), points.min(axis=0), points.max(axis=0)

    def log_dispersion(of: np.ndarray) -> np.ndarray:
        inside = np.cumsum(linkage(of, "ward")[:, 2] ** 2 / 2)[::-1]
        return np.asarray(np.log(inside[:most]))

    drawn = np.array([log_dispersion(rng.uniform(low, high, points.shape)) for _ in range(100)])
    gap, error = drawn.mean(axis=0) - log_dispersion(points), drawn.std(axis=0) * np.sqrt(1 + 1 / len(drawn))
    return next((k for k in range(1, most) if gap[k - 1] >= gap[k] - error[k]), most)


def prediction_strength(points: np.ndarray, most: int, seed: int) -> int:
    """The share of pairs, in the worst cluster, that the other half's centres keep together."""

    def strength(k: int, order: np.ndarray) -> float:
        train, test = points[order[: len(order) // 2]], points[order[len(order) // 2 :]]
        if k > len(train):
            return 0.0
        theirs = ward(train, k)
        centres = np.stack([train[theirs == c].mean(axis=0) for c in range(theirs.max() + 1)])
        nearest = np.square(test[:, None] - centres).sum(axis=2).argmin(axis=1)
        clustered, worst = ward(test, k), 1.0
        for c in set(clustered.tolist()):
            members = nearest[clustered == c]
            pairs = len(members) * (len(members) - 1)
            if pairs:
                worst = min(worst, float((members[:, None] == members).sum() - len(members)) / pairs)
        return worst

    orders = [stream(seed, "half", i).permutation(len(points)) for i in range(20)]
    strengths = {k: np.array([strength(k, order) for order in orders]) for k in range(2, most + 1)}
    return max((k for k, s in strengths.items() if s.mean() + s.std(ddof=1) / np.sqrt(len(s)) >= 0.8), default=1)


def stability(points: np.ndarray, most: int, seed: int) -> int:
    """How alike two draws are clustered, on those who are in both."""
    drawn = max(3, round(0.8 * len(points)))

    def alike(k: int, i: int) -> float:
        first, other = (np.sort(stream(seed, part, i).permutation(len(points))[:drawn]) for part in ("one", "other"))
        both = np.intersect1d(first, other)
        labels = (ward(points[drawn_points], k)[np.searchsorted(drawn_points, both)] for drawn_points in (first, other))
        return float(adjusted_rand_score(*labels))

    return max((k for k in range(2, most + 1) if np.mean([alike(k, i) for i in range(10)]) >= 0.9), default=1)


def silhouette(points: np.ndarray, most: int, seed: int) -> int:
    """With the gap's reference sets."""

    def scores(of: np.ndarray) -> np.ndarray:
        away, tree = squareform(pdist(of)), linkage(of, "ward")
        return np.array([_silhouette(away, cut(tree, k)) for k in range(2, most + 1)])

    measured_scores, null = scores(points), [scores(p).max() for p in _references(points, 60, seed)]
    return 2 + int(measured_scores.argmax()) if measured_scores.max() > np.quantile(null, 0.95) else 1


def _silhouette(away: np.ndarray, labels: np.ndarray) -> float:
    """The mean silhouette; 0 for a cluster of one."""
    members = labels[:, None] == np.arange(labels.max() + 1)
    sizes, sums, rows = members.sum(axis=0), away @ members, np.arange(len(labels))
    inside = sums[rows, labels] / np.maximum(sizes[labels] - 1, 1)
    others = np.where(members, np.inf, sums / sizes).min(axis=1)
    widths = (others - inside) / np.maximum(np.maximum(inside, others), 1e-12)
    return float(np.where(sizes[labels] > 1, widths, 0.0).mean())


def eigengap(points: np.ndarray, most: int, seed: int) -> int:
    """Of the normalised Laplacian."""
    away = squareform(pdist(points))
    near = np.exp(-np.square(away / np.median(away[away > 0])) / 2)
    degrees = near.sum(axis=0)
    values = np.linalg.eigvalsh(np.eye(len(near)) - near / np.sqrt(degrees * degrees[:, None]))
    return 1 + int(np.diff(values[: most + 1]).argmax())


def gap(points: np.ndarray, most: int, seed: int) -> int:
    """The gap statistic of ``k=auto``, of all numbers."""
    number = number_of_clusters(points @ points.T, most, seed=seed)
    values, deviations = np.array(number.gap), np.array(number.deviations)
    spread = np.divide(values, deviations, out=np.zeros_like(values), where=deviations != 0)
    return _largest(values, spread, np.ones(len(values), bool))


CRITERIA: dict[str, Callable[[np.ndarray, int, int], int]] = {
    "auto": lambda points, most, seed: number_of_clusters(points @ points.T, most, seed=seed).k,
    "gap": gap,
    "gap-box": box,
    "prediction-strength": prediction_strength,
    "stability": stability,
    "silhouette": silhouette,
    "eigengap": eigengap,
}


def measured(case: str, sites: int, seed: int, criteria: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each length of the warm-up."""
    products, groups = grams(case, sites, seed)
    rows = []
    for warmup in WARMUPS:
        points = directions(products[warmup - 1])
        most = min(10, sites // 2)
        seen = criteria if warmup == max(WARMUPS) else [name for name in ("auto", "gap") if name in criteria]
        numbers = {name: CRITERIA[name](points, most, 0) for name in seen}
        known = groups if CASES[case][1] not in (None, 1) else None
        ari = {n: round(float(adjusted_rand_score(known, ward(points, k))), 3) for n, k in numbers.items() if known}
        line = {"case": case, "sites": sites, "seed": seed, "warmup": warmup, "k": numbers, "ari": ari}
        if "auto" in seen:
            note = noted(number_of_clusters(points @ points.T, most))
            line |= {"clear": is_clear(note), "set": note["set"]}
        rows.append({**line, "commit": commit()})
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each case, number of sites and warm-up: how often each criterion was right, and its mean ARI."""
    table = []
    for case, sites, warmup in dict.fromkeys((r["case"], r["sites"], r["warmup"]) for r in rows):
        chosen, true = (
            [r for r in rows if (r["case"], r["sites"], r["warmup"]) == (case, sites, warmup)],
            CASES[case][1],
        )
        line: dict[str, Any] = {"case": case, "sites": sites, "warmup": warmup, "runs": len(chosen)}
        if "clear" in chosen[0]:
            line["clear"] = sum(r["clear"] for r in chosen)
            line["clear and right"] = sum(r["clear"] and r["k"]["auto"] == true for r in chosen)
        if "set" in chosen[0]:
            sets = [r["set"] for r in chosen]
            line["set_has_it"] = None if true is None else sum(low <= true <= high for low, high in sets)
            line["single"] = sum(low == high for low, high in sets)
            line["mean_size"] = round(float(np.mean([high - low + 1 for low, high in sets])), 1)
        for name in chosen[0]["k"]:
            numbers = [r["k"][name] for r in chosen]
            line[name] = {"k": {str(k): numbers.count(k) for k in sorted(set(numbers))}}
            line[name] |= {} if true is None else {"right": numbers.count(true)}
            line[name] |= (
                {"ari": round(float(np.mean([r["ari"][name] for r in chosen])), 2)} if chosen[0]["ari"] else {}
            )
        table.append(line)
    return table


def shown(rows: list[dict[str, Any]]) -> str:
    """The table of the documentation: after the longer warm-up, how often each criterion was right."""
    rows = [r for r in rows if r["warmup"] == max(WARMUPS)]
    names = [name for name in CRITERIA if name in rows[0]["k"]]
    last = ["clear"] if "clear" in rows[0] else []
    header = ["participants' data", "sites", "runs", *names, *last]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for line in summary(rows):
        cells = [str(line[n]["right"]) if "right" in line[n] else _spread(line[n]["k"]) for n in names]
        cells += [str(line[n]) for n in last]
        lines.append(f"| {line['case']} | {line['sites']} | {line['runs']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(numbers: dict[str, int]) -> str:
    """``K = 1``, ``K = 1-3``."""
    least, most = min(map(int, numbers)), max(map(int, numbers))
    return f"K = {least}" + (f"-{most}" if most > least else "")


# ---- Whole runs ----

RUNS = ("iid", "dirichlet 0.1", "permuted 3", "scanners 4", "classes 4")
METHODS = (
    "fedavg",
    "wecfl:k={k}",
    "wecfl:k=auto",
    "ifca:k=auto",
    "fedac:k=2",
    "cfl:eps1=0.6,eps2=1.1",
    "fl-hc:threshold=2.5",
)


def run(case: str, method: str, seed: int, rounds: int, sites: int = 24) -> dict[str, Any]:
    """What a method finds, and how good its models are."""
    partition, true, training = CASES[case]
    with TemporaryDirectory() as folder:
        run_loop(
            RunPlan(
                method=build_named(method.format(k=true or 10)),
                model=PLAN.model,
                reader=PLAN.source,
                data=replace(PLAN.data("iid", seed), partition=partition, participants=sites, indicator_samples=0),
                server=replace(PLAN.scheduled(seed), num_rounds=rounds, evaluate_every=rounds),
                training=training,
            ),
            folder=Path(folder),
        )
        final = load_run(Path(folder)).summary["final"]
    figures = {k: final.get(k) for k in ("served_accuracy", "served_worst_accuracy", "ari", "clusters_in_use")}
    return {"case": case, "method": method, "seed": seed, "sites": sites, "rounds": rounds, **figures}


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Over the seeds."""
    table = []
    for case, method in dict.fromkeys((r["case"], r["method"]) for r in rows):
        chosen = [r for r in rows if (r["case"], r["method"]) == (case, method)]
        line: dict[str, Any] = {"case": case, "method": method, "runs": len(chosen)}
        line["clusters_in_use"] = [r["clusters_in_use"] or 1 for r in chosen]
        for key in ("served_accuracy", "served_worst_accuracy", "ari"):
            known = [r[key] for r in chosen if r[key] is not None]
            line[key] = round(100 * float(np.mean(known)), 1) if known else None
        table.append(line)
    return table


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--sites", nargs="+", type=int, default=[6, 12, 40])
    options.add_argument("--seeds", nargs="+", type=int, default=list(range(100, 120)))
    options.add_argument("--criteria", nargs="+", choices=CRITERIA, default=list(CRITERIA))
    options.add_argument("--runs", type=int, metavar="ROUNDS", help="whole runs of 24 sites instead")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--table", action="store_true", help="print the table of --out, and measure nothing")
    given = options.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    if given.table:
        return print(shown(rows))
    if given.runs:
        done = {(r["case"], r["method"], r["seed"]) for r in rows}
        for seed in given.seeds:
            for case in RUNS:
                for method in METHODS:
                    if (case, method, seed) not in done:
                        rows.append(run(case, method, seed, given.runs))
                        print(rows[-1], flush=True)
                        save_rows(given.out, provenance(), summary=means(rows), rows=rows)
        return
    cells = {(r["case"], r["sites"], r["seed"]) for r in rows}
    for seed in given.seeds:
        for case in given.cases:
            groups = CASES[case][1]
            for sites in given.sites:
                if (case, sites, seed) not in cells and sites >= 2 * (groups or 1):
                    rows += measured(case, sites, seed, given.criteria)
                    print(rows[-1], flush=True)
                    save_rows(given.out, provenance(), summary=summary(rows), rows=rows)


if __name__ == "__main__":
    main()
