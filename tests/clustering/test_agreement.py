# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from cfl_flare.clustering.measures import agreement, size_entropy

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=20)


@settings(deadline=None, max_examples=25)
@given(PAIRS, st.permutations(range(4)))
def test_agreement_is_scikit_learns_whatever_the_clusters_are_called(
    pairs: list[tuple[int, int]], names: list[int]
) -> None:
    truth, labels = [t for t, _ in pairs], [c for _, c in pairs]
    measured = agreement(truth, [names[c] for c in labels])
    assert measured["ari"] == pytest.approx(adjusted_rand_score(truth, labels), abs=1e-12)
    assert measured["nmi"] == pytest.approx(normalized_mutual_info_score(truth, labels), abs=1e-12)
    assert all(type(value) is float for value in measured.values())


def test_agreement_by_hand() -> None:
    # Of the 6 pairs, both keep {0, 1} together: index 1, expected 2 * 1 / 6, largest (2 + 1) / 2.
    assert agreement([0, 0, 1, 1], [0, 0, 1, 2])["ari"] == pytest.approx((1 - 2 / 6) / (1.5 - 2 / 6))
    assert agreement([0, 1, 2, 0], [2, 0, 1, 2]) == {"ari": 1.0, "nmi": 1.0}
    assert agreement([0, 0, 1, 1], [0, 0, 0, 0]) == {"ari": 0.0, "nmi": 0.0}


def test_size_entropy_by_hand() -> None:
    assert size_entropy([5, 5, 5, 5]) == pytest.approx(1)
    assert size_entropy([7, 0, 0]) == 0
    assert size_entropy([2, 2, 0, 0]) == pytest.approx(math.log(2) / math.log(4))
    assert size_entropy([1, 3]) == pytest.approx(-(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75)))


@pytest.mark.parametrize("sizes", [[], [4], [0, 0]])
def test_size_entropy_where_there_is_nothing_to_spread(sizes: list[int]) -> None:
    assert size_entropy(sizes) == 0


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=8))
def test_size_entropy_lies_between_collapse_and_balance(sizes: list[int]) -> None:
    value = size_entropy(sizes)
    assert 0 <= value <= 1 + 1e-12
    assert value == pytest.approx(size_entropy(sizes[::-1]))
    if sum(s > 0 for s in sizes) > 1:
        assert value > 0
