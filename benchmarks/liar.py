# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What one liar of twelve hospitals does to the other eleven, at the guards of real sites.

Each of the twelve participants is a site of its own. They are in three groups of four: digits by how labels are
numbered, blood cells by the cells that they see. The liar is the first of the first group, and lies in every round.
Hospitals of the stroke trial have no groups, unequal numbers of patients, and train an epoch on them. A run that is in
the file already is not run again.

    CFL_DATA_ROOT=... python benchmarks/liar.py --out benchmarks/results/liar.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import build_server, measure_missing
from kept import interval
from plans.blood import LABELS
from plans.hospitals import STROKE
from plans.later import FirstImages
from plans.plan import model

from cfl_flare.cli.specs import build_named
from cfl_flare.core.params import Params
from cfl_flare.data import DataConfig, DataSource, Digits, ParticipantData
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import Groups, Method, Update
from cfl_flare.methods.slots import add_parts
from cfl_flare.training.settings import TrainSettings

HOSPITALS, GROUPS, ROUNDS = 12, 3, 20
METHODS = {
    "WeCFL": "wecfl:k=3",
    "IFCA": "ifca:k=3,assignment_samples=128",
    "CLoVE": "clove:k=3",
    "CFL-GP": "cfl-gp:k=3",
    "groups": "groups",
    "IFCA, warm start": "ifca:k=3,assignment_samples=128,warm_start=True",
}
# What the liar's updates are times; a gradient that is to be compared is an update as well.
FACTORS = {"negated x9": -9.0, "negated x0.5": -0.5}
# What it is compared by alone: losses of 1e8 and more, a gradient negated and nine times as long.
FALSE = "false comparison"
LIES = ("none", *FACTORS, FALSE)
COMPARED = ("CLoVE", "CFL-GP")  # the methods to which such a thing is sent beside a model
GUARDS: dict[str, dict[str, Any]] = {
    "clip_norm=2": {"clip_norm": 2.0},
    "clip_norm=10": {"clip_norm": 10.0},
    "clip_norm=2, reject_outliers": {"clip_norm": 2.0, "reject_outliers": True},
    "clip_norm=10, reject_outliers": {"clip_norm": 10.0, "reject_outliers": True},
    "clip_norm=10, median": {"clip_norm": 10.0, "aggregation": "median"},
}


@dataclass(frozen=True)
class Case:
    """Data, dealt to twelve hospitals."""

    source: DataSource
    model: Any
    training: TrainSettings
    partition: Mapping[str, Any]
    min_samples: int = 8


CASES = {
    "digits": Case(
        Digits(),
        model("mlp", (1, 8, 8), 10),
        TrainSettings(lr=0.1, momentum=0.9, batch_size=16, local_steps=10),
        {"partition": "label_permutation", "groups": GROUPS},
    ),
    "blood cells": Case(
        FirstImages("bloodmnist28.npz", 4000, 1500),  # so that a run takes seconds
        model("mlp", (3, 28, 28), 8),
        TrainSettings(lr=0.02, momentum=0.9, batch_size=16, local_steps=10),
        {**LABELS, "groups": GROUPS},
    ),
    STROKE.name: Case(STROKE.source, STROKE.model, STROKE.training, {"partition": "natural"}, 120),
}


def scale_diff(diff: Params, factor: float) -> Params:
    """Multiplies a difference by a number."""
    return replace(diff, vector=(diff.vector * np.float32(factor)).astype(np.float32))


def tell_lie(update: Update, lie: str) -> Update:
    """Makes of a liar's honest update what it sends.

    Args:
        update: its honest update.
        lie: one of `LIES`.
    """
    if lie in FACTORS:
        diffs = {slot: scale_diff(diff, FACTORS[lie]) for slot, diff in update.diffs.items()}
        return replace(update, diffs=diffs)
    if lie == FALSE:
        diffs = dict(update.diffs)
        for slot, diff in diffs.items():
            if slot.startswith("criterion"):
                diffs[slot] = scale_diff(diff, -9.0)
        arrays = {}
        for name, array in update.arrays.items():
            arrays[name] = 1e8 * np.arange(1, 1 + len(array)).astype(np.float32)
        return replace(update, diffs=diffs, arrays=arrays)
    return update


