# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.clustering.gap import Found, directions, number_of_clusters
from cfl_flare.clustering.measures import agreement
from cfl_flare.core.errors import ConfigError


def blobs(sizes: list[int], noise: float = 0.3, seed: int = 0, dimensions: int = 300) -> np.ndarray:
    """Rows around the centre of their group, each of which is near a common one."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(len(sizes), dimensions)), sizes, axis=0)
    return centres + 2 * rng.normal(size=dimensions) + noise * rng.normal(size=centres.shape)


def found(rows: np.ndarray, most: int = 10, **more: int) -> Found:
    return number_of_clusters(rows @ rows.T, most, **more)


@pytest.mark.parametrize("sizes", [[12], [40], [3, 3], [6, 6], [20, 20], [4, 5, 3], [14, 13, 13], [3] * 6, [4] * 10])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_finds_as_many_clusters_as_there_are(sizes: list[int], seed: int) -> None:
    given = found(blobs(sizes, seed=seed))
    assert given.k == len(sizes)
    assert given.labels.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()


def test_the_noise_of_small_participants_makes_no_cluster() -> None:
    """Steps and noise of participants with little data differ much from the others'."""
    rng = np.random.default_rng(3)
    scales = rng.permutation(np.geomspace(0.1, 10, 24))[:, None]
    rows = scales * (2 * rng.normal(size=300) + rng.normal(size=(24, 300)) * rng.uniform(0.5, 2, (24, 1)))
    assert found(rows).k == 1


def test_small_groups_beside_a_large_one_are_seen() -> None:
    given = found(blobs([17, 3]))
    assert (given.k, np.bincount(given.labels).tolist()) == (2, [17, 3])


def test_the_gap_is_that_of_the_reference_sets_computed_by_hand() -> None:
    """Two pairs at right angles, seen from their mean: W_1 = 4 and W_2 = 0, as for no reference set."""
    rows = np.array([[1.0, 0, 0.1], [1, 0, -0.1], [0, 1, 0.1], [0, 1, -0.1]])
    points = directions(rows @ rows.T)
    np.testing.assert_allclose(np.square(points).sum(axis=1), 1)
    # The normalised rows less their mean are (+-1/2, -+1/2, +-0.1) / 1.00499; squares 0.5 and 0.01 before the division.
    cosines = np.array([[1, 0.49 / 0.51], [0.49 / 0.51, 1]])
    np.testing.assert_allclose((points @ points.T)[:2, :2], cosines)
    given = number_of_clusters(rows @ rows.T, 2, references=3, seed=5)
    # W_1 = 4 as the points are of length 1 around 0; in each pair, half the squared distance 2 (1 - 0.49 / 0.51).
    inside = 2 * (1 - 0.49 / 0.51)
    from scipy.cluster.hierarchy import linkage

    from cfl_flare.core.seeds import stream

    logs = []
    for i in range(3):
        drawn = stream(5, "reference", i).standard_normal(points.shape) * points.std(axis=0)
        heights = linkage(drawn / np.linalg.norm(drawn, axis=1)[:, None], "ward")[:, 2]
        logs.append(np.log((heights[:2] ** 2).sum() / (heights**2).sum()))
    assert given.gap[0] == 0
    assert given.gap[1] == pytest.approx(np.mean(logs) - np.log(inside / 4))
    assert given.deviations[1] == pytest.approx(given.gap[1] / np.std(logs))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_too_few_to_compare_are_one_cluster(rows: int) -> None:
    given = found(np.eye(rows, 5))
    assert given.gap == given.deviations == (0.0,)
    assert given.labels.tolist() == [0] * rows


def test_equal_vectors_and_zeros_are_one_cluster() -> None:
    for row in (np.full(7, 0.1), np.zeros(7)):
        assert found(np.tile(row, (8, 1))).k == 1
    scaled = np.arange(1.0, 9)[:, None] * np.full(7, 0.1)  # one direction
    assert found(scaled).k == 1


def test_copies_are_found_and_one_that_did_not_move_does_no_harm() -> None:
    rows = np.repeat(np.eye(3), 4, axis=0)
    assert found(rows).labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len(found(np.vstack([rows, np.zeros(3)])).labels) == 13


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    products = np.eye(6)
    products[2, 3] = products[3, 2] = bad
    with pytest.raises(ConfigError, match="not finite; lower lr"):
        number_of_clusters(products, 3)


def test_no_more_than_allowed_and_no_more_than_half() -> None:
    assert len(found(blobs([4] * 5), 3).gap) == 3
    assert found(blobs([4] * 5), 3).k <= 3
    assert len(found(blobs([3, 4]), 10).gap) == 3


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.floats(-8, 8))
def test_neither_order_nor_scale_matter(seed: int, groups: int, power: float) -> None:
    rows = blobs([4, 5, 3, 6][:groups], seed=seed, dimensions=60)
    order = np.random.default_rng(seed).permutation(len(rows))
    one, other = found(rows, 5), found(10.0**power * rows[order], 5)
    assert one.k == other.k
    assert agreement(one.labels[order].tolist(), other.labels.tolist())["ari"] == 1
    np.testing.assert_allclose(one.gap, other.gap, atol=1e-6)


def test_the_seed_alone_decides_the_reference_sets() -> None:
    rows = blobs([6, 6])
    assert found(rows, seed=1).gap == found(rows, seed=1).gap != found(rows, seed=2).gap
