# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures over all participants' test samples, from counts of scores and decisions: AUROC, macro-F1, ROC, reliability.

Scores are counted by bins, from the lowest score on. Scores in one bin are ties.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cfl_flare.core.shares import capped
from cfl_flare.methods import Participant
from cfl_flare.results.metrics import POOLED, POOLED_F1, RoundMetrics, not_by_all

# The most points of a curve: more are closer than a line is wide.
POINTS = 101
# The most rates at which the mean of curves is taken, whatever the number of classes and bins.
RATES = 10_000
# Groups of a reliability curve, and the fewest samples of one: the share of fewer is chance.
GROUPS, FEWEST = 10, 10


def auroc_of_counts(counts: np.ndarray) -> float | None:
    """The AUROC of scores that were counted by bins.

    Counts are ``(classes, 2, bins)``: of each class samples without it and with it. Ties are
    half right. It is the mean over the classes that have both; None if none has.

    >>> auroc_of_counts(np.array([[[3, 1, 0], [0, 1, 3]]]))
    0.96875
    """
    without, having = counts.astype(np.float64).swapaxes(0, 1)
    pairs = without.sum(axis=1) * having.sum(axis=1)
    right = (having * (without.cumsum(axis=1) - without / 2)).sum(axis=1)
    return (
        float((right[pairs > 0] / pairs[pairs > 0]).mean())
        if (pairs > 0).any()
        else None
    )


def macro_f1_of_counts(counts: np.ndarray) -> float | None:
    """The macro-F1 of decisions, as scikit-learn has it: over the classes that occur among labels or decisions.

    Counts are those of `cfl_flare.training.histograms.count_scores`. One class alone is a finding, and its absence
    another. None if there is no sample.

    >>> macro_f1_of_counts(np.array([[[2, 1], [1, 1]], [[1, 0], [2, 1]]]))  # labels 0, 1, 1, decisions 0, 0, 1
    0.6666666666666666
    """
    counts = counts.astype(np.float64)
    samples, decided = counts[..., :-1].sum(axis=2), counts[..., -1]
    if len(counts) == 1:
        decided = np.concatenate((decided, (samples - decided)[:, ::-1]))
        samples = np.concatenate((samples, samples[:, ::-1]))
    total = samples[:, 1] + decided.sum(axis=1)
    return (
        float((2 * decided[:, 1][total > 0] / total[total > 0]).mean())
        if (total > 0).any()
        else None
    )


def bounded_sum(
    counts: Mapping[str, np.ndarray], sites: Mapping[str, str], share: float
) -> np.ndarray:
    """The sum of participants' counts, in which no site has more than its share of the samples; 1 for no bound."""
    of_site: dict[str, np.ndarray] = {}
    for name, histogram in counts.items():
        of_site[sites[name]] = (
            of_site.get(sites[name], np.zeros(histogram.shape)) + histogram
        )
    samples = {site: float(total[0, :, :-1].sum()) for site, total in of_site.items()}
    allowed = capped(samples, share)
    return np.sum(
        [total * (allowed[site] / samples[site]) for site, total in of_site.items()],
        axis=0,
    )


def with_pooled(
    measured: RoundMetrics,
    counts: Mapping[str, np.ndarray | None],
    participants: Mapping[str, Participant],
    assignment: Mapping[str, int],
    share: float | None = None,
) -> RoundMetrics:
    """A round with the measures over all participants and in each cluster.

    Counts are None for a participant that sent none. ``share`` is the largest one of a site's samples; None for no
    bound.
    """
    sent = {
        name: histogram for name, histogram in counts.items() if histogram is not None
    }
    sites = {name: p.site for name, p in participants.items()}
    record = {
        **measured.record,
        "clusters": {
            k: dict(values) for k, values in measured.record["clusters"].items()
        },
    }
    for where, group in groups_of(sent, assignment, everyone="").items():
        if group:
            total = bounded_sum(group, sites, share or 1.0)
            values = {
                POOLED: auroc_of_counts(total[..., :-1]),
                POOLED_F1: macro_f1_of_counts(total),
            }
            target = record["clusters"][where] if where else record
            target.update(
                {name: value for name, value in values.items() if value is not None}
            )
    fewer = not_by_all(
        measured.participants,
        {name: len(sent) for name in (POOLED, POOLED_F1) if name in record},
    )
    record |= {"defined": {**record.get("defined", {}), **fewer}} if fewer else {}
    return replace(measured, record=record)


def groups_of(
    sent: Mapping[str, np.ndarray], assignment: Mapping[str, int], everyone: str
) -> dict[str, dict[str, np.ndarray]]:
    """What participants sent, under ``everyone`` in all, and of each cluster under ``cluster-0``, ..."""
    groups = {everyone: dict(sent)} | {
        f"cluster-{k}": {} for k in sorted({*assignment.values()})
    }
    for name in (name for name in sent if name in assignment):
        groups[f"cluster-{assignment[name]}"][name] = sent[name]
    return groups


