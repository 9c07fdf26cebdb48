# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of a participant's predictions."""

from __future__ import annotations

import numpy as np

# What a participant measures of a model on its test split, with the range of each.
METRICS = {"accuracy": (0.0, 1.0), "macro_f1": (0.0, 1.0), "loss": (0.0, 1e9)}


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of correct predictions.

    >>> accuracy(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2]))
    0.75
    """
    return float((labels == predictions).mean())


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of the F1 scores of the classes that occur among labels or predictions (scikit-learn's default).

    >>> round(macro_f1(np.array([0, 0, 1]), np.array([0, 1, 1])), 3)
    0.667
    """
    size = int(max(labels.max(), predictions.max())) + 1
    hits = np.bincount(labels[labels == predictions], minlength=size)
    total = np.bincount(labels, minlength=size) + np.bincount(predictions, minlength=size)
    present = total > 0
    return float((2 * hits[present] / total[present]).mean())
