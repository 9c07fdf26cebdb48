# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run at one site: it carries out the server's tasks, and keeps what its participants remember between rounds."""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, PayloadError, failure_of
from cfl_flare.core.files import atomic_write, make_folder, read_json
from cfl_flare.core.params import Params
from cfl_flare.core.text import shown
from cfl_flare.data import Samples
from cfl_flare.engine.site import Result, Site, Task
from cfl_flare.flare.policy import store_for
from cfl_flare.methods import describe_method
from cfl_flare.results import schema
from cfl_flare.results.run_dir import SERVED, Note, keep_notes
from cfl_flare.results.served import save_served
from cfl_flare.results.store import Store
from cfl_flare.training.ensemble import Served

# In a site's folder of a run: a digest of each participant's training and test samples.
SPLITS = "splits.json"


@dataclass(frozen=True)
class RoundTask:
    """A round's tasks at a site, by participant, and the models that came with them, by slot.

    Attributes:
        memory_of: the run that this one resumes; None for a new one.
        last: all rounds are done: the final models are measured, and kept for the site's operator.
    """

    number: int
    tasks: Mapping[str, Task]
    models: Mapping[str, Params]
    memory_of: str | None
    last: bool


@dataclass
class SiteRun:
    """The participants of one run at a site, and its folder below the site's state root.

    Attributes:
        model: ``{"class_path", "args"}`` of the module, kept beside served models.
        log: the component that writes the log.
        part: names a folder in the run's: of a study's candidate.
        keeps: keep what participants predict with at the end.
        made_with: the job's settings of data and training, kept beside served models.
    """

    site: Site
    name: str
    model: Mapping[str, Any]
    log: FLComponent
    part: str = ""
    keeps: bool = True
    made_with: Mapping[str, Any] | None = None
    _store: Store | None = None
    _memory_round: int = 0

    def store(self, name: str, fl_ctx: FLContext) -> Store:
        return store_for(name, fl_ctx).part(self.part)

    def carry_out(self, task: RoundTask, fl_ctx: FLContext) -> list[Result]:
        """One round for all participants that were given a task."""
        begins, number = self._store is None, task.number
        did = f"round {number}: {'measured the final models of' if task.last else 'worked for'}"
        results = self._results(
            None, task, task.last, f"{self.part}: {did}" if self.part else did, fl_ctx
        )
        self.note(task, results, begins, fl_ctx)
        why = self.remember(number + 1)
        if why is not None:
            log_failure(
                self.log,
                f"round {number}: writing what participants remember",
                "disk",
                why,
                fl_ctx,
            )
        return results

    def measure(
        self, data: Site, task: RoundTask, keeps: bool, fl_ctx: FLContext
    ) -> list[Result]:
        """Measures models on the samples of ``data``, and remembers nothing; ``keeps`` what participants are served."""
        did = f"{self.part or self.name} after {task.number} rounds: measured"
        return self._results(data, task, keeps, did, fl_ctx)

    def _results(
        self,
        data: Site | None,
        task: RoundTask,
        keeps: bool,
        did: str,
        fl_ctx: FLContext,
    ) -> list[Result]:
        number, started = task.number, time.monotonic()
        self.recall(number, task.memory_of or self.name, fl_ctx)
        site = self.site if data is None else self.site.with_data_of(data)
        keep = partial(self._keep, number, fl_ctx) if keeps and self.keeps else None
        results = [
            site.carry_out(name, order, task.models, number, keep)
            for name, order in task.tasks.items()
        ]
        site.runtime.forget()
        for result in results:
            if result.error:
                what = f"round {number}: {result.participant}"
                log_failure(self.log, what, result.error, result.traceback, fl_ctx)
        self.log.log_info(
            fl_ctx,
            f"{did} {len(results)} participants in {time.monotonic() - started:.2f} s",
        )
        return results

    def recall(self, number: int, run_name: str, fl_ctx: FLContext) -> None:
        """Makes sure that the participants' memories are those of the round before this one.

        A process that FLARE started in the middle of a run, or for a resumed one, has to read them. The memories of a
        site that had nothing to do in the last rounds are those from before them.
        """
        if self._store is not None and number >= self._memory_round:
            return
        site, self._store = self.site, self.store(self.name, fl_ctx)
        site.memory = {name: {} for name in site.hosted}
        stores = (
            self._store,
            self.store(run_name, fl_ctx),
        )  # a process that is started again goes on from its own
        known = [
            (store, v)
            for store in stores
            for v in reversed(store.versions())
            if v <= number
        ]
        if not known:
            return  # the method remembers nothing, or this site is new
        source, version = known[0]
        try:
            models, facts = source.load(version, site.runtime.resident.layout)
            check_memory_of(run_name, facts, site)
        except (PayloadError, ConfigError) as error:
            self.log.log_warning(
                fl_ctx,
                f"no memory of round {number}; participants start from their centre",
            )
            self.log.log_info(fl_ctx, f"no memory of round {number}: {error}")
            return
        for key, params in models.items():
            name, _, what = key.rpartition("#")
            if name in site.memory:
                site.memory[name][what] = params

    def _keep(
        self, number: int, fl_ctx: FLContext, participant: str, served: Served
    ) -> None:
        """Saves a participant's served model for the site's operator."""
        folder, site = self.store(self.name, fl_ctx).folder / SERVED, self.site
        try:
            task, preparation = (
                site.runtime.settings.task,
                site.hosted[participant].preparation,
            )
            save_served(
                folder,
                participant,
                served,
                self.model,
                number,
                task,
                preparation,
                made_with=self.made_with,
            )
        except OSError as error:  # the run has its results all the same
            what = f"keeping {participant}'s model"
            log_failure(
                self.log, what, failure_of(error), traceback.format_exc(), fl_ctx
            )
        else:
            self.log.log_info(fl_ctx, f"{participant}'s model: {folder}")

    def note(
        self,
        task: RoundTask,
        results: Sequence[Result],
        begins: bool,
        fl_ctx: FLContext,
    ) -> None:
        """Keeps what the site's operator may want to see of the round: what it measured, before any filter."""
        slots = {name: order.slots for name, order in task.tasks.items()}
        notes = [
            Note(
                task.number,
                r.participant,
                slots[r.participant],
                r.update is not None,
                r.error,
                r.metrics,
                task.last,
            )
            for r in results
        ]
        try:
            keep_notes(self.store(self.name, fl_ctx).folder, task.number, notes, begins)
        except OSError as error:  # the round has its results all the same
            what = f"round {task.number}: its history"
            log_failure(
                self.log, what, failure_of(error), traceback.format_exc(), fl_ctx
            )

    def remember(self, number: int) -> str | None:
        """Writes the participants' memories, if any; says why it cannot, and the run goes on with those in memory."""
        assert self._store is not None
        self._memory_round, site = number, self.site
        models = {
            f"{name}#{what}": p
            for name, memory in site.memory.items()
            for what, p in memory.items()
        }
        facts = {
            "method": describe_method(site.method),
            "private": site.runtime.division.names,
        }
        return self._store.try_to_save(number, models, facts) if models else None


