# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run while it runs: what its files hold so far, read again and again as they grow.

The files may be half-written, replaced by shorter ones, moved away or another program's. What cannot be read is left
out and counted, and what was read before stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from cfl_flare.core.config import require
from cfl_flare.core.errors import FileError
from cfl_flare.core.files import MOST_JSON, MOST_LINES, below, is_unheld, open_regular, parse_json, read_json
from cfl_flare.results import run_dir, schema
from cfl_flare.results.job_record import ATTEMPT, ATTEMPT_FIELDS, ATTEMPT_OPTIONAL
from cfl_flare.results.metrics import Metric, leading
from cfl_flare.results.run_dir import ASSIGNMENTS, HISTORY, ROUNDS, STARTED, SUMMARY

# What is in the folder of a run, finished or not.
RUN_FILES = (SUMMARY, ROUNDS, STARTED, ATTEMPT)


class Tail:
    """The complete lines of a JSON Lines file, each once. Arguments are as for `cfl_flare.results.schema.checked`.

    Attributes:
        damaged: how many lines were left out.
        changed: when the file was last written, in seconds of `time.time`; None if it never was there.
        gone: whether it was there, and is no more.
    """

    def __init__(self, path: Path, needed: schema.Fields, others: schema.Fields | None = None):
        self.path, self.damaged, self.gone = path, 0, False
        self.changed: float | None = None
        self._check = partial(schema.checked, where=str(path), needed=needed, others=others)
        self._file, self._at = 0, 0

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The new lines, and whether the file began anew, so that earlier ones no longer hold."""
        lines: list[dict[str, Any]] = []
        try:
            with open_regular(self.path, MOST_LINES) as file:
                status = os.fstat(file.fileno())
                anew = status.st_ino != self._file or status.st_size < self._at
                if anew:
                    self._file, self._at, self.damaged = status.st_ino, 0, 0
                self.changed, self.gone = status.st_mtime, False
                file.seek(self._at)
                for line in iter(partial(file.readline, MOST_JSON + 1), b""):
                    if not line.endswith(b"\n"):
                        break
                    self._at += len(line)
                    try:
                        lines.append(self._check(parse_json(line, str(self.path))))
                    except FileError:
                        self.damaged += 1
        except OSError:  # a FileError is one
            self.gone = self.changed is not None
            return [], False
        return lines, anew


class _Live:
    """A folder that is read again and again; the first one of its files tells when a round was last recorded."""

    def __init__(self, folder: Path, *tails: Tail):
        self.folder, self._tails = folder, tails

    @property
    def gone(self) -> bool:
        """Whether its files were there, and are no more: FLARE moves them when a job ends."""
        return self._tails[0].gone

    @property
    def damaged(self) -> int:
        return sum(tail.damaged for tail in self._tails)

    @property
    def changed(self) -> float | None:
        """When the last round was recorded, in seconds of `time.time`; None before the first one."""
        return self._tails[0].changed


class LiveRun(_Live):
    """A run's folder, finished or not.

    Attributes:
        rounds: the lines of ``rounds.jsonl`` so far.
        moves: of the last round in which participants moved, by name: the cluster before and after it.
        moved_in: that round, from 0; None if nobody has moved.
        summary: ``summary.json``; None before the run has ended.
        failed: why it ended without one; None if it did not, or nobody knows.
        planned: the number of rounds; None if it is not known.
    """

    def __init__(self, folder: Path):
        self._rounds = Tail(folder / ROUNDS, run_dir.ROUND_FIELDS, run_dir.ROUND_OPTIONAL)
        self._assignments = Tail(folder / ASSIGNMENTS, run_dir.ASSIGNMENT_FIELDS)
        super().__init__(folder, self._rounds, self._assignments)
        self.rounds: list[dict[str, Any]] = []
        self.moves: dict[str, tuple[int, int]] = {}
        self.moved_in: int | None = None
        self.summary: dict[str, Any] | None = None
        self.failed: str | None = None
        self.planned: int | None = None
        self._label, self._wanted = "", list[Metric]()
        self._clusters: dict[str, int] = {}

    def refresh(self) -> None:
        started = _checked(self.folder / STARTED, run_dir.STARTED_FIELDS)
        if started is not None:
            self.planned, self._label = started["rounds"], started["label"]
            self._wanted = [Metric(**metric) for metric in started["metrics"]]
        new, anew = self._rounds.read()
        self.rounds = new if anew else [*self.rounds, *new]
        self._follow()
        if not self.gone:
            self.summary = _checked(self.folder / SUMMARY, run_dir.SUMMARY_FIELDS, run_dir.SUMMARY_OPTIONAL)
        if self.summary is None:
            job = _checked(self.folder / ATTEMPT, ATTEMPT_FIELDS, ATTEMPT_OPTIONAL) or {}
            died = started is not None and is_unheld(self.folder / STARTED)
            self.failed = job.get("reason") or ("its process is gone" if died else None)

    def _follow(self) -> None:
        lines, anew = self._assignments.read()
        if anew:
            self._clusters, self.moves, self.moved_in = {}, {}, None
        for line in lines:
            name, after = line["participant"], line["cluster"]
            if after is None:
                continue
            before = self._clusters.get(name, after)
            self._clusters[name] = after
            if before != after:
                if self.moved_in != line["round"]:
                    self.moves, self.moved_in = {}, line["round"]
                self.moves[name] = (before, after)

    @property
    def label(self) -> str:
        return str(self._label or (self.summary or {}).get("label", ""))

    @property
    def finished(self) -> bool:
        """Whether its summary, which is written last, is there, or it failed."""
        return self.summary is not None or self.failed is not None

    @property
    def metric(self) -> Metric:
        """By which the run is judged, as far as that is known."""
        if self.summary is not None and "metric" in self.summary:
            return Metric(**self.summary["metric"])
        start = "served_worst_"
        ranked = (key.removeprefix(start) for line in self.rounds for key in line if key.startswith(start))
        return leading(self._wanted, [*dict.fromkeys(ranked)])


class LiveSite(_Live):
    """A site's own folder of a run; ``notes`` are the lines of ``history.jsonl`` so far."""

    def __init__(self, folder: Path):
        self._history = Tail(folder / HISTORY, run_dir.NOTE_FIELDS)
        super().__init__(folder, self._history)
        self.notes: list[dict[str, Any]] = []

    def refresh(self) -> None:
        new, anew = self._history.read()
        self.notes = new if anew else [*self.notes, *new]

    @property
    def finished(self) -> bool:
        """Whether the run's final models were measured; a job that was aborted never gets there."""
        return bool(self.notes) and bool(self.notes[-1]["last"])


Watched = LiveRun | LiveSite


def _checked(path: Path, needed: schema.Fields, others: schema.Fields | None = None) -> dict[str, Any] | None:
    """A JSON file's object; None if there is none that passes its checks."""
    try:
        return schema.checked(read_json(path), str(path), needed, others)
    except OSError:
        return None


def find_live(folder: Path) -> list[Path]:
    """The folders of runs and of sites' histories in a folder and below it, sorted; finished or not."""
    require(folder.is_dir(), f"{folder} is not a folder; name that of a run, or one with runs below it")
    names = {*RUN_FILES, HISTORY}
    if any((folder / name).is_file() for name in names):
        return [folder]
    return sorted({path.parent for path in below(folder) if path.name in names})


def live(folder: Path) -> Watched:
    return LiveRun(folder) if any((folder / name).is_file() for name in RUN_FILES) else LiveSite(folder)


def numbers(lines: list[dict[str, Any]], *keys: str) -> Iterator[float | None]:
    """A number of each line, which may lie deeper than its first level; None if there is none."""
    for line in lines:
        value: Any = line
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        yield float(value) if schema.number(value) and abs(value) < float("inf") else None
