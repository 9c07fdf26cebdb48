# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Synthetic patients: in half of the hospitals the treatment helps the young, in the other half the old."""

from typing import NamedTuple

import numpy as np

COVARIATES = ("age", "treatment", "age x treatment", "stage", "marker")
SHARED = {"age": 0.5, "treatment": -0.2, "stage": 0.8, "marker": 0.3}
INTERACTION = 1.2


class Cohort(NamedTuple):
    """Patients, sorted by time.

    Attributes:
        covariates: shape (patients, covariates).
        times: until the event, or until the patient was last seen.
        events: whether the event was seen.
    """

    covariates: np.ndarray
    times: np.ndarray
    events: np.ndarray


def simulate(rng: np.random.Generator, patients: int, interaction: float) -> Cohort:
    """Draws patients with exponential times, of whom about a third are censored."""
    age, stage, marker = rng.normal(size=(3, patients))
    treatment = rng.integers(0, 2, patients) - 0.5
    covariates = np.stack([age, treatment, age * treatment, stage, marker], axis=1)
    effects = np.array([SHARED.get(name, interaction) for name in COVARIATES])
    event = rng.exponential(1 / np.exp(covariates @ effects))
    censoring = rng.exponential(2, patients)
    times = np.minimum(event, censoring)
    order = np.argsort(times)
    return Cohort(covariates[order], times[order], (event <= censoring)[order])


def load_site(site: str, patients: int) -> dict[str, Cohort]:
    """A hospital's patients to train on and to test on."""
    index = int(site.rpartition("-")[2]) - 1
    interaction = INTERACTION if index % 2 == 0 else -INTERACTION
    return {
        split: simulate(np.random.default_rng([index, number]), patients, interaction)
        for number, split in enumerate(("train", "test"))
    }
