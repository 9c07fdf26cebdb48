# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfl_flare.core.seeds import derive, stream

KEYS = st.lists(st.integers(0, 99) | st.text("abc", min_size=1), max_size=3)


@given(st.integers(0, 2**40), KEYS)
def test_a_seed_is_the_same_whenever_it_is_derived(seed: int, keys: list[str | int]) -> None:
    first = derive(seed, *keys)
    stream(seed, "another").random(5)
    assert derive(seed, *keys) == first
    assert 0 <= first < 2**63
    assert stream(seed, *keys).random() == np.random.default_rng(first).random()


def test_seeds_stay_the_same_from_release_to_release() -> None:
    assert derive(0) == 4761921975702974394
    assert derive(7, "p-3", 12, "train") == 3622037646861510404


def test_different_keys_give_different_seeds() -> None:
    keys = [(s, n, r, p) for s in (0, 1) for n in ("a", "b", "1") for r in (0, 1, 11) for p in ("train", "assign")]
    assert len({derive(*key) for key in keys}) == len(keys)
    assert derive(1, 1) != derive(11)


def test_streams_are_not_correlated() -> None:
    draws = np.array([stream(0, "p", r, "train").random(400) for r in range(8)])
    correlation = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlation).max() < 0.2


@pytest.mark.parametrize("keys", [(), ("a",), ("a", 0)])
def test_a_longer_key_is_another_stream(keys: tuple[str | int, ...]) -> None:
    assert derive(3, *keys) != derive(3, *keys, "train")
