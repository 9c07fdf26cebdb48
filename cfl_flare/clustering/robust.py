# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of ``(m, d)`` rows that a few hostile rows cannot move far.

* Dong Yin, Yudong Chen, Kannan Ramchandran, Peter Bartlett: Byzantine-Robust
  Distributed Learning: Towards Optimal Statistical Rates, 2018,
  https://arxiv.org/abs/1803.01498 (median, trimmed mean).
* Peva Blanchard, El Mahdi El Mhamdi, Rachid Guerraoui, Julien Stainer: Machine
  Learning with Adversaries: Byzantine Tolerant Gradient Descent, 2017 (Krum).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

# Columns that are sorted at a time, so that sorting needs no copy of all rows.
COLUMNS = 2**16
# A row is isolated if it is this many times further from the others than rows usually are.
ISOLATED = 2.0
# A row is opposed to the others if its cosine to their median is below this in some layer.
OPPOSED = -0.1
# Sums of weight fractions are rounded. So this much of all weight may be trimmed too much.
ROUNDED = 1e-9


def compute_median(
    rows: Sequence[np.ndarray],
    weights: Sequence[float] = (),
) -> np.ndarray:
    """Compute the median of each coordinate (Yin et al. 2018, Def. 1).

    Args:
        rows: m vectors ``(d,)``.
        weights: the weight of each row, positive. Without weights, all rows are equal.

    Returns:
        ``(d,)`` float32. Half of the weight is on either side of each entry.

    >>> compute_median([np.array([0.0, 5.0]), np.array([1.0, 6.0]), np.array([900.0, -7.0])]).tolist()
    [1.0, 5.0]
    >>> compute_median([np.array([v]) for v in (1.0, 2.0, 900.0)], [3.0, 2.0, 2.0]).tolist()
    [2.0]
    """
    return _average_middle(rows, _normalise_weights(rows, weights), 0.5)


def compute_trimmed_mean(
    rows: Sequence[np.ndarray],
    hostile: int,
    weights: Sequence[float] = (),
) -> np.ndarray:
    """Compute the mean of each coordinate without its lowest and highest values (Yin et al. 2018, Def. 2).

    As much weight is trimmed at either end as the heaviest rows have. If that is half
    of all weight or more, the result is the median.

    Args:
        rows: m vectors ``(d,)``.
        hostile: how many of the heaviest rows give the weight that is trimmed.
        weights: the weight of each row, positive. Without weights, all rows are equal.

    Returns:
        ``(d,)`` float32.

    >>> compute_trimmed_mean([np.array([v]) for v in (1.0, 2.0, 900.0, 4.0)], 1).tolist()
    [3.0]
    >>> compute_trimmed_mean([np.array([v]) for v in (1.0, 2.0, 4.0, 900.0)], 1, [3.0, 3.0, 3.0, 1.0]).tolist()
    [2.5]
    """
    fractions = _normalise_weights(rows, weights)
    heaviest = np.sort(fractions)[::-1][:hostile]
    return _average_middle(rows, fractions, float(heaviest.sum()))


def _normalise_weights(
    rows: Sequence[np.ndarray],
    weights: Sequence[float],
) -> np.ndarray:
    """Compute each row's fraction of all weight, ``(m,)``."""
    given = np.array(weights or [1.0] * len(rows))
    return given / given.sum()


def _average_middle(
    rows: Sequence[np.ndarray],
    fractions: np.ndarray,
    cut: float,
) -> np.ndarray:
    """Average each column without its lowest and highest values, which have the fraction ``cut`` of the weight."""
    cut = min(cut + ROUNDED, 0.5 - ROUNDED)
    means = np.empty(len(rows[0]), np.float32)
    for start in range(0, len(means), COLUMNS):
        columns = np.stack([row[start : start + COLUMNS] for row in rows], axis=1)
        order = np.argsort(columns, axis=1)
        values = np.take_along_axis(columns, order, axis=1)

        # Each value covers an interval of the cumulated weight. Only the part of the
        # interval between the two cuts counts.
        ends = np.cumsum(fractions[order], axis=1)
        begins = ends - fractions[order]
        left = np.minimum(ends, 1 - cut) - np.maximum(begins, cut)
        left = np.clip(left, 0, None)

        sums = (values * left).sum(axis=1)
        means[start : start + COLUMNS] = sums / left.sum(axis=1)
    return means


