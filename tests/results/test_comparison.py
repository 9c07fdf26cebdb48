# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Differences between ways to train, over all hospitals and at each, and intervals of a run's final measures."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from cfl_flare import paired_difference
from cfl_flare.core.arrays import save_arrays
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.data import Digits
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import FedAvg, Local, Method, Participant
from cfl_flare.results.bootstrap import (
    BOOTSTRAP,
    Draws,
    interval,
    middle,
    read_draws,
    told_apart,
    weighted,
    worst_tenth,
)
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
    usual_margin,
)
from cfl_flare.results.metrics import Metric
from cfl_flare.results.run_dir import SUMMARY, Run, load_run
from cfl_flare.results.tables import results_table
from cfl_flare.training.bootstrap import Replicates, draw_rows, replicates
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Classification
from tests.helpers.loop import run_loop
from tests.helpers.play import DATA, MODEL

NAN = float("nan")


def at(value: float, draws: list[float], samples: int = 1, tested: int = 100, draw: int = 7) -> AtHospital:
    return AtHospital(samples, tested, draw, value, np.array(draws, np.float64))


def test_an_interval_has_hospitals_as_its_unit():
    """Gains of 0.2 and -0.1 with 3 and 1 samples: fractions 3/4 and 1/4."""
    one = {"a": at(0.9, [0.9] * 50, samples=3), "b": at(0.6, [0.6] * 50)}
    other = {"a": at(0.7, [0.7] * 50, samples=3), "b": at(0.7, [0.7] * 50)}
    found = difference(one, other)
    assert (found.mean, found.reference, found.hospitals) == (pytest.approx(0.825), pytest.approx(0.7), 2)
    assert found.gain == pytest.approx((3 * 0.2 - 0.1) / 4)  # 0.125, so the residuals are 0.075 and -0.225
    assert found.error == pytest.approx(math.sqrt(2 * ((0.75 * 0.075) ** 2 + (0.25 * 0.225) ** 2)))
    # 1 / (0.75^2 + 0.25^2) = 1.6 effective hospitals: one degree of freedom at least, whose t is 12.706.
    assert found.high - found.gain == pytest.approx(12.7062 * found.error, rel=1e-5) and not found.clear
    errors = difference(one, other, "min")
    assert errors.gain == pytest.approx(-found.gain) and errors.low == pytest.approx(-found.high)


def test_equal_hospitals_have_a_t_interval_and_unequal_ones_fewer_degrees_of_freedom():
    gains_of = [0.1, 0.3, 0.2, 0.5]
    none = {f"h{i}": at(0.0, [0.0] * 5) for i in range(4)}
    equal = {f"h{i}": at(gain, [gain] * 5) for i, gain in enumerate(gains_of)}
    found = difference(equal, none)
    half = 3.1824463 * np.std(gains_of, ddof=1) / 2  # t with 3 degrees of freedom, and a mean of 4
    assert (found.low, found.high) == (pytest.approx(0.275 - half), pytest.approx(0.275 + half))
    unequal = {name: replace(own, samples=samples) for (name, own), samples in zip(equal.items(), (6, 1, 2, 1))}
    found = difference(unequal, none)
    assert found.gain == pytest.approx((0.6 + 0.3 + 0.4 + 0.5) / 10)
    # 100 / (36 + 1 + 4 + 1) = 2.381 effective hospitals: 1.381 degrees of freedom
    assert (found.high - found.gain) / found.error == pytest.approx(student.ppf(0.975, 100 / 42 - 1))


def test_one_hospital_has_the_interval_of_its_patients():
    found = difference({"a": at(0.3, spread(0.3, 0.1))}, {"a": at(0.1, [0.1] * 200)})
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.3))


def test_a_few_large_hospitals_are_not_cut_and_the_mean_is_the_mean():
    """Two hospitals have 1,600 of 2,000 samples, and gain 0.3. Twenty gain about nothing."""
    sizes = [800, 800, *[20] * 20]
    one = {f"h{i}": at(0.3 if i < 2 else 0.001 * (i % 3), [0.3] * 5, samples=n) for i, n in enumerate(sizes)}
    found = difference(one, {name: at(0.0, [0.0] * 5) for name in one})
    mean = (1600 * 0.3 + 20 * 0.001 * sum(i % 3 for i in range(2, 22))) / 2000
    assert (found.gain, found.mean, mean_of(one)) == (pytest.approx(mean),) * 3 and found.bounded == ()


