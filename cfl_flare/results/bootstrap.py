# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Intervals of a run's final measures, and of differences between two runs, from draws of participants' test splits.

An interval lies around the measure's own value and has the draws' standard deviation. A share's is symmetric in its
log-odds, and that of another measure that is never negative in its logarithm (delta method). Draws decide its width
alone: a draw lacks samples of the split, and with them rare classes, so that a macro-F1 is lower on most draws than on
the split itself. Draws by class have intervals that are too narrow.

An interval of a difference holds the middle 95 % of its draws. A draw on which a measure is not defined is left out,
and an interval needs half of them. Participants are drawn independently of one another. So in a mean over them, others
of a participant's own draws stand in for those.

Of many equal participants one is the lowest by chance. So one is called the worst only if its interval ends before all
others begin, and the worst tenth has an interval that reaches further towards the others: see `worst_tenth`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.shares import bounded_weights
from cfl_flare.results import schema
from cfl_flare.results.metrics import Metric, is_share

if TYPE_CHECKING:
    from cfl_flare.methods import Participant
    from cfl_flare.results.run_dir import Run
    from cfl_flare.training.bootstrap import Replicates

BOOTSTRAP = "bootstrap.safetensors"
PERCENTILES = (2.5, 97.5)
# The normal distribution's, of the same middle.
NORMAL = 1.959964
# The file's metadata, as the fields of `Draws`.
FACTS = ("participants", "samples", "draws")

Interval = tuple[float, float]


@dataclass(frozen=True)
class Draws:
    """What a run's participants measured on the draws of their test splits.

    Attributes:
        samples: how many training samples each has, within the share of a site: its weight in a mean.
        draws: two runs have a participant's number in common if it drew the same rows of the same samples.
        values: by measure, such as ``served_accuracy``: ``(participants, draws)`` float64, NaN where it is not defined.
    """

    participants: tuple[str, ...]
    samples: tuple[float, ...]
    draws: tuple[int, ...]
    values: Mapping[str, np.ndarray]

    @classmethod
    def of(
        cls,
        sent: Mapping[str, Replicates],
        participants: Mapping[str, Participant],
        share: float | None = None,
    ) -> Draws:
        """What arrived, in the participants' order; no site has more than a share of the weight."""
        names = [name for name in participants if name in sent]
        sites = {name: participants[name].site for name in names}
        weights = bounded_weights(
            {name: participants[name].samples for name in names}, sites, share
        )
        times = {
            len(values)
            for replicates in sent.values()
            for values in replicates.values.values()
        }
        empty = [None] * max(times, default=0)
        measures = dict.fromkeys(key for name in names for key in sent[name].values)
        return cls(
            tuple(names),
            tuple(weights.values()),
            tuple(sent[name].draw for name in names),
            {
                key: np.array(
                    [sent[name].values.get(key, empty) for name in names], np.float64
                )
                for key in measures
            },
        )

    def intervals(
        self, participant: str, points: Mapping[str, float]
    ) -> dict[str, Interval]:
        """The intervals of a participant's measures; ``points`` are the measures themselves."""
        if participant not in self.participants:
            return {}
        row = self.participants.index(participant)
        intervals = {
            key: interval(of[row], points[key], key)
            for key, of in self.values.items()
            if key in points
        }
        return {key: ends for key, ends in intervals.items() if ends is not None}

    def of_mean(self, key: str, points: Mapping[str, float]) -> Interval | None:
        """The interval of a measure's mean, weighted by samples, over the participants that have a point.

        Args:
            key: of the measure.
            points: the measure on each participant's test split.

        Returns:
            The interval. None if a participant sent no draws of any measure: then its weight is not known. None if
            the measure is not defined on half of the draws of more than half of the participants.
        """
        names = [name for name in self.participants if name in points]
        if key not in self.values or not names or len(names) < len(points):
            return None
        weights = self.weights_of(names)
        mean = weighted(self.rows_of(key, names), weights)
        if mean is None:
            return None
        point = np.average([points[name] for name in names], weights=weights)
        return interval(mean, float(point), key)

    def weights_of(self, names: Sequence[str]) -> np.ndarray:
        """The training samples ``(names,)`` of some participants."""
        counts = dict(zip(self.participants, self.samples))
        return np.array([counts[name] for name in names], np.float64)

    def rows_of(self, key: str, names: Sequence[str]) -> np.ndarray:
        """A measure's draws ``(names, draws)`` of some participants."""
        return self.values[key][[self.participants.index(name) for name in names]]

    def save(self, path: Path) -> None:
        save_arrays(
            path,
            self.values,
            dict(zip(FACTS, (self.participants, self.samples, self.draws))),
        )


