# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Differences between two ways to train: over all hospitals, and at each of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.core.errors import ConfigError
from cfl_flare.results.comparison import (
    CHANCE,
    GAINS,
    LOSES,
    UNKNOWN,
    AtHospital,
    difference,
    gains,
    majority,
    mean_of,
    shared_by_all,
    two_stage,
    usual_margin,
)

NAN = float("nan")


def at(value: float, draws: list[float], samples: int = 1, tested: int = 100, draw: int = 7) -> AtHospital:
    return AtHospital(samples, tested, draw, value, np.array(draws, np.float64))


def test_two_stages_have_the_moments_that_theory_gives():
    rng = np.random.default_rng(0)
    apart = rng.normal(size=(5, 400)) * np.array([[1.0], [2.0], [0.5], [1.0], [3.0]]) + np.arange(5)[:, None]
    found = two_stage(apart, np.ones(5), 200_000, rng)
    # A mean of 5 draws of one value from a hospital drawn among 5: between the hospitals' means, and within them.
    assert found.mean() == pytest.approx(apart.mean(), abs=0.01)
    assert found.std() == pytest.approx(apart.std() / np.sqrt(5), rel=0.01)


def test_two_stages_weigh_by_samples_as_a_loop_does():
    apart, weights = np.array([[0.0, 1.0], [4.0, 6.0]]), np.array([3.0, 1.0])
    found = two_stage(apart, weights, 40_000, np.random.default_rng(1))
    # 16 equal outcomes: both hospitals 0 (mean of two), both 1, or one of each with weights 3 : 1.
    outcomes = [
        np.average([apart[i, a], apart[j, b]], weights=[weights[i], weights[j]])
        for i in range(2)
        for j in range(2)
        for a in range(2)
        for b in range(2)
    ]
    assert found.mean() == pytest.approx(np.mean(outcomes), abs=0.03)
    assert set(np.round(found, 6)) == set(np.round(outcomes, 6))


def test_the_difference_of_means_is_weighted_and_paired():
    one = {"a": at(0.9, [0.9] * 50, samples=3), "b": at(0.6, [0.6] * 50)}
    other = {"a": at(0.7, [0.7] * 50, samples=3), "b": at(0.7, [0.7] * 50)}
    found = difference(one, other)
    assert (found.mean, found.reference, found.hospitals) == (pytest.approx(0.825), pytest.approx(0.7), 2)
    assert found.gain == pytest.approx((3 * 0.2 - 0.1) / 4)
    # Drawn hospitals: both a: 0.2, both b: -0.1, else 0.125. One in four is below 0.
    assert (found.low, found.high) == (pytest.approx(-0.1), pytest.approx(0.2)) and not found.clear
    errors = difference(one, other, "min")
    assert errors.gain == pytest.approx(-found.gain) and errors.low == pytest.approx(-0.2)
    assert mean_of(one) == pytest.approx(0.825)


def test_what_is_not_defined_at_a_hospital_leaves_it_out_of_all_three_numbers():
    one = {"a": at(0.9, [0.9] * 10), "b": at(0.1, [NAN] * 6 + [0.1] * 4)}
    other = {"a": at(0.5, [0.5] * 10), "b": at(0.2, [NAN] * 6 + [0.2] * 4)}
    found = difference(one, other)
    assert (found.mean, found.reference, found.gain, found.hospitals) == (0.9, 0.5, pytest.approx(0.4), 1)
    assert gains(one, other)["b"].says == UNKNOWN
    with pytest.raises(ConfigError, match="no hospital has the metric on half of its draws"):
        difference({"b": one["b"]}, {"b": other["b"]})


@pytest.mark.parametrize("changed", [{"draw": 8}, {"tested": 99}])
def test_a_hospital_with_other_draws_is_left_out(changed):
    one, other = ({"a": at(0.9, [v] * 5), "b": at(v, [v] * 5)} for v in (0.9, 0.8))
    found = difference(one, {**other, "a": at(0.1, [0.1] * 5, **changed)})
    assert found.hospitals == 1 and found.gain == pytest.approx(0.1)
    fewer = {name: at(0.5, [0.5] * 3) if name == "a" else own for name, own in other.items()}
    assert difference({**one, "a": at(0.9, [0.9] * 3)}, fewer).hospitals == 2  # hospitals may have other numbers


def spread(middle: float, half: float) -> list[float]:
    """200 draws whose 95 % interval reaches so far from their middle."""
    return [middle + sign * half * np.sqrt(199 / 200) / 1.959964 for sign in (-1, 1) for _ in range(100)]


@pytest.mark.parametrize(
    ("gain", "half", "tested", "says", "needed"),
    [
        (0.3, 0.04, 100, GAINS, None),
        (-0.3, 0.04, 100, LOSES, None),
        (0.005, 0.04, 100, CHANCE, None),
        (0.02, 0.04, 100, UNKNOWN, 400),  # 100 (0.04 / 0.02)^2: of the effect, and not of the margin
        (0.01, 0.1, 30, UNKNOWN, 3000),
        (0.0, 0.1, 30, UNKNOWN, None),  # no number of samples shows a difference that there is not
        (0.3, 0.04, 19, UNKNOWN, 20),
        (0.01, 0.1, 19, UNKNOWN, 1900),
    ],
)
def test_a_hospital_gains_loses_or_cannot_tell(gain, half, tested, says, needed):
    one, other = {"a": at(gain, spread(gain, half), tested=tested)}, {"a": at(0.0, [0.0] * 200, tested=tested)}
    found = gains(one, other, margin=0.05)["a"]
    assert (found.says, found.needed) == (says, needed if needed is None else pytest.approx(needed, abs=1))
    assert (found.low, found.high) == ((None, None) if tested < 20 else pytest.approx((gain - half, gain + half)))
    turned = {GAINS: LOSES, LOSES: GAINS}
    assert gains(one, other, "min", 0.05)["a"].says == turned.get(says, says)