def test_a_hospital_that_is_far_from_all_others_is_bounded_and_named():
    """The others gain 0.1 to 0.2: the liar counts as 0.2 + 2 * 0.1. Means are those of what was measured."""
    gains_of = [0.1, 0.15, 0.2, 0.1, 1e9]
    samples = (1, 2, 3, 4, 5)
    one = {f"h{i}": at(gain, [gain] * 5, samples=n) for i, (gain, n) in enumerate(zip(gains_of, samples))}
    found = difference(one, {name: at(0.0, [0.0] * 5) for name in one})
    assert found.bounded == ("h4",) and found.mean == pytest.approx((0.1 + 0.3 + 0.6 + 0.4 + 5e9) / 15)
    assert found.gain == pytest.approx((0.1 + 0.3 + 0.6 + 0.4 + 5 * 0.4) / 15)
    down = difference(one, {name: at(0.0, [0.0] * 5) for name in one}, "min")
    assert down.gain == pytest.approx(-found.gain) and down.low == pytest.approx(-found.high)


def test_a_hospital_without_draws_stays_in_the_mean_over_all():
    one = {"a": at(0.9, [0.9] * 10, samples=3), "b": at(0.1, [NAN] * 6 + [0.1] * 4)}
    other = {"a": at(0.5, [0.5] * 10), "b": at(0.2, [NAN] * 6 + [0.2] * 4)}
    found = difference(one, other)
    assert found.gain == pytest.approx((3 * 0.4 - 0.1) / 4) and found.hospitals == 2
    assert gains(one, other)["b"].says == UNKNOWN
    with pytest.raises(ConfigError, match="no hospital measured the metric of both candidates"):
        difference({"a": one["a"]}, {"b": other["b"]})


def test_a_rounding_error_is_no_difference():
    """0.1 + 0.2 is not 0.3 to a computer."""
    one = {f"h{i}": at(0.1 + 0.2, [0.1 + 0.2] * 9, samples=i + 1) for i in range(6)}
    none = {name: at(0.3, [0.3] * 9) for name in one}
    found = difference(one, none)
    assert (found.low, found.high, found.clear) == (0.0, 0.0, False)
    assert {own.says for own in gains(one, none).values()} == {CHANCE}


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
        (0.03, 0.1, 30, UNKNOWN, 334),  # 30 (0.1 / 0.03)^2
        (0.01, 0.1, 30, UNKNOWN, None),  # 3000: nobody gets a hundred times the samples
        (0.0, 0.1, 30, UNKNOWN, None),  # no number of samples shows a difference that there is not
        (0.3, 0.04, 19, UNKNOWN, 20),
        (0.05, 0.1, 19, UNKNOWN, 76),
        (0.01, 0.1, 19, UNKNOWN, None),
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
    assert found.low <= found.gain + 1e-9 and found.gain <= found.high + 1e-9
    if not found.bounded:
        assert found.gain == pytest.approx(found.mean - found.reference, abs=1e-9)
    lowest, *_, highest = sorted([a - b for a, b, _ in rows] * 2)
    assert lowest - 1e-9 <= found.gain <= highest + 1e-9


def test_means_are_over_the_hospitals_that_measured_all_ways():
    one = {"a": at(0.9, [0.9]), "b": at(0.5, [0.5], samples=3), "c": at(0.1, [0.1])}
    other = {"a": at(0.8, [0.8]), "b": at(0.4, [0.4], samples=3)}
    means = {name: mean_of(found) for name, found in shared_by_all({"one": one, "other": other}).items()}
    assert means == pytest.approx({"one": (0.9 + 3 * 0.5) / 4, "other": (0.8 + 3 * 0.4) / 4})
    apart = {"one": {"a": one["a"]}, "other": {"b": other["b"]}}
    assert shared_by_all(apart) == apart and shared_by_all({}) == {}


# ---- Intervals ----


PEOPLE = {name: Participant(name, "site", samples) for name, samples in (("a", 3), ("b", 1), ("c", 4))}
# 101 draws, whose 2.5 and 97.5 percentiles are the values at 2.5 and 97.5.
RISING = tuple(i / 100 for i in range(101))
FALLING = RISING[::-1]


