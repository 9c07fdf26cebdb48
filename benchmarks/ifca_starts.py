# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Do warm starts that differ keep IFCA's participants from falling into one cluster? And do races choose as IFCA does?

IFCA begins with K untrained models. Where one of them is the best for everybody, all participants choose it. Here the
first rounds differ, and the rest is IFCA:

* ``plain``: K models from K seeds, as in the paper.
* ``dealt``: in the first round participants are dealt to these K models at random, in equal numbers.
* ``dealt-one-seed``: the same, but the K models are copies of one.
* ``farthest-loss``: K rounds; in each, one participant alone trains the first model: the one for whom the best start
  so far has the largest loss. What it trained is the next start. The first participant is drawn.
* ``farthest-update``: in the first round everybody trains the first model; starts are K of the trained models, each the
  one whose update is least like those taken so far, by its cosine. The first is drawn.
* ``k-means``: the same round, and the starts are its K-means centres, by these cosines.

Every run has the same number of rounds, those above included. Two scanners are MONAI's 2D UNet on drawn discs of two
tissues on eight sites: ``unet-tissues`` has one scanner that shows bright what the other shows dark, and the tissue to
find among them; in ``unet-inverted`` there is only the tissue to find. The others are classes under another numbering
in each group. Digits are scikit-learn's own, and blood cells are those of ``$CFL_DATA_ROOT``.

    CFL_DATA_ROOT=... python benchmarks/ifca_starts.py --out benchmarks/results/ifca-starts.json

``--hospitals`` measures the setting that came of it, ``warm_start``: IFCA with K = 4 without and with it in the loop,
on the blood cells of the plan of `tables.py`, whose 40 hospitals are in four groups.

``--races`` makes each choice of cfl_flare's IFCA twice, by a race and by all samples, in three plans of `tables.py`. It
counts the choices that differ, and which share of the models' passes a race takes. The participants train what the race
chose. Where a choice differed, a second run in which all samples choose has the accuracy to compare with.

    CFL_DATA_ROOT=... python benchmarks/ifca_starts.py --races --seeds 0 1 2 --out benchmarks/results/ifca-races.json

It saves after each run and continues where it was.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from common import provenance
from plans import PLANS, Plan, RacedIFCA
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn

from cfl_flare.cli.specs import build_named
from cfl_flare.core.seeds import derive, stream
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.methods import IFCA, Method
from cfl_flare.results.run_dir import load_run

Model = dict[str, Tensor]
Split = tuple[Tensor, Tensor]
SIZE = 32  # of the drawn images


@dataclass(frozen=True)
class Task:
    """What is learned, by whom."""

    net: Callable[[], nn.Module]
    data: Callable[[int], list[tuple[Split, Split]]]  # of a seed: each participant's training and test samples
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], float]
    lr: float
    batch: int
    rounds: int
    groups: int = 2
    participants: int = 8

    def group(self, participant: int) -> int:
        """Its true group."""
        return participant % self.groups


class Run:
    """One task with one seed."""

    def __init__(self, task: Task, seed: int):
        self.task, self.seed, self.data, self.module = task, seed, task.data(seed), task.net()

    def untrained(self, number: int) -> Model:
        """The model of a number."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, "model", number))
            return self.task.net().state_dict()

    def train(self, participant: int, start: Model, number: int) -> Model:
        """One pass over the participant's training samples, by Adam."""
        (x, y), _ = self.data[participant]
        self.module.load_state_dict(start)
        self.module.train()
        optimizer = torch.optim.Adam(self.module.parameters(), lr=self.task.lr)
        order = torch.from_numpy(stream(self.seed, participant, number).permutation(len(x)))
        for batch in order.split(self.task.batch):
            optimizer.zero_grad()
            self.task.loss(self.module(x[batch]), y[batch]).backward()
            optimizer.step()
        return copy.deepcopy(self.module.state_dict())

    @torch.no_grad()
    def output(self, model: Model, x: Tensor) -> Tensor:
        """What a model predicts."""
        self.module.load_state_dict(model)
        self.module.eval()
        return torch.cat([self.module(part) for part in x.split(256)])

    def losses(self, models: list[Model]) -> np.ndarray:
        """``(participants, models)`` on training samples."""
        return np.array([[float(self.task.loss(self.output(m, x), y)) for m in models] for (x, y), _ in self.data])

    def score(self, participant: int, model: Model) -> float:
        """On its test samples."""
        x, y = self.data[participant][1]
        return self.task.score(self.output(model, x), y)

    def ifca(self, models: list[Model], first: int, dealt: np.ndarray | None = None) -> list[Model]:
        """The rounds from the ``first`` on; in the first of them, participants may have been dealt to models."""
        for number in range(first, self.task.rounds):
            chosen = dealt if dealt is not None and number == first else self.losses(models).argmin(axis=1)
            trained = [self.train(p, models[k], number) for p, k in enumerate(chosen)]
            for k in set(chosen.tolist()):
                models[k] = mean([model for model, cluster in zip(trained, chosen) if cluster == k])
        return models


