# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The rounds of a FLARE job: how tasks reach the sites' executors, and what FLARE is told of each round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.fuel.utils.memory_utils import cleanup_memory

from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.observers import Observer, Running
from cfl_flare.engine.server import Server
from cfl_flare.engine.task import Task
from cfl_flare.flare import wire
from cfl_flare.flare.aggregator import ClusteringAggregator
from cfl_flare.flare.per_site import PerSiteController
from cfl_flare.flare.tracking import track
from cfl_flare.methods import Participant
from cfl_flare.results.checkpoints import Checkpoint
from cfl_flare.results.metrics import RoundMetrics


@dataclass(frozen=True)
class Start:
    """Where a run of a job starts, and with whom.

    Attributes:
        participants: all of them.
        checkpoints: where its checkpoints go.
        checkpoint: where it goes on; None starts it.
        folder: of its results; None writes none.
        recorded: the rounds that an earlier attempt left in that folder.
        facts: for its summary.
        announces: FLARE's metrics and experiment tracking hear of it; they know one run a job.
        drawn: the measures that participants compute on draws of their test splits; empty for all.
    """

    participants: Sequence[Participant]
    checkpoints: Checkpoints
    checkpoint: Checkpoint | None = None
    folder: Path | None = None
    recorded: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    announces: bool = True
    drawn: Sequence[str] = ()


class Sites:
    """The transport to the sites' executors: one message a site, with the tasks of its participants.

    Args:
        controller: sends the messages.
        aggregator: writes and reads them.
        timeout: seconds that a round may take.
        stated: what a site's message says besides its tasks.
        check: takes what is not a run's own out of an answer; raises a PayloadError where that is wrong.
    """

    def __init__(
        self,
        controller: PerSiteController,
        aggregator: ClusteringAggregator,
        timeout: int,
        stated: Callable[[str], Mapping[str, Any]],
        check: Callable[[FLModel], None] = lambda answer: None,
    ):
        self._controller, self._aggregator, self._timeout = controller, aggregator, timeout
        self._stated, self._check = stated, check

    def only_train(self, server: Server) -> Collection[str]:
        return ()

    def exchange(self, server: Server, tasks: Mapping[str, Task]) -> bool:
        if self._controller.abort_signal.triggered:
            return False
        messages = self._aggregator.messages(tasks)
        for site, message in messages.items():
            message.meta[wire.META].update(self._stated(site))
        goes_on = self._controller.exchange(wire.TRAIN_TASK, messages, self._timeout, self._accept)
        server.fail_sites(self._controller.site_errors)
        return goes_on

    def _accept(self, answer: FLModel) -> bool:
        self._check(answer)
        return self._aggregator.accept_model(answer)


class Job(Protocol):
    """What `JobEvents` needs of the controller; see `cfl_flare.flare.controller.ClusteredController`."""

    left_out: dict[str, str]
    fl_ctx: Any
    engine: Any

    def admit(self, server: Running) -> None: ...

    def event(self, event_type: str) -> None: ...

    def info(self, message: str) -> None: ...

    def set_fl_context(self, data: FLModel) -> None: ...

    def fire_event_with_data(self, event_type: str, fl_ctx: Any, key: str, data: Any) -> None: ...


class JobEvents(Observer):
    """Tells FLARE's other components, experiment tracking and the log of each round.

    Args:
        job: the controller.
        aggregator: of the run.
        announces: FLARE's metrics and experiment tracking hear of it.
        memory_gc_rounds: rounds between clean-ups of the server's memory; 0 for none.
    """

    def __init__(self, job: Any, aggregator: ClusteringAggregator, announces: bool, memory_gc_rounds: int):
        self._job: Job = job
        self._aggregator, self._announces, self._memory_gc_rounds = aggregator, announces, memory_gc_rounds
        self._number, self._last = 0, False

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
            value = (announcement.metrics or {}).get(name := f"served_{server.progress.judged_by.name}")
            words = "" if value is None else f"; {name} = {value:.4f} after round {announcement.current_round}"
            self._announce(announcement)
        if self._last:
            self._job.info(f"all rounds are done{words}")
            return
        self._job.info(f"round {self._number} of {server.settings.num_rounds} is done{words}")
        if server.progress.stopped is not None:
            self._job.info(f"the job ends early: {server.progress.stopped}")
        if self._memory_gc_rounds and (self._number + 1) % self._memory_gc_rounds == 0:
            cleanup_memory()
        self._job.event(AppEventType.ROUND_DONE)

    def _announce(self, announcement: FLModel) -> None:
        job = self._job
        if self._announces and announcement.metrics:
            job.set_fl_context(announcement)
            key = AppConstants.AGGREGATION_RESULT
            job.fire_event_with_data(AppEventType.AFTER_AGGREGATION, job.fl_ctx, key, announcement)
            track(job, announcement.metrics, announcement.current_round)

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        facts["sites_left_out"] = self._job.left_out