def make_replicates(**values: tuple[float | None, ...]) -> Replicates:
    return Replicates(7, {f"served_{name}": own for name, own in values.items()})


def test_the_middle_is_of_what_is_there():
    assert middle(np.array(RISING)) == pytest.approx((0.025, 0.975))
    assert middle(np.array([*RISING, *[NAN] * 101])) == pytest.approx((0.025, 0.975))
    assert middle(np.array([*RISING, *[NAN] * 102])) is None
    assert middle(np.array([NAN])) is None


# A standard deviation of 0.1, whatever the mean: 51 values a deviation above it, and 51 as much below.
TWO = np.array([-0.1, 0.1] * 51) * math.sqrt(101 / 102)


@pytest.mark.parametrize(
    ("point", "name", "ends"),
    [
        # log-odds 1.386294 +- 1.959964 * 0.1 / (0.8 * 0.2), and back
        (0.8, "served_accuracy", (0.540242, 0.931584)),
        # the logarithm +- 0.1959964 / 0.5
        (0.5, "served_loss", (0.5 * math.exp(-0.3919928), 0.5 * math.exp(0.3919928))),
        (80.0, "accuracy", (80 * math.exp(-0.1959964 / 80), 80 * math.exp(0.1959964 / 80))),  # per cent
        (-0.3, "served_r2", (-0.4959964, -0.1040036)),
        (0.05, "served_loss", (-0.1459964, 0.2459964)),  # with draws below 0, which no loss is
    ],
)
def test_an_interval_is_on_the_scale_of_its_measure(point, name, ends):
    assert interval(TWO + point, point, name) == pytest.approx(ends, abs=1e-6)
    assert interval(np.append(TWO + point, [NAN] * 102), point, name) == pytest.approx(ends, abs=1e-6)
    assert interval(np.append(TWO + point, [NAN] * 103), point, name) is None


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0, 1) | st.floats(-1e9, 1e9),
    st.lists(st.floats(0, 1), min_size=1, max_size=9) | st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9),
    st.sampled_from(["accuracy", "loss", "r2"]),
)
def test_whatever_a_site_sends_has_finite_ends_around_the_measure(point, values, name):
    low, high = interval(np.array(values), point, name)
    assert math.isfinite(low) and math.isfinite(high) and low <= point + 1e-12 and point <= high + 1e-12
    if name == "accuracy" and min(point, *values) >= 0 and max(point, *values) <= 1 and 0 < point < 1:
        assert 0 <= low <= high <= 1


def test_means_are_made_draw_by_draw_with_unequal_weights():
    draws = Draws.of({"b": make_replicates(accuracy=FALLING), "a": make_replicates(accuracy=RISING)}, PEOPLE)
    assert draws.participants == ("a", "b") and draws.samples == (3, 1)
    assert draws.intervals("a", {"served_accuracy": 0.5}) == {"served_accuracy": interval(np.array(RISING), 0.5, "acc")}
    assert draws.intervals("a", {}) == draws.intervals("c", {"served_accuracy": 0.5}) == {}
    # (3 i + 1 (100 - i)) / 400 = 0.25 + i / 200
    found = draws.of_mean("served_accuracy", {"a": 0.5, "b": 0.5})
    assert found == pytest.approx(interval(0.25 + np.arange(101) / 200, 0.5, "accuracy"))
    assert draws.of_mean("served_accuracy", dict.fromkeys("abc", 0.5)) is None  # c is in the mean, and sent no draws
    assert draws.of_mean("served_loss", {"a": 1.0, "b": 1.0}) is None


def test_a_macro_f1_lies_in_its_own_interval():
    """100 hospitals with 3 samples of each of 8 classes: draws lack some, so that the mean is lower on most draws."""
    task, rng, drawn_of, points, people = Classification(), np.random.default_rng(1), {}, {}, {}
    labels = np.repeat(np.arange(8), 3)
    for name in (f"p{i}" for i in range(100)):
        outputs = torch.eye(8)[np.where(rng.random(24) < 0.3, labels, rng.integers(8, size=24))]
        targets = torch.from_numpy(labels)
        values = replicates(task, outputs, targets, ("macro_f1",), draw_rows(0, name, "", 24, 40))
        drawn_of[name] = Replicates(7, {"served_macro_f1": values["macro_f1"]})
        points[name] = task.measured(outputs, targets)["macro_f1"]
        people[name] = Participant(name, name, 1)
    draws = Draws.of(drawn_of, people)
    low, high = draws.of_mean("served_macro_f1", points)
    assert low < np.mean([*points.values()]) < high
    assert middle(draws.values["served_macro_f1"].mean(axis=0))[1] < np.mean([*points.values()])


