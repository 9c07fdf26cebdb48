# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The figures that documents cite: written into them from the cells that are kept, and checked against those.

A document names a figure in a comment before it, which a browser does not show, and ends it with ``<!--/-->``:

    <!--figure paired cluster_dirichlet wecfl accuracy-->                    mean, with its deviation over seeds
    <!--difference paired cluster_dirichlet ifca-cam ifca accuracy-->        of two rows, paired by seed, 95 % interval
    <!--published family cluster_dirichlet wecfl accuracy-->                 what the paper has
    <!--published family cluster_dirichlet ifca-cam ifca accuracy-->         a difference of two such
    <!--spread starts cluster_dirichlet ifca accuracy-->                     over all deals and seeds: mean, least, most
    <!--json speed.json speed.bare.ideal .1f-->                              a number of another file of results
    <!--table paired cluster_dirichlet: local fedavg; accuracy macro_f1-->   rows and columns, with what made them
    <!--which digits blood; accuracy majority-->                             wins over local and FedAvg, by partition
    <!--by_place digits blood: ifca wecfl; first_ari last_ari-->               means of rows, by partition
    <!--gains stroke natural: ifca-2 ditto; local fedavg-->                  hospitals with a smaller loss, by row
    <!--verdict paired cluster_dirichlet wecfl fesem accuracy-->             "holds" and other words: see `verdicts`
    <!--count study-cells.json rows; found=4-->                              counts and names: see `counts`

