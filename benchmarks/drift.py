# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Data that drifts: FedDrift beside an oracle on SINE and CIRCLE, and how often it is a false alarm.

Ten participants change between two concepts by the paper's matrix A, over eleven periods, in each with 100 samples for
training and 100 for testing. ``end`` is the accuracy on a period's own test samples after all its rounds, ``next`` that
on the next period's, before anybody has trained on these; both are means over periods and participants. The oracle
knows each participant's concept, has a model for each, and trains it on all data of the concept.

Where nothing changes, every drift is a false alarm. ``unchanged`` are the generated points with one concept, of another
start for each seed. ``stroke, shuffled`` are the stroke trial's hospitals with at least 100 patients, in four periods
at random; ``stroke, by date`` are the same in the order of their dates. ``command`` is the test of ``cfl-flare drift``
of each of these hospitals in each period but the first: FedAvg's model against the test samples of the first.

    python benchmarks/drift.py --out benchmarks/results/drift.json

It saves after each run and continues where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from common import provenance
from kept import interval

from cfl_flare.cli.drift import rise
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.data.hospitals import STROKE_COLUMNS, Stroke
from cfl_flare.data.sources import MATRIX_A, Drifting
from cfl_flare.data.table import Table
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.loop import model_factory, run_loop
from cfl_flare.engine.plan import JobSettings, RunPlan
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.engine.site import Site
from cfl_flare.methods import IFCA, Download, FedAvg, FedDrift, Local, Method, ServerState, Update
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.methods.state import PLAIN, Traits
from cfl_flare.training.settings import TrainSettings


def network(features: int, *hidden: int) -> dict[str, Any]:
    """A fully connected network for two classes, as a job names it."""
    args = {"input_shape": [features], "num_classes": 2, "hidden": list(hidden)}
    return {"class_path": "cfl_flare.models.MLP", "args": args}


PER_PERIOD, SEEDS = 20, 5
NET = network(2, 16)
TRAINING = TrainSettings(lr=0.02, optimizer="adam", local_steps=10)
STROKE_PERIODS, LARGE = 4, 100


@dataclass(frozen=True, kw_only=True)
class Oracle(Method):
    """Each concept has a model, which participants train on all their data of it."""

    name: ClassVar[str] = "oracle"
    paper: ClassVar[str] = "a bound"

    @property
    def traits(self) -> Traits:
        return Traits(**{**vars(PLAIN), "clusters": 2})

    def concepts(self, state: ServerState, participant: str) -> list[int]:
        periods = min(state.period + 1, len(MATRIX_A))
        return [int(row[int(participant[1:])]) for row in MATRIX_A[:periods]]

    def start(self, initial: Callable[[int], Any], participants: Sequence[str] = ()) -> ServerState:
        return ServerState({slot: initial(k) for k, slot in enumerate(self.slots)})

    def distribute(self, state: ServerState, participant: str) -> Download:
        concepts = self.concepts(state, participant)
        periods = [t for t, k in enumerate(concepts) if k == concepts[-1]]
        return Download((cluster_slot(concepts[-1]),), scalars={"periods": periods})

    def local_update(self, learner: Any, download: Download) -> Update:
        moved = super().local_update(learner.of_periods(download.scalars["periods"]), download)
        return Update(learner.participant, learner.samples, moved.diffs)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Any) -> ServerState:
        return state.after(self.means(state, updates))


ROWS: dict[str, Method] = {
    "oracle": Oracle(),
    "feddrift": FedDrift(),
    "feddrift-eager": FedDrift(eager=True),
    "ifca": IFCA(k=2),
    "fedavg": FedAvg(),
    "local": Local(),
}


