# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A rule that deals training and test samples together: each participant's own are split afterwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cfl_flare.core.errors import DataError
from cfl_flare.data import DataConfig, DataSource, ParticipantData, Samples, build_partition, dealt
from cfl_flare.data.deal import split
from cfl_flare.data.samples import taken

RULE = {"partition": "class_groups", "groups": 2, "alpha": 0.5}
# 270 training samples, 0 to 269, and 70 test samples, 270 to 339; class 3 is in the test split alone.
TRAIN, TEST = np.repeat([0, 1, 2], [150, 80, 40]), np.repeat([0, 1, 3], [20, 10, 40])


class Numbered(DataSource):
    """Each sample's only feature is its number."""

    def load(self) -> tuple[Samples, Samples]:
        x = np.arange(len(TRAIN) + len(TEST), dtype=np.float32)[:, None]
        return Samples(x[: len(TRAIN)], TRAIN), Samples(x[len(TRAIN) :], TEST)


def numbers(samples: Samples) -> list[int]:
    """The numbers of normalised samples."""
    return [round((v + 1) / 2) for v in samples.x[:, 0].tolist()]


def hosted(config: DataConfig, sites: int = 1) -> list[ParticipantData]:
    """All participants, from all sites."""
    return [one for i in range(sites) for one in config.host(Numbered(), f"site-{i}", i, sites)]


@settings(deadline=None, max_examples=40)
@given(alpha=st.floats(0.05, 10), participants=st.integers(2, 10), seed=st.integers(0, 10_000))
def test_every_sample_is_dealt_once_and_a_fifth_of_ones_own_are_for_testing(alpha, participants, seed):
    config = DataConfig(participants, {**RULE, "alpha": alpha}, seed, min_samples=3)
    try:
        people = hosted(config)
    except DataError:
        assume(False)
    every = [number for one in people for own in (one.train, one.test) for number in numbers(own)]
    assert sorted(every) == list(range(340))
    labels = np.concatenate((TRAIN, TEST))
    for one in people:
        whole = len(one.train) + len(one.test)
        assert len(one.train) >= 3
        assert len(one.test) == max(1, round(whole / 5))
        for own in (one.train, one.test):
            assert own.y.tolist() == labels[numbers(own)].tolist()
    report = config.report(Numbered())
    assert report.disjoint
    assert report.train_unused == report.test_unused == 0
    assert report.train.sum(axis=1).tolist() == [len(one.train) for one in people]
    assert report.test.sum(axis=1).tolist() == [len(one.test) for one in people]


def test_the_sources_own_split_plays_no_part():
    people = hosted(DataConfig(3, {**RULE, "alpha": 10.0}))
    trained = [number for one in people for number in numbers(one.train)]
    assert sum(number >= 270 for number in trained) == pytest.approx(0.8 * 70, abs=12)
    assert {3} < {label for one in people for label in one.train.y.tolist()}


def test_the_seed_alone_decides_on_any_number_of_sites():
    config = DataConfig(7, RULE, seed=5, min_samples=3)
    once = hosted(config)
    for sites in (1, 2, 3, 7):
        for one, other in zip(once, hosted(config, sites), strict=True):
            assert (one.name, one.group) == (other.name, other.group)
            for own, others in ((one.train, other.train), (one.test, other.test)):
                np.testing.assert_array_equal(own.x, others.x)
                np.testing.assert_array_equal(own.y, others.y)
    assert [numbers(one.test) for one in once] != [numbers(one.test) for one in hosted(replace(config, seed=6))]


def test_indicator_samples_are_neither_trained_nor_tested_on():
    config = DataConfig(4, RULE, seed=1, min_samples=3, indicator_samples=7)
    held = {*numbers(config.indicator(Numbered(), 7))}
    assert len(held) == 21
    every = [number for one in hosted(config) for own in (one.train, one.test) for number in numbers(own)]
    assert sorted(every) == sorted(set(range(340)) - held)


def test_those_held_back_have_what_they_would_have_had_anyway():
    plain = DataConfig(6, RULE, min_samples=3)
    everyone = {one.name: one for one in hosted(plain)}
    config = replace(plain, unseen=2)
    for one in (*hosted(config), *config.newcomers(Numbered())):
        assert numbers(one.train) == numbers(everyone.pop(one.name).train)
    assert not everyone


def test_a_higher_minimum_gives_more_to_test_on():
    """24 to train on are 30 in all, of which 6 are for testing."""
    y = np.repeat(np.arange(10), 600)
    samples, tests = Samples(np.zeros((6000, 1), np.float32), y), Samples(np.zeros((1000, 1), np.float32), y[::6])
    rule = build_partition("class_groups:groups=3,alpha=0.05")
    few, more = (dealt(samples, tests, rule, 60, 0, least) for least in (8, 24))
    assert min(map(len, few.train)) >= 8
    assert min(map(len, few.test)) < 6
    assert min(map(len, more.train)) >= 24
    assert min(map(len, more.test)) >= 6


def test_as_the_label_rule_of_another_one_it_deals_the_sources_split():
    spec = {"partition": "quantity", "lo": 10, "hi": 30, "rule": "class_groups", "alpha": 10.0, "groups": 2}
    people = hosted(DataConfig(5, spec))
    assert all(max(numbers(one.train)) < 270 <= min(numbers(one.test)) for one in people)
    assert all(10 <= len(one.train) <= 30 for one in people)


def test_a_fifth_rounded_and_at_least_one():
    counts = np.array([[7, 0], [3, 10], [1, 0], [0, 0], [2, 2], [0, 28]])
    train, test = split(counts, np.random.default_rng(0))
    assert test.sum(axis=1).tolist() == [1, 3, 1, 0, 1, 6]
    assert (train + test == counts).all()
    assert (train >= 0).all()
    assert (test >= 0).all()


def test_the_split_is_at_random_and_not_by_class():
    """20 of 80 + 20: 16 of the first class on average, with the deviation of drawing without replacement, 1.61."""
    rng = np.random.default_rng(0)
    drawn = np.array([split(np.array([[80, 20]]), rng)[1][0, 0] for _ in range(2000)])
    assert drawn.mean() == pytest.approx(16, abs=0.15)
    assert drawn.std() == pytest.approx(np.sqrt(20 * 0.8 * 0.2 * 80 / 99), rel=0.06)


def test_samples_are_taken_from_both_splits():
    train = Samples(np.array([[0], [51], [255]], np.uint8), np.array([4, 5, 6]), np.array([1, 2, 3]))
    test = Samples(np.array([[0.5], [0.75]], np.float32), np.array([7, 8]), np.array([4, 5]))
    both = taken(train, test, np.array([1, 2, 4]))
    np.testing.assert_allclose(both.x, [[0.2], [1], [0.75]])  # bytes are brought to the scale of the others
    assert both.x.dtype == np.float32
    assert both.y.tolist() == [5, 6, 8]
    assert both.key is not None
    assert both.key.tolist() == [2, 3, 5]
    one = taken(train, test, np.array([0, 2]))
    assert one.x.dtype == np.uint8
    assert one.x.tolist() == [[0], [255]]
    other = taken(train, test, np.array([3]))
    assert other.x.tolist() == [[0.5]]
    assert other.y.tolist() == [7]
