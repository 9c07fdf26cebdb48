# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Who missed which share of a run's rounds, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Missed:
    """What a participant missed.

    Attributes:
        rounds: in so many it was asked to train and nothing of it could be used.
        asked: of so many.
        reason: the most frequent one.
    """

    rounds: int
    asked: int
    reason: str


def missed_rounds(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Missed]:
    """The participants that missed rounds.

    Args:
        rounds: the lines of ``rounds.jsonl``.

    >>> missed_rounds([{"trained": ["a"], "failed": {"b": "no result in time"}}, {"trained": ["a", "b"]}])
    {'b': Missed(rounds=1, asked=2, reason='no result in time')}
    """
    trained: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for line in rounds:
        there = line.get("trained", [])
        trained.update(there)
        for name, reason in line.get("failed", {}).items():
            if name not in there:
                reasons.setdefault(name, Counter())[reason] += 1
    found = {name: (own.total(), own.most_common(1)[0][0]) for name, own in reasons.items()}
    return {name: Missed(count, count + trained[name], reason) for name, (count, reason) in found.items()}
