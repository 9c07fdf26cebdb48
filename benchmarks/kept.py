# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The figures of the cells that are kept in ``results``: of a row, over its seeds, and of two rows, paired by seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cells import Cell, read_cells
from plans.figures import FIGURES
from scipy.stats import t
from tables_report import figure_of

RESULTS = Path(__file__).parent / "results"


class CitationError(Exception):
    """A comment that names no figure, or several."""


@cache
def kept(result: str) -> list[Cell]:
    """The cells of a folder of results."""
    found = read_cells(RESULTS / result)
    if not found:
        raise CitationError(f"{result}: there are no such results")
    return found


def group(result: str, partition: str, row: str, words: Sequence[str] = ()) -> dict[int, Cell]:
    """The cells of a row on a partition by their seeds: of one number of rounds and of participants, and one setting.

    Raises:
        CitationError: there are none, or several groups of them.
    """
    wanted = dict(word.split("=", 1) for word in words)
    groups: dict[str, dict[int, Cell]] = {}
    for cell in kept(result):
        facts = cell.facts
        known = {**{k: facts[k] for k in ("rounds", "participants")}, **facts.get("settings", {})}
        named = (facts["partition"], facts["row"]) == (partition, row) and not facts.get("flare")
        if named and all(str(known.get(k)) == v for k, v in wanted.items()):
            groups.setdefault(str(known), {})[facts["seed"]] = cell
    if len(groups) != 1:
        where = f"{result} {partition} {row} {' '.join(words)}".strip()
        raise CitationError(f"{where}: {len(groups)} kinds of cells, not one: {', '.join(groups) or 'none'}")
    return next(iter(groups.values()))


def value(cell: Cell, figure: str) -> float | None:
    """A figure in the table's units, of the end or after some rounds."""
    name, _, after = figure.partition("@")
    if name not in FIGURES:
        raise CitationError(f"{figure}: no such figure; there are {', '.join(FIGURES)}")
    key, scale = FIGURES[name].key, FIGURES[name].scale
    if after:
        found = next((r[key] for r in cell.rounds if r["round"] == int(after) - 1 and r.get(key) is not None), None)
    else:
        found = figure_of(cell, key)
    return None if found is None else scale * found


def digits(figure: str) -> int:
    """After the point: what a deviation over a few seeds allows."""
    return 1 if FIGURES[figure.partition("@")[0]].scale == 100 else 2


def mean_of(cells: dict[int, Cell], figure: str) -> str:
    """``94.7 ± 0.7``; the figure alone, if there is one seed."""
    values = [v for cell in cells.values() if (v := value(cell, figure)) is not None]
    if not values:
        return "-"
    places = digits(figure)
    mean = f"{round(statistics.fmean(values), places) + 0.0:.{places}f}"  # never -0.0
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{places}f}"


def interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Mean of paired differences, and the ends of Student's interval for it."""
    n, mean = len(differences), statistics.fmean(differences)
    half = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(differences) / n**0.5
    return mean, mean - half, mean + half


def paired(one: dict[int, Cell], other: dict[int, Cell], figure: str) -> list[float]:
    """The differences, seed by seed; cells of another commit are not laid beside each other."""
    found = []
    if one.keys() != other.keys():
        raise CitationError(f"the seeds {sorted(one)} and {sorted(other)} are not the same")
    for seed in sorted(one):
        if one[seed].facts["commit"] != other[seed].facts["commit"]:
            where = f"{one[seed].name} and {other[seed].name}"
            raise CitationError(f"{where} are of different commits, so that their difference is not paired")
        mine, theirs = value(one[seed], figure), value(other[seed], figure)
        if mine is not None and theirs is not None:
            found.append(mine - theirs)
    if not found:
        raise CitationError(f"{figure}: neither row has it")
    return found


def signed(number: float, places: int) -> str:
    """``+0.8``; never ``-0.0``."""
    return f"{round(number, places) + 0.0:+.{places}f}"
