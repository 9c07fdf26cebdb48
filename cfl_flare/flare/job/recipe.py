# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The recipe: one Python object that becomes a FLARE job for the simulator, a POC or provisioned sites."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from nvflare.client.config import TransferType
from nvflare.job_config.base_fed_job import BaseFedJob
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from cfl_flare.core.config import (
    MARK,
    build,
    check_run_name,
    describe,
    from_dict,
    marked,
    parse_spec,
    require,
    require_whole,
)
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.data.files import from_here
from cfl_flare.engine.indicator import samples_to_set_aside
from cfl_flare.engine.partial_sums import check_sums
from cfl_flare.engine.preflight import check_job
from cfl_flare.engine.server import ServerSettings
from cfl_flare.flare.aggregator import ClusteringAggregator
from cfl_flare.flare.client_api.rules import Judge, check_script, fedprox_mu, has_terms
from cfl_flare.flare.compatibility import SOFTWARE
from cfl_flare.flare.controller import ClusteredController
from cfl_flare.flare.job.byoc import carry, packages_of
from cfl_flare.flare.job.client_apps import ClientApps, check_device
from cfl_flare.flare.job.fedavg_settings import check_goal, exclude, place_checkpoint
from cfl_flare.flare.kit import allow
from cfl_flare.flare.persistor import ClusterModelPersistor
from cfl_flare.methods import Method, build_method, describe_method
from cfl_flare.training.settings import TrainSettings


