# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from cfl_flare.clustering import agglomerative, kmeans, measures
from cfl_flare.clustering.agglomerative import LINKAGES, METRICS, agglomerate, decomposed_cosines
from cfl_flare.core.errors import ConfigError

COMBINATIONS = [(m, j) for m in METRICS for j in LINKAGES if j != "ward" or m == "euclidean"]


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


@pytest.mark.parametrize(
    ("joining", "joined_at"),
    [("single", 3), ("average", 3.5), ("complete", 4), ("ward", np.sqrt(4 / 3) * 3.5)],
)
def test_the_last_join_is_at_the_distance_of_the_linkage(joining: str, joined_at: float) -> None:
    """0 and 1 are joined first; 4 is 4 and 3 away from them, and 3.5 from their mean."""
    points = column(0, 1, 4)
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
    assert agglomerate(column(3), "cosine", "complete", threshold=1).tolist() == [0]
    assert set(agglomerate(column(0, 0, 0), "euclidean", "ward", k=2).tolist()) == {0, 1}
    mixed = np.array([[0, 0], [1, 0], [2, 0]], np.float32)
    assert agglomerate(mixed, "cosine", "complete", threshold=0.5).tolist() == [0, 1, 1]


def test_more_clusters_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"k = 3 clusters need at least 3 participants.* 2 answered; lower k"):
        agglomerate(column(1, 2), "euclidean", "ward", k=3)


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
