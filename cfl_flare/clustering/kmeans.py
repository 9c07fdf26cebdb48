# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Weighted k-means, cold from k-means++ and warm from given centres."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np

from cfl_flare.clustering.floor import Sizes
from cfl_flare.core.errors import ConfigError

# Starts of k-means on rows of at most K numbers. A start of 128 rows with K = 10 takes a millisecond.
STARTS_ON_SHORT_ROWS = 100


def number_labels(labels: np.ndarray) -> np.ndarray:
    """Labels numbered in the order in which they first occur.

    Args:
        labels: the cluster of each row ``(m,)``.

    >>> number_labels(np.array([7, 2, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    order = {label: i for i, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([order[label] for label in labels.tolist()])


def run_first_kmeans(
    features: np.ndarray,
    k: int,
    weights: np.ndarray,
    starts: int = 10,
    seed: int = 0,
    sizes: Sizes | None = None,
) -> np.ndarray:
    """Clusters from scratch: scikit-learn's k-means++, the best of a number of starts.

    If a cluster is below a floor, k-means with minimum sizes takes its place.

    Features are ``(m, d)``, and weights ``(m,)``, positive. ``sizes`` is what a cluster needs; None for nothing. All is
    computed in float64, as one row may be far longer than the others.

    Args:
        features: ``(m, d)``.
        k: the number of clusters.
        weights: ``(m,)``, positive.
        starts: how many starts of k-means++.
        seed: the seed of the starts.
        sizes: the minimum sizes; None for none.

    Returns:
        Labels ``(m,)``, numbered in the order in which the clusters first occur; of fewer clusters, if k that are large
        enough cannot be.

    Raises:
        ConfigError: fewer participants than clusters.

    >>> run_first_kmeans(np.array([[5.0], [5.1], [0.0]]), 2, np.ones(3)).tolist()
    [0, 0, 1]
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    if len(features) < k:
        reason = f"k = {k} clusters need at least {k} participants in the first round, {len(features)} answered"
        raise ConfigError(f"{reason}; lower k or let more take part")
    features = features.astype(np.float64)
    with threadpool_limits(1):  # in a simulation all sites share the cores
        kmeans = KMeans(k, n_init=starts, random_state=seed, tol=0)
        labels = kmeans.fit(features, sample_weight=weights / weights.mean()).labels_
        if sizes is None or sizes.met(labels):
            return number_labels(labels)
        placed = number_labels(
            _start_under_floor(
                features, min(k, sizes.clusters), weights, starts, seed, sizes
            )
        )
        sizes.note(rename_labels(labels, placed, k), placed)
        return placed