def mean(models: list[Model]) -> Model:
    """Of each array; shares of the data are equal."""
    return {n: torch.stack([m[n].double() for m in models]).mean(0).to(a.dtype) for n, a in models[0].items()}


def plain(run: Run) -> list[Model]:
    """IFCA."""
    return run.ifca([run.untrained(k) for k in range(run.task.groups)], 0)


def dealt(run: Run, copies: bool = False) -> list[Model]:
    """Dealt at random in the first round."""
    k = run.task.groups
    models = [run.untrained(0 if copies else i) for i in range(k)]
    return run.ifca(models, 0, stream(run.seed, "deal").permutation(np.arange(run.task.participants) % k))


def dealt_one_seed(run: Run) -> list[Model]:
    """The same, to copies."""
    return dealt(run, copies=True)


def drawn(run: Run) -> int:
    """The participant whose model is the first start."""
    return int(stream(run.seed, "first").integers(run.task.participants))


def farthest_loss(run: Run) -> list[Model]:
    """Each start from the participant whom the others serve worst."""
    first, who = run.untrained(0), drawn(run)
    starts: list[Model] = []
    for number in range(run.task.groups):
        starts.append(run.train(who, first, number))
        who = int(run.losses(starts).min(axis=1).argmax())
    return run.ifca(starts, run.task.groups)


def first_round(run: Run) -> tuple[list[Model], np.ndarray]:
    """Everybody's model after a round from the same one, and the unit vectors of their updates."""
    first = run.untrained(0)
    trained = [run.train(p, first, 0) for p in range(run.task.participants)]
    names = [name for name, _ in run.module.named_parameters()]
    updates = np.stack([np.concatenate([(m[n] - first[n]).numpy().ravel() for n in names]) for m in trained])
    return trained, updates / np.linalg.norm(updates, axis=1, keepdims=True)


def farthest_update(run: Run) -> list[Model]:
    """Each start the model whose update is least like the others'."""
    trained, updates = first_round(run)
    taken = [drawn(run)]
    while len(taken) < run.task.groups:
        taken.append(int((updates @ updates[taken].T).max(axis=1).argmin()))
    return run.ifca([trained[p] for p in taken], 1)


def k_means(run: Run) -> list[Model]:
    """Starts are the K-means centres."""
    trained, updates = first_round(run)
    clusters = KMeans(run.task.groups, n_init=10, random_state=run.seed).fit_predict(updates)
    return run.ifca([mean([m for m, c in zip(trained, clusters) if c == k]) for k in range(run.task.groups)], 1)


DESIGNS: dict[str, Callable[[Run], list[Model]]] = {
    f.__name__.replace("k_means", "k-means").replace("_", "-"): f
    for f in (plain, dealt, dealt_one_seed, farthest_loss, farthest_update, k_means)
}


def dice(output: Tensor, y: Tensor) -> float:
    """Of the whole set of pixels."""
    predicted = output > 0
    return float(2 * (predicted & (y > 0)).sum() / (predicted.sum() + (y > 0).sum()).clamp(min=1))


def accuracy(output: Tensor, y: Tensor) -> float:
    """Share of right classes."""
    return float((output.argmax(1) == y).float().mean())


def unet() -> nn.Module:
    """MONAI's."""
    from monai.networks.nets import UNet

    return UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(8, 16, 32), strides=(2, 2), num_res_units=1)


def scans(seed: int, other_tissue: bool) -> list[tuple[Split, Split]]:
    """Discs of one or two tissues on a grey ground, with noise; odd sites' scanners show them inverted."""

    def images(rng: np.random.Generator, count: int, inverted: bool) -> Split:
        rows, columns = np.mgrid[:SIZE, :SIZE]
        x, y = np.full((count, SIZE, SIZE), 0.5), np.zeros((count, SIZE, SIZE))
        for i in range(count):
            for wanted in (False, True) if other_tissue else (True,):
                row, column, radius = rng.uniform(6, 26), rng.uniform(6, 26), rng.uniform(3, 7)
                disc = (rows - row) ** 2 + (columns - column) ** 2 < radius**2
                x[i][disc], y[i][disc] = (0.8, 1) if wanted else (0.2, 0)
        x = (1 - x if inverted else x) + rng.normal(0, 0.1, x.shape)
        return torch.from_numpy(x[:, None]).float(), torch.from_numpy(y[:, None]).float()

    streams = [stream(seed, "scans", p) for p in range(8)]
    return [(images(rng, 24, p % 2 == 1), images(rng, 24, p % 2 == 1)) for p, rng in enumerate(streams)]


