# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Rules that alter what a group sees: the images, or their names."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import Pool, Samples
from cfl_flare.data.groups import LabelPermutation, Scanner


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
