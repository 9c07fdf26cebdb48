# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One round on the server: its tasks and its results."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cfl_flare.core.errors import FileError, PayloadError
from cfl_flare.core.files import atomic_write
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.text import plain, shown
from cfl_flare.engine.array_bounds import bound_arrays
from cfl_flare.engine.clipping import Norms, Statistics, clip_updates
from cfl_flare.engine.observers import Asked, Running
from cfl_flare.engine.partial_sums import Carried, no_sums
from cfl_flare.engine.settings import CLIP_NORM
from cfl_flare.engine.task import Result, Task, check_result, check_update
from cfl_flare.methods import Update
from cfl_flare.methods.slots import list_travelling
from cfl_flare.methods.state import Download, Mapped, read_heads


class Round:
    """A round's tasks by participant, what the method distributed to those, and the results that passed every check.

    Attributes:
        results: by participant, without their updates.
        failures: by participant, why there is no usable result.
        clipped: by participant, how many times further than allowed its update moved; known once there are `updates`.
    """

    def __init__(
        self,
        server: Running,
        tasks: Mapping[str, Task],
        downloads: Mapping[str, Download],
    ):
        self.tasks, self.downloads = tasks, downloads
        self._server, self._participants = server, server.participants
        self.results: dict[str, Result] = {}
        self.failures: dict[str, str] = {}
        self.clipped: dict[str, float] = {}
        self._carried = Carried(no_sums(server.method, server.settings))
        self._norms = Norms(statistics=server.settings.clips_statistics)
        self._statistics = Statistics()
        self._spool = Spool(server.layout.nbytes, self.training)
        self._bytes_down, self._bytes_up = self._sent(server.bank), 0
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
        layouts = {
            slot: _layout(bank, slot) for slots in wanted.values() for slot in slots
        }
        return sum(
            layouts[slot].nbytes
            for slots in wanted.values()
            for slot in list_travelling(slots)
        )

    def accept(self, result: Result, site: str) -> None:
        """Checks all of a result, then keeps it, or raises a PayloadError and keeps nothing of it."""
        name, update, method = result.participant, result.update, self._server.method
        if name not in self._participants or self._participants[name].site != site:
            raise PayloadError(
                "unknown_participant", f"{site} hosts no participant {shown(name)}"
            )
        if name not in self.tasks:
            raise PayloadError("not_asked", f"{name} was not asked in this round")
        if name in self.results:
            raise PayloadError("twice", f"{name} sent a second result")
        question = Asked(self._participants[name], self.tasks[name], result)
        check_result(result, question.task, question.participant)
        answers = self._checked(question)
        if update is not None:
            if update.carrier is not None:
                self._carried.check(update, self._participants)
            check_update(update, self.downloads[name], self._server.state, method.label)
            self._keep(update)
        self._bytes_up += sum(
            answer.nbytes for answer in answers.values() if hasattr(answer, "nbytes")
        )
        self.results[name] = replace(result, update=None, answers=answers)

    def _checked(self, question: Asked) -> dict[str, Any]:
        """A result's answers, each checked by the observer that asked for it."""
        answers = {
            key: answer
            for key, answer in question.result.answers.items()
            if answer is not None
        }
        observers = {
            observer.key: observer
            for observer in self._server.observers
            if observer.key
        }
        for key in answers.keys() - observers.keys():
            raise PayloadError(
                "malformed", f"{question.name} was not asked for {shown(key)}"
            )
        return {
            key: observer.check(answers[key], question)
            for key, observer in observers.items()
            if key in answers
        }

    def _keep(self, update: Update) -> None:
        bank, expected = (
            self._server.state.bank,
            self.downloads[update.participant].list_expected(update.cluster),
        )
        update = replace(update, main=expected[0] if update.diffs else None)
        self._spool.put(update)
        if self._server.settings.longest_update is not None:
            self._norms.add(update)
        if self._server.settings.clips_statistics:
            self._statistics.add(update, bank)
        self._bytes_up += sum(bank[slot].layout.nbytes for slot in update.diffs)
        self._bytes_up += sum(array.nbytes for array in update.arrays.values())
        self._carried.add(update, self._server.method.weight(update))

    def fail(self, participants: Sequence[str], reason: str) -> None:
        self.failures.update(
            {name: plain(reason) for name in participants if name in self.tasks}
        )

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
            if name in self.results
            and (
                self.results[name].metrics
                or (self.tasks[name].evaluate and not who.tested)
            )
        }

    def answers(self, key: str) -> dict[str, Any]:
        """The answers to one observer, in the participants' order; None of those who sent none."""
        return {
            name: self.results[name].answers.get(key)
            for name in self._participants
            if name in self.results
        }

    @property
    def tested(self) -> int:
        """The number of participants with a result that have test samples."""
        return sum(self._participants[name].tested for name in self.results)

    def updates(self) -> tuple[Sequence[Update], list[str], bool]:
        """The updates in the participants' order, whose they are, and whether some are means of several."""
        weights, lost = self._carried.resolved()
        self.failures.update(lost)
        stored = self._spool.ordered(
            [name for name in self._participants if name not in lost]
        )
        bound = self._server.settings.longest_update
        updates = stored if bound is None else self._bounded(stored, bound)
        names = [update.participant for update in read_heads(stored)]
        if weights:
            updates = Mapped(
                updates,
                lambda update: replace(update, weight=weights[update.participant]),
            )
        return updates, names, bool(weights)

    def _bounded(self, updates: Sequence[Update], bound: float) -> Sequence[Update]:
        of_statistics = max(bound, CLIP_NORM)
        excess = self._norms.excess(bound, of_statistics)
        ranges, beyond = self._statistics.excess(of_statistics)
        updates, distant = bound_arrays(updates, bound)
        for far in (*excess.values(), *beyond.values(), *distant.values()):
            self.clipped |= {
                name: max(times, self.clipped.get(name, times))
                for name, times in far.items()
            }
        return clip_updates(updates, excess, ranges)

    def count(self, record: dict[str, Any]) -> None:
        """Adds the round's traffic and time to a record."""
        record["bytes_down"] += self._bytes_down
        record["bytes_up"] += self._bytes_up
        record["seconds"] = round(
            record["seconds"] + time.monotonic() - self._started, 3
        )

    def close(self) -> None:
        """Deletes the updates, and lets go of the models that were sent."""
        self._spool.close()
        self.downloads = {}