def renumbered(x: np.ndarray, y: np.ndarray, seed: int, participants: int, groups: int, train: int) -> Any:
    """Shares of equal size; each group numbers the classes by a permutation of its own."""
    classes = int(y.max()) + 1
    order, size = stream(seed, "shares").permutation(len(x)), min(len(x) // participants, 2 * train)
    shares = []
    for p in range(participants):
        drawn = order[p * size : (p + 1) * size]
        numbers = stream(seed, "classes", p % groups).permutation(classes)
        split = torch.from_numpy(x[drawn]).float(), torch.from_numpy(numbers[y[drawn]]).long()
        shares.append(tuple(tuple(a[part] for a in split) for part in (slice(train), slice(train, None))))
    return shares


def digits(seed: int, participants: int = 8, groups: int = 2) -> Any:
    """Of scikit-learn."""
    images = load_digits()
    return renumbered(images.data / 16, images.target, seed, participants, groups, 80)


def blood(seed: int) -> Any:
    """Blood cells in colour."""
    with np.load(Path(os.environ["CFL_DATA_ROOT"]) / "bloodmnist28.npz") as file:
        x, y = file["train_images"], file["train_labels"].ravel()
    return renumbered(x.transpose(0, 3, 1, 2) / np.float32(255), y.astype(int), seed, 8, 2, 200)


def cells_net() -> nn.Module:
    """A small convolutional network."""
    conv = [nn.Conv2d(3, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*conv, nn.Flatten(), nn.Linear(32 * 25, 64), nn.ReLU(), nn.Linear(64, 8))


def digits_net() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


BCE, CE = nn.functional.binary_cross_entropy_with_logits, nn.functional.cross_entropy
TASKS = {
    "digits": Task(digits_net, digits, CE, accuracy, 0.003, 16, 20),
    "digits-4-groups": Task(digits_net, lambda s: digits(s, 12, 4), CE, accuracy, 0.003, 16, 20, 4, 12),
    "unet-tissues": Task(unet, lambda s: scans(s, True), BCE, dice, 0.005, 8, 12),
    "unet-inverted": Task(unet, lambda s: scans(s, False), BCE, dice, 0.005, 8, 12),
    "blood": Task(cells_net, blood, CE, accuracy, 0.002, 32, 12),
}


def measured(run: Run, design: str) -> dict[str, Any]:
    """One run's row."""
    began = perf_counter()
    models = DESIGNS[design](run)
    chosen = run.losses(models).argmin(axis=1)
    scores = [run.score(p, models[k]) for p, k in enumerate(chosen)]
    groups = [run.task.group(p) for p in range(run.task.participants)]
    return {
        "design": design,
        "seed": run.seed,
        "rounds": run.task.rounds,
        "clusters_in_use": len(set(chosen.tolist())),
        "ari": float(adjusted_rand_score(groups, chosen)),
        "score": float(np.mean(scores)),
        "worst": float(min(scores)),
        "seconds": round(perf_counter() - began, 1),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """For each task and design: runs that found the groups, runs with one cluster, mean and worst score."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for task in dict.fromkeys(row["task"] for row in rows):
        for design in DESIGNS:
            chosen = [row for row in rows if (row["task"], row["design"]) == (task, design)]
            if chosen:
                table.setdefault(task, {})[design] = {
                    "runs": len(chosen),
                    "groups_found": sum(row["ari"] == 1 for row in chosen),
                    "one_cluster": sum(row["clusters_in_use"] == 1 for row in chosen),
                    **{k: round(float(np.mean([row[k] for row in chosen])), 3) for k in ("ari", "score", "worst")},
                    "score_std": round(float(np.std([row["score"] for row in chosen])), 3),
                }
    return table


def final(plan: Plan, partition: str, method: Method, seed: int) -> dict[str, Any]:
    """The last figures of a run of cfl_flare's own IFCA."""
    with TemporaryDirectory() as folder:
        run_loop(
            RunPlan(
                method=method,
                model=plan.model,
                reader=plan.source,
                data=plan.data(partition, seed),
                server=plan.scheduled(seed),
                training=plan.training,
            ),
            folder=Path(folder),
        )
        return load_run(Path(folder)).summary["final"]


def hospital(partition: str, method: str, seed: int, rounds: int) -> dict[str, Any]:
    """A run on the blood cells."""
    plan = PLANS["blood"].altered({"rounds": rounds, "evaluate_every": rounds})
    last = final(plan, partition, build_named(method), seed)
    figures = ("served_accuracy", "served_worst_accuracy", "ari", "clusters_in_use")
    return {"partition": partition, "method": method, "seed": seed, "rounds": rounds, **{k: last[k] for k in figures}}


def measure_hospitals(seeds: list[int], rounds: int, out: Path) -> None:
    """All of them that are not in the file yet."""
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    done = {(row["partition"], row["method"], row["seed"]) for row in rows}
    for seed, partition, method in product(seeds, ("scanners", "labels"), ("ifca:k=4", "ifca:k=4,warm_start=True")):
        if (partition, method, seed) not in done:
            rows.append(hospital(partition, method, seed, rounds))
            print(rows[-1], flush=True)
            out.write_text(json.dumps(provenance() | {"rows": rows}, indent=1) + "\n")


# ---- Races ----


# Plan, partition, what is altered, K, samples to choose by.
RACES = (
    ("stroke", "natural", {"rounds": 20}, 4, None),
    ("blood", "labels", {"rounds": 10}, 4, None),
    ("family", "cluster_dirichlet", {"participants": 30, "rounds": 10}, 10, 320),
)


def measure_races(seeds: list[int], out: Path) -> None:
    """All runs that are not in the file yet."""
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    done = {(row["plan"], row["seed"]) for row in rows}
    for seed, (name, partition, altered, k, samples) in product(seeds, RACES):
        if (name, seed) in done:
            continue
        RacedIFCA.compared.clear()
        plan = PLANS[name].altered({**altered, "evaluate_every": altered["rounds"]})
        raced = final(plan, partition, RacedIFCA(k=k, assignment_samples=samples), seed)
        changed, passes, every = (sum(values) for values in zip(*RacedIFCA.compared.values(), strict=True))
        row = {"plan": name, "partition": partition, "seed": seed, "rounds": plan.rounds, "k": k, "samples": samples}
        row |= {"choices": len(RacedIFCA.compared), "changed": changed, "share_of_passes": passes / every}
        full = final(plan, partition, IFCA(k=k, assignment_samples=samples, race=False), seed) if changed else raced
        row |= {"accuracy": raced["served_accuracy"], "accuracy_by_all": full["served_accuracy"]}
        rows.append(row)
        print(row, flush=True)
        out.write_text(json.dumps(provenance() | {"summary": races(rows), "rows": rows}, indent=1) + "\n")


def races(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For each plan: choices, those that differ, the share of passes, and the mean difference of accuracy."""
    table = {}
    for name in dict.fromkeys(row["plan"] for row in rows):
        of_plan = [row for row in rows if row["plan"] == name]
        choices, changed = (sum(row[key] for row in of_plan) for key in ("choices", "changed"))
        differences = [row["accuracy"] - row["accuracy_by_all"] for row in of_plan]
        table[name] = {
            "runs": len(of_plan),
            "choices": choices,
            "changed": changed,
            "share_changed": changed / choices,
            "share_of_passes": float(np.mean([row["share_of_passes"] for row in of_plan])),
            "difference": float(np.mean(differences)),
            "largest_difference": float(np.max(np.abs(differences))),
        }
    return table


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options.add_argument("--designs", nargs="+", choices=DESIGNS, default=list(DESIGNS))
    options.add_argument("--rounds", type=int, help="in place of each task's own")
    options.add_argument("--seeds", nargs="+", type=int, default=list(range(8)))
    options.add_argument(
        "--hospitals", type=int, metavar="ROUNDS", help="of cfl_flare's own IFCA, in place of the rest"
    )
    options.add_argument("--races", action="store_true", help="of cfl_flare's own IFCA, in place of the rest")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.hospitals:
        return measure_hospitals(given.seeds, given.hospitals, given.out)
    if given.races:
        return measure_races(given.seeds, given.out)
    rows = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    done = {(row["task"], row["design"], row["seed"]) for row in rows}
    for seed in given.seeds:
        for task in given.tasks:
            left = [d for d in given.designs if (task, d, seed) not in done]
            rounds = given.rounds or TASKS[task].rounds
            run = Run(replace(TASKS[task], rounds=rounds), seed) if left else None
            for design in left:
                assert run is not None
                rows.append({"task": task, **measured(run, design)})
                print(rows[-1], flush=True)
                content = provenance() | {"summary": summary(rows), "rows": rows}
                given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
