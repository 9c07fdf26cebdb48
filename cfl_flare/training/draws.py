# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of many draws of one test split at once, from how often each draw has each sample.

A draw needs no new predictions. Most measures are ratios of sums over samples: a matrix product has them of all draws.
What is not here, such as a task of the user's, is measured draw by draw; see `cfl_flare.training.bootstrap`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cfl_flare.training import measures as of
from cfl_flare.training.ensemble import predicted
from cfl_flare.training.losses import concordances
from cfl_flare.training.measures import Measure, one_against_the_rest
from cfl_flare.training.tasks import Binary, Classification, LearningTask, Multilabel, Regression, Survival

# Of outputs or predictions, targets, the task, and counts ``(n, draws)`` float64: ``(draws,)``, NaN where not defined.
Counted = Callable[[Tensor, Tensor, Any, Tensor], Tensor]

# From here on, a loss could be beyond float32, which a draw without its sample is not.
HUGE = 1e15


def _mean(values: Tensor, counts: Tensor) -> Tensor:
    """The mean of each draw of a value of each sample, ``(n,)``; or of several, ``(n, values)``."""
    return values.double().transpose(0, -1) @ counts / len(values)


def _f1(right: Tensor, said: Tensor, there: Tensor, counts: Tensor) -> Tensor:
    """The mean of the F1 scores of those classes that occur, of ``(n, classes)`` each."""
    return (2 * _mean(right, counts) / _mean(said.double() + there.double(), counts)).nanmean(0)


