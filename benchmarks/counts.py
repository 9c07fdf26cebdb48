# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Counts, extremes and names that follow from what is kept, for claims such as ``23 of 24``."""

from __future__ import annotations

import kept
from kept import CitationError, group, interval, paired
from verdicts import split

# ---- Of cells ----


def _intervals(text: str) -> list[tuple[float, float, float]]:
    """Of ``private labels scanners: wecfl-norm/wecfl ifca-norm/ifca; accuracy macro_f1``."""
    place, _, asked = text.partition(":")
    result, *partitions = place.split()
    pairs, names = (part.split() for part in asked.split(";"))
    return [
        interval(paired(group(result, partition, row), group(result, partition, other), name))
        for partition in partitions
        for row, other in (pair.split("/") for pair in pairs)
        for name in names
    ]


def zeros(text: str) -> str:
    """How many of these intervals hold zero: ``3 of 8``."""
    intervals = _intervals(text)
    return f"{sum(low <= 0 <= high for _, low, high in intervals)} of {len(intervals)}"


def widest(text: str) -> str:
    """How far from zero any of these intervals reaches."""
    return f"{max(max(-low, high) for _, low, high in _intervals(text)):.1f}"


# ---- Of the entries of a file ----


def count(text: str) -> str:
    """``study-cells.json rows case=cells_by_labels; found=4``: of a file's entries, those that are so: ``0 of 3``.

    Values are written with ``_`` for a space. Without the second part it is how many entries there are.
    """
    asked, _, so = text.partition(";")
    (path, key), filters = split(asked)

    def fits(entry: dict[str, object], words: dict[str, str]) -> bool:
        return all(str(entry[name]).replace(" ", "_") == wanted for name, wanted in words.items())

    entries = [entry for entry in kept.measured(path)[key] if fits(entry, filters)]
    if not so:
        return str(len(entries))
    return f"{sum(fits(entry, split(so)[1]) for entry in entries)} of {len(entries)}"


# ---- Attacks: accuracy and success in percent, from one line a cell ----


def _attacked(method: str, attack: str, attackers: str, defence: str, key: str = "accuracy") -> float:
    wanted = (method, attack, int(attackers), defence)
    for line in kept.measured("attacks/attacks.jsonl"):
        if tuple(line[name] for name in ("method", "attack", "attackers", "defence")) == wanted:
            return 100 * float(line[key])
    raise CitationError(f"there is no {method} under {attack} by {attackers} with {defence}")


def _spaced(text: str) -> list[str]:
    return [word.replace("_", " ") for word in text.split()]


def attack(text: str) -> str:
    """``FedAvg backdoor 3 clipping_at_2 success``: of one cell."""
    return f"{_attacked(*_spaced(text)):.1f}"


def worst(text: str) -> str:
    """``FedAvg 3 clipping_at_2``: the least accuracy under any attack."""
    method, attackers, defence = _spaced(text)
    values = [
        100 * float(line["accuracy"])
        for line in kept.measured("attacks/attacks.jsonl")
        if (line["method"], line["defence"], line["attackers"]) == (method, defence, int(attackers))
    ]
    if not values:
        raise CitationError(f"{text}: there is no such cell")
    return f"{min(values):.1f}"


def lost(text: str) -> str:
    """``WeCFL none 0 none / WeCFL sign_flip 3 none``: by how much the second cell is below the first, in points."""
    one, other = (_attacked(*_spaced(part)) for part in text.split("/"))
    return f"{one - other:.1f}"


WAYS = {way.__name__: way for way in (zeros, widest, count, attack, worst, lost)}