class ClusteredRecipe(Recipe):
    """A federated job that finds groups of participants and trains a model for each.

    Everything is checked here, before anything starts. What only a site can know (its data) is checked by the job's
    first task, and a site that fails it is left out with its reason.

    Sites need: cfl_flare installed and ``"cfl_flare."`` in the site's ``class_allow_list``, or a job with
    ``byoc=True`` and the permission for it. In SimEnv and PocEnv the recipe takes care of both.

    Args:
        name: the job's name, and the name of the run's folder under each site's state root.
        method: a method, its dictionary ``{"method": "wecfl", "k": 3}``, or ``"wecfl:k=3"``.
        model: the untrained module, or ``{"class_path": "package.Class", "args": {...}}``.
        data: what a site reads: a DataSource, or its ``{"class_path", "args"}``; None with ``train_script``.
        train_script: a training script of FLARE's Client API, in place of cfl_flare's own training: each site is one
            participant, and the script reads its data. The job carries it, so that the sites must allow custom code.
        train_args: its command line.
        launch_external_process: run it in a process of its own, by ``command``.
        command: what starts that process.
        params_transfer_type: ``FULL``, the script's models as they are, or ``DIFF``: FLARE takes off what was received,
            before the site's filters.
        assign_metric: ``ifca``: by which metric of the script's, on its training data, it chooses among models;
        assign_mode: whether the smallest (``min``) or the largest (``max``) is best;
        assign_every: rounds between two choices.
        participants: to simulate: how many participants share the data; None where each site is one participant.
        partition: to simulate: ``{"partition": "dirichlet", "alpha": 0.1}`` or ``"dirichlet:alpha=0.1"``.
        min_samples: fewest training samples of a participant.
        indicator_samples: to simulate: training samples of each class that no participant gets, on which the server
            compares models; None for as many as the method needs.
        unseen: to simulate: how many participants are held back from the training, a share in [0.0, 1.0) or a count;
            `cfl_flare.engine.newcomers.onboard_unseen` lets them join the finished run.
        num_rounds: communication rounds.
        min_clients: fewest sites with which FLARE starts the job; a site that comes up later misses it.
        training: TrainSettings or a dictionary of them.
        seed: of initial models, partition, sampling and batches.
        sample: participants a round: a share in (0.0, 1.0], or a count.
        min_answers: fewest good answers with which a round is aggregated: share or count.
        evaluate_every: rounds between measurements of the served models.
        evaluate_trained: measure locally trained models as well.
        site_sums: a site with many participants sends one mean a cluster for all of them, where the method only
            averages; the server then learns no participant's own model, and the round's record has no analysis of them.
        keep_features: keep what is needed to draw the participants' features: their Gram matrix of each round.
        min_sites_per_cluster: a cluster of fewer sites is reported: its model would tell of their data.
        merge_small_clusters: put its participants into the nearest other cluster instead, where the method can.
        initial_ckpt: a model to start from: a safetensors file, or what ``torch.save`` wrote of a ``state_dict``. An
            absolute path is the server's; a file that lies here is carried by the job.
        key_metric: by which metric the best round is chosen, whose models are kept in ``best``; empty for none.
        key_metric_mode: ``max`` or ``min`` is best; None is what ``stop_cond`` is after, else ``max``.
        stop_cond: the job ends once this holds: ``"accuracy >= 0.8"``, ``"cluster-0/loss < 0.3"``.
        patience: it ends after so many rounds without improvement of ``stop_cond``'s metric, else of ``key_metric``.
        cross_site_evaluation: measure every cluster's model on every participant's test split in the end.
        exclude_vars: a regular expression of names of arrays that do not leave a site.
        task_timeout: seconds that a round may take.
        max_failed_rounds: the job ends after so many rounds in a row with too few answers.
        device: where the sites compute.
        torch_threads: threads of torch a process.
        server_memory_gc_rounds: rounds between two clean-ups of the server's memory; 0 for none.
        client_memory_gc_rounds: the same at the sites.
        cuda_empty_cache: with it, sites also give torch's cached GPU memory back.
        resume_from: name of the run to go on from.
        byoc: let the job carry cfl_flare's code, instead of using the installed package.

    Raises:
        ConfigError: naming the setting, its value and what it should be.
    """

    def __init__(
        self,
        *,
        name: str = "clustered",
        method: Method | Mapping[str, Any] | str,
        model: torch.nn.Module | Mapping[str, Any],
        data: DataSource | Mapping[str, Any] | None = None,
        train_script: str | None = None,
        train_args: str = "",
        launch_external_process: bool = False,
        command: str = "python3 -u",
        params_transfer_type: str = "FULL",
        assign_metric: str = "loss",
        assign_mode: str = "min",
        assign_every: int = 1,
        participants: int | None = None,
        partition: Mapping[str, Any] | str | None = None,
        min_samples: int = 8,
        indicator_samples: int | None = None,
        unseen: float | int = 0,
        num_rounds: int,
        min_clients: int,
        training: TrainSettings | Mapping[str, Any] | None = None,
        seed: int = 0,
        sample: float | int = 1.0,
        min_answers: float | int = 1,
        evaluate_every: int = 1,
        evaluate_trained: bool = False,
        site_sums: bool = False,
        keep_features: bool = False,
        min_sites_per_cluster: int = 1,
        merge_small_clusters: bool = False,
        initial_ckpt: str | None = None,
        key_metric: str = "accuracy",
        key_metric_mode: str | None = None,
        stop_cond: str | None = None,
        patience: int | None = None,
        cross_site_evaluation: bool = False,
        exclude_vars: str | None = None,
        task_timeout: int = 3600,
        max_failed_rounds: int = 3,
        device: str = "cpu",
        torch_threads: int = 1,
        server_memory_gc_rounds: int = 0,
        client_memory_gc_rounds: int = 0,
        cuda_empty_cache: bool = False,
        resume_from: str | None = None,
        byoc: bool = False,
    ):
        check_run_name(name)
        if resume_from is not None:
            check_run_name(resume_from, "resume_from")
        require_whole("run", task_timeout=task_timeout, min_clients=min_clients, torch_threads=torch_threads)
        check_device(device)
        self.method = _method(method)
        settings = ServerSettings(
            num_rounds,
            seed,
            sample,
            min_answers,
            evaluate_every,
            max_failed_rounds,
            keep_features,
            min_sites_per_cluster,
            merge_small_clusters,
            key_metric,
            key_metric_mode,
            stop_cond,
            patience,
            cross_site_evaluation,
        )
        check_goal(settings.goal, shares=data is not None)
        self.training = (
            training if isinstance(training, TrainSettings) else from_dict(TrainSettings, training or {}, "training")
        )
        self.model = describe(model, "model")
        judge = None
        if train_script is not None:
            given = {"data": data, "participants": participants, "partition": partition, "training": training}
            check_script(train_script, self.method, given)
            kinds = [kind.value for kind in TransferType]
            known = params_transfer_type in kinds
            require(known, f"recipe: params_transfer_type = {params_transfer_type!r} should be one of {kinds}")
            mu = fedprox_mu(train_script, self.method)
            judge = Judge(assign_metric, assign_mode, assign_every, has_terms(self.method) and mu is None, mu)
        require(
            data is not None or judge is not None, "recipe: neither data nor train_script is given; give one of them"
        )
        self.source = {} if data is None else describe(data, "data")
        if data is not None:
            build(self.source, DataSource, "data")  # type: ignore[type-abstract]
        rule = _named(partition, "partition")
        if indicator_samples is None:
            indicator_samples = 0 if participants is None else samples_to_set_aside([self.method])
        self.data = DataConfig(participants, rule, seed, min_samples, indicator_samples, unseen)
        require(
            participants is None or min_clients <= len(self.data.names),
            f"run: min_clients = {min_clients} is more than {self.data.who_trains}; each site hosts at least one",
        )
        check_job(self.method, self.model, self.data, settings, resume_from is not None, initial_ckpt)
        check_sums(site_sums, self.method, settings, scripted=train_script is not None)
        excluded = None if exclude_vars is None else exclude(exclude_vars, self.model, self.method)
        self.min_clients = min_clients
        self.byoc = byoc
        self._staged: Any = None

        job = BaseFedJob(name=name, min_clients=min_clients, key_metric="")
        job.set_app_packages(["cfl_flare"])
        spec = marked(describe_method(self.method))
        values = marked({"data": dataclasses.asdict(self.data), "training": _plain(self.training)})
        self._marked_source = marked(self.source)  # one dictionary, which `process_env` may change
        # At real sites, what each of them reads is its own business, and the server has no use for it.
        dealt = {} if participants is None else {"source": self._marked_source}
        made_by = marked(SOFTWARE)
        compares = self.method.traits.indicator is not None
        held = {**dealt, "data": values["data"], **MARK} if compares else None
        start = place_checkpoint(initial_ckpt, job)
        job.to_server(ClusteringAggregator(spec, marked(self.model), held, start), id="aggregator")
        job.to_server(ClusterModelPersistor(run_name=name, resume_from=resume_from), id="persistor")
        facts = {**dealt, **values, **MARK}
        scheduled = {**dataclasses.asdict(settings), "memory_gc_rounds": server_memory_gc_rounds}
        judged = None if judge is None else marked(dataclasses.asdict(judge))
        job.to_server(
            ClusteredController(**scheduled, task_timeout=task_timeout, facts=facts, made_by=made_by, judge=judged)
        )
        # A round's fixed cost is the sites' polling; FLARE's own 2 s would be most of a small round.
        job.to_server({"server": {"task_request_interval": 0.2}})
        memory = {"memory_gc_rounds": client_memory_gc_rounds, "cuda_empty_cache": cuda_empty_cache}
        settings_at_site = {
            "method": spec,
            "model": marked(self.model),
            "source": self._marked_source,
            **values,
            "run_name": name,
            "seed": seed,
            "evaluate_trained": evaluate_trained,
            "site_sums": site_sums,
            "device": device,
            "torch_threads": torch_threads,
            "made_by": made_by,
        }
        if train_script is not None:
            settings_at_site = {
                "script": train_script,
                "script_args": train_args,
                "launch_external_process": launch_external_process,
                "command": command,
                "params_transfer_type": TransferType(params_transfer_type),
            }
        simulated = participants is not None
        self._sites = ClientApps({**settings_at_site, **memory}, train_script is not None, simulated, excluded)
        super().__init__(job)

    def _apply_per_site_config(self, config: dict[str, dict[str, Any]]) -> None:
        """Takes what `cfl_flare.flare.job.client_apps.ClientApps.set_per_site` says."""
        self._sites.set_per_site(config, self.min_clients)

    def _prepare_client_apps(self) -> None:
        """Adds what the sites run, once it is known whether each of them has settings of its own."""
        self._sites.add_to(self._job)
        if self.byoc:
            self._carry()
        elif self._sites.scripted:
            self._carry_packages(packages_of(self.class_paths))

    @property
    def class_paths(self) -> list[str]:
        """The classes that the job names and the sites import."""
        method = describe_method(self.method)["method"]
        sources = [source["class_path"] for source in self._sites.sources]
        return [self.model["class_path"], *sources, *([method] if "." in method else [])]

    def process_env(self, env: ExecEnv) -> None:
        """Sees to it that the environment may run cfl_flare's components.

        The simulator's workspace gets an allow-list; a POC is provisioned afresh at each run, so that there the job
        carries its code. Both have their sites on this machine, where a relative path of the data means this folder.

        Raises:
            ConfigError: the environment cannot run the job.
        """
        self.check_env(env)
        for source in self._sites.sources if isinstance(env, (SimEnv, PocEnv)) else ():
            from_here(source["args"])
        if isinstance(env, SimEnv) and not self.byoc:
            classes = ["cfl_flare.", *self.class_paths]
            allow(Path(env.workspace_root) / self._job.name / "local" / "resources.json", classes)
        elif isinstance(env, PocEnv):
            self._carry()

    def check_env(self, env: ExecEnv) -> None:
        """Whether the job can run in an environment, before anything is written or started.

        Raises:
            ConfigError: too few or too many sites, or a folder in which FLARE's simulator cannot work.
        """
        if not isinstance(env, (SimEnv, PocEnv)):
            return  # provisioned sites are what they are
        where, sites = type(env).__name__, env.num_clients
        require(
            sites is None or sites >= self.min_clients,
            f"{where}: num_clients = {sites} is less than the job's min_clients = {self.min_clients}; it would "
            "never start",
        )
        require(
            sites is None or self.data.participants is None or sites <= len(self.data.names),
            f"{where}: num_clients = {sites} is more than {self.data.who_trains}; each site hosts at least one",
        )
        if isinstance(env, SimEnv):
            named = self._sites.named
            require(
                not named or env.clients is not None,
                f"{where}: the job has settings for each of its sites; name them: SimEnv(clients={named})",
            )
            folder = str(env.workspace_root)
            require(  # FLARE writes it into a command line as it is
                not re.search(r"[\s'\"\\\\]", folder),
                f"{where}: FLARE's simulator cannot work in {folder!r}: its path has a space, a quote or a backslash; "
                "choose another folder",
            )

    def _carry(self) -> None:
        """Makes the job carry cfl_flare, and the user's own modules that it names, in its custom folder."""
        self._carry_packages(["cfl_flare", *packages_of(self.class_paths)])

    def _carry_packages(self, packages: Sequence[str]) -> None:
        if self._staged is None:
            self._staged = carry(self._job, packages, self._sites.workers)


def simulator(sites: int, workspace: Path) -> SimEnv:
    """FLARE's simulator with a process for each site, so that a site keeps its data and its model between rounds."""
    return SimEnv(num_clients=sites, workspace_root=str(workspace))


def _method(method: Method | Mapping[str, Any] | str) -> Method:
    return method if isinstance(method, Method) else build_method(_named(method, "method") or {})


def _named(value: Mapping[str, Any] | str | None, key: str) -> dict[str, Any] | None:
    """``"dirichlet:alpha=0.1"`` or its dictionary, as the dictionary."""
    require(
        value is None or isinstance(value, (str, Mapping)),
        f"{key} = {value!r} should be text like 'name:setting=value' or {{'{key}': 'name', 'setting': value}}",
    )
    if isinstance(value, str):
        name, settings = parse_spec(value)
        return {key: name, **settings}
    return None if value is None else dict(value)


def _plain(settings: TrainSettings) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(settings).items()}
