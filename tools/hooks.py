# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the site takes from the code and from the reports, so that nobody types it twice.

A page asks for it by a comment on a line of its own:

- ``<!-- settings: wecfl -->``: a table of a method's, a combination's or a penalty's own settings, by name, or of any
  other class's, by its dotted path. ``<!-- settings: all wecfl -->`` includes those that every method has.
- ``<!-- registry: package.NAMES -->``: what a registry holds, with the settings of each.
- ``<!-- measured: wecfl -->``: a method's or a penalty's rows in the reports of `benchmarks/results`.
- ``<!-- help: all -->``: a section for each command with its help and all options. Only the site shows it.

``python tools/hooks.py`` writes the others into the pages below the comments, and fills in the tables of
`benchmarks/cited.py`; a test holds them current.

Pages may link to files of the repository outside ``docs``: those that are part of the site (`OUTSIDE`) are linked
there, others are named. Reports are written for the site, from the cells of `benchmarks/results`.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import posixpath
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from griffe import Docstring, DocstringSectionKind
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from cfl_flare.cli import parser
from cfl_flare.cli.options import Parser
from cfl_flare.core.config import parse_spec
from cfl_flare.core.settings import Setting as Stated
from cfl_flare.core.settings import settings_of as stated
from cfl_flare.methods import COMBINATIONS, METHODS, PENALTIES, Combination, Method, Penalty

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import cited
from reports import BUILT, write_all

log = logging.getLogger("mkdocs.hooks.cfl_flare")
ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = str(ROOT / "benchmarks")
# What the site shows of the repository beside its docs.
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "ROADMAP.md",
    "CODE_OF_CONDUCT.md",
    "examples/*/README.md",
    "benchmarks/results/*/*.md",
    "benchmarks/results/**/*.json",
    "benchmarks/results/**/*.jsonl",
    "docs/images/*.png",
)
REPORTS = (
    *("paired", "digits", "shared-sets", "family-cifar10", "blood", "private"),
    "feddsmic",
    *("rotations", "rotations-eight", "later-digits", "later-blood"),
)
COLUMNS = (
    "rounds",
    "participants",
    "seeds",
    "accuracy",
    "sound labels",
    "macro-F1",
    "worst",
    "worst tenth",
    "bottom",
    "unseen",
    "ARI",
    "ARI of the first clustering",
    "ARI of the last",
)
# What a comment asks for stands below it, up to the comment `END`, so that whoever reads the file has it, too.
END = "<!-- end -->"
MARK = re.compile(
    rf"^<!-- (settings|registry|measured): (.+?) -->$(?:\n(?:(?!^<!-- \w+: ).)*?^{END}$)?",
    re.MULTILINE | re.DOTALL,
)
HELP = re.compile(rf"^<!-- help: (.+?) -->\n{END}$", re.MULTILINE)
API = re.compile(r"^- `(cfl_flare[\w.]*)`$", re.MULTILINE)
REPORT = re.compile(r"`(benchmarks/results/[\w./-]+)`")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and pictures that lie outside ``docs``, or are written for the site."""
    if BENCHMARKS not in sys.path:  # MkDocs takes it away after it has loaded this module
        sys.path.insert(0, BENCHMARKS)
    write_all()
    for folder in (ROOT, BUILT):
        for path in (path for pattern in OUTSIDE for path in sorted(folder.glob(pattern))):
            base = folder / "docs" if path.is_relative_to(folder / "docs") else folder
            name = path.relative_to(base).as_posix()
            if not files.get_file_from_path(name):
                files.append(File(name, str(base), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in what a page asks for, and turns the repository's links into the site's."""
    whole = with_help(filled(markdown))
    if page.file.src_uri == "api/index.md":
        whole = API.sub(r"\n::: \1\n", whole)
    linked = LINK.sub(lambda found: _link(found, page.file, files), whole)
    return REPORT.sub(lambda found: _link_report(found, page.file, files), linked)


def filled(markdown: str) -> str:
    """A page with what it asks for, as the code and the reports have it now."""
    return MARK.sub(lambda m: f"<!-- {m[1]}: {m[2]} -->\n\n{MAKERS[m[1]](m[2]).strip()}\n\n{END}", markdown)


