# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of a participant's predictions on its test split, and of many draws of that split at once.

They need torch alone, as each site of a job pays for what it imports: torchmetrics takes seconds to import. Tests
compare them with scikit-learn's. A measure that is not defined on a split is None, and never 0 or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cfl_flare.training.losses import measure_concordance, predict_from

# Bins of the calibration error, by probability (Guo et al. 2017).
BINS = 15

# A function of predictions, targets and the task, whose settings it may need.
Measure = Callable[[Tensor, Tensor, Any], "float | None"]
# Another one of them: whether each sample is rightly named a class, is named it, and is of it, ``(n, classes)`` each.
Columns = Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor, Tensor]]

LARGEST = 1e9
SHARES = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "supported_f1",
    "auroc",
    "auprc",
    "ece",
)
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        (*SHARES, "sensitivity", "specificity", "c_index", "dice", "iou"), (0.0, 1.0)
    ),
    **dict.fromkeys(("loss", "mae", "rmse"), (0.0, LARGEST)),
    "brier": (0.0, 2.0),
    "r2": (-LARGEST, 1.0),
}


@dataclass(frozen=True)
class CountedMeasure:
    """A measure of a split, and of many draws of it at once.

    Attributes:
        of_counts: of predictions, targets, the task, and how often each draw has each sample: counts ``(n, draws)``
            float64, or ``(n,)`` for one draw. It returns ``(draws,)``, or a scalar; NaN where not defined.
        of_outputs: it compares outputs, and not predictions, of which rounding makes some equal or infinite.
    """

    of_counts: Callable[[Tensor, Tensor, Any, Tensor], Tensor]
    of_outputs: bool = False

    def __call__(
        self,
        scores: Tensor,
        targets: Tensor,
        task: Any,
    ) -> float | None:
        once = torch.ones(len(targets), dtype=torch.float64, device=targets.device)
        value = float(self.of_counts(scores, targets, task, once))
        return None if math.isnan(value) else value


def select_compared(
    measure: Measure,
    outputs: Tensor,
    link: str,
) -> Tensor:
    """What a measure takes of a model's outputs ``(n, classes, ...)``: their predictions, or the outputs themselves.

    Args:
        measure: the measure.
        outputs: outputs of a model ``(n, classes, ...)``.
        link: one of `LINKS`.
    """
    if getattr(measure, "of_outputs", False):
        return outputs
    return predict_from(outputs, link)


def sum_draws(
    values: Tensor,
    counts: Tensor,
) -> Tensor:
    """The sum of each draw of a value of each sample, ``(n,)``; or of several, ``(n, values)``. A product has all.

    Args:
        values: ``(n,)``, or ``(n, values)``.
        counts: how often each resample has each sample, ``(n, draws)`` or ``(n,)``
            float64.
    """
    if counts.dim() == 2:
        return values.double().transpose(0, -1) @ counts
    return (values.double().transpose(0, -1) * counts).sum(-1)


def average_draws(
    values: Tensor,
    counts: Tensor,
) -> Tensor:
    """The mean of each draw; the arguments are those of `sum_draws`.

    Args:
        values: ``(n,)``, or ``(n, values)``.
        counts: how often each resample has each sample, ``(n, draws)`` or ``(n,)``
            float64.
    """
    return sum_draws(values, counts) / len(values)


def average_defined(values: Tensor) -> Tensor:
    """The mean over the first dimension of the values that are not NaN; NaN if there is none.

    Args:
        values: ``(n,)`` or ``(n, draws)``.
    """
    return values[~values.isnan()].mean() if values.dim() == 1 else values.nanmean(0)


def average_f1(
    right: Tensor,
    named: Tensor,
    there: Tensor,
    counts: Tensor,
) -> Tensor:
    """The mean of the F1 scores of the classes that occur among labels or predictions, of ``(n, classes)`` each.

    Args:
        right: rightly named a class, ``(n, classes)``.
        named: named a class, ``(n, classes)``.
        there: of a class, ``(n, classes)``.
        counts: how often each resample has each sample, ``(n, draws)`` or ``(n,)``
            float64.
    """
    return average_defined(
        2
        * sum_draws(right, counts)
        / sum_draws(named.double() + there.double(), counts)
    )


