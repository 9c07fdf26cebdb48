# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A figure of the participants' clusters over rounds, beside their true groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from cfl_flare.report.colours import palette
from cfl_flare.report.labels import in_figure

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run

COLUMNS = 15
FIRST = 5
# How far a line is horizontal at each column, so that a cluster appears as a block.
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

    One line per participant; its colour is its true group or, if that is unknown, its last cluster. The lines of a
    cluster are side by side, so that its height is its size.
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
    # The order of the lines in a block: by group, then by last cluster.
    order = sorted(last, key=lambda name: (kinds.get(name, -1), last[name]))
    figure = Figure(figsize=(max(7, 2 + 0.75 * len(rounds)), min(14, max(4, 2.5 + 0.04 * len(order)))))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    heights, ticks, height = _heights(columns, order, sorted({k for column in columns for k in column.values()}))
    if truth:
        ends = {g: [y for name, y in heights[-1].items() if truth.get(name) == g] for g in set(truth.values())}
        groups = sorted((g for g in ends if ends[g]), key=lambda g: sum(ends[g]) / len(ends[g]))  # fewest crossings
        (right,), middles, other = _heights([truth], order, groups)
        stretch = height / other
        heights.append({name: y * stretch for name, y in right.items()})
    _draw(axes, heights, order, kinds)
    labels = [str(r + 1) for r in rounds] + (["truth"] if truth else [])
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(list(ticks.values()), [f"cluster-{k}" for k in ticks])
    if truth:
        beside = axes.secondary_yaxis("right")
        beside.set_yticks([y * stretch for y in middles.values()], [f"group {g}" for g in middles])
    axes.set(xlabel="round", xlim=(-0.3, len(labels) - 0.7))
    axes.autoscale_view(scalex=False)
    by = "true group" if truth else "last cluster"
    axes.set_title(f"{in_figure(run.name)}: one line per participant, coloured by {by}", fontsize=10)
    figure.savefig(path, dpi=120)
    return path


def _heights(
    columns: Sequence[Column], order: Sequence[str], numbers: Sequence[int]
) -> tuple[list[dict[str, float]], dict[int, float], float]:
    """Each participant's height in each column, the middle of each block, and the height of all blocks.

    A block's height is its maximum over the columns, so that it does not move; there is a gap between two blocks.
    """
    gap = max(1.0, 0.06 * len(order))
    middle, top = {}, 0.0
    for number in numbers:
        room = max(sum(own == number for own in column.values()) for column in columns)
        middle[number] = top + room / 2
        top += room + gap
    heights: list[dict[str, float]] = []
    for column in columns:
        heights.append({})
        for number in numbers:
            members = [name for name in order if column.get(name) == number]
            for i, name in enumerate(members):
                heights[-1][name] = middle[number] + i + 0.5 - len(members) / 2
    return heights, middle, top


def _draw(axes: Any, heights: Sequence[Mapping[str, float]], order: Sequence[str], kinds: Column) -> None:
    """Lines from column to column, starting where a participant is first in a cluster."""
    numbers = sorted(set(kinds.values()))
    colours = dict(zip(numbers, palette(len(numbers))))
    paths, tints = [], []
    for name in order:
        known = [(x, column[name]) for x, column in enumerate(heights) if name in column]
        paths.append([(x + side, y) for x, y in known for side in (-LEVEL, LEVEL)])
        tints.append(colours.get(kinds.get(name, -1), "0.5"))
    width = min(2.5, max(0.5, 120 / max(1, len(order))))
    axes.add_collection(LineCollection(paths, colors=tints, linewidths=width, alpha=0.8, capstyle="round"))
