# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The participants' way through the clusters, and where it ends beside the true groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from cfl_flare.report.colours import palette

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run

COLUMNS = 15
FIRST = 5
# How far a line runs level at each column, so that a cluster is seen as a block.
LEVEL = 0.12

Column = Mapping[str, int]


def chosen_rounds(rounds: Sequence[int], most: int = COLUMNS) -> list[int]:
    """The rounds that are drawn: the first five, the last one, and some in between.

    >>> chosen_rounds(range(100), most=9)
    [0, 1, 2, 3, 4, 27, 51, 75, 99]
    """
    if len(rounds) <= most:
        return list(rounds)
    rest = rounds[FIRST - 1 :]
    steps = most - FIRST
    return [*rounds[: FIRST - 1], *(rest[i * (len(rest) - 1) // steps] for i in range(steps + 1))]


def flows(run: Run, path: Path) -> Path:
    """Each participant's clusters over rounds, and in the last column its true group (thesis Fig. 7.5, 7.7).

    One line a participant; its colour is its true group or, where that is not known, its last cluster. A cluster's
    lines lie beside each other, so that its height is its size.
    """
    by_round: dict[int, dict[str, int]] = {}
    for line in run.assignments:
        if line["cluster"] is not None:
            by_round.setdefault(line["round"], {})[line["participant"]] = line["cluster"]
    rounds = chosen_rounds(sorted(by_round))
    truth = {p["name"]: p["group"] for p in run.summary["participants"] if p["group"] is not None}
    columns: list[Column] = [by_round[r] for r in rounds]
    last = columns[-1] if columns else {}
    kinds = truth or last
    # The order in which lines lie in a block: one group beside the other, and in it those who end together.
    order = sorted(last, key=lambda name: (kinds.get(name, -1), last[name]))
    figure = Figure(figsize=(max(7, 2 + 0.75 * len(rounds)), min(14, max(4, 2.5 + 0.04 * len(order)))))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    places, ticks, height = _places(columns, order, sorted({k for column in columns for k in column.values()}))
    if truth:
        ends = {g: [y for name, y in places[-1].items() if truth.get(name) == g] for g in set(truth.values())}
        groups = sorted((g for g in ends if ends[g]), key=lambda g: sum(ends[g]) / len(ends[g]))  # fewest crossings
        (right,), middles, other = _places([truth], order, groups)
        stretch = height / other
        places.append({name: y * stretch for name, y in right.items()})
    _draw(axes, places, order, kinds)
    labels = [str(r + 1) for r in rounds] + (["truth"] if truth else [])
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(list(ticks.values()), [f"cluster-{k}" for k in ticks])
    if truth:
        beside = axes.secondary_yaxis("right")
        beside.set_yticks([y * stretch for y in middles.values()], [f"group {g}" for g in middles])
    axes.set(xlabel="round", xlim=(-0.3, len(labels) - 0.7))
    axes.autoscale_view(scalex=False)
    axes.set_title(f"{run.name}: one line a participant, coloured by its {'true group' if truth else 'last cluster'}")
    axes.title.set_fontsize(10)
    figure.savefig(path, dpi=120)
    return path


def _places(
    columns: Sequence[Column], order: Sequence[str], numbers: Sequence[int]
) -> tuple[list[dict[str, float]], dict[int, float], float]:
    """Each participant's height in each column, the middle of each of these blocks from below, and the height of all.

    A block is as high as it ever gets, so that it stays where it is; there is a gap between two.
    """
    gap = max(1.0, 0.06 * len(order))
    middle, top = {}, 0.0
    for number in numbers:
        room = max(sum(own == number for own in column.values()) for column in columns)
        middle[number] = top + room / 2
        top += room + gap
    places = []
    for column in columns:
        place = {}
        for number in numbers:
            members = [name for name in order if column.get(name) == number]
            for i, name in enumerate(members):
                place[name] = middle[number] + i + 0.5 - len(members) / 2
        places.append(place)
    return places, middle, top


def _draw(axes: Any, places: Sequence[Mapping[str, float]], order: Sequence[str], kinds: Column) -> None:
    """Lines from column to column, from where a participant is first in a cluster."""
    numbers = sorted(set(kinds.values()))
    colours = dict(zip(numbers, palette(len(numbers))))
    paths, tints = [], []
    for name in order:
        known = [(x, place[name]) for x, place in enumerate(places) if name in place]
        paths.append([(x + side, y) for x, y in known for side in (-LEVEL, LEVEL)])
        tints.append(colours.get(kinds.get(name, -1), "0.5"))
    width = min(2.5, max(0.5, 120 / max(1, len(order))))
    axes.add_collection(LineCollection(paths, colors=tints, linewidths=width, alpha=0.8, capstyle="round"))
