# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""All that makes a run, sorted by concern: what the recipe and the command line turn their arguments into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from cfl_flare.core.config import as_spec, build, describe, from_dict, require
from cfl_flare.core.settings import check_known, pick
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.engine.indicator import samples_to_set_aside
from cfl_flare.engine.job_settings import (
    AssignSettings,
    ControllerSettings,
    ExecutorSettings,
    JobSettings,
    ScriptSettings,
)
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.methods import Method, build_method
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


@dataclass(frozen=True)
class RunPlan:
    """A run as it was asked for; each setting is in its bounds. Whether they fit together, the preflight checks.

    ``model`` and ``source`` are ``{"class_path", "args"}``, and ``reader`` reads the source here. Where a training
    script reads its data and trains, ``source`` is empty, ``reader`` and ``training`` are None.
    """

    method: Method
    model: dict[str, Any]
    source: dict[str, Any]
    reader: DataSource | None
    training: TrainSettings | None
    job: JobSettings
    server: ServerSettings
    site: SiteSettings
    controller: ControllerSettings
    executor: ExecutorSettings
    data: DataConfig
    script: ScriptSettings
    assign: AssignSettings

    @classmethod
    def of(
        cls,
        *,
        method: Method | Mapping[str, Any] | str,
        model: nn.Module | Mapping[str, Any],
        data: DataSource | Mapping[str, Any] | None = None,
        training: TrainSettings | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> RunPlan:
        """From the arguments of `cfl_flare.flare.ClusteredRecipe`.

        Raises:
            ConfigError: naming the setting, its value and what it should be.
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
        source = {} if data is None else describe(data, "data")
        reader = build(source, DataSource, "data") if source else None  # type: ignore[type-abstract]
        if not isinstance(training, TrainSettings) and (data is not None or training is not None):
            training = from_dict(TrainSettings, training or {}, "training")
        return cls(
            method=method,
            model=describe(model, "model"),
            source=source,
            reader=data if isinstance(data, DataSource) else reader,
            training=training,
            **parts,
        )

    def make_model(self) -> nn.Module:
        """The untrained module."""
        return build(self.model, nn.Module, "model")
