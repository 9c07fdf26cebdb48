# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What local training weighs in its loss."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced(labels: Tensor, classes: int) -> Tensor:
    """Weights with which each class that occurs has the same share of all samples: n / (classes that occur * n_c).

    A class that does not occur has weight 1: it counts in label smoothing alone.

    >>> balanced(torch.tensor([0, 0, 0, 2]), 3)
    tensor([0.6667, 1.0000, 2.0000])
    """
    counts = torch.bincount(labels, minlength=classes)
    weights = len(labels) / ((counts > 0).sum() * counts.clamp(min=1))
    return torch.where(counts > 0, weights, torch.ones_like(weights))
