# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which participant is told apart as the worst or the best, and what the worst tenth of them has.

Of many equal participants one is the lowest by chance. So one is called the worst only if its interval ends before all
others begin, and a tenth has an interval that reaches further towards the others: see `worst_tenth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.results import schema
from cfl_flare.results.bootstrap import NORMAL, Draws, Interval, filled, read_draws
from cfl_flare.results.metrics import Metric, is_share

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run


def told_apart(
    values: Mapping[str, float], intervals: Mapping[str, Interval], metric: Metric
) -> tuple[str | None, str | None]:
    """The worst participant and the best one; None where intervals overlap, or one of them is not known.

    An interval without width is no certainty: all draws of a small test split gave the same.

    >>> intervals = {"a": (0.1, 0.3), "b": (0.4, 0.7), "c": (0.6, 0.8)}
    >>> told_apart({"a": 0.2, "b": 0.5, "c": 0.7}, intervals, Metric("accuracy"))
    ('a', None)
    """
    if len(values) < 2 or any(name not in intervals or len({*intervals[name]}) < 2 for name in values):
        return None, None
    order = metric.worst_first(values.items())
    worst, best = order[0][0], order[-1][0]
    low, high = (worst, best) if metric.mode == "max" else (best, worst)
    lowest = low if all(intervals[low][1] < intervals[name][0] for name in values if name != low) else None
    highest = high if all(intervals[high][0] > intervals[name][1] for name in values if name != high) else None
    return (lowest, highest) if metric.mode == "max" else (highest, lowest)


def worst_tenth(draws: Draws, key: str, points: Mapping[str, float], metric: Metric) -> tuple[float, Interval] | None:
    """The mean over the worst tenth of the participants, at least one, and its interval; None if draws are missing.

    Those who are the worst of the test splits are worse there than they are. By how much, draws say: of each of them
    another tenth is the worst, and its mean is worse than the tenth's of the splits. Towards the others, the interval
    reaches twice that further; `benchmarks/coverage.py` measures how often it holds the truth.
    """
    drawn = zip(draws.participants, map(filled, draws.values.get(key, ())))
    rows = {name: row for name, row in drawn if row is not None}
    if not points or not points.keys() <= rows.keys():
        return None
    order = [name for name, _ in metric.worst_first(points.items())]
    tenth = order[: -(-len(order) // 10)]
    values = np.stack([rows[name] for name in order])
    sign = 1 if metric.mode == "max" else -1
    mean = float(np.mean([points[name] for name in tenth]))
    bias = float((sign * np.sort(sign * values, axis=0)[: len(tenth)].mean(axis=0)).mean()) - mean
    half = NORMAL * float(values[: len(tenth)].mean(axis=0).std(ddof=1))
    away, towards = mean - sign * half, mean + sign * half - 2 * sign * min(0.0, sign * bias)
    least = 0.0 if values.min() >= 0 else -np.inf
    most = 1.0 if is_share(metric.name, values.min(), values.max()) else np.inf
    low, high = np.clip(sorted((away, towards)), least, most).tolist()
    return mean, (low, high)


def tenth_of(run: Run) -> tuple[float, Interval] | None:
    """That of a run's metric; None without draws.

    Raises:
        PayloadError: the file of draws is damaged.
    """
    draws, key = read_draws(run.folder), f"served_{run.metric.name}"
    points = {p["name"]: p[key] for p in run.summary["participants"] if schema.number(p.get(key))}
    return None if draws is None else worst_tenth(draws, key, points, run.metric)
