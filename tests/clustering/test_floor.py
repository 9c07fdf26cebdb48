# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The cheapest assignment that has no cluster of too few sites or samples, against all assignments of small cases."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.clustering.floor import Census, Floor, Sizes, memberships
from cfl_flare.clustering.kmeans import first_kmeans, lloyd, nearest

DRAWS = st.integers(0, 2**20)


def sizes(
    sites: list[int], samples: list[int], floor: tuple[int, int], others: dict[str, tuple[int, int, int]] | None = None
) -> Sizes:
    """Rows 0, 1, ... at these sites; others by name: cluster, site, samples."""
    others = others or {}
    where = {str(i): str(site) for i, site in enumerate(sites)} | {n: str(s) for n, (_, s, _) in others.items()}
    count = {str(i): n for i, n in enumerate(samples)} | {n: s for n, (_, _, s) in others.items()}
    census = Census(Floor(*floor), where, count)
    return census.of([str(i) for i in range(len(sites))], {n: k for n, (k, _, _) in others.items()})


def meets(labels: tuple[int, ...], given: Sizes, clusters: range) -> bool:
    """Whether each of these clusters has enough, spelled once more."""
    for k in clusters:
        names = [given.names[i] for i, label in enumerate(labels) if label == k]
        there = given.others.get(k)
        hospitals = {given.census.sites[n] for n in names} | set(there.sites if there else ())
        count = sum(given.census.samples[n] for n in names) + (there.samples if there else 0)
        if len(hospitals) < given.census.floor.sites or count < given.census.floor.samples:
            return False
    return True


def case(seed: int) -> tuple[Sizes, np.ndarray]:
    """A small case: sites with several rows, samples, members elsewhere, costs without ties."""
    rng = np.random.default_rng(seed)
    m, k = int(rng.integers(2, 8)), int(rng.integers(2, 4))
    sites = rng.integers(0, m, m) if rng.random() < 0.5 else np.arange(m)
    others = {f"o{j}": (int(rng.integers(k)), int(rng.integers(m + 2)), int(rng.integers(1, 9))) for j in range(2)}
    floor = (int(rng.integers(1, 4)), int(rng.choice([1, 1, 8, 14])))
    samples = rng.integers(1, 9, m).tolist()
    return sizes(sites.tolist(), samples, floor, others if rng.random() < 0.5 else None), rng.uniform(0, 5, (m, k))


@settings(deadline=None, max_examples=150)
@given(DRAWS)
def test_it_is_the_cheapest_that_meets_the_floor(seed: int) -> None:
    given, costs = case(seed)
    clusters = range(costs.shape[1])
    every = [p for p in product(clusters, repeat=len(costs)) if meets(p, given, clusters)]
    placed = given.assigned(costs.argmin(axis=1), lambda: costs, needed=clusters)
    if not every:
        return
    assert meets(tuple(placed.tolist()), given, clusters)
    price = {p: costs[range(len(costs)), list(p)].sum() for p in every}
    assert costs[range(len(costs)), placed].sum() == pytest.approx(min(price.values()), abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(DRAWS)
def test_what_meets_the_floor_stays_and_what_does_not_never_gets_smaller_clusters(seed: int) -> None:
    given, costs = case(seed)
    best = costs.argmin(axis=1)
    placed = given.assigned(best, lambda: costs)
    if given.met(best):
        assert placed is best and not given.census.moved
    together = Census(given.census.floor, given.census.sites, given.census.samples)
    rows = dict(zip(given.names, placed.tolist()))
    if not given.others and not together.small(
        [(name, 0, 1.0) for name in given.names]
    ):  # all of them in one cluster would do
        assert not together.small(memberships(rows))
    moved = {n: w for n, w, p in zip(given.names, best.tolist(), placed.tolist()) if w != p}
    assert given.census.moved == moved


@settings(deadline=None, max_examples=40)
@given(DRAWS)
def test_the_order_of_participants_does_not_matter(seed: int) -> None:
    given, costs = case(seed)
    order = np.random.default_rng(seed).permutation(len(costs))
    census = Census(given.census.floor, given.census.sites, given.census.samples)
    other = Sizes(census, tuple(given.names[i] for i in order), given.others, given.occupied)
    placed, again = (g.assigned(c.argmin(axis=1), lambda c=c: c) for g, c in ((given, costs), (other, costs[order])))
    assert placed[order].tolist() == again.tolist()


def test_a_hospital_with_several_participants_counts_once() -> None:
    """Cluster 1 has three participants of one hospital, cluster 0 two of another."""
    costs = np.array([[0.0, 9], [0, 8], [0, 7], [9, 0], [9, 0], [9, 0]])
    under = sizes([0, 0, 1, 2, 2, 2], [1] * 6, (2, 1))
    assert under.assigned(costs.argmin(axis=1), lambda: costs).tolist() == [0, 1, 0, 1, 1, 1]


def test_members_that_are_absent_count() -> None:
    costs = np.array([[0.0, 1], [0, 1], [1, 0]])
    absent = {"x": (1, 7, 5), "y": (1, 8, 5)}
    assert sizes([0, 1, 2], [1] * 3, (2, 1), absent).assigned(costs.argmin(axis=1), lambda: costs).tolist() == [0, 0, 1]
    assert sizes([0, 1, 2], [1] * 3, (3, 1), absent).assigned(costs.argmin(axis=1), lambda: costs).tolist() == [1, 1, 1]


def test_an_infinite_cost_is_the_last_choice() -> None:
    costs = np.array([[0.0, np.inf], [0, 2], [0, 1], [np.inf, np.inf]])
    placed = sizes([0, 1, 2, 3], [1] * 4, (2, 1)).assigned(np.zeros(4, int), lambda: costs, needed=(0, 1))
    assert placed.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("hosted", "floor", "clusters"),
    [([1] * 5, 3, 1), ([1] * 6, 3, 2), ([3, 3, 3], 3, 3), ([5, 5, 5, 5], 3, 6), ([9, 1, 1], 3, 1), ([1, 1], 3, 1)],
)
def test_how_many_clusters_can_be(hosted: list[int], floor: int, clusters: int) -> None:
    where = [str(s) for s, count in enumerate(hosted) for _ in range(count)]
    assert Floor(floor, 1).clusters(where, 1000) == clusters
    assert Floor(floor, 400).clusters(where, 1000) <= 2


