# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the lines of a site's ledger of privacy add up to.

A patient is in one split of one participant of a job. Other jobs may deal the patients otherwise. So a spend is held
against the budget together with the largest Rényi divergence that each other job has spent, at each order. A job that
resumes a run may deal them otherwise as well: unless it says that it does not, the same holds for the run's epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from cfl_flare.training.privacy import Spend, epsilon_of, least_noise, rdp_of

# By participant and split.
Curves = dict[tuple[str, str], np.ndarray]


@dataclass(frozen=True)
class LedgerJob:
    """A job that spends, and the most that its author lets a run of it spend.

    Attributes:
        id: FLARE's.
        run: the run's name.
        resumes: the run that this one goes on with; empty for a new one.
        patients: what names the patients, a column or arrays; empty if each sample is of a patient of its own.
        division: a digest of all that decides in which split a patient is.
    """

    id: str
    run: str
    resumes: str
    epsilon: float
    delta: float
    patients: str = ""
    division: str = ""


class Balance:
    """What a ledger's lines add up to for one data set.

    Lines of another data set count for the digests alone. Lines without a data set count for each, and all lines for an
    empty name: what the operator does not name may be the same patients.

    Attributes:
        number: of the last line; ``digest`` is that line's.
        of_site: the numbers of the site's last two lines.
        sets: the names of all data sets with a line.
        places: where data lay, and when its newest file was last written.
        refusals: the answers without a reason since the operator accepted the ledger.
        epsilon: the largest that any of the spends has led to.
        jobs: by its id, what each job has spent.
        patients: by the id of each job, what named its patients.
    """

    def __init__(self, site: str, data: str, delta: float):
        self.site = site
        self.data = data
        self.delta = delta
        self.digest = ""
        self.number = 0
        self.of_site = (0, 0)
        self.sets: set[str] = set()
        self.places: dict[str, int | None] = {}
        self.refusals = 0
        self.accepted: list[Mapping[str, Any]] = []
        self.epsilon = 0.0
        self.jobs: dict[str, Curves] = {}
        self.run_of: dict[str, str] = {}
        self.patients: dict[str, str] = {}
        self._divisions: dict[str, str] = {}
        self._largest: dict[str, np.ndarray] = {}
        self._first: dict[tuple[str, str], tuple[str, str]] = {}
        self._latest: dict[str, tuple[str, str]] = {}
        self.counts: dict[tuple[tuple[str, str], str], Mapping[str, int]] = {}

    def fold(self, line: Mapping[str, Any]) -> None:
        """Adds a line."""
        self.number = line["number"]
        self.digest = line["digest"]
        if line["site"] == self.site:
            self.of_site = (self.of_site[1], self.number)
        if "reason" in line:
            self.accepted.append(line)
            self.places |= line["places"]
            self.refusals = 0
            return
        self.sets.add(line["data"])
        if not self._concerns(line["data"]):
            return
        if "place" in line:
            self.places[line["place"]] = line["data_time"]
        elif "refused" in line:
            self.refusals += 1
        else:
            self._fold_spends(line)

    def _concerns(self, data: str) -> bool:
        """Whether patients of this data set may be among those of another one."""
        return data == self.data or "" in (data, self.data)

    def _fold_spends(self, line: Mapping[str, Any]) -> None:
        job = LedgerJob(
            line["job"],
            line["run"],
            line["resumes"],
            0,
            0,
            line["patients"],
            line["division"],
        )
        spends = [Spend(**spend) for spend in line["spends"]]
        first = self.first_of(job)
        self._first[job.id, job.run] = first
        self._latest[job.run] = job.id, job.run
        self.run_of.setdefault(job.id, job.run)
        self.patients[job.id] = job.patients
        self._divisions[job.id] = job.division
        _, of_job = self.after(job, line["participant"], spends)
        self.epsilon = max(self.epsilon, self.total(job, of_job))
        self.jobs.setdefault(job.id, {}).update(of_job)
        self._largest[job.id] = np.max(
            [self._largest.get(job.id, 0 * rdp_of(())), *of_job.values()], axis=0
        )
        if "counts" in line:
            self.counts[first, line["participant"]] = line["counts"]

    def first_of(self, job: LedgerJob) -> tuple[str, str]:
        """The run that a job's run goes on with, if any, and that one's, back to the first."""
        resumed = self._latest.get(job.resumes, (job.id, job.run))
        return self._first.get((job.id, job.run), self._first.get(resumed, resumed))

    def after(
        self, job: LedgerJob, participant: str, spends: Sequence[Spend]
    ) -> tuple[Curves, Curves]:
        """What a participant has spent after these, in the splits that they are of: in the run, and in the job."""
        known = self.jobs.get(job.id, {})
        of_job: Curves = {}
        for spend in spends:
            key = participant, spend.split
            of_job[key] = rdp_of([spend]) + of_job.get(key, known.get(key, 0))
        of_run = {
            key: curve + self._spent_before(job, key) for key, curve in of_job.items()
        }
        return of_run, of_job

    def _spent_before(self, job: LedgerJob, key: tuple[str, str]) -> np.ndarray:
        """What the jobs that this one goes on with may have spent on a patient of this participant's split."""
        spent = rdp_of(())
        for id in self._jobs_of_run(job) - {job.id}:
            if job.division and self._divisions[id] == job.division:
                spent = spent + self.jobs[id].get(key, 0)
            else:
                spent = spent + self._largest[id]
        return spent

    def _jobs_of_run(self, job: LedgerJob) -> set[str]:
        first = self.first_of(job)
        return {id for (id, run), start in self._first.items() if start == first}

    def total(self, job: LedgerJob, of_job: Curves) -> float:
        """The epsilon of patients for whom the job has spent one of these, and each other job the most."""
        others = self._others({job.id})
        return max(
            (epsilon_of(others + curve, self.delta) for curve in of_job.values()),
            default=0.0,
        )

    def with_job(self, job: LedgerJob) -> float:
        """The epsilon after a job that spends all of its own by one Gaussian mechanism; the run's part is its own."""
        return epsilon_of(
            self._others(self._jobs_of_run(job))
            + rdp_of([_gaussian(least_noise(job.epsilon, job.delta))]),
            self.delta,
        )

    def left(self, budget: float) -> float:
        """The epsilon of the largest job, of one Gaussian mechanism, that a budget still pays for."""
        spent = self._others(set())

        def excess(log_noise: float) -> float:
            return (
                epsilon_of(spent + rdp_of([_gaussian(np.exp(log_noise))]), self.delta)
                - budget
            )

        low, high = log(0.01), log(1e6)
        if excess(high) >= 0:
            return 0.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return epsilon_of(rdp_of([_gaussian(np.exp(high))]), self.delta)

    def _others(self, jobs: set[str]) -> np.ndarray:
        return np.sum(
            [
                rdp_of(()),
                *(curve for id, curve in self._largest.items() if id not in jobs),
            ],
            axis=0,
        )


def _gaussian(noise: float) -> Spend:
    return Spend("", "", noise)
