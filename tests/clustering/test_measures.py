# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures by hand, and against scikit-learn and torch."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from cfl_flare.clustering import measures
from cfl_flare.clustering.agglomerative import compute_distances
from cfl_flare.clustering.measures import (
    bin_by_rank,
    compute_divergences,
    fit_directions,
    list_thresholds,
    map_models,
    measure_agreement,
    measure_size_entropy,
)
from cfl_flare.methods.fedac import METRICS

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=20)


@settings(deadline=None, max_examples=25)
@given(PAIRS, st.permutations(range(4)))
def test_agreement_is_scikit_learns_whatever_the_clusters_are_called(
    pairs: list[tuple[int, int]], names: list[int]
) -> None:
    truth, labels = [t for t, _ in pairs], [c for _, c in pairs]
    measured = measure_agreement(truth, [names[c] for c in labels])
    assert measured["ari"] == pytest.approx(adjusted_rand_score(truth, labels), abs=1e-12)
    assert measured["nmi"] == pytest.approx(normalized_mutual_info_score(truth, labels), abs=1e-12)
    assert all(type(value) is float for value in measured.values())


def test_agreement_by_hand() -> None:
    # Of the 6 pairs, both keep {0, 1} together: index 1, expected 2 * 1 / 6, largest (2 + 1) / 2.
    assert measure_agreement([0, 0, 1, 1], [0, 0, 1, 2])["ari"] == pytest.approx((1 - 2 / 6) / (1.5 - 2 / 6))
    assert measure_agreement([0, 1, 2, 0], [2, 0, 1, 2]) == {"ari": 1.0, "nmi": 1.0}
    assert measure_agreement([0, 0, 1, 1], [0, 0, 0, 0]) == {"ari": 0.0, "nmi": 0.0}


def test_size_entropy_by_hand() -> None:
    assert measure_size_entropy([5, 5, 5, 5]) == pytest.approx(1)
    assert measure_size_entropy([7, 0, 0]) == 0
    assert measure_size_entropy([2, 2, 0, 0]) == pytest.approx(math.log(2) / math.log(4))
    assert measure_size_entropy([1, 3]) == pytest.approx(-(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75)))


@pytest.mark.parametrize("sizes", [[], [4], [0, 0]])
def test_size_entropy_where_there_is_nothing_to_spread(sizes: list[int]) -> None:
    assert measure_size_entropy(sizes) == 0


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=8))
def test_size_entropy_lies_between_collapse_and_balance(sizes: list[int]) -> None:
    value = measure_size_entropy(sizes)
    assert 0 <= value <= 1 + 1e-12
    assert value == pytest.approx(measure_size_entropy(sizes[::-1]))
    if sum(s > 0 for s in sizes) > 1:
        assert value > 0


@pytest.mark.parametrize(
    ("values", "k", "bins"),
    [
        ([4.0, 1.0, 3.0, 2.0], 2, [1, 0, 1, 0]),
        ([5.0, 1.0, 4.0, 2.0, 3.0], 2, [1, 0, 1, 0, 0]),  # the odd one is among the smaller
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 3, [2, 2, 1, 1, 0, 0]),
        ([1.0, 2.0, 3.0, 4.0], 3, [0, 0, 1, 2]),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 3, [0, 0, 1, 1, 2]),
        ([7.0, 7.0, 7.0, 7.0], 2, [0, 0, 1, 1]),  # by name
        ([7.0, 1.0, 7.0, 7.0, 9.0], 2, [0, 0, 0, 1, 1]),
        ([1.0, 0.0], 2, [1, 0]),  # the smallest has a bin, which the printed inequality denies it
    ],
)
def test_bins_by_rank(values, k, bins):
    named = dict(zip("abcdef", values))
    assert bin_by_rank(named, k) == dict(zip("abcdef", bins))
    assert bin_by_rank(dict(reversed(named.items())), k) == dict(zip("abcdef", bins))


def test_later_values_are_placed_between_the_percentile_points():
    values = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}
    limits = list_thresholds(values, bin_by_rank(values, 3), 3)
    assert limits == [2.0, 4.0]
    assert [bisect_left(limits, v) for v in (0.0, 2.0, 2.1, 4.0, 4.1, 99.0)] == [0, 0, 1, 1, 2, 2]


def test_an_empty_bin_has_the_threshold_of_the_one_before():
    values = {"a": 1.0, "b": 2.0}
    assert bin_by_rank(values, 3) == {"a": 0, "b": 1}
    assert list_thresholds(values, {"a": 0, "b": 2}, 3) == [1.0, 1.0]


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 9), min_size=2, max_size=20), st.integers(2, 5))
def test_sizes_differ_by_one_at_most_and_bins_rise_with_the_values(values, k):
    bins = bin_by_rank(values, k)
    sizes = [list(bins.values()).count(i) for i in range(k)]
    assert max(sizes) - min(sizes) <= 1
    assert all(bins[a] <= bins[b] for a in values for b in values if values[a] < values[b])
    if len(set(values.values())) == len(values):
        assert {name: bisect_left(list_thresholds(values, bins, k), value) for name, value in values.items()} == bins


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 8), st.integers(1, 9), st.integers(1, 12), st.integers(0, 10**6))
def test_the_map_is_scikit_learn_s_principal_directions(models, width, dimensions, seed):
    rows = np.random.default_rng(seed).normal(size=(models, width))
    found = fit_directions(list(rows), dimensions)
    kept = max(1, min(dimensions, models - 1, width))
    expected = PCA(kept, svd_solver="full").fit(rows).components_
    assert found.shape == (kept, width)
    for one, other in zip(found, expected):
        assert abs(abs(one @ other) - 1) < 1e-3


