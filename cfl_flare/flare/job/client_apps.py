# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the sites of a job run: all the same, or each with its own settings by FLARE's ``set_per_site_config``.

Also FLARE's filters that keep some of a model's arrays at the sites.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nvflare.apis.job_def import ALL_SITES
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.client.config import ExchangeFormat, TransferType
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob, JobCtx
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner
from torch import nn

from cfl_flare.core.config import build, describe, marked, require
from cfl_flare.core.params import Layout
from cfl_flare.core.private import matching
from cfl_flare.core.settings import settings_of
from cfl_flare.data import DataSource
from cfl_flare.engine.plan import ExecutorSettings, RunPlan, ScriptSettings
from cfl_flare.engine.settings import SiteSettings
from cfl_flare.flare import wire
from cfl_flare.flare.client_api import cfl_launcher
from cfl_flare.flare.client_api.private import EVALUATE, TRAIN, PrivateArrays
from cfl_flare.flare.client_api.rules import check_evaluate, evaluate_module
from cfl_flare.flare.compat import check_site_names, start_instead
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.methods import Method

LAUNCHER = Path(cfl_launcher.__file__)
# Settings of a script that FLARE's runner takes by the same names.
OF_PROCESS = (
    "launch_external_process",
    "command",
    "launch_once",
    "launch_timeout",
    "shutdown_timeout",
)


class ClientApps:
    """The sites' part of a job.

    Args:
        shared: arguments of the executor that all sites have, as the job holds them.

    Raises:
        ConfigError: private or excluded arrays that the model does not have, or that do not go with the method.

    Attributes:
        private: names of the arrays that each site with a script keeps for itself.
        leaving: a filter on what the sites send; None for none.
        workers: the executor or script runner by site; one for all sites, unless they have their own settings.
    """

    def __init__(
        self,
        plan: RunPlan,
        shared: Mapping[str, Any],
        executor: type[ClusteredExecutor],
    ):
        self.plan, self.shared, self.executor = plan, shared, executor
        excluded = plan.job.exclude_vars
        self.leaving = (
            None
            if excluded is None
            else exclude(excluded, plan.model, plan.method, self.scripted)
        )
        pattern = (
            plan.job.private if self.scripted else None
        )  # else the executor knows it
        self.private = (
            []
            if pattern is None
            else staying("private", pattern, plan.model, plan.method)
        )
        self.workers = {ALL_SITES: self._worker(ALL_SITES, {})}

    @property
    def scripted(self) -> bool:
        return self.plan.script.train_script is not None

    @property
    def tasks(self) -> list[str]:
        return (
            [TRAIN, EVALUATE] if self.scripted else [wire.CHECK_TASK, wire.TRAIN_TASK]
        )

    @property
    def named(self) -> list[str]:
        """The sites that have settings of their own."""
        return [site for site in self.workers if site != ALL_SITES]

    @property
    def sources(self) -> list[dict[str, Any]]:
        """What the sites read, as the job holds it."""
        return (
            [] if self.scripted else [worker.source for worker in self.workers.values()]
        )

    def set_per_site(self, config: Mapping[str, Mapping[str, Any]]) -> None:
        """Applies settings by site: ``data``, ``data_args``, ``device`` and ``torch_threads``, or those of a script.

        Raises:
            ConfigError: a setting cannot be set per site in this job, or has a wrong value.
        """
        check_site_names(list(config), self.plan.job.min_clients)
        simulated = self.plan.data.participants is not None
        reason = " where one source is dealt out to all of them" if simulated else ""
        known = [
            *([] if simulated else ["data", "data_args"]),
            *_per_site(SiteSettings),
        ]
        known = _per_site(ScriptSettings) if self.scripted else known
        for site, settings in config.items():
            unknown = [key for key in settings if key not in known]
            require(
                not unknown,
                f"recipe: per-site config: {site}: {unknown[:1]} cannot be set for a single site{reason}; "
                f"it can have its own {', '.join(known)}",
            )
        self.workers = {
            site: self._worker(site, settings) for site, settings in config.items()
        }

    def add_to(self, job: FedJob) -> None:
        for target, worker in self.workers.items():
            job.to(worker, target, tasks=self.tasks)
            travels = (
                sorted(names_of(self.plan.model) - {*self.private})
                if self.private
                else []
            )
            kinds = (
                (FilterType.TASK_DATA, FilterType.TASK_RESULT) if self.private else ()
            )
            for kind, task in product(
                kinds, self.tasks
            ):  # on results, before other filters
                keeping = PrivateArrays(
                    self.private, self.plan.job.name, self.plan.job.resume_from, travels
                )
                job.to(keeping, target, filter_type=kind, tasks=[task])
            for task in self.tasks if self.leaving is not None else ():
                job.to(
                    self.leaving,
                    target,
                    filter_type=FilterType.TASK_RESULT,
                    tasks=[task],
                )
            if self.scripted:
                job.to(
                    without_parameters(),
                    target,
                    filter_type=FilterType.TASK_RESULT,
                    tasks=[EVALUATE],
                )

    def _worker(self, site: str, settings: Mapping[str, Any]) -> Any:
        plan = self.plan
        if self.scripted:
            script = replace(plan.script, **settings)
            there = Path(str(script.train_script)).is_file()
            require(
                there,
                f"recipe: per-site config: {site}: train_script = {script.train_script!r} is not a file",
            )
            if script.evaluate is not None:
                check_evaluate(str(script.train_script), script.evaluate)
            return LaunchedScript(script, plan.executor)
        source = self.shared["source"]
        if settings.keys() & {"data", "data_args"}:
            source = marked(_source_at(site, settings, source))
        at_site = replace(
            plan.site,
            **{
                key: settings[key] for key in _per_site(SiteSettings) if key in settings
            },
        )
        return self.executor(
            **{
                **self.shared,
                "source": source,
                **asdict(at_site),
                **asdict(plan.executor),
            }
        )


