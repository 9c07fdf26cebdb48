# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A hospital with 51.7 percent of all data, and one with 0.6 percent that attacks: what bounds and robust means cost.

Twelve hospitals train one model by FedAvg; the other ten have equally much. ``clean`` is what a rule costs without
attack, in points of accuracy, against the weighted mean without a bound of weights: over all test samples, and averaged
over the hospitals but the attacker. ``moved`` is how far an attack moves the rule's model, over the way that it went
without attack: after the first round, and at the end. ``lost`` is what that costs in points. ``copied`` is the part of
the first round's parameters that are the largest hospital's. A run that is in the file already is not run again.

    CFL_DATA_ROOT=... python benchmarks/dominant.py --out benchmarks/results/dominant.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from common import provenance, save_rows
from guards import IMAGES, Part
from plans.hospitals import STROKE
from plans.plan import model

from cfl_flare.core.errors import PayloadError, TooFewAnswersError
from cfl_flare.core.settings import setting
from cfl_flare.data import DataConfig, DataSource, Digits, ParticipantData
from cfl_flare.data.deal import Partition, Pool, filled
from cfl_flare.data.label_skew import shares_of
from cfl_flare.data.partitions import PARTITIONS
from cfl_flare.engine.initial_models import initial_models
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import FedAvg, Participant
from cfl_flare.methods.slots import with_parts
from cfl_flare.training.settings import TrainSettings

HOSPITALS, ROUNDS = 12, 20
LARGEST, SMALLEST = 0.517, 0.006
SHARES = np.array([LARGEST, *[(1 - LARGEST - SMALLEST) / (HOSPITALS - 2)] * (HOSPITALS - 2), SMALLEST])


@dataclass(frozen=True)
class Dominant(Partition):
    """The first hospital has most samples, the last one nearly none; each has a mix of labels of its own."""

    name: ClassVar[str] = "dominant"

    alpha: float = setting(1.0, help="concentration of the mixes; small is uneven", gt=0)

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray | None:
        """Of 98 percent of the samples, so that the mixes leave something to draw from."""
        sizes = np.floor(0.98 * pool.train.sum() * SHARES).astype(np.int64)
        mixes = rng.dirichlet(np.full(pool.classes, self.alpha), size=participants)
        return shares_of(filled(mixes * pool.train, sizes, pool.train, rng), pool)


PARTITIONS[Dominant.name] = Dominant


@dataclass(frozen=True)
class Deal:
    """Data, how unevenly labels are dealt, and the training."""

    source: DataSource
    model: Any
    training: TrainSettings
    alpha: float


EVEN, UNEVEN = 1000.0, 1.0
EPOCH = replace(IMAGES, local_steps=None, local_epochs=1)  # the largest hospital takes most steps
MLP = model("mlp", (1, 8, 8), 10)
DEALS = {
    "digits, even": Deal(Digits(), MLP, IMAGES, EVEN),
    "digits, uneven": Deal(Digits(), MLP, IMAGES, UNEVEN),
    "digits, uneven, by epochs": Deal(Digits(), MLP, EPOCH, UNEVEN),
    "blood cells, uneven": Deal(
        Part("bloodmnist28.npz"), model("mlp", (3, 28, 28), 8), replace(IMAGES, lr=0.02, local_steps=10), UNEVEN
    ),
    "stroke, even, by epochs": Deal(
        STROKE.source, STROKE.model, TrainSettings(lr=0.3, batch_size=128, local_epochs=1, task="binary"), EVEN
    ),
}
# What is computed, by which weights, and what bounds them and the updates.
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "mean, no bound of weights": ("samples", {}),
    "mean, 1/2": ("samples", {"max_weight_share": 1 / 2}),
    "mean, 1/3": ("samples", {"max_weight_share": 1 / 3}),
    "mean, 1/2, clipped at 3": ("samples", {"max_weight_share": 1 / 2, "clip_norm": 3.0}),
    "mean, 1/3, clipped at 3": ("samples", {"max_weight_share": 1 / 3, "clip_norm": 3.0}),
    "mean, 1/3, clipped at 1": ("samples", {"max_weight_share": 1 / 3, "clip_norm": 1.0}),
    "median, unweighted": ("uniform", {"aggregation": "median"}),
    "median": ("samples", {"aggregation": "median"}),
    "median, 1/5": ("samples", {"aggregation": "median", "max_weight_share": 1 / 5}),  # as at real sites
    "trimmed mean, unweighted": ("uniform", {"aggregation": "trimmed_mean"}),
    "trimmed mean": ("samples", {"aggregation": "trimmed_mean"}),
}
# The factors of the attacker's update; the liar also claims as many samples as all others have.
ATTACKS = {"none": 1.0, "scaled": 1000.0, "sign flip": -1.0, "scaled sign flip": -1000.0, "liar": -1000.0}
LIAR = "liar"
MOVES = ("moved_first", "moved", "lost")


