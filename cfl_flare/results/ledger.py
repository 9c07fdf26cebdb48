# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A site's ledger of differential privacy: what all jobs together have spent on the site's data.

It is append-only, JSON Lines, one file below the state root, whichever job spends and wherever its data lies. A path
names no patients: the same file has several paths, and a folder may hold a copy. So only the operator says which data
have patients of their own. Each line has a number, the digest of the line before it, and its own digest. A counter
outside the state root holds the number of the site's last line, so that an older copy of the ledger is refused. A line
is on the disk before its noise is drawn. What is written counts as spent, whether or not the process lived to draw the
noise. `cfl_flare.results.balance` adds it up.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cfl_flare.core import files
from cfl_flare.core.config import require
from cfl_flare.core.errors import (
    FREE_OF_DATA,
    WITHHELD,
    BudgetError,
    FileError,
    LedgerError,
)
from cfl_flare.core.text import plain
from cfl_flare.results import schema
from cfl_flare.results.balance import Balance, LedgerJob
from cfl_flare.training.privacy import Books, Spend, epsilon_of

# In the state root, and in the kit. No run has such a name.
FOLDER = "_privacy"
COUNTERS = "cfl_ledger"
FILE = "ledger.jsonl"
COUNTER_FILE = "counter.json"
# The kinds of lines.
OPEN = "open"
COUNT = "count"
SPEND = "spend"
REFUSE = "refuse"
ACCEPT = "accept"
# Seconds that a process waits for another one's line.
PATIENCE = 10.0
# Sums of rounded numbers may exceed a budget by this factor.
ROUNDED = 1 + 1e-9

TIME = schema.maybe(schema.count)
SPENDS = schema.list_of(
    schema.object_with(
        what=schema.text,
        split=schema.text,
        noise_multiplier=lambda value: (
            schema.number(value) and 0 < value < float("inf")
        ),
        sample_rate=lambda value: schema.number(value) and 0 < value <= 1,
        steps=lambda value: schema.count(value) and value > 0,
    )
)
JOB_FIELDS = ("data", "job", "run", "resumes", "participant", "patients", "division")
OF_JOB: schema.Fields = dict.fromkeys(JOB_FIELDS, schema.text)
# The kinds of lines, and what each must say.
KINDS: Mapping[str, schema.Fields] = {
    OPEN: {"data": schema.text, "place": schema.text, "data_time": TIME},
    COUNT: {**OF_JOB, "counts": schema.dict_of(schema.count), "spends": SPENDS},
    SPEND: {**OF_JOB, "round": schema.count, "spends": SPENDS},
    REFUSE: {"data": schema.text, "refused": schema.text},
    ACCEPT: {
        "reason": schema.text,
        "places": schema.dict_of(TIME),
        "counter": schema.count,
    },
}
EVERY: schema.Fields = dict.fromkeys(("time", "site", "before", "digest"), schema.text)
COUNTER: schema.Fields = {"number": schema.count}

AGAIN = "run 'cfl-flare site ledger --accept REASON'"
BEHIND = (
    f"put the newest copy back; else lower epsilon_budget by what is lost, and {AGAIN}"
)
DAMAGED = f"move it away, lower epsilon_budget by what it had spent, and {AGAIN}"


@dataclass(frozen=True)
class Rules:
    """What a site's operator says about the ledger.

    Attributes:
        budget: the most that all jobs together may spend; None for any.
        delta: the probability with which the budget's epsilon may not hold.
        patients: what names the patients; empty if the operator does not say.
        max_refusals: how many answers without a reason leave before the operator looks.
    """

    budget: float | None = None
    delta: float = 1e-5
    patients: str = ""
    max_refusals: int = 3


