# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's executor for a study: a site that reads its data once, and has each candidate's run apart from the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

from cfl_flare.core.config import unmarked
from cfl_flare.core.errors import PayloadError
from cfl_flare.core.settings import shows
from cfl_flare.core.text import plain
from cfl_flare.data import DataSource
from cfl_flare.data.samples import ReadOnce
from cfl_flare.engine.job_settings import ExecutorSettings
from cfl_flare.engine.settings import SiteSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.study.candidates import Candidate, every_candidate
from cfl_flare.engine.study.halving import TEST, VALIDATION
from cfl_flare.flare import wire
from cfl_flare.flare.compat import component_policy, data_config
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.policy import store_for
from cfl_flare.flare.site_run import SiteRun
from cfl_flare.flare.study.messages import CANDIDATE, COUNTS, SPLIT, asked
from cfl_flare.methods import build_method
from cfl_flare.results.store import Store


class StudyExecutor(ClusteredExecutor):
    """Carries out a study's tasks: the server names a candidate, and this site knows what that is from the job.

    Candidates share the data, which is read and checked at the first task. What a participant remembers of one, and
    the models that it is served, are in a folder of that candidate's.

    It also takes the settings of `SiteSettings` and `ExecutorSettings`.

    Args:
        model: ``{"class_path", "args"}`` of the module that is trained.
        source: ``{"class_path", "args"}`` of the site's data source.
        data: how a simulation deals the source out, and the share of validation samples; see
            `cfl_flare.data.DataConfig`.
        training: see `cfl_flare.training.settings.TrainSettings`.
        run_name: names the folder where participants' memories outlive the job.
        num_rounds: of a candidate that trains to the end.
        more: the user's own candidates: ``[{"method": "ifca", "k": 3}]``.
        seed: the study's seed.
        made_by: the software that made the job; see `cfl_flare.flare.compatibility`.
    """

    shared: ClassVar[tuple[str, ...]] = ("more", "model", "data", "training", "seed", "run_name", "num_rounds")

    @shows(SiteSettings, ExecutorSettings, as_fields=True)
    def __init__(
        self,
        model: dict[str, Any],
        source: dict[str, Any],
        data: dict[str, Any],
        training: dict[str, Any],
        run_name: str,
        num_rounds: int,
        more: list[dict[str, Any]] | None = None,
        seed: int = 0,
        made_by: dict[str, str] | None = None,
        **settings: Any,
    ):
        super().__init__({"method": "fedavg"}, model, source, data, training, run_name, seed, made_by, **settings)
        self.num_rounds, self.more = num_rounds, more
        self._known: dict[str, Candidate] = {}
        self._runs: dict[str, SiteRun] = {}

    def _host(self, site: Site, source: DataSource, content: dict[str, Any], fl_ctx: FLContext) -> None:
        config = data_config(self.data, fl_ctx, source)
        where = (ReadOnce(source), fl_ctx.get_identity_name(), content["index"], content["sites"])
        site.add(replace(config, measured_on=VALIDATION).host(*where))
        self._tests = site.tested_on(replace(config, measured_on=TEST).host(*where))
        for line in source.described() if config.partition is None else ():
            self.log_info(fl_ctx, f"data: {plain(line)}")
        policy = component_policy(fl_ctx)
        methods = [build_method(one, policy) for one in unmarked(self.more or [])]
        self._known = every_candidate(site.runtime.resident.module, self.num_rounds, methods)

    def _said(self, site: Site) -> dict[str, Any]:
        counts = {
            name: {VALIDATION: len(own.test), TEST: len(self._tests.hosted[name].test)}
            for name, own in site.hosted.items()
        }
        return {**super()._said(site), COUNTS: counts}

    def _stores(self, fl_ctx: FLContext) -> list[Store]:
        return [Store(store_for(self.run_name, fl_ctx).folder / name) for name in self._known]

    def _train(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """One round of a candidate for all participants that were given a task; after its last one, what they measure.

        Raises:
            PayloadError: there is no such candidate, or it should train where it is measured on test samples.
        """
        content = wire.content_of(wire.from_shareable(shareable).meta)
        data = self._prepared(content, fl_ctx)
        self._record("study", content, shareable, fl_ctx)
        name, split = asked(content, self._known)
        run = self._run_of(self._known[name], data, fl_ctx)
        tasks, models, content = wire.decode_task(shareable, run.site.runtime.division.public)
        number, memory_of = content["round"], content["memory_of"]
        last = number == shareable.get_header(AppConstants.NUM_ROUNDS)
        if split == TEST and (not last or any(task.train for task in tasks.values())):
            raise PayloadError("split", f"{name}: a round that trains is measured on {VALIDATION} samples alone")
        if last:
            site = self._tests if split == TEST else data
            results = run.measure(site, number, tasks, models, memory_of, split == TEST, fl_ctx)
        else:
            results = run.carry_out(number, tasks, models, memory_of, False, fl_ctx)
        reply = wire.encode_results(results, {"round": number, CANDIDATE: name, SPLIT: split})
        self._clean_up(number)
        return reply

    def _run_of(self, candidate: Candidate, data: Site, fl_ctx: FLContext) -> SiteRun:
        """A candidate's run at this site."""
        if candidate.name not in self._runs:
            site = self._empty_site(candidate.method, candidate.private, fl_ctx).with_data_of(data)
            run = SiteRun(site, self.run_name, unmarked(self.model), self, candidate.name, self._at_site.keep_served)
            self._runs[candidate.name] = run
        return self._runs[candidate.name]