def select_by_krum(
    rows: Sequence[np.ndarray],
    hostile: int,
    layers: Sequence[slice] | None = None,
) -> list[int]:
    """Select the rows that multi-Krum keeps (Blanchard et al. 2017).

    A row's score is the sum of its squared distances to the m - hostile - 2 rows
    nearest to it, divided by the median of all scores. With layers, the layer counts
    in which the score is highest. The paper promises nothing for fewer than
    2 * hostile + 3 rows. Then fewer rows are left out, and none of two rows.

    Args:
        rows: m vectors ``(d,)``.
        hostile: how many rows with the highest scores are left out.
        layers: the places of each layer in a vector.

    Returns:
        The numbers of the rows that are kept, ascending.

    >>> select_by_krum([np.array([v]) for v in (1.0, 2.0, 900.0, 3.0, 2.5)], 1)
    [0, 1, 3, 4]
    """
    count = len(rows)
    cut = min(hostile, (count - 1) // 2)
    if not cut:
        return list(range(count))
    neighbours = max(1, count - cut - 2)

    def sum_nearest(distances: np.ndarray) -> np.ndarray:
        squares = distances[:, 1 : neighbours + 1] ** 2
        return np.asarray(squares.sum(axis=1))

    scores = _find_highest_scores(rows, layers, sum_nearest)
    kept = np.argsort(scores, kind="stable")[: count - cut]
    return sorted(kept.tolist())


def find_isolated(
    rows: Sequence[np.ndarray],
    hostile: int,
    layers: Sequence[slice] | None = None,
) -> dict[int, float]:
    """Find rows that have too few others near them.

    A row's score is the distance to the row that is the ``hostile``-th nearest to it.
    So rows which collude do not vouch for each other, and each group of honest rows
    needs more members. Rows with more than `ISOLATED` times the median score are
    isolated. With layers, the layer counts in which a row is furthest. One of many
    layers is always far, so the limit is twice as high then.

    Args:
        rows: m vectors ``(d,)``.
        hostile: how many rows are found at most.
        layers: the places of each layer in a vector.

    Returns:
        The score of each isolated row by its number, the furthest row first.

    >>> find_isolated([np.array([v]) for v in (1.0, 2.0, 900.0, 3.0, 51.0, 52.0)], 1)
    {2: 848.0}
    """
    if not 0 < hostile < len(rows) - 1:
        return {}
    scores = _find_highest_scores(rows, layers, lambda distances: distances[:, hostile])
    limit = ISOLATED if layers is None else 2 * ISOLATED
    furthest = np.argsort(-scores, kind="stable")[:hostile].tolist()
    return {row: float(scores[row]) for row in furthest if scores[row] > limit}


def find_opposed(
    rows: Sequence[np.ndarray],
    hostile: int,
    layers: Sequence[slice],
) -> dict[int, float]:
    """Find rows that point against the coordinate-wise median of all rows in a layer.

    If there are more of them than ``hostile``, they are a group of honest rows, and
    none is named. Of fewer than ``2 * hostile + 2`` rows none is named either, because
    the median may belong to the hostile rows.

    Args:
        rows: m vectors ``(d,)``.
        hostile: how many rows are found at most.
        layers: the places of each layer in a vector.

    Returns:
        The lowest cosine of each opposed row, by its number.

    >>> find_opposed([np.array([v]) for v in (1.0, 2.0, 3.0, -0.5)], 1, [slice(0, 1)])
    {3: -1.0}
    >>> find_opposed([np.array([v]) for v in (1.0, 2.0, 3.0, -0.5, -0.5)], 1, [slice(0, 1)])
    {}
    """
    if len(rows) < 2 * hostile + 2:
        return {}
    median = compute_median(rows).astype(np.float64)
    by_layer = []
    for layer in layers:
        parts = [row[layer] for row in rows]
        by_layer.append(_compute_cosines(parts, median[layer]))
    lowest = np.min(by_layer, axis=0)
    against = {
        row: float(cosine) for row, cosine in enumerate(lowest) if cosine < OPPOSED
    }
    return against if len(against) <= hostile else {}


def _compute_cosines(
    rows: Sequence[np.ndarray],
    other: np.ndarray,
) -> np.ndarray:
    """Compute each row's cosine to a vector; 0 if one of the two is zero."""
    norms = np.array([np.linalg.norm(row) for row in rows], np.float64)
    lengths = norms * np.linalg.norm(other)
    products = np.array([row @ other for row in rows])
    return products / np.where(lengths > 0, lengths, np.inf)


def _find_highest_scores(
    rows: Sequence[np.ndarray],
    layers: Sequence[slice] | None,
    score: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Find each row's highest score, in the whole vector or a layer, as a multiple of the median score there."""
    multiples = np.zeros(len(rows))
    whole = slice(None)
    for part in (whole, *(layers or ())):
        scores = score(_sort_distances([row[part] for row in rows]))
        median = float(np.median(scores))
        if median == 0 and part != whole:
            continue  # most rows are equal in this layer
        multiples = np.maximum(multiples, scores / max(median, 1e-100))
    return multiples


def _sort_distances(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Compute each row's distances to all rows, ascending, ``(m, m)``; the first is the distance to itself."""
    from scipy.spatial.distance import pdist, squareform

    distances = squareform(pdist(np.stack(rows).astype(np.float64)))
    return np.sort(distances, axis=1)
