# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A job's rounds for FLARE's other components: its events, and experiment tracking by TensorBoard, MLflow and W&B."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ProcessType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.widgets.streaming import AnalyticsReceiver
from nvflare.fuel.utils.memory_utils import cleanup_memory
from nvflare.widgets.widget import Widget

from cfl_flare.engine.observers import Observer, Running
from cfl_flare.flare.aggregator import ClusteringAggregator
from cfl_flare.flare.per_site import PerSiteController
from cfl_flare.results.metrics import RoundMetrics

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
    return {
        f"{name}_{end}": at
        for name, ends in intervals.items()
        for end, at in zip(("low", "high"), ends)
    }


def track(component: FLComponent, scalars: Mapping[str, float], number: int) -> None:
    """Sends the numbers of a round, which is counted from 0, to the tracking components of the sender's process."""
    with component.engine.new_context() as fl_ctx:
        for name, value in scalars.items():
            dxo = create_analytic_dxo(
                series(name), value, AnalyticsDataType.SCALAR, global_step=number
            )
            send_analytic_dxo(component, dxo, fl_ctx)


class JobEvents(Observer):
    """Tells FLARE's other components, experiment tracking (if it ``announces``) and the log of each round.

    It also frees each round's messages, whose objects refer to each other, and cleans up the server's memory every
    ``memory_gc_rounds``. What is there before the first round is not looked at in each: that would take 0.15 s.
    """

    def __init__(
        self,
        job: PerSiteController,
        aggregator: ClusteringAggregator,
        announces: bool,
        memory_gc_rounds: int,
    ):
        self._job = job
        self._aggregator, self._announces, self._memory_gc_rounds = (
            aggregator,
            announces,
            memory_gc_rounds,
        )
        self._number, self._last = 0, False
        gc.freeze()

    def begin(self, server: Running) -> None:
        self._number, self._last = server.state.round, server.finished
        if not self._last:
            self._job.admit(server)
        self._job.event(AppEventType.ROUND_STARTED)

    def answered(self, server: Running) -> None:
        self._job.event(AppEventType.BEFORE_AGGREGATION)

    def done(self, server: Running, measured: RoundMetrics | None) -> None:
        """What was measured in the round are the models of the round before."""
        words = ""
        if measured is not None:
            announcement = self._aggregator.announcement(measured)
            metrics, name = (
                announcement.metrics or {},
                f"served_{server.progress.judged_by.name}",
            )
            if name in metrics:
                words = f"; {name} = {metrics[name]:.4f} after round {announcement.current_round}"
            if self._announces and metrics:
                self._announce(announcement)
        if self._last:
            self._job.info(f"all rounds are done{words}")
            return
        self._job.info(
            f"round {self._number} of {server.settings.num_rounds} is done{words}"
        )
        if server.progress.stopped is not None:
            self._job.info(f"the job ends early: {server.progress.stopped}")
        gc.collect()
        if self._memory_gc_rounds and (self._number + 1) % self._memory_gc_rounds == 0:
            cleanup_memory()
        self._job.event(AppEventType.ROUND_DONE)

    def _announce(self, announcement: FLModel) -> None:
        job, key = self._job, AppConstants.AGGREGATION_RESULT
        job.set_fl_context(announcement)
        job.fire_event_with_data(
            AppEventType.AFTER_AGGREGATION, job.fl_ctx, key, announcement
        )
        track(job, announcement.metrics, announcement.current_round)

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        gc.unfreeze()
        facts["sites_left_out"] = self._job.left_out


def opens_runs_of_sites(component: Any) -> bool:
    """Whether a component of the server tracks sites' series and not the server's."""
    modules = [parent.__module__ for parent in type(component).__mro__]
    return isinstance(component, AnalyticsReceiver) and any(
        m.startswith(RUNS_OF_SITES) for m in modules
    )


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
        self._handle, receiver.handle_event = (
            receiver.handle_event,
            lambda event_type, fl_ctx: None,
        )

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        self._handle(event_type, _AtSite(fl_ctx))


class _AtSite(FLContext):
    """A context whose process is a site's."""

    def __init__(self, context: FLContext):
        super().__init__()
        self.props = context.props

    def get_process_type(self, default: Any = None) -> Any:
        return ProcessType.CLIENT_JOB
