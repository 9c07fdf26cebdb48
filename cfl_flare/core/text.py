# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Text and values from outside, such as a site's, as they may be logged, recorded and shown."""

from __future__ import annotations

import reprlib
from typing import Any

LIMIT = 500

_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother, _short.maxlong = 2, 60, 60, 30


def plain(text: str, limit: int = LIMIT) -> str:
    r"""The text in one line, without control characters, and cut.

    What a terminal would obey or an editor would hide (escape sequences, marks of direction, halves of surrogate
    pairs) becomes its escape sequence in Python; white space becomes one space.

    Args:
        text: of any length.
        limit: most characters that are returned; a cut text ends in ``...``.

    >>> plain("two\n lines, \x1b[31mred\x1b[0m")
    'two lines, \\x1b[31mred\\x1b[0m'
    """
    enough = text[: 2 * limit]
    line = "".join(c if c.isprintable() else _escaped(c) for c in enough)
    line = " ".join(line.split())
    return line if len(line) <= limit and len(enough) == len(text) else line[: limit - 3] + "..."


def shown(value: Any) -> str:
    """A value of any kind and size, for a message: short, one line, at most two levels deep.

    >>> shown([[[1, [2]]], 5])
    '[[[...]], 5]'
    """
    try:
        return plain(_short.repr(value), 200)
    except Exception:  # a value whose own repr fails
        return f"a {type(value).__name__}"


def _escaped(character: str) -> str:
    """A character that is not shown as it is."""
    return " " if character.isspace() else character.encode("unicode_escape").decode()
