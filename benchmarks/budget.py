# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a budget of differential privacy costs: methods at epsilon 1, 3, 8 and without, on three sets of hospitals.

Models are measured on the test splits as they are, which no task of a run with a budget asks for. A row ``local`` or
``majority`` needs no budget, as nothing leaves. ``quarters`` has the same of the hospitals by their number of training
samples, from the smallest quarter to the largest. A run that is in the file already is not run again.

    CFL_DATA_ROOT=... python benchmarks/budget.py --out benchmarks/results/budget.json
    CFL_DATA_ROOT=... python benchmarks/budget.py --search --out search.json      learning rates, on validation samples
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import provenance, save_rows
from plans.blood import PNEUMONIA, TEN
from plans.hospitals import STROKE
from plans.plan import Plan
from scipy import stats

from cfl_flare.cli.specs import build_named
from cfl_flare.engine.drive import Checkpoints, InProcess, drive
from cfl_flare.engine.initial_models import initial_models
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.server import Equipment, Server
from cfl_flare.engine.site import Site
from cfl_flare.methods import Participant
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


def _grouped(plan: Plan) -> dict[str, Any]:
    return {**plan.model, "args": {**plan.model["args"], "norm": "group"}}


GROUPED = replace(PNEUMONIA, model=_grouped(PNEUMONIA), rounds=10)
CASES = {
    "stroke": Case(STROKE, next(iter(STROKE.partitions)), 0.5, 0.3, 0.1),
    "blood": Case(replace(TEN, rounds=10), "labels", 0.8, 0.05, 0.05, norm=0.3),
    "pneumonia": Case(GROUPED, "labels", 0.2, 0.02, 0.02, norm=0.3),
}


def run(case: Case, row: str, epsilon: float | None, seed: int, **changes: Any) -> dict[str, Any]:
    """One run, and what its served models are on the test splits."""
    spec, private = {**METHODS, **NO_BUDGET}[row]
    budget = None if epsilon is None else {"epsilon": epsilon, "delta": DELTA, "max_grad_norm": case.norm}
    lr = (case.local_lr if row == "local" else case.free_lr) if epsilon is None else case.lr
    plan = case.plan.altered({"lr": lr, "dp": budget, "score_bins": 0, "measures": (), "bootstrap": 0, **changes})
    settings = replace(plan.scheduled(seed), evaluate_every=plan.rounds)
    training = plan.training.over(settings.num_rounds, settings.evaluate_every)
    begun = time.process_time()
    method, make_model = build_named(spec, []), model_factory(plan.model)
    site = Site(method, make_model, training, seed, private=private)
    site.add(plan.data(case.partition, seed).host(plan.source_of(seed), "local", 0, 1))
    participants = [Participant(n, n, site.samples(n), d.group, len(d.test) > 0) for n, d in site.hosted.items()]
    initial = initial_models(method, make_model, site.runtime.division.public, seed, None)
    state = method.start(initial, list(site.hosted))
    layout = site.runtime.division.public
    server = Server(method, layout, participants, settings, state, Equipment())
    served: dict[str, Served] = {}
    drive(server, InProcess(site, {n: n for n in site.hosted}, lambda server: served.__setitem__), Checkpoints())
    seconds = time.process_time() - begun
    plain = replace(
        training, dp=None, measures=("auroc",) if plan.training.task == "binary" else ("auroc", "balanced_accuracy")
    )
    judge = Site(method, make_model, plain, seed, private=private)
    judge.add(site.hosted.values())
    rows = []
    for name in site.hosted:
        learner = judge.learner(name, site.memory[name], plan.rounds)
        rows.append({"train": len(site.hosted[name].train), "test": learner.tests, **learner.evaluate(served[name])})
    clusters = sizes(server.state.assignment.values())
    return {"seconds": round(seconds, 1), **averaged(rows), "quarters": quarters(rows), "sizes": clusters}


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


def sizes(clusters: Iterable[int]) -> list[int]:
    return sorted(np.unique([int(k) for k in clusters], return_counts=True)[1].tolist(), reverse=True)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
                    line[f"{figure}_against_{other[0]}"] = interval(differences)
        table.append(line)
    return table


def interval(differences: list[float]) -> list[float]:
    """Mean, and the two ends of Student's 95 % interval."""
    mean, error = np.mean(differences), np.std(differences, ddof=1) / len(differences) ** 0.5
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return [round(float(value), 5) for value in (mean, mean - half, mean + half)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--search", action="store_true", help="learning rates and norms on validation samples")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    made_by = provenance()
    with suppress(FileNotFoundError):
        rows = json.loads(given.out.read_text())["runs"]
    for key, changes in searched(given) if given.search else planned(given):
        if any(all(row.get(k) == v for k, v in key.items()) for row in rows):
            continue
        case = CASES[key["case"]]
        searched_for: dict[str, Any] = {name: key[name] for name in ("lr", "norm") if name in key}
        if "lr" in key:
            searched_for |= {"free_lr": key["lr"], "local_lr": key["lr"]}
        case = replace(case, **searched_for)
        rows.append({**key, **run(case, key["row"], key["epsilon"], key["seed"], **changes)})
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "quarters"}), flush=True)
        save_rows(given.out, made_by, runs=rows, summary=summary(rows))


def planned(given: argparse.Namespace) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    for seed in given.seeds:
        for name in given.cases:
            for row in NO_BUDGET:
                yield {"case": name, "row": row, "epsilon": None, "seed": seed}, {}
            for epsilon in EPSILONS:
                for row in METHODS:
                    yield {"case": name, "row": row, "epsilon": epsilon, "seed": seed}, {}


def searched(given: argparse.Namespace) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    for name in given.cases:
        for row in ("fedavg", "local"):
            for lr in (0.1, 0.3, 1.0) if name == "stroke" else (0.02, 0.05, 0.1, 0.2):
                key = {"case": name, "row": row, "epsilon": None, "seed": 100, "lr": lr}
                yield key, {"measured_on": "validation", **({} if name == "stroke" else {"validation": 0.2})}
        for norm in (0.3, 1.0):
            for lr in (0.02, 0.1, 0.5, 2.0) if name == "stroke" else (0.05, 0.2, 0.8):
                key = {"case": name, "row": "fedavg", "epsilon": 3.0, "seed": 100, "lr": lr, "norm": norm}
                yield key, {"measured_on": "validation", **({} if name == "stroke" else {"validation": 0.2})}


if __name__ == "__main__":
    main()
