# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Percentile bins: clusters of participants by one number each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence


def by_rank(values: Mapping[str, float], k: int) -> dict[str, int]:
    """The bin of each participant: the r-th smallest of m values, r from 0, is in bin floor(r k / m).

    Bin sizes differ by one at most. Equal values are ordered by the participants' names.

    >>> by_rank({"a": 5.0, "b": 1.0, "c": 3.0}, 2)
    {'b': 0, 'c': 0, 'a': 1}
    """
    ranked = sorted(values, key=lambda name: (values[name], name))
    return {name: rank * k // len(ranked) for rank, name in enumerate(ranked)}


def thresholds(values: Mapping[str, float], bins: Mapping[str, int], k: int) -> list[float]:
    """The largest value of each bin but the last, P_{1/k}, ..., P_{(k-1)/k}; an empty bin has the previous bin's.

    >>> thresholds({"a": 5.0, "b": 1.0, "c": 3.0}, {"b": 0, "c": 0, "a": 1}, 2)
    [3.0]
    """
    return [max((values[name] for name, own in bins.items() if own <= i), default=0.0) for i in range(k - 1)]


def placed(value: float, limits: Sequence[float]) -> int:
    """The bin of a new value: the first i whose threshold is not below it, P_{i-1} < value <= P_i.

    >>> [placed(value, [3.0]) for value in (0.0, 3.0, 3.5)]
    [0, 0, 1]
    """
    return bisect_left(limits, value)
