# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from cfl_flare.training.measures import accuracy, macro_f1

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30)


@settings(deadline=None)
@given(PAIRS)
def test_measures_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(pairs).T
    assert accuracy(labels, predictions) == pytest.approx(accuracy_score(labels, predictions))
    expected = f1_score(labels, predictions, average="macro", zero_division=0)
    assert macro_f1(labels, predictions) == pytest.approx(expected)


def test_macro_f1_counts_the_classes_that_occur_alone() -> None:
    assert macro_f1(np.array([7, 7]), np.array([7, 7])) == 1
    # Class 2: precision 1, recall 1/2. Class 5 is predicted and never true: 0. Classes 0, 1, 3, 4 do not occur.
    assert macro_f1(np.array([2, 2]), np.array([2, 5])) == pytest.approx((2 / 3 + 0) / 2)
