# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.clustering import gap
from cfl_flare.clustering.gap import ClusterCount, directions, in_words, is_clear, noted, number_of_clusters
from cfl_flare.clustering.measures import agreement
from cfl_flare.core.errors import ConfigError


def blobs(sizes: list[int], noise: float = 0.3, seed: int = 0, dimensions: int = 300) -> np.ndarray:
    """Rows around the centre of their group, each of which is near a common one."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(len(sizes), dimensions)), sizes, axis=0)
    return centres + 2 * rng.normal(size=dimensions) + noise * rng.normal(size=centres.shape)


def found(rows: np.ndarray, most: int = 10, **more: int) -> ClusterCount:
    return number_of_clusters(rows @ rows.T, most, **more)


@pytest.mark.parametrize("sizes", [[12], [40], [3, 3], [6, 6], [20, 20], [4, 5, 3], [14, 13, 13], [3] * 6, [4] * 10])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_finds_as_many_clusters_as_there_are(sizes: list[int], seed: int) -> None:
    given = found(blobs(sizes, seed=seed))
    assert given.k == len(sizes)
    assert given.labels.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()


def test_groups_that_come_back_in_draws_are_clear() -> None:
    note = noted(found(blobs([14, 13, 13])))
    assert note["draws"] == {"3": gap.DRAWS} and is_clear(note)
    assert note["by_k"]["3"]["stability"] == 1 > gap.STABLE > note["by_k"]["4"]["stability"]
    assert in_words(note).startswith("3 clusters found (clear): ")
    assert is_clear(noted(found(blobs([40])))) and in_words(noted(found(blobs([40])))).startswith(
        "one cluster found (c"
    )


@pytest.mark.parametrize("seed", range(5))
def test_skew_without_groups_is_never_clear(seed: int) -> None:
    """Each participant is a mixture of ten directions, as labels dealt by a Dirichlet distribution are."""
    rng = np.random.default_rng(seed)
    mixtures = rng.dirichlet(np.full(10, 0.3), 40)
    note = noted(found(mixtures @ rng.normal(size=(10, 300)) + 0.02 * rng.normal(size=(40, 300))))
    assert not is_clear(note)
    low, high = gap.spread_of(note) or (0, 0)
    assert low < high and f"{low} to {high}" in in_words(note)
    assert in_words(note).startswith("about ")


def test_groups_go_before_what_is_finer_and_comes_back_in_no_draw() -> None:
    """Four groups, in each of which participants differ in two directions: more clusters are tighter, and unstable."""
    rng = np.random.default_rng(0)
    inside = np.concatenate([rng.normal(size=(10, 2)) @ rng.normal(size=(2, 300)) for _ in range(4)])
    given = found(blobs([10] * 4, noise=0.02) + 0.4 * inside)
    assert int(np.argmax(given.gap)) + 1 > 4  # the gap alone would take
    assert given.k == 4 and is_clear(noted(given))


def test_the_words_for_what_is_not_clear() -> None:
    def note(k: int, gaps: list[float], stability: float, draws: dict[str, int]) -> dict[str, object]:
        by_k = {
            str(i): {"gap": g, "deviations": 10 * g, "stability": 1.0 if i == 1 else stability}
            for i, g in enumerate(gaps, 1)
        }
        return {"k": k, "by_k": by_k, "draws": draws}

    two = note(2, [0, 0.5, 0.4], 0.95, {"1": 30, "2": 70})
    assert in_words(two) == (
        "about 2 clusters found (without a fifth of the participants 1 to 2): "
        "5.0 standard deviations tighter than data without clusters"
    )
    other = note(2, [0, 0.5, 0.4], 0.5, {"2": 100})
    assert "(without a fifth of the participants 2, with other members)" in in_words(other)
    weak = note(1, [0, 0.1, 0.05], 0.5, {"1": 50, "3": 50})
    assert in_words(weak) == (
        "about one cluster found (without a fifth of the participants 1 to 3): "
        "with 2, the updates are only 1.0 standard deviations tighter than data without clusters"
    )
    old = {"k": 2, "by_k": {k: {"gap": 0.5, "deviations": 3.0} for k in "12"}}  # of version 0.2, which drew none
    assert in_words(old).startswith("about 2 clusters found (not clear): 3.0 standard")


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
