# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How sure a measure is: a participant's test split is drawn anew many times, with replacement, and measured each time.

The rows depend on the seed and on the test split itself, and on no method: two runs draw the same ones, and are
compared draw by draw. Only the site can know them: to whoever knew them, measures of many draws would tell which single
samples are predicted right.

Most measures are ratios of sums over samples. They are measured on all draws at once, from how often each draw has each
sample. Others, such as those of a task of the user's, are measured draw by draw.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from cfl_flare.core.errors import AbortedError
from cfl_flare.core.seeds import derive, stream
from cfl_flare.training.measures import CountedMeasure, average_draws, select_compared
from cfl_flare.training.tasks import TASKS, LearningTask, Survival

# So many values `Replicates.draw` may have: few enough that it tells nothing of a split that cannot be guessed.
DRAWS = 2**16
# Samples times draws that are counted at a time: some 500 MB at most, however large a test split is.
ENTRIES = 2**22
# Whoever measures draws says after this many seconds how far it is.
SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Replicates:
    """What was measured on the draws of one participant's test split.

    Attributes:
        draw: a number below `DRAWS` that two runs have in common if they drew the same rows of the same samples.
        values: by measure, one value for each draw; None where the measure is not defined on it.
    """

    draw: int
    values: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)


def hash_split_arrays(
    x: Tensor,
    y: Tensor,
) -> str:
    """What tells two test splits apart: a digest of all samples and labels, which stays at the site.

    Args:
        x: samples ``(n, *input_shape)`` float32.
        y: labels ``(n, ...)``.
    """
    digest = hashlib.blake2b(digest_size=32)
    for tensor in (x, y):
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def draw_resample(
    seed: int,
    participant: str,
    key: str,
) -> int:
    """`Replicates.draw` of a participant whose test split has this key.

    Args:
        seed: the run's seed.
        participant: the participant's name.
        key: the digest of the split.
    """
    return derive(seed, participant, key, "bootstrap draw") % DRAWS


def draw_rows(
    seed: int,
    participant: str,
    key: str,
    samples: int,
    times: int,
    patient: np.ndarray | None = None,
) -> Iterator[np.ndarray]:
    """The rows of each draw, int64: as many as there are, with replacement, or all rows of as many patients.

    ``key`` is that of the test split, see `hash_split_arrays`. ``patient (samples,)`` is the number of each row's
    patient; None if each row is of a patient of its own.

    Args:
        seed: the run's seed.
        participant: the participant's name.
        key: the digest of the split.
        samples: the number of samples.
        times: how many resamples.
        patient: the patient of each sample ``(n,)``; None if each is of a patient of
            its own.
    """
    rng = stream(seed, participant, key, "bootstrap")
    if patient is None:
        for _ in range(times):
            yield rng.integers(samples, size=samples)
        return
    order = np.argsort(patient, kind="stable")
    rows_of = np.split(order, np.flatnonzero(np.diff(patient[order])) + 1)
    for _ in range(times):
        yield np.concatenate(
            [
                rows_of[number]
                for number in rng.integers(len(rows_of), size=len(rows_of))
            ]
        )


# From here on, a loss could be beyond float32, which a draw without its sample is not.
HUGE = 1e15
# A task that is derived from one of ours may have another loss, or measure in another way.
MEAN_LOSSES = {task.loss for task in TASKS.values() if task.separable}


def measure_resamples(
    task: LearningTask,
    name: str,
    outputs: Tensor,
    targets: Tensor,
) -> Callable[[Tensor], Tensor] | None:
    """A function that measures all draws at once: counts ``(n, draws)`` float64 to ``(draws,)``, NaN where not defined.

    None where there is no such way: for the task, for the measure, or for values that are huge or not finite.

    Args:
        task: the task, whose settings a measure may need.
        name: the name of a measure.
        outputs: outputs of a model ``(n, classes, ...)``.
        targets: labels as the task has targets ``(n, ...)``.
    """
    small = bool(outputs.abs().max() < HUGE) and bool(targets.abs().max() < HUGE)
    usual = type(task).measured is LearningTask.measured and type(task).measure in (
        LearningTask.measure,
        Survival.measure,
    )
    if not (small and usual):
        return None
    if name == "loss":
        is_mean = type(task).loss in MEAN_LOSSES
        if is_mean:
            return partial(average_draws, task.sample_losses(outputs[None], targets)[0])
        return None
    measure = task.measures[name]
    if not isinstance(measure, CountedMeasure):
        return None
    return partial(
        measure.of_counts,
        select_compared(measure, task.unscale(outputs), task.link),
        targets,
        task,
    )


def replicates(
    task: LearningTask,
    outputs: Tensor,
    targets: Tensor,
    names: Iterable[str],
    rows: Iterable[np.ndarray],
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, tuple[float | None, ...]]:
    """For each measure its values on draws of samples; None where it is not defined, or not finite.

    Args:
        outputs: of a model for the samples, ``(n, classes, ...)``.
        targets: labels, as `LearningTask.targets` returns them.
        names: of the measures.
        rows: of each draw, int64.
        should_stop: whether the job was aborted; it is asked before each draw, and an AbortedError ends them.
    """
    ways = {name: measure_resamples(task, name, outputs, targets) for name in names}
    one_by_one = [name for name, way in ways.items() if way is None]
    values: dict[str, list[float | None]] = {name: [] for name in ways}
    samples = len(targets)
    left = iter(rows)
    said = time.monotonic()
    done = 0
    while chunk := list(islice(left, max(1, ENTRIES // max(1, samples)))):
        for number, drawn in enumerate(chunk if one_by_one else chunk[:1], done):
            if time.monotonic() - said > SECONDS:
                said = time.monotonic()
                logger.info("%d draws of a test split are measured", number)
            if should_stop():
                raise AbortedError("aborted while a test split was drawn anew")
            chosen = torch.from_numpy(drawn).to(outputs.device)
            for name, value in _measured(
                task, outputs[chosen], targets[chosen], one_by_one
            ).items():
                values[name].append(
                    value if value is not None and math.isfinite(value) else None
                )
        done += len(chunk)
        places = np.concatenate(
            [drawn * len(chunk) + number for number, drawn in enumerate(chunk)]
        )
        tally = np.bincount(places, minlength=samples * len(chunk)).reshape(
            samples, len(chunk)
        )
        counts = torch.from_numpy(tally).to(outputs.device).double()
        for name, way in ways.items():
            if way is not None:
                values[name] += [
                    value if math.isfinite(value) else None
                    for value in way(counts).tolist()
                ]
    return {name: tuple(of_draws) for name, of_draws in values.items()}


def _measured(
    task: LearningTask,
    outputs: Tensor,
    targets: Tensor,
    names: list[str],
) -> dict[str, float | None]:
    """These measures of one draw; of a task that measures in its own way, those among all of them."""
    if type(task).measured is LearningTask.measured:
        return {name: task.measure(name, outputs, targets) for name in names}
    measured = task.measured(outputs, targets, names)
    return {name: measured.get(name) for name in names}