def run(
    method: Method, source: DataSource, seed: int, periods: int, net: Any, training: TrainSettings
) -> tuple[Server, list[dict[str, Any]]]:
    """The server after a run, and the records of its rounds."""
    plan = RunPlan(
        method=method,
        model=net,
        reader=source,
        data=DataConfig(partition="natural", min_samples=2),
        server=ServerSettings(PER_PERIOD * periods, seed, rounds_per_period=PER_PERIOD),
        training=training,
        job=JobSettings(min_clients=1),
        site=SiteSettings(keep_served=False),
    )
    with TemporaryDirectory() as folder:
        server = run_loop(plan, Path(folder), checkpoints=Checkpoints())
        return server, [json.loads(line) for line in (Path(folder) / "rounds.jsonl").read_text().splitlines()]


def accuracies(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """In percent, over periods: at the end of each, and on the next one's samples."""
    by_round = {line["round"]: 100 * line["served_accuracy"] for line in records}
    ends = [v for number, v in by_round.items() if number % PER_PERIOD == PER_PERIOD - 2]
    nexts = [v for number, v in by_round.items() if number % PER_PERIOD == PER_PERIOD - 1][:-1]
    return {"end": statistics.fmean(ends), "next": statistics.fmean(nexts)}


def majority(source: Drifting) -> dict[str, float]:
    """Each participant names the class that is most frequent among its training samples of a period."""
    train, test = source.load()
    assert train.key is not None and test.key is not None and train.period is not None and test.period is not None
    shares: dict[str, list[float]] = {"end": [], "next": []}
    for name in np.unique(train.key):
        for period in np.unique(train.period):
            often = np.bincount(train.y[(train.key == name) & (train.period == period)]).argmax()
            for which, then in (("end", period), ("next", period + 1)):
                labels = test.y[(test.key == name) & (test.period == then)]
                shares[which] += [100 * float((labels == often).mean())] if len(labels) else []
    return {which: statistics.fmean(values) for which, values in shares.items()}


def changes(records: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many drifts a run saw, clusters it opened and merges it made."""
    return {key: sum(len(line.get(key, ())) for line in records) for key in ("drifted", "opened", "merged")}


# ---- Hospitals ----


def stroke(folder: Path, seed: int, by_date: bool) -> tuple[Table, int]:
    """The stroke trial's large hospitals, each one's patients in four periods of equal size; and how many there are."""
    with Stroke().leave():
        frame = pd.read_csv(Stroke().inner.path)
    frame = frame[frame["dependent"].notna()].astype({"dependent": int})
    frame = frame[frame.groupby("HOSPNUM")["AGE"].transform("size") >= LARGE].sample(frac=1, random_state=seed)
    frame = frame.sort_values("RDATE", kind="stable") if by_date else frame
    rank = frame.groupby("HOSPNUM").cumcount()
    frame["wave"] = rank * STROKE_PERIODS // frame.groupby("HOSPNUM")["AGE"].transform("size")
    frame.to_csv(folder / "stroke.csv", index=False)
    leave = ["days", "died", "RDATE", "COUNTRY"]
    columns = STROKE_COLUMNS.to_dict()
    path = str(folder / "stroke.csv")
    table = Table(path, "dependent", "HOSPNUM", columns=columns, leave=leave, period="wave", test_share=0.5, seed=seed)
    return table, frame["HOSPNUM"].nunique()


def hospitals(seed: int, by_date: bool) -> dict[str, Any]:
    """Drifts in FedDrift's runs by ``delta``, and alarms of the command's test, as shares of all that could be."""
    net = network(len(STROKE_COLUMNS.features))
    training = TrainSettings(lr=0.05, local_epochs=1)
    with TemporaryDirectory() as folder:
        source, count = stroke(Path(folder), seed, by_date)
        possible = count * (STROKE_PERIODS - 1)
        shares = {"hospitals": count}
        for delta in (0.1, 0.2, 0.3):
            _, records = run(FedDrift(delta=delta, eager=True), source, seed, STROKE_PERIODS, net, training)
            shares[f"delta={delta}"] = changes(records)["drifted"] / possible
        server, _ = run(FedAvg(), source, seed, 1, net, training)
        people = DataConfig(partition="natural", min_samples=2).resolved(source).host(source, "local", 0, 1)
        site = Site(FedAvg(), model_factory(net), training, seed)
        site.add(people)
        alarms = 0
        for person in people:
            losses = losses_of(site, person, server.state.bank["global"])
            alarms += sum(rise(losses[0], later).p <= 0.05 for later in losses[1:])
        shares["command"] = alarms / possible
    return shares


def losses_of(site: Site, person: Any, params: Any) -> list[np.ndarray]:
    """The losses of the test samples of the first period, and of all samples of each later one."""
    task, runtime, parts = site.runtime.task, site.runtime, []
    for period in range(STROKE_PERIODS):
        splits = (person.test,) if period == 0 else (person.train, person.test)
        chosen = [s.take(np.flatnonzero(s.period == period)) for s in splits]
        samples = chosen[0] if len(chosen) == 1 else chosen[0].joined(chosen[1])
        split = site._split(samples)
        outputs = runtime.predictor([params])(split.x)
        parts.append(task.sample_losses(outputs.double(), split.y)[0].numpy())
    return parts


# ---- All ----


def measure(name: str, seed: int) -> dict[str, Any]:
    """One run: a row on SINE or CIRCLE, or a check of false alarms."""
    what, _, row = name.partition("/")
    if what in ("sine", "circle"):
        source = Drifting(concept=what, seed=seed)
        if row == "majority":
            return majority(source)
        _, records = run(ROWS[row], source, seed, len(MATRIX_A), NET, TRAINING)
        return {**accuracies(records), **changes(records)}
    if what == "unchanged":
        source = Drifting(concept=row, changes=("0" * 10,) * 6, seed=seed)
        possible = 10 * 5
        methods = {f"delta={delta}": FedDrift(delta=delta) for delta in (0.1, 0.2)}
        records = {key: run(method, source, seed, 6, NET, TRAINING)[1] for key, method in methods.items()}
        return {key: changes(lines)["drifted"] / possible for key, lines in records.items()}
    return hospitals(seed, by_date=what == "stroke, by date")


BASES = ("oracle", "fedavg", "ifca")
NAMES = [f"{what}/{row}" for what in ("sine", "circle") for row in (*ROWS, "majority")]
NAMES += ["unchanged/sine", "unchanged/circle", "stroke, shuffled/", "stroke, by date/"]


def summary(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds by data and row, and differences to other rows, paired by seed, with 95 % intervals."""
    means: dict[str, Any] = {}
    for name in NAMES:
        what, _, row = name.partition("/")
        of_seed = [cells[f"{name}/{seed}"] for seed in range(SEEDS)]
        mean = {key.replace("=0.", "_"): statistics.fmean(cell[key] for cell in of_seed) for key in of_seed[0]}
        for base in BASES if what in ("sine", "circle") else ():
            for key in ("end", "next"):
                pairs = [cell[key] - cells[f"{what}/{base}/{seed}"][key] for seed, cell in enumerate(of_seed)]
                mean[f"{key}_{base}"] = list(interval(pairs))
        data, _, order = what.partition(", ")
        means.setdefault(data, {})[row or order.replace(" ", "_")] = mean
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=list(range(SEEDS)), help="which of the seeds are run now"
    )
    arguments = parser.parse_args()
    out = arguments.out
    content = json.loads(out.read_text()) if out.is_file() else {**provenance(), "cells": {}}
    for seed in arguments.seeds:
        for name in NAMES:
            if f"{name}/{seed}" not in content["cells"]:
                content["cells"][f"{name}/{seed}"] = measure(name, seed)
                print(name, seed, content["cells"][f"{name}/{seed}"], flush=True)
                out.write_text(json.dumps(content))
    if len(content["cells"]) == SEEDS * len(NAMES):
        content["means"] = summary(content["cells"])
    out.write_text(json.dumps(content))


if __name__ == "__main__":
    import drift  # a run finds the oracle in a module of this name

    drift.main()
