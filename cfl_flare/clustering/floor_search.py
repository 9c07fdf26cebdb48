# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Assignments with minimum sizes for many participants: a linear program, rounded, and a search with bounded work.

An exact mixed-integer program takes seconds for 60 participants and minutes for more, on each step of k-means. Its
linear relaxation takes milliseconds. Few rows of the relaxation are split between clusters: at most one for each
constraint on a cluster. They are rounded, moves and exchanges of participants repair what rounding broke, and further
ones make the assignment cheaper. The relaxation's cost bounds how much cheaper any other assignment can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Pairs of participants that a search looks at, in all of its steps. The same number on any machine.
PAIRS = 10_000_000
# Steps of a search, at least. Beyond so many participants, only moves are tried and no exchanges.
FEWEST_STEPS = 50
MOST_EXCHANGED = 1500
# Less than rounding makes of costs and of violations.
NOTHING = 1e-9


@dataclass(frozen=True)
class Needs:
    """Rows, one for each participant, and what each column, a cluster, needs.

    Attributes:
        costs: ``(m, k)``, finite.
        sites: ``(m,)``, the number of each row's site, from 0.
        samples: ``(m,)``.
        present: ``(sites, k)`` bool, the sites that a column has by members that are no row.
        missing_sites: ``(k,)``, the sites that a column needs besides those.
        missing_samples: ``(k,)``, likewise.
    """

    costs: np.ndarray
    sites: np.ndarray
    samples: np.ndarray
    present: np.ndarray
    missing_sites: np.ndarray
    missing_samples: np.ndarray

    def count_sites(self, labels: np.ndarray) -> np.ndarray:
        """The rows of each site in each column, ``(sites, k)``.

        Args:
            labels: the column of each row ``(m,)``.
        """
        counts = np.zeros(self.present.shape, np.int64)
        np.add.at(counts, (self.sites, labels), 1)
        return counts

    def measure_lack(
        self,
        sites: np.ndarray,
        samples: np.ndarray,
        columns: np.ndarray,
    ) -> np.ndarray:
        """How far columns are from what they need, in parts of it; 0 where they have it. All arguments broadcast.

        Args:
            sites: numbers of sites.
            samples: numbers of samples.
            columns: the numbers of the columns.
        """
        needed_sites = self.missing_sites[columns]
        lack_of_sites = np.maximum(needed_sites - sites, 0) / np.maximum(
            needed_sites, 1
        )
        needed_samples = self.missing_samples[columns]
        lack_of_samples = np.maximum(needed_samples - samples, 0) / np.maximum(
            needed_samples, 1
        )
        return np.asarray(lack_of_sites + lack_of_samples)


@dataclass(frozen=True)
class Steps:
    """What each move of a row to another column, or each exchange of two rows, would change.

    Attributes:
        lack: ``(m, k)`` or ``(m, m)``, the change of the sum of what columns lack.
        costs: the change of the cost.
    """

    lack: np.ndarray
    costs: np.ndarray


@dataclass(frozen=True)
class State:
    """An assignment in numbers.

    Attributes:
        held: ``(k,)``, the sites that rows bring to a column.
        samples: ``(k,)``, the rows' samples in a column.
        lack: ``(k,)``, see `Needs.measure_lack`.
        costs: ``(m,)``, of each row where it is.
        leaves: ``(m,)`` bool, a row's column loses a site if the row leaves it.
        brings: ``(m, k)`` bool, a column gains a site if the row enters it.
    """

    held: np.ndarray
    samples: np.ndarray
    lack: np.ndarray
    costs: np.ndarray
    leaves: np.ndarray
    brings: np.ndarray


