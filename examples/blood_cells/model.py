# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A small network for blood cells under the microscope."""

import torch
from torch import nn


class BloodNet(nn.Module):
    """Two convolutions and a linear layer, for images of (3, 28, 28).

    Args:
        classes: kinds of cells.
    """

    def __init__(self, classes: int = 8):
        super().__init__()
        self.classes = classes
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * 7 * 7, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of shape (images, classes)."""
        return self.head(self.features(images))
