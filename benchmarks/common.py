# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripts share: finished cells, what belongs beside a measured figure, processes of their own.

A finished cell is a line of ``cells.jsonl.xz``, a JSON object. A cell is measured in a folder of its own, which holds
the run's models too. What a report needs of it is then added to the file. The same cells always give the same bytes.
``xzcat cells.jsonl.xz`` shows them. The files of all results that are kept lie in ``results/cells.zip``.
"""

from __future__ import annotations

import fcntl
import json
import lzma
import os
import platform
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from plans import PLANS, Plan
from plans.plan import FIGURES
from torch.nn import Module

from cfl_flare.engine.initial_models import initial_models
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.methods import Participant
from cfl_flare.results.run_dir import load_run

# ---- Cells ----


FILE = "cells.jsonl.xz"
FACTS, AFTER = "cell.json", "after.json"  # in a cell's folder, beside what the run left
SUMMARY_KEYS = ("model", "training", "data", "run", "bytes_down", "bytes_up")
ROUND_KEYS = {"round", *(figure.key for figure in FIGURES.values())}


@dataclass(frozen=True)
class Cell:
    """What a report needs of a finished cell.

    Attributes:
        name: of its folder, below that of all cells.
        facts: what was run, by which commit, and what it cost.
        summary: settings and traffic, from the run's ``summary.json``.
        rounds: the figures of each round.
        after: what the plan measured once the run was done.
    """

    name: str
    facts: dict[str, Any]
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    after: dict[str, Any]

    @property
    def plan(self) -> Plan:
        """Its plan; the first cells did not say it."""
        return PLANS[self.facts.get("plan", "family")]


def load_cell(cells: Path, name: str) -> Cell:
    """Reads a finished cell from its own folder."""
    folder = cells / name
    run, after = load_run(folder), folder / AFTER
    return Cell(
        name,
        json.loads((folder / FACTS).read_text()),
        {key: run.summary[key] for key in SUMMARY_KEYS},
        [{key: value for key, value in line.items() if key in ROUND_KEYS} for line in run.rounds],
        json.loads(after.read_text()) if after.exists() else {},
    )


def read_cells(cells: Path | zipfile.Path) -> list[Cell]:
    """The finished cells of a folder, sorted by partition and name; none if it has no such file."""
    if not (cells / FILE).exists():
        return []
    return [Cell(**json.loads(line)) for line in lzma.decompress((cells / FILE).read_bytes()).splitlines()]


def packed_cells(cells: Iterable[Cell]) -> bytes:
    """The file of these cells, of which a later one takes the place of an older one of its name."""
    by_name = {cell.name: cell for cell in cells}
    ordered = sorted(by_name.values(), key=lambda cell: cell.name.split("/"))
    return lzma.compress("".join(json.dumps(asdict(cell)) + "\n" for cell in ordered).encode())


def add_cells(cells: Path, new: Iterable[Cell]) -> None:
    """Adds finished cells to a folder's file, each in place of an older one of its name.

    Other processes may do the same; a process that is killed leaves the file as it was.
    """
    cells.mkdir(parents=True, exist_ok=True)
    folder = os.open(cells, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        write(cells / FILE, packed_cells([*read_cells(cells), *new]))
    finally:
        os.close(folder)


def write(path: Path, content: bytes) -> None:
    """Writes a file that is never seen half-written, not even after a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, content: Any, indent: int | None = None) -> None:
    """The same for JSON."""
    write(path, json.dumps(content, indent=indent).encode())


# ---- Where a figure comes from ----


@cache
def commit() -> str:
    """The commit that is checked out where this file lies, when it is first asked for.

    ``$CFL_COMMIT`` says it where the files are without their repository.
    """
    return os.environ.get("CFL_COMMIT") or git("describe", "--always", "--dirty", "--abbrev=10", "--exclude=*")


def provenance() -> dict[str, Any]:
    """Command, commit and machine."""
    from torch import __version__

    return {
        # Without the folders of this machine, and quoted, so that it can be typed.
        "command": shlex.join(
            ["python", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv)]
        ),
        "commit": git("rev-parse", "HEAD"),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "torch": str(__version__)},
    }


def git(*arguments: str) -> str:
    """What git says of the folder of this file."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def save_rows(out: Path, made_by: Mapping[str, Any], **tables: Sequence[Mapping[str, Any]]) -> None:
    """Writes what made the tables, and the tables, each row on a line of its own; the file is whole at any time."""
    parts = [f'"{key}": {json.dumps(value)}' for key, value in made_by.items()]
    for key, rows in tables.items():
        inner = ",\n  ".join(map(json.dumps, rows))
        parts.append(f'"{key}": [\n  {inner}\n ]')
    temporary = out.with_name(out.name + ".tmp")
    temporary.write_text("{\n " + ",\n ".join(parts) + "\n}\n")
    temporary.replace(out)


def measure_missing(
    out: Path,
    wanted: Iterable[Mapping[str, Any]],
    measure: Callable[..., dict[str, Any]],
    summarize: Callable[[list[dict[str, Any]]], Mapping[str, list[dict[str, Any]]]],
    **made_by: Any,
) -> None:
    """Measures the rows that a file does not have yet, and writes the file after each of them.

    Args:
        out: a JSON file with the table ``rows``, and those of the summary.
        wanted: what tells each row from the others. ``measure`` takes it by keyword.
        measure: returns what is measured of a row.
        summarize: returns tables that follow from all rows, by name.
        made_by: further facts about the file.
    """
    made = provenance() | made_by  # of the code that is loaded, whatever is committed meanwhile
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    for key in wanted:
        if any(all(row.get(name) == value for name, value in key.items()) for row in rows):
            continue
        rows.append({**key, **measure(**key), "commit": made["commit"]})
        print(json.dumps(rows[-1]), flush=True)
        save_rows(out, made, **summarize(rows), rows=rows)


# ---- Runs round by round ----


def build_server(site: Site, make_model: Callable[[], Module], settings: ServerSettings, seed: int) -> Server:
    """Builds the server of a run whose participants are all hosted at one site, each as a site of its own name."""
    participants = [
        Participant(name, name, site.samples(name), data.group, len(data.test) > 0)
        for name, data in site.hosted.items()
    ]
    layout = site.runtime.division.public
    initial = initial_models(site.method, make_model, layout, seed, None)
    state = site.method.start(initial, list(site.hosted))
    return Server(site.method, layout, participants, settings, state)


# ---- Processes: a peak of memory never falls, and FLARE starts once a process ----


MARK = "FOUND "


def tell(facts: Mapping[str, Any]) -> None:
    """What such a process says of its measurement."""
    print(MARK + json.dumps(facts), flush=True)


def told(output: str, errors: str = "") -> dict[str, Any]:
    """What it said; other lines may stand around it.

    Raises:
        SystemExit: it told nothing; with the end of what it said instead.
    """
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if not lines:
        sys.exit(f"a measurement failed: {output[-2000:]}{errors[-2000:]}")
    return json.loads(lines[0].removeprefix(MARK))


def in_own_process(script: str, *arguments: object, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a script that measures one thing; see `told`."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    return told(done.stdout, done.stderr)
