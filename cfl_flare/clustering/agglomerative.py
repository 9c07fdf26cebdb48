# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Agglomerative clustering (by scipy), and FedGroup's decomposed cosines."""

from __future__ import annotations

import numpy as np

from cfl_flare.clustering.kmeans import number_labels
from cfl_flare.clustering.measures import compute_inner_products, compute_leading
from cfl_flare.core.config import require

METRICS = ("euclidean", "cosine", "manhattan")
LINKAGES = ("ward", "complete", "average", "single")


def compute_distances(
    rows: np.ndarray,
    others: np.ndarray,
    metric: str,
) -> np.ndarray:
    """Distances ``(m, n)`` of rows ``(m, d)`` and ``(n, d)``; a row of zeros has a cosine distance of 1 to all.

    Args:
        rows: ``(m, d)``.
        others: ``(n, d)``.
        metric: one of `METRICS`.
    """
    from sklearn.metrics import pairwise_distances
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # in a simulation all sites share the cores
        return np.asarray(pairwise_distances(rows, others, metric=metric), np.float64)


def compute_distances_to_means(
    rows: np.ndarray,
    labels: np.ndarray,
    metric: str,
) -> np.ndarray:
    """Distances ``(m, K)`` of rows ``(m, d)`` to the mean of each cluster's rows; to a cluster without any, infinity.

    Args:
        rows: ``(m, d)``.
        labels: the cluster of each row ``(m,)``, from 0.
        metric: one of `METRICS`.

    >>> compute_distances_to_means(np.array([[0.0], [2.0], [9.0]]), np.array([0, 0, 2]), "manhattan").tolist()
    [[1.0, inf, 9.0], [1.0, inf, 7.0], [8.0, inf, 0.0]]
    """
    distances = np.full((len(rows), int(labels.max()) + 1), np.inf)
    used = sorted(set(labels.tolist()))
    means = np.stack([rows[labels == k].mean(axis=0, dtype=np.float64) for k in used])
    distances[:, used] = compute_distances(rows, means, metric)
    return distances


def join_nearest(
    features: np.ndarray,
    metric: str,
    joining: str,
    threshold: float | None = None,
    k: int | None = None,
) -> np.ndarray:
    """Starts with one cluster per row of ``(m, d)`` and repeatedly joins the two nearest.

    Args:
        joining: the distance of two clusters, one of `LINKAGES`.
        threshold: the largest distance at which two clusters are still joined; or
        k: the number of clusters at which it stops; a ConfigError says that there are fewer rows.

    Returns:
        Labels ``(m,)``, numbered in the order in which the clusters first occur.

    >>> join_nearest(np.array([[0.0], [1.0], [9.0]]), "euclidean", "single", threshold=2).tolist()
    [0, 0, 1]
    """
    from scipy.cluster.hierarchy import cut_tree, fcluster, linkage
    from scipy.spatial.distance import squareform

    reason = f"k = {k} clusters need at least {k} participants in the round that clusters, {len(features)} answered"
    require(k is None or k <= len(features), f"{reason}; lower k or let more take part")
    if len(features) == 1:
        return np.zeros(1, np.int64)
    distances = compute_distances(features, features, metric)
    distances = np.maximum((distances + distances.T) / 2, 0)
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), method=joining)
    if k is None:
        return number_labels(fcluster(tree, threshold, "distance"))
    return number_labels(cut_tree(tree, k)[:, 0])


def choose_by_silhouette(
    features: np.ndarray,
    most: int,
    better: float = 1.1,
) -> int:
    """The number of clusters, 2 to ``most``, whose silhouette by Ward's linkage is best.

    A larger number has to be ``better`` times as good as the best smaller one. Each cluster may be one row.

    Args:
        features: ``(m, d)``.
        most: the largest number that is tried.
        better: how many times as good a larger number has to be.

    >>> choose_by_silhouette(np.array([[0.0], [0.1], [5.0], [5.1], [9.0], [9.1]]), 4)
    3
    """
    from sklearn.metrics import silhouette_score

    number = min(2, len(features), most)
    best = -np.inf
    for k in range(2, min(most, len(features) - 1) + 1):
        labels = join_nearest(features, "euclidean", "ward", None, k)
        score = -1.0
        if len({*labels.tolist()}) > 1:
            score = float(silhouette_score(features, labels))
        if score > max(best, better * best):
            number = k
            best = score
    return number


def compute_decomposed_cosines(
    features: np.ndarray,
    dimensions: int,
) -> np.ndarray:
    """Cosine of each row with each of the leading right singular vectors of all rows, for FedGroup's EDC.

    It follows from the rows' inner products: with ``X = U S V^T`` the cosine of row i and v_j is ``U_ij S_j / |x_i|``.
    The features ``(m, d)`` are not all zero; the result is ``(m, dimensions)``, 0 for a row of zeros.

    Args:
        features: ``(m, d)``.
        dimensions: how many singular vectors.

    >>> np.abs(compute_decomposed_cosines(np.array([[3.0, 4.0], [-3.0, -4.0]]), 1)).round(6).tolist()
    [[1.0], [1.0]]
    """
    gram = compute_inner_products(features)
    projected = compute_leading(gram, dimensions)
    lengths = np.sqrt(np.diag(gram))[:, None]
    return np.divide(
        projected, lengths, out=np.zeros_like(projected), where=lengths > 0
    )