@dataclass(frozen=True)
class Outcome:
    """A run's model before, after the first round and at the end, the largest hospital's first, and the accuracies."""

    start: np.ndarray
    first: np.ndarray
    last: np.ndarray
    largest: np.ndarray
    pooled: float
    mean: float

    def moved(self, clean: Outcome) -> tuple[float, float]:
        """How far its model is from that without attack, over the way of that."""
        pairs = ((self.first, clean.first), (self.last, clean.last))
        first, last = (float(np.linalg.norm(a - b) / np.linalg.norm(b - clean.start)) for a, b in pairs)
        return first, last


@cache
def run(deal: str, rule: str, attack: str, seed: int) -> Outcome:
    """One run."""
    case, (weighting, settings) = DEALS[deal], RULES[rule]
    method, make_model = FedAvg(weighting=weighting), model_factory(case.model)
    site = Site(method, make_model, case.training, seed)
    partition = {"partition": Dominant.name, "alpha": case.alpha}
    people = DataConfig(HOSPITALS, partition, seed=seed, min_samples=3).host(case.source, "local", 0, 1)
    site.add(people)
    samples = {person.name: len(person.train) for person in people}
    attacker = people[-1].name
    if attack == LIAR:
        samples[attacker] = sum(samples.values()) - samples[attacker]
    layout = site.runtime.resident.layout
    state = method.start(initial_models(method, make_model, layout, seed, None), list(samples))
    participants = [Participant(name, name, count) for name, count in samples.items()]
    chosen = ServerSettings(ROUNDS, seed=seed, evaluate_every=ROUNDS, **settings)
    server = Server(method, layout, participants, chosen, state)
    models = [server.bank["global"].vector.copy()]
    for number in range(ROUNDS):
        tasks = server.tasks()
        bank = with_parts(server.bank, [slot for task in tasks.values() for slot in task.needed])
        for name, task in tasks.items():
            with suppress(PayloadError):  # of a model that an attack has made so large that nobody can train it
                result = site.carry_out(name, task, bank, number)
                if len(models) == 1 and name == people[0].name:
                    models.append(models[0] + result.update.main_diff.vector)
                server.accept(attacked(result, ATTACKS[attack], samples[name]) if name == attacker else result, name)
        try:
            server.finish_round()
        except TooFewAnswersError:
            break
        models.append(server.bank["global"].vector.copy())
    accuracies = [accuracy(site, server, person) for person in people]
    pooled = float(np.average(accuracies, weights=[len(person.test) for person in people]))
    mean = float(np.mean(accuracies[:-1]))
    return Outcome(models[0], models[2], models[-1], models[1], 100 * pooled, 100 * mean)


