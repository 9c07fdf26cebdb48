# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The papers' networks, for any number of channels and any image size, by their names.

Each has a body and, last, a ``head``: the fully connected layer whose outputs are the logits. Only the network for
segmentation has no head. With ``num_classes`` 1 the output is a logit, a number or a risk, as the run's task takes it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfl_flare.core.config import require, require_whole


def _whole_numbers(values: object, what: str, example: str) -> tuple[int, ...]:
    valid = isinstance(values, Sequence) and all(
        isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= 1
        for n in values
    )
    require(
        valid,
        f"model {what} = {values!r} should be whole numbers >= 1, such as {example}",
    )
    return tuple(int(n) for n in cast(Sequence[int], values))


def _image_shape(
    input_shape: Sequence[int], smallest: int, name: str
) -> tuple[int, int, int]:
    shape = _whole_numbers(input_shape, f"{name}: input_shape", "[1, 28, 28]")
    require(
        len(shape) == 3,
        f"model {name}: input_shape = {shape} should be (channels, height, width)",
    )
    require(
        min(shape[1:]) >= smallest,
        f"model {name}: images of {shape[1]}x{shape[2]} are too small, it needs {smallest}x{smallest}; use the mlp",
    )
    return shape[0], shape[1], shape[2]


class Network(nn.Module):
    """A body that computes features, and a head that computes logits from them.

    Attributes:
        body: all layers but the last.
        head: the last fully connected layer.
    """

    body: nn.Module
    head: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class MLP(Network):
    """Fully connected layers with ReLU between them; without hidden layers, multinomial logistic regression.

    Args:
        input_shape: shape of one sample; it is flattened.
        num_classes: number of outputs.
        hidden: width of each hidden layer.
    """

    name: ClassVar[str] = "mlp"

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        hidden: Sequence[int] = (64,),
    ):
        super().__init__()
        require_whole(f"model {self.name}", num_classes=num_classes)
        self.input_shape = _whole_numbers(
            input_shape, f"{self.name}: input_shape", "[1, 28, 28]"
        )
        self.num_classes, self.hidden = (
            num_classes,
            _whole_numbers(hidden, f"{self.name}: hidden", "[64]"),
        )
        widths = [math.prod(self.input_shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for i, o in pairwise(widths):
            layers += [nn.Linear(i, o), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], num_classes)


class Logistic(MLP):
    """Multinomial logistic regression, FedDSMIC's model for MNIST (its Table 1). It is convex in its parameters."""

    name = "logistic"

    def __init__(self, input_shape: Sequence[int], num_classes: int):
        super().__init__(input_shape, num_classes, hidden=())


def _convolution(
    channels: int, width: int, padding: int = 0, norm: bool = False
) -> list[nn.Module]:
    """A 5x5 convolution. Pooling before ReLU gives the same numbers for a quarter of the ReLU's work."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 5, padding=padding)]
    if norm:
        layers.append(nn.BatchNorm2d(width))
    return [*layers, nn.MaxPool2d(2), nn.ReLU()]


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(8, channels), channels)


class ImageNetwork(Network):
    """A network for images ``(channels, height, width)`` that are at least `smallest` high and wide.

    Args:
        input_shape: of one image.
        num_classes: number of outputs.
        norm: ``group`` puts a GroupNorm in the place of each BatchNorm, as differential privacy needs: its statistics
            are those of one image.
    """

    name: ClassVar[str]
    smallest: ClassVar[int]

    def __init__(
        self, input_shape: Sequence[int], num_classes: int, norm: str = "batch"
    ):
        super().__init__()
        require_whole(f"model {self.name}", num_classes=num_classes)
        self.input_shape = _image_shape(input_shape, self.smallest, self.name)
        self.num_classes, self.norm = num_classes, norm
        require(
            norm in ("batch", "group"),
            f"model {self.name}: norm = {norm!r} should be batch or group",
        )
        self.body, self.head = self._layers(*self.input_shape)
        for module in list(self.body.modules()) if norm == "group" else ():
            for name, layer in module.named_children():
                if isinstance(layer, nn.BatchNorm2d):
                    setattr(module, name, _group_norm(layer.num_features))

    def _layers(
        self, channels: int, height: int, width: int
    ) -> tuple[nn.Module, nn.Linear]:
        raise NotImplementedError


class FashionCNN(ImageNetwork):
    """Thesis Tables A.1 and A.4 (``tissue-cnn``): two 5x5 convolutions with BatchNorm, one fully connected layer.

    The second BatchNorm has 32 channels; A.1's 16 is a misprint. So is A.4's missing padding, without which its
    7*7*32 features would be 4*4*32; with it, the two tables differ only in the number of classes.
    """

    name = "fashion-cnn"
    smallest = 4

    def _layers(
        self, channels: int, height: int, width: int
    ) -> tuple[nn.Module, nn.Linear]:
        convolutions = [
            *_convolution(channels, 16, 2, norm=True),
            *_convolution(16, 32, 2, norm=True),
        ]
        body = nn.Sequential(*convolutions, nn.Flatten())
        return body, nn.Linear((height // 4) * (width // 4) * 32, self.num_classes)


class CifarCNN(ImageNetwork):
    """Thesis Tables A.2 and A.3 (``path-cnn``): two 5x5 convolutions without padding, three fully connected layers.

    The tables differ only in the number of classes; A.3's 400 features are 256 on its 28x28 images. FedAC's network
    (``fedac-cnn``) has the same layers (its sec. 5.1); it does not publish their widths, so these are used.
    """

    name = "cifar-cnn"
    smallest = 16

    def _layers(
        self, channels: int, height: int, width: int
    ) -> tuple[nn.Module, nn.Linear]:
        features = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        convolutions = [*_convolution(channels, 6), *_convolution(6, 16), nn.Flatten()]
        hidden = [nn.Linear(features, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
        body = nn.Sequential(*convolutions, *hidden)
        return body, nn.Linear(84, self.num_classes)


class LeafCNN(ImageNetwork):
    """LEAF's network for FEMNIST (Caldas et al. 2018): two 5x5 convolutions, a hidden layer of 2048, the head.

    FedCUAU and FedDSMIC use it for FEMNIST and EMNIST.
    """

    name = "leaf-cnn"
    smallest = 4

    def _layers(
        self, channels: int, height: int, width: int
    ) -> tuple[nn.Module, nn.Linear]:
        convolutions = [
            *_convolution(channels, 32, 2),
            *_convolution(32, 64, 2),
            nn.Flatten(),
        ]
        body = nn.Sequential(
            *convolutions, nn.Linear((height // 4) * (width // 4) * 64, 2048), nn.ReLU()
        )
        return body, nn.Linear(2048, self.num_classes)


# Below this size the ImageNet stems, which shrink an image fourfold before the first block, leave too little of it.
SMALL_IMAGE = 64


def _stem(channels: int, width: int, kernel: int, stride: int) -> nn.Conv2d:
    """A first convolution for any number of channels, initialised as torchvision's."""
    conv = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class ResNet18(ImageNetwork):
    """Torchvision's ResNet-18 (He et al. 2016), untrained; FedCUAU's network for CIFAR-10.

    Images of less than 64 pixels a side get the usual stem for small images: a 3x3 convolution with stride 1 in place
    of the 7x7 one with stride 2, and no max-pool. The blocks keep their names: ``body.layer4`` is the last.
    """

    name = "resnet18"
    smallest = 8

    def _layers(
        self, channels: int, height: int, width: int
    ) -> tuple[nn.Module, nn.Linear]:
        from torchvision.models.resnet import (
            BasicBlock,
            ResNet,
        )  # slow to import, and only needed here

        class Block(BasicBlock):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                """Torchvision's, which adds in place. Where single samples' gradients are taken, that is forbidden."""
                out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
                return cast(
                    torch.Tensor,
                    self.relu(
                        out + (x if self.downsample is None else self.downsample(x))
                    ),
                )

        parts = OrderedDict(
            ResNet(Block, [2, 2, 2, 2], num_classes=self.num_classes).named_children()
        )
        small = min(height, width) < SMALL_IMAGE
        parts["conv1"] = _stem(
            channels, 64, kernel=3 if small else 7, stride=1 if small else 2
        )
        if small:
            del parts["maxpool"]
        head = parts.pop("fc")
        return nn.Sequential(OrderedDict(**parts, flatten=nn.Flatten())), cast(
            nn.Linear, head
        )


class MobileNetV2(ImageNetwork):
    """Torchvision's MobileNet-v2 (Sandler et al. 2018), untrained; FedDSMIC's network for CIFAR-10 and CIFAR-100.

    On images of less than 64 pixels a side, the first convolution and the first block that would halve the image have
    stride 1, as is usual for small images: 32x32 ends as 4x4, as in `ResNet18`.
    """

    name = "mobilenet-v2"
    smallest = 8

    def _layers(
        self, channels: int, height: int, width: int
    ) -> tuple[nn.Module, nn.Linear]:
        from torchvision.models import (
            mobilenet_v2,
        )  # slow to import, and only needed here

        network = mobilenet_v2(num_classes=self.num_classes)
        small = min(height, width) < SMALL_IMAGE
        network.features[0][0] = _stem(channels, 32, kernel=3, stride=1 if small else 2)
        if small:
            halving = next(
                m
                for m in network.features[1:].modules()
                if isinstance(m, nn.Conv2d) and m.stride == (2, 2)
            )
            halving.stride = (1, 1)
        dropout, head = network.classifier
        body = OrderedDict(
            features=network.features,
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            dropout=dropout,
        )
        return nn.Sequential(body), head


class UNet(nn.Module):
    """A small U-Net for segmentation (Ronneberger et al. 2015): three resolutions, 3x3 convolutions, one logit a pixel.

    A GroupNorm follows each convolution. Its statistics are those of one image. Running statistics would be averaged
    over participants with different images. The network has no fully connected layer, and no head.

    Args:
        input_shape: ``(channels, height, width)``; 4 divides height and width.
        num_classes: of each pixel, the background among them.
        width: channels at the full resolution; each of the two lower ones has twice as many as the one above.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, width: int = 16):
        super().__init__()
        require_whole("model unet", num_classes=num_classes, width=width)
        self.input_shape, self.num_classes = (
            _image_shape(input_shape, 1, "unet"),
            num_classes,
        )
        channels, height, wide = self.input_shape
        up_to = f"{-(-height // 4) * 4}x{-(-wide // 4) * 4}"
        divided = height % 4 == 0 and wide % 4 == 0
        require(
            divided,
            f"model unet: images of {height}x{wide} cannot be halved twice; pad or resize them to {up_to}",
        )
        self.width = width
        self.down1 = self._convolutions(channels, width)
        self.down2 = self._convolutions(width, 2 * width)
        self.bottom = self._convolutions(2 * width, 4 * width)
        self.rise2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up2 = self._convolutions(4 * width, 2 * width)
        self.rise1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up1 = self._convolutions(2 * width, width)
        self.last = nn.Conv2d(width, num_classes, 1)

    @staticmethod
    def _convolutions(channels: int, width: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for before in (channels, width):
            layers += [
                nn.Conv2d(before, width, 3, padding=1, bias=False),
                _group_norm(width),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        full = self.down1(x)
        half = self.down2(F.max_pool2d(full, 2))
        low = self.bottom(F.max_pool2d(half, 2))
        half = self.up2(torch.cat((self.rise2(low), half), dim=1))
        return self.last(self.up1(torch.cat((self.rise1(half), full), dim=1)))


class NamedArrays(nn.Module):
    """Arrays of any shapes by name, all zero: the model of a training script that has no module.

    Args:
        shapes: of the arrays, by name.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]]):
        super().__init__()
        self.shapes = {name: list(shape) for name, shape in shapes.items()}
        for name, shape in self.shapes.items():
            # register_parameter() would refuse names with a dot and those of a module's methods.
            self._parameters[name] = nn.Parameter(torch.zeros(shape))


MODELS: dict[str, type[nn.Module]] = {
    "mlp": MLP,
    "logistic": Logistic,
    "fashion-cnn": FashionCNN,
    "tissue-cnn": FashionCNN,
    "cifar-cnn": CifarCNN,
    "path-cnn": CifarCNN,
    "fedac-cnn": CifarCNN,
    "leaf-cnn": LeafCNN,
    "resnet18": ResNet18,
    "mobilenet-v2": MobileNetV2,
    "unet": UNet,
}