def test_the_map_does_not_depend_on_how_many_columns_are_read_at_a_time(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(5, 10))
    whole = fit_directions(list(rows), 4)
    monkeypatch.setattr(measures, "COLUMNS", 3)
    np.testing.assert_allclose(fit_directions(list(rows), 4), whole, atol=1e-6)


def test_models_that_do_not_differ_have_no_direction():
    found = fit_directions([np.array([1.0, 2.0])] * 3, 2)
    assert found.tolist() == [[0, 0], [0, 0]]


def test_a_mean_of_models_maps_to_the_mean_of_their_maps():
    rows = np.random.default_rng(1).normal(size=(40, 6))
    along = fit_directions(list(rows), 3)
    np.testing.assert_allclose(
        map_models([rows.mean(axis=0)], along)[0], map_models(list(rows), along).mean(axis=0), atol=1e-9
    )


@pytest.mark.parametrize(("kind", "expected"), [("lrcos", [0, 1]), ("l2", [8, np.sqrt(2)])])
def test_cosine_sees_the_direction_and_l2_the_place(kind, expected):
    """(1, 0) has the direction of (9, 0), and is nearer to (0, 1)."""
    (found,) = compute_distances(np.array([[1.0, 0.0]]), np.array([[9.0, 0.0], [0.0, 1.0]]), METRICS[kind])
    np.testing.assert_allclose(found, expected, atol=1e-12)


values = st.floats(-30, 30, width=32)
logits = st.lists(st.lists(values, min_size=6, max_size=6), min_size=1, max_size=4).map(
    lambda rows: np.array(rows, np.float32).reshape(-1, 2, 3)
)


def test_by_hand():
    model = np.log([[[0.8, 0.2], [0.5, 0.5]]])
    centres = np.log([[[0.5, 0.5], [0.5, 0.5]], [[0.8, 0.2], [0.1, 0.9]]])
    first = 0.8 * np.log(0.8 / 0.5) + 0.2 * np.log(0.2 / 0.5)  # the second sample agrees
    second = 0.5 * np.log(0.5 / 0.1) + 0.5 * np.log(0.5 / 0.9)  # the first one does
    np.testing.assert_allclose(compute_divergences(model, centres), [[first, second]])


def test_it_is_the_model_s_probabilities_that_weigh():
    one, other = np.log([[[0.9, 0.1]]]), np.log([[[0.5, 0.5]]])
    forward, backward = compute_divergences(one, other)[0, 0], compute_divergences(other, one)[0, 0]
    assert forward == pytest.approx(0.9 * np.log(1.8) + 0.1 * np.log(0.2))
    assert backward == pytest.approx(0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(5))


@settings(max_examples=40, deadline=None)
@given(models=logits, centres=logits)
def test_against_torch_and_its_bounds(models, centres):
    found = compute_divergences(models, centres)
    assert found.shape == (len(models), len(centres))
    assert (found >= -1e-9).all()
    np.testing.assert_allclose(np.diag(compute_divergences(models, models)), 0, atol=1e-9)
    for i, model in enumerate(torch.from_numpy(models).double()):
        for j, centre in enumerate(torch.from_numpy(centres).double()):
            expected = F.kl_div(F.log_softmax(centre, -1), F.log_softmax(model, -1), reduction="sum", log_target=True)
            assert found[i, j] == pytest.approx(float(expected), abs=1e-8)


def test_constants_on_all_logits_do_not_matter():
    rng = np.random.default_rng(0)
    models, centres = rng.normal(size=(3, 5, 4)), rng.normal(size=(2, 5, 4))
    np.testing.assert_allclose(
        compute_divergences(models + 50, centres - 7), compute_divergences(models, centres), rtol=1e-9
    )


@pytest.mark.parametrize("huge", [1e4, 3e38])
def test_huge_logits_stay_finite(huge):
    one, other = np.array([[[huge, -huge]]], np.float32), np.array([[[-huge, huge]]], np.float32)
    assert compute_divergences(one, one)[0, 0] == 0
    assert compute_divergences(one, other)[0, 0] == pytest.approx(2 * huge)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_model_without_numbers_is_far_from_everything(bad):
    models = np.array([[[0.0, 1.0]], [[bad, 1.0]], [[bad, bad]]])
    found = compute_divergences(models, models[:1])
    assert found[0, 0] == 0
    assert found[2, 0] == np.inf
    assert not np.isnan(compute_divergences(models, models)).any()
