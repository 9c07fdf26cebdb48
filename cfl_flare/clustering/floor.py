# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters of a fewest number of sites and samples: the cheapest assignment that has no smaller one.

A cluster's model of a single hospital reveals something of its data. K-means with minimum sizes (Bradley, Bennett and
Demiriz 2000) keeps clusters large enough while it assigns, where merging small ones afterwards would dissolve them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, TypeVar

import numpy as np

from cfl_flare.core.config import require

K = TypeVar("K")
# A mean in which one site has more than this share is that site's model, a little moved.
LARGEST_SHARE = 0.5
# Costs are scaled to this largest value, far above the solver's tolerances of 1e-6.
LARGEST = 1e4
# What rounding leaves of a number of sites.
ROUNDED = 1e-9


class Mixture(int):
    """Several clusters of one participant, with its share of each.

    As a number it is the cluster of the largest share, ties to the lowest. So what reads one cluster reads that.

    Attributes:
        shares: by cluster, each above 0; their sum is 1. Others are divided by their sum.

    >>> mixture = Mixture({0: 0.25, 2: 0.75})
    >>> int(mixture), mixture.shares
    (2, {0: 0.25, 2: 0.75})
    """

    shares: Mapping[int, float]

    def __new__(cls, shares: Mapping[int, float]) -> Mixture:
        total = sum(shares.values())
        valid = all(k >= 0 and 0 <= share < float("inf") for k, share in shares.items()) and 0 < total < float("inf")
        require(valid, f"shares = {dict(shares)} should be finite numbers >= 0 of clusters >= 0, one of them above 0")
        total = 1.0 if abs(total - 1) < ROUNDED else total  # those of a checkpoint stay as they are
        mixture = super().__new__(cls, max(sorted(shares), key=shares.__getitem__))
        mixture.shares = {k: share / total for k, share in sorted(shares.items()) if share}
        return mixture


def shares_of(cluster: int) -> Mapping[int, float]:
    """A participant's share of each of its clusters; all of it in one, unless it has a mixture."""
    return cluster.shares if isinstance(cluster, Mixture) else {cluster: 1.0}


def memberships(assignment: Mapping[str, int]) -> Iterator[tuple[str, int, float]]:
    """Each participant with each of its clusters, and its share of that."""
    return ((name, k, share) for name, cluster in assignment.items() for k, share in shares_of(cluster).items())


def recorded(cluster: int | None) -> dict[str, Any]:
    """A participant's cluster in a record: its number, and the shares of a mixture.

    >>> recorded(1), recorded(Mixture({0: 1, 1: 3}))
    ({'cluster': 1}, {'cluster': 1, 'shares': {'0': 0.25, '1': 0.75}})
    """
    if not isinstance(cluster, Mixture):
        return {"cluster": cluster}
    return {"cluster": int(cluster), "shares": {str(k): share for k, share in cluster.shares.items()}}


