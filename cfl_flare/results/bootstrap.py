# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Intervals of a run's final measures, and of differences between two runs, from draws of participants' test splits.

An interval holds the middle 95 % of what was measured on the draws, moved to the measure's own value: a draw lacks
samples of the split, and with them rare classes, so that a macro-F1 is lower on most draws than on the split itself. A
draw on which a measure is not defined is left out, and an interval needs half of them. Participants are drawn
independently of one another, so that in a mean over them, others of a participant's own draws stand in for those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.shares import bounded_weights
from cfl_flare.results.key_metric import is_share
from cfl_flare.results.schema import each, number, text, whole

if TYPE_CHECKING:
    from cfl_flare.methods import Participant
    from cfl_flare.results.run_dir import Run
    from cfl_flare.training.bootstrap import Replicates

BOOTSTRAP = "bootstrap.safetensors"
PERCENTILES = (2.5, 97.5)
# The file's metadata, as the fields of `Draws`.
FACTS = ("participants", "samples", "draws")

Interval = tuple[float, float]


@dataclass(frozen=True)
class Draws:
    """What a run's participants measured on the draws of their test splits.

    Attributes:
        participants: those who sent some.
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
        cls, found: Mapping[str, Replicates], participants: Mapping[str, Participant], share: float | None = None
    ) -> Draws:
        """What arrived, in the participants' order; no site has more than a share of the weight."""
        names = [name for name in participants if name in found]
        sites = {name: participants[name].site for name in names}
        weights = bounded_weights({name: participants[name].samples for name in names}, sites, share)
        times = {len(values) for own in found.values() for values in own.values.values()}
        empty = [None] * max(times, default=0)
        measures = dict.fromkeys(key for name in names for key in found[name].values)
        return cls(
            tuple(names),
            tuple(weights.values()),
            tuple(found[name].draw for name in names),
            {key: np.array([found[name].values.get(key, empty) for name in names], np.float64) for key in measures},
        )

    def intervals(self, participant: str, points: Mapping[str, float]) -> dict[str, Interval]:
        """Of each of a participant's measures that has one; ``points`` are the measures themselves."""
        if participant not in self.participants:
            return {}
        row = self.participants.index(participant)
        found = {key: interval(values[row], points.get(key), key) for key, values in self.values.items()}
        return {key: own for key, own in found.items() if own is not None}

    def of_mean(self, key: str, points: Mapping[str, float]) -> Interval | None:
        """The interval of a measure's mean, weighted by samples.

        Args:
            key: the measure.
            points: the measure of each participant over whom the mean is.

        Returns:
            None if one of them has no interval: it would be one of another mean.
        """
        rows = [i for i, name in enumerate(self.participants) if name in points]
        if key not in self.values or not rows or len(rows) < len(points):
            return None
        weights = np.array(self.samples, np.float64)[rows]
        mean = weighted(self.values[key][rows], weights)
        point = float(np.average([points[self.participants[i]] for i in rows], weights=weights))
        return None if mean is None else interval(mean, point, key)

    def save(self, path: Path) -> None:
        """Writes them.

        Raises:
            FileError: the file cannot be written.
        """
        save_arrays(path, self.values, dict(zip(FACTS, (self.participants, self.samples, self.draws))))


@dataclass(frozen=True)
class Difference:
    """By how much a measure of a run is larger than another run's, on the same draws.

    Attributes:
        mean: over the participants, weighted by samples.
        low: where the middle 95 % of its draws begin.
        high: where they end.
        by_participant: of each participant: the difference, and the same two ends.
    """

    mean: float
    low: float
    high: float
    by_participant: Mapping[str, tuple[float, float, float]]


def interval(values: np.ndarray, point: float | None = None, name: str = "") -> Interval | None:
    """The middle 95 % of the values that are not NaN; None if less than half of them are left.

    >>> interval(np.array([*range(1001), np.nan]))
    (25.0, 975.0)
    >>> interval(np.array([*range(1001), np.nan]), 510)
    (35.0, 985.0)

    Args:
        values: on the draws.
        point: on the split itself: the interval is moved by as much as the draws' mean is off it, within 0 and 1 if the
            values are shares. None to leave it.
        name: the measure's.
    """
    there = values[~np.isnan(values)]
    if not len(there) or 2 * len(there) < len(values):
        return None
    ends = np.percentile(there, PERCENTILES)
    if point is not None:
        most = 1.0 if is_share(name, there.min(), there.max()) else None
        ends = np.clip(ends + (point - there.mean()), min(0.0, there.min()), most)
    low, high = ends.tolist()
    return low, high


def weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
    """The mean over participants, draw by draw.

    Args:
        values: ``(participants, draws)``, NaN where a measure is not defined.
        weights: ``(participants,)``.

    Returns:
        ``(draws,)``; None if less than half of a participant's draws are left.

    >>> weighted(np.array([[0.0, 0.0, np.nan], [1.0, 0.5, 1.0]]), np.array([3.0, 1.0]))
    array([0.25 , 0.125, 0.25 ])
    """
    whole = values.copy()
    for row in whole:
        gone = np.isnan(row)
        if 2 * gone.sum() > len(row):
            return None
        row[gone] = np.resize(row[~gone], gone.sum())
    return np.average(whole, axis=0, weights=weights)


def read_draws(folder: Path) -> Draws | None:
    """The draws that a run left in its folder; None if it left none.

    Raises:
        PayloadError: the file is damaged or another program's.
    """
    path = folder / BOOTSTRAP
    if not path.is_file():
        return None
    values, meta = load_arrays(path)
    names, samples, draws = (meta.get(key) or [] for key in FACTS)
    sound = each(text)(names) and each(number)(samples) and each(whole)(draws)
    sound = (
        sound and 0 < len({*names}) == len(names) == len(samples) == len(draws) and all(0 < n < np.inf for n in samples)
    )
    shapes = {array.shape for array in values.values()}
    sound = sound and len(shapes) == 1 and all(len(shape) == 2 and shape[0] == len(names) for shape in shapes)
    if not sound or any(array.dtype != np.float64 or np.isinf(array).any() for array in values.values()):
        raise PayloadError(
            "damaged_file", f"{path} does not hold draws by participant; copy it again from where it ran"
        )
    return Draws(tuple(names), tuple(samples), tuple(draws), values)


def paired_difference(run: Run, other: Run, metric: str) -> Difference:
    """By how much a run is better or worse than another one on the same participants, paired draw by draw.

    Both runs drew the same rows of each test split, so that what they have in common cancels out: the interval is
    narrower than those of the two runs let expect.

    Args:
        run: the run; see `cfl_flare.results.run_dir.find_runs`.
        other: what is subtracted from it.
        metric: a measure that both report, such as ``accuracy``.

    Raises:
        ConfigError: the two cannot be paired; it says why.
        PayloadError: a file of draws is damaged.
    """
    key = metric if metric.startswith("served_") else f"served_{metric}"
    both = run, other
    points = [{p["name"]: p[key] for p in one.summary["participants"] if number(p.get(key))} for one in both]
    found = [read_draws(one.folder) for one in both]
    for one, drawn in zip(both, found):
        if drawn is None or key not in drawn.values:
            raise ConfigError(f"{one.folder} has no draws of {metric!r}; run it with training's bootstrap, such as 200")
    a, b = (drawn for drawn in found if drawn is not None)
    where = f"{run.folder} and {other.folder} cannot be paired"
    reporting = list(points[0])
    for what, mine, its in (
        ("participants who report it", sorted(points[0]), sorted(points[1])),
        ("participants with draws", sorted(a.participants), sorted(b.participants)),
        ("numbers of draws", a.values[key].shape[1], b.values[key].shape[1]),
        ("training samples", dict(zip(a.participants, a.samples)), dict(zip(b.participants, b.samples))),
        ("draws", dict(zip(a.participants, a.draws)), dict(zip(b.participants, b.draws))),
    ):
        require(mine == its, f"{where}: their {what} differ; compare runs of one seed on the same test splits")
    lacking = sorted({*reporting} - {*a.participants})
    require(bool(reporting) and not lacking, f"{where}: {lacking[:3]} sent no draws; compare another metric")
    rows, its_rows = ([drawn.participants.index(name) for name in reporting] for drawn in (a, b))
    weights = np.array(a.samples, np.float64)[rows]
    drawn_apart = a.values[key][rows] - b.values[key][its_rows]
    apart = {name: points[0][name] - points[1][name] for name in reporting}
    mean, ends = weighted(drawn_apart, weights), [interval(row) for row in drawn_apart]
    over_all = None if mean is None else interval(mean)
    by_participant = {name: (apart[name], *own) for name, own in zip(reporting, ends) if own is not None}
    if over_all is None or len(by_participant) < len(reporting):
        raise ConfigError(
            f"{where}: {metric!r} is not defined on half of some participant's draws; compare another metric"
        )
    return Difference(float(np.average([*apart.values()], weights=weights)), *over_all, by_participant)
