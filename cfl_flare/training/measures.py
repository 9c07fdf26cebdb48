# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of a participant's predictions on its test split.

Those of every round are computed here; the others, on request, by torchmetrics, which takes seconds to import. A
measure that is not defined on a split is None, and never 0 or NaN.
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


def _torchmetrics() -> Any:
    """The functions of torchmetrics for classification."""
    import torchmetrics.functional.classification as functions

    return functions


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


def _by_class(name: str, both: bool) -> Measure:
    """The mean over the classes of a measure of binary labels that takes scores.

    Args:
        name: torchmetrics's function for one class.
        both: it needs samples of the class and others; else of the class alone.
    """

    def measure(scores: Tensor, targets: Tensor, task: Any) -> float | None:
        scores, labels = one_against_the_rest(scores, targets)
        there = labels.sum(dim=0)
        defined = (there > 0) & (there < len(labels)) if both else there > 0
        function = getattr(_torchmetrics(), name)
        found = [function(scores[:, c], labels[:, c]) if ok else torch.tensor(0.0) for c, ok in enumerate(defined)]
        # torchmetrics adds up in float32: a perfect one can come out above 1, which a server refuses.
        return mean_of(torch.stack(found).clamp(0, 1), defined)

    return measure


def _counts(scores: Tensor, targets: Tensor, task: Any) -> Tensor:
    """True positives, false positives, true negatives, false negatives of each finding, ``(findings, 4)``."""
    scores, labels = one_against_the_rest(scores, targets)
    # torchmetrics takes what is above a threshold, and here that value is in.
    found = (scores >= task.threshold).int()
    count = _torchmetrics().binary_stat_scores
    return torch.stack([count(found[:, c], labels[:, c])[:4] for c in range(labels.shape[1])])


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
    return mean_of(_torchmetrics().multiclass_recall(scores, targets, classes, average=None), there)


def brier(scores: Tensor, targets: Tensor, task: Any) -> float:
    """The mean squared error of probabilities: summed over the classes of a sample, and the mean over findings."""
    scores, labels = one_against_the_rest(scores, targets)
    squares = (scores.double() - labels) ** 2
    return float(squares.mean() if targets.dim() == 2 else squares.sum(dim=1).mean())


def calibration_error(scores: Tensor, targets: Tensor, task: Any) -> float:
    """Expected calibration error of the most probable class, or of a finding's probability, in 15 bins."""
    functions = _torchmetrics()
    if targets.dim() == 1 and scores.shape[1] > 1:
        return float(functions.multiclass_calibration_error(scores, targets, scores.shape[1], n_bins=BINS))
    scores, labels = one_against_the_rest(scores, targets)
    found = [
        functions.binary_calibration_error(scores[:, c], labels[:, c], n_bins=BINS) for c in range(labels.shape[1])
    ]
    return float(torch.stack(found).double().mean())


def _regression(name: str, fewest: int = 1, **settings: Any) -> Measure:
    """A measure of numbers, by torchmetrics's function, where there are so many different labels."""

    def measure(scores: Tensor, targets: Tensor, task: Any) -> float | None:
        import torchmetrics.functional.regression as functions

        if len(torch.unique(targets)) < fewest:
            return None
        return float(getattr(functions, name)(scores[:, 0].double(), targets.double(), **settings))

    return measure


def _of_masks(score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Measure:
    """The mean over the classes but the background that occur among labels or predictions, over all pixels."""

    def measure(scores: Tensor, targets: Tensor, task: Any) -> float | None:
        classes = scores.shape[1]
        counts = _torchmetrics().multiclass_stat_scores(scores.argmax(1), targets, classes, average=None)[1:]
        hit, false, _, missed = counts[:, :4].T.double()
        return mean_of(score(hit, false, missed), hit + false + missed > 0)

    return measure


def accuracy_of_pixels(scores: Tensor, targets: Tensor, task: Any) -> float:
    """The share of pixels that are right."""
    return float((scores.argmax(1) == targets).double().mean())


auroc, auprc = _by_class("binary_auroc", both=True), _by_class("binary_average_precision", both=False)
mae, rmse = _regression("mean_absolute_error"), _regression("mean_squared_error", squared=False)
r2 = _regression("r2_score", fewest=2)
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
