# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sums that follow from several means by subtraction, of too few members to be told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from math import comb

import numpy as np

from cfl_flare.core.errors import DifferenceError

# An eigenvalue of 1 says that a sum follows exactly; this is what rounding leaves of it.
EXACT = 1 - 1e-6
# More groups than this take minutes to look at.
MOST_GROUPS = 2_000_000


def exposed(sums: Collection[Collection[str]], floor: int) -> set[frozenset[str]]:
    """The smallest groups of fewer than ``floor`` members whose weighted sum follows from these sums.

    All combinations of sums count, not differences of two alone. Members with the same shares of all sums cannot be
    told apart, so they count as one class. A group follows if the space that the sums span has a vector in it.

    Args:
        sums: the members of each; in a mapping, each member's share.
        floor: the fewest members of whom a sum may follow.

    Raises:
        DifferenceError: there are too many groups to look at.

    >>> four, three = frozenset("abcd"), frozenset("abc")
    >>> exposed([four, three], 3), exposed([four], 3)
    ({frozenset({'d'})}, set())
    >>> frozenset("c") in exposed([frozenset("abc"), frozenset("cde"), frozenset("abde")], 2)  # from all three alone
    True
    >>> exposed([{"a": 1, "b": 1, "c": 0.5}, {"a": 1, "b": 1, "c": 0.25}], 2)
    {frozenset({'c'})}
    """
    shares = [of if isinstance(of, Mapping) else dict.fromkeys(of, 1.0) for of in sums]
    classes: dict[tuple[float, ...], list[str]] = {}
    for member in sorted(frozenset().union(*shares)):
        classes.setdefault(tuple(of.get(member, 0.0) for of in shares), []).append(member)
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
            if np.linalg.eigvalsh(projector[np.ix_(chosen, chosen)])[-1] > EXACT:
                groups.add(group)
    return groups
