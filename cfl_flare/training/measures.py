# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of a participant's predictions on its test split.

They need torch alone, as each site of a job pays for what it imports: torchmetrics took seconds, scikit-learn is what
tests compare them with. A measure that is not defined on a split is None, and never 0 or NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Bins of the calibration error, by probability (Guo et al. 2017).
BINS = 15

# Of predictions and targets, by the settings of a task.
Measure = Callable[[Tensor, Tensor, Any], "float | None"]


LARGEST = 1e9
SHARES = ("accuracy", "macro_f1", "auroc", "auprc", "balanced_accuracy", "sensitivity", "specificity", "ece")
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys((*SHARES, "c_index", "dice", "iou"), (0.0, 1.0)),
    **dict.fromkeys(("loss", "mae", "rmse"), (0.0, LARGEST)),
    "brier": (0.0, 2.0),
    "r2": (-LARGEST, 1.0),
}


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of correct predictions.

    >>> accuracy(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2]))
    0.75
    """
    return float((labels == predictions).mean())


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of the F1 scores of the classes that occur among labels or predictions (scikit-learn's default).

    >>> round(macro_f1(np.array([0, 0, 1]), np.array([0, 1, 1])), 3)
    0.667
    """
    size = int(max(labels.max(), predictions.max())) + 1
    hits = np.bincount(labels[labels == predictions], minlength=size)
    total = np.bincount(labels, minlength=size) + np.bincount(predictions, minlength=size)
    present = total > 0
    return float((2 * hits[present] / total[present]).mean())


def mean_of(values: Tensor, defined: Tensor) -> float | None:
    """The mean of those that are defined; None if there is none."""
    return float(values[defined].double().mean()) if bool(defined.any()) else None