A word such as ``rounds=100`` or ``data_seed=0`` tells apart cells of one row. ``accuracy@10`` is the figure after ten
rounds.

    python benchmarks/cited.py write       puts the figures into the documents
    python benchmarks/cited.py check       says which are not what the cells have
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import counts
import kept
import verdicts
from common import Cell
from kept import CitationError, digits, gains_table, group, interval, mean_of, paired, signed, value, which_table
from plans.plan import FIGURES
from plans.plan import published as published_figures
from report import UNREACHABLE

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *(ROOT / "contrib").rglob("README.md"))
# What `tools/hooks.py` writes from the code and the reports; a test of its own holds it current.
GENERATED = re.compile(r"^<!-- \w+: [^>]* -->$.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
CITED = re.compile(r"(<!--(\w+) ([^>]*?)-->)(.*?)(<!--/-->)", re.DOTALL)


# ---- What the comments ask for ----


def figure(text: str) -> str:
    """Of one row."""
    result, partition, row, name, *words = text.split()
    return mean_of(group(result, partition, row, words), name)


def difference(text: str) -> str:
    """``+0.8 (0.3 to 1.3)``: of two rows."""
    result, partition, row, other, name, *words = text.split()
    differences = paired(group(result, partition, row, words), group(result, partition, other, words), name)
    places = digits(name)
    if len(differences) == 1:
        return f"{signed(differences[0], places)} (one seed)"
    mean, low, high = interval(differences)
    return f"{signed(mean, places)} ({signed(low, places)} to {signed(high, places)})"


def spread(text: str) -> str:
    """``91.5 (88.1 to 93.0, 30 runs)``: of a row whatever its settings."""
    result, partition, row, name = text.split()
    cells = [cell for cell in kept.kept(result) if (cell.facts["partition"], cell.facts["row"]) == (partition, row)]
    values = [v for cell in cells if (v := value(cell, name)) is not None]
    if not values:
        raise CitationError(f"{text}: there are no such cells")
    mean, least, most = (f"{v:.{digits(name)}f}" for v in (statistics.fmean(values), min(values), max(values)))
    return f"{mean} ({least} to {most}, {len(values)} runs)"


def number(text: str) -> str:
    """A number of a JSON file, by the names and places that lead to it; ``.1f*100`` shows a hundred times as much."""
    path, keys, form = text.split()
    form, _, times = form.partition("*")
    content = kept.measured(path)
    for key in keys.split("."):
        try:
            spelt = key if isinstance(content, list) or key in content else key.replace("_", " ")
            content = content[int(key) if isinstance(content, list) else spelt]
        except (KeyError, IndexError, ValueError) as error:
            raise CitationError(f"{text}: there is no {key}") from error
    return format(content * float(times) if times else content, form)


def published(text: str) -> str:
    """A paper's figure, or the difference of two."""
    plan, partition, *rows, name = text.split()
    try:
        figures = published_figures()[plan]["figures"]
        found = [figures[partition][row][0][name] for row in rows]
    except KeyError as error:
        raise CitationError(f"published.json has no {plan} {partition} {' '.join(rows)} {name}: {error}") from error
    if len(found) == 2:
        return signed(found[0][0] - found[1][0], 1)
    mean, std = found[0]
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"


def table(text: str) -> str:
    """Rows by columns, and below them what they are of."""
    place, _, asked = text.partition(":")
    result, partition, *words = place.split()
    rows, columns = (part.split() for part in asked.split(";"))
    groups = {row: group(result, partition, row, words) for row in rows}
    seeds = {row: sorted(cells) for row, cells in groups.items()}
    if len({str(there) for there in seeds.values()}) > 1:
        raise CitationError(f"the rows of {place.strip()} have different seeds: {seeds}")
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
    """Participants, rounds, seeds and commits of some cells, but for commits that the history does not have."""

    def all_of(key: str, without: Sequence[str] = ()) -> str:
        return ", ".join(map(str, sorted({cell.facts[key] for cell in cells} - set(without))))

    seeds = sorted({cell.facts["seed"] for cell in cells})
    kinds = f"seeds {all_of('seed')}, mean ± standard deviation" if len(seeds) > 1 else f"**one seed** ({seeds[0]})"
    report = f"[report](../../benchmarks/results/{result}/{result}.md)"
    counts = f"{all_of('participants')} participants, {all_of('rounds')} rounds"
    commits = all_of("commit", UNREACHABLE)
    return f"*{counts}, {kinds}; {f'commit {commits}; ' * bool(commits)}commands in the {report}.*"


def which(text: str) -> str:
    """See `kept.which_table`."""
    results, (name, *rows) = (part.split() for part in text.split(";"))
    return f"\n\n{which_table(results, name, rows)}\n"


def by_place(text: str) -> str:
    """Means of some rows by result and partition, the figures of a place with a slash between; empty without cells."""
    place, _, asked = text.partition(":")
    rows, names = (part.split() for part in asked.split(";"))
    places = [
        (result, partition)
        for result in place.split()
        for partition in dict.fromkeys(cell.facts["partition"] for cell in kept.kept(result))
    ]

    def means(result: str, partition: str, row: str) -> str:
        there = any((c.facts["partition"], c.facts["row"]) == (partition, row) for c in kept.kept(result))
        cells = group(result, partition, row) if there else {}
        return " / ".join(mean_of(cells, name).partition(" ± ")[0] for name in names) if there else ""

    titles = [f"{result} {partition}".replace("_", " ") for result, partition in places]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    lines += [f"| `{row}` | {' | '.join(means(*place, row) for place in places)} |" for row in rows]
    return "\n\n" + "\n".join(lines) + "\n"


def gains(text: str) -> str:
    """See `kept.gains_table`."""
    place, _, asked = text.partition(":")
    rows, others = (part.split() for part in asked.split(";"))
    result, partition = place.split()
    return f"\n\n{gains_table(result, partition, rows, others)}\n"


LIBRARIES = {
    "loop": "cfl_flare, in its loop",
    "simulator": "cfl_flare, in FLARE's simulator",
    "recipe": "FLARE's `FedAvgRecipe`",
    "flower": "Flower",
}
COLUMNS = {
    "CPU seconds a round": lambda row: f"{row['a_round']['cpu_seconds']:.1f}",
    "of the bare work": lambda row: f"{row['ratio']:.2f}",
    "in its torch": lambda row: f"{row['ratio_of_its_torch']:.2f}",
    "wall seconds a round": lambda row: f"{row['a_round']['wall_seconds']:.1f}",
    "start, wall / CPU seconds": lambda row: " / ".join(f"{row['start'][f'{k}_seconds']:.0f}" for k in ("wall", "cpu")),
    "peak MB": lambda row: f"{row['peak_MB']:.0f}",
    "accuracy, %": lambda row: f"{100 * row['accuracy']:.1f}",
}


def league(text: str) -> str:
    """The rows of a league by method, the cheapest rounds first; below them the setting and who is missing."""
    content = kept.measured(text.strip())
    rows, setting = content["rows"], content["setting"]
    lines = [f"| | with | {' | '.join(COLUMNS)} |", "|---|---|" + "---:|" * len(COLUMNS)]
    for method in ("fedavg", "ifca", "fesem"):
        of_method = [name for name in rows if name.endswith(f"-{method}")]
        for name in sorted(of_method, key=lambda name: rows[name]["a_round"]["cpu_seconds"]):
            library = name.partition("-")[0]
            cells = [f"`{method}`", LIBRARIES.get(library, library), *(show(rows[name]) for show in COLUMNS.values())]
            lines.append(f"| {' | '.join(cells)} |")
    short, long = setting["rounds"]
    commits = ", ".join(sorted({row["commit"][:10] for row in rows.values()}))
    facts = [f"{setting['participants']} participants", f"runs of {short} and {long} rounds", f"commit {commits}"]
    facts += [f"{name} is missing: {reason}" for name, reason in content["missing"].items()]
    return "\n\n" + "\n".join(lines) + f"\n\n*{'; '.join(facts)}.*\n"


WAYS: dict[str, Callable[[str], str]] = {
    "figure": figure,
    "difference": difference,
    "spread": spread,
    "json": number,
    "published": published,
    "table": table,
    "which": which,
    "by_place": by_place,
    "gains": gains,
    "league": league,
    **verdicts.WAYS,
    **counts.WAYS,
}


def renewed(document: str, problems: list[str]) -> str:
    """The document with the figures that the cells have; what cannot be found stays, and is a problem."""

    def now(mark: re.Match[str]) -> str:
        opening, way, text, old, closing = mark.groups()
        if way not in WAYS:
            problems.append(f"{opening}: there is no such comment; there are {', '.join(WAYS)}")
            return mark[0]
        try:
            new = WAYS[way](text.strip())
        except (CitationError, ValueError) as error:
            problems.append(f"{opening}: {error}")
            return mark[0]
        if new != old:
            problems.append(f"{opening} says {old.strip()!r}; the cells have {new.strip()!r}")
        return f"{opening}{new}{closing}"

    return CITED.sub(now, document)


def uncited(document: str) -> list[str]:
    """The decimal numbers of a document that no comment names, outside code, links, and numbers of tables.

    Nor those that are generated.
    """
    text = CITED.sub(" ", GENERATED.sub(" ", document))
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", text, flags=re.DOTALL)
    number = r"\d+(\.\d+)*"
    text = re.sub(rf"\b(Tables?|Figs?\.|Eqs?\.|secs?\.|Alg\.) ?{number}((,| and| to) {number})*", " ", text)
    text = re.sub(rf"\b([Vv]ersion|FLARE|Python|B[Yy])\s+{number}|\b(arXiv|doi):[^\s\]]+", " ", text)
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
