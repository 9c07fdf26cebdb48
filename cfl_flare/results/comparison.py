# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Whether one way to train is better than another: over all hospitals, and at each of them.

The interval over all hospitals is a two-stage bootstrap (Davison and Hinkley 1997, sec. 3.8): hospitals are drawn with
replacement, and for each of them a draw of its own patients. What several tests claim together is corrected by Holm
(1979). Both ways are measured on the same draws of the same patients, so that what they have in common cancels out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from cfl_flare.core.config import require
from cfl_flare.core.seeds import stream
from cfl_flare.results.bootstrap import PERCENTILES, interval

# Draws of hospitals: with so many, an end of an interval moves by some hundredths of its width.
TIMES = 10_000
# With fewer patients, draws of them say too little of others to call a difference.
FEWEST_TESTED = 20
# No hospital has more; a measure may have a spread that asks for any number.
MOST_TESTED = 10**9
ALPHA = 0.05
GAINS, LOSES, CHANCE, UNKNOWN = "gains", "loses", "within chance", "cannot tell"


@dataclass(frozen=True)
class AtHospital:
    """What one hospital measured of one way to train.

    Attributes:
        samples: its training samples, or as many of them as count: its weight in a mean.
        tested: samples that were measured.
        draw: two ways to train have it in common if they were measured on the same draws.
        value: on the split itself.
        draws: ``(draws,)`` float64, on draws of the split; NaN where the measure is not defined.
    """

    samples: float
    tested: int
    draw: int
    value: float
    draws: np.ndarray


Measured = Mapping[str, AtHospital]


@dataclass(frozen=True)
class Difference:
    """By how much one way to train is better than another, over the hospitals that measured both.

    Attributes:
        one: the first one's mean, weighted by training samples.
        other: the other's.
        hospitals: how many they are of.
        gain: above 0, the first is better.
        low: where the 95 % interval begins.
        high: where it ends.
        p: of no difference, two-sided, not corrected.
    """

    one: float
    other: float
    hospitals: int
    gain: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Gain:
    """What one hospital has of a way to train, against another.

    Attributes:
        gain: above 0, it has more; None if the measure is not defined there.
        low: where the 95 % interval of its patients begins.
        high: where it ends.
        p: of no difference, corrected for the number of hospitals.
        says: ``gains``, ``loses``, ``within chance`` or ``cannot tell``.
        needed: test samples with which it could be told, about; None where it can.
    """

    gain: float | None
    low: float | None
    high: float | None
    p: float | None
    says: str
    needed: int | None = None


def mean_of(found: Measured) -> float:
    """The mean over hospitals, weighted by training samples."""
    return float(np.average([one.value for one in found.values()], weights=[one.samples for one in found.values()]))


