# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What hostile hospitals do to the others: every method, attack and defence on blood cells at 12 hospitals.

Hospitals fall into three groups by the cells that they see. The attackers are the first hospitals of the first group,
and attack in every round. Each run adds a line a cell to ``attacks.jsonl`` in the folder, and skips the cells that are
there.

    CFL_DATA_ROOT=... python benchmarks/attacks.py --out attacks
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import build_server, commit
from plans.blood import LABELS
from plans.plan import model

from cfl_flare.cli.specs import build_named
from cfl_flare.core.errors import PayloadError, TooFewAnswersError
from cfl_flare.core.params import Params
from cfl_flare.data import DataConfig, Npz, ParticipantData
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods.slots import add_parts, cluster_slot
from cfl_flare.training.ensemble import Served, combine_outputs
from cfl_flare.training.settings import TrainSettings

HOSPITALS, CLASSES, TARGET = 12, 8, 0
FILE = "attacks.jsonl"
METHODS = {
    "FedAvg": "fedavg",
    "WeCFL": "wecfl:k=3",
    "IFCA": "ifca:k=3,assignment_samples=128",
    "FeSEM-CAM": "fesem-cam:k=3,warmup=4",
    "FedAvg, batch norm": "fedavg",
    "WeCFL, batch norm": "wecfl:k=3",
    "local": "local",
}
ATTACKS = ("none", "sign flip", "scale", "label flip", "backdoor", "wrong cluster", "free rider")
# Of those who know the defence: they see what the honest members of their group send, and stay inside of it.
ADAPTIVE = ("hidden layers", "zero variance", "short negated", "ALIE", "min-max", "inner product")
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {"clip_norm": 0},
    "clipping": {},
    "clipping at 2": {"clip_norm": 2.0},
    "median": {"aggregation": "median"},
    "trimmed mean": {"aggregation": "trimmed_mean"},
    "Krum": {"aggregation": "krum"},
    "outliers": {"reject_outliers": True},
    "outliers and median": {"reject_outliers": True, "aggregation": "median"},
}
TRAINING = TrainSettings(lr=0.01, momentum=0.9, batch_size=32, local_steps=10)
MODEL = model("path-cnn", (3, 28, 28), CLASSES)
NORMALISED = model("fashion-cnn", (3, 28, 28), CLASSES)  # with batch norm


@dataclass(frozen=True)
class Cell:
    """One run: what is attacked, how, by how many, and what is set against it."""

    method: str
    attack: str
    attackers: int
    defence: str
    seed: int
    rounds: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return "/".join(map(str, (self.method, self.attack, self.attackers, self.defence, self.seed, self.rounds)))


def triggered(x: torch.Tensor) -> torch.Tensor:
    """Images with the backdoor's mark, a bright square of 4 x 4 in a corner."""
    marked = x.clone()
    marked[..., -5:-1, -5:-1] = x.max()
    return marked


def poisoned(data: ParticipantData, attack: str) -> ParticipantData:
    """The training samples of an attacker."""
    train = data.train
    if attack == "label flip":
        return replace(data, train=replace(train, y=(train.y + 1) % CLASSES))
    if attack == "backdoor":
        x, y = torch.as_tensor(train.x), train.y.copy()
        half = np.arange(len(y)) % 2 == 0
        marked = triggered(x)
        y[half] = TARGET
        mixed = torch.where(torch.as_tensor(half).view(-1, *[1] * (x.dim() - 1)), marked, x)
        return replace(data, train=replace(train, x=mixed.numpy() if isinstance(train.x, np.ndarray) else mixed, y=y))
    return data


def moved(diff: Params, factor: float) -> Params:
    """A difference times a number."""
    return replace(diff, vector=(diff.vector * np.float32(factor)).astype(np.float32))


def crafted(attack: str, diff: Params, sent: Params, group: np.ndarray) -> Params:
    """An attacker's difference in place of its honest one.

    Args:
        attack: one of `ADAPTIVE`.
        diff: its honest difference.
        sent: the model that it is a difference from.
        group: the honest differences of those that trained the same model, ``(m, d)``.
    """
    end, vector = diff.layout.parameter_size, diff.vector.copy()
    mean, std = group.mean(axis=0), group.std(axis=0)
    if attack == "hidden layers":  # nine times its own update, negated; the head, which clustering compares, is honest
        for entry in diff.layout.entries:
            if entry.kind == "parameter" and not entry.fc:
                vector[entry.slice] *= -9
    elif attack == "zero variance":  # so far below 0 that the mean's variance is 0, as long as nobody bounds it
        for entry in diff.layout.entries:
            if entry.name.endswith("running_var"):
                vector[entry.slice] = -(len(group) + 1) * sent.vector[entry.slice]
    elif attack == "short negated":  # Half as long as an honest one
        vector[:end] *= -0.5
    elif attack == "ALIE":  # A little is enough (Baruch et al. 2019), with their z for few attackers
        vector[:end] = (mean - 1.0 * std)[:end]
    elif attack == "inner product":  # Xie et al. 2020: against the honest mean, no longer than that
        vector[:end] = -mean[:end]
    elif attack == "min-max":  # Shejwalkar and Houmansadr 2021, along the inverse of the deviation
        vector[:end] = (mean - _largest(mean[:end], std[:end], group[:, :end]) * std)[:end]
    return replace(diff, vector=vector.astype(np.float32))


