# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Minimum sizes for many participants: bounded work, sizes that are met, and how far from the cheapest."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.optimize

from cfl_flare.clustering import floor_search
from cfl_flare.clustering.floor import Census, Floor, Sizes
from cfl_flare.clustering.floor_search import Needs, Search, search_assignment


def draw_case(rows: int, columns: int, spare: float, hosted: int, seed: int = 0) -> tuple[Sizes, np.ndarray]:
    """Participants around as many points as columns; ``spare`` is all samples by those that the columns need."""
    rng = np.random.default_rng(seed)
    names = [str(i) for i in range(rows)]
    samples = rng.integers(50, 400, rows)
    floor = Floor(rows // (2 * columns), int(samples.sum() / columns / spare))
    sites = {name: str(i // hosted) for i, name in enumerate(names)}
    census = Census(floor, sites, dict(zip(names, samples.astype(float).tolist())))
    points = rng.normal(size=(rows, 3))
    costs = np.square(points[:, None] - rng.normal(size=(columns, 3))).sum(axis=2) * samples[:, None]
    return census.of(names, {}), costs


@pytest.mark.parametrize(("rows", "columns"), [(60, 6), (200, 8)])
@pytest.mark.parametrize("spare", [1.01, 1.3])
@pytest.mark.parametrize("hosted", [1, 3])
def test_many_rows_need_no_exact_program(
    rows: int, columns: int, spare: float, hosted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The solver sees linear programs only, one for each number of clusters, and the search's steps are counted."""
    solve = scipy.optimize.milp
    programs = []

    def count_program(*args, integrality=None, **kwargs):
        programs.append(integrality)
        return solve(*args, integrality=integrality, **kwargs)

    steps = []
    take_step = Search._step
    monkeypatch.setattr(scipy.optimize, "milp", count_program)
    monkeypatch.setattr(Search, "_step", lambda self, repairing: steps.append(self) or take_step(self, repairing))
    given, costs = draw_case(rows, columns, spare, hosted)
    placed = given.assigned(costs.argmin(axis=1), lambda: costs, needed=range(columns))
    assert given.met(placed, range(columns))
    assert programs == [None]
    assert len(steps) <= floor_search.PAIRS // (rows * (rows + columns)) + 2
    (gap,) = given.census.gaps
    assert 0 <= gap < 0.2
    again, _ = draw_case(rows, columns, spare, hosted)
    assert again.assigned(costs.argmin(axis=1), lambda: costs, needed=range(columns)).tolist() == placed.tolist()


def test_search_has_no_more_steps_than_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor_search, "PAIRS", 0)
    monkeypatch.setattr(floor_search, "FEWEST_STEPS", 1)
    costs = np.array([[0.0, 5], [0, 4], [0, 3], [0, 2]])
    needs = Needs(costs, np.arange(4), np.ones(4), np.zeros((4, 2), bool), np.array([2, 2]), np.zeros(2))
    assert search_assignment(needs, costs == 0) is None
    monkeypatch.setattr(floor_search, "FEWEST_STEPS", 9)
    found = search_assignment(needs, costs == 0)
    assert found is not None
    assert found.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_small_cases_are_near_the_cheapest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.uniform(0, 5, (7, 2))
    sites = rng.integers(0, 6, 7)
    samples = rng.integers(1, 9, 7).astype(float)
    present = rng.random((6, 2)) < 0.2
    needs = Needs(costs, sites, samples, present, np.array([1, 2]), np.array([6.0, 8.0]))

    def is_met(labels: np.ndarray) -> bool:
        for column in range(2):
            rows = labels == column
            new = {site for site in sites[rows].tolist() if not present[site, column]}
            if len(new) < needs.missing_sites[column] or samples[rows].sum() < needs.missing_samples[column]:
                return False
        return True

    every = [np.array(labels) for labels in product(range(2), repeat=7) if is_met(np.array(labels))]
    found = search_assignment(needs, -costs)
    if not every:
        assert found is None
        return
    assert found is not None
    assert is_met(found)
    cheapest = min(costs[np.arange(7), labels].sum() for labels in every)
    assert costs[np.arange(7), found].sum() <= 1.3 * cheapest
