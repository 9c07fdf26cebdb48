# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sentences on a run: who missed rounds, what the floor of a cluster's size changed, whether it still improved.

Also how sentences have names and numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cfl_flare.core.text import plain
from cfl_flare.results.metrics import Metric

# Keys of a round's record: whom the floor kept out of which cluster, whose models it kept out of a mean, and which
# clusters are below it.
MOVED, HELD, SMALL = "moved_for_floor", "held_back", "small_clusters"
# Arrays of models that too few sites sent, as filters removed them elsewhere.
ARRAYS = "arrays_held_back"
# Participants whose share of a mean was lowered: what it would be, and what it is.
CAPPED = "lowered_shares"
# Keys of a summary: how many clusters can be, if that is fewer than the settings name; and that the run still improved.
POSSIBLE, IMPROVING = "possible_clusters", "improving"
# A sentence lists this many names.
NAMED = 10
# Fewer measured rounds have no trend. The trend is that of the last share of the rounds, of `LAST` at least.
FEWEST, SHARE, LAST = 10, 0.25, 5
# The trend's probability without one, and its least part of all that the run has gained or lost.
ALPHA, PART = 0.05, 0.02


@dataclass(frozen=True)
class Missed:
    """Rounds in which a participant had to train, those in which no update of it could be used, and why most often."""

    rounds: int
    asked: int
    reason: str

    def __str__(self) -> str:
        return f"{self.rounds} of {self.asked} rounds: {self.reason}"


def missed_rounds(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Missed]:
    """The participants that missed rounds, who missed most first; ``rounds`` are the lines of ``rounds.jsonl``.

    >>> missed_rounds([{"trained": ["a"], "failed": {"b": "no result in time"}}, {"trained": ["a", "b"]}])
    {'b': Missed(rounds=1, asked=2, reason='no result in time')}
    """
    trained: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for line in rounds:
        trained.update(line.get("trained", []))
        for name, reason in line.get("failed", {}).items():
            if name not in line.get("trained", []):
                reasons.setdefault(name, Counter())[reason] += 1
    return {
        name: Missed(
            counts.total(), counts.total() + trained[name], counts.most_common(1)[0][0]
        )
        for name, counts in sorted(reasons.items(), key=lambda pair: -pair[1].total())
    }


def floor_in_round(record: Mapping[str, Any]) -> str:
    """One line on what the floor changed in a round, for the log; empty if it changed nothing.

    >>> floor_in_round({"moved_for_floor": {"p3": 1}, "held_back": ["p1", "p2"], "small_clusters": []})
    'kept out of the cluster that fits best, as another needs them: p3 (cluster 1); held back, as too few sites or \
samples trained their model: p1, p2'
    """
    moved = [f"{name} (cluster {k})" for name, k in record.get(MOVED, {}).items()]
    remarks = {
        "kept out of the cluster that fits best, as another needs them: ": moved,
        "held back, as too few sites or samples trained their model: ": record.get(
            HELD
        ),
        "arrays held back, as filters leave them to too few sites: ": record.get(
            ARRAYS
        ),
        "still below the floor: clusters ": record.get(SMALL),
    }
    return "; ".join(text + listed(names) for text, names in remarks.items() if names)


def floor_in_run(
    summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]
) -> list[str]:
    """A sentence on each thing that the floor changed in a run, with the participants and the number of rounds."""
    run, lines = summary.get("run"), []
    settings = run if isinstance(run, Mapping) else {}
    sites, samples = (
        settings.get("min_sites_per_cluster"),
        settings.get("min_samples_per_cluster"),
    )
    floor = f"{sites} sites and {samples} training samples"
    if POSSIBLE in summary:
        lines.append(fewer_clusters(summary[POSSIBLE], summary["clusters"], floor))
    for key, what, why in (
        (
            MOVED,
            "Kept out of the cluster that fits best",
            f"so that another has {floor}",
        ),
        (
            HELD,
            "Held back, so that their model stayed as it was",
            f"as too few trained it for {floor}",
        ),
    ):
        counts = Counter(name for line in rounds for name in line.get(key, ()))
        if counts:
            times = sum(bool(line.get(key)) for line in rounds)
            who = listed(f"{name} ({count})" for name, count in counts.most_common())
            lines.append(f"{what}, {why}, in {times} of {len(rounds)} rounds: {who}.")
    lines += lowered_shares(rounds)
    if summary.get(SMALL):
        lines.append(
            f"Clusters {listed(summary[SMALL])} have too few members for {floor}, whose data they reveal."
        )
    return lines


