# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Records of jobs: a site's, of all in which it took part, and the server's, of one that left no results.

A site's operator reads the former. It is append-only, JSON Lines, one file for all jobs of a site, and says who was
together in which means. From means over sets of sites, those over few sites follow by subtraction. So the site refuses
a set from which such a mean would follow, with the sets of its earlier jobs. The site writes what a job is about to
reveal before it is revealed. A record that cannot be read or written ends the site's part in the job.

The server writes the latter, ``job.json``, while a job goes on, as FLARE may end it from outside at any time. A run's
summary takes its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cfl_flare.core import files
from cfl_flare.core.errors import DifferenceError, FileError
from cfl_flare.core.shares import exposed
from cfl_flare.core.text import plain
from cfl_flare.results import schema
from cfl_flare.results.remarks import missed_rounds
from cfl_flare.results.run_dir import ROUNDS, STARTED, SUMMARY, read_lines

# In the state root. No run has such a name.
FOLDER = "_jobs"
JOB, MEAN, ROUND, ALLOW = "job", "mean", "round", "allow"
# Of a study's round: the samples that its verdict is of.
TEST = "test"
SETS: schema.Fields = {"data": schema.text, "sites": schema.list_of(schema.text)}
# The kinds of lines, and what each must say; a line may say more.
KINDS: Mapping[str, schema.Fields] = {
    JOB: {"name": schema.text, "refused": schema.flag, "sampled": schema.flag, **SETS},
    MEAN: SETS,
    ROUND: {"round": schema.count, "answered": schema.count},
    ALLOW: {"sampled": schema.flag, **SETS},
}

ATTEMPT = "job.json"
ATTEMPT_FIELDS: schema.Fields = {
    "name": schema.text,
    "checked_in": schema.flag,
    "sites": schema.dict_of(schema.text),
}
ATTEMPT_OPTIONAL: schema.Fields = {"reason": schema.text}
READY, SILENT, STARTING = "ready", "its job process gave no sign", "it has not answered"
ENDED = "its job process ended, and FLARE ends the job for it"
# What FLARE writes beside a job's results, and into the server's log if a kit does not allow a class.
META, ERRORS = "meta.json", "error_log.txt"
REFUSED = re.compile(
    r"Component '([\w.]{1,200})' at config path \S{1,200} is not in allow_list"
)
# The longest line on a job, and the most sites that have one.
WIDE, NAMED = 500, 20
PREPARE = "A kit that is not prepared, or does not allow a class of the job, does that: cfl-flare site check --kit KIT"


