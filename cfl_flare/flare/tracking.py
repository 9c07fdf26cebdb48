# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A round's numbers for FLARE's experiment tracking: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ProcessType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.widgets.streaming import AnalyticsReceiver
from nvflare.widgets.widget import Widget

# FLARE's receivers that open a run for each site when the job starts, and drop what comes from anywhere else.
RUNS_OF_SITES = ("nvflare.app_opt.tracking.mlflow.", "nvflare.app_opt.tracking.wandb.")
# Numbers of a record that tell what the round cost; of the others, those of no model are of the clustering.
OF_ROUND = ("bytes_down", "bytes_up", "seconds", "clipped")
CLUSTER = re.compile(r"cluster-\d+/")


def series(name: str) -> str:
    """The name of a number of a round's record in experiment tracking.

    TensorBoard shows it in the section before its first slash: the served models, those after the local steps, the
    clustering, the round itself, or a cluster. A site may have chosen a measure's name. A slash in it becomes a point,
    so that it opens no section and makes no path. MLflow refuses such a path with all other numbers.

    >>> [series(name) for name in ("served_worst_dice", "cluster-0/served_val/dice", "cluster-0/size")]
    ['served/worst_dice', 'cluster-0/served/val.dice', 'cluster-0/size']
    >>> [series(name) for name in ("pooled_auroc", "ari", "bytes_up")]
    ['served/pooled_auroc', 'clustering/ari', 'round/bytes_up']
    """
    prefix = CLUSTER.match(name)
    cluster = prefix.group() if prefix else ""
    number = name.removeprefix(cluster).replace("/", ".")
    kind, _, measure = number.partition("_")
    if kind in ("served", "trained"):
        return f"{cluster}{kind}/{measure}"
    if kind == "pooled":
        return f"{cluster}served/{number}"
    section = "" if cluster else "round/" if number in OF_ROUND else "clustering/"
    return f"{cluster}{section}{number}"


def bounds(intervals: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The ends of means' intervals, as numbers of a record.

    >>> bounds({"served_dice": (0.5, 0.75)})
    {'served_dice_low': 0.5, 'served_dice_high': 0.75}
    """
    return {f"{name}_{end}": at for name, ends in intervals.items() for end, at in zip(("low", "high"), ends)}


def track(component: FLComponent, scalars: Mapping[str, float], number: int) -> None:
    """Sends the numbers of a round, which is counted from 0, to the tracking components of the sender's process."""
    with component.engine.new_context() as fl_ctx:
        for name, value in scalars.items():
            dxo = create_analytic_dxo(series(name), value, AnalyticsDataType.SCALAR, global_step=number)
            send_analytic_dxo(component, dxo, fl_ctx)


def opens_runs_of_sites(component: Any) -> bool:
    """Whether a component of the server tracks sites' series and not the server's."""
    modules = [parent.__module__ for parent in type(component).__mro__]
    return isinstance(component, AnalyticsReceiver) and any(m.startswith(RUNS_OF_SITES) for m in modules)


class ServerRun(Widget):
    """The server's own run, with the series of the clusters. A receiver opens a run for each site only.

    Args:
        receiver: one of the same settings. At a site it opens a run for that site alone. Here it gets a context that
            says that the server is a site.
    """

    def __init__(self, receiver: AnalyticsReceiver):
        super().__init__()
        self.receiver = receiver
        receiver.events = [ANALYTIC_EVENT_TYPE]
        # FLARE hands events to every component that it has built, the receiver too. It must get them from here alone.
        self._handle, receiver.handle_event = receiver.handle_event, lambda event_type, fl_ctx: None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        self._handle(event_type, _AtSite(fl_ctx))


class _AtSite(FLContext):
    """A context whose process is a site's."""

    def __init__(self, context: FLContext):
        super().__init__()
        self.props = context.props

    def get_process_type(self, default: Any = None) -> Any:
        return ProcessType.CLIENT_JOB
