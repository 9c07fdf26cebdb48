# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The integration with FLARE; the only part of cfl_flare that imports nvflare.

The names below are imported on first use: a site's process needs the executor, not what makes jobs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cfl_flare.flare.aggregator import ClusteringAggregator as ClusteringAggregator
    from cfl_flare.flare.controller import ClusteredController as ClusteredController
    from cfl_flare.flare.executor import ClusteredExecutor as ClusteredExecutor
    from cfl_flare.flare.job.recipe import ClusteredRecipe as ClusteredRecipe
    from cfl_flare.flare.job.recipe import simulator as simulator
    from cfl_flare.flare.job.several_recipe import StudyRecipe as StudyRecipe
    from cfl_flare.flare.persistor import ClusterModelPersistor as ClusterModelPersistor

_MODULES = {
    "ClusterModelPersistor": "persistor",
    "ClusteredController": "controller",
    "ClusteredExecutor": "executor",
    "ClusteredRecipe": "job.recipe",
    "ClusteringAggregator": "aggregator",
    "StudyRecipe": "job.several_recipe",
    "simulator": "job.recipe",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