def test_draws_that_do_not_define_a_measure_are_replaced_by_the_participant_s_own():
    values = np.array([[0.0, NAN, 1.0, NAN], [1.0, 1.0, 0.0, 0.0]])
    assert weighted(values, np.array([1.0, 1.0])).tolist() == [0.5, 0.5, 0.5, 0.5]
    values[0, 2] = NAN
    assert weighted(values[:1], np.array([1.0])) is None
    one = {"a": make_replicates(auroc=(None, *RISING[1:])), "b": make_replicates(auroc=(*[None] * 51, *RISING[51:]))}
    draws = Draws.of(one, PEOPLE)
    point = {"served_auroc": 0.5}
    assert draws.intervals("a", point).keys() == {"served_auroc"} and draws.intervals("b", point) == {}
    assert draws.of_mean("served_auroc", {"a": 0.5}) is not None
    assert draws.of_mean("served_auroc", {"a": 0.5, "b": 0.5}) is not None  # b does not take it from both


def test_a_participant_without_an_interval_has_the_noise_of_others():
    """Three of four have draws with a deviation of 0.1 and 4 samples; the fourth has one, so a deviation of 0.2."""
    noise = np.random.default_rng(0).permuted(np.tile(TWO, (3, 20)), axis=1)
    values = np.vstack([0.5 + noise, np.full(noise.shape[1], NAN)])
    weights = np.array([4.0, 4.0, 4.0, 1.0])
    expected = math.sqrt(3 * (4 * 0.1) ** 2 + (1 * 0.2) ** 2) / 13
    assert weighted(values, weights).std() == pytest.approx(expected, rel=0.06)
    assert weighted(values[2:], weights[2:]) is not None and weighted(values[3:], weights[3:]) is None


def test_a_measure_that_one_participant_withheld():
    draws = Draws.of(
        {"a": make_replicates(accuracy=RISING, loss=RISING), "b": make_replicates(accuracy=RISING)}, PEOPLE
    )
    assert np.isnan(draws.values["served_loss"][1]).all()
    assert draws.intervals("b", dict.fromkeys(draws.values, 0.5)).keys() == {"served_accuracy"}
    ends = interval(np.array(RISING), 0.5, "served_loss")
    assert draws.of_mean("served_loss", {"a": 0.5}) == pytest.approx(ends)  # the mean is over a, too


@pytest.mark.parametrize("intervals", [{"a": (0.1, 0.5)}, {"a": (0.1, 0.3), "b": (0.4, 0.6)}, {"c": (0.6, 0.6)}])
def test_nobody_is_told_apart_where_intervals_overlap_or_are_not_known(intervals):
    """All of a, b and c have one of 0.1 to 0.3, 0.2 to 0.6 and 0.55 to 0.9, but for what is given."""
    usual = {"a": (0.1, 0.3), "b": (0.2, 0.6), "c": (0.55, 0.9)}
    values = {"a": 0.2, "b": 0.5, "c": 0.6}
    told = told_apart(values, {**usual, **intervals}, Metric("accuracy"))
    assert told == (("a", None) if "b" in intervals else (None, None))
    assert told_apart(values, {**usual, **intervals}, Metric("loss", "min")) == told[::-1]
    assert told_apart(values, {"a": (0.1, 0.2)}, Metric("accuracy")) == told_apart({"a": 0.1}, usual, Metric("x"))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_worst_tenth_reaches_towards_the_others_by_twice_its_bias(sign):
    """The worst tenth of two is a, with draws of 4 and 6. The lower of both on each draw is 3 and 6: 0.5 below a."""
    metric, level = Metric("r2", "max" if sign > 0 else "min"), 20.0 if sign < 0 else 0.0
    values = level + sign * np.array([[4.0, 6.0], [3.0, 9.0]])
    draws = Draws(("a", "b"), (1, 1), (0, 0), {"served_r2": values})
    points = {"a": level + sign * 5.0, "b": level + sign * 6.0}
    mean, ends = worst_tenth(draws, "served_r2", points, metric)
    half = 1.959964 * math.sqrt(2)  # the deviation of 4 and 6
    assert mean == points["a"]
    assert sorted(sign * (end - level) for end in ends) == pytest.approx([5 - half, 5 + half + 2 * 0.5])
    assert worst_tenth(draws, "served_r2", {**points, "c": 1.0}, metric) is None
    assert worst_tenth(draws, "served_dice", points, metric) is None


