# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A server and six participants in one process, on which a method plays single rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from cfl_flare.core.arrays import Archive
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Params
from cfl_flare.core.private import Division
from cfl_flare.data import ParticipantData, Samples
from cfl_flare.engine.indicator import Logits
from cfl_flare.engine.partial_sums import added_up
from cfl_flare.engine.server import Equipment, Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task
from cfl_flare.flare.loopback import send_results, send_tasks
from cfl_flare.methods import Method, Participant, ServerState, Update
from cfl_flare.methods.slots import add_parts
from cfl_flare.methods.state import Predict
from cfl_flare.models import MLP
from cfl_flare.results.store import Checkpoint
from cfl_flare.training.resident import build_untrained
from cfl_flare.training.settings import TrainSettings

FEATURES = 5
CLASSES = 3
# The numbers of the participants' training samples.
COUNTS = (6, 9, 12, 5, 8, 14)
# More rounds than a check plays. A method with two kinds of rounds may need an odd number.
ROUNDS = (20, 21)
TRAINING = TrainSettings(lr=0.1, local_steps=2, batch_size=4)

make_model = partial(MLP, [FEATURES], CLASSES, [4, 4, 4])


def draw_samples(
    rng: np.random.Generator,
    count: int,
    group: int,
) -> Samples:
    """Draw samples whose labels follow the rule of a group.

    Args:
        rng: the source of random numbers.
        count: the number of samples.
        group: shifts each class number, so that groups contradict each other.

    Returns:
        Features ``(count, 5)`` float32 and labels ``(count,)`` int64.
    """
    features = rng.normal(size=(count, FEATURES)).astype(np.float32)
    classes = features[:, :CLASSES].argmax(axis=1)
    return Samples(features, (classes + group) % CLASSES)


@cache
def make_people() -> tuple[ParticipantData, ...]:
    """Make six participants of two groups, with unequal numbers of samples."""
    people = []
    for number, count in enumerate(COUNTS):
        rng = np.random.default_rng(number)
        group = number % 2
        train = draw_samples(rng, count, group)
        test = draw_samples(rng, 4, group)
        people.append(ParticipantData(f"p{number}", train, test, group))
    return tuple(people)


def make_logits(method: Method) -> Predict | None:
    """Make the predictor on the server's indicator samples.

    Args:
        method: says in its traits whether it needs one.

    Returns:
        The predictor, or None for a method that needs none.
    """
    if method.traits.indicator is None:
        return None
    return Logits(make_model, draw_samples(np.random.default_rng(99), 9, 0))


