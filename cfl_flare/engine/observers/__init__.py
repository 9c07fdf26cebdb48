# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a run does besides rounds, assignments and means: each concern is an `Observer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from cfl_flare.core.config import require
from cfl_flare.engine.observers.bootstrap import Bootstrap, ClassCounts
from cfl_flare.engine.observers.cross_site import CrossSite
from cfl_flare.engine.observers.judging import Analysis, Recording, Stopping
from cfl_flare.engine.observers.membership import Membership
from cfl_flare.engine.observers.metrics import Metrics, Ranges
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.engine.observers.scores import Scores
from cfl_flare.extensions import list_extensions
from cfl_flare.results.curves import Scored

__all__ = [
    "ANSWERING",
    "Asked",
    "CrossSite",
    "Membership",
    "Observer",
    "Probe",
    "Running",
    "list_answering",
    "observers_of",
]

# Those of the main house that ask participants, by key.
ANSWERING: dict[str, type[Observer]] = {
    cls.key: cls
    for cls in (Metrics, Scores, Bootstrap, ClassCounts, CrossSite, Membership)
}


@cache
def list_answering() -> Mapping[str, type[Observer]]:
    """List the observers whose questions a site answers, by key: the main house's, and those of extensions.

    Raises:
        ConfigError: the key of an extension's observer is taken.
    """
    answering = dict(ANSWERING)
    for extension in list_extensions():
        for observer in extension.list_answering():
            taken = f"extensions: {extension.name} is invalid: its key {observer.key!r} is taken"
            require(observer.key not in answering, taken)
            answering[observer.key] = observer
    return answering


def observers_of(
    ranges: Ranges = None,
    scored: Scored | None = None,
    bootstrap: int = 0,
    drawn: Sequence[str] = (),
) -> list[Observer]:
    """A run's observers, in the order in which they complete a round's record.

    Args:
        ranges: of the measures that participants are asked for; None where a script measures what it likes.
        scored: what participants' histograms of scores are of; None where none are asked for.
        bootstrap: how often participants draw their test splits anew to measure the final models.
        drawn: which measures they compute on draws; none for all.
    """
    return [
        Analysis(),
        Metrics(ranges),
        Scores(scored),
        Bootstrap(bootstrap, drawn, ranges),
        ClassCounts(bootstrap > 0),
        CrossSite(ranges),
        Recording(),
        Stopping(),
    ]
