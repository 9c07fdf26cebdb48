# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Whether one way to train is better than another: over all hospitals, and at each of them.

Hospitals are the sampling unit. Each hospital has one paired difference: both ways to train were measured on the same
patients, so their common part cancels out. The gain over all hospitals is the mean of these differences, weighted by
training samples. Its 95 % interval is a t interval with the spread of the hospitals' differences. That spread holds the
noise of the patients already. Because a few large hospitals may have most of the weight, the degrees of freedom count
effective hospitals (Kish 1965, sec. 11.2): as many equal hospitals as would give a mean of this precision.

The interval that is shown decides: a difference is clear if its interval does not hold 0. The intervals of single
hospitals hold together with 95 % (Bonferroni; Dunn 1961): each of m has the level 1 - 0.05 / m.

One hospital cannot move a gain without a bound: `bound_extremes`. Means are never bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri, stdtrit

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.shares import bound_extremes
from cfl_flare.results.bootstrap import NORMAL, filled
from cfl_flare.results.metrics import Metric, is_share

# With fewer patients, draws of them say too little of others to call a difference.
FEWEST_TESTED = 20
# No hospital gets many times its test samples, so a larger number that would show a difference is no help.
MOST_TIMES = 20
ALPHA = 0.05
# An end of an interval is 0 if it is smaller than this fraction of the measure: it is a rounding error.
ROUNDING = 1e-9
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
        classes: how many of the samples are of each class; empty if that is not known, or there are no classes.
        events: how many of the samples have an event, under survival; None if that is not known.
    """

    samples: float
    tested: int
    draw: int
    value: float
    draws: np.ndarray
    classes: tuple[int, ...] = ()
    events: int | None = None


Measured = Mapping[str, AtHospital]


@dataclass(frozen=True)
class Comparison:
    """By how much one way to train is better than a reference, over the hospitals that measured both.

    Attributes:
        mean: of the way to train, weighted by training samples.
        reference: the mean of the reference.
        hospitals: how many measured both.
        gain: above 0 if the way to train is better. It is the difference of the means unless a hospital was bounded.
        low: the lower end of the gain's 95 % interval.
        high: the upper end.
        error: the gain's standard error.
        bounded: the hospitals whose difference counts as less than they measured.
    """

    mean: float
    reference: float
    hospitals: int
    gain: float
    low: float
    high: float
    error: float = 0.0
    bounded: tuple[str, ...] = ()

    @property
    def clear(self) -> bool:
        """Whether the interval does not hold 0."""
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Gain:
    """What one hospital gains by a way to train, against a reference.

    Attributes:
        gain: above 0, it has more; None if the measure is not defined there.
        low: where the interval of its patients begins, which holds with the others' of the study; None for too few.
        high: where it ends.
        says: ``gains``, ``loses``, ``within chance`` or ``cannot tell``.
        needed: about how many test samples would show a gain of this size; None if no number within reach would.
    """

    gain: float | None
    low: float | None
    high: float | None
    says: str
    needed: int | None = None


@dataclass(frozen=True)
class Pair:
    """By how much one hospital is better off than with the reference.

    Attributes:
        gain: on the split itself, above 0 if it is better off.
        draws: ``(draws,)`` float64, on draws of the split; None if half of them do not define the measure.
    """

    gain: float
    draws: np.ndarray | None


def mean_of(measured: Measured) -> float:
    """The mean over hospitals, weighted by training samples."""
    values = [hospital.value for hospital in measured.values()]
    weights = [hospital.samples for hospital in measured.values()]
    return float(np.average(values, weights=weights))


def without(measured: Measured, hospital: str) -> Measured:
    return {name: at for name, at in measured.items() if name != hospital}


def shared_by_all(ways: Mapping[str, Measured]) -> dict[str, Measured]:
    """What was measured by those hospitals that measured every way to train on the same draws of their samples.

    If there is no such hospital, all that was measured.
    """
    if not ways:
        return {}
    first = next(iter(ways.values()))
    names = [
        name
        for name, hospital in first.items()
        if all(
            name in measured and _share_draws(hospital, measured[name])
            for measured in ways.values()
        )
    ]
    if not names:
        return dict(ways)
    return {
        way: {name: measured[name] for name in names} for way, measured in ways.items()
    }


def majority(measured: Measured) -> Measured | None:
    """What naming the most frequent class everywhere measures as accuracy; None if classes are not known."""
    known = {
        name: at
        for name, at in measured.items()
        if len(at.classes) > 1 and any(at.classes)
    }
    if not known:
        return None
    shares = np.array([np.array(at.classes) / sum(at.classes) for at in known.values()])
    named = int(
        np.average(
            shares, axis=0, weights=[at.samples for at in known.values()]
        ).argmax()
    )
    return {
        name: replace(
            at, value=float(share[named]), draws=np.full_like(at.draws, share[named])
        )
        for (name, at), share in zip(known.items(), shares)
    }


def difference(
    measured: Measured, reference: Measured, mode: str = "max"
) -> Comparison:
    """Compare a way to train with a reference over all hospitals that measured both.

    Args:
        measured: the way to train, by hospital.
        reference: the other way to train, by hospital.
        mode: which end of the metric is best, ``max`` or ``min``.

    Raises:
        ConfigError: no hospital measured both on the same samples.
    """
    pairs = pair_hospitals(measured, reference, mode)
    require(
        bool(pairs),
        "study: no hospital measured the metric of both candidates; take another key_metric",
    )
    names = list(pairs)
    weights = np.array([measured[name].samples for name in names], np.float64)
    shares = weights / weights.sum()
    gains = np.array([pair.gain for pair in pairs.values()])
    counted = bound_extremes(gains)
    bounded = [name for name, changed in zip(names, counted != gains) if changed]

    gain = float(shares @ counted)
    error, quantile = _error_of_mean(counted, shares, [*pairs.values()])
    half = quantile * error
    mean = mean_of({name: measured[name] for name in names})
    other = mean_of({name: reference[name] for name in names})
    smallest = ROUNDING * max(abs(mean), abs(other))
    low, high = (
        0.0 if abs(end) <= smallest else end for end in (gain - half, gain + half)
    )
    return Comparison(mean, other, len(names), gain, low, high, error, tuple(bounded))


def _error_of_mean(
    gains: np.ndarray, shares: np.ndarray, pairs: Sequence[Pair]
) -> tuple[float, float]:
    """The standard error of a weighted mean over hospitals, and the quantile for its 95 % interval.

    Args:
        gains: ``(hospitals,)``, each hospital's difference.
        shares: ``(hospitals,)``, their weights, which sum to 1.
        pairs: the same hospitals with their draws: if there is only one, its patients are the sampling unit.
    """
    count = len(gains)
    if count == 1:
        return _deviation(pairs[0].draws), NORMAL
    residuals = gains - shares @ gains
    variance = count / (count - 1) * float(shares**2 @ residuals**2)
    effective = 1 / float(shares @ shares)
    return math.sqrt(variance), float(stdtrit(max(1.0, effective - 1), 1 - ALPHA / 2))


def _deviation(draws: np.ndarray | None) -> float:
    """The standard deviation of a hospital's draws; 0 without draws."""
    if draws is None or len(draws) < 2:
        return 0.0
    return float(draws.std(ddof=1))


