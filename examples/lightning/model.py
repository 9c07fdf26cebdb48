# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A small network for blood cells, as a module of PyTorch Lightning."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy

Batch = tuple[torch.Tensor, torch.Tensor]


class BloodModule(pl.LightningModule):
    """Two convolutions and a linear layer, for images of (3, 28, 28).

    Args:
        classes: kinds of cells.
        lr: learning rate.
    """

    def __init__(self, classes: int = 8, lr: float = 0.05):
        super().__init__()
        self.classes, self.lr = classes, lr
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

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        return cross_entropy(self(images), labels)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int) -> None:
        """Accuracy on the first loader's data, which is for testing; loss on the second's, which is for training."""
        images, labels = batch
        logits = self(images)
        if dataloader_idx == 0:
            self.log("accuracy", (logits.argmax(1) == labels).float().mean(), add_dataloader_idx=False)
        else:  # by this IFCA chooses among models
            self.log("loss", cross_entropy(logits, labels), add_dataloader_idx=False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
