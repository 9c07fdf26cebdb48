# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Whole rounds on a few digits, one after the other, with all that travels in them kept to be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np

from cfl_flare.data import DataConfig, Digits, ParticipantData
from cfl_flare.engine.drive import Transport
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import Method, Participant, ServerState
from cfl_flare.methods.slots import add_parts
from cfl_flare.training.learner import Learner
from cfl_flare.training.resident import build_untrained
from cfl_flare.training.settings import TrainSettings

MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [8]}}
DATA = DataConfig(6, {"partition": "label_permutation", "groups": 2})
make_model = model_factory(MODEL)


def exchanged(transport: Transport, server: Server) -> bool:
    """One exchange of a server's tasks; False if the job was aborted."""
    return transport.exchange(server, server.tasks(transport.only_train(server)))


@cache
def host_people() -> tuple[ParticipantData, ...]:
    """Six participants."""
    return tuple(DATA.host(Digits(), "local", 0, 1))


@dataclass(frozen=True)
class Round:
    """What one round was.

    Attributes:
        before: the server's state at its start.
        after: at its end.
        orders: what was sent, and asked.
        answers: what came back.
        memory: the names of what each participant remembers after it.
        record: what the server noted of it; empty for the last orders, which only measure.
    """

    before: ServerState
    after: ServerState
    orders: Mapping[str, Task]
    answers: Mapping[str, Result]
    memory: Mapping[str, set[str]]
    record: Mapping[str, Any]


def streams_of(part: str) -> Any:
    """Inside it, participants draw as that part of a larger method does."""
    return patch.object(Learner, "_part", part)


def play_rounds(
    method: Method,
    count: int,
    first: int = 0,
    order: tuple[int, ...] = (),
    trained: bool = False,
    streams: str = "",
    private: str | None = None,
    **more: Any,
) -> list[Round]:
    """Plays some rounds, and the measurement after the last one.

    Args:
        method: the method.
        count: how many.
        first: the first seed of its models.
        order: the participants' order; as dealt if empty.
        trained: measure the trained models as well.
        streams: the part of a larger method whose random streams are drawn from.
        private: the layers that each participant has for itself.
        **more: for the server (``sample``, ...) and the training (``lr``, ...).
    """
    names = ("lr", "momentum", "keep_momentum", "local_steps")
    training = {"lr": 0.1, "local_steps": 3, **{k: more.pop(k) for k in names if k in more}}
    settings = ServerSettings(count, **more)
    site = Site(method, make_model, TrainSettings(**training), settings.seed, trained, private=private)
    hosted = [host_people()[i] for i in order] if order else host_people()
    site.add(hosted)
    crowd = [Participant(d.name, "local", len(d.train), d.group) for d in hosted]
    public = site.runtime.division.public
    state = method.start(
        lambda i: build_untrained(make_model, settings.seed, first + i).take(public), [p.name for p in crowd]
    )
    server = Server(method, public, crowd, settings, state)
    played, records = [], []
    for number in range(count + 1):
        before, orders = server.state, server.tasks()
        models = add_parts(before.bank, [slot for order in orders.values() for slot in order.slots])
        with streams_of(streams):
            answers = {name: site.carry_out(name, order, models, number) for name, order in orders.items()}
        assert not [a.error for a in answers.values() if a.error]
        for answer in answers.values():
            server.accept(answer, "local")
        records.append(server.finish_round())
        memory = {name: set(own) for name, own in site.memory.items()}
        played.append(partial(Round, before, server.state, orders, answers, memory))
    found = [m.record for m in records[1:] if m is not None]
    return [one(record) for one, record in zip(played, [*found, {}])]


def list_sent_slots(one: Round) -> set[tuple[str, ...]]:
    """What was sent to those who trained."""
    return {order.slots for order in one.orders.values() if order.train}


def list_answered_slots(one: Round) -> set[tuple[str, ...]]:
    """What those who trained sent back."""
    return {tuple(a.update.diffs) for a in one.answers.values() if a.update is not None}


def assert_same_bank(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "", into: str = "") -> None:
    """The models of one bank whose names have a prefix, bit for bit those of another."""
    mine = {slot.removeprefix(prefix): model for slot, model in one.items() if slot.startswith(prefix)}
    theirs = {slot.removeprefix(into): model for slot, model in other.items() if slot.startswith(into)}
    assert mine.keys() == theirs.keys() != set()
    for slot, model in mine.items():
        np.testing.assert_array_equal(model.vector, theirs[slot].vector)
