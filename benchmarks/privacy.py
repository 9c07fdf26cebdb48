# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the gate stops before a cluster's model leaves.

A run has clusters of 3, 6 and 12 hospitals, given as groups. Models memorise, of few samples in many epochs, or do not,
of many samples in few. Members attack the final models. Regimes and sizes were fixed before the seeds from 100 on were
looked at. A run that is in the file already is not run again.

    CFL_DATA_ROOT=... python benchmarks/privacy.py --out benchmarks/results/gate.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from common import build_server, measure_missing
from scipy.stats import binomtest

from cfl_flare.cli.specs import read_source
from cfl_flare.core.seeds import stream
from cfl_flare.data import DataConfig, ParticipantData
from cfl_flare.engine.drive import Checkpoints, InProcess, drive
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.observers.membership import clearly_above, rates_of
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.methods import Groups, Method
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.results.gate import why_not
from cfl_flare.training.membership import ATTACKS, Counts, attacks
from cfl_flare.training.settings import TrainSettings

IID = {"partition": "iid"}
BOUND = 0.1
SIZES = (3, 6, 12)  # hospitals of each cluster
SHADOW_MODELS = 8  # of each hospital
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


def attack_clusters(data: str, regime: str, seed: int) -> dict[str, Any]:
    """Trains the clusters, and lets their members attack the final models.

    Returns:
        How much better models are on training samples, and for each size of a cluster what attacks reach and why the
        gate stops the model; None if it does not.
    """
    chosen, config = REGIMES[data, regime], DataConfig(participants=sum(SIZES), partition=IID, seed=seed)
    method = Groups(groups=dict(zip(config.names, np.repeat([f"of {size:02}" for size in SIZES], SIZES).tolist())))
    people = list(host_hospitals(data, chosen, config))
    training = TrainSettings(**chosen.training)
    server = train_clusters(method, people, chosen, training.over(chosen.rounds, chosen.rounds), seed)
    attackers = Site(method, model_factory(chosen.model), training, seed)
    attackers.add(people)
    models = method.list_models(server.state, server.layout)
    on_train = attackers.tested_on([replace(person, test=person.train) for person in people])
    counts: dict[str, list[dict[str, Counts]]] = {}
    gaps = []
    for name, k in server.state.assignment.items():
        slot, learner = cluster_slot(k), attackers.learner(name, {}, chosen.rounds)
        counts.setdefault(slot, []).append(attacks(learner, {slot: models[slot]}, SHADOW_MODELS)[slot])
        of_both = (site.learner(name, {}, 0).evaluate(models[slot])["accuracy"] for site in (on_train, attackers))
        gaps.append(next(of_both) - next(of_both))
    clusters = {}
    for slot, label in zip(map(cluster_slot, range(len(SIZES))), method.labels):
        pooled = {attack: reduce(add, (of[attack] for of in counts[slot])) for attack in ATTACKS}
        rates = {
            "sites": len(counts[slot]),
            "unmeasured": 0,
            "attacks": {attack: rates_of(of) for attack, of in pooled.items()},
        }
        single = [slot] if any(clearly_above(of, BOUND) for of in counts[slot]) else []
        shadows = {"shadow_models": SHADOW_MODELS, "fewest_shadow_models": SHADOW_MODELS}
        facts = {"bound": BOUND, **shadows, "models": {slot: rates}, "objections": [], "single": single}
        clusters[label] = {**rates["attacks"], "stopped": why_not({"membership": facts}, slot)}
    return {"gap": float(np.mean(gaps)), "clusters": clusters}


def train_clusters(
    method: Method, people: list[ParticipantData], regime: Regime, training: TrainSettings, seed: int
) -> Server:
    """The server after a run of these hospitals, each a site."""
    settings = ServerSettings(regime.rounds, seed=seed, evaluate_every=regime.rounds)
    site = Site(method, model_factory(regime.model), training, seed)
    site.add(people)
    server = build_server(site, model_factory(regime.model), settings, seed)
    drive(server, InProcess(site, {name: name for name in site.hosted}), Checkpoints())
    return server


def host_hospitals(data: str, regime: Regime, config: DataConfig) -> Iterator[ParticipantData]:
    """The hospitals, with samples dealt out at random, and each with as many as the regime says."""
    for person in config.host(read_source(data), "local", 0, 1):
        train, test = (split.take(np.arange(n)) for split, n in ((person.train, regime.samples), (person.test, TESTS)))
        if regime.random_labels:
            classes, rng = int(max(train.y.max(), test.y.max())) + 1, stream(config.seed, person.name, "random labels")
            train, test = (replace(part, y=rng.integers(classes, size=len(part))) for part in (train, test))
        yield replace(person, train=train, test=test)


def summarize(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """For each data set, regime and size of a cluster: how many models were stopped, and what attacks reached.

    ``totals`` has the numbers over all sizes, and the lower end of the 95 % interval of the share that was stopped.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        for label, of in line["clusters"].items():
            reached = {attack: of[attack]["tpr"] for attack in ATTACKS}
            model = {**reached, "stopped": of["stopped"] is not None, "gap": line["gap"]}
            groups.setdefault((line["data"], line["regime"], int(label.removeprefix("of "))), []).append(model)
    rows, totals = [], []
    for (data, regime, sites), models in sorted(groups.items()):
        means = {name: float(np.mean([model[name] for model in models])) for name in (*ATTACKS, "gap")}
        counts = {"sites": sites, "models": len(models), "stopped": sum(model["stopped"] for model in models)}
        rows.append({"data": data, "regime": regime, **counts, **means})
    for data, regime in dict.fromkeys((row["data"], row["regime"]) for row in rows):
        of_regime = [row for row in rows if (row["data"], row["regime"]) == (data, regime)]
        count, stopped = (sum(row[key] for row in of_regime) for key in ("models", "stopped"))
        least = float(binomtest(stopped, count).proportion_ci(0.95, "exact").low)
        totals.append({"data": data, "regime": regime, "models": count, "stopped": stopped, "least_share": least})
    return {"summary": rows, "totals": totals}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(100, 120))
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    given = parser.parse_args()
    wanted = ({"data": data, "regime": regime, "seed": seed} for seed in given.seeds for data, regime in REGIMES)
    measure_missing(given.out, wanted, attack_clusters, summarize, bound=BOUND, tests=TESTS)


if __name__ == "__main__":
    main()
