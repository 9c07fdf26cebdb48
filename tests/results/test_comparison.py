# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Differences between two ways to train: over all hospitals, and at each of them."""

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
    holm,
    mean_of,
    shared_by_all,
    two_stage,
)

NAN = float("nan")
P = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def at(value: float, draws: list[float], samples: int = 1, tested: int = 100, draw: int = 7) -> AtHospital:
    return AtHospital(samples, tested, draw, value, np.array(draws, np.float64))


def test_holm_multiplies_the_least_most_and_never_decreases():
    # 3 * .01 = .03; 2 * .04 = .08; 1 * .03 is the second least: 2 * .03 = .06, then 1 * .04 = .04, raised to .06
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.4, 0.6]) == pytest.approx([0.8, 0.8])
    assert holm([0.9, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(P)
def test_holm_keeps_the_order_and_lies_between_no_correction_and_bonferroni(p):
    found = np.array(holm(p))
    assert (found >= np.array(p) - 1e-12).all() and (found <= np.minimum(1, len(p) * np.array(p)) + 1e-12).all()
    assert (np.diff(found[np.argsort(p)]) >= 0).all()


@given(P, st.randoms())
def test_holm_does_not_depend_on_the_order_of_tests(p, random):
    order = list(range(len(p)))
    random.shuffle(order)
    assert np.array(holm([p[i] for i in order])) == pytest.approx(np.array(holm(p))[order])


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
    assert (found.one, found.other, found.hospitals) == (pytest.approx(0.825), pytest.approx(0.7), 2)
    assert found.gain == pytest.approx((3 * 0.2 - 0.1) / 4)
    # Drawn hospitals: both a: 0.2, both b: -0.1, else 0.125. One in four is below 0.
    assert (found.low, found.high) == (pytest.approx(-0.1), pytest.approx(0.2))
    assert found.p == pytest.approx(0.5, abs=0.03)
    errors = difference(one, other, "min")
    assert errors.gain == pytest.approx(-found.gain) and errors.low == pytest.approx(-0.2)
    assert mean_of(one) == pytest.approx(0.825)


def test_what_is_not_defined_at_a_hospital_leaves_it_out_of_all_three_numbers():
    one = {"a": at(0.9, [0.9] * 10), "b": at(0.1, [NAN] * 6 + [0.1] * 4)}
    other = {"a": at(0.5, [0.5] * 10), "b": at(0.2, [NAN] * 6 + [0.2] * 4)}
    found = difference(one, other)
    assert (found.one, found.other, found.gain, found.hospitals) == (0.9, 0.5, pytest.approx(0.4), 1)
    assert gains(one, other)["b"].says == UNKNOWN
    with pytest.raises(ConfigError, match="no hospital has the metric on half of its draws"):
        difference({"b": one["b"]}, {"b": other["b"]})


@pytest.mark.parametrize("changed", [{"draw": 8}, {"tested": 99}])
def test_other_draws_are_not_compared(changed):
    with pytest.raises(ConfigError, match="a measured two candidates on other draws"):
        difference({"a": at(0.9, [0.9] * 5)}, {"a": at(0.9, [0.9] * 5, **changed)})


def spread(middle: float, half: float) -> list[float]:
    """201 draws whose 95 % interval reaches so far from their middle."""
    return [middle + half / 0.95 * x for x in np.linspace(-1, 1, 201)]


def test_a_hospital_gains_loses_or_cannot_tell():
    zero = [0.0] * 201
    one = {
        "gains": at(0.3, spread(0.3, 0.04)),
        "loses": at(-0.3, spread(-0.3, 0.04)),
        "chance": at(0.01, spread(0.01, 0.04)),
        "wide": at(0.01, spread(0.01, 0.1), tested=30),
        "few": at(0.3, spread(0.3, 0.04), tested=19),
    }
    other = {name: at(0.0, zero, tested=own.tested) for name, own in one.items()}
    found = gains(one, other, margin=0.05)
    assert {name: own.says for name, own in found.items()} == {
        "gains": GAINS,
        "loses": LOSES,
        "chance": CHANCE,
        "wide": UNKNOWN,
        "few": UNKNOWN,
    }
    assert (found["gains"].low, found["gains"].high) == (pytest.approx(0.26), pytest.approx(0.34))
    assert found["wide"].needed == 120  # 30 (0.1 / 0.05)^2
    assert found["few"].needed == 20 and found["few"].p is None
    assert gains(one, other, "min")["gains"].says == LOSES


def test_a_single_gain_of_many_hospitals_has_to_be_clearer():
    # Two standard errors away: 0.046 alone, 24 times that among 24.
    drawn = np.random.default_rng(0).normal(size=400)
    drawn = (drawn - drawn.mean()) / drawn.std(ddof=1) * 0.01 + 0.02
    one = {f"h{i}": at(0.02, list(drawn)) for i in range(24)}
    none = {name: at(0.0, [0.0] * 400) for name in one}
    assert gains({"h0": one["h0"]}, none)["h0"].says == GAINS
    assert {own.says for own in gains(one, none).values()} == {CHANCE}


def test_the_same_predictions_are_within_chance():
    own = {"a": at(0.5, spread(0.5, 0.3))}
    assert gains(own, own)["a"].says == CHANCE
    found = difference(own, own)
    assert (found.gain, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=6))
def test_turned_around_a_difference_changes_its_sign(rows):
    def side(place: int) -> dict[str, AtHospital]:
        return {f"h{i}": at(row[place], [row[place]] * 4, samples=row[2]) for i, row in enumerate(rows)}

    found, back = difference(side(0), side(1)), difference(side(1), side(0))
    assert found.gain == pytest.approx(-back.gain) and found.p == pytest.approx(back.p)
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
    far = {"a": at(0.0, [-1e12, 1e12] * 25)}
    near = {"a": at(0.0, [0.0] * 50)}
    assert gains(far, near)["a"].needed == 10**9
