# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run at one site: it carries out the server's tasks, and keeps what its participants remember between rounds."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, PayloadError, failure_of
from cfl_flare.core.params import Params
from cfl_flare.engine.site import Result, Site, Task
from cfl_flare.flare.policy import store_for
from cfl_flare.results.run_dir import SERVED, Note, keep_notes
from cfl_flare.results.served import save_served
from cfl_flare.results.store import Store
from cfl_flare.training.ensemble import Served


class SiteRun:
    """The participants of one run at a site, and its folder below the site's state root.

    Args:
        site: hosts the participants.
        name: the run's.
        model: ``{"class_path", "args"}`` of the module, kept beside served models.
        log: the component that writes the log.
        part: names a folder in the run's: of a study's candidate.
        keeps: whether it keeps what participants predict with at the end.
    """

    def __init__(
        self, site: Site, name: str, model: Mapping[str, Any], log: FLComponent, part: str = "", keeps: bool = True
    ):
        self.site, self.name, self.part, self.keeps = site, name, part, keeps
        self._model, self._log = model, log
        self._store: Store | None = None
        self._memory_round = 0

    def store(self, name: str, fl_ctx: FLContext) -> Store:
        """This site's store of a run, or of the part of it that this one is."""
        return Store(store_for(name, fl_ctx).folder / self.part)

    def carry_out(
        self,
        number: int,
        tasks: Mapping[str, Task],
        models: Mapping[str, Params],
        memory_of: str | None,
        last: bool,
        fl_ctx: FLContext,
    ) -> list[Result]:
        """One round for all participants that were given a task.

        Args:
            number: the round.
            tasks: by participant.
            models: that came with the round, by slot.
            memory_of: the run that this one resumes; None for a new one.
            last: keep what participants are served, for the site's operator.
            fl_ctx: FLARE's context.
        """
        begins = self._store is None
        self.recall(number, memory_of or self.name, fl_ctx)
        started = time.monotonic()
        keep = partial(self._keep, number, fl_ctx) if last and self.keeps else None
        results = [self.site.carry_out(name, task, models, number, keep) for name, task in tasks.items()]
        self._report(number, results, fl_ctx)
        self.note(number, tasks, results, last, begins, fl_ctx)
        why = self.remember(number + 1)
        if why is not None:
            log_failure(self._log, f"round {number}: writing what participants remember", "disk", why, fl_ctx)
        did = "measured the final models of" if last else "worked for"
        of_part = f"{self.part}: " if self.part else ""
        self._log.log_info(fl_ctx, f"{of_part}round {number}: {did} {len(results)} participants in {_since(started)}")
        return results

    def measure(
        self,
        data: Site,
        number: int,
        tasks: Mapping[str, Task],
        models: Mapping[str, Params],
        memory_of: str | None,
        keeps: bool,
        fl_ctx: FLContext,
    ) -> list[Result]:
        """Measures models, of which no participant remembers anything.

        Args:
            data: the participants with the samples to measure on.
            number: how many rounds the models have.
            tasks: by participant; they train nothing.
            models: that came with them, by slot.
            memory_of: the run that this one resumes; None for a new one.
            keeps: keep what participants are served, for the site's operator.
            fl_ctx: FLARE's context.
        """
        self.recall(number, memory_of or self.name, fl_ctx)
        site, started = self.site.with_data_of(data), time.monotonic()
        keep = partial(self._keep, number, fl_ctx) if keeps and self.keeps else None
        results = [site.carry_out(name, task, models, number, keep) for name, task in tasks.items()]
        self._report(number, results, fl_ctx)
        what = f"{self.part or self.name} after {number} rounds"
        self._log.log_info(fl_ctx, f"{what}: measured {len(results)} participants in {_since(started)}")
        return results

    def _report(self, number: int, results: Sequence[Result], fl_ctx: FLContext) -> None:
        for result in results:
            if result.error:
                what = f"round {number}: {result.participant}"
                log_failure(self._log, what, result.error, result.traceback, fl_ctx)

    def recall(self, number: int, run_name: str, fl_ctx: FLContext) -> None:
        """Makes sure that the participants' memories are those of the round before this one.

        A process that FLARE started in the middle of a run, or for a resumed one, has to read them. The memories of a
        site that had nothing to do in the last rounds are those from before them.
        """
        if self._store is not None and number >= self._memory_round:
            return
        site, self._store = self.site, self.store(self.name, fl_ctx)
        site.memory = {name: {} for name in site.hosted}
        stores = (self._store, self.store(run_name, fl_ctx))  # a process that is started again goes on from its own
        known = [(store, v) for store in stores for v in reversed(store.versions()) if v <= number]
        if not known:
            return  # the method remembers nothing, or this site is new
        source, version = known[0]
        try:
            models, facts = source.load(version, site.runtime.resident.layout)
            check_memory_of(facts.get("method", site.method.label), site.method.label, run_name)
            division = site.runtime.division
            check_private_of(facts.get("private") or [], division.names, run_name)
        except (PayloadError, ConfigError) as error:
            self._log.log_warning(fl_ctx, f"no memory of round {number}; participants start from their centre")
            self._log.log_info(fl_ctx, f"no memory of round {number}: {error}")
            return
        for key, params in models.items():
            name, _, what = key.rpartition("#")
            if name in site.memory:
                site.memory[name][what] = params

    def _keep(self, number: int, fl_ctx: FLContext, participant: str, served: Served) -> None:
        """Saves a participant's served model for the site's operator."""
        folder, site = self.store(self.name, fl_ctx).folder / SERVED, self.site
        try:
            own = site.hosted[participant].preparation
            save_served(folder, participant, served, self._model, number, site.runtime.settings.task, own)
        except OSError as error:  # the run has its results all the same
            what = f"keeping {participant}'s model"
            log_failure(self._log, what, failure_of(error), traceback.format_exc(), fl_ctx)
        else:
            self._log.log_info(fl_ctx, f"{participant}'s model: {folder}")

    def note(
        self,
        number: int,
        tasks: Mapping[str, Task],
        results: Sequence[Result],
        last: bool,
        begins: bool,
        fl_ctx: FLContext,
    ) -> None:
        """Keeps what the site's operator may want to see of the round: what it measured, before any filter."""
        notes = [
            Note(number, r.participant, tasks[r.participant].slots, r.update is not None, r.error, r.metrics, last)
            for r in results
        ]
        try:
            keep_notes(self.store(self.name, fl_ctx).folder, number, notes, begins)
        except OSError as error:  # the round has its results all the same
            what = f"round {number}: its history"
            log_failure(self._log, what, failure_of(error), traceback.format_exc(), fl_ctx)

    def remember(self, number: int) -> str | None:
        """Writes the participants' memories, if the method has any.

        Returns:
            Why they cannot be written; the run goes on with those in memory.
        """
        assert self._store is not None
        self._memory_round, site = number, self.site
        models = {f"{name}#{what}": p for name, own in site.memory.items() for what, p in own.items()}
        facts = {"method": site.method.label, "private": site.runtime.division.names}
        return self._store.try_to_save(number, models, facts) if models else None


def log_failure(log: FLComponent, what: str, code: str, whole: str, fl_ctx: FLContext) -> None:
    """Logs the code as an error and the rest as information: FLARE sends a site's error log to the server."""
    log.log_error(fl_ctx, f"{what} failed: {code}")
    log.log_info(fl_ctx, f"{what} failed: {code}, in full: {whole}")


def check_memory_of(kept: str, asked: str, run_name: str) -> None:
    """Raises a ConfigError for the memory of another method, which may send what that one keeps at the site."""
    require(kept == asked, f"run {run_name!r} was of method {kept}, and this job is of {asked}; resume it with {kept}")


def check_private_of(kept: list[str], asked: list[str], run_name: str) -> None:
    """Raises a ConfigError for the memory of a run with other private layers, of which this job might send some."""
    other = sorted({*kept} ^ {*asked})
    require(
        not other,
        f"run {run_name!r} had {len(kept)} private arrays and this job has {len(asked)}, which differ in {other[:1]}; "
        "resume it with the same private layers",
    )


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.2f} s"
