# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What models tell of those on whom they were trained, and what is set against it.

    CFL_DATA_ROOT=... python benchmarks/privacy.py --gate --out privacy

``--gate`` measures the gate before a cluster's model leaves. A run has clusters of 3, 6 and 12 hospitals, given as
groups. Models memorise, of few samples in many epochs, or do not, of many samples in few. Each run adds a line to
``gate.jsonl`` in the folder, and those that are there are skipped. ``gate.json`` has the summary. Regimes and sizes
were fixed before the seeds from 100 on were looked at.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from common import commit, write_json
from scipy.stats import binomtest

from cfl_flare.cli.specs import read_source
from cfl_flare.core.seeds import stream
from cfl_flare.data import DataConfig, ParticipantData
from cfl_flare.engine.drive import Checkpoints, InProcess, drive
from cfl_flare.engine.initial_models import initial_models
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.observers.membership import clearly_above, rates_of
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.methods import Groups, Method, Participant
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.results.gate import why_not
from cfl_flare.training.membership import ATTACKS, Counts, attacks
from cfl_flare.training.settings import TrainSettings

# ---- The gate ----


IID = {"partition": "iid"}
GATE, BOUND = "gate.jsonl", 0.1
SIZES = (3, 6, 12)  # hospitals of each cluster
TESTS = 100  # of each hospital, of which an attack may take one for a training sample


@dataclass(frozen=True)
class Regime:
    """How models are trained.

    Attributes:
        samples: training samples of each hospital.
        rounds: of the run.
        training: settings.
        model: the network.
        random_labels: all labels are drawn anew, so that whatever is right on training samples was learnt by heart.
    """

    samples: int
    rounds: int
    training: dict[str, Any]
    model: dict[str, Any]
    random_labels: bool = False


def mlp(shape: tuple[int, ...], classes: int, *hidden: int) -> dict[str, Any]:
    """A fully connected network, as a job names it."""
    args = {"input_shape": list(shape), "num_classes": classes, "hidden": list(hidden)}
    return {"class_path": "cfl_flare.models.MLP", "args": args}


CELLS, STROKE = "bloodmnist28.npz", "stroke"
MANY_PASSES = {"lr": 0.05, "local_epochs": 10}
BY_HEART = {"lr": 0.01, "local_epochs": 20, "momentum": 0.9}
BY_HEART_TABLE = {"lr": 0.1, "local_epochs": 5, "momentum": 0.9}
FEW_PASSES = {"lr": 0.02, "local_epochs": 1, "weight_decay": 1e-3}
# By data: labels that can only be learnt by heart; few samples in hundreds of passes; many in twenty, a small network.
REGIMES = {
    (CELLS, "random labels"): Regime(20, 20, BY_HEART, mlp((3, 28, 28), 8, 256), random_labels=True),
    (CELLS, "20 samples"): Regime(20, 20, MANY_PASSES, mlp((3, 28, 28), 8, 128)),
    (CELLS, "40 samples"): Regime(40, 20, MANY_PASSES, mlp((3, 28, 28), 8, 128)),
    (CELLS, "regular"): Regime(400, 20, FEW_PASSES, mlp((3, 28, 28), 8, 16)),
    (STROKE, "random labels"): Regime(40, 40, BY_HEART_TABLE, mlp((45,), 2, 128, 128), random_labels=True),
    (STROKE, "20 samples"): Regime(20, 20, MANY_PASSES, mlp((45,), 2, 128, 128)),
    (STROKE, "40 samples"): Regime(40, 20, MANY_PASSES, mlp((45,), 2, 128, 128)),
    (STROKE, "regular"): Regime(400, 20, FEW_PASSES, mlp((45,), 2, 16)),
}


@dataclass(frozen=True)
class GateRun:
    """One run: its data, how models are trained, a seed, and settings of differential privacy; None without."""

    data: str
    regime: str
    seed: int
    dp: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """Its name in the file."""
        return "/".join(map(str, (self.data, self.regime, self.seed, json.dumps(self.dp))))


def gate_run(cell: GateRun, shadow_models: int = 8, bound: float = BOUND) -> dict[str, Any]:
    """Trains the clusters, and lets their members attack the final models, without noise in any case.

    Returns:
        How much better models are on training samples, and for each size of a cluster what attacks reach and why the
        gate stops the model; None if it does not.
    """
    regime, data = REGIMES[cell.data, cell.regime], DataConfig(participants=sum(SIZES), partition=IID, seed=cell.seed)
    method = Groups(groups=dict(zip(data.names, np.repeat([f"of {size:02}" for size in SIZES], SIZES).tolist())))
    people = list(hospitals(cell, regime, data))
    training = TrainSettings(**regime.training)
    server = trained(
        method, people, regime, replace(training, dp=cell.dp).over(regime.rounds, regime.rounds), cell.seed
    )
    attackers = Site(method, model_factory(regime.model), training, cell.seed)
    attackers.add(people)
    models = method.models(server.state, server.layout)
    on_train = attackers.tested_on([replace(person, test=person.train) for person in people])
    counts: dict[str, list[dict[str, Counts]]] = {}
    gaps = []
    for name, k in server.state.assignment.items():
        slot, learner = cluster_slot(k), attackers.learner(name, {}, regime.rounds)
        counts.setdefault(slot, []).append(attacks(learner, {slot: models[slot]}, shadow_models)[slot])
        of_both = (site.learner(name, {}, 0).evaluate(models[slot])["accuracy"] for site in (on_train, attackers))
        gaps.append(next(of_both) - next(of_both))
    clusters = {}
    for slot, label in zip(map(cluster_slot, range(len(SIZES))), method.labels):
        pooled = {attack: reduce(add, (of[attack] for of in counts[slot])) for attack in ATTACKS}
        rates = {"sites": len(counts[slot]), "attacks": {attack: rates_of(of) for attack, of in pooled.items()}}
        single = [slot] if any(clearly_above(of, bound) for of in counts[slot]) else []
        facts = {"bound": bound, "models": {slot: rates}, "objections": [], "single": single}
        clusters[label] = {**rates["attacks"], "stopped": why_not({"membership": facts}, slot)}
    return {"gap": float(np.mean(gaps)), "clusters": clusters}


