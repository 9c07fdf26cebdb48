# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's executor for clustered learning: a site that hosts one or many participants."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants
from nvflare.fuel.utils.memory_utils import cleanup_memory

from cfl_flare.core.config import build, from_dict, require, unmarked
from cfl_flare.core.errors import AbortedError, ConfigError, PayloadError, failure_of
from cfl_flare.core.settings import keep, kept, shows
from cfl_flare.core.text import plain
from cfl_flare.data import DataConfig, DataSource, SiteData
from cfl_flare.data.summary import DataSummary
from cfl_flare.engine.job_settings import ExecutorSettings
from cfl_flare.engine.partial_sums import added_up
from cfl_flare.engine.settings import FEWEST_SCORED, SiteSettings
from cfl_flare.engine.site import Result, Site, Task
from cfl_flare.flare import compatibility, wire
from cfl_flare.flare.compat import check_study, component_policy, simulated, study_of
from cfl_flare.flare.egress import check_filters
from cfl_flare.flare.paths import store_for
from cfl_flare.flare.policy import check_floor, limited_paths
from cfl_flare.methods import build_method
from cfl_flare.results.history import Note, keep_notes
from cfl_flare.results.model_file import CLASSES
from cfl_flare.results.run_dir import SERVED, save_served
from cfl_flare.results.store import Store
from cfl_flare.training.devices import Place
from cfl_flare.training.ensemble import Served
from cfl_flare.training.settings import TrainSettings


