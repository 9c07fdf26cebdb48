# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A whole run, by concern: the recipe and the command line turn their arguments into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from cfl_flare.core.config import (
    as_spec,
    build,
    check_run_name,
    describe,
    from_dict,
    require,
)
from cfl_flare.core.networks import describe_network
from cfl_flare.core.settings import check_known, check_settings, pick, setting
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.engine.indicator import samples_to_set_aside
from cfl_flare.engine.initial_models import named_arrays
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.methods import Method, build_method
from cfl_flare.models import NamedArrays
from cfl_flare.results.metric_names import best_end
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Regression, describe_task

MEMORY = "rounds between clean-ups of {} memory; 0 for none"


@dataclass(frozen=True)
class JobSettings:
    """The job as a whole."""

    min_clients: int = setting(
        help="fewest sites with which FLARE starts the job; one that connects later joins it",
        ge=1,
    )
    site_names: tuple[str, ...] = setting(
        (),
        help="the sites, where only these take part; the job's files for the server, initial_ckpt, then go to no site",
    )
    name: str = setting(
        "clustered",
        help="name of the job, and of the run's folder under each site's state root",
    )
    initial_ckpt: str | None = setting(
        None,
        help="a trained model to start from: a local file, sent with the job, or an absolute path on the server",
    )
    exclude_vars: str | None = setting(
        None,
        help="a regular expression for the names of arrays that do not leave a site",
    )
    private: str | None = setting(
        None,
        help="layers that each participant trains for itself and that do not leave its site: norm, bias, head, or a "
        "regular expression for the names of arrays",
    )
    resume_from: str | None = setting(
        None, help="name of the run to resume, from its last checkpoint"
    )
    task_request_interval: float = setting(
        0.2,
        help="seconds between requests for a task of a site whose requests the server cannot hold, beyond 50 sites",
        gt=0,
    )
    byoc: bool = setting(
        False,
        help="send cfl_flare's code with the job, for sites where it is not installed",
    )

    def __post_init__(self) -> None:
        check_settings(self, "run")
        check_run_name(self.name)
        if self.resume_from is not None:
            check_run_name(self.resume_from, "resume_from")


@dataclass(frozen=True)
class ControllerSettings:
    """The server's process."""

    task_timeout: int = setting(
        3600, help="seconds that a round may take; later results are dropped", ge=1
    )
    max_missed_tasks: int = setting(
        2,
        help="a site that misses so many tasks in a row is still asked, but no longer waited for",
        ge=1,
    )
    memory_gc_rounds: int = setting(
        0, help=MEMORY.format("the server's"), ge=0, name="server_memory_gc_rounds"
    )

    def __post_init__(self) -> None:
        check_settings(self, "run")


@dataclass(frozen=True)
class ExecutorSettings:
    """A site's process, as FLARE runs it."""

    site_sums: bool = setting(
        False,
        help="a site sends one mean per cluster for all its participants, if the method only averages",
    )
    memory_gc_rounds: int = setting(
        0, help=MEMORY.format("a site's"), ge=0, name="client_memory_gc_rounds"
    )
    cuda_empty_cache: bool = setting(
        False, help="a site's clean-up also releases torch's cached GPU memory"
    )

    def __post_init__(self) -> None:
        check_settings(self, "run")


