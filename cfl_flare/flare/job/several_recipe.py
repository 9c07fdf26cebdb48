# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The recipe of several runs as one job for FLARE's simulator: ``cfl-flare run`` with more than one method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvflare.job_config.base_fed_job import BaseFedJob

from cfl_flare.core.config import MARK, marked
from cfl_flare.engine.plan import RunPlan
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.job.client_apps import ClientApps
from cfl_flare.flare.job.environment import place_model
from cfl_flare.flare.job.recipe import ClusteredRecipe
from cfl_flare.flare.several import SeveralController, SeveralExecutor
from cfl_flare.methods import Method, describe_method

NAME = "several"


class SeveralRecipe(ClusteredRecipe):
    """A job that runs several methods one after the other at the sites of one start. Kits of real sites refuse it."""

    @classmethod
    def of_plans(cls, plans: Mapping[str, RunPlan]) -> SeveralRecipe:
        """The recipe of runs that have passed their preflight, by name; they differ in the method alone."""
        recipe = cls.__new__(cls)
        recipe.plans = dict(plans)
        plan = next(iter(plans.values()))
        recipe._assemble(replace(plan, job=replace(plan.job, name=NAME)))
        return recipe

    plans: dict[str, RunPlan]

    def _client_apps(self, shared: Mapping[str, Any]) -> ClientApps:
        runs = [
            {"name": name, "method": describe_method(plan.method), "private": plan.job.private}
            for name, plan in self.plans.items()
        ]
        return _SeveralApps(self.plan, {**shared, "runs": marked(runs)})

    def _add_server(self, job: BaseFedJob, shared: Mapping[str, Any]) -> SeveralController:
        facts = {**self._dealt_out(shared), "training": shared["training"], **self.plan.facts, **MARK}
        controller = SeveralController(
            model=shared["model"],
            run_name=NAME,
            runs=self._sites.shared["runs"],
            initial_ckpt=place_model(self.plan, job, Path(self._carried.name)),
            facts=facts,
            made_by=shared["made_by"],
            **asdict(self.plan.server),
            **asdict(self.plan.controller),
        )
        job.to_server(controller)
        return controller

    @property
    def _methods(self) -> list[Method]:
        return [plan.method for plan in self.plans.values()]

    @property
    def class_paths(self) -> list[str]:
        ours = [f"{cls.__module__}.{cls.__qualname__}" for cls in (SeveralController, SeveralExecutor)]
        return [*super().class_paths, *ours]


class _SeveralApps(ClientApps):
    """Executors of several runs."""

    def _executor(self, arguments: Mapping[str, Any]) -> ClusteredExecutor:
        of_run = ("method", "private")
        return SeveralExecutor(**{name: value for name, value in arguments.items() if name not in of_run})
