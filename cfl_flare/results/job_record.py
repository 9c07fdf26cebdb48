# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A site's record of the jobs in which it took part: who was together in which means. Its operator reads it.

It is append-only, JSON Lines, one file for all jobs of a site. From means over sets of sites, those over few sites
follow by subtraction; so the site refuses a set from which, with those of its earlier jobs, such a mean would follow.
What a job is about to reveal is written before it is revealed, and a record that cannot be read or written ends the
site's part in the job.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cfl_flare.clustering.differences import exposed
from cfl_flare.core.errors import DifferenceError
from cfl_flare.core.files import MOST_LINES, append, make_folder, parse_json, read_text, writing
from cfl_flare.results import schema

# In the state root. No run has such a name.
FOLDER = "_jobs"
JOB, MEAN, ROUND, ALLOW = "job", "mean", "round", "allow"
SETS: dict[str, schema.Fits] = {"data": schema.text, "sites": schema.each(schema.text)}
# The kinds of lines, and what each must say; a line may say more.
KINDS: dict[str, dict[str, schema.Fits]] = {
    JOB: {"name": schema.text, "refused": schema.flag, "sampled": schema.flag, **SETS},
    MEAN: SETS,
    ROUND: {"round": schema.whole, "answered": schema.whole},
    ALLOW: {"sampled": schema.flag, **SETS},
}


class JobRecord:
    """One site's record.

    Args:
        root: the state root.
        site: the site's name.
    """

    def __init__(self, root: Path, site: str):
        self.site, self.file = site, root / FOLDER / f"{site}.jsonl"

    @classmethod
    def all_below(cls, root: Path) -> list[JobRecord]:
        """The records of all sites with this state root."""
        return [cls(root, file.stem) for file in sorted((root / FOLDER).glob("*.jsonl"))]

    def lines(self) -> list[dict[str, Any]]:
        """All that it holds, oldest first.

        Raises:
            FileError: a line is damaged, or the file cannot be read.
        """
        if not self.file.exists():
            return []
        texts = read_text(self.file, MOST_LINES).split("\n")
        lines = []
        for number, text in enumerate(texts[:-1] if texts[-1] == "" else texts, start=1):
            where = f"{self.file}: line {number}"
            line = parse_json(text, where)
            fields = KINDS.get(
                str(line.get("kind")) if isinstance(line, dict) else "", {"kind": lambda kind: str(kind) in KINDS}
            )
            lines.append(schema.checked(line, where, {"job": schema.text, "time": schema.text, **fields}))
        return lines

    def join(self, job: str, sites: Collection[str], floor: int, sampled: bool, facts: Mapping[str, Any]) -> None:
        """Writes that the site is about to take part in means over these sites, unless too much would follow of few.

        Sets of the same job are not held against each other: sites come and go in its course, and models move.

        Args:
            job: its id.
            sites: all whose models are averaged.
            floor: the fewest sites of which a mean may follow; 1 lets everything follow.
            sampled: each round takes some of them, so that many sets are averaged.
            facts: on the job, with its ``name`` and the ``data`` that it reads.

        Raises:
            DifferenceError: a mean over fewer than ``floor`` sites would follow; the operator has not allowed it.
            FileError: the record cannot be read or written.
        """
        names = sorted(sites)
        with self._locked():
            lines = self.lines()
            data = {facts["data"], ""}  # what the operator does not name may be the same
            same = [line for line in lines if line["kind"] != ROUND and (line["data"] in data or data == {""})]
            allowed = any(
                line["kind"] == ALLOW and (line["sites"], line["sampled"]) == (names, sampled) for line in same
            )
            others = [line for line in same if not line.get("refused") and line["job"] != job]
            try:
                why = None if allowed else _too_much(names, others, floor, sampled)
            except DifferenceError as error:  # nobody knows
                why = str(error)
            new = {**facts, "sites": names, "sampled": sampled, "refused": why is not None}
            if not any(old["job"] == job and old["kind"] == JOB and {**old, **new} == old for old in lines):
                self._write(JOB, job, **new)
        if why is not None:
            raise DifferenceError(
                f"job {facts['name']} ({job}) of {', '.join(names)}: {why}. If the hospitals agree to that, run "
                f"'cfl-flare site allow {job}', and let its author submit it again with another seed"
            )

    def note(self, kind: str, job: str, **fields: Any) -> None:
        """Appends a line: `ROUND` before the site works in one, `MEAN` where fewer were averaged than had been asked.

        Raises:
            FileError: it cannot be written.
        """
        with self._locked():
            self._write(kind, job, **fields)

    def allow(self, job: str) -> bool:
        """Writes that the operator allows the sets of sites of a refused job, now and later. False if there is none.

        Args:
            job: its id, or how that begins. A name is its author's, who may have given it to several.
        """
        with self._locked():
            refused = [line for line in self.lines() if line.get("refused") and line["job"].startswith(job)]
            for line in refused:
                self._write(ALLOW, line["job"], **{key: line[key] for key in KINDS[ALLOW]})
        return bool(refused)

    def jobs(self) -> list[dict[str, Any]]:
        """Its jobs, oldest first, each with the ``decision``, and in how many rounds the site ``answered``.

        Raises:
            FileError: a line is damaged, or the file cannot be read.
        """
        lines = self.lines()
        allowed = {line["job"] for line in lines if line["kind"] == ALLOW}
        reached = {line["job"]: line for line in lines if line["kind"] == ROUND}
        jobs = []
        for line in (line for line in lines if line["kind"] == JOB):
            last = reached.get(line["job"], {"round": None, "answered": 0})
            decision = "refused" if line["refused"] else "ended" if last["round"] == line.get("rounds") else "begun"
            decision = "allowed" if line["refused"] and line["job"] in allowed else decision
            jobs.append({**line, "site": self.site, "answered": last["answered"], "decision": decision})
        return jobs

    def _write(self, kind: str, job: str, **fields: Any) -> None:
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        append(self.file, json.dumps({"kind": kind, "job": job, "time": time, **fields}) + "\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other jobs of this site from the record meanwhile."""
        make_folder(self.file.parent, private=True)
        lock = self.file.with_suffix(".lock")
        with writing(lock), lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _too_much(sites: list[str], others: Collection[Mapping[str, Any]], floor: int, sampled: bool) -> str | None:
    """Why a set of sites cannot be averaged beside those of other jobs; None if it can."""
    if floor > 1 and sampled:
        return "each round takes some of them (sample), so that the rounds' models give those of single sites"
    sets = {frozenset(line["sites"]) for line in others}
    jobs: dict[str, set[str]] = {}  # by their authors' choice, whoever missed a round or came late
    for old in others:
        jobs.setdefault(old["job"], set()).update(old["sites"] if old["kind"] != MEAN else ())
    groups: set[frozenset[str]] = set()
    for known in {frozenset(sets), frozenset(map(frozenset, jobs.values()))} if floor > 1 else ():
        groups |= exposed(known | {frozenset(sites)}, floor) - exposed(known, floor)
    if not groups:
        return None
    few = min(groups, key=lambda group: (len(group), sorted(group)))
    line = min(others, key=lambda line: len({*line["sites"]} ^ {*sites}), default=None)
    with_job = (
        "" if line is None else f", as with those of job {line.get('name', '')} ({line['job']}) of {line['time']}"
    )
    return f"the model of {', '.join(sorted(few))} alone follows by subtraction{with_job}; {floor} sites are asked for"
