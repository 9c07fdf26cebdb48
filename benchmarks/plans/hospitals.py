# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Patients of real hospitals: stroke (International Stroke Trial) and heart disease (UCI).

A seed splits each hospital's patients 60/20/20, and draws initial models and batches. Settings are those of the
smallest log-loss on the validation patients of a seed that is none of the five (sweep ``search``).

    tables.py run --plan stroke --rows search --seeds 100 --set measured_on=validation --out search
    tables.py run --plan stroke --seeds 0 1 2 3 4 --out cells
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sources import FLambyHeart

from cfl_flare.data.hospitals import Heart, Stroke
from cfl_flare.engine.server import Server
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.histograms import NARROW, REACH
from cfl_flare.training.settings import TrainSettings
from plans.plan import BASELINES, Plan

# ---- How well probabilities are calibrated over all participants' samples ----


SCORES = "scores.npy"
BINS = 10  # by probability


def save_scores(folder: Path, server: Server) -> None:
    """Writes the sum of the last round's histograms, ``(classes, 2, bins)``."""
    sent = [counts for counts in server.round.answers("scores").values() if counts is not None]
    np.save(folder / SCORES, np.sum(sent, axis=0)[..., :-1], allow_pickle=False)


def probabilities(bins: int) -> np.ndarray:
    """The probability in the middle of each bin of log-odds."""
    share = (np.arange(bins) + 0.5) / bins
    return 1 / (1 + np.exp(-NARROW * np.sinh((2 * share - 1) * math.asinh(REACH / NARROW))))


def calibration_error(counts: np.ndarray) -> float:
    """Expected calibration error of a binary task's probabilities, in ten bins of equal width.

    >>> counts = np.zeros((1, 2, 10))
    >>> counts[0, :, 5] = 1, 3  # four samples of probability 0.52, three of them positive
    >>> round(calibration_error(counts), 2)
    0.23

    Args:
        counts: ``(1, 2, bins)``: negative and positive samples by log-odds; see
            `cfl_flare.training.histograms.read_score_shape`.
    """
    chance = probabilities(counts.shape[-1])
    total, positive = counts[0].sum(axis=0), counts[0, 1]
    place = np.minimum((chance * BINS).astype(int), BINS - 1)
    gaps = np.bincount(place, weights=positive - total * chance, minlength=BINS)
    return float(np.abs(gaps).sum() / total.sum())


# ---- Groups that everyone knows beforehand: the countries ----


@cache
def countries() -> dict[str, int]:
    """Of each participant of the plan ``stroke`` its country, as a number from 0 among those that take part."""
    from plans import PLANS  # which has this module's rows

    plan = PLANS["stroke"]
    source = plan.source_of(0)
    people = plan.data("natural", 0).resolved(source).host(source, "local", 0, 1)
    numbers = sorted({person.group for person in people if person.group is not None})
    return {person.name: numbers.index(person.group) for person in people if person.group is not None}


# ---- The plans ----


OF_HOSPITALS = ("served_loss", "served_accuracy", "served_auroc")


def after(plan: Plan, folder: Path) -> dict[str, Any]:
    """The worst tenth of the hospitals, the calibration over all patients, and each hospital's figures and cluster."""
    people = [person for person in load_run(folder).summary["participants"] if "served_loss" in person]
    worst = math.ceil(len(people) / 10)
    loss, accuracy = (np.sort([person[key] for person in people]) for key in OF_HOSPITALS[:2])
    return {
        "tenth_loss": float(loss[-worst:].mean()),
        "tenth_accuracy": float(accuracy[:worst].mean()),
        "pooled_ece": calibration_error(np.load(folder / SCORES)),
        "hospitals": {key: [rounded(person.get(key)) for person in people] for key in OF_HOSPITALS},
        "clusters": [person["cluster"] for person in people],
    }


def rounded(value: float | None) -> float | None:
    """With as many digits as are worth keeping."""
    return None if value is None else round(value, 4)


def logistic(features: int) -> Mapping[str, Any]:
    """Logistic regression, as a job names it."""
    return {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [features], "num_classes": 1, "hidden": []}}


BIAS, HEAD, SITE = "private=bias", "private=head", "train:scaling=site"
FAST, WIDE = "train:lr=1.0", "train:hidden=16"  # a backbone, for methods that need one
# Settings that were tried on the validation patients of seed 100.
SEARCH = (
    *(f"{row} + {SITE}" for row in ("fedavg", f"fedavg + {BIAS}", "local")),
    *(f"local + train:lr={lr}" for lr in (0.1, 0.3)),
    *(f"{row} + train:lr=1.0" for row in ("fedavg", f"fedavg + {BIAS}", "ifca:k=4", "wecfl:k=3")),
    *(f"fedavg + {BIAS} + train:{altered}" for altered in ("lr=0.3", "rounds=40", "hidden=16")),
    *(f"{row}:k={k}" for row in ("ifca", "wecfl") for k in (2, 3, 4, 6)),
    *(f"{row}:k={k} + {BIAS}" for row in ("ifca", "wecfl") for k in (2, 3)),
    *(f"ditto:lam={lam}" for lam in (0.1, 1.0, 3.0)),
    *(f"finetune + train:lr={lr}" for lr in (0.1, 0.3)),
)