def _largest(mean: np.ndarray, std: np.ndarray, group: np.ndarray) -> float:
    """The largest factor with which the crafted one is no further from any honest one than two of those are apart."""
    most = max(float(np.linalg.norm(a - b)) for a in group for b in group)
    low, high = 0.0, 50.0
    for _ in range(20):
        middle = (low + high) / 2
        far = max(float(np.linalg.norm(mean - middle * std - row)) for row in group)
        low, high = (middle, high) if far <= most else (low, middle)
    return low


class Attackers:
    """Sends what an attacker sends in place of its honest result."""

    def __init__(self, attack: str, names: set[str]):
        self.attack, self.names = attack, names

    def result(self, honest: Result, server: Server) -> Result:
        """The attack's result of a participant; that of an honest one, or of one that only measures, stays."""
        update = honest.update
        if honest.participant not in self.names or update is None:
            return honest
        factors = {"sign flip": -10.0, "scale": 100.0, "backdoor": 5.0, "free rider": 0.0}
        if self.attack in ADAPTIVE:
            return honest  # until all honest updates are there: `adapted`
        if self.attack in factors:
            diffs = {slot: moved(diff, factors[self.attack]) for slot, diff in update.diffs.items()}
            return replace(honest, update=replace(update, diffs=diffs))
        return replace(honest, update=self._elsewhere(update, server)) if self.attack == "wrong cluster" else honest

    def adapted(self, results: list[Result], server: Server) -> list[Result]:
        """The results of a round, those of attackers crafted from the honest ones of who trained the same model."""
        if self.attack not in ADAPTIVE:
            return results
        return [
            replace(r, update=self._crafted(r.update, results, server))
            if r.participant in self.names and r.update
            else r
            for r in results
        ]

    def _crafted(self, update: Any, results: list[Result], server: Server) -> Any:
        diffs = {}
        for slot, diff in update.diffs.items():
            sent = [r.update.diffs.get(slot) for r in results if r.update and r.participant not in self.names]
            group = np.stack([other.vector for other in sent if other is not None] or [diff.vector])
            diffs[slot] = crafted(self.attack, diff, server.state.bank[slot], group)
        return replace(update, diffs=diffs)

    def _elsewhere(self, update: Any, server: Server) -> Any:
        """The update as if it came from another cluster: by its choice, or by a model beside another centre."""
        bank = server.state.bank
        clusters = [slot for slot in bank if slot.startswith("cluster-")]
        if not clusters:
            return update
        if update.cluster is not None:
            other = (update.cluster + 1) % len(clusters)
            diffs = {
                cluster_slot(other) if s == cluster_slot(update.cluster) else s: d for s, d in update.diffs.items()
            }
            return replace(update, cluster=other, diffs=diffs)
        own = next((slot for slot in update.diffs if slot in clusters), None)
        if own is None:
            return update
        other = clusters[(clusters.index(own) + 1) % len(clusters)]
        return replace(update, diffs={**update.diffs, own: update.diffs[own] + (bank[other] - bank[own])})


def run(cell: Cell) -> dict[str, Any]:
    """Runs a cell; returns what was measured."""
    site, server, guilty = _begin(cell)
    hostile = Attackers(cell.attack, guilty)
    rejected: set[str] = set()
    while not server.finished:
        number, tasks = server.state.round, server.tasks()
        models = add_parts(server.bank, [slot for task in tasks.values() for slot in task.needed])
        results = []
        for name, task in tasks.items():
            try:
                results.append(hostile.result(site.carry_out(name, task, models, number), server))
            except PayloadError:
                rejected.add(name)
        for result in hostile.adapted(results, server):
            try:
                server.accept(result, server.participants[result.participant].site)
            except PayloadError:
                rejected.add(result.participant)
        try:
            server.finish_round()
        except TooFewAnswersError:  # the models are so broken that nobody can train them
            break
        record = server.progress.record or {}
        rejected |= set(record.get("failed", {})) | set(record.get("left_out", ())) | set(record.get("clipped", ()))
    return _measured(cell, server, site, guilty, rejected)


