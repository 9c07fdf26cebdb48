# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""K-means and agglomerative clustering, by hand and against scikit-learn and scipy."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from cfl_flare.clustering import agglomerative, kmeans, measures
from cfl_flare.clustering.agglomerative import LINKAGES, METRICS, agglomerate, decomposed_cosines
from cfl_flare.clustering.kmeans import first_kmeans, lloyd, nearest
from cfl_flare.core.errors import ConfigError
from tests.tiny import objective


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def means(features: np.ndarray, labels: np.ndarray, weights: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The M-step: weighted means, an empty cluster where it was."""
    moved = centres.copy()
    for j in set(labels.tolist()):
        own = weights[labels == j, None]
        moved[j] = (own * features[labels == j]).sum(axis=0) / own.sum()
    return moved


def draw(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, centres and weights without ties."""
    rng = np.random.default_rng(seed)
    m, k, d = rng.integers(2, 12), rng.integers(1, 5), rng.integers(1, 4)
    return rng.normal(size=(m, d)), rng.normal(size=(k, d)), rng.uniform(0.1, 5, m)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 0, 3, 1, 4, 2], [2, 3, 0, 5, 1, 4]])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_first_labels_are_numbered_as_they_occur(order: list[int], seed: int) -> None:
    points, groups = column(0, 0.1, 5, 5.1, 9, 9.1)[order], np.array([0, 0, 1, 1, 2, 2])[order]
    labels = first_kmeans(points, 3, np.ones(6), seed=seed).tolist()
    number = {group: i for i, group in enumerate(dict.fromkeys(groups.tolist()))}
    assert labels == [number[group] for group in groups.tolist()]


def test_more_clusters_than_participants_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"k = 3 clusters need at least 3 participants.* 2 answered"):
        first_kmeans(column(0, 1), 3, np.ones(2))


def test_as_many_clusters_as_participants() -> None:
    assert first_kmeans(column(3, 1, 2), 3, np.ones(3)).tolist() == [0, 1, 2]


def test_first_weights_matter() -> None:
    points = column(0, 10, 19)  # to join the first two costs 50, the last two 40.5; with the weights 99 and 4050
    assert first_kmeans(points, 2, np.ones(3)).tolist() == [0, 1, 1]
    assert first_kmeans(points, 2, np.array([1.0, 100, 100])).tolist() == [0, 0, 1]
    assert first_kmeans(points, 2, np.array([1.0, 100, 100]) * 1e-5).tolist() == [0, 0, 1]


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_nearest_is_the_smallest_distance(seed: int) -> None:
    features, centres, _ = draw(seed)
    distances = np.square(features[:, None] - centres[None]).sum(axis=2)
    np.testing.assert_array_equal(nearest(features, centres), distances.argmin(axis=1))


def test_ties_go_to_the_lowest() -> None:
    assert nearest(column(1, 7), column(5, 5, -3)).tolist() == [0, 0]
    assert nearest(column(1), column(3, -1)).tolist() == [0]
    assert nearest(column(1), column(-1, 3)).tolist() == [0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nearest_beside_a_large_common_offset(dtype: type) -> None:
    # The squares of what all share, 1e8 * 64, have a float32 spacing of 512: without the shift, all would be noise.
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 64))
    truth = rng.integers(0, 4, 30)
    features = centres[truth] + 0.1 * rng.normal(size=(30, 64))
    shifted, origins = (features + 1e4).astype(dtype), (centres + 1e4).astype(dtype)
    np.testing.assert_array_equal(nearest(shifted, origins), truth)
    np.testing.assert_array_equal(lloyd(shifted, origins, np.ones(30)), truth)


def test_nearest_beside_one_far_centre() -> None:
    assert nearest(column(0.1, 0.9), column(1e9, 0, 1)).tolist() == [1, 2]


def test_lloyd_by_hand() -> None:
    points = column(0, 2, 5, 9, 10)
    # {0, 2, 5} | {9, 10} with centres 7/3 and 9.5: 5 stays (2.67 against 4.5), and so do all.
    assert lloyd(points, column(1, 10), np.ones(5)).tolist() == [0, 0, 0, 1, 1]
    # {0} | {2, 5, 9, 10} with centres 0 and 6.5: 2 moves; then centres 1 and 8: 5 stays (4 against 3).
    assert lloyd(points, column(0, 3), np.ones(5)).tolist() == [0, 0, 1, 1, 1]


