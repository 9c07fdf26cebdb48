# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a method's steps take and give: participants, downloads, updates, the server's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cfl_flare.core.archive import Archive
from cfl_flare.core.params import Layout, Params

Assignment = Mapping[str, int]

# Logits ``(len(models), samples, classes)`` of models on the server's indicator samples.
Predict = Callable[[Sequence[Params]], np.ndarray]


@dataclass(frozen=True)
class Indicator:
    """The indicator samples of a method that compares models by what they predict on the server (FedDSMIC sec. 4.2).

    Attributes:
        per_class: how many of each class, N_c.
        file: from which file the server reads them; None where a simulation takes them out of the participants' data.
    """

    per_class: int
    file: str | None = None


@dataclass(frozen=True)
class Participant:
    """The unit that is clustered.

    Attributes:
        name: unique in the run.
        site: the FLARE client that hosts it.
        samples: its training samples, n_i.
        group: its true group, where the partition knows one; used in measures alone.
    """

    name: str
    site: str
    samples: int
    group: int | None = None


@dataclass(frozen=True)
class Download:
    """What a participant is sent: names of models in the server's bank; on the site, the models themselves.

    Attributes:
        slots: names in the bank, in the order in which the method's local step expects them; ``cluster-3:head`` is a
            part of a model.
        models: the models, in the same order; filled in on the site.
        facts: small JSON values that the method's local step needs beside them.
        to_train: names of further models, that come after the others and only to a participant that trains; on the
            site they are slots like the others.
    """

    slots: tuple[str, ...] = ()
    models: tuple[Params, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    to_train: tuple[str, ...] = ()

    def model(self, slot: str) -> Params:
        """The model, or part of one, of this name."""
        return self.models[self.slots.index(slot)]


@dataclass(frozen=True)
class Update:
    """What a participant sends back.

    Attributes:
        participant: its name.
        samples: its training samples, n_i.
        diffs: for each slot that it moved, its model minus the one it was sent in that slot.
        cluster: the cluster that it picked itself, for methods that assign on the site.
        carrier: the participant of its site in whose differences its own are; see `cfl_flare.engine.partial_sums`.
        weight: on the server, that of all whose differences these are; None where they are its own alone.
    """

    participant: str
    samples: int
    diffs: Mapping[str, Params] = field(default_factory=dict)
    cluster: int | None = None
    carrier: str | None = None
    weight: float | None = None


class Mapped(Sequence[Update]):
    """Updates seen through a function, one at a time: large ones lie on disk."""

    def __init__(self, updates: Sequence[Update], function: Callable[[Update], Update]):
        self._updates, self._function = updates, function

    def __len__(self) -> int:
        return len(self._updates)

    def __getitem__(self, index: Any) -> Any:
        found = self._updates[index]
        return Mapped(found, self._function) if isinstance(index, slice) else self._function(found)

    def __iter__(self) -> Iterator[Update]:
        return map(self._function, self._updates)


@dataclass(frozen=True)
class ServerState:
    """All that the server knows between two rounds.

    Attributes:
        bank: the named models: ``global``, ``cluster-0``, ...
        assignment: cluster of each participant seen so far.
        round: rounds completed.
        extras: small JSON values that a method adds.
        logits: what models predict on the server's indicator samples. It is there in `Method.assign`, of a method that
            has an ``indicator``; it is no part of what is stored.
        archive: the arrays on the server's disk. It is there in `Method.assign` and `Method.aggregate` of a method that
            ``archives``, and no part of what is stored: extras say which versions belong to the state.
    """

    bank: Mapping[str, Params]
    assignment: Assignment = field(default_factory=dict)
    round: int = 0
    extras: Mapping[str, Any] = field(default_factory=dict)
    logits: Predict | None = field(default=None, compare=False, repr=False)
    archive: Archive | None = field(default=None, compare=False, repr=False)

    def layout(self, slot: str) -> Layout:
        """The layout of a model in the bank, or of a part of one."""
        whole, _, role = slot.partition(":")
        return self.bank[whole].layout.of_part(role)

    def trained(self, update: Update) -> Params:
        """The model that a participant ended its round with, where its update moved a single slot."""
        ((slot, diff),) = update.diffs.items()
        return self.bank[slot] + diff

    def after(self, bank: Mapping[str, Params], assignment: Assignment | None = None, **extras: Any) -> ServerState:
        """The state after a round: some models replaced, some participants assigned, some extras set."""
        return ServerState(
            {**self.bank, **bank}, {**self.assignment, **(assignment or {})}, self.round + 1, {**self.extras, **extras}
        )