def _classes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Who is rightly named, named, and of each class; ``(n, classes)`` each."""
    there = F.one_hot(targets, outputs.shape[1])
    said = F.one_hot(outputs.argmax(1), outputs.shape[1])
    return said * there, said, there


def _balanced(scores: Tensor, targets: Tensor, task: Any, counts: Tensor) -> Tensor:
    right, _, there = (_mean(column, counts) for column in _classes(scores, targets))
    return torch.where((there > 0).sum(0) > 1, (right / there).nanmean(0), torch.nan)


def _findings(scores: Tensor, targets: Tensor, task: Any) -> tuple[Tensor, Tensor]:
    """Which findings are named, and which are there, ``(n, findings)`` each."""
    scores, labels = one_against_the_rest(scores, targets)
    return scores >= task.threshold, labels > 0


def _rate(named: bool) -> Counted:
    """Sensitivity, or specificity: of the findings that are there, or are not, how many are named so."""

    def counted(scores: Tensor, targets: Tensor, task: Any, counts: Tensor) -> Tensor:
        said, there = (column == named for column in _findings(scores, targets, task))
        return (_mean(said & there, counts) / _mean(there, counts)).nanmean(0)

    return counted


_sensitivity, _specificity = _rate(True), _rate(False)


def _f1_of_findings(scores: Tensor, targets: Tensor, task: Any, counts: Tensor) -> Tensor:
    said, there = _findings(scores, targets, task)
    return _f1(said & there, said, there, counts)


def _f1_of_two(scores: Tensor, targets: Tensor, task: Any, counts: Tensor) -> Tensor:
    said, there = (torch.cat([column, ~column], dim=1) for column in _findings(scores, targets, task))
    return _f1(said & there, said, there, counts)


def _brier(scores: Tensor, targets: Tensor, task: Any, counts: Tensor) -> Tensor:
    scores, labels = one_against_the_rest(scores, targets)
    squares = (scores.double() - labels) ** 2
    return _mean(squares.mean(1) if targets.dim() == 2 else squares.sum(1), counts)


def _calibration_error(scores: Tensor, targets: Tensor, task: Any, counts: Tensor) -> Tensor:
    columns = []
    for sure, right in of.certainties(scores, targets):
        bins, apart = of.in_bins(sure, right)
        sums = counts.new_zeros(of.BINS + 1, counts.shape[1]).index_add_(0, bins, apart[:, None] * counts)
        columns.append(sums.abs().sum(0) / len(sure))
    return torch.stack(columns).mean(0)


def _by_class(function: Callable[[Tensor, Tensor], Tensor]) -> Counted:
    """The mean over the classes that have a value of a measure of samples without and with it, by score."""

    def counted(scores: Tensor, targets: Tensor, task: Any, counts: Tensor) -> Tensor:
        columns = []
        for column, labels in zip(*(each.T for each in one_against_the_rest(scores, targets))):
            values, places = column.unique(return_inverse=True)
            empty = counts.new_zeros(len(values), counts.shape[1])
            every, having = (
                empty.index_add(0, p, rows) for p, rows in ((places, counts), (places[labels > 0], counts[labels > 0]))
            )
            columns.append(function(every - having, having))
        return torch.stack(columns).nanmean(0)

    return counted


OF_MEASURES: dict[Measure, Counted] = {
    of.auroc: _by_class(of.area_under_roc),
    of.auprc: _by_class(of.average_precision),
    of.balanced_accuracy: _balanced,
    of.brier: _brier,
    of.calibration_error: _calibration_error,
    of.accuracy_of_findings: lambda s, y, task, counts: _mean(
        torch.eq(*_findings(s, y, task)).double().mean(1), counts
    ),
    of.balanced_of_two: lambda *a: (_sensitivity(*a) + _specificity(*a)) / 2,
    of.macro_f1_of_two: _f1_of_two,
    of.f1_of_findings: _f1_of_findings,
    of.sensitivity: _sensitivity,
    of.specificity: _specificity,
    of.mae: lambda s, y, task, counts: _mean((s[:, 0].double() - y).abs(), counts),
    of.rmse: lambda s, y, task, counts: _mean((s[:, 0].double() - y).square(), counts).sqrt(),
}
# A task that is derived from one of these and has another loss, or measures in another way, is none of them.
OF_LOSSES: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    Classification.loss: lambda o, y: F.cross_entropy(o, y, reduction="none"),
    Binary.loss: lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y.to(o.dtype), reduction="none"),
    Multilabel.loss: lambda o, y: F.binary_cross_entropy_with_logits(o, y.to(o.dtype), reduction="none").mean(1),
    Regression.loss: lambda o, y: F.mse_loss(o[:, 0], y, reduction="none"),
}
OF_OUTPUTS: dict[tuple[Any, str], Counted] = {
    (Classification.measure, "accuracy"): lambda o, y, task, counts: _mean(o.argmax(1) == y, counts),
    (Classification.measure, "macro_f1"): lambda o, y, task, counts: _f1(*_classes(o, y), counts),
    (Survival.measure, "c_index"): lambda o, y, task, counts: concordances(o[:, 0], y[:, 0], y[:, 1], counts),
}


def counted(task: LearningTask, name: str, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor] | None:
    """What measures all draws at once, by their counts ``(n, draws)`` float64: ``(draws,)``, NaN where not defined.

    Args:
        task: the run's.
        name: of the measure.
        outputs: of the model, ``(n, classes, ...)``.
        targets: labels, as `LearningTask.targets` returns them.

    Returns:
        None where there is no such way: for the task, for the measure, or for values that are huge or not finite.
    """
    measure, loss = type(task).measure, OF_LOSSES.get(type(task).loss)
    small = bool(outputs.abs().max() < HUGE) and bool(targets.abs().max() < HUGE)
    if not small or type(task).measured is not LearningTask.measured:
        return None
    if (measure, name) in OF_OUTPUTS:
        return partial(OF_OUTPUTS[measure, name], outputs, targets, task)
    if measure not in (LearningTask.measure, Classification.measure):
        return None
    if name == "loss":
        return None if loss is None else partial(_mean, loss(outputs, targets))
    function = OF_MEASURES.get(task.measures[name])
    return None if function is None else partial(function, predicted(outputs, task.link), targets, task)