def with_help(markdown: str) -> str:
    """A page with the help of the commands that it names."""
    return HELP.sub(lambda m: f"<!-- help: {m[1]} -->\n\n{command_help(m[1])}\n\n{END}", markdown)


def _link(found: re.Match[str], file: File, files: Files) -> str:
    """A link to a file of the repository, as one of the site's; just its text where the site does not have it."""
    image, text, target, anchor = found[1], found[2], found[3], found[4] or ""
    inside = Path(file.src_dir or "") not in (ROOT, BUILT)
    there = posixpath.normpath(posixpath.join("docs" * inside, posixpath.dirname(file.src_uri), target))
    page = there.removeprefix("docs/")
    if there.startswith("docs/") or files.get_file_from_path(page):
        return f"{image}[{text}]({posixpath.relpath(page, posixpath.dirname(file.src_uri))}{anchor})"
    if not (ROOT / there).exists():
        return found[0]  # MkDocs reports it
    return text if text.strip("`") == there else f"{text} (`{there}`)"


def _link_report(found: re.Match[str], file: File, files: Files) -> str:
    """A link to a report that is named by its path: reports are only on the site."""
    if not files.get_file_from_path(found[1]):
        return found[0]
    return f"[{found[0]}]({posixpath.relpath(found[1], posixpath.dirname(file.src_uri))})"


def settings(name: str) -> str:
    """The table of what a name stands for."""
    everything = name.startswith("all ")
    name = name.removeprefix("all ")
    return _table(name, _shown_settings(_named(name), everything)) or "It has no settings of its own."


def registry(path: str) -> str:
    """A section for each entry."""
    entries: Mapping[str, Any] = _named(path)
    first = {id(entry): name for name, entry in reversed(list(entries.items()))}
    parts = []
    for name, entry in entries.items():
        other = first[id(entry)]
        text = _summary(entry) if other == name else f"Another name of `{other}`."
        parts.append(f"### `{name}`\n\n{text}\n\n{_table(name, settings_of(entry)) if other == name else ''}")
    return "\n\n".join(parts)