class Search:
    """A search from one assignment, step by step, until nothing gets better or the work is done.

    Args:
        needs: of the columns.
        labels: ``(m,)``, where it begins.

    Attributes:
        labels: the assignment so far.
        steps: how many steps are left.
    """

    def __init__(
        self,
        needs: Needs,
        labels: np.ndarray,
    ):
        rows, columns = needs.costs.shape
        self.labels = labels.copy()
        self.steps = max(FEWEST_STEPS, PAIRS // (rows * (rows + columns)))
        self._needs = needs
        self._exchanges = rows <= MOST_EXCHANGED

    def repair(self) -> bool:
        """Takes the steps that cost least for what they repair; returns whether all columns have what they need."""
        while self._measure_lack().sum() > NOTHING:
            if not self._step(repairing=True):
                return False
        return True

    def improve(self) -> None:
        """Takes steps that make the assignment cheaper and break nothing."""
        while self._step(repairing=False):
            pass

    def _step(self, repairing: bool) -> bool:
        """Takes the best step; returns whether there was one."""
        if not self.steps:
            return False
        self.steps -= 1
        best = np.inf
        chosen: tuple[int, int, bool] | None = None
        for is_exchange, steps in self._list_steps():
            worth = self._rate_steps(steps, repairing)
            place = int(worth.argmin())
            if worth.flat[place] < best:
                best = float(worth.flat[place])
                row, other = divmod(place, worth.shape[1])
                chosen = (row, other, is_exchange)
        if chosen is None:
            return False
        row, other, is_exchange = chosen
        if is_exchange:
            self.labels[[row, other]] = self.labels[[other, row]]
        else:
            self.labels[row] = other
        return True

    def _rate_steps(
        self,
        steps: Steps,
        repairing: bool,
    ) -> np.ndarray:
        """What each step costs, for as much as it repairs if that is wanted; infinity for steps that are useless."""
        if repairing:
            is_useful = steps.lack < -NOTHING
            repaired = np.where(is_useful, -steps.lack, 1.0)
            return np.where(is_useful, steps.costs / repaired, np.inf)
        is_useful = (steps.lack <= NOTHING) & (steps.costs < -NOTHING)
        return np.where(is_useful, steps.costs, np.inf)

    def _list_steps(self) -> Iterator[tuple[bool, Steps]]:
        """Yields the moves of a row to another column, and then, marked by True, the exchanges of two rows."""
        state = self._read_state()
        yield False, self._list_moves(state)
        if self._exchanges:
            yield True, self._list_exchanges(state)

    def _read_state(self) -> State:
        needs = self._needs
        rows = np.arange(len(self.labels))
        columns = np.arange(needs.costs.shape[1])
        counts = needs.count_sites(self.labels)
        held = self._count_held(counts)
        samples = np.bincount(self.labels, needs.samples, len(columns))
        present = needs.present[needs.sites]
        of_site = counts[needs.sites]
        is_only = of_site[rows, self.labels] == 1
        return State(
            held=held,
            samples=samples,
            lack=needs.measure_lack(held, samples, columns),
            costs=needs.costs[rows, self.labels],
            leaves=is_only & ~present[rows, self.labels],
            brings=(of_site == 0) & ~present,
        )

    def _list_moves(self, state: State) -> Steps:
        needs = self._needs
        labels = self.labels
        columns = np.arange(len(state.held))
        rows = np.arange(len(labels))

        sites_behind = state.held[labels] - state.leaves
        samples_behind = state.samples[labels] - needs.samples
        lack_behind = needs.measure_lack(sites_behind, samples_behind, labels)

        sites_ahead = state.held + state.brings
        samples_ahead = state.samples + needs.samples[:, None]
        lack_ahead = needs.measure_lack(sites_ahead, samples_ahead, columns)

        change_behind = lack_behind - state.lack[labels]
        change_ahead = lack_ahead - state.lack
        lack = change_behind[:, None] + change_ahead
        lack[rows, labels] = 0
        costs = needs.costs - state.costs[:, None]
        return Steps(lack, costs)

    def _list_exchanges(self, state: State) -> Steps:
        """What changes if row i and row j change places; two rows of one site change no column's sites."""
        needs = self._needs
        labels = self.labels
        is_apart = needs.sites[:, None] != needs.sites

        # In the column of row i, row j takes its place.
        sites_gained = (
            state.brings[:, labels].T.astype(np.int64) - state.leaves[:, None]
        )
        samples_gained = needs.samples - needs.samples[:, None]
        sites = state.held[labels][:, None] + sites_gained * is_apart
        samples = state.samples[labels][:, None] + samples_gained
        lack = needs.measure_lack(sites, samples, labels[:, None])
        change = lack - state.lack[labels][:, None]

        both = change + change.T
        both[labels[:, None] == labels] = 0
        costs = needs.costs[:, labels] - state.costs[:, None]
        return Steps(both, costs + costs.T)

    def _count_held(self, counts: np.ndarray) -> np.ndarray:
        return np.asarray(((counts > 0) & ~self._needs.present).sum(axis=0))

    def _measure_lack(self) -> np.ndarray:
        needs = self._needs
        columns = np.arange(needs.costs.shape[1])
        samples = np.bincount(self.labels, needs.samples, len(columns))
        return needs.measure_lack(
            self._count_held(needs.count_sites(self.labels)), samples, columns
        )


def search_assignment(
    needs: Needs,
    shares: np.ndarray,
) -> np.ndarray | None:
    """Finds a cheap assignment in which each column has what it needs.

    Args:
        needs: of the columns.
        shares: ``(m, k)``, how much of each row a linear program puts into each column.

    Returns:
        The column of each row ``(m,)``; None if the search found no such assignment.
    """
    search = Search(needs, shares.argmax(axis=1))
    if not search.repair():
        return None
    search.improve()
    return search.labels
