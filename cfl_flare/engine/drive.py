# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The only loop over rounds: the loop in one process, FLARE's jobs, training scripts and studies call it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Params
from cfl_flare.engine.server import Server
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Task
from cfl_flare.methods.slots import add_parts
from cfl_flare.results.store import Checkpoint, Store
from cfl_flare.training.ensemble import Served

logger = logging.getLogger(__name__)


@dataclass
class Checkpoints:
    """Where a run's checkpoints are written, and how often.

    Attributes:
        store: where to; None keeps none.
        every: rounds between checkpoints.
        run: the run's settings, as JSON values.
        memory: what participants remember, where they are in this process.
    """

    store: Store | None = None
    every: int = 1
    run: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Mapping[str, Params]] = field(default_factory=dict)

    def save(self, server: Server, due: bool = False) -> None:
        """Writes a checkpoint of a server between two rounds, if it is due. If it cannot, the run goes on.

        Archived arrays that no checkpoint needs any more are deleted.
        """
        number = server.state.round
        if self.store is None:
            server.forget(number)
        elif due or number % self.every == 0:
            last = None if server.recorder is None else server.recorder.last
            why = Checkpoint(server.state, server.progress, self.memory, last).save(
                self.store, self.run
            )
            if why is not None:
                logger.error("no checkpoint after round %d: %s", number, why)
            server.forget(next(iter(self.store.versions()), 0))


class Transport(Protocol):
    """Carries tasks to participants and their results back: in this process, over FLARE, or to training scripts."""

    def only_train(self, server: Server) -> Collection[str]:
        """Participants that cannot measure a model without training it."""

    def exchange(self, server: Server, tasks: Mapping[str, Task]) -> bool:
        """Sends each participant its task, and hands each result to the server. False if the job was aborted."""


def drive(
    server: Server,
    transport: Transport,
    checkpoints: Checkpoints,
    until: int | None = None,
) -> bool:
    """Runs a server's rounds, and after the last one an exchange that only measures.

    One round, with the functions that do it::

        Server.tasks                    who trains, who measures, and which models they need
            Observer.begin              an observer adds its questions
            Method.distribute           the models that the method sends a participant
        Transport.exchange              the participants train and measure
            Server.accept               checks an answer wholly, then keeps it
        Server.finish_round
            Guard.outliers              leaves out updates that are far from all others
            Method.assign               E-step: a cluster for each participant
            under_floor                 no cluster below the minimum size
            Guard.averaged              holds back small means, caps weights, takes robust means
            Method.aggregate            M-step: the models of the next round
            ServerOptimizer.step        how far the models move
        Checkpoints.save                the state after the round
        Observer.done                   the round's figures are shown, written and sent

    Args:
        server: at the run's start, or where a checkpoint was written.
        until: ends the run after this many rounds; a later call goes on from the checkpoint. None for all rounds.

    Returns:
        False if the job was aborted.

    Raises:
        TooFewAnswersError: too many rounds in a row had too few valid results.
    """
    while True:
        if until is not None and server.state.round >= until and not server.finished:
            server.progress.stopped = (
                f"after {until} of {server.settings.num_rounds} rounds, as asked"
            )
        last = server.finished
        tasks = server.tasks(transport.only_train(server))
        if not transport.exchange(server, tasks):
            return False
        measured = server.finish_round()
        if last:
            server.close()
        else:
            checkpoints.save(server, due=server.state.round == until)
        for observer in server.observers:
            observer.done(server, measured)
        if last:
            return True


@dataclass(frozen=True)
class InProcess:
    """All participants are in this process.

    Attributes:
        site: hosts them.
        places: the site that the server believes each participant to be at.
        keeper: makes of the server, at its end, what is called with each participant and what that predicts with; None
            for nothing.
    """

    site: Site
    places: Mapping[str, str]
    keeper: Callable[[Server], Callable[[str, Served], None]] | None = None

    def only_train(self, server: Server) -> Collection[str]:
        return ()

    def exchange(self, server: Server, tasks: Mapping[str, Task]) -> bool:
        number = server.state.round
        models = add_parts(
            server.bank, [slot for task in tasks.values() for slot in task.needed]
        )
        on_served = (
            self.keeper(server) if self.keeper is not None and server.finished else None
        )
        for name, task in tasks.items():
            result = self.site.carry_out(name, task, models, number, on_served)
            if result.error is not None:
                logger.warning(
                    "round %d: %s failed: %s, in full: %s",
                    number,
                    name,
                    result.error,
                    result.traceback,
                )
            try:
                server.accept(result, self.places[name])
            except PayloadError as error:
                logger.warning("round %d: %s", number, error)
        return True
