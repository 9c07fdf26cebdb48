# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The FLARE side; the only part of cfl_flare that imports nvflare."""

from cfl_flare.flare.aggregator import ClusteringAggregator
from cfl_flare.flare.controller import ClusteredController
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.job.recipe import ClusteredRecipe, simulator
from cfl_flare.flare.persistor import ClusterModelPersistor

__all__ = [
    "ClusterModelPersistor",
    "ClusteredController",
    "ClusteredExecutor",
    "ClusteredRecipe",
    "ClusteringAggregator",
    "simulator",
]
