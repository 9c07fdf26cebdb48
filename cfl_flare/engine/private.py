# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Private layers in a run: what goes with them, and that none of them leaves."""

from __future__ import annotations

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.private import Division
from cfl_flare.methods import Method, Update
from cfl_flare.training.tasks import LearningTask


def check_private(
    method: Method,
    division: Division,
    pattern: str | None,
    rounds: int | None = None,
    task: LearningTask | None = None,
) -> None:
    """Checks a method against what travels of its model, given the setting ``private``.

    Rounds and task are checked where they are known.

    Raises:
        ConfigError: the setting does not fit the model, goes without private layers, or lacks a part that they hold;
            or they change nothing of what models predict.
    """
    if division.private is None:
        return method.check(division.public, rounds)
    method.check(division.layout, rounds)
    where, refusal = f"run: private = {pattern!r}", method.traits.no_private
    require(not refusal, f"{where} does not go with method {method.label}: {refusal}; leave it out")
    private = {e.name for e in division.private.entries}
    last = {e.name for e in division.layout.head.entries if len(e.shape) == 1}
    require(
        task is None or not task.relative or not private <= last,
        f"{where} is the last layer's bias alone, which adds the same to all outputs of a participant. Task "
        f"{'' if task is None else task.name} only compares them with each other: leave it out, or name other layers",
    )
    require(
        not method.traits.keeps_head or any(e.head and e.name not in private for e in division.layout.entries),
        f"{where}: in method {method.label} the head stays at the participant anyway; leave it out or name others",
    )
    try:
        method.check(division.public, rounds)
    except ConfigError as error:
        raise ConfigError(f"{where} leaves too little that travels: {error}; or name fewer private layers") from error


def check_public(update: Update, division: Division) -> None:
    """Raises a ConfigError if a participant's answer holds a private layer, as one of a user's method may."""
    for slot, diff in update.diffs.items():
        leaked = sorted({*division.names}.intersection(diff.arrays()))
        require(not leaked, f"the update of {slot} holds the private {leaked[:1]}; a method sends what it was sent")