@dataclass(frozen=True)
class Floor:
    """The fewest sites and training samples of a cluster, below which its model says too much about them.

    A floor of one sample is none, as a training script's weights may be shares.
    """

    sites: int
    samples: int

    @property
    def words(self) -> str:
        """``3 sites and 30 training samples``."""
        return f"{self.sites} sites and {self.samples} training samples"

    def clusters(self, sites: Collection[str], samples: float) -> int:
        """How many clusters can be, at least one; a site can be in as many as it has participants, each an entry.

        >>> Floor(3, 30).clusters(["a", "b", "c", "d", "e", "f", "f"], 1000)
        2
        """
        hosted = Counter(sites).values()
        most = len(sites) // self.sites
        most = min(most, int(samples // self.samples)) if self.samples > 1 else most
        return next((k for k in range(most, 1, -1) if sum(min(n, k) for n in hosted) >= k * self.sites), 1)


@dataclass
class Members:
    """Where the members of a cluster are, by each site's share, at most 1, and their training samples, by shares."""

    sites: dict[str, float] = field(default_factory=dict)
    samples: float = 0

    def add(self, site: str, samples: float, share: float = 1.0) -> None:
        self.sites[site] = min(1.0, self.sites.get(site, 0.0) + share)
        self.samples += samples * share

    @property
    def effective_sites(self) -> float:
        """How many sites with equal shares would weigh as evenly (Kish 1965); the number of sites if all shares are 1.

        >>> round(Members({"a": 1.0, "b": 1.0, "c": 0.01}).effective_sites, 2)
        2.02
        """
        squares = sum(share**2 for share in self.sites.values())
        return sum(self.sites.values()) ** 2 / squares if squares else 0.0

    def below(self, floor: Floor) -> bool:
        few = self.effective_sites < floor.sites - ROUNDED
        return few or (floor.samples > 1 and self.samples < floor.samples)


@dataclass(frozen=True)
class Census:
    """Who is where in a round, and what a cluster needs.

    Attributes:
        moved: participants that `Sizes` kept out of their best cluster, with that; it fills while a round assigns.
    """

    floor: Floor
    sites: Mapping[str, str]
    samples: Mapping[str, float]
    moved: dict[str, int] = field(default_factory=dict)

    @cached_property
    def clusters(self) -> int:
        return self.floor.clusters(list(self.sites.values()), sum(self.samples.values()))

    def members(self, memberships: Iterable[tuple[str, K, float]]) -> dict[K, Members]:
        """By cluster, or any other group, its members; a hospital with several participants counts once."""
        groups: dict[K, Members] = {}
        for name, group, share in memberships:
            if name in self.sites:
                groups.setdefault(group, Members()).add(self.sites[name], self.samples[name], share)
        return groups

    def small(self, memberships: Iterable[tuple[str, K, float]]) -> set[K]:
        """The groups that are below the floor.

        >>> where = {"a": "one", "b": "two", "c": "one"}
        >>> Census(Floor(2, 1), where, dict.fromkeys(where, 1)).small(memberships({"a": 0, "b": 0, "c": 4}))
        {4}
        """
        return {group for group, members in self.members(memberships).items() if members.below(self.floor)}

    def of(self, names: Sequence[str], assignment: Mapping[str, int]) -> Sizes:
        """The floor for these participants, while all others stay where an assignment has them."""
        rows = set(names)
        others = {name: cluster for name, cluster in assignment.items() if name not in rows}
        before = frozenset(self.members(memberships(assignment)))
        return Sizes(self, tuple(names), self.members(memberships(others)), before)


@dataclass(frozen=True)
class Sizes:
    """The needs of the clusters of some participants, one a row.

    Attributes:
        others: by cluster, the members that are no row: they are absent from the round, or were placed otherwise.
        occupied: the clusters that had members before.
    """

    census: Census
    names: tuple[str, ...]
    others: Mapping[int, Members]
    occupied: frozenset[int] = frozenset()

    @property
    def clusters(self) -> int:
        """How many clusters the rows alone can make."""
        sites, samples = self.census.sites, self.census.samples
        return self.census.floor.clusters([sites[n] for n in self.names], sum(samples[n] for n in self.names))

    def used(self, labels: np.ndarray) -> set[int]:
        return {*labels.tolist(), *self.others}

    def met(self, labels: np.ndarray, needed: Collection[int] = ()) -> bool:
        """Whether each cluster in use is large enough, and each that is needed is in use."""
        return self.occupied.union(needed) <= self.used(labels) and not any(
            m.below(self.census.floor) for m in self._with(labels)
        )

    def _with(self, labels: np.ndarray) -> list[Members]:
        everyone = self.census.members(zip(self.names, labels.tolist(), repeat(1.0)))
        for k, others in self.others.items():
            members = everyone.setdefault(k, Members())
            members.samples += others.samples
            for site, share in others.sites.items():
                members.add(site, 0, share)
        return [everyone[k] for k in sorted(self.used(labels))]

    def assigned(self, labels: np.ndarray, costs: Callable[[], np.ndarray], needed: Collection[int] = ()) -> np.ndarray:
        """The labels, if they meet the floor; else the cheapest ones that do.

        Clusters in use stay in use, and those of before. If the rows are too few for all, the smallest ones are given
        up. If not even all rows together meet the floor, the labels stay as they are.

        Args:
            labels: ``(m,)``, the best cluster of each row.
            costs: computes, if needed, the cost ``(m, K)`` of a row in a cluster, such as weighted squared distances.
            needed: further clusters that should be in use.
        """
        placed, needed = labels, self.used(labels).union(self.occupied, needed)
        if not self.met(labels, needed):
            placed = self._cheapest(labels, costs(), needed)
        self.note(labels, placed)
        return placed

    def note(self, wanted: np.ndarray, placed: np.ndarray) -> None:
        """Notes who is not in the cluster that would be best without a floor."""
        for name, best, cluster in zip(self.names, wanted.tolist(), placed.tolist()):
            self.census.moved.pop(name, None)
            if best != cluster:
                self.census.moved[name] = best

    def _cheapest(self, labels: np.ndarray, costs: np.ndarray, needed: set[int]) -> np.ndarray:
        """The best labels that meet the floor; with fewer clusters, if need be."""
        sizes = dict(zip(sorted(self.used(labels)), self._with(labels)))
        no = Members()
        there = {k for k in needed if k < costs.shape[1]}
        order = sorted(there, key=lambda k: (-sizes.get(k, no).effective_sites, -sizes.get(k, no).samples, k))
        for count in range(len(order), 0, -1):
            clusters = np.array(sorted(order[:count]))
            places = self._solved(costs[:, clusters], [self.others.get(k, no) for k in clusters.tolist()])
            if places is not None:
                return np.asarray(clusters[places])
        return labels

    def _solved(self, costs: np.ndarray, others: Sequence[Members]) -> np.ndarray | None:
        """The cheapest column of each row such that all columns meet the floor; None if no choice does.

        A mixed-integer program: x_ik says that row i is in column k. A site of several rows counts in column k by a
        variable of its own, which is at most 1 and at most the sum of its x_ik. Without such sites, and where samples
        do not bind, it is a transport problem, whose linear program has whole solutions.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        (m, k), floor = costs.shape, self.census.floor
        sites = [self.census.sites[name] for name in self.names]
        rows_at: dict[str, list[int]] = {}
        for i, site in enumerate(sites):
            rows_at.setdefault(site, []).append(i)
        entries: list[tuple[int, int, float]] = []  # constraint, variable, coefficient
        low = [1.0] * m
        high = [1.0] * m
        entries += [(i, i * k + j, 1.0) for i in range(m) for j in range(k)]
        variables = m * k
        for j, members in enumerate(others):
            counts, samples = len(low), len(low) + 1
            low += [
                floor.sites - members.effective_sites,
                floor.samples - members.samples if floor.samples > 1 else 0.0,
            ]
            high += [np.inf, np.inf]
            entries += [(samples, i * k + j, float(self.census.samples[n])) for i, n in enumerate(self.names)]
            for site, rows in rows_at.items():
                if site in members.sites:
                    continue
                if len(rows) == 1:
                    entries.append((counts, rows[0] * k + j, 1.0))
                    continue
                entries += [(counts, variables, 1.0), (len(low), variables, -1.0)]
                entries += [(len(low), i * k + j, 1.0) for i in rows]
                low, high, variables = [*low, 0.0], [*high, np.inf], variables + 1
        at, of, values = zip(*entries)
        matrix = coo_array((values, (at, of)), shape=(len(low), variables)).tocsr()
        objective, integral = np.zeros(variables), np.zeros(variables)
        objective[: m * k], integral[: m * k] = _scaled(costs).ravel(), 1
        options = {"node_limit": 1000, "mip_rel_gap": 0.0}  # unlike a time limit, the same answer on any machine
        constraints = LinearConstraint(matrix, low, high)
        solution = milp(objective, integrality=integral, bounds=Bounds(0, 1), constraints=constraints, options=options)
        return None if solution.x is None else solution.x[: m * k].reshape(m, k).argmax(axis=1)


def _scaled(costs: np.ndarray) -> np.ndarray:
    """What each choice costs more than the row's best one, up to a common factor; finite."""
    finite = np.where(np.isfinite(costs), costs, np.nan)
    best = np.where(np.isfinite(costs).any(axis=1), np.nanmin(np.where(np.isnan(finite), np.inf, finite), axis=1), 0.0)
    extra = finite - best[:, None]
    most = np.nanmax(extra, initial=0.0) or 1.0
    return np.asarray(np.nan_to_num(extra / most * LARGEST, nan=10 * LARGEST))