def groups(seed: int, counts: tuple[int, ...], apart: float) -> tuple[np.ndarray, np.ndarray]:
    """Points around centres on a line."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(counts)), counts)
    return rng.normal(0, 1, (len(truth), 4)) + apart * np.eye(4)[truth], truth


@settings(deadline=None, max_examples=25)
@given(DRAWS, st.sampled_from([(3, 3, 10), (4, 4, 4), (3, 13)]))
def test_kmeans_under_the_floor_has_every_cluster(seed: int, counts: tuple[int, ...]) -> None:
    points, truth = groups(seed, counts, apart=2.0)
    m, k, ones = len(points), len(counts), np.ones(len(points))
    under = sizes(list(range(m)), [10] * m, (3, 30))
    cold = first_kmeans(points.copy(), k, ones, sizes=under)
    warm = lloyd(points, np.stack([points[truth == j].mean(axis=0) for j in range(k)]), ones, sizes=under)
    for labels in (cold, warm):
        assert sorted(Counter(labels.tolist())) == list(range(k))
        assert min(Counter(labels.tolist()).values()) >= 3
    centres = np.stack([points[truth == j].mean(axis=0) for j in range(k)])
    for labels, free in ((cold, first_kmeans(points.copy(), k, ones)), (warm, lloyd(points, centres, ones))):
        if min(Counter(free.tolist()).values()) >= 3:
            assert labels.tolist() == free.tolist()


@settings(deadline=None, max_examples=25)
@given(DRAWS)
def test_no_other_assignment_to_its_centres_is_cheaper(seed: int) -> None:
    """A fixed point: the assignment is the cheapest one to the means that it has itself."""
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(9, 3)), rng.uniform(0.5, 3, 9)
    under = sizes(list(range(9)), [1] * 9, (3, 1))
    labels = first_kmeans(points.copy(), 3, weights, sizes=under)
    centres = np.stack([np.average(points[labels == j], axis=0, weights=weights[labels == j]) for j in range(3)])
    costs = weights[:, None] * np.square(points[:, None] - centres[None]).sum(axis=2)
    again = under.assigned(nearest(points, centres), lambda: costs, needed=range(3))
    assert costs[range(9), again].sum() == pytest.approx(costs[range(9), labels].sum())


def test_fewer_clusters_where_so_many_cannot_be() -> None:
    points, _ = groups(0, (2, 3), apart=9.0)
    assert first_kmeans(points, 2, np.ones(5), sizes=sizes([0, 1, 2, 3, 4], [1] * 5, (3, 1))).tolist() == [0] * 5
