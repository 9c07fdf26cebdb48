# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The server's checks of a result before it uses any part of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cfl_flare.core.errors import PayloadError
from cfl_flare.engine.site import Result, Task
from cfl_flare.methods import ServerState, Update
from cfl_flare.methods.state import Download

MAX_SAMPLES = 10**9
# Values of an array whose length the server does not know.
MAX_LENGTH = 10**6
# Largest value of a difference or an array: squares and sums of such values are still finite in float32.
MAX_VALUE = 1e9


def check_result(result: Result, task: Task) -> None:
    """Checks everything but the update.

    Raises:
        PayloadError: the participant failed, or did not do what it was asked to do.
    """
    name = result.participant
    if result.error is not None:
        raise PayloadError("participant_failed", f"{name} failed: {result.error}")
    for found in (result.metrics, *result.cross.values()):
        for key, value in found.items():
            if not isinstance(value, (int, float)) or not np.isfinite(value):
                raise PayloadError("metric", f"{name}: {key} = {value!r} is not a finite number")
    strange = sorted(result.cross.keys() - {model.name for model in task.cross})
    if strange:
        raise PayloadError("metric", f"{name} was not asked to measure {strange[0]!r}")
    if task.train != (result.update is not None):
        said = "asked to train, but sent no update" if task.train else "not asked to train"
        raise PayloadError("no_update", f"{name} was {said}")


def check_update(update: Update, sent: Download, state: ServerState, method: str) -> None:
    """Checks an update against what was asked with the download.

    Args:
        one participant's update.
        sent: the download that it was sent.
        state: the server's, with the models that the differences refer to.
        method: the method's name, for the message.

    Raises:
        PayloadError: the samples, the cluster, the slots, a shape or a value is not what it should be.
    """
    name, samples, cluster = update.participant, update.samples, update.cluster
    if not isinstance(samples, int) or isinstance(samples, bool) or not 1 <= samples <= MAX_SAMPLES:
        raise PayloadError("samples", f"{name}: samples = {samples!r} should be a whole number in 1..{MAX_SAMPLES}")
    if sent.must_name:
        if not isinstance(cluster, int) or isinstance(cluster, bool) or cluster not in sent.choices:
            raise PayloadError("cluster", f"{name}: cluster = {cluster!r} should be one of {[*sent.choices]}")
    elif cluster is not None:
        raise PayloadError("cluster", f"{name}: sent cluster = {cluster!r}, but {method} assigns on the server")
    expected = () if update.carrier is not None else sent.expected(cluster)
    if set(update.diffs) != set(expected):
        raise PayloadError("slots", f"{name}: sent the models {sorted(update.diffs)}, should be {sorted(expected)}")
    for slot, diff in update.diffs.items():
        layout = state.bank[slot].layout
        if diff.vector.shape != (layout.size,) or diff.counters.shape != (layout.counter_size,):
            raise PayloadError("shape", f"{name}: {slot} has {diff.vector.shape}, not ({layout.size},)")
        _check_values(f"{name}: {slot}", diff.vector)
        if np.abs(diff.counters).max(initial=0) > MAX_VALUE:
            raise PayloadError("too_large", f"{name}: {slot} holds a count beyond {MAX_VALUE:g}")
    check_arrays(name, update.arrays, sent.arrays)


def check_arrays(name: str, arrays: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int | None, ...]]) -> None:
    """Checks arrays that are not models.

    Raises:
        PayloadError: one is missing, unexpected, not of real numbers, not finite, or of another shape.
    """
    if arrays.keys() != expected.keys():
        raise PayloadError("arrays", f"{name}: sent the arrays {sorted(arrays)}, should be {sorted(expected)}")
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise PayloadError("dtype", f"{name}: the array {key!r} does not hold real numbers")
        shape = expected[key]
        fits = len(array.shape) == len(shape) and all(want in (None, size) for want, size in zip(shape, array.shape))
        if not fits or (None in shape and array.size > MAX_LENGTH):
            raise PayloadError("shape", f"{name}: the array {key!r} has shape {array.shape}, not {shape}")
        _check_values(f"{name}: the array {key!r}", array)


def _check_values(what: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise PayloadError("non_finite", f"{what} holds NaN or infinity")
    if values.size and max(float(values.max()), -float(values.min())) > MAX_VALUE:
        raise PayloadError("too_large", f"{what} holds a value beyond {MAX_VALUE:g}")
