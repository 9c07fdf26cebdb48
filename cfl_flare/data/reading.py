# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a table is written: the settings of each site's own file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfl_flare.core.settings import Bounds, setting

# What may separate values, the decimal mark, and what may stand between thousands, by their names.
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
DECIMALS = {"point": ".", "comma": ","}
# Encodings of text files; codecs of other kinds may need endless time or memory.
ENCODINGS = r"utf[-_]?(8|16|32)([-_](sig|le|be))?|(cp|windows-)\d+|latin[-_]?\d+|iso[-_]?8859-\d+|koi8-[ru]|ascii"
ENCODINGS += r"|mac_roman|gb18030|gbk|big5|shift_jis|euc_(jp|kr)"
# The most texts that may be replaced.
MOST_REPLACED = 1000


def _is_encoding(name: str) -> bool:
    with suppress(LookupError):
        return bool(re.fullmatch(ENCODINGS, name.lower()) and codecs.lookup(name))
    return False


def _are_replacements(value: Any) -> bool:
    if not isinstance(value, Mapping) or len(value) > MOST_REPLACED:
        return False
    are_texts = all(isinstance(old, str) and 0 < len(old) <= 500 for old in value)
    return are_texts and all(
        isinstance(new, (str, int, float)) and len(str(new)) <= 500
        for new in value.values()
    )


def _one_of(named: dict[str, str]) -> Bounds:
    known = {*named, *named.values()}
    return Bounds(
        "one of " + ", ".join(f"{name} ({mark!r})" for name, mark in named.items()),
        known.__contains__,
    )


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a table is written, and which of its rows are used: each site's own matter."""

    sep: str | None = setting(
        None,
        help="of a text file, what separates values: comma (default), semicolon, tab, bar",
        bounds=_one_of(SEPARATORS),
    )
    decimal: str | None = setting(
        None,
        help="the decimal mark of numbers in text: point (default), comma",
        bounds=_one_of(DECIMALS),
    )
    thousands: str | None = setting(
        None,
        help="the mark between thousands of numbers in text: comma, point; spaces and apostrophes need no setting",
        bounds=_one_of({"comma": ",", "point": "."}),
    )
    replace: Mapping[str, Any] | None = setting(
        None,
        help='texts, and what to read in their place, as {"> 89": 90, "Emergency": "emergency"}',
        bounds=Bounds(
            f"up to {MOST_REPLACED:,} texts, and a text or number for each",
            _are_replacements,
        ),
    )
    encoding: str | None = setting(
        None,
        help="of a text file: utf-8 (default), utf-16, cp1252 (Windows in western Europe), latin-1, ...",
        bounds=Bounds(
            "a text file's encoding, such as utf-8, utf-16, cp1252 or latin-1",
            _is_encoding,
        ),
    )
    dayfirst: bool | None = setting(
        None,
        help="of dates such as 31/12/1996 the day is first; False: the month is; default: 1996-12-31 alone is a date",
    )
    split: str | None = setting(
        None,
        help="the column that says train or test of each row, in place of a random share; it is not a feature",
    )
    zero_times: str | None = setting(
        None,
        help="rows whose time to the event is 0 or less: refuse (default), leave out, or shift those of 0 to half of "
        "the smallest time above 0",
        choices=("refuse", "leave", "shift"),
    )

    def over(self, other: Reading | None) -> Reading:
        """These settings alone, and the other's where these say nothing."""
        pairs = (
            (name, getattr(self, name), getattr(other, name, None)) for name in READING
        )
        return Reading(
            **{
                name: default if value is None else value
                for name, value, default in pairs
            }
        )

    def separator(self, path: Path) -> str:
        """What separates the values of a text file; by its ending unless it is set."""
        if self.sep is not None:
            return SEPARATORS.get(self.sep, self.sep)
        endings = {suffix.lower() for suffix in path.suffixes}
        return "\t" if endings & {".tsv", ".tab"} else ","

    @property
    def decimal_mark(self) -> str:
        """The decimal mark of numbers in text."""
        return DECIMALS.get(self.decimal or "point", self.decimal or ".")

    @property
    def thousands_mark(self) -> str:
        """The mark between thousands of numbers in text; empty if there is none."""
        return DECIMALS.get(self.thousands or "", self.thousands or "")


READING = tuple(Reading.__dataclass_fields__)
