# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A small network for handwritten digits."""

import torch
from torch import nn


class DigitNet(nn.Module):
    """One hidden layer, for images of (8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of shape (images, 10)."""
        return self.layers(images)
