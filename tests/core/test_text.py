# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Text from outside is short, in one line, and obeyed by no terminal."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfl_flare.core import text
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