def score_candidates(ways: Mapping[str, Measured], mode: str) -> dict[str, float]:
    """Score candidates for a ranking: by how much each is better than the first.

    The scores are means of paired differences over the hospitals that measured all candidates, and no hospital moves
    them without a bound.

    Args:
        ways: what was measured of each candidate.
        mode: which end of the metric is best.
    """
    shared = shared_by_all(ways)
    first = next(iter(shared.values()), {})
    return {
        name: difference(measured, first, mode).gain
        for name, measured in shared.items()
    }


def clear_without_each(measured: Measured, reference: Measured, mode: str) -> bool:
    """Whether a way to train is clearly better than a reference whichever hospital of several is left out."""
    names = [name for name in measured if name in reference]
    if len(measured) < 2:
        return True
    try:
        return all(
            difference(without(measured, name), without(reference, name), mode).low > 0
            for name in names
        )
    except ConfigError:  # no other hospital measured both
        return False


def usual_margin(metric: str, level: float) -> float:
    """The difference that matters to one hospital: `MARGIN` of a share, and of another measure that part of its level.

    >>> usual_margin("auroc", 0.8), usual_margin("loss", 0.2)
    (0.05, 0.01)
    """
    if is_share(Metric(metric).of_participants.name, 0, 1):
        return MARGIN
    return MARGIN * abs(level)


