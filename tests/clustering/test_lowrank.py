# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from cfl_flare.clustering import lowrank
from cfl_flare.clustering.measures import directions, mapped, similarity


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 8), st.integers(1, 9), st.integers(1, 12), st.integers(0, 10**6))
def test_the_map_is_scikit_learn_s_principal_directions(models, width, dimensions, seed):
    rows = np.random.default_rng(seed).normal(size=(models, width))
    found = directions(list(rows), dimensions)
    kept = max(1, min(dimensions, models - 1, width))
    expected = PCA(kept, svd_solver="full").fit(rows).components_
    assert found.shape == (kept, width)
    for one, other in zip(found, expected):
        assert abs(abs(one @ other) - 1) < 1e-3


def test_the_map_does_not_depend_on_how_many_columns_are_read_at_a_time(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(5, 10))
    whole = directions(list(rows), 4)
    monkeypatch.setattr(lowrank, "COLUMNS", 3)
    np.testing.assert_allclose(directions(list(rows), 4), whole, atol=1e-6)


def test_models_that_do_not_differ_have_no_direction():
    found = directions([np.array([1.0, 2.0])] * 3, 2)
    assert found.tolist() == [[0, 0], [0, 0]]
    assert similarity(mapped([np.array([1.0, 2.0])], found), np.zeros((2, 2))).tolist() == [[0, 0]]


def test_a_mean_of_models_maps_to_the_mean_of_their_maps():
    rows = np.random.default_rng(1).normal(size=(40, 6))
    along = directions(list(rows), 3)
    np.testing.assert_allclose(mapped([rows.mean(axis=0)], along)[0], mapped(list(rows), along).mean(axis=0), atol=1e-9)


@pytest.mark.parametrize(("kind", "nearest"), [("lrcos", 0), ("l2", 1)])
def test_cosine_sees_the_direction_and_l2_the_place(kind, nearest):
    """(1, 0) has the direction of (9, 0), and is nearer to (0, 1)."""
    found = similarity(np.array([[1.0, 0.0]]), np.array([[9.0, 0.0], [0.0, 1.0]]), kind)
    assert found.argmax() == nearest
    expected = [[1, 0]] if kind == "lrcos" else [[-8, -np.sqrt(2)]]
    np.testing.assert_allclose(found, expected, atol=1e-12)