class JobRecord:
    """One site's record, below the state root."""

    def __init__(self, root: Path, site: str):
        self.site, self.file = site, root / FOLDER / f"{site}.jsonl"

    @classmethod
    def all_below(cls, root: Path) -> list[JobRecord]:
        return [
            cls(root, file.stem) for file in sorted((root / FOLDER).glob("*.jsonl"))
        ]

    def lines(self) -> list[dict[str, Any]]:
        """All lines, oldest first; a `FileError` says which is damaged, or that the file cannot be read."""
        texts = (
            files.read_text(self.file, files.MOST_LINES).split("\n")
            if self.file.exists()
            else []
        )
        lines = []
        for number, text in enumerate(
            texts[:-1] if texts[-1:] == [""] else texts, start=1
        ):
            where = f"{self.file}: line {number}"
            line = files.parse_json(text, where)
            kind = str(line.get("kind")) if isinstance(line, dict) else ""
            fields = KINDS.get(kind, {"kind": lambda kind: str(kind) in KINDS})
            needed = {"job": schema.text, "time": schema.text, **fields}
            lines.append(schema.checked(line, where, needed))
        return lines

    def join(
        self,
        job: str,
        sites: Collection[str],
        floor: int,
        sampled: bool,
        facts: Mapping[str, Any],
    ) -> None:
        """Writes that the site is about to take part in means over these sites, unless too much would follow of few.

        Sets of the same job are not held against each other: sites come and go in its course, and models move.

        Args:
            job: its id.
            floor: the fewest sites of which a mean may follow; 1 lets everything follow.
            sampled: each round takes some of them, so that many sets are averaged.
            facts: on the job, with its ``name`` and the ``data`` that it reads.

        Raises:
            DifferenceError: a mean over fewer than ``floor`` sites would follow; the operator has not allowed it.
            FileError: the record cannot be read or written.
        """
        names = sorted(sites)
        with files.locked(self.file):
            lines = self.lines()
            data = {
                facts["data"],
                "",
            }  # what the operator does not name may be the same
            same = [
                line
                for line in lines
                if line["kind"] != ROUND and (line["data"] in data or data == {""})
            ]
            allowed = any(
                line["kind"] == ALLOW
                and (line["sites"], line["sampled"]) == (names, sampled)
                for line in same
            )
            others = [
                line for line in same if not line.get("refused") and line["job"] != job
            ]
            try:
                why = None if allowed else _too_much(names, others, floor, sampled)
            except DifferenceError as error:  # nobody knows
                why = str(error)
            new = {
                **facts,
                "sites": names,
                "sampled": sampled,
                "refused": why is not None,
            }
            if not any(
                old["job"] == job and old["kind"] == JOB and {**old, **new} == old
                for old in lines
            ):
                self._write(JOB, job, **new)
        if why is not None:
            way_out = f"run 'cfl-flare site allow {job}', and let its author submit it again with another seed"
            refused = f"job {facts['name']} ({job}) of {', '.join(names)}: {why}"
            raise DifferenceError(
                f"{refused}. If the hospitals agree to that, {way_out}"
            )

    def note(self, kind: str, job: str, **fields: Any) -> None:
        """Appends a line: `ROUND` before the site works in one, `MEAN` if fewer sites were averaged than planned."""
        with files.locked(self.file):
            self._write(kind, job, **fields)

    def allow(self, job: str) -> bool:
        """Writes that the operator allows the sets of sites of a refused job, now and later. False if there is none.

        ``job`` is its id, or the beginning of it. A name is its author's, who may have given it to several.
        """
        with files.locked(self.file):
            refused = [
                line
                for line in self.lines()
                if line.get("refused") and line["job"].startswith(job)
            ]
            for line in refused:
                self._write(
                    ALLOW, line["job"], **{key: line[key] for key in KINDS[ALLOW]}
                )
        return bool(refused)

    def jobs(self) -> list[dict[str, Any]]:
        """Its jobs, oldest first, each with the ``decision``, and in how many rounds the site ``answered``."""
        lines = self.lines()
        allowed = {line["job"] for line in lines if line["kind"] == ALLOW}
        rounds: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            if line["kind"] == ROUND:
                rounds.setdefault(line["job"], []).append(line)
        jobs = []
        for line in (line for line in lines if line["kind"] == JOB):
            reached = rounds.get(line["job"], [])
            answered = reached[-1]["answered"] if reached else 0
            decision = "ended" if has_ended(line, reached) else "begun"
            if line["refused"]:
                decision = "allowed" if line["job"] in allowed else "refused"
            jobs.append(
                {**line, "site": self.site, "answered": answered, "decision": decision}
            )
        return jobs

    def _write(self, kind: str, job: str, **fields: Any) -> None:
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        files.append(
            self.file,
            json.dumps({"kind": kind, "job": job, "time": time, **fields}) + "\n",
        )


def has_ended(job: Mapping[str, Any], rounds: Collection[Mapping[str, Any]]) -> bool:
    """Whether a site has seen the end of a job.

    Args:
        job: its line in the record, with the ``rounds`` of a run, and how many ``runs`` there are; None in a study.
        rounds: the lines of its rounds.
    """
    runs = job.get("runs", 1)
    if (
        runs is None
    ):  # a study ends with the test samples of those candidates that are left
        return any(line.get("split") == TEST for line in rounds)
    finished = {
        line.get("run") for line in rounds if line["round"] == job.get("rounds")
    }
    return len(finished) >= runs


def describe_rounds(job: Mapping[str, Any]) -> str:
    """The rounds in which a site answered, beside those that the job has.

    >>> describe_rounds({"answered": 3, "rounds": 20}), describe_rounds({"answered": 30, "rounds": 20, "runs": 2})
    ('3 of 20', '30 of 40')
    >>> describe_rounds({"answered": 150, "rounds": 20, "runs": None})
    '150, at most 20 a candidate'
    """
    rounds, runs = job.get("rounds"), job.get("runs", 1)
    if not isinstance(rounds, int):
        return f"{job['answered']} of ?"
    if runs is None:
        return f"{job['answered']}, at most {rounds} a candidate"
    return f"{job['answered']} of {rounds * runs}"


def _too_much(
    sites: list[str], others: Collection[Mapping[str, Any]], floor: int, sampled: bool
) -> str | None:
    """Why a set of sites cannot be averaged beside those of other jobs; None if it can."""
    if floor > 1 and sampled:
        return "each round takes some of them (sample), so that the rounds' models give those of single sites"
    sets = {frozenset(line["sites"]) for line in others}
    jobs: dict[
        str, set[str]
    ] = {}  # by their authors' choice, whoever missed a round or came late
    for old in others:
        jobs.setdefault(old["job"], set()).update(
            old["sites"] if old["kind"] != MEAN else ()
        )
    groups: set[frozenset[str]] = set()
    for known in (
        {frozenset(sets), frozenset(map(frozenset, jobs.values()))} if floor > 1 else ()
    ):
        groups |= exposed(known | {frozenset(sites)}, floor) - exposed(known, floor)
    if not groups:
        return None
    few = min(groups, key=lambda group: (len(group), sorted(group)))
    line = min(others, key=lambda line: len({*line["sites"]} ^ {*sites}), default=None)
    with_job = ""
    if line is not None:
        with_job = f", as with those of job {line.get('name', '')} ({line['job']}) of {line['time']}"
    return f"the model of {', '.join(sorted(few))} alone follows by subtraction{with_job}; {floor} sites are asked for"


