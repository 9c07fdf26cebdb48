# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the inner products of participants' features say: cosine similarities, a plane, a tree. NumPy and SciPy only."""

from __future__ import annotations

import numpy as np


def cosines(gram: np.ndarray) -> np.ndarray:
    """Cosine similarities ``(n, n)`` from inner products; NaN in the rows and columns of a vector of zeros.

    >>> cosines(np.array([[4.0, 2.0], [2.0, 1.0]]))
    array([[1., 1.],
           [1., 1.]])
    """
    squares = np.diag(gram).astype(np.float64)
    lengths = np.where(squares > 0, np.sqrt(np.maximum(squares, 0)), np.nan)
    found: np.ndarray = np.clip(gram / lengths[:, None] / lengths[None, :], -1, 1)
    return found


def plane(similar: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Classical multidimensional scaling: points in a plane whose inner products are nearest to the centred ones.

    Args:
        similar: ``(n, n)`` inner products, finite.

    Returns:
        ``(n, 2)`` points, each axis turned so that its largest coordinate is positive; and each axis' share.

    >>> points, shares = plane(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    >>> np.abs(points).round(3).tolist(), shares
    ([[1.0, 0.0], [1.0, 0.0]], (1.0, 0.0))
    """
    n = len(similar)
    centring = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(centring @ similar.astype(np.float64) @ centring)
    values = np.maximum(values, 0)
    spread, points = values.sum(), np.zeros((n, 2))
    for axis in range(min(2, n)):
        vector = vectors[:, -1 - axis]
        vector = vector * (1 if vector[np.argmax(np.abs(vector))] >= 0 else -1)
        points[:, axis] = vector * np.sqrt(values[-1 - axis])
    top = [float(values[-1 - axis] / spread) if spread > 0 and axis < n else 0.0 for axis in range(2)]
    return points, (top[0], top[1])


def tree(similar: np.ndarray) -> tuple[list[int], list[tuple[list[float], list[float]]], list[float]]:
    """Average linkage of the distances 1 - cosine.

    Args:
        similar: ``(n, n)`` cosine similarities, finite, of at least two.

    Returns:
        The leaves from left to right; of each joint the four corners, leaves at 0, 1, ...; and of each leaf, in its
        order, the distance at which it is first joined.
    """
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    apart = np.maximum(1 - (similar + similar.T) / 2, 0)
    np.fill_diagonal(apart, 0)
    joints = linkage(squareform(apart, checks=False), "average")
    drawn = dendrogram(joints, no_plot=True)
    n = len(similar)
    first = {int(leaf): float(height) for a, b, height, _ in joints[::-1] for leaf in (a, b) if leaf < n}
    corners = [([(x - 5) / 10 for x in xs], list(ys)) for xs, ys in zip(drawn["icoord"], drawn["dcoord"])]
    return drawn["leaves"], corners, [first[leaf] for leaf in drawn["leaves"]]