class Stage:
    """A server and a site on which a method plays rounds.

    Args:
        method: the method.
        people: the participants, in the order in which they are hosted.
        start: where the run goes on; None starts it.
        archive: where a method keeps arrays on disk; None is a temporary folder.
        private: the layers that stay at each participant; None for none.
        sites: the number of sites that the participants are divided over.
        weight: multiplies the number of samples that each participant states.
        sums: each site sends one sum for its participants.
        **settings: of the server, such as ``sample``.

    Attributes:
        updates: the updates of the last round.
    """

    def __init__(
        self,
        method: Method,
        people: Sequence[ParticipantData] = (),
        *,
        start: Checkpoint | None = None,
        archive: Archive | None = None,
        private: str | None = None,
        sites: int = len(COUNTS),
        weight: int = 1,
        sums: bool = False,
        **settings: Any,
    ):
        # State that a method keeps on itself, against the rules, stays on this stage.
        self.method = method = replace(method)
        self.sites = sites
        self.weight = weight
        self.sums = sums
        self.updates: list[Update] = []
        self.site = Site(method, make_model, TRAINING, seed=0, private=private)
        self.site.add(people or make_people())
        if start is None:
            start = Checkpoint(self._start_state())
        self.site.memory.update(
            {name: dict(memory) for name, memory in start.memory.items()}
        )
        self.server = Server(
            method,
            self.division.public,
            self._list_participants(),
            ServerSettings(self._choose_rounds(), clip_norm=0, **settings),
            start.state,
            Equipment(
                progress=start.progress, logits=make_logits(method), archive=archive
            ),
        )

    @property
    def state(self) -> ServerState:
        return self.server.state

    @property
    def division(self) -> Division:
        return self.site.runtime.division

    def _start_state(self) -> ServerState:
        def build_initial(number: int) -> Params:
            return build_untrained(make_model, 0, number).take(self.division.public)

        return self.method.start(build_initial, list(self.site.hosted))

    def _choose_rounds(self) -> int:
        """Choose a number of rounds that the method takes."""
        for number in ROUNDS:
            try:
                self.method.check(self.division.public, number)
            except ConfigError as error:
                refusal = error
            else:
                return number
        raise refusal

    def _list_participants(self) -> list[Participant]:
        groups = self.method.traits.named_groups
        participants = []
        for number, data in enumerate(self.site.hosted.values()):
            label = groups[number % len(groups)] if groups else None
            site = f"site-{number % self.sites}"
            count = self.weight * len(data.train)
            participants.append(Participant(data.name, site, count, label=label))
        return participants

    def admit(self, people: Sequence[ParticipantData]) -> None:
        """Let participants join between two rounds.

        Args:
            people: the new participants.
        """
        self.site.add(people)
        self.server.admit(self._list_participants())

    def play_rounds(self, count: int) -> None:
        """Play some rounds in which everyone that the server asks answers.

        Args:
            count: the number of rounds.
        """
        for _ in range(count):
            self.play_round()

    def play_round(self, absent: Collection[str] = ()) -> list[str]:
        """Play one round.

        Args:
            absent: the participants that send no answer.

        Returns:
            The participants whose updates counted.

        Raises:
            RuntimeError: a step at a participant failed.
            PayloadError: the server refused an answer.
        """
        number = self.state.round
        tasks = self.server.tasks()
        slots = [slot for task in tasks.values() for slot in task.needed]
        models = add_parts(self.server.bank, slots)
        present = {name: tasks[name] for name in tasks if name not in absent}
        for result in self.carry_out(present, models, number):
            site = self.server.participants[result.participant].site
            self.server.accept(result, site)
        missing = [name for name in tasks if name in absent]
        if missing:
            self.server.round.fail(missing, "absent")
        self.updates = list(self.server.round.updates()[0])
        self.server.finish_round()
        record = self.server.progress.record or {}
        return list(record.get("trained", []))

    def carry_out(
        self,
        tasks: Mapping[str, Task],
        models: Mapping[str, Params],
        number: int,
    ) -> list[Result]:
        """Carry out the tasks at the participants.

        Args:
            tasks: the task of each participant.
            models: the models that the tasks name, by slot.
            number: the round.

        Returns:
            One result a task.

        Raises:
            RuntimeError: a step at a participant failed.
        """
        results = []
        for name, task in tasks.items():
            result = self.site.carry_out(name, task, models, number)
            if result.error is not None:
                *_, last = (result.traceback or result.error).strip().splitlines()
                raise RuntimeError(f"{name} cannot carry out its task: {last}")
            results.append(self._multiply_weight(result))
        if self.sums:
            return self._add_up(results, models)
        return results

    def _multiply_weight(self, result: Result) -> Result:
        if result.update is None:
            return result
        samples = self.weight * result.update.samples
        return replace(result, update=replace(result.update, samples=samples))

    def _add_up(
        self,
        results: Sequence[Result],
        models: Mapping[str, Params],
    ) -> list[Result]:
        """Add up the results of each site."""
        by_site: dict[str, list[Result]] = {}
        for result in results:
            site = self.server.participants[result.participant].site
            by_site.setdefault(site, []).append(result)
        sums = []
        for of_site in by_site.values():
            sums += added_up(of_site, models, self.method)
        return sums

    def train_newcomer(self, data: ParticipantData) -> Update:
        """Let a newcomer to the finished run train once.

        Args:
            data: the newcomer's samples.

        Returns:
            The newcomer's update, for `Method.join`.
        """
        self.site.add([data])
        sent = self.method.distribute(self.state, data.name)
        task = Task.of(sent, train=True, evaluate=False)
        models = add_parts(self.state.bank, task.needed)
        (result,) = self.carry_out({data.name: task}, models, self.state.round)
        assert result.update is not None
        main = next(iter(sent.list_expected(result.update.cluster)), None)
        return replace(result.update, main=main)


class WiredStage(Stage):
    """A stage whose tasks and results go through FLARE's serialization."""

    def carry_out(
        self,
        tasks: Mapping[str, Task],
        models: Mapping[str, Params],
        number: int,
    ) -> list[Result]:
        """Send the tasks, carry them out, and send the results.

        Args:
            tasks: the task of each participant.
            models: the models that the tasks name, by slot.
            number: the round.

        Returns:
            One result a task, as the server reads it.

        Raises:
            PayloadError: a message cannot be read.
        """
        sent = send_tasks(tasks, models, number, self.division.public)
        results = super().carry_out(*sent, number)
        return send_results(results, self.server.bank, number, list(tasks))
