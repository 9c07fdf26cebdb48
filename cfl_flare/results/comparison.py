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
`REACH` median deviations away from the median. So it is in the means by which a run decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.seeds import stream
from cfl_flare.core.shares import reached
from cfl_flare.results.bootstrap import PERCENTILES, filled
from cfl_flare.results.metrics import Metric, is_share

# Draws of hospitals: with this number, an end of an interval moves by some hundredths of its width.
TIMES = 10_000
# Hospitals that are drawn in all while each hospital is left out in turn.
LEFT_OUT = 2**18
# With fewer patients, draws of them say too little of others to call a difference.
FEWEST_TESTED = 20
# No hospital has more; a measure may have a spread that needs any number.
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
        classes: how many of the samples are of each class; empty if that is not known, or there are no classes.
    """

    samples: float
    tested: int
    draw: int
    value: float
    draws: np.ndarray
    classes: tuple[int, ...] = ()


Measured = Mapping[str, AtHospital]


@dataclass(frozen=True)
class Comparison:
    """By how much one way to train is better than a reference, over the hospitals that measured both.

    ``gain`` is above 0 if it is better; ``low`` and ``high`` are the ends of its 95 % interval. Means are weighted by
    training samples.
    """

    mean: float
    reference: float
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
    """What one hospital gains by a way to train, against a reference.

    Attributes:
        gain: above 0, it has more; None if the measure is not defined there.
        low: where the interval of its patients begins, which holds with the others' of the study; None for too few.
        high: where it ends.
        says: ``gains``, ``loses``, ``within chance`` or ``cannot tell``.
        needed: about how many test samples would show a gain of this size; None if no number would.
    """

    gain: float | None
    low: float | None
    high: float | None
    says: str
    needed: int | None = None


def mean_of(measured: Measured, mode: str = "max") -> float:
    """The mean over hospitals, weighted by training samples; see the module on what a hospital counts at most."""
    values = _values(measured)
    values = values if _are_shares(values, mode) else reached(values, values)
    return float(
        np.average(values, weights=[hospital.samples for hospital in measured.values()])
    )


def _values(measured: Measured) -> np.ndarray:
    return np.array([hospital.value for hospital in measured.values()])


def _are_shares(values: np.ndarray, mode: str) -> bool:
    """Whether the largest is best, and all are in 0..1."""
    return mode == "max" and bool(np.nanmin(values) >= 0 and np.nanmax(values) <= 1)


def without(measured: Measured, hospital: str) -> Measured:
    return {name: at for name, at in measured.items() if name != hospital}


def shared_by_all(ways: Mapping[str, Measured]) -> dict[str, Measured]:
    """What was measured by those hospitals that measured every way to train: their means can be ranked.

    If there is no such hospital, all that was measured.
    """
    names = (
        set.intersection(*(set(measured) for measured in ways.values()))
        if ways
        else set()
    )
    if not names:
        return dict(ways)
    return {
        way: {name: at for name, at in measured.items() if name in names}
        for way, measured in ways.items()
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


def two_stage(
    apart: np.ndarray, weights: np.ndarray, times: int, rng: np.random.Generator
) -> np.ndarray:
    """Means ``(times,)`` over hospitals that are drawn anew, each with a draw of its patients.

    ``apart`` are the ``(hospitals, draws)`` differences on draws of each hospital's patients.
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


def difference(
    measured: Measured,
    reference: Measured,
    mode: str = "max",
    seed: int = 0,
    times: int = TIMES,
) -> Comparison:
    """By how much a way to train is better than a reference over all hospitals that measured both.

    Args:
        mode: which end of the metric is best, ``max`` or ``min``.
        seed: of the draws of hospitals.
        times: how often hospitals are drawn.

    Raises:
        ConfigError: no hospital measured both on the same draws.
    """
    pairs = _paired(measured, reference, mode)
    rows = {
        name: (gain, drawn)
        for name, (gain, drawn) in pairs.items()
        if drawn is not None
    }
    require(
        bool(rows),
        "study: no hospital has the metric on half of its draws; take another key_metric",
    )
    most = max(
        len(drawn) for _, drawn in rows.values()
    )  # a hospital that sent fewer has each of its draws more often
    apart = np.stack([np.resize(drawn, most) for _, drawn in rows.values()])
    points = np.array([gain for gain, _ in rows.values()])
    weights = np.array([measured[name].samples for name in rows], np.float64)
    sides = [{name: side[name] for name in rows} for side in (measured, reference)]
    if not all(_are_shares(_values(side), mode) for side in sides):
        points, apart = reached(points, apart), reached(apart, apart)
    means = two_stage(apart, weights, times, stream(seed, "two stages"))
    low, high = np.percentile(means, PERCENTILES).tolist()
    gain = float(np.average(points, weights=weights))
    return Comparison(
        mean_of(sides[0], mode), mean_of(sides[1], mode), len(rows), gain, low, high
    )