@dataclass(frozen=True)
class Difference:
    """By how much a measure of a run is larger than another run's, on the same draws.

    Attributes:
        mean: over the participants, weighted by samples.
        low: where the middle 95 % of its draws begin.
        high: where they end.
        by_participant: of each participant that has an interval: the difference, and the same two ends.
    """

    mean: float
    low: float
    high: float
    by_participant: Mapping[str, tuple[float, float, float]]


def middle(values: np.ndarray) -> Interval | None:
    """The middle 95 % of the values that are not NaN; None if less than half of them are left.

    >>> middle(np.array([*range(1001), np.nan]))
    (25.0, 975.0)
    """
    there = _defined(values)
    if there is None:
        return None
    low, high = np.percentile(there, PERCENTILES).tolist()
    return low, high


def interval(values: np.ndarray, point: float, name: str) -> Interval | None:
    """The interval of a measure of this name; None if it is not defined on half of the draws.

    ``values`` are of the draws, and ``point`` is the value on the split itself.

    >>> low, high = interval(np.array([0.7, 0.9, np.nan]), 0.8, "accuracy")
    >>> round(low, 3), round(high, 3)
    (0.414, 0.958)
    """
    there = _defined(values)
    if there is None:
        return None
    half = 0.0
    if len(there) > 1:
        half = NORMAL * float(there.std(ddof=1))
    least = min(point, float(there.min()))
    most = max(point, float(there.max()))

    # A share: symmetric in the log-odds.
    if is_share(name, least, most) and 0 < point < 1:
        log_odds = math.log(point / (1 - point))
        reach = half / (point * (1 - point))
        return _share_at(log_odds - reach), _share_at(log_odds + reach)

    # What is never negative: symmetric in the logarithm.
    if least > 0 and half < point:
        reach = half / point
        return point * math.exp(-reach), point * math.exp(reach)

    low = point - half
    if least >= 0:
        low = max(low, 0.0)
    return low, point + half


def _share_at(log_odds: float) -> float:
    """The share with these log-odds, without overflow."""
    return (1 + math.tanh(log_odds / 2)) / 2


def _defined(values: np.ndarray) -> np.ndarray | None:
    there = values[~np.isnan(values)]
    return there if len(there) and 2 * len(there) >= len(values) else None


def filled(values: np.ndarray) -> np.ndarray | None:
    """Draws ``(draws,)`` in which others stand in for those that are NaN; None if less than half of them are left."""
    there = _defined(values)
    if there is None:
        return None
    gone, complete = np.isnan(values), values.copy()
    complete[gone] = np.resize(there, gone.sum())
    return complete


def weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
    """The mean over participants, draw by draw, ``(draws,)``.

    A participant on half of whose draws a measure is not defined gets stand-ins: the deviations of another
    participant's draws, for as many samples as its own.

    Args:
        values: ``(participants, draws)``, NaN where the measure is not defined.
        weights: ``(participants,)``, their samples.

    Returns:
        The means, or None if fewer than half of the participants have draws of their own.

    >>> weighted(np.array([[0.0, 0.0, np.nan], [1.0, 0.5, 1.0]]), np.array([3.0, 1.0]))
    array([0.25 , 0.125, 0.25 ])
    """
    rows = {i: row for i, row in enumerate(map(filled, values)) if row is not None}
    if not rows or 2 * len(rows) < len(values):
        return None
    known = [*rows]
    for i, own in enumerate(values):
        if i in rows:
            continue
        # A turn by i draws keeps the stand-ins independent of the draws from which they are made.
        other = known[i % len(known)]
        deviations = np.roll(rows[other] - rows[other].mean(), i + 1)
        there = own[~np.isnan(own)]
        level = there.mean() if len(there) else rows[other].mean()
        rows[i] = level + deviations * math.sqrt(weights[other] / weights[i])
    stacked = np.stack([rows[i] for i in range(len(values))])
    return np.average(stacked, axis=0, weights=weights)


