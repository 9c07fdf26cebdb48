# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of a clustering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Columns of an array that are converted to float64 at a time.
COLUMNS = 2**14


def inner_products(features: np.ndarray) -> np.ndarray:
    """The inner products of all pairs of rows, ``(m, m)`` float64.

    >>> inner_products(np.array([[1, 2], [3, 4]], np.float32)).tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    products = np.zeros((len(features), len(features)))
    for start in range(0, features.shape[1], COLUMNS):
        part = features[:, start : start + COLUMNS].astype(np.float64)
        products += part @ part.T
    return products


def agreement(truth: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """Adjusted Rand index and normalised mutual information of a clustering with the true groups.

    >>> agreement([0, 0, 1, 1], [1, 1, 0, 0])
    {'ari': 1.0, 'nmi': 1.0}
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    return {
        "ari": float(adjusted_rand_score(truth, labels)),
        "nmi": float(normalized_mutual_info_score(truth, labels)),
    }


def size_entropy(sizes: Sequence[int]) -> float:
    """Entropy of the cluster sizes, divided by its maximum: 1 for equal sizes, 0 where all are in one cluster.

    >>> round(size_entropy([3, 3, 3]), 6), size_entropy([9, 0, 0])
    (1.0, 0.0)
    """
    if len(sizes) < 2 or not sum(sizes):
        return 0.0
    share = np.array([s for s in sizes if s]) / sum(sizes)
    return float(abs(-(share * np.log(share)).sum() / np.log(len(sizes))))
