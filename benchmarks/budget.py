# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a budget of differential privacy costs: methods at epsilon 1, 3, 8 and without, on three sets of hospitals.

Models are measured on the test splits as they are, which no task of a run with a budget asks for. A row ``local`` or
``majority`` needs no budget, as nothing leaves. ``quarters`` has the same of the hospitals by their number of training
samples, from the smallest quarter to the largest. Learning rates and norms were those of the smallest log-loss on
validation samples of another seed. A run that is in the file already is not run again.

    CFL_DATA_ROOT=... python benchmarks/budget.py --out benchmarks/results/budget.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import build_server, measure_missing
from kept import interval
from plans.blood import PNEUMONIA, TEN
from plans.hospitals import STROKE
from plans.plan import Plan

from cfl_flare.cli.specs import build_named
from cfl_flare.engine.drive import Checkpoints, InProcess, drive
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.site import Site
from cfl_flare.training.ensemble import Served

DELTA = 1e-5
EPSILONS = (1.0, 3.0, 8.0, None)
METHODS = {
    "fedavg": ("fedavg", None),
    "fedavg-bias": ("fedavg", "bias"),
    "wecfl": ("wecfl:k=2", None),
    "ifca": ("ifca:k=2", None),
}
MEASURES = {"binary": ("auroc",), "classification": ("auroc", "balanced_accuracy")}
FIGURES = ("accuracy", "loss", "auroc", "balanced_accuracy", "seconds")
NO_BUDGET = {"majority": ("plans.OwnMajorityClass", None), "local": ("local", None)}


@dataclass(frozen=True)
class Case:
    """Data and how it is learned.

    Attributes:
        plan: of the data.
        partition: of the plan.
        lr: learning rate with a budget.
        free_lr: without one.
        local_lr: of local training.
        norm: what norms gradients are clipped to.
    """

    plan: Plan
    partition: str
    lr: float
    free_lr: float
    local_lr: float
    norm: float = 1.0

    def training_of(self, row: str, epsilon: float | None) -> dict[str, Any]:
        """Returns the learning rate and the budget of a row."""
        if epsilon is None:
            lr = self.local_lr if row == "local" else self.free_lr
            return {"lr": lr, "dp": None}
        return {"lr": self.lr, "dp": {"epsilon": epsilon, "delta": DELTA, "max_grad_norm": self.norm}}


def _grouped(plan: Plan) -> dict[str, Any]:
    return {**plan.model, "args": {**plan.model["args"], "norm": "group"}}


GROUPED = replace(PNEUMONIA, model=_grouped(PNEUMONIA), rounds=10)
CASES = {
    "stroke": Case(STROKE, next(iter(STROKE.partitions)), 0.5, 0.3, 0.1),
    "blood": Case(replace(TEN, rounds=10), "labels", 0.8, 0.05, 0.05, norm=0.3),
    "pneumonia": Case(GROUPED, "labels", 0.2, 0.02, 0.02, norm=0.3),
}


def run(case: str, row: str, epsilon: float | None, seed: int) -> dict[str, Any]:
    """Trains a row, and returns what its served models are on the test splits."""
    chosen = CASES[case]
    plan = chosen.plan.altered({**chosen.training_of(row, epsilon), "score_bins": 0, "measures": (), "bootstrap": 0})
    settings = replace(plan.scheduled(seed), evaluate_every=plan.rounds)
    training = plan.training.over(settings.num_rounds, settings.evaluate_every)
    spec, private = {**METHODS, **NO_BUDGET}[row]
    method, make_model = build_named(spec, []), model_factory(plan.model)
    begun = time.process_time()
    site = Site(method, make_model, training, seed, private=private)
    with site.preparing():
        site.add(plan.data(chosen.partition, seed).host(plan.source_of(seed), "local", 0, 1))
    server = build_server(site, make_model, settings, seed)
    served: dict[str, Served] = {}
    drive(server, InProcess(site, {n: n for n in site.hosted}, lambda server: served.__setitem__), Checkpoints())
    seconds = time.process_time() - begun

    # Without a budget: the models are measured on the test splits as they are.
    plain = replace(training, dp=None, measures=MEASURES[plan.training.task])
    judge = Site(method, make_model, plain, seed, private=private)
    judge.add(site.hosted.values())
    rows = []
    for name in site.hosted:
        learner = judge.learner(name, site.memory[name], plan.rounds)
        rows.append({"train": len(site.hosted[name].train), "test": learner.tests, **learner.evaluate(served[name])})
    return {"seconds": round(seconds, 1), **averaged(rows), "quarters": quarters(rows)}


def averaged(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Means over test samples; of the AUROC, over those hospitals that have both classes."""
    rows = list(rows)
    means = {}
    for name in ("accuracy", "loss", "auroc", "balanced_accuracy"):
        there = [(row[name], row["test"]) for row in rows if name in row]
        if there:
            values, weights = zip(*there)
            means[name] = round(float(np.average(values, weights=weights)), 5)
    return means


def quarters(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same of the hospitals by their training samples, in four parts of equally many hospitals."""
    ordered = sorted(rows, key=lambda row: row["train"])
    parts = [[ordered[i] for i in part] for part in np.array_split(np.arange(len(ordered)), 4)]
    return [{"most": part[-1]["train"], **averaged(part)} for part in parts]


def summarize(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Means over seeds by case, row and epsilon; each against FedAvg with the same budget, and against ``local``.

    A difference is paired by seed, and has Student's 95 % interval.
    """
    by_key = {(row["case"], row["row"], row["epsilon"], row["seed"]): row for row in rows}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for (case, name, epsilon, _), row in by_key.items():
        groups.setdefault((case, name, epsilon), []).append(row)
    table = []
    for (case, name, epsilon), runs in sorted(groups.items(), key=str):
        line: dict[str, Any] = {"case": case, "row": name, "epsilon": epsilon, "seeds": [run["seed"] for run in runs]}
        line |= {
            figure: round(float(np.mean([run[figure] for run in runs])), 5) for figure in FIGURES if figure in runs[0]
        }
        line["quarters"] = [round(float(np.mean([run["quarters"][i]["loss"] for run in runs])), 5) for i in range(4)]
        for other in (("fedavg", epsilon), ("local", None)):
            pairs = [(run, by_key.get((case, *other, run["seed"]))) for run in runs]
            for figure in ("loss", "auroc", "accuracy"):
                differences = [run[figure] - against[figure] for run, against in pairs if against is not None]
                if len(differences) > 1:
                    line[f"{figure}_against_{other[0]}"] = [round(end, 5) for end in interval(differences)]
        table.append(line)
    return {"summary": table}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    rows = [*product(NO_BUDGET, (None,)), *product(METHODS, EPSILONS)]
    wanted = (
        {"case": case, "row": row, "epsilon": epsilon, "seed": seed}
        for seed, case, (row, epsilon) in product(given.seeds, given.cases, rows)
    )
    measure_missing(given.out, wanted, run, summarize)


if __name__ == "__main__":
    main()
