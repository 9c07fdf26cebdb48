# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The recipe: one Python object that becomes a FLARE job for the simulator, a POC or provisioned sites."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from nvflare.apis.filter import Filter
from nvflare.apis.job_def import ALL_SITES, SERVER_SITE_NAME
from nvflare.job_config.base_fed_job import BaseFedJob
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from cfl_flare.core.config import MARK, as_spec, class_paths, marked, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.settings import changed, settings_of, shows
from cfl_flare.core.signals import ending_children
from cfl_flare.data import DataSource
from cfl_flare.data.files import from_here
from cfl_flare.data.pixels import pixel_facts
from cfl_flare.engine.plan import CONCERNS, AssignSettings, RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.flare.aggregator import ClusteringAggregator
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.client_api.rules import (
    check_script,
    evaluates,
    fedprox_mu,
    has_terms,
)
from cfl_flare.flare.compat import apps_of
from cfl_flare.flare.controller import ClusteredController
from cfl_flare.flare.egress import check_readable
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.job import environment
from cfl_flare.flare.job.client_apps import ClientApps
from cfl_flare.flare.kit import allow
from cfl_flare.flare.per_site import PerSiteController
from cfl_flare.flare.persistor import ClusterModelPersistor
from cfl_flare.flare.policy import SOFTWARE
from cfl_flare.flare.tracking import ServerRun, opens_runs_of_sites
from cfl_flare.methods import Method, describe_method
from cfl_flare.training.settings import TrainSettings

logger = logging.getLogger(__name__)
# What FedAvgRecipe takes and a job with several models cannot, and what there is in its place.
NOT_HERE = {
    "aggregation_weights": "a method's weighting is 'samples' or 'uniform'",
    "save_filename": "models are in clusters/, those of the best round in best/clusters/",
    "best_model_filename": "models are in clusters/, those of the best round in best/clusters/",
    "aggregator": "method says how models are clustered and averaged",
    "aggregator_data_kind": "method says how models are clustered and averaged",
    "model_persistor": "a bank of models is written after each round, and resume_from goes on from it",
    "model_locator": "a bank of models is written after each round, and resume_from goes on from it",
    "optimizer_args": "server_optimizer, server_lr and their like are for each cluster's model",
    "enable_tensor_disk_offload": "the server puts large answers on its disk by itself",
    "per_site_config": "use FLARE's function set_per_site_config(recipe, ...)",
}


def _of_all_tasks(add: Callable[..., None]) -> Callable[..., None]:
    """FLARE's method that adds a filter. Here it covers all of the job's tasks if none or ``"*"`` is named.

    A training script reports by its task to evaluate what it reports by its task to train, so that a filter on one of
    them covers both.
    """

    @wraps(add)
    def added(
        self: ClusteredRecipe,
        filter: Filter,
        tasks: list[str] | None = None,
        *clients: Any,
        **named_clients: Any,
    ) -> None:
        every = {*self._sites.tasks}
        covered = every if tasks is None or "*" in tasks else {*tasks}
        if self._sites.scripted and covered & every:
            covered |= every
        for task in sorted(
            covered
        ):  # one by one: FLARE refuses sets of tasks that overlap
            add(self, filter, [task], *clients, **named_clients)

    return added


