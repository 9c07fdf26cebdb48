# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The classes of cfl_flare that a job may name: a prepared kit's allow-list holds them one by one.

FLARE calls whatever the path of a component names, with the job's arguments: a class, a function, or what a module has
imported. A list with the prefix ``cfl_flare.`` would let a job that carries no code call the command line, at every
site and at the server.
"""

from __future__ import annotations

from collections.abc import Sequence

PREFIX = "cfl_flare."

CLASSES = (
    "cfl_flare.flare.aggregator.ClusteringAggregator",
    "cfl_flare.flare.controller.ClusteredController",
    "cfl_flare.flare.egress.EgressFilter",
    "cfl_flare.flare.executor.ClusteredExecutor",
    "cfl_flare.flare.persistor.ClusterModelPersistor",
    "cfl_flare.flare.study.controller.StudyController",
    "cfl_flare.flare.study.executor.StudyExecutor",
    "cfl_flare.flare.tracking.ServerRun",
    "cfl_flare.data.hospitals.Heart",
    "cfl_flare.data.hospitals.Stroke",
    "cfl_flare.data.images.Folder",
    "cfl_flare.data.named.CIFAR10",
    "cfl_flare.data.named.CIFAR100",
    "cfl_flare.data.named.EMNIST",
    "cfl_flare.data.named.FashionMNIST",
    "cfl_flare.data.named.MNIST",
    "cfl_flare.data.named.MedMNIST",
    "cfl_flare.data.sources.Digits",
    "cfl_flare.data.sources.Npz",
    "cfl_flare.data.sources.SiteData",
    "cfl_flare.data.table.Table",
    "cfl_flare.models.CifarCNN",
    "cfl_flare.models.FashionCNN",
    "cfl_flare.models.LeafCNN",
    "cfl_flare.models.Logistic",
    "cfl_flare.models.MLP",
    "cfl_flare.models.MobileNetV2",
    "cfl_flare.models.NamedArrays",
    "cfl_flare.models.ResNet18",
    "cfl_flare.models.UNet",
)


def narrowed(listed: Sequence[str]) -> list[str]:
    """A list without the prefix, which earlier versions wrote."""
    return [entry for entry in listed if entry not in (PREFIX, PREFIX.rstrip("."))]
