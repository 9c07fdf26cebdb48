# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A site's ledger of differential privacy: what all jobs together have spent on one data set.

It is append-only, JSON Lines, one file for a data set below the state root, whichever job spends. Each line has a
number, the digest of the line before it, and its own digest. A counter outside the state root holds the number of the
site's last line, so that an older copy of the ledger is refused. A line is on the disk before its noise is drawn. What
is written counts as spent, whether or not the process lived to draw the noise. `cfl_flare.results.balance` adds it up.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cfl_flare.core import files
from cfl_flare.core.config import require
from cfl_flare.core.errors import BudgetError, FileError, LedgerError
from cfl_flare.core.text import plain
from cfl_flare.results import schema
from cfl_flare.results.balance import Balance, LedgerJob
from cfl_flare.training.privacy import Books, Spend, epsilon_of

# In the state root, and in the kit. No run has such a name.
FOLDER, COUNTERS = "_privacy", "cfl_ledger"
OPEN, COUNT, SPEND, ACCEPT = "open", "count", "spend", "accept"
# Seconds that a process waits for another one's line.
PATIENCE = 10.0
# Sums of rounded numbers may exceed a budget by this factor.
ROUNDED = 1 + 1e-9

TIME = schema.maybe(schema.count)
SPENDS = schema.list_of(
    schema.object_with(
        what=schema.text,
        split=schema.text,
        noise_multiplier=lambda value: schema.number(value) and 0 < value < float("inf"),
        sample_rate=lambda value: schema.number(value) and 0 < value <= 1,
        steps=lambda value: schema.count(value) and value > 0,
    )
)
OF_JOB: schema.Fields = dict.fromkeys(("job", "run", "resumes", "participant", "patients"), schema.text)
# The kinds of lines, and what each must say.
KINDS: Mapping[str, schema.Fields] = {
    OPEN: {"data": schema.text, "data_time": TIME},
    COUNT: {**OF_JOB, "counts": schema.dict_of(schema.count), "spends": SPENDS},
    SPEND: {**OF_JOB, "round": schema.count, "spends": SPENDS},
    ACCEPT: {"reason": schema.text, "data_time": TIME, "counter": schema.count},
}
EVERY: schema.Fields = dict.fromkeys(("time", "site", "before", "digest"), schema.text)
COUNTER: schema.Fields = {"number": schema.count, "data": schema.text}

AGAIN = "run 'cfl-flare site ledger --accept REASON'"
BEHIND = f"put the newest copy back; else lower epsilon_budget by what is lost, and {AGAIN}"
DAMAGED = f"move it away, lower epsilon_budget by what it had spent, and {AGAIN}"


