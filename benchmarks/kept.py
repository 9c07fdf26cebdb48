# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept in ``results``: figures of a row, over its seeds, of two rows, paired by seed, and of all methods."""

from __future__ import annotations

import json
import lzma
import statistics
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import Cell, read_cells
from plans.plan import FIGURES
from report import figure_of
from scipy.stats import t

RESULTS = Path(__file__).parent / "results"
CELLS = RESULTS / "cells.zip"  # the files of cells, each in a folder of its result's name
MEASURED = "measured.json.xz"  # what other scripts than tables.py measured, by the name of each one's file
COMPUTED = {"attacks-adaptive/paired.json": "attacks-adaptive/attacks.jsonl"}  # files that follow from others


class CitationError(Exception):
    """A comment that names no figure, or several."""


def folder_of(result: str) -> zipfile.Path:
    """Where the cells of a result are kept."""
    return zipfile.Path(CELLS, f"{result}/")


def results() -> list[str]:
    """The names of the results whose cells are kept."""
    return sorted(folder.name for folder in zipfile.Path(CELLS).iterdir())


@cache
def kept(result: str) -> list[Cell]:
    """The cells of a result."""
    cells = read_cells(folder_of(result))
    if not cells:
        raise CitationError(f"{result}: there are no such results")
    return cells


@cache
def packed() -> dict[str, Any]:
    """All that other scripts than ``tables.py`` measured."""
    return json.loads(lzma.decompress((RESULTS / MEASURED).read_bytes()))


def measured(name: str) -> Any:
    """The content of a file such as ``speed.json``; what follows from another file is computed.

    Raises:
        CitationError: nothing of this name is kept.
    """
    if name in COMPUTED:
        import attacks_report  # which needs what trains models

        return attacks_report.paired(packed()[COMPUTED[name]])
    if name not in packed():
        raise CitationError(f"{name}: there is no such file")
    return packed()[name]


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
        named = (facts["partition"], facts["row"]) == (partition, row)
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
        figure_value = next(
            (r[key] for r in cell.rounds if r["round"] == int(after) - 1 and r.get(key) is not None), None
        )
    else:
        figure_value = figure_of(cell, key)
    return None if figure_value is None else scale * figure_value


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


def paired(cells: dict[int, Cell], other: dict[int, Cell], figure: str) -> list[float]:
    """The differences, seed by seed; cells of another commit are not laid beside each other."""
    differences = []
    if cells.keys() != other.keys():
        raise CitationError(f"the seeds {sorted(cells)} and {sorted(other)} are not the same")
    for seed in sorted(cells):
        if cells[seed].facts["commit"] != other[seed].facts["commit"]:
            where = f"{cells[seed].name} and {other[seed].name}"
            raise CitationError(f"{where} are of different commits, so that their difference is not paired")
        mine, theirs = value(cells[seed], figure), value(other[seed], figure)
        if mine is not None and theirs is not None:
            differences.append(mine - theirs)
    if not differences:
        raise CitationError(f"{figure}: neither row has it")
    return differences


def signed(number: float, places: int) -> str:
    """``+0.8``; never ``-0.0``."""
    return f"{round(number, places) + 0.0:+.{places}f}"


# ---- Which method when: each against the better of local training and FedAvg ----


WITHOUT_CLUSTERS = ("local", "fedavg")
FEWEST_SEEDS = 3

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
    comparable = []
    for result in results:
        groups: dict[tuple[str, ...], Values] = defaultdict(lambda: defaultdict(dict))
        for cell in kept(result):
            facts, number = cell.facts, value(cell, figure)
            if number is not None:
                same = (facts["partition"], *map(str, map(facts.get, ("rounds", "participants", "settings", "commit"))))
                groups[same][facts["row"]][facts["seed"]] = number
        for (partition, *_), values in groups.items():
            if all(len(values.get(row, {})) >= FEWEST_SEEDS for row in WITHOUT_CLUSTERS):
                means = {row: statistics.fmean(values[row].values()) for row in WITHOUT_CLUSTERS}
                comparable.append(Place(f"{result} {partition}", max(means, key=lambda row: means[row]), values))
    return comparable


