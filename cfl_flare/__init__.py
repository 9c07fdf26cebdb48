# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401
"""Clustered federated learning for NVIDIA FLARE: the public names, each imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cfl_flare.core import __version__

if TYPE_CHECKING:
    from cfl_flare.core.errors import CFLError, ConfigError, DataError
    from cfl_flare.data import DataConfig, DataSource, Digits, Npz, Samples, SiteData
    from cfl_flare.data.images import Folder
    from cfl_flare.data.table import Table
    from cfl_flare.engine.loop import run_loop
    from cfl_flare.engine.plan import RunPlan
    from cfl_flare.engine.settings import ServerSettings
    from cfl_flare.flare import ClusteredRecipe, StudyRecipe, simulator
    from cfl_flare.methods import (
        CAM,
        CFL,
        CFLGP,
        CGPFL,
        FLHC,
        IFCA,
        CLoVE,
        Contrastive,
        Ditto,
        Ensemble,
        FedAC,
        FedAvg,
        FedBABU,
        FedCUAU,
        FedDS,
        FedDSMIC,
        FedGroup,
        FedPer,
        FedProx,
        FeSEM,
        Finetune,
        Groups,
        KnowledgeSharing,
        Local,
        Method,
        PerFedAvg,
        Proximal,
        WeCFL,
    )
    from cfl_flare.models import (
        MLP,
        CifarCNN,
        FashionCNN,
        LeafCNN,
        Logistic,
        MobileNetV2,
        ResNet18,
        UNet,
    )
    from cfl_flare.results import (
        Difference,
        Run,
        find_runs,
        load_arrays,
        load_model,
        paired_difference,
    )
    from cfl_flare.results.tables import results_table
    from cfl_flare.training.settings import TrainSettings
    from cfl_flare.training.tasks import (
        Binary,
        Classification,
        LearningTask,
        Multilabel,
        Regression,
        Segmentation,
        Survival,
    )

_NAMES = {
    "core.errors": "CFLError ConfigError DataError",
    "data": "DataConfig DataSource Digits Npz Samples SiteData",
    "data.images": "Folder",
    "data.table": "Table",
    "engine.loop": "run_loop",
    "engine.plan": "RunPlan",
    "engine.settings": "ServerSettings",
    "flare": "ClusteredRecipe StudyRecipe simulator",
    "methods": "CAM CFL CFLGP CGPFL CLoVE FLHC IFCA Contrastive Ditto Ensemble FedAC FedAvg FedBABU FedCUAU FedDS "
    "FedDSMIC FedGroup FedPer FedProx FeSEM Finetune Groups KnowledgeSharing "
    "Local Method PerFedAvg Proximal WeCFL",
    "models": "MLP CifarCNN FashionCNN LeafCNN Logistic MobileNetV2 ResNet18 UNet",
    "results.tables": "results_table",
    "results": "Difference Run find_runs load_arrays load_model paired_difference",
    "training.settings": "TrainSettings",
    "training.tasks": "Binary Classification LearningTask Multilabel Regression Segmentation Survival",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(
            f"module 'cfl_flare' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(import_module(f"cfl_flare.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
