# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The figures of a report: what the cells that tables.py measured reach over the rounds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cells import Cell
from colours import COLOURS
from matplotlib.figure import Figure
from plans.figures import FIGURES
from png import save


def label(row: Mapping[str, Any]) -> str:
    """A row's name with what is not as in the plan."""
    changes = [f"{key}={value}" for key, value in row.get("settings", {}).items()]
    return " ".join([row["row"], *changes, *(["through FLARE"] if row.get("flare") else [])])


def sweep_of(cell: Cell) -> str:
    """The sweep to which a cell belongs; empty for the main table."""
    if settings := cell.facts.get("settings"):
        return ", ".join(settings)
    return next((name for name, rows in cell.plan.sweeps.items() if cell.facts["row"] in rows), "")


def over_rounds(cells: Sequence[Cell], key: str) -> dict[int, float]:
    """The mean over seeds of a figure in the rounds in which all of them have it."""
    values: dict[int, list[float]] = defaultdict(list)
    for cell in cells:
        for r in cell.rounds:
            if r.get(key) is not None:
                values[r["round"]].append(r[key])
    return {number: statistics.fmean(there) for number, there in values.items() if len(there) == len(cells)}


def panels_of(found: Sequence[Cell]) -> dict[tuple[str, str], dict[str, list[Cell]]]:
    """The seeds of each line, by its label, of each panel, by sweep and partition."""
    panels: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in found:
        panels[sweep_of(cell), cell.facts["partition"]].append(cell)
    lines: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for place, cells in panels.items():
        sizes = {(cell.facts["participants"], cell.facts["rounds"]) for cell in cells}
        lines[place] = defaultdict(list)
        for cell in cells:
            size = f" (m = {cell.facts['participants']}, {cell.facts['rounds']} rounds)" if len(sizes) > 1 else ""
            lines[place][label(cell.facts) + size].append(cell)
    return lines


def draw(found: Sequence[Cell], figure_name: str, path: Path) -> None:
    """A figure over rounds: a column a partition, a line of panels a sweep, a line a row, the mean over its seeds."""
    shown, panels = FIGURES[figure_name], panels_of(found)
    sweeps, partitions = (list(dict.fromkeys(place[i] for place in panels)) for i in (0, 1))
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    figure = Figure(figsize=(7 * len(partitions), 4 * len(sweeps)), layout="constrained")
    grid = figure.subplots(len(sweeps), len(partitions), sharey=True, squeeze=False)
    for (sweep, partition), panel in panels.items():
        axes = grid[sweeps.index(sweep)][partitions.index(partition)]
        for name, cells in panel.items():
            i = names.index(name)
            means = over_rounds(cells, shown.key)
            style = ("-", "--", ":", "-.")[i // len(COLOURS) % 4]
            rounds, values = [number + 1 for number in means], [shown.scale * mean for mean in means.values()]
            axes.plot(rounds, values, style, color=COLOURS[i % len(COLOURS)], label=name)
        axes.set(title=f"{partition}: {sweep}" if sweep else partition, xlabel="round")
        axes.legend(fontsize="x-small" if len(panel) > 20 else "small", loc="upper left", bbox_to_anchor=(1, 1))
    for line in grid:
        there = [axes for axes in line if axes.has_data()]
        for axes in line:
            axes.set_visible(axes in there)
        there[0].set_ylabel(f"{shown.title} of the served models (%)")
        there[0].tick_params(labelleft=True)
    save(figure, path)