class Ledger:
    """The ledger of a data set, for one of the sites that read it.

    Args:
        root: the state root.
        data: where the data lies, as the operator names it; empty for what the operator does not name.
        site: the site's name.
        counters: the folder of the counters, outside the state root.
        budget: the most that all jobs together may spend; None for any.
        delta: the probability with which the budget's epsilon may not hold.
        patients: what names the patients, as the operator says; empty if the operator does not.

    Every method raises a LedgerError if the ledger cannot be read, written or trusted.
    """

    def __init__(
        self,
        root: Path,
        data: str,
        site: str,
        counters: Path,
        budget: float | None = None,
        delta: float = 1e-5,
        patients: str = "",
    ):
        name = hashlib.sha256(data.encode()).hexdigest()[:32]
        self.data, self.site, self.budget, self._patients = data, site, budget, patients
        self.file, self._counter = root / FOLDER / f"{name}.jsonl", counters / f"{name}.json"
        self._balance = Balance(site, name, delta)
        self._size, self._end = 0, b""

    @classmethod
    def all_of(cls, root: Path, site: str, counters: Path, budget: float | None, delta: float) -> list[Ledger]:
        """Those below a state root, and those that only a counter remembers."""
        data = {path.stem: str(read_counter(path)["data"]) for path in sorted(counters.glob("*.json"))}
        for path in sorted((root / FOLDER).glob("*.jsonl")):
            if path.stem not in data:
                with files.open_regular(path, files.MOST_LINES) as file:
                    line = files.parse_json(file.readline(), str(path))
                data[path.stem] = str(schema.checked(line, str(path), KINDS[OPEN])["data"])
        return [cls(root, place, site, counters, budget, delta) for place in data.values()]

    def open(self) -> None:
        """Begins the ledger, or checks that it is not older than the data."""
        with self._held():
            self._read()
            newest = newest_change(self.data)
            if not self._balance.number:
                self._write(OPEN, data=self.data, data_time=newest)
            reason = f"{self.file}: the data in {self.data} is newer than its ledger says, of {_date(newest)}"
            way_out = f"if patients were added, {AGAIN}; if the ledger was copied back, {BEHIND}"
            current = newest is None or newest <= (self._balance.data_time or 0)
            require(current, f"{reason}: {way_out}", LedgerError)

    def check(self, job: LedgerJob) -> None:
        """Raises a BudgetError if a job would spend more than is left."""
        with self._held():
            self._read()
        self._check_patients(job)
        if self.budget is None:
            return
        total, left = self._balance.with_job(job), self._balance.left(self.budget)
        spent = f"run {job.run!r}: epsilon = {job.epsilon:g} at delta = {job.delta:g} would bring this site's data to"
        limit = f"its operator's epsilon_budget is {self.budget:g}; the largest that is left is {left:.3g}"
        require(total <= self.budget * 1.001, f"{spent} {total:.3g}, and {limit}", BudgetError)

    def counts(self, job: LedgerJob, participant: str) -> Mapping[str, int] | None:
        """What a run's participant said that it has, by split; None for a new one."""
        with self._held():
            self._read()
        return self._balance.counts.get((self._balance.first_of(job), participant))

    def enter(self, job: LedgerJob, participant: str, spends: Sequence[Spend], **fields: Any) -> None:
        """Writes what a participant is about to spend, in a ``round``, or by the ``counts`` that it is about to say.

        A BudgetError says that it is more than the run or the site may spend; nothing is written then.
        """
        with self._held():
            self._read()
            self._check_patients(job)
            of_run, of_job = self._balance.after(job, participant, spends)
            run = max(epsilon_of(curve, job.delta) for curve in of_run.values())
            spent = f"run {job.run!r}: {participant} would have spent epsilon = {run:.4g} at delta = {job.delta:g}"
            limit = f"the job may spend {job.epsilon:g}; shorten the run, or give it more in training: dp"
            require(run <= job.epsilon * ROUNDED, f"{spent}, and {limit}", BudgetError)
            total = self._balance.total(job, of_job)
            spent = f"run {job.run!r}: {participant} would bring this site's data to epsilon = {total:.4g}"
            limit = f"its operator's epsilon_budget is {self.budget}; 'cfl-flare site ledger' shows what spent it"
            require(self.budget is None or total <= self.budget * ROUNDED, f"{spent}, and {limit}", BudgetError)
            of = {"job": job.id, "run": job.run, "resumes": job.resumes, "participant": participant}
            of["patients"] = job.patients
            self._write(COUNT if "counts" in fields else SPEND, **of, **fields, spends=[asdict(s) for s in spends])

    def _check_patients(self, job: LedgerJob) -> None:
        """Raises a LedgerError if a job counts by other patients than the operator's: its epsilon is not theirs."""
        for job_id, patients in (*self._balance.patients.items(), (job.id, job.patients)):
            named = f"patients are named by {patients!r}" if patients else "each sample is of a patient of its own"
            reason = f"patients are named by CFL_PATIENT = {self._patients!r}, and in job {job_id} {named}"
            way_out = (
                "let the job use the source site; if CFL_PATIENT is new here, move the ledger away, lower "
                f"epsilon_budget by what all samples of a patient have spent together, and {AGAIN}"
            )
            require(self._patients in ("", patients), f"{self.file}: {reason}; {way_out}", LedgerError)

    def accept(self, reason: str) -> None:
        """Writes that the operator trusts the ledger as it is; what it says to have been spent stays spent."""
        with self._held():
            self._read(trusted=True)
            counter = self._counted()
            if not self._balance.number:
                self._write(OPEN, data=self.data, data_time=None)
            self._write(ACCEPT, reason=reason, data_time=newest_change(self.data), counter=counter)

    def summary(self) -> dict[str, Any]:
        """What has been spent, by job, and what is left."""
        with self._held():
            self._read()
        balance = self._balance
        jobs = {
            job: {
                "run": balance.run_of[job],
                "epsilon": max(epsilon_of(curve, balance.delta) for curve in curves.values()),
                "participants": sorted({participant for participant, _ in curves}),
            }
            for job, curves in balance.jobs.items()
        }
        accepted = [{key: line[key] for key in ("time", "reason")} for line in balance.accepted]
        left = None if self.budget is None else balance.left(self.budget)
        of_data = {"data": self.data, "patients": sorted({*balance.patients.values()})}
        spent = {"epsilon": balance.epsilon, "delta": balance.delta, "budget": self.budget, "left": left}
        return {**of_data, **spent, "jobs": jobs, "accepted": accepted, "lines": balance.number}

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
        require(content.startswith(self._end), f"{self.file}: it has changed under this job; {DAMAGED}", LedgerError)
        *texts, torn = content[len(self._end) :].split(b"\n")
        for text in texts:
            self._add(text + b"\n")
        counter = 0 if trusted else self._counted()
        before, last = self._balance.of_site
        if not trusted and counter != last:
            behind = f"its last line of {self.site} is number {last}, and {self._counter} knows {counter}"
            require(counter in (last, before), f"{self.file}: {behind}: it is no current copy; {BEHIND}", LedgerError)
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
            fields = KINDS.get(str(line.get("kind")) if isinstance(line, dict) else "", {"kind": lambda kind: False})
            line = schema.checked(line, where, {"number": schema.count, **EVERY, **fields})
        except FileError as error:
            raise LedgerError(f"{plain(str(error))}; {DAMAGED}") from error
        sealed = _sealed({key: value for key, value in line.items() if key != "digest"})
        follows = (line["number"], line["before"]) == (number, balance.digest)
        require(follows and sealed == text, f"{where} is not what was written; {DAMAGED}", LedgerError)
        return line

    def _write(self, kind: str, **fields: Any) -> None:
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        of_line = {"number": self._balance.number + 1, "kind": kind, "time": time, "site": self.site}
        text = _sealed({**of_line, **fields, "before": self._balance.digest})
        self._checked(text)  # a line that would be refused later is none
        files.append(self.file, text, durable=True)
        self._add(text)
        self._count()

    def _counted(self) -> int:
        return int(read_counter(self._counter)["number"]) if self._counter.exists() else 0

    def _count(self) -> None:
        files.make_folder(self._counter.parent)
        content = {"number": self._balance.of_site[1], "data": self.data}
        files.atomic_write(self._counter, json.dumps(content) + "\n", durable=True)