def test_lloyd_ends_after_max_steps() -> None:
    points, centres = column(0, 2, 5, 9, 10), column(0, 3)
    assert lloyd(points, centres, np.ones(5), max_steps=0).tolist() == [0, 1, 1, 1, 1]
    assert lloyd(points, centres, np.ones(5), max_steps=1).tolist() == [0, 0, 1, 1, 1]


def test_weights_move_the_border() -> None:
    points, centres = column(0, 4, 6, 10), column(1, 9)
    assert lloyd(points, centres, np.ones(4)).tolist() == [0, 0, 1, 1]
    # Centres 3.33 and 9.81 in place of 2 and 8: 6 moves (2.67 against 3.81).
    assert lloyd(points, centres, np.array([1.0, 5, 1, 20])).tolist() == [0, 0, 0, 1]


def test_an_empty_cluster_stays_where_it_is() -> None:
    assert lloyd(column(0, 1, 9), column(8, 2, 99), np.ones(3)).tolist() == [1, 1, 0]
    # 6 starts with 5, whose centre then goes to 0.6; the empty centre is still at 8 and takes it over.
    assert lloyd(column(0, 6), column(5, 8), np.array([9.0, 1])).tolist() == [0, 1]


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_neither_step_raises_the_objective(seed: int) -> None:
    features, centres, weights = draw(seed)
    labels = lloyd(features, centres, weights, max_steps=0)
    start = centres
    for steps in range(1, 5):
        moved = means(features, labels, weights, centres)
        after_m = objective(features, labels, moved, weights)
        assert after_m <= objective(features, labels, centres, weights) + 1e-9
        labels, centres = lloyd(features, start, weights, max_steps=steps), moved
        assert objective(features, labels, centres, weights) <= after_m + 1e-9


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_lloyd_ends_where_nothing_moves(seed: int) -> None:
    features, centres, weights = draw(seed)
    labels = lloyd(features, centres, weights)
    np.testing.assert_array_equal(lloyd(features, means(features, labels, weights, centres), weights), labels)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_lloyd_follows_the_order_of_participants_and_of_centres(seed: int) -> None:
    features, centres, weights = draw(seed)
    rng = np.random.default_rng(seed + 1)
    rows, numbers = rng.permutation(len(features)), rng.permutation(len(centres))
    labels = lloyd(features, centres, weights)
    np.testing.assert_array_equal(lloyd(features[rows], centres, weights[rows]), labels[rows])
    np.testing.assert_array_equal(numbers[lloyd(features, centres[numbers], weights)], labels)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_a_whole_weight_is_so_many_participants(seed: int) -> None:
    features, centres, _ = draw(seed)
    counts = np.random.default_rng(seed).integers(1, 4, len(features))
    weighted = lloyd(features, centres, counts.astype(float))
    repeated = lloyd(features.repeat(counts, axis=0), centres, np.ones(counts.sum()))
    np.testing.assert_array_equal(weighted.repeat(counts), repeated)


def test_lloyd_changes_nothing_that_it_is_given() -> None:
    features, centres, weights = draw(0)
    copies = features.copy(), centres.copy(), weights.copy()
    lloyd(features, centres, weights)
    for given_array, copy in zip((features, centres, weights), copies):
        np.testing.assert_array_equal(given_array, copy)


COMBINATIONS = [(m, j) for m in METRICS for j in LINKAGES if j != "ward" or m == "euclidean"]


def column32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


@pytest.mark.parametrize(
    ("joining", "joined_at"),
    [("single", 3), ("average", 3.5), ("complete", 4), ("ward", np.sqrt(4 / 3) * 3.5)],
)
def test_the_last_join_is_at_the_distance_of_the_linkage(joining: str, joined_at: float) -> None:
    """0 and 1 are joined first; 4 is 4 and 3 away from them, and 3.5 from their mean."""
    points = column32(0, 1, 4)
    assert agglomerate(points, "euclidean", joining, threshold=joined_at + 0.01).tolist() == [0, 0, 0]
    assert agglomerate(points, "euclidean", joining, threshold=joined_at - 0.01).tolist() == [0, 0, 1]
    assert agglomerate(points, "euclidean", joining, threshold=0.5).tolist() == [0, 1, 2]


