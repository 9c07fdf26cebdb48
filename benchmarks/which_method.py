# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which method when: every method against the two things one can do without clusters, local training and FedAvg.

For each data set and partition of which cells with three seeds or more are kept, the better of ``local`` and ``fedavg``
(by the mean) is the yardstick, and each method's difference to it is paired by seed. The table says them, with ``+``
or ``-`` behind one whose 95 % interval leaves zero out; ``summary`` is what `cited.py` writes into the page, and
`pictures` draws the same.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from kept import interval, kept, signed, value

RESULTS = ("digits", "shared-sets", "paired")
WITHOUT_CLUSTERS = ("local", "fedavg")
SEEDS = 3

Values = dict[str, dict[int, float]]  # of each row, by seed


class Place(NamedTuple):
    """A data set, dealt in some way."""

    name: str
    yardstick: str
    values: Values

    def differences(self, row: str, other: str | None = None) -> list[float]:
        """To the yardstick, or another row, seed by seed; empty where the row was not measured."""
        mine, theirs = self.values.get(row, {}), self.values[other or self.yardstick]
        return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def places(results: Sequence[str], figure: str) -> list[Place]:
    """All that have the two rows without clusters, of the same commit, rounds, participants and settings."""
    found = []
    for result in results:
        groups: dict[tuple[str, ...], Values] = defaultdict(lambda: defaultdict(dict))
        for cell in kept(result):
            facts, number = cell.facts, value(cell, figure)
            if number is not None and not facts.get("flare"):
                same = (facts["partition"], *map(str, map(facts.get, ("rounds", "participants", "settings", "commit"))))
                groups[same][facts["row"]][facts["seed"]] = number
        for (partition, *_), values in groups.items():
            if all(len(values.get(row, {})) >= SEEDS for row in WITHOUT_CLUSTERS):
                means = {row: statistics.fmean(values[row].values()) for row in WITHOUT_CLUSTERS}
                found.append(Place(f"{result} {partition}", max(means, key=lambda row: means[row]), values))
    return found


def rows_of(found: Sequence[Place]) -> list[str]:
    """The rows that half of the places have, by their mean difference to the yardsticks."""

    def order(row: str) -> float:
        means = [statistics.fmean(d) for place in found if (d := place.differences(row))]
        return -statistics.fmean(means)

    rows = dict.fromkeys(row for place in found for row in place.values if row != "majority")
    return sorted((row for row in rows if 2 * sum(row in place.values for place in found) >= len(found)), key=order)


def verdict(differences: Sequence[float]) -> str:
    """``+12.3 +``: the mean, and a sign if the interval leaves out zero."""
    if not differences:
        return ""
    if len(differences) < SEEDS:
        return signed(statistics.fmean(differences), 1)
    mean, low, high = interval(differences)
    mark = " **+**" if low > 0 else " **-**" if high < 0 else ""
    return signed(mean, 1) + mark


def wins(found: Sequence[Place], row: str, other: str) -> str:
    """``18 of 21``: of the runs in which both are there, those that the row wins."""
    differences = [d for place in found for d in place.differences(row, other)]
    return f"{sum(d > 0 for d in differences)} of {len(differences)}" if row != other and differences else "-"


def summary(results: Sequence[str], figure: str) -> str:
    """The table: a row a method, a column a place."""
    found = places(results, figure)
    titles = ["", *(place.name.replace("_", " ") for place in found), *(f"wins over `{o}`" for o in WITHOUT_CLUSTERS)]
    lines = [f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1)]
    for row in rows_of(found):
        own = [f"*{place.yardstick}*" if place.yardstick == row else verdict(place.differences(row)) for place in found]
        lines.append(f"| {' | '.join([f'`{row}`', *own, *(wins(found, row, other) for other in WITHOUT_CLUSTERS)])} |")
    return "\n".join(lines)
