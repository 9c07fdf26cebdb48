# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of a job that left no results: which sites answered, why it ended, what FLARE says of it.

The server writes ``job.json`` while a job goes on, as FLARE may end it from outside at any time. A run's summary
takes its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cfl_flare.core.errors import FileError
from cfl_flare.core.files import atomic_write, below, make_folder, read_json, read_text
from cfl_flare.core.text import plain
from cfl_flare.results import schema
from cfl_flare.results.missed import missed_rounds
from cfl_flare.results.run_dir import ROUNDS, STARTED, SUMMARY, read_lines

ATTEMPT = "job.json"
FIELDS: Mapping[str, schema.Fits] = {"name": schema.text, "checked_in": schema.flag, "sites": schema.named(schema.text)}
OPTIONAL: Mapping[str, schema.Fits] = {"reason": schema.text}
READY, SILENT, STARTING = "ready", "its job process gave no sign", "it has not answered"
ENDED = "its job process ended, and FLARE ends the job for it"
# What FLARE writes beside a job's results, and into the server's log where a kit does not allow a class.
META, ERRORS = "meta.json", "error_log.txt"
REFUSED = re.compile(r"Component '([\w.]{1,200})' at config path \S{1,200} is not in allow_list")
WIDE, NAMED = 500, 20
PREPARE = "A kit that is not prepared, or does not allow a class of the job, does that: cfl-flare site check --kit KIT"


class Attempt:
    """Writes what is known of a job; what cannot be written ends no job.

    Args:
        folder: the run's; None writes nothing.
        name: the job's.
    """

    def __init__(self, folder: Path | None = None, name: str = ""):
        self._path, self._name, self._checked_in = folder and folder / ATTEMPT, name, False
        self.sites: dict[str, str] = {}

    def hear(self, site: str) -> None:
        """A site that has given no sign of life gives one."""
        if self.sites.get(site) == SILENT:
            self.note({site: STARTING})

    def note(self, sites: Mapping[str, str], checked_in: bool = False) -> None:
        """What became of some sites; with ``checked_in``, rounds follow."""
        self.sites |= sites
        self._checked_in |= checked_in
        self._write()

    def end(self, reason: str) -> None:
        """Why the job ends without results."""
        self._write(reason=plain(reason, schema.LONGEST))

    def done(self) -> None:
        """There are results."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self, **ended: str) -> None:
        content = {"name": self._name, "checked_in": self._checked_in, "sites": self.sites, **ended}
        if self._path is not None:
            with suppress(FileError):
                make_folder(self._path.parent)
                atomic_write(self._path, json.dumps(content, indent=1))


def ended_for(folder: Path) -> str | None:
    """Why a run ended without results; None if that is not known."""
    try:
        content = schema.checked(read_json(folder / ATTEMPT), ATTEMPT, FIELDS, OPTIONAL)
    except OSError:
        return None
    return content.get("reason")


def unfinished(folder: str | Path) -> list[str]:
    """What is known of the jobs in a folder, or below it, that left no results: lines of text.

    Args:
        folder: a run's, or a job's as FLARE's ``download`` leaves it.

    Raises:
        FileError: there are too many files to look at.
    """
    files = sorted(below(Path(folder)))
    lines = [line for path in files if path.name in (ATTEMPT, STARTED) for line in _of_run(path)]
    for path in files:
        if path.name == META:
            lines += _of_meta(path)
        elif path.name == ERRORS:
            lines += _of_errors(path)
    return list(dict.fromkeys(plain(line, WIDE) for line in lines))


def _of_run(path: Path) -> list[str]:
    """Of one run's folder: how far it got, why it ended, and its sites."""
    folder, said = path.parent, {}
    if (folder / SUMMARY).is_file() or (path.name == STARTED and (folder / ATTEMPT).is_file()):
        return []
    try:
        started = read_json(folder / STARTED) if (folder / STARTED).is_file() else {}
        rounds = read_lines(folder / ROUNDS)
        if path.name == ATTEMPT:
            said = schema.checked(read_json(path), str(path), FIELDS, OPTIONAL)
    except FileError as error:
        return [str(error)]
    planned = started.get("rounds") if isinstance(started, dict) else None
    of = f" of {planned}" if schema.whole(planned) else ""
    where = f"after {len(rounds)}{of} rounds" if rounds or said.get("checked_in", True) else "in its check of the sites"
    name = said.get("name", folder.name)
    lines = [
        f"{name}: no results; it ended {where}: {said['reason']}" if "reason" in said else f"{name}: no results {where}"
    ]
    sites = said.get("sites", {})
    lines += [f"- {site}: {what}" for site, what in sites.items() if what != READY][:NAMED]
    lines += [
        f"- {who}: missed {m.rounds} of {m.asked} rounds: {m.reason}" for who, m in missed_rounds(rounds).items()
    ][:NAMED]
    silent = "reason" not in said and SILENT in sites.values()
    return [*lines, f"- {PREPARE}"] if silent or ENDED in sites.values() else lines


def _of_meta(path: Path) -> list[str]:
    """What FLARE's record of the job says of its end, and of the sites where it could not be deployed."""
    try:
        content = read_json(path)
    except FileError:
        return []
    status, detail = (
        (content.get(key) for key in ("status", "job_deploy_detail")) if isinstance(content, dict) else (0, 0)
    )
    odd = isinstance(status, str) and status.startswith("FINISHED") and status != "FINISHED:COMPLETED"
    lines = [f"FLARE: {status}"] if odd else []
    detail = detail if isinstance(detail, list) else []
    return lines + [f"- {one}" for one in detail if isinstance(one, str) and not one.endswith(": OK")][:NAMED]


def _of_errors(path: Path) -> list[str]:
    """What the server's errors say of its own kit."""
    try:
        refused = REFUSED.search(read_text(path))
    except FileError:
        return []
    way_out = "let its operator run: cfl-flare site prepare SERVER-KIT"
    return [f"the server's kit does not allow {refused[1]}; {way_out}"] if refused else []
