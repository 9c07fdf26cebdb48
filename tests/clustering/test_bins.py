# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfl_flare.clustering.measures import by_rank, placed, thresholds


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
    assert by_rank(named, k) == dict(zip("abcdef", bins))
    assert by_rank(dict(reversed(named.items())), k) == dict(zip("abcdef", bins))


def test_later_values_are_placed_between_the_percentile_points():
    values = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}
    limits = thresholds(values, by_rank(values, 3), 3)
    assert limits == [2.0, 4.0]
    assert [placed(v, limits) for v in (0.0, 2.0, 2.1, 4.0, 4.1, 99.0)] == [0, 0, 1, 1, 2, 2]


def test_an_empty_bin_has_the_threshold_of_the_one_before():
    values = {"a": 1.0, "b": 2.0}
    assert by_rank(values, 3) == {"a": 0, "b": 1}
    assert thresholds(values, {"a": 0, "b": 2}, 3) == [1.0, 1.0]


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 9), min_size=2, max_size=20), st.integers(2, 5))
def test_sizes_differ_by_one_at_most_and_bins_rise_with_the_values(values, k):
    bins = by_rank(values, k)
    sizes = [list(bins.values()).count(i) for i in range(k)]
    assert max(sizes) - min(sizes) <= 1
    assert all(bins[a] <= bins[b] for a in values for b in values if values[a] < values[b])
    if len(set(values.values())) == len(values):
        assert {name: placed(value, thresholds(values, bins, k)) for name, value in values.items()} == bins