def _table(name: str, rows: Sequence[Setting]) -> str:
    """Settings as Markdown; one that nothing is said of is a warning, which fails a strict build."""
    for row in rows:
        if not row.text:
            log.warning("%s: the docstrings say nothing of the setting %s", name, row.name)
    lines = [f"| `{row.name}` | {_shown(row.default)} | {_cell(row.text)} |" for row in rows]
    return "\n".join(["| setting | default | what it does |", "|---|---|---|", *lines]) if lines else ""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A line of a table.

    Attributes:
        name: of the setting.
        default: `dataclasses.MISSING` if it must be given; a tuple with the defaults of several parts.
        text: what its docstring says.
    """

    name: str
    default: Any
    text: str


def settings_of(entry: Any) -> list[Setting]:
    """All settings of a class or a combination, in the order of its constructor."""
    if isinstance(entry, Combination):
        texts = {**_texts(entry.outer), **{k: v for cls in entry.inner for k, v in _texts(cls).items()}}
        texts = {entry.copies: "number of models", **texts} if entry.copies else texts
        return [Setting(name, default, texts.get(name, "")) for name, default in entry.settings().items()]
    texts, found = _texts(entry), []
    for name, parameter in inspect.signature(entry).parameters.items():
        if name not in ("input_shape", "num_classes"):
            default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
            found.append(Setting(name, default, texts.get(name, "")))
    return found


def _shown_settings(entry: Any, everything: bool) -> list[Setting]:
    """The settings that a table shows: without those of every method or penalty, where the default is the same."""
    base = next((cls for cls in (Method, Penalty) if inspect.isclass(entry) and issubclass(entry, cls)), None)
    base = Method if isinstance(entry, Combination) else base
    common = {} if everything or base in (None, entry) else {f.name: f.default for f in dataclasses.fields(base)}
    return [row for row in settings_of(entry) if row.name not in common or row.default != common[row.name]]


def _texts(cls: type) -> dict[str, str]:
    """What the fields and docstrings of a class and of those that it inherits from say of each setting."""
    texts: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        for part in Docstring(inspect.cleandoc(parent.__dict__.get("__doc__") or "")).parse("google", warnings=False):
            if part.kind in (DocstringSectionKind.attributes, DocstringSectionKind.parameters):
                texts |= {item.name: item.description for item in part.value}
    if dataclasses.is_dataclass(cls):
        texts |= {known.field: _help(known) for known in stated(cls).values()}
    return texts


def _help(known: Stated) -> str:
    """What a field says of itself, with its bounds, where the help does not name all choices."""
    told = known.bounds is None or (known.choices and all(str(choice) in known.help for choice in known.choices))
    return known.help if told or known.bounds is None else f"{known.help} ({known.bounds.text})"


def _named(name: str) -> Any:
    """What a method's or penalty's name, or a dotted path, stands for."""
    known = {**METHODS, **COMBINATIONS, **PENALTIES}
    if name in known:
        return known[name]
    module, _, member = name.rpartition(".")
    return getattr(import_module(module), member)


def _summary(entry: Any) -> str:
    return entry.summary if isinstance(entry, Combination) else (inspect.getdoc(entry) or "").split("\n\n")[0]


def _shown(default: Any) -> str:
    """A default as one writes it."""
    if default is dataclasses.MISSING:
        return "required"
    if isinstance(default, tuple):
        return ", ".join(f"`{value}`" for value in default) or "none"
    return f"`{default}`" if not isinstance(default, str) or default else "empty"


def _cell(text: str) -> str:
    """A docstring's text in a table's cell: pipes outside of code would end it."""
    parts = re.split(r"(``[^`]+``|`[^`]+`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("|", "&#124;") for part in parts)


def measured(name: str) -> str:
    """The rows of a method, without penalties, or of a penalty, one table a report."""
    tables = []
    for report in REPORTS:
        path = BUILT / "benchmarks" / "results" / report / f"{report}.md"
        title, rows = read_report(path)
        mine = [row for row in rows if name in row.names and (name in PENALTIES or not row.penalties)]
        if not mine:
            continue
        columns = [c for c in COLUMNS if any(row.cells.get(c, "-") != "-" for row in mine)]
        lines = [
            f"| {row.label} | {row.partition} | " + " | ".join(row.cells[c] for c in columns) + " |" for row in mine
        ]
        head = ["| row | partition | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
        tables.append("\n".join([f"[{title}](../results/benchmarks.md):\n", *head, *lines]))
    return "\n\n".join(tables) or "Not measured in a report of its own."


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a report.

    Attributes:
        label: what the report calls it.
        names: its method's name, and its penalties'.
        penalties: it has some.
        partition: how the data was dealt out.
        cells: by column.
    """

    label: str
    names: tuple[str, ...]
    penalties: bool
    partition: str
    cells: dict[str, str]


def read_report(path: Path) -> tuple[str, list[Row]]:
    """A report's title and rows.

    Args:
        path: a Markdown file that ``benchmarks/tables.py report`` wrote.
    """
    title, partition, header, rows, specs = "", "", [], [], {}
    for line in path.read_text().splitlines():
        if found := re.match(r"# .*: (.*)", line):
            title = found[1]
        elif found := re.match(r"- ([^ ]+): `([^`{]+)`$", line):
            specs[found[1]] = [parse_spec(spec)[0] for spec in found[2].split(" + ")]
        elif line.startswith("## "):
            partition = line[3:]
        elif line.startswith("| row |"):
            header = _cells(line)
        elif line.startswith("| ") and partition:
            cells = dict(zip(header, _cells(line)))
            label = cells["row"]
            names = tuple(specs[label.split()[0]])
            rows.append(Row(label, names, len(names) > 1, partition, cells))
    return title, rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def command_help(command: str) -> str:
    """What ``cfl-flare command --help`` prints, or ``--help-all`` of a command that has it; or all of them."""
    os.environ["COLUMNS"] = "100"
    commands = parser().commands()
    if command != "all":
        return write_help(commands[command])
    sections = [f"## cfl-flare {name}\n\n{write_help(known)}" for name, known in commands.items()]
    return "\n\n".join(sections)


def write_help(command: Parser) -> str:
    return f"```text\n{command.full_help().rstrip()}\n```"


MAKERS: dict[str, Callable[[str], str]] = {"settings": settings, "registry": registry, "measured": measured}


def main() -> None:
    """Writes into all pages what they ask for."""
    write_all()
    cited.main()
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text()
        if (now := filled(text)) != text:
            path.write_text(now)


if __name__ == "__main__":
    main()
