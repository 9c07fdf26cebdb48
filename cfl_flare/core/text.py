# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Text and values from outside, such as a site's, as they may be logged, recorded and shown."""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Iterable
from typing import Any

LIMIT = 500
# The most characters of a participant's name, so that a file can have it, and what a name may not be: a model's.
NAME = 40
MODEL = re.compile(r"global$|cluster-", re.IGNORECASE)

_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother, _short.maxlong = 2, 60, 60, 30


def plain(text: str, limit: int = LIMIT) -> str:
    r"""The text in one line, without control characters, and cut.

    A character that a terminal would obey or an editor would hide becomes its escape sequence in Python: a control, a
    mark of direction, half of a surrogate pair. White space becomes one space. A cut text ends in ``...``.

    >>> plain("two\n lines, \x1b[31mred\x1b[0m")
    'two lines, \\x1b[31mred\\x1b[0m'
    """
    enough = text[: 2 * limit]
    characters = (
        c if c.isprintable() or c.isspace() else c.encode("unicode_escape").decode()
        for c in enough
    )
    line = " ".join("".join(characters).split())
    return (
        line
        if len(line) <= limit and len(enough) == len(text)
        else line[: limit - 3] + "..."
    )


def unique_names(texts: Iterable[str]) -> list[str]:
    """Names from outside as participants have them: for files, tables, figures and pages, and no two the same.

    Letters, marks, digits and ``space . _ - ( ) +`` stay, and any other character becomes ``_``. So does a first one
    that means something to a shell or a spreadsheet. A name has at most 40 characters and is not called like a model.
    Names that are then equal, whatever the case of their letters, are numbered. Names that came from here stay.

    >>> unique_names(["St. Mary's", "st. mary_s", "../x", "=cmd", "", "global"])
    ['St. Mary_s', 'st. mary_s-2', '_._x', '_cmd', 'unnamed', '_global']
    """
    names: dict[str, str] = {}
    for text in texts:
        line = unicodedata.normalize("NFC", text[: 4 * NAME])
        line = "".join(
            c
            if c.isalnum() or c in " ._-()+" or unicodedata.category(c)[0] == "M"
            else "_"
            for c in line
        )
        line = line.strip()[:NAME].strip() or "unnamed"
        line = (
            f"_{line[1:]}"
            if line[0] in ".-+"
            else f"_{line[: NAME - 1]}"
            if MODEL.match(line)
            else line
        )
        name, number = line, 1
        while name.casefold() in names:
            number += 1
            name = f"{line[: NAME - 6]}-{number}"
        names[name.casefold()] = name
    return list(names.values())


def shown(value: Any) -> str:
    """A value of any kind and size, for a message: short, one line, at most two levels deep.

    >>> shown([[[1, [2]]], 5])
    '[[[...]], 5]'
    """
    try:
        return plain(_short.repr(value), 200)
    except Exception:  # a value whose own repr fails
        return f"a {type(value).__name__}"