@dataclass(frozen=True)
class ScriptSettings:
    """A training script of FLARE's Client API, in place of cfl_flare's own training."""

    train_script: str | None = setting(
        None,
        help="the script, sent with the job; it reads the data, each site is one participant",
        per_site=True,
    )
    train_args: str = setting("", help="the script's command line", per_site=True)
    evaluate: str | None = setting(
        None,
        help="a function of the script, or of a module in its folder, that measures each model that a site is sent: "
        "client.evaluate; without it, what the script reports counts",
        per_site=True,
    )
    launch_external_process: bool = setting(
        False, help="run the script in a separate process", per_site=True
    )
    command: str = setting("python3 -u", help="what starts that process", per_site=True)
    launch_once: bool = setting(
        True,
        help="that process runs for the whole job, or is started anew for each task",
    )
    launch_timeout: float | None = setting(
        300.0,
        help="seconds within which that process must be connected; None for no limit",
        gt=0,
    )
    shutdown_timeout: float = setting(
        0.0, help="seconds that process gets to end by itself", ge=0
    )
    framework: str | None = setting(
        None,
        help="what the script's arrays are; by default NumPy's if the model is given as arrays, else PyTorch's",
        choices=("pytorch", "numpy"),
    )
    params_transfer_type: str = setting(
        "FULL",
        help="the script sends its model, or the difference from what it received",
        choices=("FULL", "DIFF"),
    )
    server_expected_format: str = setting(
        "numpy",
        help="how models travel to and from the script: as NumPy's arrays, or as PyTorch's tensors (bfloat16 too)",
        choices=("numpy", "pytorch"),
    )

    def __post_init__(self) -> None:
        check_settings(self, "recipe")
        require(
            self.evaluate is None or self.train_script is not None,
            f"recipe: evaluate = {self.evaluate!r} measures the models of a train_script, and there is none; cfl_flare "
            "measures by itself: leave it out",
        )
        require(
            (self.framework, self.server_expected_format) != ("numpy", "pytorch"),
            "recipe: server_expected_format = 'pytorch' sends tensors, which framework = 'numpy' does not read; leave "
            "one of them out",
        )


@dataclass(frozen=True)
class AssignSettings:
    """How participants with a training script compare several models (IFCA, CLoVE).

    Attributes:
        penalties: the scripts add `cfl_flare.client.penalty` to their loss, and are sent what it needs.
        fedprox_mu: the coefficient of FedProx's term, for scripts that take it from FLARE's own metadata.
        tensors: models travel as PyTorch's tensors.
        evaluates: the scripts are seen to evaluate a model without training it; others are not asked to measure one.
    """

    metric: str = setting(
        "loss",
        help="ifca, clove: the script's metric, on its training data, that compares models",
        name="assign_metric",
    )
    mode: str | None = setting(
        None,
        help="which end of that metric is best; default: as its name says",
        choices=("min", "max"),
        name="assign_mode",
    )
    every: int = setting(
        1, help="rounds between choices of a cluster", ge=1, name="assign_every"
    )
    penalties: bool = False
    fedprox_mu: float | None = None
    tensors: bool = False
    evaluates: bool = False

    def __post_init__(self) -> None:
        check_settings(self, "run")
        require(
            self.mode is not None or best_end(self.metric) is not None,
            f"run: assign_metric = {self.metric!r} does not say by its name which end is best; set assign_mode "
            "to 'max' or 'min'",
        )

    def best(self, measured: Mapping[str, float]) -> str:
        """The slot with the best metric; the first of equals."""
        return min(measured, key=lambda slot: self.loss(measured[slot]))

    def loss(self, value: float) -> float:
        """A value of the metric as a loss: the smaller, the better."""
        return value if (self.mode or best_end(self.metric)) == "min" else -value


