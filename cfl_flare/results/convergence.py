# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run was still improving when it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cfl_flare.core.text import plain
from cfl_flare.results.key_metric import Metric

# The key of the summary that says so.
IMPROVING = "improving"
# Fewer measured rounds say nothing. The trend is that of the last share of them, of so many at least.
FEWEST, SHARE, LAST = 10, 0.25, 5
# The trend's probability without one, and its least part of all that the run has gained or lost.
ALPHA, PART = 0.05, 0.02


def gain_at_end(rounds: Sequence[float], values: Sequence[float], mode: str) -> float | None:
    """By how much a metric improved in the last quarter of the measured rounds, by its trend.

    A one-sided t-test of the slope (least squares) against the residuals: without a trend, of independent noise, it is
    significant in 5 % of runs. A gain below 2 % of the range of all values is none.

    Args:
        rounds: the numbers of the measured rounds.
        values: the metric in each.
        mode: ``max`` or ``min``.

    Returns:
        The gain, positive; None if there is none, or of fewer than ten measured rounds.

    >>> gain_at_end(range(12), [0.5 + 0.01 * i for i in range(12)], "max")
    0.04
    >>> gain_at_end(range(12), [0.5] * 12, "max")
    """
    from scipy.stats import t

    if len(values) < FEWEST:
        return None
    last = max(LAST, round(SHARE * len(values)))
    x = np.array(rounds[-last:], np.float64)
    y = np.array(values[-last:], np.float64) * (1 if mode == "max" else -1)
    away = x - x.mean()
    slope = float(away @ y / (away @ away))
    gain = slope * float(x[-1] - x[0])
    if not gain > PART * (max(values) - min(values)):
        return None
    rest = y - y.mean() - slope * away
    error = np.sqrt(float(rest @ rest) / (last - 2) / float(away @ away))
    return round(gain, 6) if slope > error * t.ppf(1 - ALPHA, last - 2) else None


def improving(lines: Sequence[Mapping[str, Any]], metric: Metric) -> str | None:
    """A sentence on a run whose metric was still improving when its planned rounds were over; None for others.

    Args:
        lines: of ``rounds.jsonl``.
        metric: by which the run is judged.
    """
    key = f"served_{metric.name}"
    measured = [(line["round"], line[key]) for line in lines if line.get(key) is not None]
    gain = gain_at_end([number for number, _ in measured], [value for _, value in measured], metric.mode)
    if gain is None:
        return None
    last = max(LAST, round(SHARE * len(measured)))
    since = measured[-1][0] - measured[-last][0]
    name = plain(metric.name, 60)
    return f"not converged: {name} still improved by {gain:.3g} over the last {since} rounds; train longer"
