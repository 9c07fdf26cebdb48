# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How many clusters there are, one included: the gap statistic, beside random points without clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cfl_flare.clustering.kmeans import numbered
from cfl_flare.core.config import require
from cfl_flare.core.seeds import stream

# Under which key the record of the round that found the number of clusters says so.
NUMBER = "number_of_clusters"
# What is left of a squared length after rounding.
NOTHING = 1e-10
# Gaps that differ by less than so many standard deviations are taken for the same.
SAME = 0.5


@dataclass(frozen=True)
class Found:
    """A number of clusters, and why.

    Attributes:
        labels: ``(m,)``, the cluster of each row, numbered in the order in which they first occur.
        gap: by K = 1, 2, ...: by how much the logarithm of the dispersion inside K clusters is below its mean over
            the reference sets; 0 for K = 1.
        deviations: the same in standard deviations of the reference sets.
    """

    labels: np.ndarray
    gap: tuple[float, ...]
    deviations: tuple[float, ...]

    @property
    def k(self) -> int:
        """The number of clusters."""
        return int(self.labels.max()) + 1


def number_of_clusters(products: np.ndarray, most: int, references: int = 100, seed: int = 0) -> Found:
    """The number of clusters of some vectors by the gap statistic (Tibshirani et al. 2001), 1 if there are none.

    The vectors are compared by their directions from their mean, see `directions`, and clustered by Ward's linkage,
    whose dispersion W_K is the one that k-means minimises. The reference sets have no clusters, but the lengths of
    the vectors and the variance along each of their principal axes, which is the null hypothesis of SigClust (Liu et
    al. 2008) on the sphere: a box (Tibshirani et al., sec. 4) has far less structure than what participants without
    clusters send. Such a set is drawn from a sample's variances, which are more uneven than those that the sample was
    drawn from, and so has a little more structure itself: what errs, errs towards one cluster. K is 1 unless another
    number has a positive gap; else the smallest other one whose gap is as large as the largest, but for half a standard
    deviation (Dudoit and Fridlyand 2002 allow a whole one).

    Args:
        products: ``(m, m)`` inner products of the vectors.
        most: the largest number that is tried, at most half the vectors.
        references: reference sets.
        seed: of the reference sets.

    Raises:
        ConfigError: a product is not finite.

    >>> two = np.repeat([[1.0, 0.0], [0.0, 1.0]], 6, axis=0) + stream(0, "noise").normal(0, 0.1, (12, 2))
    >>> number_of_clusters(two @ two.T, 4).k
    2
    """
    from scipy.cluster.hierarchy import cut_tree, linkage

    require(bool(np.isfinite(products).all()), "the features that are to be clustered are not finite; lower lr")
    points = directions(products)
    most = max(1, min(most, len(points) // 2))
    if most == 1 or not points.any():
        return Found(np.zeros(len(points), np.int64), (0.0,) * most, (0.0,) * most)
    tree = linkage(points, "ward")
    drawn = np.array([_dispersion(linkage(p, "ward"), most) for p in _references(points, references, seed)])
    gap, spread = drawn.mean(axis=0) - _dispersion(tree, most), drawn.std(axis=0)
    best = int(gap.argmax())
    k = 1 + (1 + int(np.argmax(gap[1:] >= gap[best] - SAME * spread[best])) if best else 0)
    deviations = gap / np.maximum(spread, NOTHING)
    return Found(numbered(cut_tree(tree, k)[:, 0]), tuple(gap.tolist()), tuple(deviations.tolist()))


def directions(products: np.ndarray) -> np.ndarray:
    """Points ``(m, r)`` of length 1 whose inner products are the cosines of the vectors, seen from their mean.

    What all have in common would hide the rest; how far a participant moved depends on how much data it has.

    Args:
        products: ``(m, m)`` inner products of the vectors.

    Returns:
        Points; one of zeros for a vector that is the mean.
    """
    cosines = _scaled(products, NOTHING * np.diag(products).max())
    mean = cosines.mean(axis=0)
    values, axes = np.linalg.eigh(_scaled(cosines - mean - mean[:, None] + mean.mean(), NOTHING))
    kept = values > NOTHING
    return np.asarray(axes[:, kept] * np.sqrt(values[kept]))


def _scaled(products: np.ndarray, least: float) -> np.ndarray:
    """Inner products of the same vectors with length 1; 0 for those whose square is ``least`` or less."""
    squares = np.diag(products).astype(np.float64)
    kept = squares > least
    factors = np.where(kept, 1 / np.sqrt(np.where(kept, squares, 1.0)), 0.0)
    return np.asarray(products * factors * factors[:, None])


def _references(points: np.ndarray, count: int, seed: int) -> Iterator[np.ndarray]:
    """Sets without clusters: Gaussian with the points' variance along their axes, then with the points' lengths."""
    lengths, along = np.linalg.norm(points, axis=1), points.std(axis=0)
    for i in range(count):
        drawn = stream(seed, "reference", i).standard_normal(points.shape) * along
        yield drawn * (lengths / np.linalg.norm(drawn, axis=1))[:, None]


def _dispersion(tree: np.ndarray, most: int) -> np.ndarray:
    """log W_K - log W_1 for K = 1 to ``most``: each of Ward's merges adds half its squared height to W."""
    inside = np.cumsum(tree[:, 2] ** 2 / 2)[::-1]
    return np.asarray(np.log(np.maximum(inside[:most], NOTHING * inside[0])) - np.log(inside[0]))
