# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The server's checks of a result before it uses any part of it, and the bounds of all numbers and names in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from cfl_flare.core.errors import PayloadError, failure_text
from cfl_flare.core.text import shown
from cfl_flare.engine.site import Result, Task
from cfl_flare.methods import Participant, ServerState, Update
from cfl_flare.methods.state import Download
from cfl_flare.results.curves import Scored

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


def is_count(value: Any, fewest: int, most: int) -> bool:
    """Whether a value is a whole number in a range; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and fewest <= value <= most


def is_number(value: Any, low: float = -MAX_METRIC, high: float = MAX_METRIC) -> bool:
    """Whether a value is a finite number in a range."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def is_metric_name(name: Any) -> bool:
    """Whether a metric may have this name: a short identifier that a run does not use itself."""
    return isinstance(name, str) and METRIC.fullmatch(name) is not None and OWN.fullmatch(name) is None


def check_result(result: Result, task: Task, participant: Participant, scored: Scored | None = None) -> None:
    """Checks everything but what the update holds.

    Args:
        result: what arrived.
        task: what was asked.
        participant: whose result it is, with the number of samples that it named before.
        scored: what the histograms of scores that come with what is measured are of; None for none.

    Raises:
        PayloadError: the participant failed, or did not do what it was asked to do.
    """
    name = result.participant
    if result.error is not None:
        raise PayloadError("participant_failed", f"{name} failed: {failure_text(result.error)}")
    asked = ("served_",) * task.evaluate + ("trained_",) * task.train
    for key in result.metrics:
        if not (key.startswith(asked) and is_metric_name(key.partition("_")[2])):
            raise PayloadError("metric", f"{name} was not asked to measure {shown(key)}")
    if (result.metrics or result.cross or result.scores is not None) and not participant.tested:
        raise PayloadError("metric", f"{name} measured something, and said before that it has no test samples")
    for found in (result.metrics, *result.cross.values()):
        for key, value in found.items():
            if not is_metric_name(key) or not is_number(value) or len(found) > MAX_METRICS:
                raise PayloadError("metric", f"{name}: {shown(key)} = {shown(value)} is not a finite number in range")
    strange = sorted(result.cross.keys() - {model.name for model in task.cross})
    if strange:
        raise PayloadError("metric", f"{name} was not asked to measure the model {shown(strange[0])}")
    if result.scores is not None:
        check_scores(name, result.scores, scored if task.evaluate else None)
    if task.train != (result.update is not None):
        said = "asked to train, but sent no update" if task.train else "not asked to train"
        raise PayloadError("no_update", f"{name} was {said}")
    update, known = result.update, participant.samples
    if update is not None and is_number(update.samples, MIN_WEIGHT, MAX_SAMPLES) and update.samples != known:
        raise PayloadError("samples", f"{name} says that it has {update.samples} samples, but said {known} before")


def check_scores(name: str, scores: np.ndarray, scored: Scored | None) -> None:
    """Checks histograms of scores, and the counts of decisions that are in the same rows, ``(classes, 2, bins + 1)``.

    Raises:
        PayloadError: nobody asked for them, or they cannot be those of one test split.
    """
    if scored is None:
        raise PayloadError("scores", f"{name} was not asked for histograms of scores")
    shape = *scored.shape[:2], scored.shape[2] + 1
    if scores.dtype.kind not in "iu" or scores.shape != shape:
        raise PayloadError(
            "scores", f"{name}: its histograms are {scores.dtype} of shape {scores.shape}, not whole numbers of {shape}"
        )
    if scores.min() < 0 or scores.max() > MAX_SAMPLES:
        raise PayloadError(
            "scores", f"{name}: its histograms hold {scores.min()} and {scores.max()}, which is no count"
        )
    of_rows, decided = scores[..., :-1].sum(axis=2, dtype=np.int64), scores[..., -1].astype(np.int64)
    samples = of_rows.sum(axis=1)
    if samples.min() != samples.max() or not 1 <= samples[0] <= MAX_SAMPLES:
        said = f"{samples.min()} to {samples.max()} samples"
        raise PayloadError("scores", f"{name}: its histograms count {said} by class, not the same in 1..{MAX_SAMPLES}")
    if (decided > of_rows).any():
        raise PayloadError("scores", f"{name}: its histograms have fewer samples than decisions about them")
    if scored.link == "softmax" and not samples[0] == of_rows[:, 1].sum() == decided.sum():
        said = f"{of_rows[:, 1].sum()} labels and {decided.sum()} decisions"
        raise PayloadError("scores", f"{name}: its histograms have {said}, not one of each of {samples[0]} samples")


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
    if not is_number(samples, MIN_WEIGHT, MAX_SAMPLES):
        raise PayloadError("samples", f"{name}: samples = {shown(samples)} should be in {MIN_WEIGHT:g}..{MAX_SAMPLES}")
    if sent.choices:
        if not isinstance(cluster, int) or isinstance(cluster, bool) or cluster not in sent.choices:
            raise PayloadError("cluster", f"{name}: cluster = {shown(cluster)} should be one of {[*sent.choices]}")
    elif cluster is not None:
        raise PayloadError("cluster", f"{name}: sent cluster = {shown(cluster)}, but {method} assigns on the server")
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
