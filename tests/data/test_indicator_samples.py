# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Samples of each class that are taken out before the rest is dealt out, or read from a file."""

from pathlib import Path

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, Digits, Samples
from cfl_flare.data.deal import draw_indicator, read_indicator
from cfl_flare.data.sources import DataSource

RULE = {"partition": "class_groups", "groups": 3, "alpha": 1.0}


class Numbered(DataSource):
    """Each sample's only feature is its number; 20, 30 and 40 of three classes."""

    def load(self) -> tuple[Samples, Samples]:
        y = np.repeat([0, 1, 2], [20, 30, 40])
        return tuple(Samples(np.arange(n, n + 90, dtype=np.float32)[:, None], y) for n in (0, 1000))


def numbers(samples: Samples) -> set[int]:
    return {round((v + 1) / 2) for v in samples.x[:, 0].tolist()}


@pytest.mark.parametrize("rule", [{"partition": "iid"}, RULE, {"partition": "label_permutation", "groups": 2}])
def test_no_participant_has_them_and_nothing_else_is_lost(rule):
    data = DataConfig(4, rule, seed=3, min_samples=1, indicator_samples=6)
    held = data.indicator(Numbered(), 6)
    assert np.bincount(held.y).tolist() == [6, 6, 6]
    given = [v for p in data.host(Numbered(), "s", 0, 1) for s in (p.train, p.test) for v in s.x[:, 0].tolist()]
    assert len(given) == len(set(given)) == 90 - 18 + 90
    assert not set(given) & set(held.x[:, 0].tolist())


def test_the_draw_depends_on_the_seed_alone_and_larger_ones_hold_smaller_ones():
    data = DataConfig(4, RULE, seed=3, indicator_samples=10)
    first = numbers(data.indicator(Numbered(), 10))
    assert first == numbers(DataConfig(7, {"partition": "iid"}, seed=3).indicator(Numbered(), 10))
    assert first != numbers(DataConfig(4, RULE, seed=4).indicator(Numbered(), 10))
    assert numbers(data.indicator(Numbered(), 4)) < first


def test_sites_and_reports_leave_the_same_ones_out():
    data = DataConfig(6, RULE, indicator_samples=5)
    whole = data.host(Digits(), "s", 0, 1)
    shared = [p for i in range(3) for p in data.host(Digits(), "s", i, 3)]
    for one, other in zip(whole, shared):
        np.testing.assert_array_equal(one.train.x, other.train.x)
    report = data.report(Digits())
    assert report.train.sum(axis=1).tolist() == [len(p.train) for p in whole]
    assert report.train.sum() + report.test.sum() == 1797 - 5 * 10


def test_without_them_all_is_dealt_as_it_always_was():
    plain, none = DataConfig(4, RULE), DataConfig(4, RULE, indicator_samples=0)
    for one, other in zip(plain.host(Numbered(), "s", 0, 1), none.host(Numbered(), "s", 0, 1)):
        np.testing.assert_array_equal(one.train.x, other.train.x)
    assert len(draw_indicator(np.array([0, 1]), 0, 0, "data")) == 0


def test_a_class_with_too_few_is_refused():
    message = "class 0 has 20 training samples, too few for indicator_samples = 20 .* and others to train on; lower"
    with pytest.raises(ConfigError, match=message):
        DataConfig(4, RULE, indicator_samples=20).host(Numbered(), "s", 0, 1)
    with pytest.raises(ConfigError, match="indicator_samples = -1 should be >= 0"):
        DataConfig(4, RULE, indicator_samples=-1)
    with pytest.raises(ConfigError, match=r"simulation's data only; .* give the method an indicator_file"):
        DataConfig(indicator_samples=3)


def write(path: Path, **changes) -> str:
    arrays = {
        "train_images": np.arange(24, dtype=np.uint8).reshape(6, 2, 2),
        "train_labels": np.array([[0], [0], [0], [1], [1], [1]]),
    }
    np.savez(path, **{**arrays, **changes})
    return str(path)


def test_a_server_reads_them_from_a_file(tmp_path, monkeypatch):
    path = write(tmp_path / "few.npz")
    samples = read_indicator(path, 2, 0)
    assert samples.x.shape == (4, 1, 2, 2)
    assert samples.y.tolist() == [0, 0, 1, 1]
    assert len(read_indicator(path, 3, 0)) == 6  # nobody trains on what is left
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    np.testing.assert_array_equal(read_indicator("few.npz", 2, 0).x, samples.x)


def test_files_that_will_not_do_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"few.npz: class 0 has 3 training samples, too few .* = 4 of each class; "):
        read_indicator(write(tmp_path / "few.npz"), 4, 0)
    with pytest.raises(DataError, match=r"indicator_file: path = 'none.npz' is not a file"):
        read_indicator("none.npz", 1, 0)
    with pytest.raises(DataError, match=r"half.npz: labels are numbers to predict, .* are drawn of each class; name"):
        read_indicator(write(tmp_path / "half.npz", train_labels=np.full(6, 0.5)), 1, 0)
    np.savez(tmp_path / "test.npz", test_images=np.zeros((2, 2, 2)))
    with pytest.raises(DataError, match="no array 'train_images'"):
        read_indicator(str(tmp_path / "test.npz"), 1, 0)
