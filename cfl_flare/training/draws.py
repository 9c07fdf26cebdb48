# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of many draws of one test split at once, from how often each draw has each sample.

A draw needs no new predictions: most measures are ratios of sums over samples. What is not here, such as a task of the
user's, is measured draw by draw; see `cfl_flare.training.bootstrap`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from cfl_flare.training.losses import concordances, predicted
from cfl_flare.training.measures import CountedMeasure, by_class, f1, means
from cfl_flare.training.tasks import Binary, Classification, LearningTask, Multilabel, Regression, Survival

# From here on, a loss could be beyond float32, which a draw without its sample is not.
HUGE = 1e15

# A task that is derived from one of these and has another loss, or measures in another way, is none of them.
OF_LOSSES: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    Classification.loss: lambda o, y: F.cross_entropy(o, y, reduction="none"),
    Binary.loss: lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y.to(o.dtype), reduction="none"),
    Multilabel.loss: lambda o, y: F.binary_cross_entropy_with_logits(o, y.to(o.dtype), reduction="none").mean(1),
    Regression.loss: lambda o, y: F.mse_loss(o[:, 0], y, reduction="none"),
}
OF_OUTPUTS: dict[tuple[Any, str], Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    (Classification.measure, "accuracy"): lambda o, y, counts: means(o.argmax(1) == y, counts),
    (Classification.measure, "macro_f1"): lambda o, y, counts: f1(*by_class(o, y), counts),
    (Survival.measure, "c_index"): lambda o, y, counts: concordances(o[:, 0], y[:, 0], y[:, 1], counts),
}


def counted(task: LearningTask, name: str, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor] | None:
    """A function that measures all draws at once: counts ``(n, draws)`` float64 to ``(draws,)``, NaN where not defined.

    None where there is no such way: for the task, for the measure, or for values that are huge or not finite.
    """
    measure, loss = type(task).measure, OF_LOSSES.get(type(task).loss)
    small = bool(outputs.abs().max() < HUGE) and bool(targets.abs().max() < HUGE)
    if not small or type(task).measured is not LearningTask.measured:
        return None
    if (measure, name) in OF_OUTPUTS:
        return partial(OF_OUTPUTS[measure, name], outputs, targets)
    if measure not in (LearningTask.measure, Classification.measure):
        return None
    if name == "loss":
        return None if loss is None else partial(means, loss(outputs, targets))
    by_name = task.measures[name]
    if not isinstance(by_name, CountedMeasure):
        return None
    return partial(by_name.of_counts, predicted(outputs, task.link), targets, task)
