# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""ROC and reliability curves from counts: by hand, against scikit-learn, and their areas against the pooled AUROC."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import roc_curve

from cfl_flare.results.pooled import auroc_of_counts
from cfl_flare.results.roc import GROUPS, POINTS, RATES, area, cells, mean_roc, reliability, roc, thinned_roc

COUNTS = arrays(np.int64, st.tuples(st.integers(1, 4), st.just(2), st.integers(2, 30)), elements=st.integers(0, 6))


def test_two_classes_by_hand():
    """Class 0 is ranked without a mistake; of class 1, all scores are ties."""
    counts = np.array([[[2, 0], [0, 4]], [[5, 0], [1, 0]]])
    found = mean_roc([roc(own) for own in counts])
    # At 0 the first goes up to 1 and the second stays; at 1 both are there: the mean goes 0, 1/2, 1.
    assert found.tolist() == [[0, 0], [0, 0.5], [1, 1]]
    assert area(found) == auroc_of_counts(counts) == (1 + 0.5) / 2


def test_the_mean_of_curves_that_bend_at_different_rates():
    steep = np.array([[0, 0], [0.2, 0.8], [1, 1.0]])
    late = np.array([[0, 0], [0.6, 0.6], [0.6, 1.0], [1, 1.0]])
    found = mean_roc([steep, late])
    expected = [[0, 0], [0.2, 0.5], [0.6, (0.9 + 0.6) / 2], [0.6, (0.9 + 1) / 2], [1, 1]]
    np.testing.assert_allclose(found, expected)
    assert area(found) == pytest.approx((area(steep) + area(late)) / 2)


@given(COUNTS)
def test_the_area_is_the_pooled_auroc(counts):
    both = counts.sum(axis=2).min(axis=1) > 0
    if not both.any():
        assert auroc_of_counts(counts) is None
        return
    found = mean_roc([roc(own) for own in counts[both]])
    assert area(found) == pytest.approx(auroc_of_counts(counts))
    assert found[0].tolist() == [0, 0] and found[-1].tolist() == pytest.approx([1, 1])
    assert (np.diff(found, axis=0) >= -1e-12).all()


def test_the_mean_of_many_classes_in_many_bins_is_bounded():
    """A thousand classes that bend at different rates; the curve is that of a few of them."""
    rng = np.random.default_rng(0)
    curves = [np.column_stack([np.sort(np.append(rng.random(40), (0, 1))), np.linspace(0, 1, 42)]) for _ in range(1000)]
    found = mean_roc(curves)
    assert len(found) <= 2 * RATES
    assert area(found) == pytest.approx(np.mean([area(curve) for curve in curves]), abs=1e-4)


def test_one_class_is_scikit_learn_s_curve():
    rng = np.random.default_rng(0)
    places, labels = rng.integers(0, 40, 500), rng.integers(0, 2, 500)
    counts = np.stack([np.bincount(places[labels == c], minlength=40) for c in (0, 1)])
    x, y, _ = roc_curve(labels, places, drop_intermediate=False)
    np.testing.assert_allclose(roc(counts), np.column_stack([x, y]))


@given(st.integers(POINTS + 1, 3000), st.integers(0, 2**32 - 1))
def test_thinning_keeps_the_ends_and_nearly_the_area(points, seed):
    rng = np.random.default_rng(seed)
    steps = rng.random((points, 2)) * np.where(rng.random((points, 1)) < 0.5, [1, 0], [0, 1])
    curve = np.concatenate([np.zeros((1, 2)), steps.cumsum(axis=0) / steps.sum(axis=0)])
    found = thinned_roc(curve)
    assert len(found) == POINTS and found[0].tolist() == [0, 0] and found[-1].tolist() == pytest.approx([1, 1])
    assert area(found) == pytest.approx(area(curve), abs=0.005)
    few = curve[:: len(curve) // 50][:POINTS]
    assert thinned_roc(few) is few


@given(arrays(np.int64, st.integers(1, 30), elements=st.integers(0, 9)), st.integers(1, 15))
def test_cells_have_enough_samples_unless_all_together_have_too_few(samples, fewest):
    starts = cells(samples, fewest)
    assert starts[0] == 0 and (np.diff(starts) > 0).all()
    held = np.add.reduceat(samples, starts)
    assert held.sum() == samples.sum()
    assert held.min() >= fewest or (len(held) == 1 and samples.sum() < fewest)


def test_groups_of_a_rare_class_by_hand():
    """90 samples in the lowest bin, one with the class, and 10 in the highest, 9 with it, in groups of 10 or more."""
    counts = np.array([[89, 0, 0, 1], [1, 0, 0, 9]])
    found = reliability(counts, counts.sum(axis=0), np.array([0.02, 0.4, 0.6, 0.8]))
    assert found == [pytest.approx((0.02, 1 / 90, 90)), pytest.approx((0.8, 0.9, 10))]


def test_a_group_of_fewer_joins_its_neighbour():
    """The two lowest bins have 9 samples: they wait for the third. The highest has 3: it joins that group."""
    counts = np.array([[5, 3, 4, 1], [0, 1, 4, 2]])
    found = reliability(counts, counts.sum(axis=0), np.array([0.1, 0.3, 0.6, 0.9]))
    predicted = (5 * 0.1 + 4 * 0.3 + 8 * 0.6 + 3 * 0.9) / 20
    assert found == [pytest.approx((predicted, 7 / 20, 20))]


@given(COUNTS, st.integers(0, 2**32 - 1))
def test_groups_hold_all_samples_and_are_few(counts, seed):
    own = counts.sum(axis=0)
    if own.sum(axis=1).min() == 0:
        return
    at = np.sort(np.random.default_rng(seed).random(own.shape[1]))
    found = reliability(own, own.sum(axis=0), at)
    assert sum(n for *_, n in found) == own.sum() and len(found) <= GROUPS + 1
    assert sum(share * n for _, share, n in found) == pytest.approx(own[1].sum())
    assert sum(p * n for p, _, n in found) == pytest.approx((own.sum(axis=0) * at).sum())
    assert all(n >= 10 for *_, n in found) or len(found) == 1
