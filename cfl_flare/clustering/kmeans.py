# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Weighted k-means, cold from k-means++ and warm from given centres."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cfl_flare.core.errors import ConfigError

BLOCK = 128  # rows


def stacked(rows: Iterable[tuple[np.ndarray, float]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Features ``(m, d)`` float32 and weights ``(m,)`` from rows that arrive one at a time, without a second copy.

    >>> stacked(iter([(np.array([1.0, 2.0]), 3.0)]), 1)
    (array([[1., 2.]], dtype=float32), array([3.]))
    """
    features, weights = np.zeros((0, 0), np.float32), np.zeros(count)
    for i, (row, weight) in enumerate(rows):
        if not i:
            features = np.empty((count, len(row)), np.float32)
        features[i], weights[i] = row, weight
    return features, weights


def numbered(labels: np.ndarray) -> np.ndarray:
    """Labels numbered in the order in which they first occur.

    >>> numbered(np.array([7, 2, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    order = {label: i for i, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([order[label] for label in labels.tolist()])


def first_kmeans(features: np.ndarray, k: int, weights: np.ndarray, starts: int = 10, seed: int = 0) -> np.ndarray:
    """Clusters from scratch: scikit-learn's k-means++, the best of a number of starts.

    Args:
        features: ``(m, d)``.
        k: number of clusters, at most m.
        weights: ``(m,)``, positive.
        starts: k-means++ starts.
        seed: of the starts.

    Returns:
        Labels ``(m,)``, numbered in the order in which the clusters first occur.

    Raises:
        ConfigError: fewer participants than clusters.

    >>> first_kmeans(np.array([[5.0], [5.1], [0.0]]), 2, np.ones(3)).tolist()
    [0, 0, 1]
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    if len(features) < k:
        raise ConfigError(
            f"k = {k} clusters need at least {k} participants in the first round, {len(features)} answered; "
            "lower k or let more take part"
        )
    kmeans = KMeans(k, n_init=starts, random_state=seed, copy_x=False)  # it shifts the features, and shifts them back
    with threadpool_limits(1):  # in a simulation all sites share the cores
        labels = kmeans.fit(features, sample_weight=weights / weights.mean()).labels_
    return numbered(labels)


def nearest(features: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Index of the nearest centre (Euclidean), ``(m,)``; ties to the lowest."""
    from sklearn.metrics import pairwise_distances_argmin

    # Models differ little compared with their size: subtract what they share before squaring. The median ignores a
    # stray centre.
    origin = np.median(centres, axis=0)
    shifted = centres - origin
    return np.concatenate([pairwise_distances_argmin(block - origin, shifted) for block in blocks(features)])


def blocks(features: np.ndarray) -> Iterator[np.ndarray]:
    """A few rows at a time, as views, so that a float64 copy of all rows is never made."""
    return (features[i : i + BLOCK] for i in range(0, len(features), BLOCK))


def lloyd(features: np.ndarray, centres: np.ndarray, weights: np.ndarray, max_steps: int = 300) -> np.ndarray:
    """K-means started at given centres, until it converges.

    Unlike scikit-learn's, it leaves an empty cluster where it is: with sampled participants a cluster may be absent
    from a round, and must not be moved onto another group's members.

    Args:
        features: ``(m, d)``.
        centres: ``(k, d)``, not changed.
        weights: ``(m,)``, positive.
        max_steps: bound on the steps.

    Returns:
        Labels ``(m,)``, label j for the cluster that started at ``centres[j]``.

    >>> lloyd(np.array([[0.0], [1.0], [9.0]]), np.array([[8.0], [2.0], [99.0]]), np.ones(3)).tolist()
    [1, 1, 0]
    """
    centres = centres.astype(np.float64)
    labels = nearest(features, centres)
    for _ in range(max_steps):
        own = np.where(labels[:, None] == np.arange(len(centres)), weights[:, None], 0.0)  # (m, k)
        sums, used = np.zeros_like(centres), own.any(axis=0)
        for w, rows in zip(blocks(own), blocks(features)):
            sums += w.T @ rows
        centres[used] = sums[used] / own.sum(axis=0)[used, None]
        moved = nearest(features, centres)
        if (moved == labels).all():
            break
        labels = moved
    return labels
