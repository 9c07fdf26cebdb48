# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Text from outside, and seeds of random streams."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfl_flare.core import text
from cfl_flare.core.seeds import derive, stream
from cfl_flare.core.text import NAME, plain, shown, unique_names

JUNK = st.recursive(
    st.none() | st.floats() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


def test_examples():
    assert doctest.testmod(text).failed == 0


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("as it is: é, 漢字, [b]x[/b]", "as it is: é, 漢字, [b]x[/b]"),
        ("a\r\nb\tc\u2028d\x0be", "a b c d e"),
        ("\x1b]0;title\x07\x9b31m\x00\x7f", r"\x1b]0;title\x07\x9b31m\x00\x7f"),
        ("\u202eright to left\u200b\ufeff", r"\u202eright to left\u200b\ufeff"),
        ("\ud800", r"\ud800"),
        ("", ""),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(given_text, expected):
    assert plain(given_text) == expected


def test_long_text_is_cut():
    assert plain("x" * 501) == "x" * 497 + "..."
    assert plain("x" * 500) == "x" * 500
    assert plain(" " * 10**6 + "x", 10).endswith("...")
    assert plain("abc\n" * 10**6, 8) == "abc a..."


@given(st.text(), st.integers(3, 50))
def test_any_text_is_one_printable_line_within_the_limit(some, limit):
    line = plain(some, limit)
    assert len(line) <= limit and line.isprintable()
    line.encode()


@given(JUNK)
def test_any_value_can_be_shown(value):
    line = shown(value)
    assert len(line) <= 200 and line.isprintable()


def test_values_that_are_too_deep_or_large_are_shown_shortly():
    deep: list = []
    for _ in range(10**5):
        deep = [deep]
    assert shown(deep) == "[[[...]]]"
    assert len(shown({str(i): "x" * 10**5 for i in range(10**4)})) <= 200
    assert len(shown(10**5000)) <= 200

    class Odd:
        def __repr__(self) -> str:
            raise KeyError("no")

    assert "Odd" in shown(Odd())


@given(
    st.lists(st.text() | st.sampled_from(["p00", "cluster-0", "GLOBAL", "global", "../..", "=cmd", "a" * 10_000, ""]))
)
def test_any_texts_become_as_many_names_of_files_that_stay_as_they_are(texts):
    names = unique_names(texts)
    assert len({name.casefold() for name in names}) == len(texts)
    assert unique_names(names) == names
    for name in names:
        assert 0 < len(name) <= NAME and len(f"{name}.safetensors.tmp".encode()) < 255
        assert not {*name} & {*"/\\<>&|#:;,*?\"'`$\n\t"} and name[0] not in ".-+=@ "
        assert name.lower() != "global" and not name.lower().startswith("cluster-")


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
