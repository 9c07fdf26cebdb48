# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measured figures in the documents: each comes from the results that are kept.

``python benchmarks/cited.py`` fills in the tables. `docs/results/benchmarks.md` says how to write a template and a
sentence, and lists the expressions.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kept
import verdicts
from common import Cell
from kept import CitationError, digits, group, interval, mean_of, paired, signed, value
from plans.plan import FIGURES
from report import UNREACHABLE

ROOT = Path(__file__).parents[1]
TEMPLATES = Path(__file__).parent / "templates"
SENTENCES = TEMPLATES / "sentences.txt"
REPORTS = ROOT / "docs" / "results" / "benchmarks.md"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *(ROOT / "contrib").rglob("README.md"))
GENERATED = re.compile(r"^<!-- \w+: [^>]* -->$.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"^<!-- table: (\S+) -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
EXPRESSION = re.compile(r"\{([a-z_]+) ([^{}]+)\}")
EACH = re.compile(r"^each (\S+) (\S+)(.*)\n(.*\n)", re.MULTILINE)
FIELD = re.compile(r"\{\.([\w.]+)(?: (interval))?(?: ([^}]+))?\}")


# ---- Expressions ----


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
    return show_interval(interval(differences), f"+.{places}f")


def show_interval(values: Any, form: str) -> str:
    """``+0.8 (+0.3 to +1.3)``: a mean and its interval."""
    mean, low, high = (format(round(number, int(form[-2])) + 0.0, form) for number in values)
    return f"{mean} ({low} to {high})"


def spread(text: str) -> str:
    """``91.5 (88.1 to 93.0, 30 runs)``: of a row whatever its settings."""
    result, partition, row, name = text.split()
    cells = [cell for cell in kept.kept(result) if (cell.facts["partition"], cell.facts["row"]) == (partition, row)]
    values = [number for cell in cells if (number := value(cell, name)) is not None]
    if not values:
        raise CitationError(f"{text}: there are no such cells")
    mean, least, most = (f"{v:.{digits(name)}f}" for v in (statistics.fmean(values), min(values), max(values)))
    return f"{mean} ({least} to {most}, {len(values)} runs)"


def number(text: str) -> str:
    """A number of a JSON file, by the names and places that lead to it."""
    path, keys, form = text.split()
    return show(find(kept.measured(path), keys), form)


def show(content: Any, form: str) -> str:
    """A number in a format; ``.1f*100`` shows a hundred times as much."""
    form, _, times = form.partition("*")
    return "-" if content is None else format(content * float(times) if times else content, form)


def find(content: Any, keys: str) -> Any:
    """What names and places with dots between them lead to."""
    for key in keys.split("."):
        try:
            spelt = key if isinstance(content, list) or key in content else key.replace("_", " ")
            content = content[int(key) if isinstance(content, list) else spelt]
        except (KeyError, IndexError, ValueError) as error:
            raise CitationError(f"{keys}: there is no {key}") from error
    return content


def published(text: str) -> str:
    """A paper's figure, or the difference of two."""
    plan, partition, *rows, name = text.split()
    found = [verdicts.published_figure(plan, partition, row, name) for row in rows]
    if len(found) == 2:
        return signed(found[0][0] - found[1][0], 1)
    mean, std = found[0]
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"


def count(text: str) -> str:
    """Of a file's entries, those that are so; values are written with ``_`` for a space."""
    asked, _, so = text.partition(";")
    (path, key), filters = verdicts.split(asked)

    def fits(entry: dict[str, object], words: dict[str, str]) -> bool:
        return all(str(entry[name]).replace(" ", "_") == wanted for name, wanted in words.items())

    entries = [entry for entry in kept.measured(path)[key] if fits(entry, filters)]
    if not so:
        return str(len(entries))
    return f"{sum(fits(entry, verdicts.split(so)[1]) for entry in entries)} of {len(entries)}"


def worst(text: str) -> str:
    """``FedAvg 3 clipping_at_2``: the least accuracy under any attack, in percent."""
    method, attackers, defence = (word.replace("_", " ") for word in text.split())
    values = [
        100 * float(line["accuracy"])
        for line in kept.measured("attacks/attacks.jsonl")
        if (line["method"], line["defence"], line["attackers"]) == (method, defence, int(attackers))
    ]
    if not values:
        raise CitationError(f"{text}: there is no such cell")
    return f"{min(values):.1f}"


# ---- Whole tables ----


def table(text: str) -> str:
    """Rows by columns."""
    place, _, asked = text.partition(":")
    result, partition, *words = place.split()
    rows, columns = (part.split() for part in asked.split(";"))
    groups = {row: group(result, partition, row, words) for row in rows}
    seeds = {row: sorted(cells) for row, cells in groups.items()}
    if len({str(there) for there in seeds.values()}) > 1:
        raise CitationError(f"the rows of {place.strip()} have different seeds: {seeds}")
    names = [column.partition("@") for column in columns]
    titles = [FIGURES[name].title + (f" after round {after}" if after else "") for name, _, after in names]
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(columns)]
    lines += [f"| `{row}` | " + " | ".join(mean_of(cells, c) for c in columns) + " |" for row, cells in groups.items()]
    return "\n".join(lines)