@dataclass(frozen=True)
class JobBooks(Books):
    """A job's view of the ledger, in which its participants write."""

    ledger: Ledger
    job: LedgerJob

    def spend(self, participant: str, round_number: int, spends: Sequence[Spend]) -> None:
        self.ledger.enter(self.job, participant, spends, round=round_number)

    def counts(self, participant: str) -> Mapping[str, int] | None:
        return self.ledger.counts(self.job, participant)

    def said(self, participant: str, counts: Mapping[str, int], spends: Sequence[Spend]) -> None:
        self.ledger.enter(self.job, participant, spends, counts=dict(counts))


def read_counter(path: Path) -> dict[str, Any]:
    """The number of a site's last line in a ledger, and the data; a FileError says that the file is damaged."""
    return schema.checked(files.read_json(path), str(path), COUNTER)


def newest_change(data: str) -> int | None:
    """When a data set's newest file was last written, in μs; None for data that the operator does not name."""
    if not data:
        return None
    path = Path(data)
    try:
        changes = [file.stat().st_mtime_ns // 1000 for file in (files.below(path) if path.is_dir() else [path])]
    except OSError as error:
        raise FileError(f"cannot read {files.explained(error)}") from error
    return max(changes, default=0)


def _sealed(content: Mapping[str, Any]) -> bytes:
    """A line of JSON with its digest."""
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "digest": digest}).encode() + b"\n"


def _date(time: int | None) -> str:
    return datetime.fromtimestamp((time or 0) / 1e6, timezone.utc).isoformat(timespec="seconds")