class ClusteredRecipe(Recipe):
    """A federated job that finds groups of participants and trains a model for each.

    The recipe checks everything that it can before anything starts. The job's first task checks what only a site can
    know, its data. A site that fails it is left out with its reason. A wrong setting raises a ConfigError that names
    it, its value and what it should be.

    Sites need: cfl_flare installed and its classes in the site's ``class_allow_list``, or a job with
    ``byoc=True`` and the permission for it. In SimEnv and PocEnv the recipe takes care of both.

    Args:
        method: a method, its dictionary ``{"method": "wecfl", "k": 3}``, or ``"wecfl:k=3"``.
        model: the untrained module, or ``{"class_path": "package.Class", "args": {...}}``. With a ``train_script`` that
            needs no module: an array, which the script receives as ``"numpy_key"``, or a dictionary of arrays by name.
        data: what a site reads: a DataSource, or its ``{"class_path", "args"}``; None with ``train_script``.
        training: TrainSettings or a dictionary of them.
    """

    _executor: ClassVar[type[ClusteredExecutor]] = ClusteredExecutor

    @shows(*CONCERNS.values())
    def __init__(
        self,
        *,
        method: Method | Mapping[str, Any] | str,
        model: torch.nn.Module | Mapping[str, Any] | Sequence[Any] | np.ndarray,
        data: DataSource | Mapping[str, Any] | None = None,
        training: TrainSettings | Mapping[str, Any] | None = None,
        **settings: Any,
    ):
        for name in settings:
            require(
                name not in NOT_HERE,
                f"recipe: {name} is not there: {NOT_HERE.get(name)}; leave it out",
            )
        plan = RunPlan.of(
            method=method, model=model, data=data, training=training, **settings
        )
        if plan.script.train_script is not None:
            of_training: dict[str, Any] = {"data": data, "training": training}
            of_training |= {
                "participants": plan.data.participants,
                "partition": plan.data.partition,
            }
            of_training |= {
                name: getattr(plan.site, name) for name in changed(plan.site)
            }
            measures_all, evaluate = (
                plan.server.cross_site_evaluation,
                plan.script.evaluate,
            )
            check_script(
                plan.script.train_script,
                plan.method,
                of_training,
                measures_all,
                evaluate,
            )
        check_plans([plan])
        self._assemble(plan)

    @classmethod
    def of(cls, plan: RunPlan) -> ClusteredRecipe:
        """The recipe of a run that has passed its preflight and has no training script."""
        recipe = cls.__new__(cls)
        recipe._assemble(plan)
        return recipe

    def _assemble(self, plan: RunPlan) -> None:
        """Makes the job; what runs at the sites is added by `_prepare_client_apps`."""
        self.plan = plan
        self._carried = tempfile.TemporaryDirectory(
            prefix="cfl-job-"
        )  # it is kept until the job is made
        self._has_packages = False
        self._assign: dict[str, Any] | None = None
        job = BaseFedJob(
            name=plan.job.name, min_clients=plan.job.min_clients, key_metric=""
        )
        job.set_app_packages(["cfl_flare"])
        shared = {
            **self._of_runs(),
            "model": marked(plan.model),
            "source": marked(
                plan.source
            ),  # one dictionary, which `process_env` may change
            "data": marked(asdict(plan.data)),
            "training": marked(asdict(plan.training or TrainSettings())),
            "made_by": marked(SOFTWARE),
            "run_name": plan.job.name,
            "seed": plan.server.seed,
        }
        self._sites = ClientApps(plan, shared, self._executor)
        self._controller = self._add_server(job, shared)
        # Polling is most of a small round's fixed cost; FLARE's own 2 s would be most of the round.
        job.to_server(
            {"server": {"task_request_interval": plan.job.task_request_interval}}
        )
        super().__init__(job)
        if plan.job.site_names:
            self.set_per_site_config({name: {} for name in plan.job.site_names})

    def _of_runs(self) -> dict[str, Any]:
        """The executor's arguments that say which runs the job has."""
        return {
            "method": marked(describe_method(self.plan.method)),
            "private": self.plan.job.private,
        }

    def _dealt_out(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """What the server knows of the data: how they are dealt out, and nothing of what real sites read."""
        source = (
            {} if self.plan.data.participants is None else {"source": shared["source"]}
        )
        return {**source, "data": shared["data"]}

    def _describe_data(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """What the server knows of the data: how it is dealt out, and the classes that real sites name."""
        plan, dealt_out = self.plan, self._dealt_out(shared)
        facts = {
            **dealt_out,
            "training": shared["training"],
            **pixel_facts(plan.reader),
        }
        if plan.reader is not None and "source" not in dealt_out:
            if plan.reader.positive is not None:
                facts["positive"] = plan.reader.positive
            if plan.reader.stated_classes:
                facts["classes"] = list(plan.reader.stated_classes)
        return {**facts, **plan.facts, **MARK}

    def _add_server(
        self, job: BaseFedJob, shared: Mapping[str, Any]
    ) -> PerSiteController:
        """Adds what runs at the server; returns its controller."""
        plan, dealt_out = self.plan, self._dealt_out(shared)
        aggregator = ClusteringAggregator(
            shared["method"],
            shared["model"],
            None if plan.method.traits.indicator is None else {**dealt_out, **MARK},
            environment.place_model(plan, job, Path(self._carried.name)),
            None
            if self._sites.scripted
            else shared["private"],  # a script's are filtered at the site
        )
        job.to_server(aggregator, id="aggregator")
        persistor = ClusterModelPersistor(
            run_name=plan.job.name, resume_from=plan.job.resume_from
        )
        job.to_server(persistor, id="persistor")
        script = plan.script.train_script
        if script is None:
            self._facts = self._describe_data(shared)
        else:
            self._facts = marked({"train_script": Path(script).name})
            self._assign = marked(asdict(self._assigned_by(script)))
        controller = ClusteredController(
            **asdict(plan.server),
            **asdict(plan.controller),
            facts=self._facts,
            made_by=shared["made_by"],
            judge=self._assign,
        )
        job.to_server(controller)
        return controller

    def _assigned_by(self, script: str) -> AssignSettings:
        """How participants with a script choose a model, and what else the server must know of the script."""
        mu, tensors = (
            fedprox_mu(script, self.plan.method),
            self.plan.script.server_expected_format == "pytorch",
        )
        return replace(
            self.plan.assign,
            penalties=has_terms(self.plan.method) and mu is None,
            fedprox_mu=mu,
            evaluates=self._evaluates({}),
            tensors=tensors,
        )

    def _apply_per_site_config(self, config: dict[str, dict[str, Any]]) -> None:
        self._sites.set_per_site(config)
        if self._assign is not None:  # the same dictionary as the server's
            scripts = {
                str(site.get("train_script", self.plan.script.train_script))
                for site in config.values()
            }
            self._assign["evaluates"] = all(map(self._evaluates, config.values()))
            self._facts["train_script"] = ", ".join(
                sorted({Path(name).name for name in scripts})
            )

    def _evaluates(self, site_settings: Mapping[str, Any]) -> bool:
        """Whether a site with these settings can measure a model without training it."""
        script = replace(self.plan.script, **site_settings)
        return script.evaluate is not None or evaluates(str(script.train_script))

    def _prepare_client_apps(self) -> None:
        self._sites.add_to(self._job)
        if self.plan.job.byoc or self._sites.scripted:
            self._add_packages(["cfl_flare"] * self.plan.job.byoc)

    def export(
        self,
        job_dir: str,
        *params: Any,
        env: ExecEnv | None = None,
        **named_params: Any,
    ) -> None:
        """Writes the job, as FLARE's; warns where fewer sites may come than a model needs."""
        if not isinstance(env, SimEnv):
            environment.warn_of_few_sites(
                self.plan, len(self._sites.named) or self.plan.job.min_clients
            )
        super().export(job_dir, *params, env=env, **named_params)

    def run(self, env: ExecEnv, *params: Any, **named_params: Any) -> Any:
        """Runs the job, as FLARE's; in a POC, with what a simulation trusts its sites to do.

        In a simulation, a signal that ends this program ends the simulator's processes as well.
        """
        if isinstance(env, SimEnv):
            with ending_children():
                return super().run(env, *params, **named_params)
        if isinstance(env, PocEnv):
            environment.trust(self._controller)
        return super().run(env, *params, **named_params)

    @property
    def _cse_added(self) -> bool:
        """Where FLARE's ``add_cross_site_evaluation`` and ``add_final_global_evaluation`` look first."""
        raise ConfigError(
            "recipe: FLARE's evaluation after the training looks for one model, and this job has several; set "
            "cross_site_evaluation = True: every cluster's model is measured on every test split"
        )

    @_cse_added.setter
    def _cse_added(self, value: bool) -> None:
        """FLARE's constructor sets it."""

    def finalize(self) -> None:
        """FLARE's hook before use: checks filters, and gives the server its own run in MLflow and Weights & Biases.

        Raises:
            EncryptionError: one of the job's filters encrypts models.
        """
        apps = apps_of(self._job)
        check_readable(
            f
            for app in apps.values()
            for _, filters in app.task_result_filters
            for f in filters
        )
        if (reason := self._too_large()) is not None:
            logger.warning(reason)
        components = apps[SERVER_SITE_NAME].components
        if any(isinstance(component, ServerRun) for component in components.values()):
            return
        for receiver in list(filter(opens_runs_of_sites, components.values())):
            self._job.to_server(ServerRun(copy(receiver)), id="server_run")

    def _too_large(self) -> str | None:
        """See `environment.too_large`. Where all sites have the same app, it is the server's, too."""
        apps = apps_of(self._job)
        sent = [
            app
            for target, app in apps.items()
            if ALL_SITES in apps or target != SERVER_SITE_NAME
        ]
        return environment.too_large(
            path for app in sent for path, *_ in app.file_sources
        )

    add_client_input_filter = _of_all_tasks(Recipe.add_client_input_filter)
    add_client_output_filter = _of_all_tasks(Recipe.add_client_output_filter)
    add_server_input_filter = _of_all_tasks(Recipe.add_server_input_filter)
    add_server_output_filter = _of_all_tasks(Recipe.add_server_output_filter)

    @property
    def _methods(self) -> list[Method]:
        return [self.plan.method]

    @property
    def class_paths(self) -> list[str]:
        """The classes that the job names and the sites import."""
        methods = [describe_method(method)["method"] for method in self._methods]
        sources = [source["class_path"] for source in self._sites.sources]
        task = as_spec((self.plan.training or TrainSettings()).task, "task")["task"]
        return [
            *class_paths(self.plan.model),
            *sources,
            *(name for name in (*methods, task) if "." in name),
        ]

    def process_env(self, env: ExecEnv) -> None:
        """Makes sure that the environment may run cfl_flare's components.

        The simulator's workspace gets an allow-list; a POC is provisioned anew for each run, so the code is sent
        with the job. In both, sites run on this machine, and relative paths of the data start at this folder.

        Raises:
            ConfigError: the environment cannot run the job.
        """
        self.check_env(env)
        for source in self._sites.sources if isinstance(env, (SimEnv, PocEnv)) else ():
            from_here(source["args"])
        if isinstance(env, SimEnv) and not self.plan.job.byoc:
            classes = [*CLASSES, *self.class_paths]
            allow(
                Path(env.workspace_root) / self._job.name / "local" / "resources.json",
                classes,
            )
        elif isinstance(env, PocEnv):
            self._add_packages(["cfl_flare"])
            reason = self._too_large()
            require(reason is None, f"recipe: {reason}")

    def check_env(self, env: ExecEnv) -> None:
        """Raises a ConfigError if the job cannot run in an environment, before anything is written or started."""
        environment.check_env(env, self.plan, self._sites.named)

    def _add_packages(self, packages: Sequence[str]) -> None:
        """Puts packages, and the user's modules that the job names, into the job's custom folder, once."""
        if not self._has_packages:
            self._has_packages = True
            named = [path.partition(".")[0] for path in self.class_paths]
            carried = dict.fromkeys(
                [
                    *packages,
                    *(name for name in named if name not in environment.INSTALLED),
                ]
            )
            environment.stage(
                self._job, carried, self._sites.workers, Path(self._carried.name)
            )


# For help(), as the signature: each setting with its line.
ClusteredRecipe.__doc__ = (ClusteredRecipe.__doc__ or "").rstrip() + "".join(
    f"\n        {known.name}: {known.help}."
    for known in settings_of(*CONCERNS.values()).values()
)


def simulator(sites: int, workspace: Path) -> SimEnv:
    """FLARE's simulator with a process for each site, so that a site keeps its data and its model between rounds."""
    return SimEnv(num_clients=sites, workspace_root=str(workspace))
