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
from cfl_flare.core.errors import DifferenceError, FileError
from cfl_flare.core.files import MOST_LINES, append, json_lines, make_folder, open_regular, writing
from cfl_flare.core.text import shown
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
        lines = []
        for number, line in enumerate(json_lines(self.file), start=1):
            fields = KINDS.get(str(line.get("kind")), {})
            whole = bool(fields) and schema.text(line.get("job")) and schema.text(line.get("time"))
            if not whole or not all(key in line and fits(line[key]) for key, fits in fields.items()):
                raise FileError(
                    f"cannot read {self.file}: line {number} is damaged: {shown(line)}; correct or remove it"
                )
            lines.append(line)
        with open_regular(self.file, MOST_LINES) as file:
            if file.read().count(b"\n") > len(lines) or not self._ends(file):
                raise FileError(f"cannot read {self.file}: its last line is damaged; remove that line")
        return lines

    @staticmethod
    def _ends(file: Any) -> bool:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return not size or file.read() == b"\n"

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
            why = None if allowed else _too_much(names, others, floor, sampled)
            new = {**facts, "sites": names, "sampled": sampled, "refused": why is not None}
            if not any(old["job"] == job and old["kind"] == JOB and {**old, **new} == old for old in lines):
                self._write(JOB, job, **new)
        if why is not None:
            raise DifferenceError(
                f"job {facts['name']} ({job}) of {', '.join(names)}: {why}. If the hospitals agree to that, run "
                f"'cfl-flare site allow {job}', and let its author submit it again with another seed"
            )

    def average(self, job: str, sites: Collection[str], data: str) -> None:
        """Writes whose models were averaged in a round, where they were not all that had been asked."""
        with self._locked():
            self._write(MEAN, job, sites=sorted(sites), data=data)

    def begin(self, job: str, number: int, answered: int) -> None:
        """Writes that the site is about to work in a round.

        Args:
            job: its id.
            number: the round.
            answered: in how many rounds this process has sent an update before.
        """
        with self._locked():
            self._write(ROUND, job, round=number, answered=answered)

    def allow(self, job: str) -> bool:
        """Writes that the operator allows the sets of sites of a refused job, now and later. False if there is none.

        Args:
            job: its id, or how that begins, or its name.
        """
        with self._locked():
            refused = [
                line
                for line in self.lines()
                if line["kind"] == JOB and line["refused"] and (line["job"].startswith(job) or line["name"] == job)
            ]
            for line in refused:
                self._write(ALLOW, line["job"], **{key: line[key] for key in KINDS[ALLOW]})
        return bool(refused)

    def jobs(self) -> list[dict[str, Any]]:
        """Its jobs, oldest first: each line of one, with the round that was begun last, and whether it was allowed.

        Raises:
            FileError: a line is damaged, or the file cannot be read.
        """
        lines = self.lines()
        allowed = {line["job"] for line in lines if line["kind"] == ALLOW}
        reached = {line["job"]: line for line in lines if line["kind"] == ROUND}
        return [
            {
                **{key: value for key, value in line.items() if key != "kind"},
                "site": self.site,
                "answered": reached.get(line["job"], {}).get("answered", 0),
                "ended": reached.get(line["job"], {}).get("round") == line.get("rounds"),
                "allowed": line["refused"] and line["job"] in allowed,
            }
            for line in lines
            if line["kind"] == JOB
        ]

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
    groups = exposed(sets | {frozenset(sites)}, floor) - exposed(sets, floor) if floor > 1 else set()
    if not groups:
        return None
    few = min(groups, key=lambda group: (len(group), sorted(group)))
    line = min(others, key=lambda line: len({*line["sites"]} ^ {*sites}), default=None)
    known = "" if line is None else f", as with those of job {line.get('name', '')} ({line['job']}) of {line['time']}"
    return f"the model of {', '.join(sorted(few))} alone follows by subtraction{known}; {floor} sites are asked for"