class Attempt:
    """Writes what is known of a job into a run's folder, if it has one; a file that cannot be written ends no job."""

    def __init__(self, folder: Path | None = None, name: str = ""):
        self._path, self._name, self._checked_in = (
            folder and folder / ATTEMPT,
            name,
            False,
        )
        self.sites: dict[str, str] = {}

    def hear(self, site: str) -> None:
        """A site that has given no sign of life gives one."""
        if self.sites.get(site) == SILENT:
            self.note({site: STARTING})

    def note(self, sites: Mapping[str, str], checked_in: bool = False) -> None:
        """Writes what became of some sites; with ``checked_in``, rounds follow."""
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
        content = {
            "name": self._name,
            "checked_in": self._checked_in,
            "sites": self.sites,
            **ended,
        }
        if self._path is not None:
            with suppress(FileError):
                files.make_folder(self._path.parent)
                files.atomic_write(self._path, json.dumps(content, indent=1))


def unfinished(folder: str | Path) -> list[str]:
    """What is known of the jobs in a folder, or below it, that left no results: lines of text.

    The folder is a run's, or a job's as FLARE's ``download`` leaves it.
    """
    paths = sorted(files.below(Path(folder)))
    lines = [
        line
        for path in paths
        if path.name in (ATTEMPT, STARTED)
        for line in _of_run(path)
    ]
    for path in paths:
        if path.name == META:
            lines += _of_meta(path)
        elif path.name == ERRORS:
            lines += _of_errors(path)
    return list(dict.fromkeys(plain(line, WIDE) for line in lines))


def _of_run(path: Path) -> list[str]:
    """How far a run got, why it ended, and its sites."""
    folder = path.parent
    if (folder / SUMMARY).is_file() or (
        path.name == STARTED and (folder / ATTEMPT).is_file()
    ):
        return []
    job: dict[str, Any] = {}
    try:
        started = (
            files.read_json(folder / STARTED) if (folder / STARTED).is_file() else {}
        )
        rounds = read_lines(folder / ROUNDS)
        if path.name == ATTEMPT:
            job = schema.checked(
                files.read_json(path), str(path), ATTEMPT_FIELDS, ATTEMPT_OPTIONAL
            )
    except FileError as error:
        return [str(error)]
    planned = started.get("rounds") if isinstance(started, dict) else None
    of = f" of {planned}" if schema.count(planned) else ""
    where = (
        f"after {len(rounds)}{of} rounds"
        if rounds or job.get("checked_in", True)
        else "in its check of the sites"
    )
    end = f"; it ended {where}: {job['reason']}" if "reason" in job else f" {where}"
    sites = job.get("sites", {})
    of_sites = [f"- {site}: {state}" for site, state in sites.items() if state != READY]
    missed = [
        f"- {who}: missed {times}" for who, times in missed_rounds(rounds).items()
    ]
    silent = "reason" not in job and SILENT in sites.values()
    way_out = [f"- {PREPARE}"] if silent or ENDED in sites.values() else []
    return [
        f"{job.get('name', folder.name)}: no results{end}",
        *of_sites[:NAMED],
        *missed[:NAMED],
        *way_out,
    ]


def _of_meta(path: Path) -> list[str]:
    """What FLARE's record of the job says of its end, and of the sites to which FLARE could not deploy it."""
    with suppress(FileError):
        content = files.read_json(path)
        if isinstance(content, dict):
            status, detail = content.get("status"), content.get("job_deploy_detail")
            odd = (
                isinstance(status, str)
                and status.startswith("FINISHED")
                and status != "FINISHED:COMPLETED"
            )
            texts = (
                [text for text in detail if isinstance(text, str)]
                if isinstance(detail, list)
                else []
            )
            refused = [f"- {text}" for text in texts if not text.endswith(": OK")]
            return [f"FLARE: {status}"] * odd + refused[:NAMED]
    return []


def _of_errors(path: Path) -> list[str]:
    """What the server's errors say of its own kit."""
    try:
        refused = REFUSED.search(files.read_text(path))
    except FileError:
        return []
    way_out = "let its operator run: cfl-flare site prepare SERVER-KIT"
    return (
        [f"the server's kit does not allow {refused[1]}; {way_out}"] if refused else []
    )