def log_failure(
    log: FLComponent, what: str, code: str, details: str, fl_ctx: FLContext
) -> None:
    """Logs the code as an error and the rest as information: FLARE sends a site's error log to the server."""
    log.log_error(fl_ctx, f"{what} failed: {code}")
    log.log_info(fl_ctx, f"{what} failed: {code}, in full: {details}")


def check_split(
    run_name: str, memory_of: str | None, site: Site, fl_ctx: FLContext
) -> None:
    """Keep a digest of each participant's split, and compare it with the digest of the run that is resumed.

    Otherwise an attack would take patients for others who have trained before.

    Args:
        run_name: of this run.
        memory_of: the run that it resumes; None for a new run.
        site: hosts the participants.
        fl_ctx: of the job.

    Raises:
        ConfigError: a participant trains or tests with other samples than in the run that is resumed.
        FileError: the digests cannot be read or written.
    """
    digests = {
        name: hash_samples(data.train, data.test) for name, data in site.hosted.items()
    }
    if memory_of is not None:
        path = store_for(memory_of, fl_ctx).folder / SPLITS
        before = (
            schema.checked(read_json(path), str(path), {}, {}) if path.is_file() else {}
        )
        other = [
            name
            for name, digest in digests.items()
            if before.get(name, digest) != digest
        ]
        require(
            not other,
            f"run: resume_from = {memory_of!r}: {shown(other[:1])} has other training or test samples now\n"
            "hint: give the site the same data and split, or start a new run",
        )
    folder = store_for(run_name, fl_ctx).folder
    make_folder(folder, private=True)
    atomic_write(folder / SPLITS, json.dumps(digests))


def hash_samples(*splits: Samples) -> str:
    """Compute the SHA-256 of samples and labels, in their order."""
    digest = hashlib.sha256()
    for split in splits:
        for array in (split.x, split.y):
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def check_memory_of(run_name: str, facts: Mapping[str, Any], site: Site) -> None:
    """Raises a ConfigError for the memory of another method, or of a run with other private layers.

    This job might send what that run has kept at the site. A memory's place among the parts of a method says nothing of
    the part that wrote it unless the whole method is the same, with all its parts and settings.
    """
    before = facts.get("method")
    now = json.loads(json.dumps(describe_method(site.method)))
    writer = before.get("method") if isinstance(before, dict) else before
    differs = f"run {run_name!r} was of method {shown(writer)}, and this job is of {shown(now['method'])}"
    way_out = "resume it with the same method, parts and settings"
    require(before == now, f"{differs}, with other parts or settings; {way_out}")
    kept_before, kept_now = (
        set(facts.get("private") or ()),
        set(site.runtime.division.names),
    )
    other = sorted(kept_before ^ kept_now)
    require(
        not other,
        f"run {run_name!r} had {len(kept_before)} private arrays and this job has {len(kept_now)}, which differ in "
        f"{other[:1]}; resume it with the same private layers",
    )
