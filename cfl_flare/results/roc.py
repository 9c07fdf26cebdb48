# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""ROC and reliability curves of scores that were counted by bins, from the lowest score on."""

from __future__ import annotations

import numpy as np

# A curve has so many points at most: more are closer than a line is wide.
POINTS = 101
# The mean of curves is taken at so many rates at most, however many classes and bins there are.
RATES = 10_000
# A reliability curve has so many, each of as much of both kinds of samples as the others, and of so many at least:
# the share of fewer is chance.
GROUPS, FEWEST = 10, 10


def cells(samples: np.ndarray, fewest: int) -> np.ndarray:
    """Where bins begin once neighbours are put together until each has so many samples; what is left joins the last.

    >>> cells(np.array([0, 2, 1, 0, 4, 1]), 3).tolist(), cells(np.array([0, 2, 0, 1]), 1).tolist()
    ([0, 3], [0, 2])

    Args:
        samples: of each bin, ``(bins,)``.
        fewest: at least 1.
    """
    starts, begin, held = list[int](), 0, 0
    for end, count in enumerate(samples.tolist(), 1):
        held += count
        if held >= fewest:
            starts.append(begin)
            begin, held = end, 0
    return np.array(starts or [0])


def roc(counts: np.ndarray) -> np.ndarray:
    """The ROC curve of one class, ``(points, 2)``: false and true positive rates, from (0, 0) to (1, 1).

    Scores in one bin are ties: the curve is straight there.

    >>> roc(np.array([[3, 1, 0], [0, 1, 3]])).tolist()
    [[0.0, 0.0], [0.0, 0.75], [0.25, 1.0], [1.0, 1.0]]

    Args:
        counts: ``(2, bins)``: samples without the class and with it; both have some.
    """
    rates = counts[:, ::-1].cumsum(axis=1) / counts.sum(axis=1, keepdims=True)
    points = np.concatenate([np.zeros((1, 2)), rates.T])
    return points[np.append(True, (np.diff(points, axis=0) != 0).any(axis=1))]


def mean_roc(curves: list[np.ndarray]) -> np.ndarray:
    """The mean of curves over their true positive rates at each false positive rate, ``(points, 2)``.

    Where curves are vertical the mean is too, so that the area below it is the mean of their areas; nearly, if they
    bend at more than `RATES` rates.

    >>> mean_roc([np.array([[0, 0], [0, 1.0], [1, 1]]), np.array([[0, 0], [1.0, 1]])]).tolist()
    [[0.0, 0.0], [0.0, 0.5], [1.0, 1.0]]
    """
    grid = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    if len(grid) > RATES:
        grid = np.linspace(0, 1, RATES)
    ends = np.zeros((2, len(grid)))
    for curve in curves:
        ends += _ends(curve, grid) / len(curves)
    points = np.column_stack([grid.repeat(2), ends.T.flatten()])
    return points[np.append(True, (np.diff(points, axis=0) != 0).any(axis=1))]


def _ends(curve: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The lowest and the highest true positive rate at each false positive rate of a grid, ``(2, grid)``."""
    x, y = np.ascontiguousarray(curve[:, 0]), curve[:, 1]
    first, last = np.searchsorted(x, grid, "left"), np.searchsorted(x, grid, "right") - 1
    between = np.interp(grid, x, y)
    own = x[first] == grid
    return np.stack([np.where(own, y[first], between), np.where(own, y[last], between)])


def area(curve: np.ndarray) -> float:
    """The area below a curve."""
    return float((np.diff(curve[:, 0]) * (curve[1:, 1] + curve[:-1, 1]) / 2).sum())


def thinned_roc(curve: np.ndarray) -> np.ndarray:
    """So many points of it at most, evenly spaced in the sum of both rates, which grows from 0 to 2."""
    if len(curve) <= POINTS:
        return curve
    way = np.linspace(0, 2, POINTS)
    return np.column_stack([np.interp(way, curve.sum(axis=1), curve[:, i]) for i in (0, 1)])


def reliability(
    counts: np.ndarray, samples: np.ndarray, probabilities: np.ndarray, fewest: int = FEWEST
) -> list[tuple[float, float, int]]:
    """What was predicted and what was so, in groups of scores.

    Groups have equal parts of the samples without the class and of those with it, half each, and not of all samples:
    of a rare class, those would all but one lie where it is not.

    >>> reliability(np.array([[3, 1, 0], [0, 1, 3]]), np.array([3, 2, 3]), np.array([0.125, 0.5, 0.875]), fewest=3)
    [(0.125, 0.0, 3), (0.725, 0.8, 5)]

    Args:
        counts: ``(2, bins)``, which may be weighted: samples without the class and with it; both have some.
        samples: of each bin, ``(bins,)``, not weighted.
        probabilities: that bins stand for, ``(bins,)``.
        fewest: samples of a group.

    Returns:
        Of each group the mean predicted probability, the share with the class, and its samples.
    """
    mass = (counts / counts.sum(axis=1, keepdims=True)).sum(axis=0)
    starts, begin, held, part = list[int](), 0, 0, 0.0
    for end in range(1, len(mass) + 1):
        held, part = held + int(samples[end - 1]), part + mass[end - 1]
        if held >= fewest and part >= 2 / GROUPS:
            starts.append(begin)
            begin, held, part = end, 0, 0.0
    at, every = np.array(starts or [0]), counts.sum(axis=0)
    weights = np.add.reduceat(every, at)
    predicted = np.add.reduceat(every * probabilities, at) / weights
    having = np.add.reduceat(counts[1], at) / weights
    of = np.add.reduceat(samples, at)
    return [(float(p), float(share), int(n)) for p, share, n in zip(predicted, having, of)]
