# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters of a fewest number of sites and samples: the cheapest assignment that has no smaller one.

A cluster's model of a single hospital reveals something of its data. K-means with minimum sizes (Bradley, Bennett and
Demiriz 2000) keeps clusters large enough while it assigns, where merging small ones afterwards would dissolve them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from cfl_flare.clustering.floor_search import Needs, search_assignment

K = TypeVar("K")
# A mean in which one site has more than this share is that site's model, a little moved.
LARGEST_SHARE = 0.5
# Costs are scaled to this largest value, far above the solver's tolerances of 1e-6.
LARGEST = 1e4
# Pairs of a participant and a cluster up to which an assignment is the cheapest one. Beyond, a search with bounded work
# takes the exact program's place, see `cfl_flare.clustering.floor_search`.
EXACT = 100
# Nodes of the exact program's search tree. Unlike a limit on time, it gives the same answer on any machine.
NODES = 10


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

    def clusters(
        self,
        sites: Collection[str],
        samples: float,
    ) -> int:
        """Count the clusters that can be large enough, at least one.

        Args:
            sites: the site of each participant. A site can be in as many clusters as it
                has participants.
            samples: the training samples of all participants together.

        Returns:
            The largest number of clusters.

        >>> Floor(3, 30).clusters(["a", "b", "c", "d", "e", "f", "f"], 1000)
        2
        """
        hosted = Counter(sites).values()
        most = len(sites) // self.sites
        if self.samples > 1:
            most = min(most, int(samples // self.samples))
        for count in range(most, 1, -1):
            # A site is in each cluster at most once.
            places = sum(min(participants, count) for participants in hosted)
            if places >= count * self.sites:
                return count
        return 1


@dataclass
class Members:
    """The members of a cluster: the sites that host them, and the number of their training samples."""

    sites: set[str] = field(default_factory=set)
    samples: float = 0

    def add(
        self,
        site: str,
        samples: float,
    ) -> None:
        """Counts a member; ``samples`` are its training samples.

        Args:
            site: the site that hosts the member.
            samples: the member's training samples.
        """
        self.sites.add(site)
        self.samples += samples

    def below(self, floor: Floor) -> bool:
        """Whether the cluster has fewer sites or training samples than a floor asks.

        Args:
            floor: the minimum size.
        """
        if len(self.sites) < floor.sites:
            return True
        return floor.samples > 1 and self.samples < floor.samples


@dataclass(frozen=True)
class Census:
    """Who is where in a round, and what a cluster needs.

    Attributes:
        moved: participants that `Sizes` kept out of their best cluster, with that; it fills while a round assigns.
        gaps: for each assignment that a search found, how much dearer it is at most than the cheapest one, as a part.
    """

    floor: Floor
    sites: Mapping[str, str]
    samples: Mapping[str, float]
    moved: dict[str, int] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)

    @cached_property
    def clusters(self) -> int:
        return self.floor.clusters(
            list(self.sites.values()), sum(self.samples.values())
        )

    def members(self, pairs: Iterable[tuple[str, K]]) -> dict[K, Members]:
        """Groups participants: by cluster, or any other group, its members.

        Args:
            pairs: a participant's name and its group, such as ``assignment.items()``. A name that is not in the census
                counts nowhere.
        """
        groups: dict[K, Members] = {}
        for name, group in pairs:
            if name in self.sites:
                groups.setdefault(group, Members()).add(
                    self.sites[name], self.samples[name]
                )
        return groups

    def small(self, pairs: Iterable[tuple[str, K]]) -> set[K]:
        """The groups that are below the floor; ``pairs`` as for `members`.

        Args:
            pairs: a participant's name and its group.

        >>> where = {"a": "one", "b": "two", "c": "one"}
        >>> Census(Floor(2, 1), where, dict.fromkeys(where, 1)).small({"a": 0, "b": 0, "c": 4}.items())
        {4}
        """
        return {
            group
            for group, members in self.members(pairs).items()
            if members.below(self.floor)
        }

    def of(
        self,
        names: Sequence[str],
        assignment: Mapping[str, int],
    ) -> Sizes:
        """The floor for these participants, while all others stay where an assignment has them.

        Args:
            names: the participants that are to be assigned.
            assignment: the cluster of each participant so far.
        """
        rows = set(names)
        others = {
            name: cluster for name, cluster in assignment.items() if name not in rows
        }
        before = frozenset(self.members(assignment.items()))
        return Sizes(self, tuple(names), self.members(others.items()), before)


@dataclass
class Program:
    """The constraints of a linear program, which are added one by one.

    Attributes:
        variables: how many variables there are.
        low: the smallest value of each constraint.
        high: the largest value of each constraint.
        terms: constraint, variable and coefficient of each term.
    """

    variables: int
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    terms: list[tuple[int, int, float]] = field(default_factory=list)

    def add_constraint(self, low: float, high: float) -> None:
        """Add a constraint, whose terms follow.

        Args:
            low: its smallest value.
            high: its largest value.
        """
        self.low.append(low)
        self.high.append(high)

    def add_term(self, variable: int, coefficient: float) -> None:
        """Add a term to the last constraint.

        Args:
            variable: the number of the variable.
            coefficient: its factor.
        """
        self.terms.append((len(self.low) - 1, variable, coefficient))

    def add_any(self, variables: Sequence[int]) -> int:
        """Add a variable that is at most 1 and at most the sum of others.

        Args:
            variables: the numbers of the others.

        Returns:
            The number of the new variable.
        """
        added = self.variables
        self.variables += 1
        self.add_constraint(0.0, np.inf)
        self.add_term(added, -1.0)
        for variable in variables:
            self.add_term(variable, 1.0)
        return added

    def build_constraints(self) -> Any:
        """Build the constraints as scipy takes them."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        constraints, variables, coefficients = zip(*self.terms)
        shape = (len(self.low), self.variables)
        matrix = coo_array((coefficients, (constraints, variables)), shape=shape)
        return LinearConstraint(matrix.tocsr(), self.low, self.high)


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
        sites = self.census.sites
        samples = self.census.samples
        return self.census.floor.clusters(
            [sites[n] for n in self.names], sum(samples[n] for n in self.names)
        )

    def used(self, labels: np.ndarray) -> set[int]:
        """The clusters that have members.

        Args:
            labels: the cluster of each row ``(m,)``.
        """
        return {*labels.tolist(), *self.others}

    def met(
        self,
        labels: np.ndarray,
        needed: Collection[int] = (),
    ) -> bool:
        """Whether each cluster in use is large enough, and each that is needed is in use.

        Args:
            labels: the cluster of each row ``(m,)``.
            needed: clusters that should be in use.
        """
        return self.occupied.union(needed) <= self.used(labels) and not any(
            m.below(self.census.floor) for m in self._with(labels)
        )

    def _with(self, labels: np.ndarray) -> list[Members]:
        everyone = self.census.members(zip(self.names, labels.tolist()))
        for k, others in self.others.items():
            members = everyone.setdefault(k, Members())
            members.sites |= others.sites
            members.samples += others.samples
        return [everyone[k] for k in sorted(self.used(labels))]

    def assigned(
        self,
        labels: np.ndarray,
        costs: Callable[[], np.ndarray],
        needed: Collection[int] = (),
    ) -> np.ndarray:
        """The labels, if they meet the floor; else the cheapest ones that do.

        Clusters in use stay in use, and those of before. If the rows are too few for all, the smallest ones are given
        up. If not even all rows together meet the floor, the labels stay as they are.

        Args:
            labels: ``(m,)``, the best cluster of each row.
            costs: computes, if needed, the cost ``(m, K)`` of a row in a cluster, such as weighted squared distances.
            needed: further clusters that should be in use.
        """
        placed = labels
        needed = self.used(labels).union(self.occupied, needed)
        if not self.met(labels, needed):
            placed = self._cheapest(labels, costs(), needed)
        self.note(labels, placed)
        return placed

    def note(
        self,
        wanted: np.ndarray,
        placed: np.ndarray,
    ) -> None:
        """Notes who is not in the cluster that would be best without a floor.

        Args:
            wanted: the best cluster of each row ``(m,)``.
            placed: the cluster in which each row is ``(m,)``.
        """
        for name, best, cluster in zip(self.names, wanted.tolist(), placed.tolist()):
            self.census.moved.pop(name, None)
            if best != cluster:
                self.census.moved[name] = best

    def _cheapest(
        self,
        labels: np.ndarray,
        costs: np.ndarray,
        needed: set[int],
    ) -> np.ndarray:
        """The best labels that meet the floor; with fewer clusters, if need be."""
        nobody = Members()
        sizes = dict(zip(sorted(self.used(labels)), self._with(labels)))

        def rank(cluster: int) -> tuple[int, float, int]:
            members = sizes.get(cluster, nobody)
            return -len(members.sites), -members.samples, cluster

        # If the rows are too few for all clusters, the smallest ones are given up.
        order = sorted((k for k in needed if k < costs.shape[1]), key=rank)
        for count in range(len(order), 0, -1):
            clusters = np.array(sorted(order[:count]))
            others = [self.others.get(k, nobody) for k in clusters.tolist()]
            places = self._solve(costs[:, clusters], others)
            if places is not None:
                return np.asarray(clusters[places])
        return labels

    def _solve(
        self,
        costs: np.ndarray,
        others: Sequence[Members],
    ) -> np.ndarray | None:
        """Find the cheapest column of each row such that all columns meet the floor.

        Of more than `EXACT` pairs of a row and a column, only the linear program is
        solved, and a search starts at its rounded solution.

        Returns:
            ``(m,)``, or None if no choice meets the floor, or the search found none.
        """
        from scipy.optimize import Bounds, milp

        rows, columns = costs.shape
        pairs = rows * columns
        program = self._build_program(columns, others)
        objective = np.zeros(program.variables)
        objective[:pairs] = _scale_costs(costs).ravel()
        integrality = np.zeros(program.variables)
        integrality[:pairs] = 1
        is_exact = pairs <= EXACT
        solution = milp(
            objective,
            integrality=integrality if is_exact else None,
            bounds=Bounds(0, 1),
            constraints=program.build_constraints(),
            options={"node_limit": NODES, "mip_rel_gap": 0.0},
        )
        if solution.x is None:
            return None
        fractions = solution.x[:pairs].reshape(rows, columns)
        if is_exact:
            return np.asarray(fractions.argmax(axis=1))
        needs = self._needs(_scale_costs(costs), others)
        found = search_assignment(needs, fractions)
        if found is not None:
            gap = _measure_gap(costs, needs.costs, found, float(solution.fun))
            self.census.gaps.append(gap)
        return found

    def _build_program(self, columns: int, others: Sequence[Members]) -> Program:
        """Build the constraints of the mixed-integer program.

        The variable x_ik states that row i is in column k. A site of several rows
        counts in column k by a variable of its own, which is at most 1 and at most the
        sum of its x_ik. If there is no such site and samples do not bind, it is a
        transport problem, whose linear program has whole solutions.
        """
        census = self.census
        floor = census.floor
        program = Program(variables=len(self.names) * columns)
        rows_at: dict[str, list[int]] = {}
        for row, name in enumerate(self.names):
            rows_at.setdefault(census.sites[name], []).append(row)

            # Each row is in one column.
            program.add_constraint(1.0, 1.0)
            for column in range(columns):
                program.add_term(row * columns + column, 1.0)
        for column, members in enumerate(others):
            # The column has enough samples.
            least = floor.samples - members.samples if floor.samples > 1 else 0.0
            program.add_constraint(least, np.inf)
            for row, name in enumerate(self.names):
                program.add_term(row * columns + column, float(census.samples[name]))

            # The column has enough sites.
            counted = []
            for site, rows in rows_at.items():
                if site in members.sites:
                    continue
                places = [row * columns + column for row in rows]
                if len(places) > 1:
                    places = [program.add_any(places)]
                counted += places
            program.add_constraint(floor.sites - len(members.sites), np.inf)
            for variable in counted:
                program.add_term(variable, 1.0)
        return program

    def _needs(
        self,
        costs: np.ndarray,
        others: Sequence[Members],
    ) -> Needs:
        """The rows and what each column needs besides its other members."""
        census = self.census
        names = [census.sites[name] for name in self.names]
        distinct = sorted(set(names))
        present = [[site in members.sites for members in others] for site in distinct]
        floor = census.floor
        samples = [
            floor.samples - members.samples if floor.samples > 1 else 0.0
            for members in others
        ]
        return Needs(
            costs=costs,
            sites=np.array([distinct.index(name) for name in names]),
            samples=np.array([float(census.samples[name]) for name in self.names]),
            present=np.array(present, bool).reshape(len(distinct), len(others)),
            missing_sites=np.array(
                [floor.sites - len(members.sites) for members in others]
            ),
            missing_samples=np.array(samples),
        )


def _measure_gap(
    costs: np.ndarray,
    scaled: np.ndarray,
    labels: np.ndarray,
    bound: float,
) -> float:
    """How much dearer an assignment is at most than the cheapest one, as a part of that; 0 if that is not known.

    Args:
        costs: ``(m, k)``.
        scaled: as `_scale_costs` makes them.
        labels: ``(m,)``, the assignment.
        bound: what no assignment's scaled costs are below.
    """
    rows = np.arange(len(labels))
    extra = scaled[rows, labels].sum()
    total = costs[rows, labels].sum()
    best = costs.min(axis=1).sum()
    if not np.isfinite(total) or extra <= bound:
        return 0.0
    cheapest = best + (total - best) * bound / extra
    return float(total / cheapest - 1) if cheapest > 0 else 0.0


def _scale_costs(costs: np.ndarray) -> np.ndarray:
    """What each choice costs more than the row's best one, up to a common factor; finite."""
    finite = np.where(np.isfinite(costs), costs, np.nan)
    best = np.where(
        np.isfinite(costs).any(axis=1),
        np.nanmin(np.where(np.isnan(finite), np.inf, finite), axis=1),
        0.0,
    )
    extra = finite - best[:, None]
    most = np.nanmax(extra, initial=0.0) or 1.0
    return np.asarray(np.nan_to_num(extra / most * LARGEST, nan=10 * LARGEST))
