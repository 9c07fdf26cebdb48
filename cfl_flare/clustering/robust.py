# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics that a few hostile rows cannot move far, of ``(m, d)`` rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

COLUMNS = 2**16  # at a time, so that sorting needs no copy of all rows
# A row is isolated if it is this many times further from the others than rows usually are.
ISOLATED = 2.0
# A row is opposed to the others if its cosine to their median is below it in some layer.
OPPOSED = -0.1
# So much of all weight may be trimmed too much: sums of shares are rounded.
ROUNDED = 1e-9


def coordinate_median(
    rows: Sequence[np.ndarray], weights: Sequence[float] = ()
) -> np.ndarray:
    """The median of each coordinate (Yin et al. 2018, Def. 1): half of the weight is on either side of it.

    Without weights, all rows are equal.

    >>> coordinate_median([np.array([0.0, 5.0]), np.array([1.0, 6.0]), np.array([900.0, -7.0])]).tolist()
    [1.0, 5.0]
    >>> coordinate_median([np.array([v]) for v in (1.0, 2.0, 900.0)], [3.0, 2.0, 2.0]).tolist()
    [2.0]
    """
    return _middle(rows, _shares(rows, weights), 0.5)


def trimmed_mean(
    rows: Sequence[np.ndarray], hostile: int, weights: Sequence[float] = ()
) -> np.ndarray:
    """The mean of each coordinate without its lowest and highest values (Yin et al. 2018, Def. 2).

    As much weight is trimmed at either end as the ``hostile`` heaviest rows have. If that is half or more: the median.

    >>> trimmed_mean([np.array([v]) for v in (1.0, 2.0, 900.0, 4.0)], 1).tolist()
    [3.0]
    >>> trimmed_mean([np.array([v]) for v in (1.0, 2.0, 4.0, 900.0)], 1, [3.0, 3.0, 3.0, 1.0]).tolist()
    [2.5]
    """
    shares = _shares(rows, weights)
    return _middle(rows, shares, float(np.sort(shares)[::-1][:hostile].sum()))


def _shares(rows: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    given = np.array(weights or [1.0] * len(rows))
    return given / given.sum()


def _middle(rows: Sequence[np.ndarray], shares: np.ndarray, cut: float) -> np.ndarray:
    """The mean of each column but for its lowest and highest values, as many as have the share ``cut``; float32."""
    cut = min(cut + ROUNDED, 0.5 - ROUNDED)
    means = np.empty(len(rows[0]), np.float32)
    for start in range(0, len(means), COLUMNS):
        columns = np.stack([row[start : start + COLUMNS] for row in rows], axis=1)
        order = np.argsort(columns, axis=1)
        ends = np.cumsum(shares[order], axis=1)
        left = np.clip(
            np.minimum(ends, 1 - cut) - np.maximum(ends - shares[order], cut), 0, None
        )
        sums = (np.take_along_axis(columns, order, axis=1) * left).sum(axis=1)
        means[start : start + COLUMNS] = sums / left.sum(axis=1)
    return means


def multi_krum(
    rows: Sequence[np.ndarray], hostile: int, layers: Sequence[slice] | None = None
) -> list[int]:
    """The rows that multi-Krum keeps: all but the ``hostile`` furthest from their neighbours (Blanchard et al. 2017).

    A row's score is the sum of its squared distances to the m - hostile - 2 rows nearest to it, over the median of all
    rows; with layers, that of the layer where it is highest. Of fewer than 2 * hostile + 3 rows, where the paper
    promises nothing, fewer are left out, and of two rows none.

    >>> multi_krum([np.array([v]) for v in (1.0, 2.0, 900.0, 3.0, 2.5)], 1)
    [0, 1, 3, 4]
    """
    m = len(rows)
    cut = min(hostile, (m - 1) // 2)
    if not cut:
        return list(range(m))
    near = max(1, m - cut - 2)
    scores = _highest(
        rows, layers, lambda distances: (distances**2)[:, 1 : near + 1].sum(axis=1)
    )
    return sorted(np.argsort(scores, kind="stable")[: m - cut].tolist())


def isolated(
    rows: Sequence[np.ndarray], hostile: int, layers: Sequence[slice] | None = None
) -> dict[int, float]:
    """Up to ``hostile`` rows that have too few others near them, and how many times too far those are.

    A row's score is the distance to the row that is the ``hostile``-th nearest to it. So rows which collude do not
    vouch for each other: each group of honest rows needs more members than that. Rows with more than `ISOLATED` times
    the median score are isolated, the furthest first. With layers, the one counts where a row is furthest; as one of
    many is always far, twice as much is isolated then.

    >>> isolated([np.array([v]) for v in (1.0, 2.0, 900.0, 3.0, 51.0, 52.0)], 1)
    {2: 848.0}
    """
    if not 0 < hostile < len(rows) - 1:
        return {}
    scores = _highest(rows, layers, lambda distances: distances[:, hostile])
    limit = ISOLATED if layers is None else 2 * ISOLATED
    return {
        i: float(scores[i])
        for i in np.argsort(-scores, kind="stable")[:hostile].tolist()
        if scores[i] > limit
    }


def opposed(
    rows: Sequence[np.ndarray], hostile: int, layers: Sequence[slice]
) -> dict[int, float]:
    """Up to ``hostile`` rows that point against the coordinate-wise median of all in a layer, and their lowest cosines.

    If there are more of them, they are a group of their own, and none is named. Of fewer than ``2 * hostile + 2`` rows
    neither, as the median may be the hostile rows' own.

    >>> opposed([np.array([v]) for v in (1.0, 2.0, 3.0, -0.5)], 1, [slice(0, 1)])
    {3: -1.0}
    >>> opposed([np.array([v]) for v in (1.0, 2.0, 3.0, -0.5, -0.5)], 1, [slice(0, 1)])
    {}
    """
    if len(rows) < 2 * hostile + 2:
        return {}
    median = coordinate_median(rows).astype(np.float64)
    lowest = np.min(
        [_cosines([row[part] for row in rows], median[part]) for part in layers], axis=0
    )
    against = {i: float(cosine) for i, cosine in enumerate(lowest) if cosine < OPPOSED}
    return against if len(against) <= hostile else {}


def _cosines(rows: Sequence[np.ndarray], to: np.ndarray) -> np.ndarray:
    """Each row's cosine to a vector; 0 where one of them is zero."""
    lengths = np.array(
        [np.linalg.norm(row) for row in rows], np.float64
    ) * np.linalg.norm(to)
    return np.array([row @ to for row in rows]) / np.where(lengths > 0, lengths, np.inf)


def _highest(
    rows: Sequence[np.ndarray],
    layers: Sequence[slice] | None,
    score: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Each row's highest score, of all of it and of its layers, as a multiple of the median score there.

    If most rows are equal in a layer, it is passed over.
    """
    multiples = np.zeros(len(rows))
    for part in (slice(None), *(layers or ())):
        scores = score(_distances([row[part] for row in rows]))
        usual = float(np.median(scores))
        if usual or part == slice(None):
            multiples = np.maximum(multiples, scores / max(usual, 1e-100))
    return multiples


def _distances(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Each row's distances to all rows, ascending, ``(m, m)``; the first is the one to itself."""
    from scipy.spatial.distance import pdist, squareform

    return np.sort(squareform(pdist(np.stack(rows).astype(np.float64))), axis=1)
