# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Cox's proportional hazards regression in NumPy, and the patients that it is of."""

from typing import NamedTuple

import numpy as np

COVARIATES = ("age", "treatment", "age x treatment", "stage", "marker")


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


def initial() -> dict[str, np.ndarray]:
    """The model as named arrays: a log hazard ratio for each covariate."""
    return {"beta": np.zeros(len(COVARIATES), dtype=np.float32)}


def loss_and_gradient(beta: np.ndarray, cohort: Cohort) -> tuple[float, np.ndarray]:
    """The mean negative partial log-likelihood (Breslow), and its gradient."""
    x, _, events = cohort
    score = x @ beta
    weight = np.exp(score - score.max())
    at_risk = np.cumsum(weight[::-1])[::-1]  # of those whose time is as long or longer
    mean = np.cumsum((weight[:, None] * x)[::-1], axis=0)[::-1] / at_risk[:, None]
    loss = np.log(at_risk) + score.max() - score
    return float(loss[events].mean()), (mean - x)[events].mean(axis=0)


def c_index(beta: np.ndarray, cohort: Cohort) -> float:
    """Harrell's C: of the pairs that can be compared, those in which the higher risk has the earlier event."""
    score = cohort.covariates @ beta
    earlier = cohort.times[:, None] < cohort.times[None, :]
    comparable = earlier & cohort.events[:, None]
    difference = score[:, None] - score[None, :]
    return float(((difference > 0) + 0.5 * (difference == 0))[comparable].mean())
