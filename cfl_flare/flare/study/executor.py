# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's executor for a study: a site that reads its data once, and has each candidate's run apart from the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from nvflare.apis.fl_context import FLContext

from cfl_flare.core.config import unmarked
from cfl_flare.core.errors import PayloadError
from cfl_flare.core.settings import extends
from cfl_flare.core.text import plain, shown
from cfl_flare.data import DataSource
from cfl_flare.data.samples import ReadOnce
from cfl_flare.engine.site import Site
from cfl_flare.engine.study.candidates import every_candidate
from cfl_flare.engine.study.halving import TEST, VALIDATION
from cfl_flare.engine.task import Result
from cfl_flare.flare.compat import component_policy
from cfl_flare.flare.policy import data_config
from cfl_flare.flare.several import COUNTS, SPLIT, SPLITS, SeveralExecutor
from cfl_flare.flare.site_run import RoundTask, SiteRun
from cfl_flare.methods import build_method


class StudyExecutor(SeveralExecutor):
    """Carries out a study's tasks: the server names a candidate, and this site knows what that is from the job.

    It also takes the arguments of `cfl_flare.flare.several.SeveralExecutor`, without the runs.

    Args:
        num_rounds: of a candidate that trains to the end.
        more: the user's own candidates: ``[{"method": "ifca", "k": 3}]``.
    """

    _recorded_as = "study"
    shared: ClassVar[tuple[str, ...]] = (
        "more",
        "model",
        "data",
        "training",
        "seed",
        "run_name",
        "num_rounds",
    )

    @extends(SeveralExecutor.__init__, "runs")
    def __init__(
        self,
        num_rounds: int,
        more: list[dict[str, Any]] | None = None,
        **arguments: Any,
    ):
        super().__init__(**arguments)
        self.num_rounds, self.more = num_rounds, more

    @property
    def _runs_of_job(self) -> int | None:
        return None

    def _stage_of(self, content: Mapping[str, Any]) -> dict[str, str]:
        return {
            **super()._stage_of(content),
            "split": plain(str(content.get(SPLIT, ""))),
        }

    def _host(
        self, site: Site, source: DataSource, content: dict[str, Any], fl_ctx: FLContext
    ) -> None:
        config = data_config(self.data, fl_ctx, source)
        where = (
            ReadOnce(source),
            fl_ctx.get_identity_name(),
            content["index"],
            content["sites"],
        )
        with site.preparing():
            site.add(replace(config, measured_on=VALIDATION).host(*where))
            self._tests = site.tested_on(replace(config, measured_on=TEST).host(*where))
        for line in config.described(source) if config.partition is None else ():
            self.log_info(fl_ctx, f"data: {plain(line)}")
        self._classes = self._names_to_state(site, source, fl_ctx)
        policy = component_policy(fl_ctx)
        methods = [build_method(method, policy) for method in unmarked(self.more or [])]
        self._known = every_candidate(
            site.runtime.resident.module, self.num_rounds, methods
        )

    def _said(self, site: Site) -> dict[str, Any]:
        counts = {
            name: {VALIDATION: len(data.test), TEST: len(self._tests.hosted[name].test)}
            for name, data in site.hosted.items()
        }
        return {**super()._said(site), COUNTS: counts}

    def _run_of(
        self, content: dict[str, Any], site: Site, fl_ctx: FLContext
    ) -> tuple[SiteRun, dict[str, str]]:
        run, tag = super()._run_of(content, site, fl_ctx)
        split = content.get(SPLIT)
        if split not in SPLITS:
            raise PayloadError(
                "split", f"split = {shown(split)} should be one of {', '.join(SPLITS)}"
            )
        return run, {**tag, SPLIT: str(split)}

    def _results(
        self, run: SiteRun, task: RoundTask, tag: dict[str, str], fl_ctx: FLContext
    ) -> list[Result]:
        """What participants make of their tasks; a candidate's final models are measured, and nothing remembers it."""
        tests = tag[SPLIT] == TEST
        if tests and (
            not task.last or any(order.train for order in task.tasks.values())
        ):
            raise PayloadError(
                "split",
                f"{run.part}: a round that trains is measured on {VALIDATION} samples alone",
            )
        if not task.last:
            return run.carry_out(task, fl_ctx)
        assert self._site is not None
        return run.measure(self._tests if tests else self._site, task, tests, fl_ctx)
