# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measure how often a study's verdict is right in federations that are simulated, so that the truth is known.

A setting says how different the groups are: ``null`` has no groups. The seed chooses what the truth is (`TRUTHS`), two
or three groups, and whether prevalence differs between hospitals. So each setting has all of them. The oracle gain is
the log-loss that clusters by the true groups save against the best model without clusters. Both have the best of
their rounds, on a large test sample that is not the study's.

    python benchmarks/federations.py --out benchmarks/results/study-federations.json
    python benchmarks/federations.py --settings prevalence null plain --seeds 0 1 2 3 4 5 --search --out search.json

It saves after each federation and continues where it was. Images need ``fashionmnist.npz`` in ``$CFL_DATA_ROOT``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from common import measure_missing
from scipy.stats import binomtest

from cfl_flare.data.files import find
from cfl_flare.data.sources import Npz
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.study.candidates import Candidate, StudySettings, first_candidates, named, of_candidate
from cfl_flare.engine.study.halving import Study
from cfl_flare.engine.study.in_process import InProcess
from cfl_flare.methods import Groups
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.study import Verdict
from cfl_flare.training.settings import TrainSettings

TRUTHS = ("logistic", "mlp", "images")
# How far apart groups are: an angle between coefficients, in quarters of a turn, or the share of permuted labels.
SETTINGS = {"null": 0.0, "prevalence": 0.0, "faint": 0.25, "middle": 0.5, "plain": 1.0}
HOSPITALS = (8, 16, 40)
ROUNDS, RUNGS = 8, 2
FEATURES, HIDDEN = 8, 6
PATIENTS = (80, 320)
# Of each hospital, for the oracle.
TESTED = 400
# What a clear gain is, in log-loss.
PLAIN_GAIN = 0.02


class Federation(NamedTuple):
    """A simulated federation: what the seed chose, and its patients by part: ``train``, ``test`` and ``oracle``."""

    truth: str
    group_of: np.ndarray
    shifts: bool
    parts: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]

    def write(self, path: Path, test: str) -> Npz:
        """Write training and one kind of test samples, with their hospitals, as a source."""
        arrays = {}
        for split, part in (("train", "train"), ("test", test)):
            kinds = zip(("images", "labels", "hospital"), self.parts[part])
            arrays |= {f"{split}_{kind}": array for kind, array in kinds}
        np.savez(path, **arrays)
        return Npz(str(path), key="hospital")