def gains(
    measured: Measured, reference: Measured, mode: str = "max", margin: float = MARGIN
) -> dict[str, Gain]:
    """What each hospital gains by a way to train, against a reference. Arguments are as for `difference`.

    Its interval is normal, with the draws' deviation: draws end where the level of many hospitals begins. If it does
    not hold 0, the hospital gains or loses. If it does, and lies within the margin to both sides, that is within
    chance. Else it cannot be told. Fewer than `FEWEST_TESTED` patients have no interval.
    """
    pairs = pair_hospitals(measured, reference, mode)
    judged = sum(
        pair.draws is not None and measured[name].tested >= FEWEST_TESTED
        for name, pair in pairs.items()
    )
    reach = float(-ndtri(ALPHA / 2 / max(1, judged)))
    return {
        name: _judge_hospital(pair, measured[name], reach, margin)
        for name, pair in pairs.items()
    }


def _judge_hospital(
    pair: Pair, hospital: AtHospital, reach: float, margin: float
) -> Gain:
    """What can be said of a hospital's gain. An interval reaches ``reach`` deviations to either side."""
    gain, tested = pair.gain, hospital.tested
    if pair.draws is None:
        needed = FEWEST_TESTED if tested < FEWEST_TESTED else None
        return Gain(None, None, None, UNKNOWN, needed)
    half = reach * _deviation(pair.draws)
    needed = _count_needed(gain, half, tested)
    if tested < FEWEST_TESTED:
        return Gain(gain, None, None, UNKNOWN, needed)
    smallest = ROUNDING * abs(hospital.value)
    low, high = (
        0.0 if abs(end) <= smallest else end for end in (gain - half, gain + half)
    )
    if low > 0:
        return Gain(gain, low, high, GAINS)
    if high < 0:
        return Gain(gain, low, high, LOSES)
    if -margin <= low and high <= margin:
        return Gain(gain, low, high, CHANCE)
    return Gain(gain, low, high, UNKNOWN, needed)


def _count_needed(gain: float, half: float, tested: int) -> int | None:
    """About how many test samples would show this gain; None if no number that a hospital can reach would.

    Args:
        gain: of the hospital.
        half: half of its interval's width with the samples that it has.
        tested: these samples.
    """
    if half == 0:
        return FEWEST_TESTED if tested < FEWEST_TESTED else None
    if abs(gain) < half / math.sqrt(MOST_TIMES):
        return None
    needed = math.ceil(tested * (half / gain) ** 2)
    return max(FEWEST_TESTED, tested + 1, needed)


def pair_hospitals(
    measured: Measured, reference: Measured, mode: str
) -> dict[str, Pair]:
    """Pair what hospitals measured of two ways to train.

    A hospital that measured the two on other draws of its samples is left out.

    Args:
        measured: the way to train, by hospital.
        reference: the other way to train, by hospital.
        mode: which end of the metric is best.
    """
    sign = 1.0 if mode == "max" else -1.0
    pairs = {}
    for name, hospital in measured.items():
        other = reference.get(name)
        if other is None or not _share_draws(hospital, other):
            continue
        draws = filled(sign * (hospital.draws - other.draws))
        pairs[name] = Pair(sign * (hospital.value - other.value), draws)
    return pairs


def _share_draws(hospital: AtHospital, other: AtHospital) -> bool:
    """Whether a hospital measured two ways to train on the same draws of the same samples."""
    return (hospital.draw, hospital.tested, hospital.draws.shape) == (
        other.draw,
        other.tested,
        other.draws.shape,
    )
