# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The figures that documents cite: written into them from the cells that are kept, and checked against those.

A document names a figure in a comment before it, which a browser does not show, and ends it with ``<!--/-->``:

    <!--figure paired cluster_dirichlet wecfl accuracy-->                    mean, with its deviation over seeds
    <!--difference paired cluster_dirichlet ifca-cam ifca accuracy-->        of two rows, paired by seed, 95 % interval
    <!--published family cluster_dirichlet wecfl accuracy-->                 what the paper has
    <!--published family cluster_dirichlet ifca-cam ifca accuracy-->         a difference of two such
    <!--table paired cluster_dirichlet: local fedavg; accuracy macro_f1-->   rows and columns, with what made them
    <!--which digits blood; accuracy-->                                      wins over local and FedAvg, by partition

A word such as ``rounds=100`` or ``data_seed=0`` tells apart cells of one row. ``accuracy@10`` is the figure after ten
rounds.

    python benchmarks/cited.py write       puts the figures into the documents
    python benchmarks/cited.py check       says which are not what the cells have
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from cells import Cell, read_cells
from plans.figures import FIGURES
from plans.plan import PUBLISHED
from scipy.stats import t
from tables_report import figure_of

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
CITED = re.compile(r"(<!--(figure|difference|published|table|which) ([^>]*?)-->)(.*?)(<!--/-->)", re.DOTALL)


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
    mean = f"{statistics.fmean(values):.{places}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{places}f}"


def interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Mean of paired differences, and the ends of Student's interval for it."""
    n, mean = len(differences), statistics.fmean(differences)
    half = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(differences) / n**0.5
    return mean, mean - half, mean + half


def paired(one: dict[int, Cell], other: dict[int, Cell], figure: str) -> list[float]:
    """The differences, seed by seed; cells of another commit are not laid beside each other."""
    found = []
    for seed in sorted(one.keys() & other.keys()):
        if one[seed].facts["commit"] != other[seed].facts["commit"]:
            where = f"{one[seed].name} and {other[seed].name}"
            raise CitationError(f"{where} are of different commits, so that their difference is not paired")
        mine, theirs = value(one[seed], figure), value(other[seed], figure)
        if mine is not None and theirs is not None:
            found.append(mine - theirs)
    if not found:
        raise CitationError(f"{figure}: the two rows have no seed in common")
    return found


def signed(number: float, places: int) -> str:
    """``+0.8``; never ``-0.0``."""
    return f"{round(number, places) + 0.0:+.{places}f}"


# ---- What the comments ask for ----


def figure(text: str) -> str:
    """Of one row."""
    result, partition, row, name, *more = text.split()
    return mean_of(group(result, partition, row, more), name)


def difference(text: str) -> str:
    """``+0.8 (0.3 to 1.3)``: of two rows."""
    result, partition, one, other, name, *more = text.split()
    found = paired(group(result, partition, one, more), group(result, partition, other, more), name)
    places = digits(name)
    if len(found) == 1:
        return f"{signed(found[0], places)} (one seed)"
    mean, low, high = interval(found)
    return f"{signed(mean, places)} ({signed(low, places)} to {signed(high, places)})"


def published(text: str) -> str:
    """A paper's figure, or the difference of two."""
    plan, partition, *rows, name = text.split()
    figures = json.loads((PUBLISHED / f"{plan}.json").read_text())["figures"]
    try:
        found = [figures[partition][row][0][name] for row in rows]
    except KeyError as error:
        raise CitationError(f"published/{plan}.json has no {partition} {' '.join(rows)} {name}: {error}") from error
    if len(found) == 2:
        return signed(found[0][0] - found[1][0], 1)
    mean, std = found[0]
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"


def table(text: str) -> str:
    """Rows by columns, and below them what they are of."""
    place, _, asked = text.partition(":")
    result, partition, *more = place.split()
    rows, columns = (part.split() for part in asked.split(";"))
    groups = {row: group(result, partition, row, more) for row in rows}
    lines = ["| | " + " | ".join(title(column) for column in columns) + " |", "|---|" + "---:|" * len(columns)]
    lines += [f"| `{row}` | " + " | ".join(mean_of(cells, c) for c in columns) + " |" for row, cells in groups.items()]
    return (
        "\n\n" + "\n".join(lines) + f"\n\n{made_by(result, [c for cells in groups.values() for c in cells.values()])}\n"
    )


def title(column: str) -> str:
    """Of a table."""
    name, _, after = column.partition("@")
    return FIGURES[name].title + (f" after round {after}" if after else "")


def made_by(result: str, cells: Sequence[Cell]) -> str:
    """Participants, rounds, seeds and commits of some cells."""

    def all_of(key: str) -> str:
        return ", ".join(map(str, sorted({cell.facts[key] for cell in cells})))

    seeds = sorted({cell.facts["seed"] for cell in cells})
    kinds = f"seeds {all_of('seed')}, mean ± standard deviation" if len(seeds) > 1 else f"**one seed** ({seeds[0]})"
    report = f"[report](../../benchmarks/results/{result}/{result}.md)"
    counts = f"{all_of('participants')} participants, {all_of('rounds')} rounds"
    return f"*{counts}, {kinds}; commit {all_of('commit')}; commands in the {report}.*"


def which(text: str) -> str:
    """See `which_method`, the script beside this one."""
    from which_method import summary

    results, name = (part.split() for part in text.split(";"))
    return f"\n\n{summary(results, name[0])}\n"


WAYS: dict[str, Callable[[str], str]] = {
    "figure": figure,
    "difference": difference,
    "published": published,
    "table": table,
    "which": which,
}


def renewed(document: str, problems: list[str]) -> str:
    """The document with the figures that the cells have; what cannot be found stays, and is a problem."""

    def now(found: re.Match[str]) -> str:
        opening, way, text, old, closing = found.groups()
        try:
            new = WAYS[way](text.strip())
        except (CitationError, ValueError) as error:
            problems.append(str(error))
            return found[0]
        if new != old:
            problems.append(f"{opening} says {old.strip()!r}; the cells have {new.strip()!r}")
        return f"{opening}{new}{closing}"

    return CITED.sub(now, document)


def uncited(document: str) -> list[str]:
    """The decimal numbers of a document that no comment names, outside code, links, and numbers of tables."""
    text = CITED.sub(" ", document)
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", text, flags=re.DOTALL)
    number = r"\d+(\.\d+)*"
    text = re.sub(rf"\b(Tables?|Figs?\.|Eqs?\.|secs?\.|Alg\.) ?{number}((,| and| to) {number})*", " ", text)
    text = re.sub(rf"\b(version|FLARE|Python)\s+{number}", " ", text)
    return re.findall(r"(?<![\w.])(?<![A-Za-z]-)\d+\.\d+(?!\w|\.\d)", text)


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("do", choices=("write", "check"))
    given = options.parse_args()
    wrong = []
    for path in DOCUMENTS:
        problems: list[str] = []
        document = path.read_text()
        new = renewed(document, problems)
        if given.do == "write":
            if new != document:
                path.write_text(new)
            again: list[str] = []
            renewed(new, again)
            problems = again
        wrong += [f"{path.relative_to(ROOT)}: {problem}" for problem in problems]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
