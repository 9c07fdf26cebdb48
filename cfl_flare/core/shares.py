# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""No single voice decides, and none can be told: bounds of weights, of values, and of what sums of members reveal."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from itertools import combinations
from math import comb
from typing import TypeVar

import numpy as np

from cfl_flare.core.errors import DifferenceError

K = TypeVar("K", bound=Hashable)
# A value counts as at most this many median deviations away from the median.
REACH = 5.0
# Among fewer values, the outlier cannot be told.
FEWEST_VALUES = 3
# A value is at most this many ranges of the others outside them. Fewer values would often be bounded by chance.
RANGES = 2.0
FEWEST_BOUNDED = 5
# More groups than this take minutes to look at.
MOST_GROUPS = 2_000_000


def capped(weights: Mapping[K, float], share: float) -> dict[K, float]:
    """Lowers the weights that are more than a share of the sum of all; the others stay.

    If there are fewer than 1 / share weights, all become the smallest.

    >>> capped({"a": 10.0, "b": 1.0, "c": 1.0, "d": 2.0}, 0.5)
    {'a': 4.0, 'b': 1.0, 'c': 1.0, 'd': 2.0}
    """
    descending = sorted(weights.values(), reverse=True)
    for above in range(len(descending)):
        rest = sum(descending[above:])
        most = (
            share * rest / (1 - above * share) if above * share < 1 else descending[-1]
        )
        if descending[above] <= most:
            return {
                name: min(weight, most) if above else weight
                for name, weight in weights.items()
            }
    return dict.fromkeys(weights, descending[-1])


def bounded_weights(
    weights: Mapping[K, float], sites: Mapping[K, Hashable], share: float | None
) -> dict[K, float]:
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
    factors = {
        site: allowed[site] / total if total else 1.0 for site, total in totals.items()
    }
    return {
        name: weight * factors[sites.get(name, name)]
        for name, weight in weights.items()
    }


def sums_by(
    weights: Mapping[K, float], sites: Mapping[K, Hashable]
) -> dict[Hashable, float]:
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


def bound_extremes(values: np.ndarray) -> np.ndarray:
    """Bound the lowest and the highest value by the others.

    A value is at most `RANGES` times as far outside the others as these are apart from one another. So one hospital
    cannot move a mean without a bound, and several hospitals that differ from the others are not cut.

    Args:
        values: ``(n,)``. Fewer than `FEWEST_BOUNDED` stay as they are.

    >>> bound_extremes(np.array([1.0, 1.25, 1.25, 1.5, 1e9]))
    array([1.  , 1.25, 1.25, 1.5 , 2.5 ])
    """
    if len(values) < FEWEST_BOUNDED:
        return values
    ascending = np.sort(values)
    most = ascending[-2] + RANGES * (ascending[-2] - ascending[0])
    least = ascending[1] - RANGES * (ascending[-1] - ascending[1])
    return np.clip(values, least, most)


def exposed(sums: Collection[Collection[str]], floor: int) -> set[frozenset[str]]:
    """The smallest groups of fewer than ``floor`` members whose weighted sum follows from these sums.

    All combinations of sums count, not only differences of two. Members of the same sums cannot be told apart, so they
    count as one class. A group follows if the space that the sums span has a vector in it.

    Args:
        sums: the members of each.
        floor: the fewest members of whom a sum may follow.

    Raises:
        DifferenceError: there are too many groups to look at.

    >>> four, three = frozenset("abcd"), frozenset("abc")
    >>> exposed([four, three], 3), exposed([four], 3)
    ({frozenset({'d'})}, set())
    >>> frozenset("c") in exposed([frozenset("abc"), frozenset("cde"), frozenset("abde")], 2)  # from all three alone
    True
    """
    classes: dict[tuple[bool, ...], list[str]] = {}
    for member in sorted(frozenset().union(*sums)):
        classes.setdefault(tuple(member in members for members in sums), []).append(
            member
        )
    small = [i for i, members in enumerate(classes.values()) if len(members) < floor]
    if not small:
        return set()
    many = sum(comb(len(small), count) for count in range(1, floor))
    if many > MOST_GROUPS:
        raise DifferenceError(
            f"{len(sums)} means leave {many:,} groups of fewer than {floor} sites to look at, above {MOST_GROUPS:,}. "
            "So nobody knows whether a model of few follows; lower min_sites_per_cluster, or take another seed"
        )
    rows, names = np.array([*classes], np.float64), [*classes.values()]
    projector = rows @ np.linalg.pinv(rows)
    groups: set[frozenset[str]] = set()
    for count in range(1, floor):
        for chosen in combinations(small, count):
            group = frozenset(name for i in chosen for name in names[i])
            if len(group) >= floor or any(known <= group for known in groups):
                continue
            if (
                np.linalg.eigvalsh(projector[np.ix_(chosen, chosen)])[-1] > 1 - 1e-6
            ):  # of 1: the sum follows exactly
                groups.add(group)
    return groups
