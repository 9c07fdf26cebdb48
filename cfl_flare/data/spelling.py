# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Texts that people spell in several ways: the same word in other letters, with other spaces, or with leading zeros."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable

# Two texts are near if at least this fraction of their letters agrees (difflib's ratio).
NEAR = 0.8
# In texts that are shorter than this, one other letter is another word.
SHORTEST = 5
LEADING_ZEROS = re.compile(r"^0+(?=\d)")
# How two texts differ that `fold_text` makes one.
SPELLED_ALIKE = "differ in case, spaces, hyphens or leading zeros only"
# What may stand between two words. At an end it is a sign: A- is no A, and -1 no 1.
BETWEEN_WORDS = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W_])")


def fold_text(text: str) -> str:
    """Returns what all spellings of a text have in common.

    Args:
        text: as it is written in a file.

    Returns:
        The text in lower case, without marks between its words, and without leading zeros.

    >>> fold_text("Emergency  Room"), fold_text("emergency_room"), fold_text("0744"), fold_text("A-")
    ('emergency room', 'emergency room', '744', 'a-')
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = BETWEEN_WORDS.sub(" ", folded).strip()
    return LEADING_ZEROS.sub("", words).removesuffix(".0")


def find_same(text: str, known: Iterable[str]) -> str | None:
    """Finds a known text that differs in its spelling only.

    Args:
        text: as it is written in a file.
        known: the texts among which to look.

    Returns:
        The first such text, or None if there is none.
    """
    folded = fold_text(text)
    for other in known:
        if fold_text(other) == folded:
            return other
    return None


def find_near(text: str, known: Collection[str]) -> str | None:
    """Finds the known text that a person probably meant.

    Args:
        text: as it is written in a file.
        known: the texts among which to look.

    Returns:
        A text that differs in its spelling only, else one with nearly the same letters, else None.

    >>> find_near("Dead", ["alive", "dead"]), find_near("emergancy", ["elective", "emergency"])
    ('dead', 'emergency')
    """
    same = find_same(text, known)
    if same is not None:
        return same
    wanted = fold_text(text)
    folded = {fold_text(other): other for other in known}
    long = [
        name
        for name in folded
        if len(name) >= SHORTEST and _list_digits(name) == _list_digits(wanted)
    ]
    close = difflib.get_close_matches(wanted, long, 1, NEAR)
    return folded[close[0]] if close else None


def _list_digits(text: str) -> str:
    """The digits of a text: stage 1 is not nearly stage 2."""
    return re.sub(r"\D", "", text)


def group_alike(texts: Iterable[str]) -> list[list[str]]:
    """Groups texts that differ in their spelling only.

    Args:
        texts: different texts.

    Returns:
        The groups of two or more, in the order of their first text.

    >>> group_alike(["Emergency", "elective", "emergency"])
    [['Emergency', 'emergency']]
    """
    by_fold: dict[str, list[str]] = {}
    for text in texts:
        by_fold.setdefault(fold_text(text), []).append(text)
    return [group for group in by_fold.values() if len(group) > 1]


def list_near(texts: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Finds what each text was probably meant to be.

    Args:
        texts: texts that are not known.
        known: the texts among which to look.

    Returns:
        The near text of each text that has one.
    """
    near = {text: find_near(text, known) for text in texts}
    return {text: other for text, other in near.items() if other is not None}