def lowered_shares(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on who had a smaller share of a mean than its samples, each as in its last such round.

    >>> lowered_shares([{"lowered_shares": {"a": [0.517, 0.3333]}}, {}])
    ['Shares of a mean are bounded (max_weight_share, byzantine), which lowered some in 1 of 2 rounds: a (51.7 % to \
33.3 %).']
    """
    shares = {
        name: pair for line in rounds for name, pair in line.get(CAPPED, {}).items()
    }
    times = sum(bool(line.get(CAPPED)) for line in rounds)
    largest = sorted(shares.items(), key=lambda item: -item[1][0])
    who = listed(
        f"{name} ({100 * before:.1f} % to {100 * after:.1f} %)"
        for name, (before, after) in largest
    )
    bound = (
        "Shares of a mean are bounded (max_weight_share, byzantine), which lowered some"
    )
    return [f"{bound} in {times} of {len(rounds)} rounds: {who}."] if shares else []


def fewer_clusters(possible: int, wanted: int, floor: str) -> str:
    return f"Of the {wanted} clusters that were asked for, {possible} are used: no more can have {floor} each."


def listed(names: Iterable[Any], most: int = NAMED) -> str:
    """The first names, and how many more there are.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    texts = [plain(str(name), 100) for name in names]
    return ", ".join(texts[:most]) + (
        f" and {len(texts) - most} more" if len(texts) > most else ""
    )


def figure(value: float) -> str:
    """Three digits after the point, unless they say nothing of so small or large a number."""
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def gain_at_end(
    rounds: Sequence[float], values: Sequence[float], mode: str
) -> float | None:
    """By how much a metric improved in the last quarter of the measured rounds, by its trend; None if it did not.

    A one-sided t-test compares the slope (least squares) with the residuals. Without a trend, of independent noise, it
    is significant in 5 % of runs. A gain below 2 % of the range of all values is none, and fewer than ten measured
    rounds have none.

    >>> gain_at_end(range(12), [0.5 + 0.01 * i for i in range(12)], "max")
    0.04
    >>> gain_at_end(range(12), [0.5] * 12, "max")
    """
    from scipy.stats import linregress

    if len(values) < FEWEST:
        return None
    last = _rounds_at_end(values)
    better = np.array(values[-last:]) * (1 if mode == "max" else -1)
    trend = linregress(rounds[-last:], better, alternative="greater")
    gain = float(trend.slope) * (rounds[-1] - rounds[-last])
    clear = gain > PART * (max(values) - min(values)) and trend.pvalue < ALPHA
    return round(gain, 6) if clear else None


def improving(lines: Sequence[Mapping[str, Any]], metric: Metric) -> str | None:
    """A sentence on a run whose metric still improved when its planned rounds were over; None for others."""
    key = f"served_{metric.name}"
    measured = [
        (line["round"], line[key]) for line in lines if line.get(key) is not None
    ]
    numbers, values = (
        [number for number, _ in measured],
        [value for _, value in measured],
    )
    gain = gain_at_end(numbers, values, str(metric.mode))
    if gain is None:
        return None
    since = numbers[-1] - numbers[-_rounds_at_end(values)]
    name = plain(metric.name, 60)
    return f"not converged: {name} still improved by {gain:.3g} over the last {since} rounds; train longer"


def _rounds_at_end(values: Sequence[float]) -> int:
    return max(LAST, round(SHARE * len(values)))