def test_the_metric_matters() -> None:
    points = np.array([[1, 0], [10, 0], [0.5, 0.5]], np.float32)
    assert agglomerate(points, "cosine", "complete", k=2).tolist() == [0, 0, 1]
    assert agglomerate(points, "euclidean", "complete", k=2).tolist() == [0, 1, 0]
    corner = np.array([[0, 0], [3, 3], [0, 5]], np.float32)  # the first two are 4.24 apart, or 6; the others 3.6, or 5
    assert agglomerate(corner, "euclidean", "complete", threshold=3.7).tolist() == [0, 1, 1]
    assert agglomerate(corner, "manhattan", "complete", threshold=3.7).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("metric", "joining"), COMBINATIONS)
def test_as_scikit_learn_s(metric: str, joining: str) -> None:
    points = np.random.default_rng(0).normal(size=(15, 4)).astype(np.float32)
    for k in (1, 4, 15):
        theirs = AgglomerativeClustering(k, metric=metric, linkage=joining).fit(points.astype(np.float64)).labels_
        assert agglomerate(points, metric, joining, k=k).tolist() == kmeans.numbered(theirs).tolist()


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), k=st.integers(1, 5), which=st.sampled_from(COMBINATIONS))
def test_the_order_of_the_rows_does_not_matter(seed: int, k: int, which: tuple[str, str]) -> None:
    rng = np.random.default_rng(seed)
    points, order = rng.normal(size=(8, 3)).astype(np.float32), rng.permutation(8)
    labels = agglomerate(points, *which, k=k)
    assert agglomerate(points[order], *which, k=k).tolist() == kmeans.numbered(labels[order]).tolist()
    assert len(set(labels.tolist())) == k


def test_one_row_and_rows_of_zeros() -> None:
    assert agglomerate(column32(3), "cosine", "complete", threshold=1).tolist() == [0]
    assert set(agglomerate(column32(0, 0, 0), "euclidean", "ward", k=2).tolist()) == {0, 1}
    mixed = np.array([[0, 0], [1, 0], [2, 0]], np.float32)
    assert agglomerate(mixed, "cosine", "complete", threshold=0.5).tolist() == [0, 1, 1]


def test_more_clusters_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"k = 3 clusters need at least 3 participants.* 2 answered; lower k"):
        agglomerate(column32(1, 2), "euclidean", "ward", k=3)


def test_decomposed_cosines_by_hand() -> None:
    """The axes are the singular vectors, since x and y do not go together: the sum of their products is 6 - 6."""
    rows = np.array([[3, 2], [3, -2], [-1, 0], [1, 0]], np.float32)
    found = np.abs(decomposed_cosines(rows, 2))
    np.testing.assert_allclose(found, [[3 / 13**0.5, 2 / 13**0.5]] * 2 + [[1, 0]] * 2, atol=1e-7)
    assert decomposed_cosines(rows, 1).shape == (4, 1)
    signed = decomposed_cosines(rows, 1)[:, 0]
    assert signed[0] * signed[2] < 0 < signed[0] * signed[3]


def test_decomposed_cosines_are_those_with_the_singular_vectors() -> None:
    rows = np.random.default_rng(1).normal(size=(6, 40))
    _, _, directions = np.linalg.svd(rows, full_matrices=False)
    wanted = (rows / np.linalg.norm(rows, axis=1, keepdims=True)) @ directions[:3].T
    np.testing.assert_allclose(np.abs(decomposed_cosines(rows, 3)), np.abs(wanted), atol=1e-10)


def test_a_row_of_zeros_has_no_direction() -> None:
    found = decomposed_cosines(np.array([[0, 0], [0, 2]], np.float32), 2)
    np.testing.assert_allclose(np.abs(found), [[0, 0], [1, 0]], atol=1e-7)


@pytest.mark.parametrize("module", [agglomerative, kmeans, measures], ids=lambda m: m.__name__)
def test_examples(module) -> None:
    assert doctest.testmod(module, extraglobs={"np": np}).failed == 0
