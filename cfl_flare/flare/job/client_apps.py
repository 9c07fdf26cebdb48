# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the sites of a job run: all the same, or each with its own settings by FLARE's ``set_per_site_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from nvflare.apis.filter import Filter
from nvflare.apis.job_def import ALL_SITES
from nvflare.client.config import ExchangeFormat, TransferType
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

from cfl_flare.core.config import build, describe, marked, require
from cfl_flare.core.settings import settings_of
from cfl_flare.data import DataSource
from cfl_flare.engine.job_settings import ExecutorSettings, ScriptSettings
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.settings import SiteSettings
from cfl_flare.flare import wire
from cfl_flare.flare.client_api.controller import EVALUATE, TRAIN
from cfl_flare.flare.client_api.private import PrivateArrays
from cfl_flare.flare.client_api.rules import check_evaluate
from cfl_flare.flare.compat import check_site_names
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.job.fedavg_settings import names_of, staying, without_parameters
from cfl_flare.flare.job.launched import LaunchedScript


class ClientApps:
    """The sites' part of a job.

    Args:
        plan: the job's.
        shared: arguments of the executor that are the server's as well, as the job holds them.
        leaving: a filter on what the sites send; None for none.

    Raises:
        ConfigError: private arrays that the model does not have, or that do not go with the method.

    Attributes:
        private: names of the arrays that each site with a script keeps for itself.
        workers: the executor or script runner of each site; one for all sites, unless they have their own settings.
    """

    def __init__(self, plan: RunPlan, shared: Mapping[str, Any], leaving: Filter | None = None):
        self.plan, self.shared, self.leaving = plan, shared, leaving
        pattern = plan.job.private if self.scripted else None  # else the executor knows it
        self.private = [] if pattern is None else staying("private", pattern, plan.model, plan.method)
        self.workers = {ALL_SITES: self._worker(ALL_SITES, {})}

    @property
    def scripted(self) -> bool:
        """Whether the sites run a training script."""
        return self.plan.script.train_script is not None

    @property
    def tasks(self) -> list[str]:
        """The job's tasks."""
        return [TRAIN, EVALUATE] if self.scripted else [wire.CHECK_TASK, wire.TRAIN_TASK]

    @property
    def named(self) -> list[str]:
        """The sites that have settings of their own."""
        return [site for site in self.workers if site != ALL_SITES]

    @property
    def sources(self) -> list[dict[str, Any]]:
        """What the sites read, as the job holds it."""
        return [] if self.scripted else [worker.source for worker in self.workers.values()]

    def set_per_site(self, config: Mapping[str, Mapping[str, Any]]) -> None:
        """Applies per-site settings.

        Args:
            config: by site: ``data``, ``data_args``, ``device`` and ``torch_threads``, or those of a script.

        Raises:
            ConfigError: a setting cannot be set per site in this job, or has a wrong value.
        """
        self._check(config)
        self.workers = {site: self._worker(site, own) for site, own in config.items()}

    def add_to(self, job: FedJob) -> None:
        """Adds them to the job."""
        for target, worker in self.workers.items():
            job.to(worker, target, tasks=self.tasks)
            self._add_private(job, target)
            for task in self.tasks if self.leaving is not None else ():
                job.to(self.leaving, target, filter_type=FilterType.TASK_RESULT, tasks=[task])
            if self.scripted:
                job.to(without_parameters(), target, filter_type=FilterType.TASK_RESULT, tasks=[EVALUATE])

    def _add_private(self, job: FedJob, target: str) -> None:
        """Adds what keeps private arrays at a site; on results, before other filters."""
        travels = sorted(names_of(self.plan.model) - {*self.private}) if self.private else []
        for kind, task in product((FilterType.TASK_DATA, FilterType.TASK_RESULT), self.tasks if self.private else ()):
            kept = PrivateArrays(self.private, self.plan.job.name, self.plan.job.resume_from, travels)
            job.to(kept, target, filter_type=kind, tasks=[task])

    def _worker(self, site: str, own: Mapping[str, Any]) -> Any:
        """The executor or script runner of a site."""
        plan = self.plan
        if self.scripted:
            script = replace(plan.script, **own)
            there = Path(str(script.train_script)).is_file()
            require(there, f"recipe: per-site config: {site}: train_script = {script.train_script!r} is not a file")
            if script.evaluate is not None:
                check_evaluate(str(script.train_script), script.evaluate)
            return _runner(script, plan.executor)
        source = self.shared["source"]
        if own.keys() & {"data", "data_args"}:
            source = marked(_source_at(site, own, source))
        at_site = replace(plan.site, **{key: own[key] for key in _per_site(SiteSettings) if key in own})
        arguments = {**self.shared, "source": source, "run_name": plan.job.name, "seed": plan.server.seed}
        arguments["private"] = plan.job.private
        return self._executor({**arguments, **asdict(at_site), **asdict(plan.executor)})

    def _executor(self, arguments: Mapping[str, Any]) -> ClusteredExecutor:
        """What trains at a site without a script."""
        return ClusteredExecutor(**arguments)

    def _check(self, config: Mapping[str, Mapping[str, Any]]) -> None:
        check_site_names(list(config), self.plan.job.min_clients)
        simulated = self.plan.data.participants is not None
        reason = " where one source is dealt out to all of them" if simulated else ""
        known = [*([] if simulated else ["data", "data_args"]), *_per_site(SiteSettings)]
        known = _per_site(ScriptSettings) if self.scripted else known
        for site, own in config.items():
            unknown = [key for key in own if key not in known]
            require(
                not unknown,
                f"recipe: per-site config: {site}: {unknown[:1]} cannot be set for a single site{reason}; "
                f"it can have its own {', '.join(known)}",
            )


def _per_site(cls: type) -> list[str]:
    """The settings that may differ per site."""
    return [known.name for known in settings_of(cls).values() if known.per_site]


def _runner(script: ScriptSettings, executor: ExecutorSettings) -> LaunchedScript:
    """FLARE's runner of a script."""
    return LaunchedScript(
        script=str(script.train_script),
        script_args=script.train_args,
        evaluate=script.evaluate,
        launch_external_process=script.launch_external_process,
        command=script.command,
        launch_once=script.launch_once,
        launch_timeout=script.launch_timeout,
        shutdown_timeout=script.shutdown_timeout,
        server_expected_format=ExchangeFormat(script.server_expected_format),
        framework=FrameworkType(script.framework or FrameworkType.PYTORCH),
        params_transfer_type=TransferType(script.params_transfer_type),
        memory_gc_rounds=executor.memory_gc_rounds,
        cuda_empty_cache=executor.cuda_empty_cache,
    )


def _source_at(site: str, own: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """What a site reads: ``data`` in place of the job's, with ``data_args`` in place of some of its arguments."""
    where = f"per-site config: {site}: data"
    found = describe(own.get("data", source), where)
    found["args"] = {**found["args"], **own.get("data_args", {})}
    return build(found, DataSource, where).in_job(found)  # type: ignore[type-abstract]
