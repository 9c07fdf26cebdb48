# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How often an interval of nominal 95 % holds the measure that the model has on all patients, by how it is made.

The same of the worst tenth of participants, of which one is the worst by chance.

Test splits are drawn from a population whose measures are known. Of four classes all are alike, or one has 5 % of the
patients; of survival times half end in an event, or 8 %. Ways to make an interval:

    interval    the package's: around the measure, with the deviation of the draws, on the measure's scale
    middle      the middle 95 % of the draws
    moved       the same, moved so that the mean of the draws is the measure (version 0.2)
    by class    as ``interval``, of draws that have as many samples of each class, or events, as the split

    python benchmarks/coverage.py --out benchmarks/results/coverage.json
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import provenance, save_rows
from torch import Tensor

from cfl_flare.results.bootstrap import Draws, Interval, interval, middle, worst_tenth
from cfl_flare.results.metrics import Metric
from cfl_flare.training.bootstrap import replicates
from cfl_flare.training.measures import by_class
from cfl_flare.training.tasks import LearningTask, build_task

SIZES, DRAWS, PATIENTS = (20, 50, 200), 200, 200_000
SHARES = {"balanced": (0.25, 0.25, 0.25, 0.25), "one rare": (0.05, 0.95 / 3, 0.95 / 3, 0.95 / 3)}
EVENTS = {"balanced": 1.0, "one rare": 0.06}
MEASURES = {
    "classification": ("accuracy", "macro_f1", "supported_f1", "auroc", "loss"),
    "survival": ("c_index",),
}