def write_replicates(folder: Path, draws: dict[str, Replicates], **points: float) -> Run:
    """A run with these draws, whose participants have these accuracies."""
    folder.mkdir()
    Draws.of(draws, PEOPLE).save(folder / BOOTSTRAP)
    return Run(folder, {"participants": [{"name": name, "served_accuracy": own} for name, own in points.items()]})


def test_a_difference_is_paired_draw_by_draw(tmp_path):
    level = tuple(0.1 + value / 2 for value in RISING)
    one = write_replicates(
        tmp_path / "one", {"a": make_replicates(accuracy=RISING), "b": make_replicates(accuracy=FALLING)}, a=0.5, b=0.75
    )
    two = write_replicates(
        tmp_path / "two", {"a": make_replicates(accuracy=level), "b": make_replicates(accuracy=FALLING)}, b=0.5, a=0.25
    )
    found = paired_difference(one, two, "accuracy")
    assert found.mean == 0.25  # (3 * 0.25 + 1 * 0.25) / 4
    ends = (0.025 / 2 - 0.1, 0.975 / 2 - 0.1)  # of a: i / 200 - 0.1; of b: always 0
    assert found.by_participant == {"a": pytest.approx((0.25, *ends)), "b": pytest.approx((0.25, 0.0, 0.0))}
    assert (found.low, found.high) == pytest.approx(tuple(0.75 * end for end in ends))
    back = paired_difference(two, one, "served_accuracy")
    assert (back.mean, back.low, back.high) == pytest.approx((-found.mean, -found.high, -found.low))


def test_runs_that_cannot_be_paired_say_why(tmp_path):
    own = {"a": make_replicates(accuracy=RISING), "b": make_replicates(accuracy=RISING)}
    first = write_replicates(tmp_path / "first", own, a=0.5, b=0.5)
    few = make_replicates(accuracy=(*[None] * 60, *RISING[60:]))
    gone = {"a": few, "b": few}
    others = {
        "their participants who report it differ": write_replicates(tmp_path / "1", {"a": own["a"]}, a=0.5),
        "their participants with draws differ": write_replicates(tmp_path / "2", {"a": own["a"]}, a=0.5, b=0.5),
        "their numbers of draws differ": write_replicates(
            tmp_path / "3", {name: make_replicates(accuracy=RISING[:50]) for name in own}, a=0.5, b=0.5
        ),
        "their draws differ": write_replicates(
            tmp_path / "4", {**own, "b": Replicates(8, {"served_accuracy": RISING})}, a=0.5, b=0.5
        ),
        "'accuracy' is not defined on half of most participants' draws": write_replicates(
            tmp_path / "5", gone, a=0.5, b=0.5
        ),
    }
    for reason, other in others.items():
        with pytest.raises(ConfigError, match=f"first and .*{other.folder.name} cannot be paired: {reason}"):
            paired_difference(first, other, "accuracy")
    with pytest.raises(ConfigError, match=r"first has no draws of 'loss'; run it with training's bootstrap"):
        paired_difference(first, first, "loss")
    (tmp_path / "1" / BOOTSTRAP).unlink()
    with pytest.raises(ConfigError, match="1 has no draws of 'accuracy'"):
        paired_difference(first, others["their participants who report it differ"], "accuracy")


FACTS = {"participants": ["a", "b"], "samples": [3, 1], "draws": [1, 2]}


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (np.zeros((2, 5)), {}),
        (np.zeros((2, 5)), {**FACTS, "participants": ["a", "a"]}),
        (np.zeros((2, 5)), {**FACTS, "participants": {"a": 1, "b": 2}}),
        (np.zeros((2, 5)), {**FACTS, "samples": [3, 0]}),
        (np.zeros((2, 5)), {**FACTS, "draws": [1]}),
        (np.zeros((2, 5)), {**FACTS, "draws": [1, None]}),
        (np.zeros((3, 5)), FACTS),
        (np.zeros(2), FACTS),
        (np.zeros((2, 5), np.float32), FACTS),
        (np.full((2, 5), np.inf), FACTS),
    ],
)
def test_a_file_of_draws_is_checked(tmp_path, values, facts):
    assert read_draws(tmp_path) is None
    save_arrays(tmp_path / BOOTSTRAP, {"served_accuracy": values}, facts)
    with pytest.raises(PayloadError, match=r"bootstrap\.safetensors does not hold draws by participant; copy it again"):
        read_draws(tmp_path)