def measure(data: str, method: str, lie: str, guard: str, seed: int) -> dict[str, Any]:
    """Runs one cell.

    Returns:
        The honest hospitals' accuracy and that of the worst of them, shares. In how many rounds the records name the
        liar, and in how many each honest hospital, on average.
    """
    started = time.process_time()
    case = CASES[data]
    config = DataConfig(HOSPITALS, case.partition, seed=seed, min_samples=case.min_samples)
    people = list(config.host(case.source, "local", 0, 1))
    liar = people[0].name
    built = build_method(method, people)
    make_model = model_factory(case.model)
    site = Site(built, make_model, case.training, seed)
    site.add(people)
    settings = ServerSettings(ROUNDS, seed=seed, evaluate_every=ROUNDS, **GUARDS[guard]).at_real_sites()
    server = build_server(site, make_model, settings, seed)
    named: list[str] = []
    while not server.finished:
        play_round(server, site, lambda result: lie_about(result, liar, lie))
        record = server.progress.record or {}
        for key in ("failed", "left_out", "clipped"):
            named += record.get(key, ())
    accuracies = measure_served(server, site)
    del accuracies[liar]
    weights = [len(site.hosted[name].test) for name in accuracies]
    honest = [name for name in named if name != liar]
    return {
        "accuracy": float(np.average(list(accuracies.values()), weights=weights)),
        "worst": min(accuracies.values()),
        "named": named.count(liar),
        "honest_named": len(honest) / (HOSPITALS - 1),
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def build_method(name: str, people: list[ParticipantData]) -> Method:
    """Builds a method; the groups that are given are the true ones."""
    if name == "groups":
        return Groups(groups={person.name: f"group {person.group}" for person in people})
    return build_named(METHODS[name])


def lie_about(result: Result, liar: str, lie: str) -> Result:
    """Makes of a result what its participant sends."""
    if result.participant != liar or result.update is None:
        return result
    return replace(result, update=tell_lie(result.update, lie))


def play_round(server: Server, site: Site, change: Callable[[Result], Result]) -> None:
    """Carries out one round."""
    number, tasks = server.state.round, server.tasks()
    models = add_parts(server.bank, [slot for task in tasks.values() for slot in task.needed])
    for name, task in tasks.items():
        server.accept(change(site.carry_out(name, task, models, number)), name)
    server.finish_round()


def measure_served(server: Server, site: Site) -> dict[str, float]:
    """Measures the accuracy of what each participant predicts with at the end, a share."""
    accuracies = {}
    for name in server.participants:
        sent = server.method.distribute(server.floor.shown_to(server.state), name)
        task = Task.of(sent, False, True)
        models = add_parts(server.bank, task.needed)
        result = site.carry_out(name, task, models, ROUNDS)
        accuracies[name] = result.metrics.get("served_accuracy", 0.0)  # a broken model may not predict at all
    return accuracies


def summarize(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """A line a cell over seeds: means in percent, and the points lost to the same guard without a liar."""
    keys = ("data", "method", "lie", "guard")
    lines = []
    for cell in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        data, method, _, guard = cell
        found = select_rows(rows, dict(zip(keys, cell)))
        clean = select_rows(rows, {"data": data, "method": method, "lie": "none", "guard": guard})
        default = select_rows(rows, {"data": data, "method": method, "lie": "none", "guard": "clip_norm=2"})
        line: dict[str, Any] = dict(zip(keys, cell))
        line["seeds"] = sorted(found)
        line["accuracy"] = 100 * statistics.mean(row["accuracy"] for row in found.values())
        line["worst"] = 100 * statistics.mean(row["worst"] for row in found.values())
        line["lost"] = lost_points(clean, found)
        line["lost_to_default"] = lost_points(default, found)
        lines.append(line)
    return {"summary": lines}


def select_rows(rows: list[dict[str, Any]], wanted: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Selects the rows of a cell, by seed."""
    return {row["seed"]: row for row in rows if all(row[key] == value for key, value in wanted.items())}


def lost_points(clean: Mapping[int, Mapping[str, Any]], found: Mapping[int, Mapping[str, Any]]) -> list[float] | None:
    """Computes the points lost against clean runs of the same seeds: mean, and 95 % interval if there are two seeds."""
    differences = [100 * (clean[seed]["accuracy"] - row["accuracy"]) for seed, row in found.items() if seed in clean]
    if not differences:
        return None
    if len(differences) == 1:
        return differences
    return list(interval(differences))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    for name, choices in (("data", CASES), ("methods", METHODS), ("lies", LIES), ("guards", GUARDS)):
        parser.add_argument(f"--{name}", nargs="+", choices=list(choices), default=list(choices))
    given = parser.parse_args()
    torch.set_num_threads(1)
    wanted = (
        {"data": data, "method": method, "lie": lie, "guard": guard, "seed": seed}
        for seed, guard, data, method, lie in product(given.seeds, given.guards, given.data, given.methods, given.lies)
        if lie != FALSE or method in COMPARED
        if data != STROKE.name or method != "groups"
    )
    measure_missing(given.out, wanted, measure, summarize, participants=HOSPITALS, rounds=ROUNDS)


if __name__ == "__main__":
    main()