def clear_without_each(
    measured: Measured, reference: Measured, mode: str, seed: int
) -> bool:
    """Whether a way to train is clearly better than a reference whichever hospital of several is left out."""
    names = (
        [name for name in measured if name in reference] if len(measured) > 1 else []
    )
    times = left_out_times(len(names))
    sides = ((without(measured, name), without(reference, name)) for name in names)
    try:
        return all(difference(*pair, mode, seed, times).low > 0 for pair in sides)
    except ConfigError:  # no other hospital measured both
        return False


def left_out_times(hospitals: int) -> int:
    """How often hospitals are drawn while each of this number is left out in turn."""
    return max(1000, min(TIMES, LEFT_OUT // max(1, hospitals)))


def usual_margin(metric: str, level: float) -> float:
    """The difference that matters to one hospital: `MARGIN` of a share, and of another measure that part of its level.

    >>> usual_margin("auroc", 0.8), usual_margin("loss", 0.2)
    (0.05, 0.01)
    """
    return (
        MARGIN
        if is_share(Metric(metric).of_participants.name, 0, 1)
        else MARGIN * abs(level)
    )


def gains(
    measured: Measured, reference: Measured, mode: str = "max", margin: float = MARGIN
) -> dict[str, Gain]:
    """What each hospital gains by a way to train, against a reference. Arguments are as for `difference`.

    Its interval is normal, with the draws' deviation: draws end where the level of many hospitals begins. If it does
    not hold 0, the hospital gains or loses. If it does, and lies within the margin to both sides, that is within
    chance. Else it cannot be told. Fewer than `FEWEST_TESTED` patients have no interval.
    """
    pairs = _paired(measured, reference, mode)
    judged = sum(
        drawn is not None and measured[name].tested >= FEWEST_TESTED
        for name, (_, drawn) in pairs.items()
    )
    reach = float(-ndtri(ALPHA / 2 / max(1, judged)))
    return {
        name: _judged(*pair, measured[name].tested, reach, margin)
        for name, pair in pairs.items()
    }


def _judged(
    gain: float, drawn: np.ndarray | None, tested: int, reach: float, margin: float
) -> Gain:
    """What can be said of a hospital's gain. An interval reaches ``reach`` deviations to either side."""
    if drawn is None:
        return Gain(
            None, None, None, UNKNOWN, FEWEST_TESTED if tested < FEWEST_TESTED else None
        )
    half = reach * float(drawn.std(ddof=1)) if len(drawn) > 1 else 0.0
    times = None if gain == 0 else min(half / abs(gain), MOST_TESTED)
    needed = (
        None if times is None else int(min(np.ceil(tested * times**2), MOST_TESTED))
    )
    if tested < FEWEST_TESTED:
        return Gain(gain, None, None, UNKNOWN, max(FEWEST_TESTED, needed or 0))
    low, high = gain - half, gain + half
    if low > 0 or high < 0:
        return Gain(gain, low, high, GAINS if low > 0 else LOSES)
    if -margin <= low and high <= margin:
        return Gain(gain, low, high, CHANCE)
    return Gain(
        gain, low, high, UNKNOWN, None if needed is None else max(tested + 1, needed)
    )


def _paired(
    measured: Measured, reference: Measured, mode: str
) -> dict[str, tuple[float, np.ndarray | None]]:
    """By hospital, by how much it is better than the reference: on the split, and on draws, None for too few.

    A hospital that measured the two on other draws is left out.
    """
    sign, pairs = (
        (1.0 if mode == "max" else -1.0),
        dict[str, tuple[float, np.ndarray | None]](),
    )
    for name, at in measured.items():
        other = reference.get(name)
        if other is None or (at.draw, at.tested, at.draws.shape) != (
            other.draw,
            other.tested,
            other.draws.shape,
        ):
            continue
        pairs[name] = (
            sign * (at.value - other.value),
            filled(sign * (at.draws - other.draws)),
        )
    return pairs