def test_a_single_gain_of_many_hospitals_has_to_be_clearer():
    """Two standard errors away: clear alone, and not among 24, whose intervals are wider."""
    one = {f"h{i}": at(0.02, spread(0.02, 0.0196)) for i in range(24)}
    none = {name: at(0.0, [0.0] * 200) for name in one}
    (alone,), among = gains({"h0": one["h0"]}, none).values(), gains(one, none)
    assert alone.says == GAINS and alone.low == pytest.approx(0.0004)
    assert {own.says for own in among.values()} == {UNKNOWN}
    assert among["h0"].low == pytest.approx(0.02 - 0.01 * 3.0781, abs=1e-4)  # 1 - 0.05 / 24, two-sided


HOSPITAL = st.tuples(st.floats(-1, 1), st.floats(0, 0.3), st.integers(1, 300))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(HOSPITAL, min_size=1, max_size=40), st.integers(0, 9), st.floats(1e-4, 1), st.sampled_from(["max", "min"])
)
def test_whatever_the_numbers_a_word_says_what_its_interval_shows(rows, seed, margin, mode):
    noise = np.random.default_rng(seed).normal(size=(len(rows), 50))
    one = {f"h{i}": at(v, v + d * noise[i], tested=n) for i, (v, d, n) in enumerate(rows)}
    none = {f"h{i}": at(0.0, [0.0] * 50, tested=n) for i, (_, _, n) in enumerate(rows)}
    for own in gains(one, none, mode, margin).values():
        if own.low is None:
            assert own.says == UNKNOWN
            continue
        assert (own.says == GAINS) == (own.low > 0) and (own.says == LOSES) == (own.high < 0)
        assert (own.says == CHANCE) == (own.low <= 0 <= own.high and -margin <= own.low and own.high <= margin)
        assert own.low <= own.gain <= own.high and (own.needed is None or own.says == UNKNOWN)


def test_a_margin_is_of_the_measure():
    assert usual_margin("auroc", 0.8) == usual_margin("cluster-0/accuracy", 0.1) == 0.05
    assert usual_margin("loss", 0.2) == pytest.approx(0.01) == usual_margin("served_rmse", 0.2)


def test_naming_the_most_frequent_class_is_a_way_to_train_that_is_compared_with():
    """Of all hospitals' weights class 0 has more, so it is named where class 1 has more, too."""
    counts = {"a": (9, 1), "b": (1, 3)}
    found = {name: replace(at(0.5, [0.5] * 4, samples=n), classes=counts[name]) for name, n in (("a", 3), ("b", 1))}
    naming = majority(found)
    assert {name: own.value for name, own in naming.items()} == {"a": 0.9, "b": 0.25}
    assert mean_of(naming) == pytest.approx((3 * 0.9 + 0.25) / 4) and naming["b"].draws.tolist() == [0.25] * 4
    assert majority({"a": at(0.5, [0.5])}) is None


def test_the_same_predictions_are_within_chance():
    own = {"a": at(0.5, spread(0.5, 0.3))}
    assert gains(own, own)["a"].says == CHANCE
    found = difference(own, own)
    assert (found.gain, found.low, found.high, found.clear) == (0.0, 0.0, 0.0, False)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=6))
def test_turned_around_a_difference_changes_its_sign(rows):
    def side(place: int) -> dict[str, AtHospital]:
        return {f"h{i}": at(row[place], [row[place]] * 4, samples=row[2]) for i, row in enumerate(rows)}

    found, back = difference(side(0), side(1)), difference(side(1), side(0))
    assert found.gain == pytest.approx(-back.gain)
    assert (found.low, found.high) == (pytest.approx(-back.high), pytest.approx(-back.low))
    assert found.low - 1e-9 <= found.gain + 1e-9 and min(a - b for a, b, _ in rows) - 1e-9 <= found.low


def test_means_are_over_the_hospitals_that_measured_all_ways():
    one = {"a": at(0.9, [0.9]), "b": at(0.5, [0.5], samples=3), "c": at(0.1, [0.1])}
    other = {"a": at(0.8, [0.8]), "b": at(0.4, [0.4], samples=3)}
    means = {name: mean_of(found) for name, found in shared_by_all({"one": one, "other": other}).items()}
    assert means == pytest.approx({"one": (0.9 + 3 * 0.5) / 4, "other": (0.8 + 3 * 0.4) / 4})
    apart = {"one": {"a": one["a"]}, "other": {"b": other["b"]}}
    assert shared_by_all(apart) == apart and shared_by_all({}) == {}


def test_what_a_hospital_would_need_stays_a_number_whatever_its_measures_are():
    far = {"a": at(1e-9, [-1e12, 1e12] * 25)}
    near = {"a": at(0.0, [0.0] * 50)}
    assert gains(far, near)["a"].needed == 10**9
