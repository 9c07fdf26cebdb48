# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Counts, extremes and names that follow from what is kept, for claims such as ``23 of 24``."""

from __future__ import annotations

import statistics
from fnmatch import fnmatch

import kept
from kept import CitationError, group, interval, paired, value
from verdicts import split

# ---- Of cells ----


def zeros(text: str) -> str:
    """``private labels scanners: wecfl-norm/wecfl ifca-norm/ifca; accuracy macro_f1``: how many intervals hold zero."""
    place, _, asked = text.partition(":")
    result, *partitions = place.split()
    pairs, names = (part.split() for part in asked.split(";"))
    intervals = [
        interval(paired(group(result, partition, row), group(result, partition, other), name))
        for partition in partitions
        for row, other in (pair.split("/") for pair in pairs)
        for name in names
    ]
    return f"{sum(low <= 0 <= high for _, low, high in intervals)} of {len(intervals)}"


def widest(text: str) -> str:
    """``paired cluster_dirichlet: wecfl-cks/wecfl ifca-cks/ifca; accuracy``: how far from zero any interval reaches."""
    place, _, asked = text.partition(":")
    result, partition = place.split()
    pairs, names = (part.split() for part in asked.split(";"))
    intervals = [
        interval(paired(group(result, partition, row), group(result, partition, other), name))
        for row, other in (pair.split("/") for pair in pairs)
        for name in names
    ]
    return f"{max(max(-low, high) for _, low, high in intervals):.1f}"


def best(text: str) -> str:
    """``stroke natural pooled_auroc: local fedavg fedavg-bias``: the row with the largest mean."""
    place, _, rows = text.partition(":")
    (result, partition, name), words = split(place)
    extra = [f"{key}={text}" for key, text in words.items()]

    def mean(row: str) -> float:
        cells = group(result, partition, row, extra).values()
        return statistics.fmean(v for cell in cells if (v := value(cell, name)) is not None)

    return f"`{max(rows.split(), key=mean)}`"


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


def _of_entries(text: str) -> tuple[list[float], str]:
    (path, key, name, form), words = split(text)
    entries = [e for e in kept.measured(path)[key] if all(str(e[k]) == v for k, v in words.items())]
    if not entries:
        raise CitationError(f"{text}: there are no such entries")
    return [float(entry[name]) for entry in entries], form


def mean(text: str) -> str:
    """``training-script.json runs accuracy .3f kind=own``: over a file's entries."""
    values, form = _of_entries(text)
    return format(statistics.fmean(values), form)


def deviation(text: str) -> str:
    """The standard deviation of the same."""
    values, form = _of_entries(text)
    return format(statistics.stdev(values), form)


def seconds(text: str) -> str:
    """``options cluster_dirichlet wecfl rounds=5``: CPU seconds a round, over all attempts of a row's cells."""
    (result, partition, row), words = split(text)
    cells = group(result, partition, row, [f"{key}={text}" for key, text in words.items()])
    attempts = [attempt for cell in cells.values() for attempt in cell.facts["attempts"]]
    return f"{sum(a['cpu_seconds'] for a in attempts) / sum(a['rounds'] for a in attempts):.1f}"


def right(text: str) -> str:
    """``most=40: permuted_* scanners_*``: runs in which the gap found the number of clusters, after five rounds."""
    what, _, patterns = text.partition(":")
    _, words = split(what)
    entries = [
        line
        for line in kept.measured("number-of-clusters.json")["summary"]
        if line["warmup"] == 5 and int(words.get("least", 0)) <= line["sites"] <= int(words["most"])
        if any(fnmatch(line["case"].replace(" ", "_"), pattern) for pattern in patterns.split())
    ]
    if not entries:
        raise CitationError(f"{text}: there are no such runs")
    return f"{sum(line['gap']['right'] for line in entries)} of {sum(line['runs'] for line in entries)}"


def criteria(text: str) -> str:
    """The table of how often each criterion found the number of clusters."""
    import number_of_clusters  # which needs what trains models

    return f"\n\n{number_of_clusters.shown(kept.measured(text)['rows']).strip()}\n"


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


WAYS = {
    way.__name__: way
    for way in (zeros, widest, best, count, mean, deviation, seconds, right, criteria, attack, worst, lost)
}
