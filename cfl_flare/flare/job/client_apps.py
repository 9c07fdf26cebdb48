# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the sites of a job run: all the same, or each with settings of its own by FLARE's ``set_per_site_config``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.filter import Filter
from nvflare.apis.job_def import ALL_SITES
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner

from cfl_flare.core.config import build, describe, marked, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.data import DataSource
from cfl_flare.flare import wire
from cfl_flare.flare.client_api.controller import EVALUATE, TRAIN
from cfl_flare.flare.compat import check_site_names
from cfl_flare.flare.executor import ClusteredExecutor

OF_SCRIPT = {  # FLARE's names, and what its runner calls them
    "train_script": "script",
    "train_args": "script_args",
    "launch_external_process": "launch_external_process",
    "command": "command",
}
OF_DATA = ("data", "data_args", "device", "torch_threads")


class ClientApps:
    """The sites' part of a job.

    Args:
        settings: of the sites' executor, or of FLARE's runner of their script.
        scripted: which of the two it is.
        simulated: one source of data is dealt out to all sites.
        leaving: a filter on what the sites send; None for none.

    Attributes:
        workers: what works at each site; one for all of them, unless they have settings of their own.
    """

    def __init__(self, settings: Mapping[str, Any], scripted: bool, simulated: bool, leaving: Filter | None = None):
        self.settings, self.scripted, self.simulated, self.leaving = settings, scripted, simulated, leaving
        self.workers = {ALL_SITES: self._worker(ALL_SITES, {})}

    @property
    def named(self) -> list[str]:
        """The sites that have settings of their own."""
        return [site for site in self.workers if site != ALL_SITES]

    @property
    def sources(self) -> list[dict[str, Any]]:
        """What the sites read, as the job holds it."""
        return [] if self.scripted else [worker.source for worker in self.workers.values()]

    def set_per_site(self, config: Mapping[str, Mapping[str, Any]], fewest: int) -> None:
        """Takes per-site settings.

        Args:
            config: by site: ``data``, ``data_args``, ``device`` and ``torch_threads``, or those of a script.
            fewest: the job's min_clients.

        Raises:
            ConfigError: a setting that sites of this job cannot have of their own, or a wrong value.
        """
        self._check(config, fewest)
        self.workers = {site: self._worker(site, own) for site, own in config.items()}

    def add_to(self, job: FedJob) -> None:
        """Adds them to the job."""
        tasks = [TRAIN, EVALUATE] if self.scripted else [wire.CHECK_TASK, wire.TRAIN_TASK]
        for target, worker in self.workers.items():
            job.to(worker, target, tasks=tasks)
            if self.leaving is not None:
                job.to(self.leaving, target, filter_type=FilterType.TASK_RESULT, tasks=[TRAIN])

    def _worker(self, site: str, own: Mapping[str, Any]) -> Any:
        """What works at a site."""
        if self.scripted:
            given = {**self.settings, **{OF_SCRIPT[key]: value for key, value in own.items()}}
            there = Path(given["script"]).is_file()
            require(there, f"recipe: per-site config: {site}: train_script = {given['script']!r} is no file")
            return ScriptRunner(**given)
        given = {**self.settings, **{key: own[key] for key in ("device", "torch_threads") if key in own}}
        check_device(given["device"])
        if own.keys() & {"data", "data_args"}:
            given["source"] = marked(_source_at(site, own, self.settings["source"]))
        return ClusteredExecutor(**given)

    def _check(self, config: Mapping[str, Mapping[str, Any]], fewest: int) -> None:
        check_site_names(list(config), fewest)
        known = tuple(OF_SCRIPT) if self.scripted else OF_DATA[2:] if self.simulated else OF_DATA
        reason = " where one source is dealt out to all of them" if self.simulated else ""
        for site, own in config.items():
            unknown = [key for key in own if key not in known]
            require(
                not unknown,
                f"recipe: per-site config: {site}: {unknown[:1]} is nothing that sites can have of their own{reason}; "
                f"they can have {', '.join(known)}",
            )


def check_device(device: str) -> None:
    """Whether it can be a device; if a site has it, only the site knows.

    Raises:
        ConfigError: it cannot.
    """
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"run: device = {device!r} should be one of torch's, such as 'cpu' or 'cuda:0'") from error


def _source_at(site: str, own: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """What a site reads: ``data`` in place of the job's, with ``data_args`` in place of some of its arguments."""
    where = f"per-site config: {site}: data"
    found = describe(own.get("data", source), where)
    found["args"] = {**found["args"], **own.get("data_args", {})}
    build(found, DataSource, where)  # type: ignore[type-abstract]
    return found