def match_clusters(
    labels: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """For each cluster a column: those pairs for which the sum of the members' entries is least.

    Args:
        labels: the cluster of each row ``(m,)``.
        rows: ``(m, K)``.

    >>> match_clusters(np.array([0, 0, 1]), np.array([[3.0, 1.0], [3.0, 2.0], [4.0, 4.5]])).tolist()
    [1, 0]
    """
    from scipy.optimize import linear_sum_assignment

    costs = np.stack([rows[labels == j].sum(axis=0) for j in range(labels.max() + 1)])
    return np.asarray(linear_sum_assignment(costs)[1])


def rename_labels(
    labels: np.ndarray,
    others: np.ndarray,
    k: int,
) -> np.ndarray:
    """The labels under the names 0..k-1 of other ones for the same rows, such that as many as can be agree.

    Args:
        labels: the cluster of each row ``(m,)``.
        others: other labels of the same rows ``(m,)``.
        k: the number of clusters.

    >>> rename_labels(np.array([1, 1, 0, 2]), np.array([0, 0, 1, 1]), 3).tolist()
    [0, 0, 1, 2]
    """
    return match_clusters(
        labels, -(others[:, None] == np.arange(k)).astype(np.float64)
    )[labels]


def _start_under_floor(
    points: np.ndarray,
    k: int,
    weights: np.ndarray,
    starts: int,
    seed: int,
    sizes: Sizes,
) -> np.ndarray:
    """The best of some starts of k-means with minimum sizes."""
    from sklearn.cluster import kmeans_plusplus

    random = np.random.RandomState(seed)
    candidates: list[tuple[int, float, np.ndarray]] = []
    for _ in range(starts):
        first, _ = kmeans_plusplus(
            points, k, sample_weight=weights, random_state=random
        )
        labels = run_lloyd(points, first, weights, sizes=sizes)
        centres = _average_members(points, labels, weights, first)
        distances = compute_squared_distances(points, centres, weights)
        spread = float(distances[range(len(labels)), labels].sum())
        candidates.append((-len(set(labels.tolist())), spread, centres))
    # The best start has the most clusters, and of those the smallest spread.
    _, _, centres = min(candidates, key=lambda fit: fit[:2])
    return assign_closest(points, centres, weights, sizes, needed=range(k))


def find_nearest(
    features: np.ndarray,
    centres: np.ndarray,
) -> np.ndarray:
    """Index of the nearest centre (Euclidean), ``(m,)``; ties to the lowest.

    Args:
        features: ``(m, d)``.
        centres: ``(k, d)``.
    """
    from sklearn.metrics import pairwise_distances_argmin

    # Models differ little compared with their size: subtract what they share before squaring. The median ignores a
    # stray centre.
    origin = np.median(centres, axis=0)
    return np.asarray(pairwise_distances_argmin(features - origin, centres - origin))


def assign_closest(
    features: np.ndarray,
    centres: np.ndarray,
    weights: np.ndarray,
    sizes: Sizes | None,
    needed: Collection[int] = (),
) -> np.ndarray:
    """As `find_nearest`, but where that leaves a cluster too small: the E-step of k-means with minimum sizes.

    Args:
        features: ``(m, d)``.
        centres: ``(k, d)``.
        weights: ``(m,)``, positive.
        sizes: the minimum sizes; None for none.
        needed: clusters that should be in use.
    """
    labels = find_nearest(features, centres)
    costs = partial(compute_squared_distances, features, centres, weights)
    return labels if sizes is None else sizes.assigned(labels, costs, needed)


def compute_squared_distances(
    features: np.ndarray,
    centres: np.ndarray,
    weights: np.ndarray,
) -> np.ndarray:
    """Weighted squared distances ``(m, k)`` of features and centres, float64.

    Args:
        features: ``(m, d)``.
        centres: ``(k, d)``.
        weights: ``(m,)``, positive.
    """
    from sklearn.metrics.pairwise import euclidean_distances

    origin = np.median(centres, axis=0)
    return weights[:, None] * np.asarray(
        euclidean_distances(features - origin, centres - origin, squared=True)
    )


def run_lloyd(
    features: np.ndarray,
    centres: np.ndarray,
    weights: np.ndarray,
    max_steps: int = 300,
    sizes: Sizes | None = None,
) -> np.ndarray:
    """K-means started at given centres, until it converges.

    Unlike scikit-learn's, it leaves an empty cluster where it is: with sampled participants a cluster may be absent
    from a round, and must not be moved onto another group's members.

    If a cluster of the result is too small for ``sizes``, or had members before and has none, k-means with minimum
    sizes takes its place. Features are ``(m, d)``, centres ``(k, d)``, and weights ``(m,)``, positive.

    Args:
        features: ``(m, d)``.
        centres: ``(k, d)``.
        weights: ``(m,)``, positive.
        max_steps: the largest number of steps.
        sizes: the minimum sizes; None for none.

    Returns:
        Labels ``(m,)``, label j for the cluster that started at ``centres[j]``.

    >>> run_lloyd(np.array([[0.0], [1.0], [9.0]]), np.array([[8.0], [2.0], [99.0]]), np.ones(3)).tolist()
    [1, 1, 0]
    """
    labels = _take_steps(features, centres, weights, max_steps, None)
    if sizes is None or sizes.met(labels):
        return labels
    placed = _take_steps(features, centres, weights, max_steps, sizes)
    sizes.note(labels, placed)
    return placed


def _take_steps(
    features: np.ndarray,
    centres: np.ndarray,
    weights: np.ndarray,
    max_steps: int,
    sizes: Sizes | None,
) -> np.ndarray:
    centres = centres.astype(np.float64)
    labels = assign_closest(features, centres, weights, sizes)
    needed = () if sizes is None else sizes.used(labels)
    for _ in range(max_steps):
        centres = _average_members(features, labels, weights, centres)
        moved = assign_closest(features, centres, weights, sizes, needed)
        if (moved == labels).all():
            break
        labels = moved
    return labels


def _average_members(
    features: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    before: np.ndarray,
) -> np.ndarray:
    """The M-step: weighted means ``(k, d)``, an empty cluster's centre where it was."""
    is_member = labels[:, None] == np.arange(len(before))  # (m, k)
    member_weights = np.where(is_member, weights[:, None], 0.0)
    used = member_weights.any(axis=0)
    sums = member_weights.T @ features
    totals = member_weights.sum(axis=0)
    centres = before.copy()
    centres[used] = sums[used] / totals[used, None]
    return centres
