# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's executor for clustered learning: a site that hosts one or many participants."""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants
from nvflare.fuel.utils.memory_utils import cleanup_memory

from cfl_flare.core.config import build, from_dict, require, unmarked
from cfl_flare.core.errors import AbortedError, BudgetError, ColumnsError, failure_of
from cfl_flare.core.settings import from_attributes, keep, shows
from cfl_flare.core.text import plain
from cfl_flare.data import DataConfig, DataSource, SiteData
from cfl_flare.data.sources import COLUMNS, GROUP
from cfl_flare.data.summary import DataSummary, clipped_line
from cfl_flare.data.table import Table
from cfl_flare.engine.partial_sums import added_up
from cfl_flare.engine.plan import ExecutorSettings
from cfl_flare.engine.settings import FEWEST_SCORED, SiteSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result
from cfl_flare.flare import policy, wire
from cfl_flare.flare.allowed import Policy
from cfl_flare.flare.class_names import names_to_state
from cfl_flare.flare.compat import component_policy, simulated
from cfl_flare.flare.egress import check_filters
from cfl_flare.flare.schema import CLASSES, CLIPPED, LABEL
from cfl_flare.flare.site_books import BooksOrder, JobAttendance, open_books
from cfl_flare.flare.site_run import RoundTask, SiteRun, check_split, log_failure
from cfl_flare.methods import Method, build_method
from cfl_flare.results.schema import LONGEST
from cfl_flare.training.membership import AttackRule
from cfl_flare.training.privacy import Books
from cfl_flare.training.runtime import Place
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
        made_by: the software that made the job; see `cfl_flare.flare.policy.SOFTWARE`.
        private: the layers that each participant has for itself; None for none.
    """

    # The settings that must be equal to the server's.
    shared: ClassVar[tuple[str, ...]] = policy.SHARED

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
        **settings: Any,
    ):
        super().__init__()
        self.method, self.model, self.source = method, model, source
        self.private, self.data, self.training = private, data, training
        self.run_name, self.seed, self.made_by = run_name, seed, made_by
        self._unknown = keep(self, settings, SiteSettings, ExecutorSettings)
        self._site: Site | None = None
        # By name, the job's runs, and those of them that have begun here; the name is empty if there is but one.
        self._known: Mapping[str, Any] = {"": None}
        self._runs: dict[str, SiteRun] = {}
        self._abort_signal = Signal()
        self._attendance = JobAttendance()
        # Where the operator's data lies, empty for what the job names, and the data set that the operator has it in.
        self._place = ""
        self._data = ""
        self._hosts = False
        self._answered = 0
        self._books: Books | None = None
        self._labels: Mapping[str, str] = {}
        self._classes: tuple[str, ...] = ()

    def execute(
        self,
        task_name: str,
        shareable: Shareable,
        fl_ctx: FLContext,
        abort_signal: Signal,
    ) -> Shareable:
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
            code = self._report(failure_of(error))
            log_failure(
                self, f"task {task_name!r}", code, traceback.format_exc(), fl_ctx
            )
            return wire.to_shareable({}, {"error": code})

    def _report(self, code: str) -> str:
        """What leaves in place of a failure's code; before the site looks at its data, the code itself."""
        return (
            self._books.report(code)
            if self._books is not None and self._hosts
            else code
        )

    def _check(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Checks that the server's job is this one, reads the data, builds the model, and says whom this site hosts."""
        content = wire.content_of(wire.from_shareable(shareable).meta)
        self._agree(content, fl_ctx)
        site = self._prepared(content, fl_ctx)
        policy.check_attacks(
            site.runtime.settings,
            min(len(data.test) for data in site.hosted.values()),
            fl_ctx,
        )
        if not simulated(fl_ctx):
            check_split(self.run_name, content["memory_of"], site, fl_ctx)
        kept_back = [
            name
            for name in site.hosted
            if site.score_shape is not None and not site.sends_counts(name)
        ]
        if kept_back:
            least = f"fewer than {FEWEST_SCORED} test samples"
            self.log_info(
                fl_ctx,
                f"{', '.join(kept_back)}: no histograms of scores are sent, of {least}",
            )
        if (
            content["memory_of"] != self.run_name
        ):  # memories of an earlier run of this name are not this one's
            for name in self._known:
                policy.store_for(self.run_name, fl_ctx).part(name).keep_previous()
        for hosted in site.hosted.values() if len(site.hosted) == 1 else ():
            summary = DataSummary.of(hosted)
            for line in (summary.line, *clipped_line([hosted]), *summary.remarks):
                self.log_info(
                    fl_ctx, f"data: {line}"
                )  # a job may stream what is above info
        for remark in site.remarks:
            self.log_info(fl_ctx, f"model: {remark}")
        return wire.to_shareable({}, self._said(site))

    def _said(self, site: Site) -> dict[str, Any]:
        """Whom this site hosts, for the server."""
        hosted: list[dict[str, Any]] = []
        for data in site.hosted.values():
            counts = {"samples": site.samples(data.name), "tested": len(data.test) > 0}
            hosted.append({"name": data.name, "group": data.group, **counts})
            if (
                self.data.get("partition") is not None
            ):  # real patients' numbers are counted in the site's own log
                hosted[-1][CLIPPED] = data.clipped
            if data.name in self._labels:
                hosted[-1][LABEL] = self._labels[data.name]
        said: dict[str, Any] = {"participants": hosted}
        if self._classes:
            said[CLASSES] = list(self._classes)
        return said

    def _agree(self, content: dict[str, Any], fl_ctx: FLContext) -> None:
        """Checks that job and server are compatible with what is installed here, and have the same settings."""
        place = fl_ctx.get_identity_name()
        if (remark := policy.unused_copy(fl_ctx)) is not None:
            self.log_warning(fl_ctx, remark)
        policy.check_software(
            unmarked(self.made_by or {}), "the job was made by", place
        )
        policy.check_software(content["software"], "the server runs", place)
        policy.check_known(self._unknown, "executor", place)
        policy.check_same_settings(
            content["job"], {key: getattr(self, key) for key in self.shared}, place
        )
        check_filters(fl_ctx)
        policy.check_floor(content.get("bounds"), fl_ctx)

    def _train(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """One round of a run for all participants that were given a task; after its last one, what they measure."""
        content = wire.content_of(wire.from_shareable(shareable).meta)
        site = self._prepared(content, fl_ctx)
        self._record(content, shareable, fl_ctx)
        run, tag = self._run_of(content, site, fl_ctx)
        tasks, models, content = wire.decode_task(
            shareable, run.site.runtime.division.public
        )
        number = content["round"]
        last = number == shareable.get_header(AppConstants.NUM_ROUNDS)
        results = self._results(
            run,
            RoundTask(number, tasks, models, content["memory_of"], last),
            tag,
            fl_ctx,
        )
        if self._settings.site_sums:
            results = added_up(results, models, run.site.method)
        reply = wire.encode_results(results, {"round": number, **tag})
        self._answered += any(result.update is not None for result in results)
        if (
            self._settings.memory_gc_rounds
            and (number + 1) % self._settings.memory_gc_rounds == 0
        ):
            cleanup_memory(self._settings.cuda_empty_cache)
        return reply

    def _run_of(
        self, content: dict[str, Any], site: Site, fl_ctx: FLContext
    ) -> tuple[SiteRun, dict[str, str]]:
        """The run that a task is of, and what the answer says of it; here it is the job's only one."""
        if not self._runs:
            self._runs[""] = self._site_run(site)
        return self._runs[""], {}

    def _site_run(self, site: Site, name: str = "") -> SiteRun:
        made_with = {
            "source": self.source,
            "data": self.data,
            "training": self.training,
            "seed": self.seed,
        }
        return SiteRun(
            site,
            self.run_name,
            unmarked(self.model),
            self,
            name,
            self._at_site.keep_served,
            made_with,
        )

    def _results(
        self, run: SiteRun, task: RoundTask, tag: dict[str, str], fl_ctx: FLContext
    ) -> list[Result]:
        return run.carry_out(task, fl_ctx)

    @property
    def _recorded_as(self) -> str:
        """The method's name in the site's record of jobs."""
        return str(unmarked(self.method)["method"])

    def _record(
        self, content: dict[str, Any], shareable: Shareable, fl_ctx: FLContext
    ) -> None:
        """Writes what this site is about to take part in; nothing in a simulation.

        Raises:
            DifferenceError: with this site's earlier jobs, its models would give those of too few sites.
            FileError: the record cannot be read or written.
        """
        if simulated(fl_ctx):
            return
        hosted = self._site.hosted if self._site is not None else {}
        counts = {person: len(data.train) for person, data in hosted.items()}
        facts = {
            "data": self._data,
            "run": self.run_name,
            "method": self._recorded_as,
            "model": unmarked(self.model)["class_path"],
            "rounds": shareable.get_header(AppConstants.NUM_ROUNDS),
            "runs": self._runs_of_job,
            "participants": counts,
        }
        round_facts = {"answered": self._answered, **self._stage_of(content)}
        self._attendance.note_task(content, facts, round_facts, fl_ctx)

    @property
    def _runs_of_job(self) -> int | None:
        """How many runs the job has; None if that depends on what they measure."""
        return 1

    def _stage_of(self, content: Mapping[str, Any]) -> dict[str, str]:
        """What a round is of, for the site's record, if the job has several runs."""
        return {}

    def _prepared(self, content: dict[str, Any], fl_ctx: FLContext) -> Site:
        """The site, built at the first task that this process gets."""
        if self._site is None:
            self._at_site = at_site = from_attributes(SiteSettings, self, "run")
            self._settings = from_attributes(ExecutorSettings, self, "run")
            torch.set_num_threads(at_site.torch_threads)
            authorize = component_policy(fl_ctx)
            with policy.limited_paths(
                fl_ctx
            ):  # a source may read a file that describes its columns
                source = build(self.source, DataSource, "data", authorize)  # type: ignore[type-abstract]
            if (
                isinstance(source, Table)
                and os.environ.get(COLUMNS)
                and not simulated(fl_ctx)
            ):
                raise ColumnsError(
                    f"data table: the columns are those of {COLUMNS} here; use the source site"
                )
            if isinstance(source, SiteData):
                source = replace(source, study=policy.study_of(fl_ctx, source.study))
                self._place = (
                    ""
                    if source.path is not None
                    else str(source.located()[0].resolve())[-LONGEST:]
                )
                self._data = Policy.of(fl_ctx).data_set_of(self._place)
            together = content["sites"] if simulated(fl_ctx) else None
            self._books = self._opened_books(source, content, fl_ctx)
            self._device = Place.of(
                at_site.device, at_site.gpu_memory, content["index"], together
            )
            site = self._empty_site(
                build_method(unmarked(self.method), authorize), self.private, fl_ctx
            )
            self._device.limit()
            self.log_info(
                fl_ctx, f"{fl_ctx.get_identity_name()} computes on {self._device}"
            )
            self._hosts = True
            with policy.limited_paths(fl_ctx):
                self._host(site, source, content, fl_ctx)
            self._site = site
        return self._site

    def _empty_site(
        self, method: Method, private: str | None, fl_ctx: FLContext
    ) -> Site:
        """A run's site that hosts nobody yet."""
        authorize, limits = component_policy(fl_ctx), Policy.of(fl_ctx)
        return Site(
            method,
            partial(build, self.model, torch.nn.Module, "model", authorize),
            from_dict(TrainSettings, unmarked(self.training), "training"),
            self.seed,
            self._at_site.evaluate_trained,
            self._device.device,
            should_stop=lambda: bool(self._abort_signal.triggered),
            private=private,
            authorize=authorize,
            fewest_scored=1 if simulated(fl_ctx) else FEWEST_SCORED,
            rule=AttackRule(limits.max_tpr_at_1pct_fpr, limits.accept_unmeasured),
            books=self._books,
            secret=not simulated(fl_ctx),
        )

    def _opened_books(
        self, source: DataSource, content: dict[str, Any], fl_ctx: FLContext
    ) -> Books | None:
        """The site's ledger of privacy, in which participants write what they spend; None for a simulation.

        Raises:
            BudgetError: the operator has set a budget, and the job has no dp, or asks for more than is left.
            LedgerError: the ledger cannot be trusted.
        """
        if simulated(fl_ctx):
            return None
        training = from_dict(TrainSettings, unmarked(self.training), "training")
        order = BooksOrder(
            self.source,
            self.data,
            self.seed,
            self._place,
            self.run_name,
            content.get("memory_of"),
            training.privacy,
        )
        return open_books(order, source, fl_ctx)

    def _host(
        self, site: Site, source: DataSource, content: dict[str, Any], fl_ctx: FLContext
    ) -> None:
        """Reads the data, and gives each participant that this site hosts its own."""
        config = policy.data_config(self.data, fl_ctx, source)
        counted_twice = (
            config.repeated_patients == "allow" and source.patient is not None
        )
        reason = "data: repeated_patients = 'allow' counts a patient more than once, and dp promises each one epsilon"
        is_private = self._books is not None
        require(
            not (counted_twice and is_private),
            f"{reason}; set it to first or drop",
            BudgetError,
        )
        with site.preparing():
            site.add(
                config.host(
                    source,
                    fl_ctx.get_identity_name(),
                    content["index"],
                    content["sites"],
                )
            )
        for line in config.described(source) if config.partition is None else ():
            self.log_info(fl_ctx, f"data: {plain(line)}")
        self._labels = self._labels_of(site, source, config, fl_ctx)
        self._classes = self._names_to_state(site, source, fl_ctx)

    def _names_to_state(
        self, site: Site, source: DataSource, fl_ctx: FLContext
    ) -> tuple[str, ...]:
        """The names of this site's classes for its check-in."""
        return names_to_state(
            site.hosted,
            source.agreed_classes,
            self._books is not None,
            simulated(fl_ctx),
        )

    def _named_groups(self, site: Site) -> Collection[str]:
        return site.method.traits.named_groups

    def _labels_of(
        self, site: Site, source: DataSource, config: DataConfig, fl_ctx: FLContext
    ) -> Mapping[str, str]:
        """The groups that participants name, of those that the job lists: no other text leaves."""
        groups = self._named_groups(site)
        of_rows = self._books is not None and not isinstance(source, SiteData)
        reason = "data: with dp, a group that rows name would not be protected"
        require(
            not (groups and of_rows), f"{reason}; use the source site, and set {GROUP}"
        )
        labels = (
            {data.name: config.label_of(source, data) for data in site.hosted.values()}
            if groups
            else {}
        )
        for name in (name for name, label in labels.items() if label not in groups):
            self.log_info(
                fl_ctx,
                f"data: {name} names none of the job's groups; it is served the common model",
            )
        return {
            name: label
            for name, label in labels.items()
            if label is not None and label in groups
        }
