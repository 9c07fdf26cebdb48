# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Rules that alter what a group sees, and one that deals training and test samples together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, DataSource, ParticipantData, Pool, Samples, build_partition, dealt
from cfl_flare.data.deal import split
from cfl_flare.data.groups import LabelPermutation, Scanner
from cfl_flare.data.samples import taken

# Images, or their names, are altered


def images(n=6, channels=1, size=12, dtype=np.uint8):
    """Bright bars that no turn leaves alone."""
    x = np.zeros((n, channels, size, size))
    x[:, :, 1:4, 2:] = 200 / 255
    x[:, :, 6:8, 2:5] = 120 / 255
    y = np.arange(n) % 3
    return Samples(np.round(x * 255).astype(dtype) if dtype == np.uint8 else x.astype(dtype), y, np.arange(n))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_scanner_groups_see_differently_in_the_same_format(dtype, channels):
    rule, samples = Scanner(groups=8), images(channels=channels, dtype=dtype)
    seen = [rule.alter(samples, g, 3, seed=0) for g in range(8)]
    assert seen[0] is samples
    for one in seen:
        assert one.x.dtype == dtype and one.x.shape == samples.x.shape
        assert np.array_equal(one.y, samples.y) and np.array_equal(one.key, samples.key)
        assert one.x.min() >= 0 and one.x.max() <= (255 if dtype == np.uint8 else 1)
    scale = 255 if dtype == np.uint8 else 1
    for i in range(8):
        for j in range(i):
            assert np.abs(seen[i].x / scale - seen[j].x / scale).mean() > 0.05
    again = rule.alter(samples, 5, 3, seed=0)
    assert np.array_equal(again.x, seen[5].x)
    assert not np.array_equal(rule.alter(samples, 5, 3, seed=1).x, seen[5].x)


def test_bytes_and_floats_are_altered_alike():
    rule = Scanner(groups=4)
    from_bytes, from_floats = (rule.alter(images(dtype=d), 3, 3, 0).x for d in (np.uint8, np.float32))
    assert np.abs(from_bytes / 255 - from_floats).max() < 0.01


def test_one_shift_at_a_time():
    samples = images(dtype=np.float32)
    off = {"rotation": False, "contrast": False, "inversion": False, "blur": False}
    assert np.allclose(Scanner(2, **{**off, "inversion": True}).alter(samples, 1, 3, 0).x, 1 - samples.x)
    graded = Scanner(2, **{**off, "contrast": True}).alter(samples, 1, 3, 0).x
    assert len(np.unique(graded.round(5))) == len(np.unique(samples.x)) and not np.allclose(graded, samples.x)
    turned = Scanner(3, **{**off, "rotation": True}).alter(samples, 1, 3, 0).x
    assert np.abs(turned - np.rot90(samples.x, 1, axes=(2, 3))).mean() < np.abs(turned - samples.x).mean()
    blurred = Scanner(2, **{**off, "blur": True}).alter(samples, 1, 3, 0).x
    assert blurred.sum() == pytest.approx(samples.x.sum(), rel=0.05) and not np.allclose(blurred, samples.x)


def test_scanner_refusals():
    flat = Samples(np.zeros((3, 4), np.float32), np.arange(3))
    with pytest.raises(DataError, match=r"samples have shape \(4,\); it needs images \(channels, h, w\)"):
        Scanner().alter(flat, 0, 3, 0)
    wide = Samples(np.zeros((3, 1, 4, 5), np.uint8), np.arange(3))
    with pytest.raises(DataError, match="images are 4x5; to turn them, square them first"):
        Scanner().alter(wide, 1, 3, 0)
    assert Scanner(rotation=False).alter(wide, 1, 3, 0).x.shape == wide.x.shape
    with pytest.raises(DataError, match=r"images go from -1 to 0; it needs \[0, 1\]"):
        Scanner().alter(Samples(np.array([[[[-1.0, 0], [0, 0]]]], np.float32), np.zeros(1, int)), 1, 3, 0)
    with pytest.raises(ConfigError, match="rotation, contrast, inversion and blur are all off"):
        Scanner(2, rotation=False, contrast=False, inversion=False, blur=False)
    with pytest.raises(ConfigError, match="groups = 3 cannot differ by inversion alone"):
        Scanner(3, rotation=False, contrast=False, blur=False)


@settings(deadline=None, max_examples=25)
@given(classes=st.integers(2, 6), groups=st.integers(1, 6), seed=st.integers(0, 1000))
def test_no_two_groups_name_alike(classes, groups, seed):
    rule, pool = LabelPermutation(groups), Pool(np.full(classes, 9), np.full(classes, 9), 1)
    if classes == 2 and groups > 2:
        with pytest.raises(ConfigError, match="is more than the 2 orders of 2 classes"):
            rule.shares(6, pool, np.random.default_rng(0))
        return
    samples = Samples(np.zeros((classes, 1), np.float32), np.arange(classes), np.arange(classes))
    orders = [rule.alter(samples, g, classes, seed) for g in range(groups)]
    assert len({tuple(o.y) for o in orders}) == groups
    assert np.array_equal(orders[0].y, samples.y) and all(sorted(o.y) == list(range(classes)) for o in orders)
    assert np.array_equal(orders[-1].key, samples.key)


# Each participant's own samples are split


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