def trained(
    method: Method, people: list[ParticipantData], regime: Regime, training: TrainSettings, seed: int
) -> Server:
    """The server after a run of these hospitals, each a site."""
    settings = ServerSettings(regime.rounds, seed=seed, evaluate_every=regime.rounds)
    site = Site(method, model_factory(regime.model), training, seed)
    site.add(people)
    participants = [Participant(person.name, person.name, site.samples(person.name)) for person in people]
    layout, names = site.runtime.division.public, [person.name for person in people]
    initial = initial_models(method, model_factory(regime.model), layout, seed, None)
    server = Server(method, layout, participants, settings, method.start(initial, names))
    drive(server, InProcess(site, {name: name for name in names}), Checkpoints())
    return server


def hospitals(cell: GateRun, regime: Regime, data: DataConfig) -> Iterator[ParticipantData]:
    """The hospitals, with samples dealt out at random, and each with as many as the regime says."""
    for person in data.host(read_source(cell.data), "local", 0, 1):
        train, test = (split.take(np.arange(n)) for split, n in ((person.train, regime.samples), (person.test, TESTS)))
        if regime.random_labels:
            classes, rng = int(max(train.y.max(), test.y.max())) + 1, stream(cell.seed, person.name, "random labels")
            train, test = (replace(part, y=rng.integers(classes, size=len(part))) for part in (train, test))
        yield replace(person, train=train, test=test)


def measure_gate(folder: Path, seeds: Iterable[int], dp: Mapping[str, Any] | None = None) -> None:
    """Runs what is not in the folder's file yet, and adds each as it is done."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / GATE
    lines = path.read_text().splitlines() if path.exists() else []
    done = {json.loads(line)["key"] for line in lines}
    for cell in (GateRun(data, regime, seed, dp) for seed in seeds for data, regime in REGIMES):
        if cell.key in done:
            continue
        started = time.process_time()
        line = {"key": cell.key, **vars(cell), **gate_run(cell), "commit": commit()}
        line["cpu_seconds"] = round(time.process_time() - started, 1)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def gate_summary(folder: Path) -> dict[str, Any]:
    """For each data set, regime and size of a cluster: how many models were stopped, and what attacks reached.

    ``totals`` has the numbers over all sizes, and the lower end of the 95 % interval of the share that was stopped.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in map(json.loads, (folder / GATE).read_text().splitlines()):
        for label, of in line["clusters"].items():
            of_both = {attack: of[attack]["tpr"] for attack in ATTACKS}
            row = {**of_both, "stopped": of["stopped"] is not None, "gap": line["gap"], "commit": line["commit"]}
            key = line["data"], line["regime"], json.dumps(line["dp"]), int(label.removeprefix("of "))
            groups.setdefault(key, []).append(row)
    rows = []
    for (data, regime, dp, sites), runs in sorted(groups.items()):
        means = {name: float(np.mean([run[name] for run in runs])) for name in (*ATTACKS, "gap")}
        counts = {"sites": sites, "models": len(runs), "stopped": sum(run["stopped"] for run in runs)}
        commits = sorted({run["commit"] for run in runs})
        rows.append({"data": data, "regime": regime, "dp": json.loads(dp), **counts, **means, "commits": commits})
    totals = []
    for data, regime in dict.fromkeys((row["data"], row["regime"]) for row in rows):
        of_regime = [row for row in rows if (row["data"], row["regime"]) == (data, regime)]
        models, stopped = (sum(row[key] for row in of_regime) for key in ("models", "stopped"))
        least = float(binomtest(stopped, models).proportion_ci(0.95, "exact").low)
        totals.append({"data": data, "regime": regime, "models": models, "stopped": stopped, "least_share": least})
    return {"bound": BOUND, "tests": TESTS, "summary": rows, "totals": totals}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gate", action="store_true", help="the gate before a cluster's model leaves")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(100, 120))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.gate:
        measure_gate(arguments.out, arguments.seeds)
        write_json(arguments.out / "gate.json", gate_summary(arguments.out), indent=1)


if __name__ == "__main__":
    main()