def run_bootstrap(folder: Path, method: Method, times: int = 50, seed: int = 0) -> Run:
    run_loop(
        method=method,
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(2, seed=seed),
        training=TrainSettings(lr=0.1, local_steps=3, bootstrap=times),
        folder=folder,
    )
    return load_run(folder)


def test_two_methods_on_digits(tmp_path):
    first, second = run_bootstrap(tmp_path / "first", FedAvg()), run_bootstrap(tmp_path / "second", Local())
    plain = run_bootstrap(tmp_path / "plain", FedAvg(), times=0)
    for one in (first, second):
        final, draws = one.summary["final"], read_draws(one.folder)
        assert (
            draws.values.keys()
            == one.summary["intervals"].keys()
            == {"served_accuracy", "served_macro_f1", "served_loss"}
        )
        for key, (low, high) in one.summary["intervals"].items():
            assert low < final[key] < high and draws.values[key].shape == (6, 50)
        narrow, wide = one.summary["intervals"]["served_accuracy"], []
        for person in one.summary["participants"]:
            low, high = person["intervals"]["served_accuracy"]
            assert low <= person["served_accuracy"] <= high
            wide.append(high - low)
        assert narrow[1] - narrow[0] < np.mean(wide)
    assert read_draws(first.folder).draws == read_draws(second.folder).draws
    found = paired_difference(second, first, "accuracy")
    expected = second.summary["final"]["served_accuracy"] - first.summary["final"]["served_accuracy"]
    assert found.mean == pytest.approx(expected) and found.low <= found.mean <= found.high
    assert found.by_participant.keys() == {f"p{i}" for i in range(6)}
    # Without draws, nothing else changes, and nothing of them is written.
    same = {key: value for key, value in first.summary["final"].items() if key != "seconds"}
    assert {key: value for key, value in plain.summary["final"].items() if key != "seconds"} == same
    assert "intervals" not in plain.summary and "intervals" not in plain.summary["participants"][0]
    assert not (plain.folder / BOOTSTRAP).exists()
    # Another seed deals the data out in another way: a dash, and no difference.
    other = run_bootstrap(tmp_path / "other", FedAvg(), seed=1)
    with pytest.raises(ConfigError, match="draws differ"):
        paired_difference(other, first, "accuracy")
    columns = {
        str(column.header): list(column.cells) for column in results_table([first, second, other, plain]).columns
    }
    assert columns["to the first"][0] == "-" and columns["to the first"][2:] == ["-", "-"]
    assert columns["to the first"][1] == (
        f"{'+' * (found.mean > 0)}{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"
    )
    assert columns["accuracy"][3] == f"{plain.summary['final']['served_accuracy']:.3f}"


def test_a_new_run_in_the_folder_leaves_no_old_draws(tmp_path):
    run_bootstrap(tmp_path, FedAvg())
    run_bootstrap(tmp_path, FedAvg(), times=0)
    assert not (tmp_path / BOOTSTRAP).exists()


@pytest.mark.parametrize("wrong", [[1.0], [0.1, "x"], {"low": 1}, None])
@pytest.mark.parametrize("of_participant", [True, False])
def test_intervals_of_a_foreign_summary_are_checked(tmp_path, wrong, of_participant):
    summary = dict.fromkeys(("clusters", "rounds", "bytes_down", "bytes_up", "seconds"), 0)
    summary |= {"method": {}, "label": "fedavg", "final": {}, "participants": [{"name": "a", "group": None}]}
    summary["metric"] = {"name": "accuracy", "mode": "max"}
    path = tmp_path / SUMMARY
    path.write_text(json.dumps(summary))
    load_run(tmp_path)
    (summary["participants"][0] if of_participant else summary)["intervals"] = {"served_accuracy": wrong}
    path.write_text(json.dumps(summary))
    with pytest.raises(ConfigError, match="participants = " if of_participant else "intervals = "):
        load_run(tmp_path)