def patients(task: str, case: str, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A model's outputs for a population, and its labels."""
    if task == "survival":
        risk = rng.normal(size=20_000)
        event, end = rng.exponential(np.exp(-risk)), rng.exponential(EVENTS[case], size=len(risk))
        labels = np.stack([np.minimum(event, end), event <= end], axis=1)
        return torch.from_numpy(risk).float()[:, None], build_task(task).targets(labels)
    labels = rng.choice(4, size=PATIENTS, p=SHARES[case])
    outputs = rng.normal(size=(PATIENTS, 4))
    outputs[np.arange(PATIENTS), labels] += 1.6
    return torch.from_numpy(1.44 * outputs + np.log(SHARES[case])).float(), build_task(task).targets(labels)


def rows_of(strata: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Draws with replacement within each stratum."""
    places = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    return [*np.hstack([part[rng.integers(len(part), size=(DRAWS, len(part)))] for part in places])]


def intervals(
    task: LearningTask, outputs: Tensor, targets: Tensor, names: tuple[str, ...], rng: np.random.Generator
) -> Mapping[tuple[str, str], Interval | None]:
    """By measure and way, of one test split; a measure that it does not define has none."""
    strata = targets[:, 1].numpy() > 0 if targets.dim() == 2 else targets.numpy()
    measured = task.measured(outputs, targets, names)
    points = {name: measured[name] for name in names if name in measured}
    free, by_class = (
        {
            name: np.array(values, np.float64)
            for name, values in replicates(task, outputs, targets, points, rows).items()
        }
        for rows in (rows_of(np.zeros(len(strata)), rng), rows_of(strata, rng))
    )
    ends: dict[tuple[str, str], Interval | None] = {}
    for name, point in points.items():
        part = middle(free[name])
        ends[name, "interval"], ends[name, "middle"] = interval(free[name], point, name), part
        ends[name, "by class"] = interval(by_class[name], point, name)
        if part is not None:
            by, most = point - np.nanmean(free[name]), np.inf if name == "loss" else 1.0
            low, high = np.clip(np.array(part) + by, 0, most).tolist()
            ends[name, "moved"] = low, high
    return ends


def measured(task_name: str, case: str, size: int, splits: int, seed: int) -> list[dict[str, Any]]:
    """A row for each measure and way."""
    rng, task, names = np.random.default_rng([seed, size]), build_task(task_name), MEASURES[task_name]
    outputs, targets = patients(task_name, case, rng)
    truth, of_classes = task.measured(outputs, targets, names), torch.zeros(0)
    if "supported_f1" in names:
        right, named, there = (column.sum(0) for column in by_class(outputs, targets))
        of_classes = 2 * right / (named + there)
    held: dict[tuple[str, str], list[float]] = {}
    for _ in range(splits):
        chosen = rng.integers(len(targets), size=size)
        split = targets[chosen]
        if len(of_classes):  # the truth of the classes that this split has enough samples of
            enough = torch.bincount(split, minlength=len(of_classes)) >= task.support
            truth["supported_f1"] = float(of_classes[enough].mean())
        for key, ends in intervals(task, outputs[chosen], split, names, rng).items():
            if ends is not None:
                below, above = ends[0] > truth[key[0]], ends[1] < truth[key[0]]
                total = held.setdefault(key, [0, 0, 0, 0.0])
                held[key] = [a + b for a, b in zip(total, (1, below, above, ends[1] - ends[0]))]
    return [
        {"measure": name, "case": case, "samples": size, "way": way, "splits": splits, "seed": seed}
        | {"intervals": int(number), "covered": round(1 - (below + above) / number, 4)}
        | {"too_high": round(below / number, 4), "too_low": round(above / number, 4), "width": round(width / number, 4)}
        for (name, way), (number, below, above, width) in held.items()
    ]


def tenth(participants: int, size: int, spread: float, runs: int, seed: int) -> dict[str, Any]:
    """How often the interval of the worst tenth of participants holds the mean of those who truly are the worst."""
    rng, metric = np.random.default_rng([seed, participants, size]), Metric("accuracy")
    names, covered, widths, errors = [f"p{i}" for i in range(participants)], 0, list[float](), list[float]()
    for _ in range(runs):
        truth = np.clip(rng.normal(0.8, spread, participants), 0.02, 0.98)
        shares = rng.binomial(size, truth) / size
        values = rng.binomial(size, shares[:, None], (participants, DRAWS)) / size
        draws = Draws(tuple(names), (1.0,) * participants, (0,) * participants, {"served_accuracy": values})
        worst = worst_tenth(draws, "served_accuracy", dict(zip(names, shares.tolist())), metric)
        assert worst is not None
        mean, (low, high) = worst
        true = float(np.sort(truth)[: -(-participants // 10)].mean())
        covered += low <= true <= high
        widths.append(high - low)
        errors.append(mean - true)
    line = {"participants": participants, "samples": size, "spread": spread, "runs": runs, "seed": seed}
    line |= {"covered": round(100 * covered / runs, 1), "width": round(float(np.mean(widths)), 3)}
    return line | {"off": round(float(np.mean(errors)), 3)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The share of the intervals that hold the truth: by measure, way, case and size."""
    table: dict[str, Any] = {}
    for row in rows:
        of_case = table.setdefault(row["measure"], {}).setdefault(row["way"].replace(" ", "_"), {})
        of_case.setdefault(row["case"].replace(" ", "_"), {})[str(row["samples"])] = round(100 * row["covered"], 1)
    return table


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--splits", type=int, default=1000, help="test splits of each case and size (%(default)s)")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    made_by, rows = provenance(), list[dict[str, Any]]()
    for task in MEASURES:
        for case in SHARES:
            for size in SIZES:
                rows += measured(task, case, size, given.splits, given.seed)
                print(*(row for row in rows if row["samples"] == size and row["case"] == case), sep="\n", flush=True)
    cases = itertools.product((5, 40, 180), (30, 100), (0.0, 0.05, 0.15))
    tenths = [tenth(*case, given.splits, given.seed) for case in cases]
    save_rows(given.out, made_by, summary=[summary(rows)], tenths=tenths, rows=rows)


if __name__ == "__main__":
    main()
