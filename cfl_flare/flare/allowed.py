# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The classes of cfl_flare that a job may name: a prepared kit's allow-list holds them one by one.

FLARE calls whatever the path of a component names, with the job's arguments: a class, a function, or what a module has
imported. A list with the prefix ``cfl_flare.`` would let a job that carries no code call the command line, at every
site and at the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from cfl_flare.flare.compat import allow_list_key

PREFIX = "cfl_flare."
ALL = "*"
JOB_CHECK = "cfl_flare.flare.job_check.JobCheck"
VALIDATOR = "app_validator"

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

# What jobs use of FLARE's classes: the job's results, a receiver that writes to the run's folder, privacy filters, and
# the streamer that a site adds to a job itself if its operator lets logs leave. Which of them sites take is said in
# `cfl_flare.flare.job_check`.
OF_FLARE = (
    "nvflare.app_common.filters.exclude_vars.ExcludeVars",
    "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
    "nvflare.app_common.filters.svt_privacy.SVTPrivacy",
    "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
    "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent",
    "nvflare.app_common.widgets.metrics_artifact_writer.MetricsArtifactWriter",
    "nvflare.app_common.widgets.validation_json_generator.ValidationJsonGenerator",
    "nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver",
)


def narrowed(listed: Sequence[str]) -> list[str]:
    """A list without the prefix, which earlier versions wrote."""
    return [entry for entry in listed if entry not in (PREFIX, PREFIX.rstrip("."))]


def with_allowed(content: dict[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Resources that also allow these classes. A list of their own, or else FLARE's default list, is extended.

    The prefix of all of cfl_flare is taken out of it.
    """
    key = allow_list_key()
    listed = narrowed(content.get(key, DEFAULT_CLASS_ALLOW_LIST))
    added = [] if ALL in listed else [c for c in classes if c not in listed]
    return {"format_version": 2, **content, key: listed + added}


def with_job_check(content: dict[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """A kit's resources with the check of jobs; see `cfl_flare.flare.job_check`.

    Of FLARE's default list the classes that jobs of cfl_flare use stay, and those that are named; later, what the
    operator has added stays as well. An ``app_validator`` of the operator's is asked by ours.
    """
    key = allow_list_key()
    if not checks_jobs(content):
        listed = [entry for entry in content.get(key, ()) if entry not in DEFAULT_CLASS_ALLOW_LIST]
        own = content.get(VALIDATOR)
        check = {"path": JOB_CHECK, "args": {"then": own} if own else {}}
        content = {"format_version": 2, **content, key: listed, VALIDATOR: check}
    return with_allowed(content, [*OF_FLARE, *classes])


def checks_jobs(content: Any) -> bool:
    """Whether a kit with these resources checks jobs."""
    validator = content.get(VALIDATOR) if isinstance(content, dict) else None
    return isinstance(validator, dict) and validator.get("path") == JOB_CHECK
