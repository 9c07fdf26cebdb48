# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the server asks of a participant in a round, what comes back, and the checks and bounds of that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cfl_flare.core.errors import PayloadError, failure_text
from cfl_flare.core.params import Params
from cfl_flare.core.text import shown
from cfl_flare.methods import Download, Participant, ServerState, Update

MAX_SAMPLES = 10**9
# Of a training script, which may count in shares; sums of such weights and their quotients are exact enough.
MIN_WEIGHT = 1e-9
MAX_GROUPS = 10**6
# Values of an array whose length the server does not know.
MAX_LENGTH = 10**6
MAX_METRICS = 64
MAX_METRIC = 1e12
# What a run makes of metrics, and the columns beside them, have these names.
OWN = re.compile(
    r"(worst|bottom)_.*|.*_unweighted|participant|site|group|cluster|model|cluster-\d+/.*|ari|nmi|objective|dispersion"
    r"|clusterability|(intra|inter)_cosine|size_entropy|clusters_in_use|largest_share|moved(_share)?|bytes_(up|down)|seconds"
    r"|pooled_(auroc|macro_f1)|defined"
)
METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,79}")
# Largest value of a difference or an array: squares and sums of such values are still finite in float32.
MAX_VALUE = 1e9


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
        return Download(
            self.slots, sent, self.scalars, choices=self.choices, joined=self.joined
        )


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
        metrics: Mapping[str, float] = self.answers.get("metrics", {})
        return metrics


def is_count(value: Any, fewest: int, most: int) -> bool:
    """Whether a value is a whole number in a range; True and False are none."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and fewest <= value <= most
    )


def is_number(value: Any, low: float = -MAX_METRIC, high: float = MAX_METRIC) -> bool:
    """Whether a value is a finite number in a range."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and low <= value <= high
    )


def is_metric_name(name: Any) -> bool:
    """Whether a metric may have this name: a short identifier that a run does not use itself."""
    return (
        isinstance(name, str)
        and METRIC.fullmatch(name) is not None
        and OWN.fullmatch(name) is None
    )


def check_result(result: Result, task: Task, participant: Participant) -> None:
    """Raises a PayloadError if a participant failed, or did not do what it was asked to do.

    Answers and the update have checks of their own.
    """
    name = result.participant
    if result.error is not None:
        raise PayloadError(
            "participant_failed", f"{name} failed: {failure_text(result.error)}"
        )
    if task.train != (result.update is not None):
        said = (
            "asked to train, but sent no update" if task.train else "not asked to train"
        )
        raise PayloadError("no_update", f"{name} was {said}")
    update, known = result.update, participant.samples
    if (
        update is not None
        and is_number(update.samples, MIN_WEIGHT, MAX_SAMPLES)
        and update.samples != known
    ):
        raise PayloadError(
            "samples",
            f"{name} says that it has {update.samples} samples, but said {known} before",
        )


def check_update(
    update: Update, sent: Download, state: ServerState, method: str
) -> None:
    """Checks an update against what was asked with the download, and the models that its differences refer to.

    Raises:
        PayloadError: the samples, the cluster, the slots, a shape or a value is not what it should be.
    """
    name, samples, cluster = update.participant, update.samples, update.cluster
    if not is_number(samples, MIN_WEIGHT, MAX_SAMPLES):
        raise PayloadError(
            "samples",
            f"{name}: samples = {shown(samples)} should be in {MIN_WEIGHT:g}..{MAX_SAMPLES}",
        )
    if sent.choices:
        if (
            not isinstance(cluster, int)
            or isinstance(cluster, bool)
            or cluster not in sent.choices
        ):
            raise PayloadError(
                "cluster",
                f"{name}: cluster = {shown(cluster)} should be one of {[*sent.choices]}",
            )
    elif cluster is not None:
        raise PayloadError(
            "cluster",
            f"{name}: sent cluster = {shown(cluster)}, but {method} assigns on the server",
        )
    expected = () if update.carrier is not None else sent.list_expected(cluster)
    if set(update.diffs) != set(expected):
        raise PayloadError(
            "slots",
            f"{name}: sent the models {sorted(update.diffs)}, should be {sorted(expected)}",
        )
    for slot, diff in update.diffs.items():
        layout = state.bank[slot].layout
        if diff.vector.shape != (layout.size,) or diff.counters.shape != (
            layout.counter_size,
        ):
            raise PayloadError(
                "shape", f"{name}: {slot} has {diff.vector.shape}, not ({layout.size},)"
            )
        _check_values(f"{name}: {slot}", diff.vector)
        if np.abs(diff.counters).max(initial=0) > MAX_VALUE:
            raise PayloadError(
                "too_large", f"{name}: {slot} holds a count beyond {MAX_VALUE:g}"
            )
    check_arrays(name, update.arrays, sent.arrays)


def check_arrays(
    name: str,
    arrays: Mapping[str, np.ndarray],
    expected: Mapping[str, tuple[int | None, ...]],
) -> None:
    """Raises a PayloadError if an array is missing, unexpected, of another shape, or not of finite real numbers."""
    if arrays.keys() != expected.keys():
        raise PayloadError(
            "arrays",
            f"{name}: sent the arrays {sorted(arrays)}, should be {sorted(expected)}",
        )
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise PayloadError(
                "dtype", f"{name}: the array {key!r} does not hold real numbers"
            )
        shape = expected[key]
        valid = len(array.shape) == len(shape) and all(
            want in (None, size) for want, size in zip(shape, array.shape)
        )
        if not valid or (None in shape and array.size > MAX_LENGTH):
            raise PayloadError(
                "shape",
                f"{name}: the array {key!r} has shape {array.shape}, not {shape}",
            )
        _check_values(f"{name}: the array {key!r}", array)


def _check_values(what: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise PayloadError("non_finite", f"{what} holds NaN or infinity")
    if values.size and max(float(values.max()), -float(values.min())) > MAX_VALUE:
        raise PayloadError("too_large", f"{what} holds a value beyond {MAX_VALUE:g}")