def attacked(result: Result, factor: float, samples: int) -> Result:
    """What the attacker sends in place of its honest result; no value is so large that it would be refused."""
    assert result.update is not None
    diffs = {
        slot: replace(diff, vector=np.clip(diff.vector * np.float32(factor), -1e8, 1e8))
        for slot, diff in result.update.diffs.items()
    }
    return replace(result, update=replace(result.update, diffs=diffs, samples=samples))


def accuracy(site: Site, server: Server, person: ParticipantData) -> float:
    """Of the last model, on the hospital's own test samples."""
    task = Task.of(server.method.distribute(server.state, person.name), False, True)
    metrics = site.carry_out(person.name, task, with_parts(server.bank, task.needed), ROUNDS).metrics
    return metrics.get("served_accuracy", 0.0)  # a broken model may not predict at all


def row_of(deal: str, rule: str, attack: str, seed: int) -> dict[str, Any]:
    """A row of the file."""
    unbounded = next(iter(RULES))
    now, clean, bare = run(deal, rule, attack, seed), run(deal, rule, "none", seed), run(deal, unbounded, "none", seed)
    row: dict[str, Any] = {"deal": deal, "rule": rule, "attack": attack, "seed": seed, "accuracy": now.pooled}
    if attack == "none":
        copied = float(np.isclose(now.first, now.largest, rtol=1e-5, atol=1e-8).mean())
        return {**row, "clean": now.pooled - bare.pooled, "clean_mean": now.mean - bare.mean, "copied": copied}
    first, last = now.moved(clean)
    return {**row, "moved_first": first, "moved": last, "lost": clean.pooled - now.pooled}


def summary(rows: list[dict[str, Any]], seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Means over the seeds: a line a deal and rule."""
    lines = []
    for deal, rule in product(DEALS, RULES):
        of = [row for row in rows if (row["deal"], row["rule"]) == (deal, rule)]
        if len(of) < len(ATTACKS) * len(list(seeds)):
            continue
        line: dict[str, Any] = {"deal": deal, "rule": rule}
        for key in ("accuracy", "clean", "clean_mean", "copied"):
            line[key] = statistics.mean(row[key] for row in of if row["attack"] == "none")
        for attack, key in product(list(ATTACKS)[1:], MOVES):
            line[f"{attack} {key}"] = statistics.mean(row[key] for row in of if row["attack"] == attack)
        lines.append(line)
    return lines


def by_rule(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line a rule: what it costs without attack, by deal, and the worst of all deals with attacks.

    ``moved`` and ``lost`` are of an attacker that says how many samples it has, ``liar`` of one that does not.
    """
    honest = [attack for attack in ATTACKS if attack not in ("none", LIAR)]
    rules = []
    for rule in RULES:
        of = {line["deal"]: line for line in lines if line["rule"] == rule}
        if len(of) < len(DEALS):
            continue
        worst = {key: max(of[deal][f"{a} {key}"] for deal in DEALS for a in honest) for key in MOVES}
        worst |= {f"liar_{key}": max(line[f"{LIAR} {key}"] for line in of.values()) for key in MOVES}
        worst |= {"copied": max(line["copied"] for line in of.values())}
        rules.append({"rule": rule, "clean": [of[deal]["clean"] for deal in DEALS], **worst})
        rules[-1]["clean_mean"] = [of[deal]["clean_mean"] for deal in DEALS]
    return rules


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--deals", nargs="+", choices=list(DEALS), default=list(DEALS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    made = {"hospitals": HOSPITALS, "rounds": ROUNDS, "seeds": given.seeds, "shares": [LARGEST, SMALLEST]}
    made = provenance() | made
    rows = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    done = {(row["deal"], row["rule"], row["attack"], row["seed"]) for row in rows}
    for key in product(given.deals, RULES, ATTACKS, given.seeds):
        if key not in done:
            rows.append(row_of(*key))
            print(json.dumps(rows[-1]), flush=True)
        lines = summary(rows, given.seeds)
        save_rows(given.out, made, rules=by_rule(lines), summary=lines, rows=rows)


if __name__ == "__main__":
    main()
