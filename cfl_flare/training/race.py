# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The choice of the model with the least mean loss, without reading all samples with all models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# Samples in the first block of a race. Each further block is as long as all blocks before it.
FIRST_BLOCK = 32
# Two sums of float32 losses that differ by less than this fraction are equal: blocks are rounded differently.
ROUNDING = 1e-6

# The losses of some models, by index, on the samples of a slice: ``(models, samples)`` float64, none below 0.
SampleLosses = Callable[[np.ndarray, slice], np.ndarray]


def race_models(
    losses: SampleLosses,
    models: int,
    samples: int,
) -> int:
    """Choose the model with the least sum of losses. The choice is the same as by reading everything.

    No loss is below 0, so the sum over some samples is a lower bound of the sum over all samples. One model, the best
    of the first block, reads all samples. Another model is dropped when its sum so far exceeds the best model's full
    sum: no further sample could lower it. This needs no assumption on how the losses are distributed.

    Args:
        losses: called with the models that are still in the race and with a block of samples, in order.
        models: number of models, K >= 1.
        samples: number of samples, n >= 1, in a random order.

    Returns:
        The index of the model, the first one of equal models. A loss that is not a number counts as infinite.
    """
    left = np.arange(models)
    if models == 1:
        return 0

    # All models read the first block, and the leader reads all other samples.
    end = min(FIRST_BLOCK, samples)
    sums = sum_losses(losses, left, slice(0, end))
    leader = int(sums.argmin())
    if end < samples:
        sums[leader] += sum_losses(losses, np.array([leader]), slice(end, samples))[0]

    # The others read on, until their sums exceed the leader's.
    bound = sums[leader] * (1 + ROUNDING)
    rivals = np.flatnonzero((sums <= bound) & (left != leader))
    while end < samples and len(rivals) > 0:
        begin = end
        end = min(2 * end, samples)
        sums[rivals] += sum_losses(losses, rivals, slice(begin, end))
        rivals = rivals[sums[rivals] <= bound]

    # Whoever was not dropped has read everything.
    finished = np.sort(np.append(rivals, leader))
    least = sums[finished].min() * (1 + ROUNDING)
    return int(finished[sums[finished] <= least][0])


def sum_losses(
    losses: SampleLosses,
    models: np.ndarray,
    block: slice,
) -> np.ndarray:
    """Sum the losses of some models over a block, ``(len(models),)`` float64; NaN counts as infinite.

    Args:
        losses: called with the models and the block.
        models: the indices of the models.
        block: the samples.
    """
    values = losses(models, block)
    return np.asarray(np.where(np.isnan(values), np.inf, values).sum(axis=1))