def read_draws(folder: Path) -> Draws | None:
    """The draws that a run left in its folder; None if it left none. A PayloadError says that the file is damaged."""
    path = folder / BOOTSTRAP
    if not path.is_file():
        return None
    values, meta = load_arrays(path)
    if not _are_draws(values, meta):
        raise PayloadError(
            "damaged_file",
            f"{path} does not hold draws by participant; copy it again from where it ran",
        )
    names, samples, draws = (tuple(meta[key]) for key in FACTS)
    return Draws(names, samples, draws, values)


def _are_draws(values: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bool:
    """Whether a file's arrays and metadata are those of draws by participant."""
    names, samples, draws = (meta.get(key, []) for key in FACTS)
    if not schema.list_of(schema.text, 1)(names):
        return False
    if not schema.list_of(schema.number)(samples):
        return False
    if not schema.list_of(schema.count)(draws):
        return False
    if not len(set(names)) == len(names) == len(samples) == len(draws):
        return False
    if not all(0 < count < np.inf for count in samples):
        return False
    shapes = {array.shape for array in values.values()}
    if len(shapes) != 1:
        return False
    (shape,) = shapes
    if len(shape) != 2 or shape[0] != len(names):
        return False
    return all(
        array.dtype == np.float64 and not np.isinf(array).any()
        for array in values.values()
    )


def paired_difference(run: Run, other: Run, metric: str) -> Difference:
    """By how much a run is better or worse than another one on the same participants, paired draw by draw.

    Both runs drew the same rows of each test split, so that what they have in common cancels out: the interval is
    narrower than those of the two runs suggest.

    Args:
        run: the run.
        other: the run from which it differs.
        metric: a measure that both report, such as ``accuracy``.

    Raises:
        ConfigError: the two cannot be paired; it says why.
        PayloadError: a file of draws is damaged.
    """
    key = metric if metric.startswith("served_") else f"served_{metric}"
    points = run.values(key)
    points_of_other = other.values(key)
    drawn = _find_draws(run, key, metric)
    drawn_of_other = _find_draws(other, key, metric)
    where = f"{run.folder} and {other.folder} cannot be paired"
    facts = _describe_draws(points, drawn, key)
    facts_of_other = _describe_draws(points_of_other, drawn_of_other, key)
    for what, fact in facts.items():
        require(
            fact == facts_of_other[what],
            f"{where}: their {what} differ; compare runs of one seed on the same test splits",
        )
    names = list(points)
    lacking = sorted({*names} - {*drawn.participants})
    require(
        bool(names) and not lacking,
        f"{where}: {lacking[:3]} sent no draws; compare another metric",
    )

    weights = drawn.weights_of(names)
    apart = drawn.rows_of(key, names) - drawn_of_other.rows_of(key, names)
    gaps = {name: points[name] - points_of_other[name] for name in names}
    mean = weighted(apart, weights)
    ends = None if mean is None else middle(mean)
    if ends is None:
        reason = f"{metric!r} is not defined on half of most participants' draws"
        raise ConfigError(f"{where}: {reason}; compare another metric")
    by_participant = {}
    for name, row in zip(names, apart):
        pair = middle(row)
        if pair is not None:
            by_participant[name] = (gaps[name], *pair)
    gap = float(np.average([*gaps.values()], weights=weights))
    return Difference(gap, *ends, by_participant)


def _find_draws(run: Run, key: str, metric: str) -> Draws:
    """A run's draws; a ConfigError if it has none of the metric."""
    drawn = read_draws(run.folder)
    if drawn is None or key not in drawn.values:
        way_out = "run it with training's bootstrap, such as 200"
        raise ConfigError(f"{run.folder} has no draws of {metric!r}; {way_out}")
    return drawn


def _describe_draws(
    points: Mapping[str, float], drawn: Draws, key: str
) -> dict[str, Any]:
    """The facts in which two runs have to agree to be paired, by their names in an error."""
    return {
        "participants who report it": sorted(points),
        "participants with draws": sorted(drawn.participants),
        "numbers of draws": drawn.values[key].shape[1],
        "training samples": dict(zip(drawn.participants, drawn.samples)),
        "draws": dict(zip(drawn.participants, drawn.draws)),
    }


def told_apart(
    values: Mapping[str, float], intervals: Mapping[str, Interval], metric: Metric
) -> tuple[str | None, str | None]:
    """The worst participant and the best one; None where intervals overlap, or one of them is not known.

    An interval without width is no certainty: all draws of a small test split gave the same.

    >>> intervals = {"a": (0.1, 0.3), "b": (0.4, 0.7), "c": (0.6, 0.8)}
    >>> told_apart({"a": 0.2, "b": 0.5, "c": 0.7}, intervals, Metric("accuracy"))
    ('a', None)
    """
    if metric.mode is None or len(values) < 2:
        return None, None
    if any(name not in intervals or len({*intervals[name]}) < 2 for name in values):
        return None, None
    order = metric.worst_first(values.items())
    worst = order[0][0]
    best = order[-1][0]
    low, high = (worst, best) if metric.mode == "max" else (best, worst)
    others_begin = min(intervals[name][0] for name in values if name != low)
    others_end = max(intervals[name][1] for name in values if name != high)
    lowest = low if intervals[low][1] < others_begin else None
    highest = high if intervals[high][0] > others_end else None
    if metric.mode == "max":
        return lowest, highest
    return highest, lowest


def worst_tenth(
    draws: Draws, key: str, points: Mapping[str, float], metric: Metric
) -> tuple[float, Interval] | None:
    """The mean over the worst tenth of the participants, at least one, and its interval; None if draws are missing.

    Those who are the worst of the test splits are worse there than they are. By how much, draws say: of each of them
    another tenth is the worst, and its mean is worse than the tenth's of the splits. Towards the others, the interval
    reaches twice that further.
    """
    rows = {}
    for name, values in zip(draws.participants, draws.values.get(key, ())):
        row = filled(values)
        if row is not None:
            rows[name] = row
    if not points or not points.keys() <= rows.keys():
        return None

    worst_first = [name for name, _ in metric.worst_first(points.items())]
    count = math.ceil(len(worst_first) / 10)
    mean = float(np.mean([points[name] for name in worst_first[:count]]))

    # Turned so that less is worse, whichever end of the metric is best.
    sign = 1 if metric.mode == "max" else -1
    values = np.stack([rows[name] for name in worst_first])
    turned = np.sort(sign * values, axis=0)
    bias = float(turned[:count].mean(axis=0).mean()) - sign * mean
    half = NORMAL * float(values[:count].mean(axis=0).std(ddof=1))
    away = mean - sign * half
    towards = mean + sign * half - 2 * sign * min(0.0, bias)

    least = 0.0 if values.min() >= 0 else -np.inf
    most = np.inf
    if is_share(metric.name, values.min(), values.max()):
        most = 1.0
    low, high = np.clip(sorted((away, towards)), least, most).tolist()
    return mean, (low, high)


def tenth_of(run: Run) -> tuple[float, Interval] | None:
    """That of a run's metric; None without draws, or if nobody says which end of the metric is best."""
    draws, key = read_draws(run.folder), f"served_{run.metric.name}"
    if draws is None or run.metric.mode is None:
        return None
    return worst_tenth(draws, key, run.values(key), run.metric)