def _per_site(cls: type) -> list[str]:
    return [known.name for known in settings_of(cls).values() if known.per_site]


def _source_at(
    site: str, settings: Mapping[str, Any], source: Mapping[str, Any]
) -> dict[str, Any]:
    """What a site reads: ``data`` in place of the job's, with ``data_args`` in place of some of its arguments."""
    where = f"per-site config: {site}: data"
    description = describe(settings.get("data", source), where)
    description["args"] = {**description["args"], **settings.get("data_args", {})}
    build(description, DataSource, where)  # type: ignore[type-abstract]  # refuses wrong arguments before the job
    return description


class LaunchedScript(ScriptRunner):
    """FLARE's runner of a script, with `cfl_flare.flare.client_api.cfl_launcher` in the script's place.

    The server then hears of the script's errors. An absolute path is found by its name at the sites.
    """

    def __init__(self, script: ScriptSettings, executor: ExecutorSettings):
        path = str(script.train_script)
        name = quote(
            os.path.basename(path) if os.path.isabs(path) else os.path.normpath(path)
        )
        name += "" if script.evaluate is None else f":{script.evaluate}"
        super().__init__(
            script=path,
            script_args=f"{name} {script.train_args}",
            framework=FrameworkType(script.framework or FrameworkType.PYTORCH),
            server_expected_format=ExchangeFormat(script.server_expected_format),
            params_transfer_type=TransferType(script.params_transfer_type),
            memory_gc_rounds=executor.memory_gc_rounds,
            cuda_empty_cache=executor.cuda_empty_cache,
            **{setting: getattr(script, setting) for setting in OF_PROCESS},
        )
        self._script: str = path
        self._evaluate = script.evaluate

    def _external_process_argv(self) -> list[str]:
        script, self._script = self._script, LAUNCHER.name
        try:
            return list(super()._external_process_argv())
        finally:
            self._script = script

    def add_to_fed_job(self, job: FedJob, ctx: JobCtx, **kwargs: Any) -> dict[str, Any]:
        """Adds the script, what it imports, and the launcher, which is what the site's executor runs."""
        added: dict[str, Any] = super().add_to_fed_job(job, ctx, **kwargs)
        job.add_file_source(str(LAUNCHER), None, None, ctx)
        module = (
            None
            if self._evaluate is None
            else evaluate_module(self._script, self._evaluate)
        )
        if module is not None and module != Path(self._script):
            job.add_file_source(str(module), None, None, ctx)
        if not self._launch_external_process:
            start_instead(LAUNCHER.name, job, ctx)
        return added


def exclude(
    pattern: str, model: Mapping[str, Any], method: Method, scripted: bool = False
) -> ExcludeVars:
    """FLARE's filter that keeps some of a model's arrays at the site; see `staying`.

    It gets their names, not the pattern: a compiled pattern cannot be written to a job. A script may send arrays under
    other names (``module.fc1.weight``). So only those of a script's arrays leave whose very names may.
    """
    out = staying("exclude_vars", pattern, model, method)
    if not scripted:
        return ExcludeVars(out)
    return _pattern(
        f"^(?!({'|'.join(map(re.escape, sorted(names_of(model) - {*out})))})$)"
    )


def names_of(model: Mapping[str, Any]) -> set[str]:
    """The names under which a model's arrays travel."""
    return set(Layout.of(build(model, nn.Module, "model")).shapes)


def staying(
    setting: str, pattern: str, model: Mapping[str, Any], method: Method
) -> list[str]:
    """The names of a model's arrays that stay at the sites by a setting, ``exclude_vars`` or ``private``.

    Its value is a regular expression that is searched in the names; for ``private`` also a word.

    Raises:
        ConfigError: it is not a regular expression, or matches none or all of the model, or all that is clustered on.
    """
    where, module = f"recipe: {setting} = {pattern!r}", build(model, nn.Module, "model")
    layout, names = (
        Layout.of(module),
        matching(module, pattern, where, setting == "private"),
    )
    out = [e for e in layout.entries if e.name in names]
    left = [e for e in layout.entries if e not in out and e.kind == "parameter"]
    require(
        bool(out),
        f"{where} matches none of {', '.join(e.name for e in layout.entries)}",
    )
    require(
        bool(left),
        f"{where} matches all parameters: nothing would be left to learn together",
    )
    cluster_on = method.traits.cluster_on
    if cluster_on is not None:
        compared = {place.start for place in layout.select(layout.compared(cluster_on))}
        require(
            any(e.offset in compared for e in left),
            f"{where} matches all that method {method.label} clusters on ({cluster_on}); set its cluster_on to what "
            "the sites send",
        )
    return [
        name for name in layout.shapes if layout.untied({name: None}).keys() <= names
    ]


def without_parameters() -> ExcludeVars:
    """A filter that takes all parameters out of an answer, for tasks that ask for none.

    A script that does not look whether it should only evaluate trains, and sends its model past the filters of the
    task to train. The filter is FLARE's own, so that such a job's sites need not have cfl_flare.
    """
    return _pattern("^")  # it is found in every name, an empty one as well


def _pattern(text: str) -> ExcludeVars:
    excluding = ExcludeVars(text)
    excluding.exclude_vars = (
        text  # it keeps a compiled pattern, which cannot be written to a job
    )
    return excluding
