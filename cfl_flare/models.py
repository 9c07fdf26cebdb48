# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The papers' networks, for any number of channels and any image size, and a registry of their names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from cfl_flare.config import require


def _image_shape(input_shape: Sequence[int], smallest: int, name: str) -> tuple[int, int, int]:
    shape = tuple(int(n) for n in input_shape)
    require(len(shape) == 3, f"{name}: input_shape = {shape} should be (channels, height, width)")
    require(
        min(shape[1:]) >= smallest,
        f"{name}: images of {shape[1]}x{shape[2]} are too small, it needs {smallest}x{smallest}; use the mlp",
    )
    return shape[0], shape[1], shape[2]


def _check_classes(num_classes: int, name: str) -> None:
    require(isinstance(num_classes, int) and num_classes >= 2, f"{name}: num_classes = {num_classes!r} should be >= 2")


class MLP(nn.Module):
    """Fully connected layers with ReLU between them; without hidden layers, multinomial logistic regression.

    Args:
        input_shape: shape of one sample; it is flattened.
        num_classes: number of outputs.
        hidden: width of each hidden layer.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, hidden: Sequence[int] = (64,)):
        super().__init__()
        _check_classes(num_classes, "mlp")
        require(all(isinstance(h, int) and h > 0 for h in hidden), f"mlp: hidden = {hidden!r} should be widths > 0")
        self.input_shape, self.num_classes, self.hidden = tuple(input_shape), num_classes, tuple(hidden)
        widths = [math.prod(self.input_shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for i, o in pairwise(widths):
            layers += [nn.Linear(i, o), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(n, num_classes)`` of samples ``(n, *input_shape)``."""
        return self.head(self.body(x))


class FashionCNN(nn.Module):
    """Thesis Table A.1: two 5x5 convolutions with BatchNorm, one fully connected layer.

    The second BatchNorm has 32 channels; the table's 16 is a misprint.

    Args:
        input_shape: ``(channels, height, width)``, at least 4x4.
        num_classes: number of outputs.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int):
        super().__init__()
        _check_classes(num_classes, "fashion-cnn")
        channels, height, width = _image_shape(input_shape, 4, "fashion-cnn")
        self.input_shape, self.num_classes = (channels, height, width), num_classes
        # Pooling before ReLU gives the same numbers (both are monotone) for a quarter of the ReLU's work.
        self.body = nn.Sequential(
            nn.Conv2d(channels, 16, 5, padding=2),
            nn.BatchNorm2d(16),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.BatchNorm2d(32),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear((height // 4) * (width // 4) * 32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(n, num_classes)`` of images ``(n, *input_shape)``."""
        return self.head(self.body(x))


class CifarCNN(nn.Module):
    """Thesis Table A.2 (and A.3): two 5x5 convolutions without padding, three fully connected layers.

    Args:
        input_shape: ``(channels, height, width)``, at least 16x16.
        num_classes: number of outputs.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int):
        super().__init__()
        _check_classes(num_classes, "cifar-cnn")
        channels, height, width = _image_shape(input_shape, 16, "cifar-cnn")
        self.input_shape, self.num_classes = (channels, height, width), num_classes
        features = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.body = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(features, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.head = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(n, num_classes)`` of images ``(n, *input_shape)``."""
        return self.head(self.body(x))


MODELS: dict[str, type[nn.Module]] = {"mlp": MLP, "fashion-cnn": FashionCNN, "cifar-cnn": CifarCNN}