def draw_federation(setting: str, hospitals: int, seed: int) -> Federation:
    """Draw hospitals and their patients."""
    effect = SETTINGS[setting]
    rng = np.random.default_rng([seed, hospitals, list(SETTINGS).index(setting)])
    truth = TRUTHS[seed % 3]
    shifts = effect > 0 and truth != "images" and seed // 6 % 2 == 1
    groups = 2 + seed // 3 % 2
    if setting == "prevalence":
        truth = TRUTHS[seed % 2]
        shifts = True
    if effect == 0:
        groups = 1
    group_of = rng.permutation(np.arange(hospitals) % groups)
    sizes = rng.integers(*PATIENTS, size=hospitals)
    counts = {"train": sizes * 3 // 4, "test": sizes // 4, "oracle": np.full(hospitals, TESTED)}
    if truth == "images":
        parts = draw_images(rng, group_of, effect, counts)
    else:
        parts = draw_records(rng, truth, group_of, effect, shifts, counts)
    return Federation(truth, group_of, shifts, parts)


def draw_records(
    rng: np.random.Generator, truth: str, group_of: np.ndarray, effect: float, shifts: bool, counts: Mapping[str, Any]
) -> dict[str, Any]:
    """Draw patients with two outcomes: their logit is linear in features, or in hidden units of features."""
    hidden = rng.normal(size=(FEATURES, HIDDEN))
    width = FEATURES if truth == "logistic" else HIDDEN
    axes = np.linalg.qr(rng.normal(size=(width, 3)))[0].T
    groups = group_of.max() + 1
    # All groups have the part along the first axis; the rest points to the corners of a line or a triangle.
    turns = 2 * np.pi * np.arange(groups) / groups
    corners = np.stack([np.cos(turns), np.sin(turns)], 1) @ axes[1:]
    angle = effect * np.pi / 2
    coefficients = 1.5 * (np.cos(angle) * axes[0] + np.sin(angle) * corners)
    intercepts = rng.normal(size=len(group_of)) * 1.5 * shifts
    parts = {}
    for part, sizes in counts.items():
        hospital = np.repeat(np.arange(len(group_of)), sizes)
        x = rng.normal(size=(len(hospital), FEATURES))
        inputs = x if truth == "logistic" else 1.6 * np.tanh(x @ hidden)
        logits = (inputs * coefficients[group_of[hospital]]).sum(1) + intercepts[hospital]
        y = rng.random(len(logits)) < 1 / (1 + np.exp(-logits))
        # A source of images subtracts 0.5 and divides by 0.5.
        pixels = (x / 2 + 0.5).astype(np.float32)
        parts[part] = (pixels[:, None], y.astype(np.int64), hospital)
    return parts


def draw_images(
    rng: np.random.Generator, group_of: np.ndarray, effect: float, counts: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Draw images of five garments, 7x7; in a share of each group's images three labels are rotated."""
    with np.load(find("fashionmnist.npz", "data")) as file:
        images, labels = file["train_images"], file["train_labels"].reshape(-1)
    order = rng.permutation(np.flatnonzero(labels < 5))
    parts, begin = {}, 0
    for part, sizes in counts.items():
        hospital = np.repeat(np.arange(len(group_of)), sizes)
        rows = order[(begin + np.arange(len(hospital))) % len(order)]
        begin += len(rows)
        small = images[rows].reshape(-1, 7, 4, 7, 4).mean((2, 4)).astype(np.uint8)
        y = labels[rows].astype(np.int64)
        rotated = (y < 3) & (rng.random(len(y)) < 0.8 * effect)
        y[rotated] = (y[rotated] + group_of[hospital[rotated]]) % 3
        parts[part] = (small, y, hospital)
    return parts


def plan_run(federation: Federation, source: Npz, seed: int) -> RunPlan:
    """The run that all candidates share."""
    name, args = "MLP", {"input_shape": [1, 1, FEATURES], "num_classes": 2, "hidden": [16]}
    if federation.truth == "images":
        args |= {"input_shape": [1, 7, 7], "num_classes": 5}
    if federation.truth == "logistic":
        name = "Logistic"
        del args["hidden"]
    training = TrainSettings(lr=0.1, momentum=0.9, local_epochs=2, bootstrap=100)
    return RunPlan.of(
        method="fedavg",
        model={"class_path": f"cfl_flare.models.{name}", "args": args},
        data=source,
        training=training,
        min_clients=1,
        num_rounds=ROUNDS,
        seed=seed,
        validation=0.25,
        partition="natural",
        min_samples=8,
        key_metric="loss",
    )


def find_oracle_gain(federation: Federation, plan: RunPlan, trainer: InProcess) -> dict[str, float]:
    """The least test loss of each way to train, and what clusters by the true groups save; see the module."""
    groups = {str(i): str(group) for i, group in enumerate(federation.group_of)}
    truth = Candidate("truth", Groups(groups=groups, warmup=1))
    layers = trainer.private_layers(named(truth.method))
    clustered = [truth] if layers is None else [truth, truth.with_private(layers)]
    ways = [*first_candidates(trainer.module), *clustered]
    measured_often = replace(plan.server, evaluate_every=2)
    plan = replace(plan, training=replace(plan.training, bootstrap=0), server=measured_often)
    best = {}
    for way in ways:
        losses = list[float]()
        run_loop(of_candidate(plan, way), on_round=partial(note_loss, losses))
        best[way.name] = min(losses)
    names = [way.name for way in clustered]
    gain = min(best[name] for name in best if name not in names) - min(best[name] for name in names)
    return {"oracle_gain": round(gain, 4), **{name: round(loss, 4) for name, loss in best.items()}}


def note_loss(losses: list[float], measured: RoundMetrics) -> None:
    """Add the mean test loss of a round in which models were measured."""
    loss = measured.scalars().get("served_loss")
    if loss is not None:
        losses.append(loss)


def measure(setting: str, hospitals: int, seed: int, search: bool) -> dict[str, Any]:
    """Run the study of a federation; with ``search``, only find the number of clusters."""
    federation = draw_federation(setting, hospitals, seed)
    started = time.process_time()
    groups = int(federation.group_of.max()) + 1
    facts: dict[str, Any] = {"truth": federation.truth, "groups": groups, "shifts": federation.shifts}
    with TemporaryDirectory() as folder:
        plan = plan_run(federation, federation.write(Path(folder, "study.npz"), "test"), seed)
        trainer = InProcess(plan, Path(folder))
        if search:
            found = trainer.search().note
            return {**facts, "found": found["k"], "set": found["set"]}
        study = Study(trainer, first_candidates(trainer.module), StudySettings(rungs=RUNGS), seed=seed)
        verdict = study.run()
        facts["seconds"] = round(time.process_time() - started, 1)
        oracle = {"oracle_gain": 0.0}
        if groups > 1:
            large = plan_run(federation, federation.write(Path(folder, "oracle.npz"), "oracle"), seed)
            oracle = find_oracle_gain(federation, large, trainer)
    return {**facts, **describe_verdict(study, verdict), "oracle_gain": oracle.pop("oracle_gain"), "oracle": oracle}


def describe_verdict(study: Study, verdict: Verdict) -> dict[str, Any]:
    """What is kept of a study."""
    word = "cannot tell" if verdict.unsure else "do not"
    if verdict.cluster:
        word = "cluster"
    return {
        "found": study.journal.clusters,
        "set": list(study.journal.k_set),
        "verdict": word,
        "chosen": verdict.chosen.name,
        "tested": {name: round(value, 4) for name, value in verdict.tested.items()},
        "unsure": verdict.unsure,
        "sentences": verdict.sentences(),
    }


def find_limits(count: int, of: int) -> list[float]:
    """The 95 % limits of a fraction (Clopper and Pearson 1934)."""
    low, high = binomtest(count, of).proportion_ci(method="exact")
    return [round(float(low), 3), round(float(high), 3)]


def list_places(row: dict[str, Any]) -> list[str]:
    """The lines of the summary in which a row counts: its setting and, with groups, how much clusters gain."""
    if row["groups"] == 1 or "oracle_gain" not in row:
        return [row["setting"]]
    gain = row["oracle_gain"]
    if gain >= PLAIN_GAIN:
        return [row["setting"], "plain gain"]
    return [row["setting"], "small gain" if gain > 0 else "no gain"]


def summarize_rows(name: str, hospitals: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Count verdicts and numbers of clusters."""
    line: dict[str, Any] = {"setting": name, "hospitals": hospitals, "studies": len(rows)}
    line["right_k"] = sum(row["found"] == row["groups"] for row in rows)
    line["set_has_it"] = sum(row["set"][0] <= row["groups"] <= row["set"][1] for row in rows)
    for verdict in ("cluster", "do not", "cannot tell"):
        line[verdict] = sum(row.get("verdict") == verdict for row in rows)
    line["cluster_limits"] = find_limits(line["cluster"], len(rows))
    line["do_not_limits"] = find_limits(line["do not"], len(rows))
    return line


def summarize(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Summarize by setting and size, and also by the oracle gain."""
    places: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        for name in list_places(row):
            places.setdefault((name, row["hospitals"]), []).append(row)
    return {"summary": [summarize_rows(*place, chosen) for place, chosen in sorted(places.items())]}


def main() -> None:
    """Run the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options.add_argument("--hospitals", nargs="+", type=int, default=list(HOSPITALS))
    options.add_argument("--seeds", nargs="+", type=int, default=list(range(30)))
    options.add_argument("--search", action="store_true", help="only find the number of clusters")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    wanted = (
        {"setting": setting, "hospitals": hospitals, "seed": seed, "search": given.search}
        for seed, setting, hospitals in product(given.seeds, given.settings, given.hospitals)
    )
    measure_missing(given.out, wanted, measure, summarize, rounds=ROUNDS)


if __name__ == "__main__":
    main()
