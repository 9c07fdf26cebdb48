# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Finished cells, all in one file: ``cells.jsonl.xz``, a JSON object a line and cell.

A cell is measured in a folder of its own, which holds the run's models too. What a report needs of it is then added to
the file. The same cells always give the same bytes. ``xzcat cells.jsonl.xz`` shows them.
"""

from __future__ import annotations

import fcntl
import json
import lzma
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plans import PLANS, Plan
from plans.figures import FIGURES

from cfl_flare.results.run_dir import load_run

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


def read_cells(cells: Path) -> list[Cell]:
    """The finished cells of a folder, sorted by partition and name; none if it has no such file."""
    if not (cells / FILE).exists():
        return []
    with lzma.open(cells / FILE, "rt", encoding="utf-8") as lines:
        return [Cell(**json.loads(line)) for line in lines]


def add_cells(cells: Path, new: Iterable[Cell]) -> None:
    """Adds finished cells to a folder's file, each in place of an older one of its name.

    Other processes may do the same; a process that is killed leaves the file as it was.
    """
    cells.mkdir(parents=True, exist_ok=True)
    folder = os.open(cells, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        by_name = {cell.name: cell for cell in (*read_cells(cells), *new)}
        ordered = sorted(by_name.values(), key=lambda cell: cell.name.split("/"))
        text = "".join(json.dumps(asdict(cell)) + "\n" for cell in ordered)
        write(cells / FILE, lzma.compress(text.encode()))
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
