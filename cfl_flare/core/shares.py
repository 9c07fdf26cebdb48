# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""No single voice decides: bounds of weights by their share of all, and of values by their distance from the others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

K = TypeVar("K", bound=Hashable)
# A value counts as at most this many median deviations away from the median.
REACH = 5.0
# Among fewer values, the outlier cannot be told.
FEWEST_VALUES = 3


def capped(weights: Mapping[K, float], share: float) -> dict[K, float]:
    """Lowers the weights that are more than a share of the sum of all; the others stay.

    If there are fewer than 1 / share weights, all become the smallest.

    >>> capped({"a": 10.0, "b": 1.0, "c": 1.0, "d": 2.0}, 0.5)
    {'a': 4.0, 'b': 1.0, 'c': 1.0, 'd': 2.0}
    """
    descending = sorted(weights.values(), reverse=True)
    for above in range(len(descending)):
        rest = sum(descending[above:])
        most = share * rest / (1 - above * share) if above * share < 1 else descending[-1]
        if descending[above] <= most:
            return {name: min(weight, most) if above else weight for name, weight in weights.items()}
    return dict.fromkeys(weights, descending[-1])


def bounded_weights(weights: Mapping[K, float], sites: Mapping[K, Hashable], share: float | None) -> dict[K, float]:
    """Weights, lowered where those of one site are more than a share of the sum.

    Args:
        weights: by participant, or of what else has weights.
        sites: each one's; what is not named is a site of its own.
        share: the most that one site has; None for no bound.

    >>> bounded_weights({"a": 1e9, "b": 2.0, "c": 2.0}, {}, 0.5)
    {'a': 4.0, 'b': 2.0, 'c': 2.0}
    """
    if share is None:
        return dict(weights)
    totals = sums_by(weights, sites)
    allowed = capped(totals, share)
    factors = {site: allowed[site] / total if total else 1.0 for site, total in totals.items()}
    return {name: weight * factors[sites.get(name, name)] for name, weight in weights.items()}


def sums_by(weights: Mapping[K, float], sites: Mapping[K, Hashable]) -> dict[Hashable, float]:
    """Each site's sum of weights; what is not named is a site of its own."""
    totals: dict[Hashable, float] = {}
    for name, weight in weights.items():
        totals[sites.get(name, name)] = totals.get(sites.get(name, name), 0.0) + weight
    return totals


def reached(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Values as at most `REACH` times the median deviation away from the median of all sites', ``among (n, ...)``.

    Fewer than `FEWEST_VALUES` sites bound nothing.

    >>> reached(np.array([1.0, 1.25, 1e9]), np.array([1.0, 1.25, 1e9]))
    array([1. , 1.25, 2.5 ])
    """
    if len(among) < FEWEST_VALUES:
        return values
    middle = np.median(among)
    reach = REACH * np.median(np.abs(among - middle))
    return np.clip(values, middle - reach, middle + reach)