ROWS = {
    "majority": BASELINES["majority"],
    "local": ("local", "train:lr=0.1"),
    "fedavg": ("fedavg", FAST),
    "fedavg-bias": ("fedavg", BIAS),
    "ifca-2": ("ifca:k=2",),
    "ifca-2-bias": ("ifca:k=2", BIAS),
    "wecfl-3": ("wecfl:k=3",),
    "wecfl-2-bias": ("wecfl:k=2", BIAS),
    "ditto": ("ditto:lam=1.0",),
    "finetune": ("finetune",),
    "ifca-4": ("ifca:k=4",),
    "ifca-4-bias": ("ifca:k=4", BIAS),
    "fedavg-bias-long": ("fedavg", BIAS, "train:rounds=40"),
    "ifca-2-bias-long": ("ifca:k=2", BIAS, "train:rounds=40"),
    "fesem-2": ("fesem:k=2",),
    "fesem-2-bias": ("fesem:k=2", BIAS),
    "fedprox": ("fedprox:mu=0.1", FAST),
    "per-fedavg": ("per-fedavg",),
    "ifca-cam": ("ifca-cam:k=2,warmup=30%",),
    "fesem-cam": ("fesem-cam:k=2,warmup=30%",),
    "wecfl-con": ("wecfl:k=2", "contrastive:mu=0.1"),
    "wecfl-cks": ("wecfl:k=2", "knowledge_sharing:lam=0.1"),
    "fedavg+": ("fedavg+:k=2",),
    "cfl": ("cfl:eps1=0.6,eps2=1.1",),
    "fl-hc": ("fl-hc:k=2,rounds_before=5",),
    "fedgroup": ("fedgroup:k=2",),
    "cgpfl": ("cgpfl:k=2,lam=1.0",),
    "local-hidden": ("local", f"{WIDE},lr=0.1"),
    "fedavg-hidden": ("fedavg", f"{WIDE},lr=1.0"),
    "fedavg-bias-hidden": ("fedavg", BIAS, WIDE),
    "fedper": ("fedper", WIDE),
    "fedbabu": ("fedbabu", WIDE),
    "fedac": ("fedac:k=2", WIDE),
    "fedcuau": ("fedcuau:k=2", WIDE),
}
STROKE = Plan(
    name="stroke",
    title="Stroke at 187 hospitals",
    source=Stroke(test_share=0.2, scaling="federation"),
    model=logistic(45),
    training=TrainSettings(lr=0.3, momentum=0.0, local_epochs=1, task="binary", measures=("brier",), score_bins=200),
    partitions={"natural": {"partition": "natural"}},
    rows=ROWS,
    sweeps={"search": {text: tuple(text.split(" + ")) for text in SEARCH}},
    participants=187,
    rounds=20,
    evaluate_every=10,
    min_samples=24,  # of 30 patients
    columns=("pooled_auroc", "mean_auroc", "loss", "accuracy", "brier", "pooled_ece", "tenth_accuracy", "ari"),
    compared=("pooled_auroc", "loss"),
    averaged=("last", 1),
    split_seed=True,
    validation=0.25,
    after=after,
)
HEART = replace(
    STROKE,
    name="heart",
    title="Heart disease at four hospitals",
    sweeps={},
    source=Heart(test_share=0.2, scaling="federation"),
    rows={
        **ROWS,
        "local": ("local",),
        "fedavg": ("fedavg",),
        "fedprox": ("fedprox:mu=0.1",),
        "ditto": ("ditto:lam=0.1",),
        "local-hidden": ("local", WIDE),
        "fedavg-hidden": ("fedavg", WIDE),
    },
    model=logistic(32),
    participants=4,
    min_samples=8,
)

# FLamby's benchmark (du Terrail et al. 2022): model and batch of fed_heart_disease/{model,common}.py, 100 updates in
# each of (486 // 4 // 4) * 50 // 100 = 15 rounds, rates of config_heart_disease.json, pooled and local training with
# Adam for 50 epochs. Its seeds are 42 to 46; they are of initial models and batches.
ALONE = "train:rounds=1,local_epochs=50,local_steps=None,optimizer=adam,momentum=None"
FLAMBY = replace(
    HEART,
    name="flamby-heart",
    title="Fed-Heart-Disease by FLamby's protocol",
    source=FLambyHeart(),
    model=logistic(13),
    training=replace(STROKE.training, lr=0.001, batch_size=4, local_epochs=None, local_steps=100),
    rows={
        "majority": (*BASELINES["majority"], "train:rounds=1"),
        "pooled": ("local", f"{ALONE},pooled=True"),
        "local": ("local", ALONE),
        "fedavg": ("fedavg",),
        "fedprox": ("fedprox:mu=0.01",),
        "fedadagrad": ("fedavg", "train:lr=0.003162,server_optimizer=adagrad,server_lr=0.316228,server_tau=1e-8"),
        "fedyogi": (
            "fedavg",
            "train:lr=0.003162,server_optimizer=yogi,server_lr=0.01,server_tau=1e-8,server_beta2=0.999",
        ),
        "fedadam": ("fedavg", "train:lr=0.01,server_optimizer=adam,server_lr=0.01,server_tau=1e-8,server_beta2=0.999"),
        "finetune": ("finetune",),
        "fedavg-bias": ("fedavg", "private=bias"),
        "ditto": ("ditto",),
        "ifca": ("ifca:k=2",),
        "wecfl": ("wecfl:k=2",),
        "fesem": ("fesem:k=2",),
    },
    rounds=15,
    evaluate_every=5,
    columns=("mean_accuracy", "accuracy", "pooled_auroc", "mean_auroc", "loss", "brier", "pooled_ece"),
    compared=("mean_accuracy",),
    split_seed=False,
    validation=0.0,
)