# The concerns whose settings are keyword arguments, by their place in a plan.
CONCERNS: dict[str, type] = {
    "job": JobSettings,
    "server": ServerSettings,
    "site": SiteSettings,
    "controller": ControllerSettings,
    "executor": ExecutorSettings,
    "data": DataConfig,
    "script": ScriptSettings,
    "assign": AssignSettings,
}


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run as requested. Each setting is valid by itself; the preflight checks that they fit together.
    The attributes that are not listed are the settings of each concern.

    Attributes:
        method: the method.
        model: ``{"class_path", "args"}`` of the module that is trained.
        arrays: the initial model, by name, if it was given as arrays.
        source: the same of the data source; empty if a training script reads its data.
        reader: the source itself.
        training: how participants train; None if a training script decides.
        facts: of the data, for the summary; see `cfl_flare.engine.loop.class_facts`.
        sites: in one process, the number of sites at which the server believes the participants to be.
        until: ends the run after this many rounds, from which a later call may go on; None for all rounds.
    """

    method: Method
    model: dict[str, Any]
    server: ServerSettings
    arrays: dict[str, np.ndarray] | None = None
    source: dict[str, Any] = field(default_factory=dict)
    reader: DataSource | None = None
    training: TrainSettings | None = None
    job: JobSettings = field(default_factory=lambda: JobSettings(min_clients=1))
    site: SiteSettings = field(default_factory=SiteSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    data: DataConfig = field(default_factory=DataConfig)
    script: ScriptSettings = field(default_factory=ScriptSettings)
    assign: AssignSettings = field(default_factory=AssignSettings)
    facts: Mapping[str, Any] = field(default_factory=dict)
    sites: int = 1
    until: int | None = None

    @classmethod
    def of(
        cls,
        *,
        method: Method | Mapping[str, Any] | str,
        model: nn.Module | Mapping[str, Any] | Sequence[Any] | np.ndarray,
        data: DataSource | Mapping[str, Any] | None = None,
        training: TrainSettings | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> RunPlan:
        """Builds a plan from the arguments of `cfl_flare.flare.ClusteredRecipe`.

        Raises:
            ConfigError: a setting is wrong; the message names it, its value and what it should be.
        """
        check_known(settings, CONCERNS.values(), "recipe")
        method = (
            method
            if isinstance(method, Method)
            else build_method(as_spec(method, "method"))
        )
        if settings.get("indicator_samples") is None:
            settings["indicator_samples"] = (
                0
                if settings.get("participants") is None
                else samples_to_set_aside([method])
            )
        parts: dict[str, Any] = {
            place: pick(kind, settings, "run") for place, kind in CONCERNS.items()
        }
        require(
            data is not None or parts["script"].train_script is not None,
            "recipe: neither data nor train_script is given; give one of them",
        )
        require(
            model is not None,
            "model = None: the server starts from a model, and compares those that it receives; give the module, its "
            "{'class_path', 'args'}, or the arrays by name that the script starts from",
        )
        arrays = named_arrays(model)
        if arrays is not None:
            parts["script"] = _in_numpy(parts["script"])
            model = NamedArrays({name: array.shape for name, array in arrays.items()})
        source = {} if data is None else describe(data, "data")
        reader = build(source, DataSource, "data") if source else None  # type: ignore[type-abstract]
        if reader is not None:
            parts["data"] = parts["data"].resolved(
                data if isinstance(data, DataSource) else reader
            )
        if not isinstance(training, TrainSettings) and (
            data is not None or training is not None
        ):
            training = from_dict(TrainSettings, training or {}, "training")
        if training is not None:
            training = training.over(
                parts["server"].num_rounds, parts["server"].evaluate_every
            )
            training = scale_outcome(
                training,
                data if isinstance(data, DataSource) else reader,
                parts["data"],
            )
        return cls(
            method=method,
            model=describe_network(model),
            arrays=arrays,
            source=source,
            reader=data if isinstance(data, DataSource) else reader,
            training=training,
            **parts,
        )

    def make_model(self) -> nn.Module:
        return build(self.model, nn.Module, "model")


def scale_outcome(
    training: TrainSettings, reader: DataSource | None, data: DataConfig
) -> TrainSettings:
    """Give the task regression the outcome's mean and deviation, of all training samples of a simulation.

    Raises:
        ConfigError: sites have data of their own, and the settings do not say what the sites agreed on.
    """
    if reader is None or as_spec(training.task, "task").get("task") != Regression.name:
        return training
    task = training.built_task()
    assert isinstance(task, Regression)
    if task.is_scaled:
        return training
    require(
        data.participants is not None,
        "training: task = 'regression' at real sites learns the outcome scaled, and mean and deviation are not given: "
        "expected those that the sites agreed on\n"
        "hint: set task to 'regression:mean=M,deviation=D', or to mean=0,deviation=1 for an outcome near 0",
    )
    train, _ = reader.load()
    task.check_form(train.y, "data")
    return replace(training, task=describe_task(task.scaled_by(train.y)))


def _in_numpy(script: ScriptSettings) -> ScriptSettings:
    require(
        script.train_script is not None,
        "model: arrays by name need a training script that knows what to compute with them; give train_script, or a "
        "torch.nn.Module as the model",
    )
    return replace(script, framework=script.framework or "numpy")