class ClusteredExecutor(Executor):
    """Carries out the server's tasks for a site's participants: it trains and measures.

    It reads no data and builds no model before its first task, so that an error in them is reported
    with its reason; a dead process would end the whole job.

    It also takes the settings of `SiteSettings` and `ExecutorSettings`. Others are refused in the first task: an error
    in the constructor would end the job for all.

    Args:
        method: as the server's: ``{"method": "wecfl", "k": 3, ...}``.
        model: ``{"class_path", "args"}`` of the module that is trained.
        source: ``{"class_path", "args"}`` of the site's data source.
        data: how a simulation deals the source out; see `cfl_flare.data.DataConfig`.
        training: see `cfl_flare.training.settings.TrainSettings`.
        run_name: names the folder where participants' memories outlive the job.
        seed: the run's seed.
        made_by: the software that made the job; see `cfl_flare.flare.compatibility`.
        private: the layers that each participant has for itself; None for none.
        private_shrinkage: how strongly they are pulled towards those that the server sends; 0 keeps them here.
    """

    @shows(SiteSettings, ExecutorSettings, as_fields=True)
    def __init__(
        self,
        method: dict[str, Any],
        model: dict[str, Any],
        source: dict[str, Any],
        data: dict[str, Any],
        training: dict[str, Any],
        run_name: str,
        seed: int = 0,
        made_by: dict[str, str] | None = None,
        private: str | None = None,
        private_shrinkage: float = 0.0,
        **settings: Any,
    ):
        super().__init__()
        self.method, self.model, self.source = method, model, source
        self.private, self.private_shrinkage = private, private_shrinkage
        self.data, self.training = data, training
        self.run_name, self.seed, self.made_by = run_name, seed, made_by
        self._unknown = keep(self, settings, SiteSettings, ExecutorSettings)
        self._site: Site | None = None
        self._store: Store | None = None
        self._memory_round = 0
        self._abort_signal = Signal()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Carries out a task; a failure is logged here, and its code alone is reported to the server."""
        self._abort_signal = abort_signal
        try:
            if task_name == wire.CHECK_TASK:
                return self._check(shareable, fl_ctx)
            if task_name == wire.TRAIN_TASK:
                return self._train(shareable, fl_ctx)
            return make_reply(ReturnCode.TASK_UNKNOWN)
        except AbortedError as error:
            self.log_info(fl_ctx, str(error))
            return make_reply(ReturnCode.TASK_ABORTED)
        except Exception as error:
            self._log_failure(f"task {task_name!r}", failure_of(error), traceback.format_exc(), fl_ctx)
            return wire.encode_failure(error)

    def _log_failure(self, what: str, code: str, whole: str, fl_ctx: FLContext) -> None:
        """Logs the code as an error and the rest as information: FLARE sends a site's error log to the server."""
        self.log_error(fl_ctx, f"{what} failed: {code}")
        self.log_info(fl_ctx, f"{what} failed: {code}, in full: {whole}")

    def _check(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Checks that the server's job is this one, reads the data, builds the model, and says whom this site hosts."""
        content = wire.content_of(wire.from_shareable(shareable).meta)
        self._agree(content, fl_ctx)
        site = self._prepared(content, fl_ctx)
        kept_back = [name for name in site.hosted if site.score_shape is not None and not site.sends_scores(name)]
        if kept_back:
            least = f"fewer than {FEWEST_SCORED} test samples"
            self.log_info(fl_ctx, f"{', '.join(kept_back)}: no histograms of scores are sent, of {least}")
        if content["memory_of"] != self.run_name:  # memories of an earlier run of this name are not this one's
            store_for(self.run_name, fl_ctx).keep_previous()
        for own in site.hosted.values() if len(site.hosted) == 1 else ():
            summary = DataSummary.of(own)
            self.log_info(fl_ctx, f"data: {summary.line}")
            for remark in summary.remarks:
                self.log_warning(fl_ctx, f"data: {remark}")
        if site.runtime.division.shrinkage:
            pulled = f"private = {self.private!r} names layers that are pulled to the cluster's"
            self.log_info(fl_ctx, f"private_shrinkage = {self.private_shrinkage}: {pulled}: their parameters leave")
        hosted = [
            {"name": d.name, "samples": len(d.train), "group": d.group, "tested": len(d.test) > 0}
            for d in site.hosted.values()
        ]
        return wire.to_shareable({}, {"participants": hosted})

    def _agree(self, content: dict[str, Any], fl_ctx: FLContext) -> None:
        """Checks that job and server are compatible with what is installed here, and have the same settings."""
        place = fl_ctx.get_identity_name()
        unused = compatibility.unused_copy(fl_ctx)
        if unused:
            self.log_warning(fl_ctx, unused)
        compatibility.check_maker(unmarked(self.made_by or {}), place)
        compatibility.check_software(content["software"], "the server runs", place)
        compatibility.check_known(self._unknown, "executor", place)
        compatibility.check_settings(content["job"], {key: getattr(self, key) for key in compatibility.SHARED}, place)
        check_filters(fl_ctx)
        check_floor(content["min_sites_per_cluster"], fl_ctx)

    def _train(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """One round for all participants that were given a task."""
        content = wire.content_of(wire.from_shareable(shareable).meta)
        site = self._prepared(content, fl_ctx)
        tasks, models, content = wire.decode_task(shareable, site.runtime.division.public)
        number = content["round"]
        begins = self._store is None
        self._recall(number, site, content["memory_of"] or self.run_name, fl_ctx)
        started = time.monotonic()
        last = number == shareable.get_header(AppConstants.NUM_ROUNDS)
        keep = partial(self._keep, number, fl_ctx) if last else _leave
        results = [site.carry_out(name, task, models, number, keep) for name, task in tasks.items()]
        for result in results:
            if result.error:
                self._log_failure(f"round {number}: {result.participant}", result.error, result.traceback, fl_ctx)
        self._note(number, tasks, results, last, begins, fl_ctx)
        why = self._remember(number + 1, site)
        if why is not None:
            self._log_failure(f"round {number}: writing what participants remember", "disk", why, fl_ctx)
        did = "measured the final models of" if last else "worked for"
        seconds = time.monotonic() - started
        self.log_info(fl_ctx, f"round {number}: {did} {len(results)} participants in {seconds:.2f} s")
        if self._own.site_sums:
            results = added_up(results, models, site.method)
        reply = wire.encode_results(results, {"round": number})
        if self._own.memory_gc_rounds and (number + 1) % self._own.memory_gc_rounds == 0:
            cleanup_memory(self._own.cuda_empty_cache)
        return reply

    def _prepared(self, content: dict[str, Any], fl_ctx: FLContext) -> Site:
        """The site, built at the first task that this process gets."""
        if self._site is None:
            own = kept(SiteSettings, self, "run")
            self._own = kept(ExecutorSettings, self, "run")
            torch.set_num_threads(own.torch_threads)
            policy = component_policy(fl_ctx)
            with limited_paths(fl_ctx):  # a source may read a file that describes its columns
                source = build(self.source, DataSource, "data", policy)  # type: ignore[type-abstract]
            if isinstance(source, SiteData):
                source = replace(source, study=check_study(source.study, study_of(fl_ctx)))
            config = from_dict(DataConfig, unmarked(self.data), "data")
            together = content["sites"] if simulated(fl_ctx) else None
            place = Place.of(own.device, own.gpu_memory, content["index"], together)
            site = Site(
                build_method(unmarked(self.method), policy),
                partial(build, self.model, torch.nn.Module, "model", policy),
                from_dict(TrainSettings, unmarked(self.training), "training"),
                self.seed,
                own.evaluate_trained,
                place.device,
                should_stop=lambda: bool(self._abort_signal.triggered),
                private=self.private,
                private_shrinkage=self.private_shrinkage,
                authorize=policy,
                fewest_scored=1 if simulated(fl_ctx) else FEWEST_SCORED,
            )
            place.limit()
            self.log_info(fl_ctx, f"{fl_ctx.get_identity_name()} computes on {place}")
            with limited_paths(fl_ctx):
                site.add(config.host(source, fl_ctx.get_identity_name(), content["index"], content["sites"]))
                for line in source.described() if config.partition is None else ():
                    self.log_info(fl_ctx, f"data: {plain(line)}")
            self._site = site
        return self._site

    def _recall(self, number: int, site: Site, run_name: str, fl_ctx: FLContext) -> None:
        """Makes sure that the participants' memories are those of the round before this one.

        A process that FLARE started in the middle of a run, or for a resumed one, has to read them. The memories of a
        site that had nothing to do in the last rounds are those from before them.
        """
        if self._store is not None and number >= self._memory_round:
            return
        self._store = store_for(self.run_name, fl_ctx)
        site.memory = {name: {} for name in site.hosted}
        source = store_for(run_name, fl_ctx)
        versions = [version for version in source.versions() if version <= number]
        if not versions:
            return  # the method remembers nothing, or this site is new
        try:
            models, facts = source.load(versions[-1], site.runtime.resident.layout)
            check_memory_of(facts.get("method", site.method.label), site.method.label, run_name)
            division = site.runtime.division
            check_private_of(facts.get("private") or [], division.names, run_name)
            check_shrinkage_of(facts.get("private_shrinkage") or 0.0, division.shrinkage, run_name)
        except (PayloadError, ConfigError) as error:
            self.log_warning(fl_ctx, f"no memory of round {number} ({error}); participants start from their centre")
            return
        for key, params in models.items():
            name, _, what = key.rpartition("#")
            if name in site.memory:
                site.memory[name][what] = params

    def _keep(self, number: int, fl_ctx: FLContext, participant: str, served: Served) -> None:
        """Saves a participant's served model for the site's operator."""
        folder = store_for(self.run_name, fl_ctx).folder / SERVED
        try:
            task = unmarked(self.training).get("task", CLASSES)
            own = None if self._site is None else self._site.hosted[participant].preparation
            save_served(folder, participant, served, self.model, number, task, own)
        except OSError as error:  # the run has its results all the same
            self._log_failure(f"keeping {participant}'s model", failure_of(error), traceback.format_exc(), fl_ctx)
        else:
            self.log_info(fl_ctx, f"{participant}'s model: {folder}")

    def _note(
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
            keep_notes(store_for(self.run_name, fl_ctx).folder, number, notes, begins)
        except OSError as error:  # the round has its results all the same
            self._log_failure(f"round {number}: its history", failure_of(error), traceback.format_exc(), fl_ctx)

    def _remember(self, number: int, site: Site) -> str | None:
        """Writes the participants' memories, if the method has any.

        Returns:
            Why they cannot be written; the run goes on with those in memory.
        """
        assert self._store is not None
        self._memory_round = number
        models = {f"{name}#{what}": p for name, own in site.memory.items() for what, p in own.items()}
        division = site.runtime.division
        facts = {"method": site.method.label, "private": division.names, "private_shrinkage": division.shrinkage}
        return self._store.try_to_save(number, models, facts) if models else None


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


def check_shrinkage_of(kept: float, asked: float, run_name: str) -> None:
    """Raises a ConfigError for the memory of a run with another shrinkage: what was kept there would travel here."""
    require(
        kept == asked,
        f"run {run_name!r} had private_shrinkage = {kept} and this job has {asked}; resume it with the same",
    )


def _leave(participant: str, served: Served) -> None:
    """Keeps no served model; for all rounds but the last."""
