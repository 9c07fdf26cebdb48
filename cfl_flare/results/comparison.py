# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Whether one way to train is better than another: over all hospitals, and at each of them.

The interval over all hospitals is a two-stage bootstrap (Davison and Hinkley 1997, sec. 3.8): hospitals are drawn with
replacement, and for each of them a draw of its own patients. Both ways are measured on the same draws of the same
patients, so that what they have in common cancels out.

The interval that is shown decides: a difference is clear if its interval does not hold 0, and by nothing else. Over all
hospitals it is a 95 % one. Those of single hospitals hold together with 95 % (Bonferroni; Dunn 1961): each of m has the
level 1 - 0.05 / m.

No hospital counts without a bound. A share is in 0..1. Of any other measure, a hospital's number counts as at most
`REACH` times the median deviation away from the median, as in the means by which a run decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.seeds import stream
from cfl_flare.core.shares import reached
from cfl_flare.results.bootstrap import PERCENTILES
from cfl_flare.results.key_metric import Metric, is_share

# Draws of hospitals: with so many, an end of an interval moves by some hundredths of its width.
TIMES = 10_000
# While each hospital is left out in turn, so many hospitals are drawn in all.
LEFT_OUT = 2**18
# With fewer patients, draws of them say too little of others to call a difference.
FEWEST_TESTED = 20
# No hospital has more; a measure may have a spread that asks for any number.
MOST_TESTED = 10**9
ALPHA = 0.05
# The difference that matters, unless a study says another: of a share itself, and of other measures a share of them.
MARGIN = 0.05
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
        classes: how many of the samples are of each class; empty where that is not known, or there are no classes.
    """

    samples: float
    tested: int
    draw: int
    value: float
    draws: np.ndarray
    classes: tuple[int, ...] = ()


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
    """

    one: float
    other: float
    hospitals: int
    gain: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval does not hold 0."""
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Gain:
    """What one hospital has of a way to train, against another.

    Attributes:
        gain: above 0, it has more; None if the measure is not defined there.
        low: where the interval of its patients begins, which holds with the others' of the study; None for too few.
        high: where it ends.
        says: ``gains``, ``loses``, ``within chance`` or ``cannot tell``.
        needed: test samples with which a gain of this size could be told, about; None where none would do.
    """

    gain: float | None
    low: float | None
    high: float | None
    says: str
    needed: int | None = None


def mean_of(measured: Measured, mode: str = "max") -> float:
    """The mean over hospitals, weighted by training samples; see the module on what a hospital counts at most."""
    values = np.array([at.value for at in measured.values()])
    values = values if _shares(mode, values) else reached(values, values)
    return float(np.average(values, weights=[at.samples for at in measured.values()]))


def without(measured: Measured, hospital: str) -> Measured:
    """What all other hospitals measured."""
    return {name: at for name, at in measured.items() if name != hospital}


def _shares(mode: str, *values: np.ndarray) -> bool:
    """Whether these are shares: the largest is best, and all are in 0..1."""
    return mode == "max" and all(np.nanmin(own) >= 0 and np.nanmax(own) <= 1 for own in values)


def shared_by_all(found: Mapping[str, Measured]) -> dict[str, Measured]:
    """What was measured by those hospitals that measured every way to train: their means can be ranked.

    If there is no such hospital, all that was measured.
    """
    names = set.intersection(*(set(measured) for measured in found.values())) if found else set()
    if not names:
        return dict(found)
    return {way: {name: one for name, one in measured.items() if name in names} for way, measured in found.items()}


def majority(found: Measured) -> Measured | None:
    """What naming the most frequent class everywhere measures as accuracy; None where classes are not known."""
    known = {name: own for name, own in found.items() if len(own.classes) > 1 and any(own.classes)}
    if not known:
        return None
    shares = np.array([np.array(own.classes) / sum(own.classes) for own in known.values()])
    named = int(np.average(shares, axis=0, weights=[own.samples for own in known.values()]).argmax())
    return {
        name: replace(own, value=float(share[named]), draws=np.full_like(own.draws, share[named]))
        for (name, own), share in zip(known.items(), shares)
    }


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


def difference(one: Measured, other: Measured, mode: str = "max", seed: int = 0, times: int = TIMES) -> Difference:
    """By how much the first of two ways to train is better over all hospitals that measured both.

    Args:
        one: the first.
        other: what it is compared with.
        mode: which end of the metric is best, ``max`` or ``min``.
        seed: of the draws of hospitals.
        times: how often hospitals are drawn.

    Raises:
        ConfigError: no hospital measured both on the same draws.
    """
    rows = _apart(one, other, mode)
    names = [name for name, (_, drawn) in rows.items() if drawn is not None]
    require(bool(names), "study: no hospital has the metric on half of its draws; take another key_metric")
    draws = [drawn for name in names if (drawn := rows[name][1]) is not None]
    most = max(map(len, draws))  # a hospital that sent fewer has each of its draws more often
    apart = np.stack([np.resize(drawn, most) for drawn in draws])
    weights = np.array([one[name].samples for name in names], np.float64)
    points = np.array([rows[name][0] for name in names])
    pair = [{name: measured[name] for name in names} for measured in (one, other)]
    if not all(_shares(mode, np.array([at.value for at in measured.values()])) for measured in pair):
        points, apart = reached(points, apart), reached(apart, apart)
    gain = float(np.average(points, weights=weights))
    means = two_stage(apart, weights, times, stream(seed, "two stages"))
    low, high = np.percentile(means, PERCENTILES).tolist()
    mine, its = (mean_of(measured, mode) for measured in pair)
    return Difference(mine, its, len(names), gain, low, high)


def clear_without_each(one: Measured, other: Measured, mode: str, seed: int) -> bool:
    """Whether the first is clearly better whichever hospital of several is left out."""
    names = [name for name in one if name in other] if len(one) > 1 else []
    times = left_out_times(len(names))
    try:
        return all(difference(without(one, name), other, mode, seed, times).low > 0 for name in names)
    except ConfigError:  # no other hospital measured both
        return False


def left_out_times(hospitals: int) -> int:
    """Draws of so many hospitals while each is left out in turn."""
    return max(1000, min(TIMES, LEFT_OUT // max(1, hospitals)))


def usual_margin(metric: str, level: float) -> float:
    """The difference that matters to one hospital: `MARGIN` of a share, and of any other measure that part of it.

    Args:
        metric: the measure's name.
        level: what it is about, such as one model's mean.

    >>> usual_margin("auroc", 0.8), usual_margin("loss", 0.2)
    (0.05, 0.01)
    """
    return MARGIN if is_share(Metric(metric).of_participants.name, 0, 1) else MARGIN * abs(level)


def gains(one: Measured, other: Measured, mode: str = "max", margin: float = MARGIN) -> dict[str, Gain]:
    """What each hospital has of the first of two ways to train.

    Its interval is normal, with the draws' deviation: draws end where the level of many hospitals begins. If it does
    not hold 0, the hospital gains or loses. If it does, and lies within the margin to both sides, that is within
    chance. Else it cannot be told. Fewer than `FEWEST_TESTED` patients have no interval.

    Args:
        one: the first.
        other: what it is compared with.
        mode: which end of the metric is best, ``max`` or ``min``.
        margin: the difference that matters, in the metric's unit.
    """
    rows = _apart(one, other, mode)
    told = sum(drawn is not None and one[name].tested >= FEWEST_TESTED for name, (_, drawn) in rows.items())
    reach = float(norm.isf(ALPHA / 2 / max(1, told)))
    return {name: _said(*row, one[name].tested, reach, margin) for name, row in rows.items()}


def _said(gain: float, drawn: np.ndarray | None, tested: int, reach: float, margin: float) -> Gain:
    """What can be said of one hospital.

    Args:
        gain: by how much it is better off.
        drawn: the same on draws; None if it is not defined on half of them.
        tested: its samples.
        reach: how many deviations its interval reaches to either side.
        margin: the difference that matters.
    """
    if drawn is None:
        return Gain(None, None, None, UNKNOWN, FEWEST_TESTED if tested < FEWEST_TESTED else None)
    half = reach * float(drawn.std(ddof=1)) if len(drawn) > 1 else 0.0
    times = None if gain == 0 else min(half / abs(gain), MOST_TESTED)
    needed = None if times is None else int(min(np.ceil(tested * times**2), MOST_TESTED))
    if tested < FEWEST_TESTED:
        return Gain(gain, None, None, UNKNOWN, max(FEWEST_TESTED, needed or 0))
    low, high = gain - half, gain + half
    if low > 0 or high < 0:
        return Gain(gain, low, high, GAINS if low > 0 else LOSES)
    if -margin <= low and high <= margin:
        return Gain(gain, low, high, CHANCE)
    return Gain(gain, low, high, UNKNOWN, None if needed is None else max(tested + 1, needed))


def _apart(one: Measured, other: Measured, mode: str) -> dict[str, tuple[float, np.ndarray | None]]:
    """By hospital, by how much the first is better, and on draws: what is not defined is made up of others.

    A hospital that measured the two on other draws is left out.
    """
    sign, found = (1.0 if mode == "max" else -1.0), dict[str, tuple[float, np.ndarray | None]]()
    for name, mine in one.items():
        if name not in other:
            continue
        its = other[name]
        if (mine.draw, mine.tested, mine.draws.shape) != (its.draw, its.tested, its.draws.shape):
            continue
        drawn = sign * (mine.draws - its.draws)
        gone = np.isnan(drawn)
        if 2 * gone.sum() > len(drawn) or not len(drawn):
            found[name] = sign * (mine.value - its.value), None
            continue
        drawn[gone] = np.resize(drawn[~gone], gone.sum())
        found[name] = sign * (mine.value - its.value), drawn
    return found
