# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the server asks of a participant in a round, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cfl_flare.core.params import Params
from cfl_flare.methods import Download, Update


@dataclass(frozen=True)
class Task:
    """What the server asks of one participant in one round.

    Attributes:
        slots: names of the models that it is sent.
        train: train and send an update.
        evaluate: first measure the served model on its own test split.
        scalars: values that the method adds.
        choices: the slot of each cluster that it may choose.
        joined: for models that travel in parts, the slot of the shared part of each.
        questions: of observers, by key: JSON values; see `cfl_flare.engine.observers`.
        models: names of further models, which it needs for its answers.
    """

    slots: tuple[str, ...]
    train: bool
    evaluate: bool
    scalars: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[int, str] = field(default_factory=dict)
    joined: Mapping[str, str] = field(default_factory=dict)
    questions: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of all models that it needs, each once."""
        return tuple(dict.fromkeys((*self.slots, *self.models)))

    @classmethod
    def of(cls, sent: Download, train: bool, evaluate: bool) -> Task:
        """The task that comes with what a method distributes."""
        slots = (*sent.slots, *sent.to_train) if train else sent.slots
        return cls(slots, train, evaluate, sent.scalars, sent.choices, sent.joined)

    def download(self, models: Mapping[str, Params]) -> Download:
        """What the method distributed, with the models that came."""
        sent = tuple(models[slot] for slot in self.slots)
        return Download(self.slots, sent, self.scalars, choices=self.choices, joined=self.joined)


@dataclass(frozen=True)
class Result:
    """What comes back from one participant.

    Attributes:
        participant: its name.
        update: None if it was not asked to train, or failed.
        answers: to observers, by key; ``metrics`` are ``served_accuracy``, ... and on request ``trained_accuracy``, ...
        error: the code of its failure, one of `cfl_flare.core.errors.FAILURES`; None if it did not fail.
        traceback: of its failure; it stays at the site.
    """

    participant: str
    update: Update | None = None
    answers: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    traceback: str = ""

    @property
    def metrics(self) -> Mapping[str, float]:
        found: Mapping[str, float] = self.answers.get("metrics", {})
        return found
