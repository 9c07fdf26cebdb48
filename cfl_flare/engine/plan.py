# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A whole run, by concern: the recipe and the command line turn their arguments into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from cfl_flare.core.config import as_spec, build, describe, from_dict, require
from cfl_flare.core.networks import describe_network
from cfl_flare.core.settings import check_known, pick
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.engine.indicator import samples_to_set_aside
from cfl_flare.engine.initial_models import named_arrays
from cfl_flare.engine.job_settings import (
    AssignSettings,
    ControllerSettings,
    ExecutorSettings,
    JobSettings,
    ScriptSettings,
)
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.methods import Method, build_method
from cfl_flare.models import NamedArrays
from cfl_flare.training.settings import TrainSettings

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
        facts: of the data, for the summary; see `cfl_flare.engine.classes.class_facts`.
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
        method = method if isinstance(method, Method) else build_method(as_spec(method, "method"))
        if settings.get("indicator_samples") is None:
            settings["indicator_samples"] = (
                0 if settings.get("participants") is None else samples_to_set_aside([method])
            )
        parts: dict[str, Any] = {place: pick(kind, settings, "run") for place, kind in CONCERNS.items()}
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
            source = reader.in_job(source)
            parts["data"] = parts["data"].resolved(data if isinstance(data, DataSource) else reader)
        if not isinstance(training, TrainSettings) and (data is not None or training is not None):
            training = from_dict(TrainSettings, training or {}, "training")
        training = training and training.over(parts["server"].num_rounds)
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
        """The untrained module."""
        return build(self.model, nn.Module, "model")


def _in_numpy(script: ScriptSettings) -> ScriptSettings:
    """A script's settings where the model is given as arrays."""
    require(
        script.train_script is not None,
        "model: arrays by name need a training script that knows what to compute with them; give train_script, or a "
        "torch.nn.Module as the model",
    )
    return replace(script, framework=script.framework or "numpy")
