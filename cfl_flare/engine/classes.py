# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a simulation knows of its classes: which one is 1, and how often naming the most frequent one is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cfl_flare.data import DataSource, ParticipantData
from cfl_flare.results.comparison import AtHospital, majority, mean_of
from cfl_flare.training.tasks import LearningTask


def class_counts(task: LearningTask, hosted: Sequence[ParticipantData]) -> Mapping[str, tuple[int, ...]]:
    """How many test samples each participant has of each class; none where the task has no classes."""
    labels = {data.name: data.test.y for data in hosted if task.form == "class"}
    most = max([2, *(1 + int(y.max()) for y in labels.values() if len(y))])
    return {name: tuple(np.bincount(y, minlength=most).tolist()) for name, y in labels.items()}


def class_facts(source: DataSource, task: LearningTask, hosted: Sequence[ParticipantData]) -> dict[str, Any]:
    """For a run's summary: ``positive``, what class 1 is; ``majority``, the accuracy of naming one class everywhere.

    Args:
        source: where the samples come from.
        task: of the run.
        hosted: all participants. Their means are weighted as those of any accuracy.
    """
    positive = source.positive if task.form == "class" else None
    counts = class_counts(task, hosted)
    people = {
        data.name: AtHospital(len(data.train), len(data.test), 0, 0.0, np.zeros(0), counts.get(data.name, ()))
        for data in hosted
        if len(data.test)
    }
    naming = majority(people)
    return {
        **({} if positive is None else {"positive": positive}),
        **({} if naming is None else {"majority": mean_of(naming)}),
    }
