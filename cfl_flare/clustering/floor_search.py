# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Assignments with minimum sizes for many participants: a linear program, rounded, and a search with bounded work.

An exact mixed-integer program takes seconds for 60 participants and minutes for more, on each step of k-means. Its
linear relaxation takes milliseconds. Few rows of the relaxation are split between clusters: at most one for each
constraint on a cluster. They are rounded, moves and exchanges of participants repair what rounding broke, and further
ones make the assignment cheaper. The relaxation's cost bounds how much cheaper any other assignment can be.
"""

from __future__ import annotations

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
        """The rows of each site in each column, ``(sites, k)``."""
        counts = np.zeros(self.present.shape, np.int64)
        np.add.at(counts, (self.sites, labels), 1)
        return counts

    def measure_lack(self, sites: np.ndarray, samples: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """How far columns are from what they need, in parts of it; 0 where they have it. All arguments broadcast."""
        lack_of_sites = np.maximum(self.missing_sites[columns] - sites, 0) / np.maximum(self.missing_sites[columns], 1)
        missing = self.missing_samples[columns]
        lack_of_samples = np.maximum(missing - samples, 0) / np.maximum(missing, 1)
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


class Search:
    """A search from one assignment, step by step, until nothing gets better or the work is done.

    Args:
        needs: of the columns.
        labels: ``(m,)``, where it begins.

    Attributes:
        labels: the assignment so far.
        steps: how many steps are left.
    """

    def __init__(self, needs: Needs, labels: np.ndarray):
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
        best = (np.inf, 0, 0, False)
        for steps, is_exchange in self._list_steps():
            if repairing:
                allowed = steps.lack < -NOTHING
                worth = np.where(allowed, steps.costs / -np.where(allowed, steps.lack, -1), np.inf)
            else:
                allowed = (steps.lack <= NOTHING) & (steps.costs < -NOTHING)
                worth = np.where(allowed, steps.costs, np.inf)
            place = int(worth.argmin())
            if worth.flat[place] < best[0]:
                first, second = divmod(place, worth.shape[1])
                best = (float(worth.flat[place]), first, second, is_exchange)
        if best[0] == np.inf:
            return False
        _, row, other, is_exchange = best
        if is_exchange:
            self.labels[[row, other]] = self.labels[[other, row]]
        else:
            self.labels[row] = other
        return True

    def _list_steps(self) -> list[tuple[Steps, bool]]:
        needs, labels = self._needs, self.labels
        rows, columns = needs.costs.shape
        counts = needs.count_sites(labels)
        held = self._count_held(counts)
        samples = np.bincount(labels, needs.samples, columns)
        now = needs.measure_lack(held, samples, np.arange(columns))
        own = needs.costs[np.arange(rows), labels]
        present = needs.present[needs.sites]  # (m, k)
        of_site = counts[needs.sites]
        leaves = (of_site[np.arange(rows), labels] == 1) & ~present[np.arange(rows), labels]
        brings = (of_site == 0) & ~present  # (m, k)

        every = np.arange(columns)[None]
        behind = needs.measure_lack(held[labels] - leaves, samples[labels] - needs.samples, labels)[:, None]
        ahead = needs.measure_lack(held[None] + brings, samples[None] + needs.samples[:, None], every)
        lack = behind + ahead - now[labels][:, None] - now[None]
        lack[np.arange(rows), labels] = 0
        moves = Steps(lack, needs.costs - own[:, None])
        if not self._exchanges:
            return [(moves, False)]

        apart = needs.sites[:, None] != needs.sites[None]
        change = (brings[:, labels].T.astype(np.int64) - leaves[:, None]) * apart  # column of i, when j takes its place
        gained = needs.samples[None] - needs.samples[:, None]
        here = needs.measure_lack(held[labels][:, None] + change, samples[labels][:, None] + gained, labels[:, None])
        lack = here + here.T - now[labels][:, None] - now[labels][None]
        lack[labels[:, None] == labels[None]] = 0
        costs = needs.costs[:, labels] - own[:, None]
        return [(moves, False), (Steps(lack, costs + costs.T), True)]

    def _count_held(self, counts: np.ndarray) -> np.ndarray:
        return np.asarray(((counts > 0) & ~self._needs.present).sum(axis=0))

    def _measure_lack(self) -> np.ndarray:
        needs = self._needs
        columns = np.arange(needs.costs.shape[1])
        samples = np.bincount(self.labels, needs.samples, len(columns))
        return needs.measure_lack(self._count_held(needs.count_sites(self.labels)), samples, columns)


def search_assignment(needs: Needs, shares: np.ndarray) -> np.ndarray | None:
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
