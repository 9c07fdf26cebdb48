# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How often the 95 % interval of a study's gain holds the gain over all hospitals, of which a study has a few.

Two scores predict a simulated outcome, and the better one's gain differs between hospitals. No model is trained.

    python benchmarks/coverage.py --out benchmarks/results/coverage.json
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import measure_missing
from sklearn.metrics import roc_auc_score

from cfl_flare.results.comparison import AtHospital, difference

SIZES = ("equal", "different", "a few large")
COUNTS = (8, 20, 40)
MEASURES = ("accuracy", "auroc", "loss")
STUDIES = 500
# The gain over all hospitals is the mean of so many.
POPULATION = 20_000


def draw_patients(rng: np.random.Generator, sizes: str) -> int:
    """Draw how many patients a hospital has."""
    if sizes == "equal":
        return 60
    if sizes == "different":
        return max(12, int(np.exp(rng.normal(np.log(60), 1))))
    return 1500 if rng.random() < 0.15 else 40


def measure_score(score: np.ndarray, died: np.ndarray) -> list[float]:
    """Accuracy, AUROC and the log-loss with its sign turned, of a logit."""
    chance = np.clip(1 / (1 + np.exp(-score)), 1e-6, 1 - 1e-6)
    has_both = 0 < died.sum() < len(died)
    area = float(roc_auc_score(died, score)) if has_both else float("nan")
    return [float(((chance > 0.5) == died).mean()), area, float(np.log(np.where(died, chance, 1 - chance)).mean())]


def draw_hospital(rng: np.random.Generator, sizes: str) -> tuple[int, np.ndarray]:
    """Draw a hospital: its patients, and the gain ``(3,)`` of one score over the other."""
    patients = draw_patients(rng, sizes)
    effect, prevalence = rng.normal([1, 0], [0.7, 0.5])
    marker, noise, other = rng.normal(size=(3, patients))
    died = rng.random(patients) < 1 / (1 + np.exp(-effect * marker - prevalence))
    scores = (1.2 * marker + 0.6 * noise, 0.8 * marker + 0.6 * other)
    one, reference = (np.array(measure_score(score, died)) for score in scores)
    return patients, one - reference


def cover(gains: np.ndarray, patients: np.ndarray, truth: float) -> bool:
    """Whether the interval of a study of these hospitals holds the truth."""
    known = np.flatnonzero(~np.isnan(gains))
    draws = np.zeros(2)
    measured = {str(i): AtHospital(patients[i], int(patients[i]), 1, gains[i], draws) for i in known}
    reference = {str(i): AtHospital(patients[i], int(patients[i]), 1, 0.0, draws) for i in known}
    found = difference(measured, reference)
    return found.low <= truth <= found.high


def measure(sizes: str, hospitals: int) -> dict[str, Any]:
    """Count the studies whose interval holds the gain over all hospitals, weighted by patients."""
    rng = np.random.default_rng(SIZES.index(sizes))
    drawn = [draw_hospital(rng, sizes) for _ in range(POPULATION)]
    weights = np.array([patients for patients, _ in drawn], np.float64)
    gains = np.array([gain for _, gain in drawn])
    truths = [np.average(g[~np.isnan(g)], weights=weights[~np.isnan(g)]) for g in gains.T]
    rng = np.random.default_rng([SIZES.index(sizes), hospitals])
    counts = np.zeros(len(MEASURES), int)
    for _ in range(STUDIES):
        study = [draw_hospital(rng, sizes) for _ in range(hospitals)]
        patients = np.array([own for own, _ in study], np.float64)
        rows = np.array([gain for _, gain in study]).T
        counts += [cover(row, patients, truth) for row, truth in zip(rows, truths, strict=True)]
    percent = {name: round(100 * int(count) / STUDIES, 1) for name, count in zip(MEASURES, counts, strict=True)}
    return {"studies": STUDIES, **percent}


def main() -> None:
    """Run the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True)
    wanted = ({"sizes": sizes, "hospitals": hospitals} for sizes, hospitals in product(SIZES, COUNTS))
    measure_missing(options.parse_args().out, wanted, measure, lambda rows: {})


if __name__ == "__main__":
    main()
