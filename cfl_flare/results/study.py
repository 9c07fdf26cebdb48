# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The file of a study, ``study.json``: its settings, its comparisons, what it cost, and the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import below, read_json
from cfl_flare.results.schema import Fits, checked, each, flag, maybe, named, number, record, settings, text, whole

STUDY, VERSION = "study.json", 1
# The folder of the run that looked for the number of clusters.
SEARCH = "number-of-clusters"


def sentence(value: Any) -> bool:
    """A sentence."""
    return isinstance(value, str) and len(value) <= 5000


def version(value: Any) -> bool:
    """The number of this format, 1; a later version of cfl_flare reads others."""
    return bool(value == VERSION)


RUNG = record(rounds=whole, means=named(number), dropped=named(sentence), seconds=number)
ENTRANT = record(name=text, title=text, clusters=whole, private=flag)
GAIN = maybe(record(gain=maybe(number), low=maybe(number), high=maybe(number), says=text, needed=maybe(whole)))
VERDICT = record(
    metric=text,
    cluster=flag,
    chosen=ENTRANT,
    rounds=whole,
    tested=named(number),
    hospitals=each(record(name=text, tested=whole, value=maybe(number), to_one=GAIN, to_alone=GAIN)),
    sentences=each(sentence),
)


def verdict(value: Any) -> bool:
    """A verdict."""
    return VERDICT(value)


def rungs(value: Any) -> bool:
    """Comparisons of candidates."""
    return each(RUNG)(value)


def cost(value: Any) -> bool:
    """Rounds and seconds."""
    return record(rounds=whole, everything=whole, seconds=number)(value)


FIELDS: dict[str, Fits] = {
    "settings": settings,
    "rounds": whole,
    "found": maybe(whole),
    "searched": whole,
    "search_seconds": number,
    "rungs": rungs,
    "titles": named(text),
    "cost": cost,
    "verdict": maybe(verdict),
}


def load_study(folder: str | Path) -> dict[str, Any]:
    """What a study has found so far.

    Raises:
        ConfigError: the folder holds none, or its file is damaged.
    """
    path = Path(folder) / STUDY
    if not path.is_file():
        raise ConfigError(f"{folder} holds no study: there is no {STUDY}")
    try:
        content = checked(read_json(path), str(path), {"version": version})
        content = checked(content, str(path), FIELDS, {"words": sentence})
        return {"words": f"{content['found']} clusters found", **content}  # version 0.2 has no words
    except FileError as error:
        raise ConfigError(f"{error}; start the study again in a new folder") from error


def find_study(folder: str | Path) -> Path | None:
    """The folder of the only study in or below a folder; None if there is none.

    Raises:
        ConfigError: there are several.
        FileError: there are too many files to look at.
    """
    found = sorted(path.parent for path in below(Path(folder)) if path.name == STUDY)
    if len(found) > 1:
        raise ConfigError(f"{folder} holds several studies: {', '.join(map(str, found))}; name one")
    return found[0] if found else None