def cells(
    samples: np.ndarray, fewest: int, mass: np.ndarray | None = None, least: float = 0.0
) -> np.ndarray:
    """Where cells of neighbouring bins begin, each with enough samples and mass; the rest joins the last cell.

    >>> cells(np.array([0, 2, 1, 0, 4, 1]), 3).tolist(), cells(np.array([0, 2, 0, 1]), 1).tolist()
    ([0, 3], [0, 2])
    """
    starts, begin, held, part = list[int](), 0, 0, 0.0
    for end, (count, share) in enumerate(
        zip(samples.tolist(), samples if mass is None else mass), 1
    ):
        held, part = held + count, part + share
        if held >= fewest and part >= least:
            starts.append(begin)
            begin, held, part = end, 0, 0.0
    return np.array(starts or [0])


def _distinct(points: np.ndarray) -> np.ndarray:
    return points[np.append(True, (np.diff(points, axis=0) != 0).any(axis=1))]


def roc(counts: np.ndarray) -> np.ndarray:
    """The ROC curve of one class, ``(points, 2)``: false and true positive rates, from (0, 0) to (1, 1).

    Counts are ``(2, bins)``: samples without the class and with it; both have some. In a bin, the curve is straight.

    >>> roc(np.array([[3, 1, 0], [0, 1, 3]])).tolist()
    [[0.0, 0.0], [0.0, 0.75], [0.25, 1.0], [1.0, 1.0]]
    """
    rates = counts[:, ::-1].cumsum(axis=1) / counts.sum(axis=1, keepdims=True)
    return _distinct(np.concatenate([np.zeros((1, 2)), rates.T]))


def mean_roc(curves: list[np.ndarray]) -> np.ndarray:
    """The mean of curves over their true positive rates at each false positive rate, ``(points, 2)``.

    If curves are vertical somewhere, the mean is too, so that the area below it is the mean of their areas. Curves that
    bend at more than `RATES` rates have nearly that area.

    >>> mean_roc([np.array([[0, 0], [0, 1.0], [1, 1]]), np.array([[0, 0], [1.0, 1]])]).tolist()
    [[0.0, 0.0], [0.0, 0.5], [1.0, 1.0]]
    """
    grid = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    if len(grid) > RATES:
        grid = np.linspace(0, 1, RATES)
    ends = np.zeros((2, len(grid)))
    for curve in curves:
        ends += _ends(curve, grid) / len(curves)
    return _distinct(np.column_stack([grid.repeat(2), ends.T.flatten()]))


def _ends(curve: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The lowest and the highest true positive rate at each false positive rate of a grid, ``(2, grid)``."""
    x, y = np.ascontiguousarray(curve[:, 0]), curve[:, 1]
    first = np.minimum(
        np.searchsorted(x, grid, "left"), len(x) - 1
    )  # weighted counts may end just below 1
    last = np.searchsorted(x, grid, "right") - 1
    between = np.interp(grid, x, y)
    bends = x[first] == grid
    return np.stack(
        [np.where(bends, y[first], between), np.where(bends, y[last], between)]
    )


def area(curve: np.ndarray) -> float:
    return float((np.diff(curve[:, 0]) * (curve[1:, 1] + curve[:-1, 1]) / 2).sum())


def thinned_roc(curve: np.ndarray) -> np.ndarray:
    """At most `POINTS` points of a curve, evenly spaced in the sum of both rates, which grows from 0 to 2."""
    if len(curve) <= POINTS:
        return curve
    way = np.linspace(0, 2, POINTS)
    return np.column_stack(
        [np.interp(way, curve.sum(axis=1), curve[:, i]) for i in (0, 1)]
    )


def reliability(
    counts: np.ndarray,
    samples: np.ndarray,
    probabilities: np.ndarray,
    fewest: int = FEWEST,
) -> list[tuple[float, float, int]]:
    """Of each group of scores the mean predicted probability, the share with the class, and its samples.

    Groups have equal parts of the samples without the class and of those with it, half each. Groups of equal parts of
    all samples would nearly all lie where a rare class is not.

    >>> reliability(np.array([[3, 1, 0], [0, 1, 3]]), np.array([3, 2, 3]), np.array([0.125, 0.5, 0.875]), fewest=3)
    [(0.125, 0.0, 3), (0.725, 0.8, 5)]

    Args:
        counts: ``(2, bins)``, which may be weighted: samples without the class and with it; both have some.
        samples: of each bin, ``(bins,)``, not weighted.
        probabilities: that bins stand for, ``(bins,)``.
        fewest: samples of a group.
    """
    mass = (counts / counts.sum(axis=1, keepdims=True)).sum(axis=0)
    at, total = cells(samples, fewest, mass, 2 / GROUPS), counts.sum(axis=0)
    weights = np.add.reduceat(total, at)
    predicted = np.add.reduceat(total * probabilities, at) / weights
    having = np.add.reduceat(counts[1], at) / weights
    sizes = np.add.reduceat(samples, at)
    return [
        (float(p), float(share), int(n))
        for p, share, n in zip(predicted, having, sizes)
    ]
