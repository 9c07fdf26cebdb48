# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of what a JSON file holds, before anything else reads it: the file may be another program's.

A check stops at the first wrong value, so that a file of millions of wrong ones costs no more than reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import read_json
from cfl_flare.core.text import plain, shown

# A check's docstring completes "is not ..." in the error.
Check = Callable[[Any], bool]
Fields = Mapping[str, Check]

LARGEST = 2**53
LONGEST = 1000


def described(words: str, check: Check) -> Check:
    """The check, with the words that complete "is not ..." in the error."""
    check.__doc__ = words
    return check


def count(value: Any) -> bool:
    """A whole number from 0."""
    return (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
    )


def number(value: Any) -> bool:
    """A number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= LARGEST
    return isinstance(value, float)


def share(value: Any) -> bool:
    """A number in 0..1."""
    return number(value) and 0 <= value <= 1


def flag(value: Any) -> bool:
    """True or false."""
    return isinstance(value, bool)


def text(value: Any) -> bool:
    """Text of a name's length."""
    return isinstance(value, str) and len(value) <= LONGEST


def json_object(value: Any) -> bool:
    """A JSON object."""
    return isinstance(value, dict)


def version(known: int) -> Check:
    """A check for the number of the one format that is read."""
    words = f"the number of this format, {known}"
    return described(words, lambda value: bool(value == known))


def maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def list_of(check: Check, fewest: int = 0, most: float = float("inf")) -> Check:
    return lambda value: (
        isinstance(value, list)
        and fewest <= len(value) <= most
        and all(map(check, value))
    )


def row(*checks: Check) -> Check:
    """A check for a list of a fixed length, with a check for each place."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(c(v) for c, v in zip(checks, value))
    )


def dict_of(check: Check, key: Check = lambda name: True) -> Check:
    """A check for an object with such values, under such keys."""
    return lambda value: (
        isinstance(value, dict)
        and all(map(key, value))
        and all(map(check, value.values()))
    )


def object_with(**fields: Check) -> Check:
    """A check for an object that has these fields, perhaps among others."""
    return lambda value: (
        isinstance(value, dict)
        and all(k in value and fields[k](value[k]) for k in fields)
    )


def checked(
    content: Any, where: str, needed: Fields, others: Fields | None = None
) -> dict[str, Any]:
    """The content of a file, checked for what it must have (``needed``) and what it may have (``others``).

    A name in ``others`` that ends in ``_`` is how several begin. ``where`` names the file in the error.

    Raises:
        FileError: it is not an object, lacks something, or has a value of another type; the error names it.
    """
    way_out = "it is damaged or another program's"
    if not isinstance(content, dict):
        raise FileError(
            f"{where}: is a {type(content).__name__}, not an object; {way_out}"
        )
    known = {**needed, **(others or {})}
    for key in dict.fromkeys((*needed, *content)):
        if key not in content:
            raise FileError(f"{where}: has no {key!r}; {way_out}")
        check = known.get(key) or known.get(key.partition("_")[0] + "_")
        if check is not None and not check(content[key]):
            words = (check.__doc__ or "such a value").rstrip(".").lower()
            raise FileError(
                f"{where}: {plain(key, 100)} = {shown(content[key])} is not {words}; {way_out}"
            )
    return content


def read(path: Path, needed: Fields) -> dict[str, Any]:
    """What a run's JSON file holds, see `checked`; a `ConfigError` says that it is damaged."""
    try:
        return checked(read_json(path), str(path), needed)
    except FileError as error:
        raise ConfigError(f"{error}; copy it again from its run") from error