class Ledger:
    """A site's ledger, as it counts for one of the operator's data sets.

    Args:
        root: the state root. All kits with this state root share the ledger.
        counters: the folder of the counter, outside the state root.
        site: the site's name.
        rules: the operator's.
        data: the operator's name of the data set; empty if the operator names none. Then all lines count.
        place: where the data lies; empty for what the operator does not name.

    Every method raises a LedgerError if the ledger cannot be read, written or trusted.
    """

    def __init__(
        self,
        root: Path,
        counters: Path,
        site: str,
        rules: Rules | None = None,
        data: str = "",
        place: str = "",
    ):
        self.site = site
        self.rules = rules or Rules()
        self.data = data
        self.place = place
        self.file = root / FOLDER / FILE
        self._counter = counters / COUNTER_FILE
        self._forget()

    @property
    def budget(self) -> float | None:
        return self.rules.budget

    @property
    def is_begun(self) -> bool:
        """Whether there is a ledger, or a counter remembers one."""
        return self.file.exists() or self._counter.exists()

    def by_data_set(self) -> list[Ledger]:
        """The ledger as it counts for each data set with a line in it; itself if the operator named none."""
        with self._held():
            self._read()
        names = sorted(self._balance.sets - {""})
        ledgers = [copy(self) for _ in names]
        for name, ledger in zip(names, ledgers):
            ledger.data = name
            ledger._forget()
        return ledgers or [self]

    def _forget(self) -> None:
        """Makes the next call read the file from its beginning."""
        self._balance = Balance(self.site, self.data, self.rules.delta)
        self._size = 0
        self._end = b""

    def open(self) -> None:
        """Begins the ledger, or checks that it is not older than the data."""
        with self._held():
            self._read()
            newest = newest_change(self.place)
            if self.place not in self._balance.places:
                self._write(OPEN, data=self.data, place=self.place, data_time=newest)
            known = self._balance.places[self.place]
            reason = f"{self.file}: the data in {self.place} is newer than its ledger says, of {_date(newest)}"
            way_out = f"if patients were added, {AGAIN}; if the ledger was copied back, {BEHIND}"
            current = newest is None or newest <= (known or 0)
            require(current, f"{reason}: {way_out}", LedgerError)

    def check(self, job: LedgerJob) -> None:
        """Raises a BudgetError if a job would spend more than is left."""
        with self._held():
            self._read()
        self._check_patients(job)
        if self.budget is None:
            return
        self._check_refusals()
        total, left = self._balance.with_job(job), self._balance.left(self.budget)
        spent = f"run {job.run!r}: epsilon = {job.epsilon:g} at delta = {job.delta:g} would bring this site's data to"
        limit = f"its operator's epsilon_budget is {self.budget:g}; the largest that is left is {left:.3g}"
        require(
            total <= self.budget * 1.001,
            f"{spent} {total:.3g}, and {limit}",
            BudgetError,
        )

    def counts(self, job: LedgerJob, participant: str) -> Mapping[str, int] | None:
        """What a run's participant said that it has, by split; None for a new one."""
        with self._held():
            self._read()
        return self._balance.counts.get((self._balance.first_of(job), participant))

    def enter(
        self, job: LedgerJob, participant: str, spends: Sequence[Spend], **fields: Any
    ) -> None:
        """Writes what a participant is about to spend, in a ``round``, or by the ``counts`` that it is about to say.

        A BudgetError says that it is more than the run or the site may spend; nothing is written then.
        """
        with self._held():
            self._read()
            self._check_patients(job)
            self._check_refusals()
            of_run, of_job = self._balance.after(job, participant, spends)
            run = max(epsilon_of(curve, job.delta) for curve in of_run.values())
            spent = f"run {job.run!r}: {participant} would have spent epsilon = {run:.4g} at delta = {job.delta:g}"
            limit = f"the job may spend {job.epsilon:g}; shorten the run, or give it more in training: dp"
            require(run <= job.epsilon * ROUNDED, f"{spent}, and {limit}", BudgetError)
            total = self._balance.total(job, of_job)
            spent = f"run {job.run!r}: {participant} would bring this site's data to epsilon = {total:.4g}"
            limit = f"its operator's epsilon_budget is {self.budget}; 'cfl-flare site ledger' shows what spent it"
            require(
                self.budget is None or total <= self.budget * ROUNDED,
                f"{spent}, and {limit}",
                BudgetError,
            )
            line = {
                "job": job.id,
                "run": job.run,
                "resumes": job.resumes,
                "participant": participant,
            }
            line |= {
                "data": self.data,
                "patients": job.patients,
                "division": job.division,
            }
            kind = COUNT if "counts" in fields else SPEND
            self._write(
                kind, **line, **fields, spends=[asdict(spend) for spend in spends]
            )

    def refuse(self, job_id: str) -> None:
        """Writes that a job is about to be answered without a reason, because of what is in the data."""
        with self._held():
            self._read()
            self._check_refusals()
            self._write(REFUSE, data=self.data, refused=job_id)

    def _check_refusals(self) -> None:
        """Raises a LedgerError if as many jobs were refused for what is in the data as the operator lets."""
        refused = self._balance.refusals
        most = self.rules.max_refusals
        if self.budget is None or refused < most:
            return
        reason = f"{self.file}: {refused} answers since the operator looked were refusals because of the data"
        limit = f"each tells its author something exactly, and max_refusals = {most}"
        raise LedgerError(
            f"{reason}; {limit}; the log.txt of these jobs says why; then {AGAIN}"
        )

    def _check_patients(self, job: LedgerJob) -> None:
        """Raises a LedgerError if a job counts by other patients than the operator's: its epsilon is not theirs."""
        for job_id, patients in (
            *self._balance.patients.items(),
            (job.id, job.patients),
        ):
            named = (
                f"patients are named by {patients!r}"
                if patients
                else "each sample is of a patient of its own"
            )
            reason = f"patients are named by CFL_PATIENT = {self.rules.patients!r}, and in job {job_id} {named}"
            way_out = (
                "let the job use the source site; if CFL_PATIENT is new here, move the ledger away, lower "
                f"epsilon_budget by what all samples of a patient have spent together, and {AGAIN}"
            )
            require(
                self.rules.patients in ("", patients),
                f"{self.file}: {reason}; {way_out}",
                LedgerError,
            )

    def accept(self, reason: str) -> None:
        """Writes that the operator trusts the ledger as it is; what it says to have been spent stays spent."""
        with self._held():
            self._read(trusted=True)
            places = {
                place: _newest_or(place, known)
                for place, known in self._balance.places.items()
            }
            self._write(ACCEPT, reason=reason, places=places, counter=self._counted())

    def summary(self) -> dict[str, Any]:
        """What has been spent, by job, and what is left."""
        with self._held():
            self._read()
        balance = self._balance
        jobs = {
            job: {
                "run": balance.run_of[job],
                "epsilon": max(
                    epsilon_of(curve, balance.delta) for curve in curves.values()
                ),
                "participants": sorted({participant for participant, _ in curves}),
            }
            for job, curves in balance.jobs.items()
        }
        accepted = [
            {key: line[key] for key in ("time", "reason")} for line in balance.accepted
        ]
        left = None if self.budget is None else balance.left(self.budget)
        return {
            "data": self.data,
            "places": sorted(balance.places),
            "patients": sorted({*balance.patients.values()}),
            "epsilon": balance.epsilon,
            "delta": balance.delta,
            "budget": self.budget,
            "left": left,
            "refusals": balance.refusals,
            "max_refusals": self.rules.max_refusals,
            "jobs": jobs,
            "accepted": accepted,
            "lines": balance.number,
        }

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keeps others from the ledger meanwhile; an error of a file inside is a LedgerError."""
        try:
            with files.locked(self.file, PATIENCE):
                yield
        except FileError as error:
            raise LedgerError(str(error)) from error

    def _read(self, trusted: bool = False) -> None:
        """Adds what was written since this process looked last; unless ``trusted``, holds it against the counter."""
        content = b""
        if self.file.exists() or self._size:
            with files.open_regular(self.file, files.MOST_LINES) as file:
                file.seek(self._size - len(self._end))
                content = file.read()
        require(
            content.startswith(self._end),
            f"{self.file}: it has changed under this job; {DAMAGED}",
            LedgerError,
        )
        *texts, torn = content[len(self._end) :].split(b"\n")
        for text in texts:
            self._add(text + b"\n")
        counter = 0 if trusted else self._counted()
        before, last = self._balance.of_site
        if not trusted and counter != last:
            behind = f"its last line of {self.site} is number {last}, and {self._counter} knows {counter}"
            require(
                counter in (last, before),
                f"{self.file}: {behind}: it is no current copy; {BEHIND}",
                LedgerError,
            )
            self._count()  # the process died between the line and the counter: the line counts
        if torn:  # and here within a line, before any noise was drawn
            os.truncate(self.file, self._size)

    def _add(self, text: bytes) -> None:
        self._balance.fold(self._checked(text))
        self._size, self._end = self._size + len(text), text

    def _checked(self, text: bytes) -> dict[str, Any]:
        """The content of what should be the next line."""
        number, balance = self._balance.number + 1, self._balance
        where = f"{self.file}: line {number}"
        try:
            line = files.parse_json(text, where)
            fields = KINDS.get(
                str(line.get("kind")) if isinstance(line, dict) else "",
                {"kind": lambda kind: False},
            )
            line = schema.checked(
                line, where, {"number": schema.count, **EVERY, **fields}
            )
        except FileError as error:
            raise LedgerError(f"{plain(str(error))}; {DAMAGED}") from error
        sealed = _sealed({key: value for key, value in line.items() if key != "digest"})
        follows = (line["number"], line["before"]) == (number, balance.digest)
        require(
            follows and sealed == text,
            f"{where} is not what was written; {DAMAGED}",
            LedgerError,
        )
        return line

    def _write(self, kind: str, **fields: Any) -> None:
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        of_line = {
            "number": self._balance.number + 1,
            "kind": kind,
            "time": time,
            "site": self.site,
        }
        text = _sealed({**of_line, **fields, "before": self._balance.digest})
        self._checked(text)  # a line that would be refused later is none
        files.append(self.file, text, durable=True)
        self._add(text)
        self._count()

    def _counted(self) -> int:
        return (
            int(read_counter(self._counter)["number"]) if self._counter.exists() else 0
        )

    def _count(self) -> None:
        files.make_folder(self._counter.parent)
        content = {"number": self._balance.of_site[1]}
        files.atomic_write(self._counter, json.dumps(content) + "\n", durable=True)


@dataclass(frozen=True)
class JobBooks(Books):
    """A job's view of the ledger, in which its participants write."""

    ledger: Ledger
    job: LedgerJob

    def spend(
        self, participant: str, round_number: int, spends: Sequence[Spend]
    ) -> None:
        self.ledger.enter(self.job, participant, spends, round=round_number)

    def counts(self, participant: str) -> Mapping[str, int] | None:
        return self.ledger.counts(self.job, participant)

    def said(
        self, participant: str, counts: Mapping[str, int], spends: Sequence[Spend]
    ) -> None:
        self.ledger.enter(self.job, participant, spends, counts=dict(counts))

    def report(self, code: str) -> str:
        """The code itself if no patient's data decides on it, or if there is no budget; else `WITHHELD`, and a line."""
        if self.ledger.budget is None or code in FREE_OF_DATA:
            return code
        try:
            self.ledger.refuse(self.job.id)
        except LedgerError as error:
            return error.failure
        return WITHHELD


def read_counter(path: Path) -> dict[str, Any]:
    """The number of a site's last line in a ledger; a FileError says that the file is damaged."""
    return schema.checked(files.read_json(path), str(path), COUNTER)


def newest_change(place: str) -> int | None:
    """When the newest file there was last written, in μs; None for data that the operator does not name."""
    if not place:
        return None
    path = Path(place)
    try:
        changes = [
            file.stat().st_mtime_ns // 1000
            for file in (files.below(path) if path.is_dir() else [path])
        ]
    except OSError as error:
        raise FileError(f"cannot read {files.explained(error)}") from error
    return max(changes, default=0)


def _newest_or(place: str, known: int | None) -> int | None:
    """When the newest file there was last written; what was ``known`` if the data is gone from there."""
    try:
        return newest_change(place)
    except FileError:
        return known


def _sealed(content: Mapping[str, Any]) -> bytes:
    """A line of JSON with its digest."""
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "digest": digest}).encode() + b"\n"


def _date(time: int | None) -> str:
    return datetime.fromtimestamp((time or 0) / 1e6, timezone.utc).isoformat(
        timespec="seconds"
    )
