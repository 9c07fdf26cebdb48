# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Counts of a participant's test scores and decisions: an AUROC and a macro-F1 over all participants' samples."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout
from cfl_flare.training.losses import predict_from
from cfl_flare.training.measures import split_classes
from cfl_flare.training.settings import TrainSettings

# The server adds the bins up: they are the same for everyone, and known before any score. They divide the log-odds of a
# class. In bins of equal probability, the outer ones would hold nearly all samples of a trained model. The bins have
# equal width in asinh(log-odds / NARROW). At 0, where an untrained model's scores lie close together, 200 bins are
# NARROW / 14 wide. Further out they are wider in proportion. The last bins have all scores beyond REACH, a probability
# of 10^-26.
NARROW = 0.1
REACH = 60.0


def read_score_shape(
    settings: TrainSettings,
    layout: Layout,
) -> tuple[int, int, int] | None:
    """The shape ``(classes, 2, bins)`` of a participant's histograms; None where none are asked for.

    The layout is that of all of the model, private layers included. A ConfigError if it has no fully connected layer.

    Args:
        settings: the settings of the training.
        layout: the names and shapes of a model's arrays.
    """
    if not settings.score_bins:
        return None
    head = layout.head.entries
    needs = f"score_bins = {settings.score_bins} needs a model that ends in a fully connected layer"
    reason = "by which the server knows the number of classes"
    require(bool(head), f"training: {needs}, {reason}; leave it out")
    return head[0].shape[0], 2, settings.score_bins


def compute_log_odds(
    outputs: Tensor,
    link: str,
) -> Tensor:
    """The logarithm of each class's odds against the rest, ``(n, classes)`` float64 on the CPU.

    They are computed from logarithms: a probability that is rounded to 1 has lost its rank. Those of a softmax are
    relative to classes of equal probability, so that a model that knows nothing has 0. The other link is ``sigmoid``.

    Args:
        outputs: outputs of a model ``(n, classes, ...)``.
        link: one of `LINKS`.
    """
    outputs = outputs.detach().cpu().double()
    if link == "sigmoid":
        return outputs
    logarithms = outputs.log_softmax(dim=1)
    rest = torch.log1p(-logarithms.exp())
    top = outputs.argmax(
        dim=1, keepdim=True
    )  # of the others, a probability is at most 1/2 and its rest not rounded
    rest.scatter_(
        1, top, logarithms.scatter(1, top, -torch.inf).logsumexp(dim=1, keepdim=True)
    )
    return logarithms - rest + math.log(max(1, outputs.shape[1] - 1))


def list_probabilities(
    shape: tuple[int, int, int],
    link: str,
) -> np.ndarray:
    """The probability of a class that each bin stands for: that of its middle, ``(bins,)`` float64, rising.

    Args:
        shape: ``(classes, 2, bins)``.
        link: one of `LINKS`.

    >>> list_probabilities((1, 2, 5), "sigmoid").round(4).tolist()
    [0.0, 0.2995, 0.5, 0.7005, 1.0]
    """
    classes, _, bins = shape
    share = (np.arange(bins) + 0.5) / bins
    odds = NARROW * np.sinh((2 * share - 1) * math.asinh(REACH / NARROW))
    odds -= math.log(max(1, classes - 1)) if link == "softmax" else 0.0
    probability: np.ndarray = 1 / (1 + np.exp(-odds))
    return probability


def count_scores(
    outputs: Tensor,
    targets: Tensor,
    link: str,
    bins: int,
    threshold: float = 0.5,
) -> np.ndarray | None:
    """Counts samples by bins of their scores, for each class those without it and those with it.

    The last number of each row is how many of these samples are predicted to have the class: wrongly, and rightly.

    >>> outputs, targets = torch.tensor([[-9.0], [9.0], [0.1]]), torch.tensor([0, 1, 0])
    >>> count_scores(outputs, targets, "sigmoid", 10).tolist()
    [[[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]]]

    Args:
        outputs: of a model, ``(n, classes)``.
        targets: ``(n,)`` class numbers, or ``(n, classes)`` of 0 and 1.
        threshold: of a sigmoid, the probability from which on a sample is predicted to have a class. Of a softmax, it
            is predicted to have the most probable one.

    Returns:
        ``(classes, 2, bins + 1)`` int32; None if a score is no number.
    """
    odds, labels = split_classes(compute_log_odds(outputs, link), targets.cpu())
    if bool(odds.isnan().any()):
        return None
    share = torch.asinh(odds / NARROW) / math.asinh(REACH / NARROW) / 2 + 0.5
    places = (share * bins).floor().clamp(0, bins - 1).long()
    rows = 2 * torch.arange(odds.shape[1]) + labels.long()
    counts = torch.bincount(
        (rows * bins + places).flatten(), minlength=odds.shape[1] * 2 * bins
    )
    if link == "sigmoid":
        decided = (predict_from(outputs, link) >= threshold).long().cpu()
    else:
        decided = torch.nn.functional.one_hot(
            outputs.argmax(dim=1), outputs.shape[1]
        ).cpu()
    named = torch.stack((decided * (1 - labels), decided * labels), dim=2).sum(dim=0)
    return (
        torch.cat((counts.view(-1, 2, bins), named[..., None]), dim=2)
        .numpy()
        .astype(np.int32)
    )


def count_classes(
    targets: Tensor,
    classes: int,
) -> list[int]:
    """How many samples are of each class, by its number, or have each finding.

    Args:
        targets: labels as the task has targets ``(n, ...)``.
        classes: the number of classes.

    >>> count_classes(torch.tensor([2, 0, 2]), 3), count_classes(torch.tensor([[1, 0], [1, 1]]), 2)
    ([1, 0, 2], [2, 1])
    """
    if targets.dim() == 2:
        counts = targets.sum(0)
    else:
        counts = torch.bincount(targets, minlength=max(2, classes))
    return [int(count) for count in counts]