def shared_by_all(found: Mapping[str, Measured]) -> dict[str, Measured]:
    """What the hospitals measured that measured all of some ways to train: their means can be ranked.

    As it is if there is no such hospital.
    """
    names = set.intersection(*(set(measured) for measured in found.values())) if found else set()
    if not names:
        return dict(found)
    return {way: {name: one for name, one in measured.items() if name in names} for way, measured in found.items()}


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979): the least times n, the next times n - 1, ..., never decreasing.

    >>> holm([0.02, 0.01, 0.5])
    [0.04, 0.03, 0.5]
    """
    order = np.argsort(p, kind="stable")
    steps = np.arange(len(p), 0, -1) * np.asarray(p, np.float64)[order]
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(value) for value in corrected]


def two_stage(apart: np.ndarray, weights: np.ndarray, times: int, rng: np.random.Generator) -> np.ndarray:
    """Means over hospitals that are drawn anew, each with a draw of its patients.

    Args:
        apart: ``(hospitals, draws)`` differences on draws of each hospital's patients.
        weights: ``(hospitals,)``.
        times: how often.
        rng: where the draws come from.

    Returns:
        ``(times,)``.
    """
    hospitals, draws = apart.shape
    means = np.empty(times)
    step = max(1, 2**20 // hospitals)
    for begin in range(0, times, step):
        shape = min(step, times - begin), hospitals
        chosen = rng.integers(hospitals, size=shape)
        drawn = apart[chosen, rng.integers(draws, size=shape)]
        means[begin : begin + step] = np.average(drawn, axis=1, weights=weights[chosen])
    return means


def difference(one: Measured, other: Measured, mode: str = "max", seed: int = 0) -> Difference:
    """By how much the first of two ways to train is better over all hospitals that measured both.

    Args:
        one: the first.
        other: what it is compared with.
        mode: which end of the metric is best, ``max`` or ``min``.
        seed: of the draws of hospitals.

    Raises:
        ConfigError: no hospital measured both, or they were measured on other draws.
    """
    rows = _apart(one, other, mode)
    names = [name for name, (_, drawn) in rows.items() if drawn is not None]
    require(bool(names), "study: no hospital has the metric on half of its draws; take another key_metric")
    apart = np.stack([drawn for name in names if (drawn := rows[name][1]) is not None])
    weights = np.array([one[name].samples for name in names], np.float64)
    gain = float(np.average([rows[name][0] for name in names], weights=weights))
    means = two_stage(apart, weights, TIMES, stream(seed, "two stages"))
    low, high = np.percentile(means, PERCENTILES).tolist()
    beyond = min(int((means <= 0).sum()), int((means >= 0).sum()))
    mine, its = (mean_of({name: found[name] for name in names}) for found in (one, other))
    return Difference(mine, its, len(names), gain, low, high, min(1.0, 2 * (1 + beyond) / (1 + TIMES)))


def gains(one: Measured, other: Measured, mode: str = "max", margin: float = 0.05) -> dict[str, Gain]:
    """What each hospital has of the first of two ways to train, corrected for their number.

    A difference whose interval holds 0 is within chance if the interval is short enough, half of it at most ``margin``,
    and else cannot be told; nor can any of fewer than `FEWEST_TESTED` patients.

    Args:
        one: the first.
        other: what it is compared with.
        mode: which end of the metric is best, ``max`` or ``min``.
        margin: the difference that matters, in the metric's unit.
    """
    rows = _apart(one, other, mode)
    known = {name: row for name, row in rows.items() if row[1] is not None and one[name].tested >= FEWEST_TESTED}
    p = dict(zip(known, holm([_p(gain, drawn) for gain, drawn in known.values() if drawn is not None])))
    return {name: _said(*row, one[name].tested, p.get(name), margin) for name, row in rows.items()}


def _said(gain: float, drawn: np.ndarray | None, tested: int, p: float | None, margin: float) -> Gain:
    ends = None if drawn is None else interval(drawn)
    if ends is None:
        return Gain(None, None, None, None, UNKNOWN, FEWEST_TESTED if tested < FEWEST_TESTED else None)
    low, high = ends
    if p is not None and p < ALPHA:
        return Gain(gain, low, high, p, GAINS if gain > 0 else LOSES)
    half = (high - low) / 2
    if p is not None and half <= margin:
        return Gain(gain, low, high, p, CHANCE)
    needed = min(tested * (half / margin) ** 2, MOST_TESTED)
    return Gain(gain, low, high, p, UNKNOWN, max(FEWEST_TESTED, int(np.ceil(needed))))


def _apart(one: Measured, other: Measured, mode: str) -> dict[str, tuple[float, np.ndarray | None]]:
    """By hospital, by how much the first is better, and on draws: what is not defined is made up of others.

    Raises:
        ConfigError: a hospital measured them on other draws.
    """
    sign, found = (1.0 if mode == "max" else -1.0), dict[str, tuple[float, np.ndarray | None]]()
    for name, mine in one.items():
        if name not in other:
            continue
        its = other[name]
        same = (mine.draw, mine.tested, mine.draws.shape) == (its.draw, its.tested, its.draws.shape)
        require(same, f"study: {name} measured two candidates on other draws; start it again in a new folder")
        drawn = sign * (mine.draws - its.draws)
        gone = np.isnan(drawn)
        if 2 * gone.sum() > len(drawn) or not len(drawn):
            found[name] = sign * (mine.value - its.value), None
            continue
        drawn[gone] = np.resize(drawn[~gone], gone.sum())
        found[name] = sign * (mine.value - its.value), drawn
    return found


def _p(gain: float, drawn: np.ndarray) -> float:
    """Of no difference, by the normal distribution with the draws' standard deviation: draws end where Holm begins."""
    spread = float(drawn.std(ddof=1)) if len(drawn) > 1 else 0.0
    if spread == 0.0:
        return float(gain == 0.0)
    return float(2 * norm.sf(abs(gain) / spread))