def _layout(bank: Mapping[str, Params], slot: str) -> Layout:
    model, _, role = slot.partition(":")
    return bank[slot].layout if slot in bank else bank[model].layout.of_part(role)


# The updates of a round are kept on disk if they could take more than this together, or than that each.
SPOOL_BYTES, LARGE_UPDATE = 512 * 2**20, 16 * 2**20


class Spool:
    """Keeps up to so many updates of a round by participant, in memory or on disk; ``nbytes`` are of a model."""

    def __init__(self, nbytes: int, updates: int = 1):
        on_disk = nbytes > LARGE_UPDATE or nbytes * updates > SPOOL_BYTES
        self._folder = Path(tempfile.mkdtemp(prefix="cfl-spool-")) if on_disk else None
        self._updates: dict[str, Update] = {}

    def put(self, update: Update) -> None:
        """Keeps an update. Raises a PayloadError if it cannot be written: its participant is left out of the round."""
        if self._folder is not None:
            number = len(self._updates)
            try:
                for slot, diff in update.diffs.items():
                    path = self._folder / f"{number}-{slot}.npy"
                    atomic_write(
                        path, partial(np.save, arr=diff.vector, allow_pickle=False)
                    )
            except FileError as error:
                for path in self._folder.glob(f"{number}-*.npy"):
                    path.unlink()
                raise PayloadError(
                    "server_disk", f"the server {error}; TMPDIR names it"
                ) from error
            nothing = np.zeros(0, np.float32)
            update = replace(
                update,
                diffs={s: replace(d, vector=nothing) for s, d in update.diffs.items()},
            )
        self._updates[update.participant] = update

    def read(self, head: Update) -> Update:
        """An update with its vectors, from what is in memory of it."""
        if self._folder is None:
            return head
        number = list(self._updates).index(head.participant)
        vectors = {
            s: np.load(self._folder / f"{number}-{s}.npy", allow_pickle=False)
            for s in head.diffs
        }
        return replace(
            head,
            diffs={s: replace(d, vector=vectors[s]) for s, d in head.diffs.items()},
        )

    def ordered(self, names: Sequence[str]) -> Sequence[Update]:
        """The updates of these participants, in this order, each read when it is accessed."""
        return Stored(
            [self._updates[name] for name in names if name in self._updates], self.read
        )

    def close(self) -> None:
        self._updates = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Stored(Mapped):
    """Updates of a spool; what is in memory of them is read from no disk."""

    def heads(self) -> Iterator[Update]:
        return (self._updates[place] for place in self._places)