def _begin(cell: Cell) -> tuple[Site, Server, set[str]]:
    method = build_named(METHODS[cell.method])
    make_model = model_factory(NORMALISED if "batch norm" in cell.method else MODEL)
    site = Site(method, make_model, TRAINING, cell.seed)
    data = DataConfig(participants=HOSPITALS, partition={**LABELS, "groups": 3}, seed=cell.seed)
    people = data.host(Npz(path="bloodmnist28.npz"), "local", 0, 1)
    guilty = {person.name for person in [p for p in people if p.group == people[0].group][: cell.attackers]}
    site.add(poisoned(person, cell.attack) if person.name in guilty else person for person in people)
    settings = ServerSettings(cell.rounds, seed=cell.seed, evaluate_every=cell.rounds, **DEFENCES[cell.defence])
    settings = replace(settings, byzantine=max(1, cell.attackers)) if cell.defence != "none" else settings
    return site, build_server(site, make_model, settings, cell.seed), guilty


def _measured(
    cell: Cell,
    server: Server,
    site: Site,
    guilty: set[str],
    rejected: set[str],
) -> dict[str, Any]:
    sent = {name: server.method.distribute(server.state, name) for name in server.participants}
    tasks = {name: Task.of(download, False, True) for name, download in sent.items()}
    models = add_parts(server.bank, [slot for task in tasks.values() for slot in task.needed])
    accuracies: dict[str, float] = {}
    hit = tried = majority = 0
    for name, task in tasks.items():
        if name in guilty:
            continue
        served: list[Served] = []
        result = site.carry_out(name, task, models, cell.rounds, lambda _, own, kept=served: kept.append(own))
        accuracies[name] = result.metrics.get("served_accuracy", 0.0)  # a broken model may not predict at all
        x, labels = torch.as_tensor(site.hosted[name].test.x), np.asarray(site.hosted[name].test.y)
        majority += int(np.bincount(labels).max())
        if not served:
            continue
        predicted = labels_of(site, served[0], triggered(x) if cell.attack == "backdoor" else x)
        if cell.attack == "backdoor":
            hit += int((predicted[labels != TARGET] == TARGET).sum())
            tried += int((labels != TARGET).sum())
        elif cell.attack == "label flip":
            hit, tried = hit + int((predicted == (labels + 1) % CLASSES).sum()), tried + len(labels)
    weights = [len(site.hosted[name].test) for name in accuracies]
    clusters = server.state.assignment
    honest = {cluster for name, cluster in clusters.items() if name not in guilty}
    return {
        "accuracy": float(np.average(list(accuracies.values()), weights=weights)),
        "worst": min(accuracies.values()),
        "majority": majority / sum(weights),
        "success": hit / tried if tried else None,
        "alone": sum(clusters.get(name) not in honest for name in guilty) / len(guilty)
        if guilty and clusters
        else None,
        "caught": len(rejected & guilty) / len(guilty) if guilty else None,
        "honest_caught": len(rejected - guilty) / (len(server.participants) - len(guilty)),
    }


def labels_of(site: Site, served: Served, x: torch.Tensor) -> np.ndarray:
    """What a served model says of images."""
    with torch.no_grad():
        return combine_outputs(site.runtime.predictor(served.models, False)(x), served.vote).argmax(1).numpy()


def run_all(folder: Path, cells: Iterable[Cell]) -> None:
    """Runs the cells that are not in the folder's file yet, and adds each as it is done."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {line["key"] for line in read(folder)}
    for cell in (cell for cell in cells if cell.key not in done):
        started = time.process_time()
        line = {"key": cell.key, **vars(cell), **run(cell), "cpu_seconds": round(time.process_time() - started, 1)}
        with (folder / FILE).open("a") as file:
            file.write(json.dumps({**line, "commit": commit()}) + "\n")
        print(cell.key, {k: v for k, v in line.items() if isinstance(v, float)}, flush=True)


def read(folder: Path) -> list[dict[str, Any]]:
    """The finished cells."""
    path = folder / FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--attackers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS + ADAPTIVE, default=list(ATTACKS))
    parser.add_argument("--defences", nargs="+", choices=list(DEFENCES), default=list(DEFENCES))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    cells = [
        Cell(method, attack, 0 if attack == "none" else count, defence, seed, chosen.rounds)
        for seed, attack, count, method, defence in product(
            chosen.seeds, chosen.attacks, chosen.attackers, chosen.methods, chosen.defences
        )
        if not (attack == "wrong cluster" and method == "FedAvg")
        if method != "local" or (attack == "none" and defence == "none")  # nobody can attack it
    ]
    run_all(chosen.out, dict.fromkeys(cells))


if __name__ == "__main__":
    main()
