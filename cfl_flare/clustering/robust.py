# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics that a few hostile rows cannot move far, of ``(m, d)`` rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

COLUMNS = 2**16  # at a time, so that sorting needs no copy of all rows
# A row is isolated if it is so many times further from the others than rows usually are.
ISOLATED = 2.0


def by_columns(rows: Sequence[np.ndarray], statistic: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """A statistic of each column, ``(d,)`` float32, from m rows of length d."""
    width = len(rows[0])
    found = np.empty(width, np.float32)
    for start in range(0, width, COLUMNS):
        found[start : start + COLUMNS] = statistic(np.stack([row[start : start + COLUMNS] for row in rows]))
    return found


def coordinate_median(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The median of each coordinate (Yin et al. 2018, Def. 1).

    >>> coordinate_median([np.array([0.0, 5.0]), np.array([1.0, 6.0]), np.array([900.0, -7.0])]).tolist()
    [1.0, 5.0]
    """
    return by_columns(rows, lambda block: np.median(block, axis=0))


def trimmed_mean(rows: Sequence[np.ndarray], hostile: int) -> np.ndarray:
    """The mean of each coordinate without its ``hostile`` lowest and highest values (Yin et al. 2018, Def. 2).

    If too few rows would be left, as many are trimmed as leave one or two: the median.

    >>> trimmed_mean([np.array([v]) for v in (1.0, 2.0, 900.0, 4.0)], 1).tolist()
    [3.0]
    """
    cut = min(hostile, (len(rows) - 1) // 2)
    return by_columns(rows, lambda block: np.sort(block, axis=0)[cut : len(rows) - cut].mean(axis=0, dtype=np.float64))


def multi_krum(rows: Sequence[np.ndarray], hostile: int) -> list[int]:
    """The rows that multi-Krum keeps: all but the ``hostile`` furthest from their neighbours (Blanchard et al. 2017).

    A row's score is the sum of its squared distances to the m - hostile - 2 rows nearest to it. Of fewer than
    2 * hostile + 3 rows, where the paper promises nothing, fewer are left out, and of two rows none.

    >>> multi_krum([np.array([v]) for v in (1.0, 2.0, 900.0, 3.0, 2.5)], 1)
    [0, 1, 3, 4]
    """
    m = len(rows)
    cut = min(hostile, (m - 1) // 2)
    if not cut:
        return list(range(m))
    near = max(1, m - cut - 2)
    scores = (_distances(rows) ** 2)[:, 1 : near + 1].sum(axis=1)
    return sorted(np.argsort(scores, kind="stable")[: m - cut].tolist())


def isolated(rows: Sequence[np.ndarray], hostile: int) -> dict[int, float]:
    """Up to ``hostile`` rows that have too few others near them, and how many times too far those are.

    A row's score is the distance to the row that is the ``hostile``-th nearest to it, so that rows which collude do not
    vouch for each other: each group of honest rows needs more members than that. Rows with more than `ISOLATED` times
    the median score are isolated, the furthest first.

    >>> isolated([np.array([v]) for v in (1.0, 2.0, 900.0, 3.0, 51.0, 52.0)], 1)
    {2: 848.0}
    """
    if not 0 < hostile < len(rows) - 1:
        return {}
    scores = _distances(rows)[:, hostile]
    usual = float(np.median(scores))
    far = [i for i in np.argsort(-scores, kind="stable")[:hostile].tolist() if scores[i] > ISOLATED * usual]
    return {i: float(scores[i]) / usual if usual else np.inf for i in far}


def _distances(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Each row's distances to all rows, ascending, ``(m, m)``; the first is the one to itself."""
    from scipy.spatial.distance import pdist, squareform

    return np.sort(squareform(pdist(np.stack(rows).astype(np.float64))), axis=1)
