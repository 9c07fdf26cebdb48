# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Records that a real site keeps under its own state root: its jobs, and its ledger of privacy."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey

from cfl_flare.core.config import require
from cfl_flare.core.errors import BudgetError
from cfl_flare.core.text import plain
from cfl_flare.data import DataConfig, DataSource, SiteData
from cfl_flare.data.sources import COLUMNS
from cfl_flare.flare import policy
from cfl_flare.flare.allowed import POLICY, Policy
from cfl_flare.flare.compat import on_one_machine
from cfl_flare.results.balance import LedgerJob
from cfl_flare.results.job_record import MEAN, ROUND, JobRecord
from cfl_flare.results.ledger import JobBooks, newest_change
from cfl_flare.training.privacy import Books, DPSettings


class JobAttendance:
    """Notes in the site's record what the site is about to take part in.

    It writes only what has changed since the last task of the job.
    """

    def __init__(self) -> None:
        self._together: tuple[list[str], bool] | None = None
        self._averaged: list[str] = []

    def note_task(
        self,
        content: Mapping[str, Any],
        facts: Mapping[str, Any],
        round_facts: Mapping[str, Any],
        fl_ctx: FLContext,
    ) -> None:
        """Write a task's facts to the record.

        Args:
            content: of the task, as the server sent it.
            facts: about the job; its ``data`` is the data set that the operator has the data in.
            round_facts: about the task's round.
            fl_ctx: FLARE's context at the site.

        Raises:
            DifferenceError: with this site's earlier jobs, its models would give those of too few sites.
            FileError: the record cannot be read or written.
        """
        name = fl_ctx.get_identity_name()
        job = fl_ctx.get_job_id()
        record = JobRecord(policy.state_root(fl_ctx), name)
        if content["averaged"] not in ([], self._averaged):
            record.note(MEAN, job, sites=content["averaged"], data=facts["data"])
            self._averaged = content["averaged"]
        sites = content["together"]
        sampled = content["sampled"]
        if name in sites and (sites, sampled) != self._together:
            floor = 1
            if not on_one_machine(fl_ctx):
                floor = Policy.of(fl_ctx).min_sites_per_cluster
            meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
            named = {"name": plain(meta.get(JobMetaKey.JOB_NAME, "")), **facts}
            record.join(job, sites, floor, sampled, named)
            self._together = (sites, sampled)
        record.note(ROUND, job, round=content["round"], **round_facts)


@dataclass(frozen=True)
class BooksOrder:
    """Facts about a job and its data, for which a site opens its ledger.

    Attributes:
        source: the data source that the job names.
        data: the job's settings of data.
        seed: the job's seed.
        place: where the operator's data lies; empty if the job names the data.
        run_name: the run's name.
        memory_of: the run that is resumed; None for a new run.
        privacy: the privacy that the job promises; None without dp.
    """

    source: Mapping[str, Any]
    data: Mapping[str, Any]
    seed: int
    place: str
    run_name: str
    memory_of: str | None
    privacy: DPSettings | None


def open_books(
    order: BooksOrder, source: DataSource, fl_ctx: FLContext
) -> Books | None:
    """Open the site's ledger of privacy, in which participants write what they spend.

    Args:
        order: the facts about the job.
        source: the site's data.
        fl_ctx: FLARE's context at the real site.

    Returns:
        The books; None for a job without dp.

    Raises:
        BudgetError: the operator has set a budget, and the job has no dp, or asks for more than is left.
        LedgerError: the ledger cannot be trusted.
    """
    budget = Policy.of(fl_ctx).epsilon_budget
    limit = f"training: dp is not set, and {POLICY} of {fl_ctx.get_identity_name()} has epsilon_budget = {budget}"
    require(
        order.privacy is not None or budget is None,
        f"{limit}; set dp='epsilon=1' in the job",
        BudgetError,
    )
    if order.privacy is None:
        return None
    unnamed = f"data: the job names it, and epsilon_budget = {budget} is for what the operator names by $CFL_DATA"
    require(
        bool(order.place) or budget is None,
        f"{unnamed}; use the source site without a path",
        BudgetError,
    )
    if budget is not None:
        check_questions(order.data, source)
    ledger = policy.ledger_for(order.place, fl_ctx)
    job = LedgerJob(
        fl_ctx.get_job_id(),
        order.run_name,
        order.memory_of or "",
        order.privacy.epsilon,
        order.privacy.delta,
        source.patient or "",
        hash_division(order),
    )
    ledger.open()
    ledger.check(job)
    return JobBooks(ledger, job)


def check_questions(data: Mapping[str, Any], source: DataSource) -> None:
    """Raise a BudgetError for settings with which a job's author could ask about the data by being refused."""
    fewest = DataConfig().min_samples
    asked = data.get("min_samples", fewest)
    reason = f"data: min_samples = {asked} asks for the number of samples, and this site has an epsilon_budget"
    require(asked == fewest, f"{reason}; leave it at {fewest}", BudgetError)
    names_columns = isinstance(source, SiteData) and source.columns is not None
    reason = "data: the job's columns and their ranges ask for values, and this site has an epsilon_budget"
    way_out = f"let the operator set {COLUMNS} to the agreed file"
    require(
        not names_columns or bool(os.environ.get(COLUMNS)),
        f"{reason}; {way_out}",
        BudgetError,
    )


def hash_division(order: BooksOrder) -> str:
    """Compute a digest of everything that decides in which split a patient is."""
    decides: Sequence[Any] = [
        order.source,
        order.data,
        order.seed,
        order.place,
        newest_change(order.place),
    ]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