WAYS: dict[str, Callable[[str], str]] = {
    "figure": figure,
    "difference": difference,
    "spread": spread,
    "json": number,
    "published": published,
    "count": count,
    "worst": worst,
    "verdict": verdicts.verdict,
    "told": verdicts.told,
    "table": table,
    "which": kept.which_table,
    "gains": kept.gains_table,
}

# The scripts behind files that do not name their command.
SCRIPTS = {
    "attacks/attacks.jsonl": "attacks.py",
    "attacks-adaptive/paired.json": "attacks.py",
    "gate.json": "privacy.py",
}


# ---- Templates ----


def fill(text: str) -> str:
    """A template with its figures.

    Raises:
        CitationError: an expression names no figure, or several.
    """
    return EXPRESSION.sub(lambda found: WAYS[found[1]](found[2]) if found[1] in WAYS else found[0], repeat(text))


def repeat(text: str) -> str:
    """A template with a line for each entry where it says ``each``."""
    return EACH.sub(lambda found: "".join(fill_fields(found[4], entry) for entry in entries_of(found)), text)


def entries_of(found: re.Match[str]) -> list[Any]:
    """The entries that an ``each`` names, in the order of its values."""
    entries = find(kept.measured(found[1]), found[2])
    if isinstance(entries, dict):
        entries = [{"name": name, **entry} for name, entry in entries.items()]
    for word in reversed(found[3].split()):
        name, _, values = word.partition("=")
        order = values.replace("_", " ").split(",")
        entries = [entry for entry in entries if str(entry[name]) in order]
        entries.sort(key=lambda entry: order.index(str(entry[name])))
    if not entries:
        raise CitationError(f"{found[0]}: there are no such entries")
    return list(entries)


def fill_fields(line: str, entry: Any) -> str:
    """A line with the fields of an entry; a row against itself is 0."""

    def show_field(field: re.Match[str]) -> str:
        content = find(entry, field[1])
        if not field[2]:
            return show(content, field[3] or "")
        values = list(content.values()) if isinstance(content, dict) else content
        return show_interval(values, field[3]) if any(values) else "0"

    return FIELD.sub(show_field, line)


def name_sources(text: str, page: Path) -> str:
    """Which commands, commits and seeds made the figures of a template."""
    link = os.path.relpath(REPORTS, page.parent)
    words: dict[str, set[str]] = {}
    for expression in (*EXPRESSION.finditer(text), *EACH.finditer(text)):
        for name in name_results(*expression.groups()[:2]):
            words.setdefault(name, set()).update(re.split(r"[\s:;,/]+", expression[2]))
    facts = {name: describe_file(name) if ".json" in name else describe_cells(name, words[name]) for name in words}
    return f"*{'; '.join(f'[{name}]({link}): {made}' for name, made in facts.items())}.*"


def name_results(way: str, text: str) -> list[str]:
    """The results that an expression is about."""
    if way not in WAYS:
        return [way]  # of `each`
    if way in ("published", "worst"):
        return ["attacks/attacks.jsonl"] if way == "worst" else []
    first = re.split("[:;]", text)[0].split()
    return first if way == "which" else first[:1]