def one_against_the_rest(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
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


def by_score(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """How many samples without a class, and how many with it, have each distinct score; float64, the lowest first.

    Args:
        scores: ``(n,)``.
        labels: ``(n,)`` of 0 and 1.
    """
    values, places = scores.unique(return_inverse=True)
    every, having = (torch.bincount(p, minlength=len(values)).double() for p in (places, places[labels > 0]))
    return every - having, having


def area_under_roc(without: Tensor, having: Tensor) -> Tensor:
    """The share of pairs of a sample with the class and one without it in which the former scores higher; ties half.

    Args:
        without: of each distinct score, how many have it and not the class; see `by_score`. ``(scores, ...)``.
        having: how many have it and the class.
    """
    return (having * (without.cumsum(0) - without / 2)).sum(0) / (without.sum(0) * having.sum(0))


def average_precision(without: Tensor, having: Tensor) -> Tensor:
    """The precision at each distinct score, the mean over the samples with the class (scikit-learn's definition).

    The arguments are those of `area_under_roc`.
    """
    without, having = without.flip(0), having.flip(0)
    hits, named = having.cumsum(0), (having + without).cumsum(0)
    return (having * hits / named.clamp(min=1)).sum(0) / having.sum(0)


def _by_class(function: Callable[[Tensor, Tensor], Tensor], both: bool) -> Measure:
    """The mean over the classes of a measure of binary labels that takes scores.

    Args:
        function: of the counts of one class, as `by_score` has them.
        both: it needs samples of the class and others; else of the class alone.
    """

    def measure(scores: Tensor, targets: Tensor, task: Any) -> float | None:
        scores, labels = one_against_the_rest(scores, targets)
        there = labels.sum(dim=0)
        defined = ((there > 0) & (there < len(labels)) if both else there > 0) & ~scores.isnan().any(dim=0)
        values = [function(*by_score(scores[:, c], labels[:, c])) for c in range(len(there)) if defined[c]]
        return float(torch.stack(values).mean()) if values else None

    return measure


def _counts(scores: Tensor, targets: Tensor, task: Any) -> Tensor:
    """True positives, false positives, true negatives, false negatives of each finding, ``(findings, 4)``."""
    scores, labels = one_against_the_rest(scores, targets)
    said, there = scores >= task.threshold, labels > 0
    return torch.stack([(said & there), (said & ~there), (~said & ~there), (~said & there)]).sum(dim=1).T


def of_labels(targets: Tensor, predictions: Tensor, classes: int) -> Tensor:
    """True positives, false positives, false negatives of each class, ``(classes, 3)`` float64."""
    targets, predictions = targets.flatten(), predictions.flatten()
    hit, said, there = (
        torch.bincount(labels, minlength=classes)[:classes].double()
        for labels in (targets[targets == predictions], predictions, targets)
    )
    return torch.stack([hit, said - hit, there - hit], dim=1)


def sensitivity(scores: Tensor, targets: Tensor, task: Any) -> float | None:
    """The share of the positive samples that are found, the mean over the findings that occur."""
    hit, _, _, missed = _counts(scores, targets, task).T.double()
    return mean_of(hit / (hit + missed), hit + missed > 0)


def specificity(scores: Tensor, targets: Tensor, task: Any) -> float | None:
    """The share of the negative samples that are not found, the mean over the findings that some samples lack."""
    _, false, right, _ = _counts(scores, targets, task).T.double()
    return mean_of(right / (right + false), right + false > 0)


def f1_of_findings(scores: Tensor, targets: Tensor, task: Any) -> float | None:
    """The mean of the F1 scores of the findings that occur among labels or predictions."""
    hit, false, _, missed = _counts(scores, targets, task).T.double()
    total = 2 * hit + false + missed
    return mean_of(2 * hit / total, total > 0)


def accuracy_of_findings(scores: Tensor, targets: Tensor, task: Any) -> float:
    """The share of samples and findings that are right."""
    counts = _counts(scores, targets, task).double()
    return float(counts[:, [0, 2]].sum() / counts.sum())


def macro_f1_of_two(scores: Tensor, targets: Tensor, task: Any) -> float | None:
    """The mean of the F1 scores of both classes, as `macro_f1` has it."""
    return macro_f1(targets.cpu().numpy(), (scores[:, 0] >= task.threshold).long().cpu().numpy())


def balanced_of_two(scores: Tensor, targets: Tensor, task: Any) -> float | None:
    """The mean of sensitivity and specificity; not defined where there is one class."""
    pair = sensitivity(scores, targets, task), specificity(scores, targets, task)
    return None if pair[0] is None or pair[1] is None else (pair[0] + pair[1]) / 2


def balanced_accuracy(scores: Tensor, targets: Tensor, task: Any) -> float | None:
    """The mean over the classes that occur of the share of its samples that are right; none where there is one."""
    classes = scores.shape[1]
    there = torch.bincount(targets, minlength=classes) > 0
    if int(there.sum()) < 2:
        return None
    hit, _, missed = of_labels(targets, scores.argmax(1), classes).T
    return mean_of(hit / (hit + missed), there)


def brier(scores: Tensor, targets: Tensor, task: Any) -> float:
    """The mean squared error of probabilities: summed over the classes of a sample, and the mean over findings."""
    scores, labels = one_against_the_rest(scores, targets)
    squares = (scores.double() - labels) ** 2
    return float(squares.mean() if targets.dim() == 2 else squares.sum(dim=1).mean())


def calibration_error(scores: Tensor, targets: Tensor, task: Any) -> float:
    """Expected calibration error of the most probable class, or of a finding's probability, in 15 bins."""
    return float(torch.stack([_error_of(sure, right) for sure, right in certainties(scores, targets)]).mean())


def certainties(scores: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Probabilities, and whether they are right: of the most probable class, or of each finding; ``(n,)`` each."""
    if targets.dim() == 1 and scores.shape[1] > 1:
        sure, said = scores.max(dim=1)
        return [(sure, said == targets)]
    scores, labels = one_against_the_rest(scores, targets)
    return [(scores[:, c], labels[:, c]) for c in range(labels.shape[1])]


def in_bins(sure: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The bin of each probability, and how far it is from being right; a probability of 1 has a bin of its own."""
    ends = torch.linspace(0, 1, BINS + 1, device=sure.device)
    return torch.bucketize(sure.contiguous(), ends, right=True) - 1, sure.double() - right.double()


def _error_of(sure: Tensor, right: Tensor) -> Tensor:
    """The mean over samples of the distance between a bin's mean probability and its share of right ones."""
    bins, values = in_bins(sure, right)
    apart = torch.zeros(BINS + 1, dtype=torch.float64, device=sure.device).index_add_(0, bins, values)
    return apart.abs().sum() / len(sure)


def mae(scores: Tensor, targets: Tensor, task: Any) -> float:
    """The mean absolute error."""
    return float((scores[:, 0].double() - targets).abs().mean())


def rmse(scores: Tensor, targets: Tensor, task: Any) -> float:
    """The square root of the mean squared error."""
    return float((scores[:, 0].double() - targets).square().mean().sqrt())


def r2(scores: Tensor, targets: Tensor, task: Any) -> float | None:
    """The share of the labels' variance that is explained; not defined where all labels are the same."""
    around = (targets.double() - targets.double().mean()).square().sum()
    left = (scores[:, 0].double() - targets).square().sum()
    return float(1 - left / around) if len(torch.unique(targets)) > 1 else None


def _of_masks(score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Measure:
    """The mean over the classes but the background that occur among labels or predictions, over all pixels."""

    def measure(scores: Tensor, targets: Tensor, task: Any) -> float | None:
        hit, false, missed = of_labels(targets, scores.argmax(1), scores.shape[1])[1:].T
        return mean_of(score(hit, false, missed), hit + false + missed > 0)

    return measure


def accuracy_of_pixels(scores: Tensor, targets: Tensor, task: Any) -> float:
    """The share of pixels that are right."""
    return float((scores.argmax(1) == targets).double().mean())


auroc, auprc = _by_class(area_under_roc, both=True), _by_class(average_precision, both=False)
dice = _of_masks(lambda hit, false, missed: 2 * hit / (2 * hit + false + missed))
iou = _of_masks(lambda hit, false, missed: hit / (hit + false + missed))

# What each task can measure.
OF_CLASSES: dict[str, Measure] = {
    "auroc": auroc,
    "auprc": auprc,
    "balanced_accuracy": balanced_accuracy,
    "brier": brier,
    "ece": calibration_error,
}
OF_A_FINDING: dict[str, Measure] = {
    "auroc": auroc,
    "auprc": auprc,
    "accuracy": accuracy_of_findings,
    "balanced_accuracy": balanced_of_two,
    "macro_f1": macro_f1_of_two,
    "sensitivity": sensitivity,
    "specificity": specificity,
    "brier": brier,
    "ece": calibration_error,
}
OF_FINDINGS: dict[str, Measure] = {
    "auroc": auroc,
    "auprc": auprc,
    "accuracy": accuracy_of_findings,
    "macro_f1": f1_of_findings,
    "sensitivity": sensitivity,
    "specificity": specificity,
    "brier": brier,
    "ece": calibration_error,
}
OF_NUMBERS: dict[str, Measure] = {
    "mae": mae,
    "rmse": rmse,
    "r2": r2,
}
OF_MASKS: dict[str, Measure] = {
    "dice": dice,
    "iou": iou,
    "accuracy": accuracy_of_pixels,
}
