# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One round on the server: its tasks and its results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Params
from cfl_flare.core.text import plain, shown
from cfl_flare.engine.checks import check_result, check_update
from cfl_flare.engine.clipping import Norms, Statistics, clipped
from cfl_flare.engine.observers import Asked, Observer
from cfl_flare.engine.partial_sums import Carried, weighed
from cfl_flare.engine.spool import Spool
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import Method, Participant, ServerState, Update
from cfl_flare.methods.slots import travelling
from cfl_flare.methods.state import Download, Mapped


@dataclass(frozen=True)
class Rules:
    """How a round takes results.

    Attributes:
        method: the run's.
        observers: those that check answers, by key.
        no_sums: why sites cannot send sums; empty if they can.
        clip_norm: updates that move further than so many times the median are scaled down; None for never.
        model_bytes: size of one model, which decides whether updates are kept in memory or on disk.
    """

    method: Method
    observers: Mapping[str, Observer]
    no_sums: str
    clip_norm: float | None
    model_bytes: int


class Round:
    """A round's tasks by participant, and the results that passed every check.

    Args:
        participants: all of the run's.
        tasks: what is asked of some of them.
        downloads: what the method distributed to those.
        bank: the models that the tasks name.
        rules: how results are taken.

    Attributes:
        results: by participant, without their updates.
        failures: by participant, why there is no usable result.
        clipped: by participant, how many times further than allowed its update moved; known once there are `updates`.
    """

    def __init__(
        self,
        participants: Mapping[str, Participant],
        tasks: Mapping[str, Task],
        downloads: Mapping[str, Download],
        bank: Mapping[str, Params],
        rules: Rules,
    ):
        self._participants, self.tasks, self.downloads, self._rules = participants, tasks, downloads, rules
        self.results: dict[str, Result] = {}
        self.failures: dict[str, str] = {}
        self.clipped: dict[str, float] = {}
        self._carried = Carried(rules.no_sums)
        self._norms, self._statistics = Norms(), Statistics()
        self._spool = Spool(rules.model_bytes * self.training)
        self._bytes_down, self._bytes_up = self._sent(bank), 0
        self._started = time.monotonic()

    @property
    def training(self) -> int:
        """The number of participants that were asked to train."""
        return sum(task.train for task in self.tasks.values())

    def _sent(self, bank: Mapping[str, Params]) -> int:
        """Bytes of the models: each travels once to a site, however many of its participants need it."""
        wanted: dict[str, list[str]] = {}
        for name, task in self.tasks.items():
            wanted.setdefault(self._participants[name].site, []).extend(task.needed)
        return sum(_layout_bytes(bank, slot) for slots in wanted.values() for slot in travelling(slots))

    def accept(self, result: Result, site: str, state: ServerState) -> None:
        """Checks all of a result, then keeps it.

        Raises:
            PayloadError: it does not fit what was asked, or cannot be kept on a full disk; nothing of it is kept.
        """
        name, update, method = result.participant, result.update, self._rules.method
        if name not in self._participants or self._participants[name].site != site:
            raise PayloadError("unknown_participant", f"{site} hosts no participant {shown(name)}")
        if name not in self.tasks:
            raise PayloadError("not_asked", f"{name} was not asked in this round")
        if name in self.results:
            raise PayloadError("twice", f"{name} sent a second result")
        asked = Asked(self._participants[name], self.tasks[name], result)
        check_result(result, asked.task, asked.participant)
        answers = self._checked(asked)
        if update is not None:
            if update.carrier is not None:
                self._carried.check(update, self._participants)
            check_update(update, self.downloads[name], state, method.label)
            self._keep(update, method.weight(update), state)
        self._bytes_up += sum(answer.nbytes for answer in answers.values() if hasattr(answer, "nbytes"))
        self.results[name] = replace(result, update=None, answers=answers)

    def _checked(self, asked: Asked) -> dict[str, Any]:
        """A result's answers, each checked by the observer that asked for it."""
        answers = {key: answer for key, answer in asked.result.answers.items() if answer is not None}
        for key in answers.keys() - self._rules.observers.keys():
            raise PayloadError("malformed", f"{asked.name} was not asked for {shown(key)}")
        observers = {key: observer for key, observer in self._rules.observers.items() if key in answers}
        return {key: observer.check(answers[key], asked) for key, observer in observers.items()}

    def _keep(self, update: Update, weight: float, state: ServerState) -> None:
        expected = self.downloads[update.participant].expected(update.cluster)
        update = replace(update, main=expected[0] if update.diffs else None)
        self._spool.put(update)
        if self._rules.clip_norm is not None:
            self._norms.add(update)
            self._statistics.add(update, state.bank)
        self._bytes_up += sum(state.bank[slot].layout.nbytes for slot in update.diffs)
        self._bytes_up += sum(array.nbytes for array in update.arrays.values())
        self._carried.add(update, weight)

    def fail(self, participants: Sequence[str], reason: str) -> None:
        """Notes that participants sent nothing usable, and why."""
        self.failures.update({name: plain(reason) for name in participants if name in self.tasks})

    def end(self) -> None:
        """Ends the round: participants without a result have failed."""
        for name in self.tasks:
            if name not in self.results:
                self.failures.setdefault(name, "no result in time")

    def metrics(self) -> dict[str, Mapping[str, float]]:
        """What participants measured, in their order; of those without test samples nothing, where it was asked for."""
        return {
            name: self.results[name].metrics
            for name, who in self._participants.items()
            if name in self.results and (self.results[name].metrics or (self.tasks[name].evaluate and not who.tested))
        }

    def answers(self, key: str) -> dict[str, Any]:
        """The answers to one observer, in the participants' order; None of those who sent none."""
        return {name: self.results[name].answers.get(key) for name in self._participants if name in self.results}

    @property
    def tested(self) -> int:
        """The number of participants with a result that have test samples."""
        return sum(self._participants[name].tested for name in self.results)

    def updates(self) -> tuple[Sequence[Update], list[str], bool]:
        """The updates in the participants' order, whose they are, and whether some are means of several."""
        weights, lost = self._carried.resolved()
        self.failures.update(lost)
        stored = self._spool.ordered([name for name in self._participants if name not in lost])
        bound = self._rules.clip_norm
        updates = stored if bound is None else self._bounded(stored, bound)
        return Mapped(updates, partial(weighed, weights)) if weights else updates, list(stored.names), bool(weights)

    def _bounded(self, updates: Sequence[Update], bound: float) -> Sequence[Update]:
        excess, (ranges, beyond) = self._norms.excess(bound), self._statistics.excess(bound)
        for far in (*excess.values(), *beyond.values()):
            self.clipped |= {name: max(times, self.clipped.get(name, times)) for name, times in far.items()}
        return clipped(updates, excess, ranges)

    def count(self, record: dict[str, Any]) -> None:
        """Adds the round's traffic and time to a record."""
        record["bytes_down"] += self._bytes_down
        record["bytes_up"] += self._bytes_up
        record["seconds"] = round(record["seconds"] + time.monotonic() - self._started, 3)

    def close(self) -> None:
        """Deletes the updates, and lets go of the models that were sent."""
        self._spool.close()
        self.downloads = {}


def _layout_bytes(bank: Mapping[str, Params], slot: str) -> int:
    whole, _, role = slot.partition(":")
    return bank[slot].layout.nbytes if slot in bank else bank[whole].layout.of_part(role).nbytes