def rows_of(compared: Sequence[Place]) -> list[str]:
    """The rows that half of the places have, by their mean difference to the yardsticks."""

    def order(row: str) -> float:
        means = [statistics.fmean(d) for place in compared if (d := place.differences(row))]
        return -statistics.fmean(means)

    rows = dict.fromkeys(row for place in compared for row in place.values if row != "majority")
    return sorted(
        (row for row in rows if 2 * sum(row in place.values for place in compared) >= len(compared)), key=order
    )


def verdict(differences: Sequence[float]) -> str:
    """``+12.3 +``: the mean, and a sign if the interval leaves out zero."""
    if not differences:
        return ""
    if len(differences) < FEWEST_SEEDS:
        return signed(statistics.fmean(differences), 1)
    mean, low, high = interval(differences)
    mark = " **+**" if low > 0 else " **-**" if high < 0 else ""
    return signed(mean, 1) + mark


def wins(compared: Sequence[Place], row: str, other: str) -> str:
    """``18 of 21``: of the runs in which both are there, those that the row wins."""
    differences = [d for place in compared for d in place.differences(row, other)]
    return f"{sum(d > 0 for d in differences)} of {len(differences)}" if row != other and differences else "-"


def which_table(text: str) -> str:
    """``digits blood; accuracy majority``: a row a method, a column a place; below them other rows."""
    results, (figure, *others) = (part.split() for part in text.split(";"))
    compared = places(results, figure)
    titles = [
        "",
        *(place.name.replace("_", " ") for place in compared),
        *(f"wins over `{o}`" for o in WITHOUT_CLUSTERS),
    ]
    lines = [f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1)]
    for row in dict.fromkeys((*rows_of(compared), *others)):
        verdicts = [
            f"*{place.yardstick}*" if place.yardstick == row else verdict(place.differences(row)) for place in compared
        ]
        lines.append(
            f"| {' | '.join([f'`{row}`', *verdicts, *(wins(compared, row, other) for other in WITHOUT_CLUSTERS)])} |"
        )
    return "\n".join(lines)


# ---- How many hospitals gain: by a smaller log-loss, over all seeds ----


LOSS = "served_loss"


def losses(cells: dict[int, Cell]) -> np.ndarray:
    """Each hospital's log-loss, ``(seeds, hospitals)``; NaN where it was not measured."""
    of_hospitals = [cells[seed].after.get("hospitals", {}).get(LOSS) for seed in sorted(cells)]
    if any(of_seed is None for of_seed in of_hospitals):
        raise CitationError("these cells have no figures of single hospitals")
    return np.array(of_hospitals, np.float64)


def gaining(mine: np.ndarray, theirs: np.ndarray) -> tuple[int, int]:
    """How many hospitals have a smaller mean over the seeds, and of how many.

    >>> gaining(np.array([[0.2, 0.5], [0.4, 0.5]]), np.array([[0.3, 0.4], [0.4, 0.4]]))
    (1, 2)

    Args:
        mine: ``(seeds, hospitals)``.
        theirs: the same of another row.
    """
    differences = (mine - theirs).mean(axis=0)
    there = differences[~np.isnan(differences)]
    return int((there < 0).sum()), len(there)


def gains_table(text: str) -> str:
    """``stroke natural: ifca-2 ditto; local fedavg``: how many hospitals gain by each row."""
    place, _, asked = text.partition(":")
    rows, others = (part.split() for part in asked.split(";"))
    result, partition = place.split()
    lines = [
        "| hospitals that gain | " + " | ".join(f"against `{other}`" for other in others) + " |",
        "|---|" + "---:|" * len(others),
    ]
    of = {row: losses(group(result, partition, row)) for row in dict.fromkeys((*rows, *others))}
    for row in rows:
        counts = ["-" if row == other else "{} of {}".format(*gaining(of[row], of[other])) for other in others]
        lines.append(f"| `{row}` | {' | '.join(counts)} |")
    return "\n".join(lines)