def split_classes(
    scores: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor]:
    """Scores and labels 0 and 1 by class, ``(n, classes)`` each, whatever the task.

    Args:
        scores: ``(n, classes)`` probabilities, or ``(n, 1)`` of the finding.
        targets: ``(n,)`` class numbers, or ``(n, classes)`` of 0 and 1.
    """
    if targets.dim() == 2:
        return scores, targets
    if scores.shape[1] == 1:
        return scores, targets[:, None]
    return scores, torch.nn.functional.one_hot(targets, scores.shape[1])


def mark_classes(
    scores: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Whether each sample is rightly named a class, is named it, and is of it, ``(n, classes)`` each.

    Args:
        scores: probabilities ``(n, classes)``.
        targets: labels as the task has targets ``(n, ...)``.
    """
    there = torch.nn.functional.one_hot(targets, scores.shape[1])
    named = torch.nn.functional.one_hot(scores.argmax(1), scores.shape[1])
    return named * there, named, there


def _findings(
    scores: Tensor,
    targets: Tensor,
    task: Any,
) -> tuple[Tensor, Tensor]:
    """Whether each finding is named, and whether it is there, ``(n, findings)`` each."""
    scores, labels = split_classes(scores, targets)
    return scores >= task.threshold, labels > 0


def _area_under_roc(
    without: Tensor,
    having: Tensor,
) -> Tensor:
    """The share of pairs of a sample with the class and one without it in which the former scores higher; ties half.

    Args:
        without: how many samples have each distinct score and not the class, the lowest first, ``(scores, ...)``.
        having: how many have it and the class.
    """
    return (having * (without.cumsum(0) - without / 2)).sum(0) / (
        without.sum(0) * having.sum(0)
    )


def _average_precision(
    without: Tensor,
    having: Tensor,
) -> Tensor:
    """The precision at each distinct score, the mean over the samples with the class (scikit-learn's definition).

    The arguments are those of `_area_under_roc`.
    """
    without = without.flip(0)
    having = having.flip(0)
    hits = having.cumsum(0)
    named = (having + without).cumsum(0)
    return (having * hits / named.clamp(min=1)).sum(0) / having.sum(0)


def _of_scores(function: Callable[[Tensor, Tensor], Tensor]) -> CountedMeasure:
    """The mean over the classes that have a value of a measure of samples without and with the class, by score."""

    def measure(
        scores: Tensor,
        targets: Tensor,
        task: Any,
        counts: Tensor,
    ) -> Tensor:
        values = []
        for column, labels in zip(*(each.T for each in split_classes(scores, targets))):
            distinct, places = column.unique(return_inverse=True)
            empty = counts.new_zeros(len(distinct), *counts.shape[1:])
            positive = labels > 0
            all_samples = empty.index_add(0, places, counts)
            having = empty.index_add(0, places[positive], counts[positive])
            value = function(all_samples - having, having)
            values.append(value * torch.nan if bool(column.isnan().any()) else value)
        return average_defined(torch.stack(values))

    return CountedMeasure(measure)


def _rate(positive: bool) -> CountedMeasure:
    """The share of the findings that are there, or are not, that are named so: the mean over those that occur."""

    def measure(
        scores: Tensor,
        targets: Tensor,
        task: Any,
        counts: Tensor,
    ) -> Tensor:
        named, there = (
            column == positive for column in _findings(scores, targets, task)
        )
        return average_defined(
            sum_draws(named & there, counts) / sum_draws(there, counts)
        )

    return CountedMeasure(measure)


def _macro_f1_of_classes(
    outputs: Tensor,
    targets: Tensor,
    task: Any,
    counts: Tensor,
) -> Tensor:
    """The mean of the F1 scores of the classes that occur among labels or predictions (scikit-learn's default)."""
    named = outputs.argmax(1)
    empty = counts.new_zeros(outputs.shape[1], *counts.shape[1:])
    right = named == targets
    occurring = empty.index_add(0, targets, counts).index_add(0, named, counts)
    return average_defined(
        2 * empty.index_add(0, targets[right], counts[right]) / occurring
    )


def _balanced_accuracy(
    scores: Tensor,
    targets: Tensor,
    task: Any,
    counts: Tensor,
) -> Tensor:
    """The mean over the classes that occur of the share of its samples that are right; none where there is one."""
    right, _, there = (
        sum_draws(column, counts) for column in mark_classes(scores, targets)
    )
    return torch.where(
        (there > 0).sum(0) > 1, average_defined(right / there), torch.nan
    )


def _accuracy_of_findings(
    scores: Tensor,
    targets: Tensor,
    task: Any,
    counts: Tensor,
) -> Tensor:
    """The share of samples and findings that are right."""
    named, there = _findings(scores, targets, task)
    return sum_draws(named == there, counts).sum(0) / named.numel()


def _macro_f1(columns: Columns) -> CountedMeasure:
    """The mean of the F1 scores of the classes, or findings, that occur among labels or predictions."""
    return CountedMeasure(
        lambda scores, targets, task, counts: average_f1(
            *columns(scores, targets, task), counts
        )
    )


def _of_supported(columns: Columns) -> CountedMeasure:
    """The mean of the F1 scores of the classes of which the split has at least the task's ``support`` samples.

    ``columns`` are the arguments of `average_f1` but the counts. Draws have the classes of the split.
    """

    def measure(
        scores: Tensor,
        targets: Tensor,
        task: Any,
        counts: Tensor,
    ) -> Tensor:
        right, named, there = columns(scores, targets, task)
        supported = there.sum(0) >= task.support
        return average_f1(
            right[:, supported], named[:, supported], there[:, supported], counts
        )

    return CountedMeasure(measure)


def _of_findings(
    scores: Tensor,
    targets: Tensor,
    task: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    named, there = _findings(scores, targets, task)
    return named & there, named, there


def _of_two(
    scores: Tensor,
    targets: Tensor,
    task: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    named, there = (
        torch.cat([~column, column], dim=1)
        for column in _findings(scores, targets, task)
    )
    return named & there, named, there


def _brier(
    scores: Tensor,
    targets: Tensor,
    task: Any,
    counts: Tensor,
) -> Tensor:
    """The mean squared error of probabilities: summed over the classes of a sample, and the mean over findings."""
    scores, labels = split_classes(scores, targets)
    squares = (scores.double() - labels) ** 2
    return average_draws(
        squares.mean(1) if targets.dim() == 2 else squares.sum(1), counts
    )


def _calibration_error(
    scores: Tensor,
    targets: Tensor,
    task: Any,
    counts: Tensor,
) -> Tensor:
    """Expected calibration error of the most probable class, or of each finding's probability, in 15 bins.

    Of each bin it has the distance of the mean probability from the share of right ones. A probability of 1 has a bin
    of its own.
    """
    if targets.dim() == 1 and scores.shape[1] > 1:
        sure, named = scores.max(dim=1)
        pairs = [(sure, named == targets)]
    else:
        scores, labels = split_classes(scores, targets)
        pairs = list(zip(scores.T, labels.T))
    ends = torch.linspace(0, 1, BINS + 1, device=scores.device)
    errors = []
    for sure, right in pairs:
        bins = torch.bucketize(sure.contiguous(), ends, right=True) - 1
        apart = counts * (sure.double() - right.double()).reshape(
            -1, *[1] * (counts.dim() - 1)
        )
        of_bins = counts.new_zeros(BINS + 1, *counts.shape[1:]).index_add_(
            0, bins, apart
        )
        errors.append(of_bins.abs().sum(0) / len(sure))
    return torch.stack(errors).mean(0)


def measure_r2(
    scores: Tensor,
    targets: Tensor,
    task: Any,
) -> float | None:
    """The share of the labels' variance that is explained; not defined where all labels are the same.

    Args:
        scores: probabilities ``(n, classes)``.
        targets: labels as the task has targets ``(n, ...)``.
        task: the task, whose settings a measure may need.
    """
    around = (targets.double() - targets.double().mean()).square().sum()
    left = (scores[:, 0].double() - targets).square().sum()
    return float(1 - left / around) if len(torch.unique(targets)) > 1 else None


def _of_masks(score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Measure:
    """The mean over the classes but the background that occur among labels or predictions, over all pixels.

    Args:
        score: of each class's number of pixels that are right, that are named, and that are there.
    """

    def measure(
        scores: Tensor,
        targets: Tensor,
        task: Any,
    ) -> float | None:
        labels = targets.flatten()
        predictions = scores.argmax(1).flatten()
        classes = scores.shape[1]
        hit, named, there = (
            torch.bincount(pixels, minlength=classes)[1:classes].double()
            for pixels in (labels[labels == predictions], predictions, labels)
        )
        value = float(average_defined(score(hit, named, there)))
        return None if math.isnan(value) else value

    return measure


auroc = _of_scores(_area_under_roc)
auprc = _of_scores(_average_precision)
brier = CountedMeasure(_brier)
sensitivity = _rate(True)
specificity = _rate(False)
calibration_error = CountedMeasure(_calibration_error)
SCORED: dict[str, Measure] = {
    "auroc": auroc,
    "auprc": auprc,
    "brier": brier,
    "ece": calibration_error,
}

OF_CLASSES: dict[str, Measure] = {
    **SCORED,
    "accuracy": CountedMeasure(
        lambda outputs, y, task, counts: average_draws(outputs.argmax(1) == y, counts),
        of_outputs=True,
    ),
    "macro_f1": CountedMeasure(_macro_f1_of_classes, of_outputs=True),
    "balanced_accuracy": CountedMeasure(_balanced_accuracy),
    "supported_f1": _of_supported(
        lambda scores, targets, task: mark_classes(scores, targets)
    ),
}
OF_FINDINGS: dict[str, Measure] = {
    **SCORED,
    "accuracy": CountedMeasure(_accuracy_of_findings),
    "macro_f1": _macro_f1(_of_findings),
    "supported_f1": _of_supported(_of_findings),
    "sensitivity": sensitivity,
    "specificity": specificity,
}
OF_A_FINDING: dict[str, Measure] = {
    **OF_FINDINGS,
    "macro_f1": _macro_f1(_of_two),
    "supported_f1": _of_supported(_of_two),
    "balanced_accuracy": CountedMeasure(
        lambda *a: (sensitivity.of_counts(*a) + specificity.of_counts(*a)) / 2
    ),
}
OF_NUMBERS: dict[str, Measure] = {
    "mae": CountedMeasure(
        lambda scores, y, task, counts: average_draws(
            (scores[:, 0].double() - y).abs(), counts
        )
    ),
    "rmse": CountedMeasure(
        lambda scores, y, task, counts: average_draws(
            (scores[:, 0].double() - y).square(), counts
        ).sqrt()
    ),
    "r2": measure_r2,
}
OF_TIMES: dict[str, Measure] = {
    "c_index": CountedMeasure(
        lambda o, y, task, counts: measure_concordance(
            o[:, 0], y[:, 0], y[:, 1], counts
        ),
        of_outputs=True,
    )
}
OF_MASKS: dict[str, Measure] = {
    "dice": _of_masks(lambda hit, named, there: 2 * hit / (named + there)),
    "iou": _of_masks(lambda hit, named, there: hit / (named + there - hit)),
    "accuracy": lambda scores, targets, task: float(
        (scores.argmax(1) == targets).double().mean()
    ),
}