def describe_cells(result: str, words: set[str]) -> str:
    """What made the cells that some words name."""

    def choose(cells: list[Cell], key: str) -> list[Cell]:
        return [cell for cell in cells if cell.facts[key] in words] or cells

    cells = choose(choose(kept.kept(result), "partition"), "row")
    plans, people, rounds, seeds, commits = (
        sorted({cell.facts[key] for cell in cells}) for key in ("plan", "participants", "rounds", "seed", "commit")
    )
    setting = f"{list_all(people)} participants, {list_all(rounds)} rounds"
    return ", ".join([f"`tables.py run --plan {list_all(plans)}`", setting, show_seeds(seeds), *name_commits(commits)])


def describe_file(name: str) -> str:
    """What made a file of measurements."""
    content = kept.measured(kept.COMPUTED.get(name, name))
    commands = [text for text in collect(content, "command") if isinstance(text, str)]
    scripts = [word.rpartition("/")[2] for text in commands for word in text.split() if word.endswith(".py")]
    script = [*scripts, *commands, SCRIPTS.get(name)][0]
    seeds = sorted({int(seed) for key in ("seed", "seeds") for seed in collect(content, key)})
    commits = sorted({commit for key in ("commit", "commits") for commit in collect(content, key)})
    return ", ".join([f"`{script}`", *([show_seeds(seeds)] if seeds else []), *name_commits(commits)])


def show_seeds(seeds: list[int]) -> str:
    """One seed is said loudly."""
    return f"seeds {list_all(seeds)}" if len(seeds) > 1 else f"**one seed** ({seeds[0]})"


def name_commits(commits: list[str]) -> list[str]:
    """The commits that the history has."""
    there = sorted({commit[:10] for commit in commits if commit[:10] not in UNREACHABLE and commit not in UNREACHABLE})
    return [f"commit{'s' if len(there) > 1 else ''} {list_all(there)}"] if there else []


def collect(content: Any, key: str) -> Iterator[Any]:
    """All values of a name, wherever they are."""
    if isinstance(content, dict):
        here = content.get(key, [])
        yield from here if isinstance(here, list) else [here]
        content = list(content.values())
    for part in content if isinstance(content, list) else []:
        yield from collect(part, key)


def list_all(values: list[Any]) -> str:
    """Values with commas between; whole numbers in a row as a range."""
    whole = all(isinstance(value, int) for value in values)
    if whole and len(values) > 3 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


# ---- Documents ----


def fill_tables(document: str, page: Path) -> str:
    """A document with the tables that it names."""

    def make(found: re.Match[str]) -> str:
        template = (TEMPLATES / f"{found[1]}.md").read_text()
        parts = (f"<!-- table: {found[1]} -->", fill(template).strip(), name_sources(template, page), "<!-- end -->")
        return "\n\n".join(parts)

    return TABLE.sub(make, document)


def read_sentences(page: Path) -> list[str]:
    """The sentences with figures that a page has, as they have to read."""
    parts = re.split(r"^# (\S+)\n", SENTENCES.read_text(), flags=re.MULTILINE)
    of_pages = dict(zip(parts[1::2], parts[2::2]))
    return [fill(line) for line in of_pages.get(page.relative_to(ROOT).as_posix(), "").splitlines() if line]


def uncited(document: str, sentences: Sequence[str] = ()) -> list[str]:
    """The decimal numbers of a document that nothing names, outside code, links, and numbers of tables."""
    text = " ".join(GENERATED.sub(" ", document).split())
    for sentence in sentences:
        text = text.replace(sentence, " ")
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", text, flags=re.DOTALL)
    number = r"\d+(\.\d+)*"
    text = re.sub(rf"\b(Tables?|Figs?\.|Eqs?\.|secs?\.|Alg\.) ?{number}((,| and| to) {number})*", " ", text)
    text = re.sub(rf"\b([Vv]ersion|FLARE|Python|B[Yy])\s+{number}|\b(arXiv|doi):[^\s\]]+", " ", text)
    return re.findall(r"(?<![\w.])(?<![A-Za-z]-)\d+\.\d+(?!\w|\.\d)", text)


def main() -> None:
    """Fills in the tables of all documents."""
    for path in DOCUMENTS:
        try:
            path.write_text(fill_tables(path.read_text(), path))
        except CitationError as error:
            sys.exit(f"{path.relative_to(ROOT)}: {error}")


if __name__ == "__main__":
    main()
