# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Augmentation: random transforms of the images that a participant trains on, by torchvision.transforms.v2.

What a job may name is in `cfl_flare.training.transforms`. Importing this takes seconds; only runs with transforms do.
A transform that fails, or does not fit the samples, is a `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torchvision
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.training.transforms import (
    ALLOWED,
    COLOUR,
    POLICIES,
    WITHOUT_MASKS,
    name_transform,
    parse_transform,
)

# A transform may make an image's longer side this many times as long, before another one crops it.
LARGEST_FACTOR = 3
# Number of trials of the chain on a sample, with every transform that is applied by chance.
TRIES = 8
# Rounding may take a value this far beyond 0 and 1.
ROUNDING = 1e-5


class Augment:
    """A chain of transforms, applied to each image on its own, with its mask if there are masks.

    Transforms take images in [0, 1], where 0 is black. They compute on the CPU, with equal draws for every device.

    With ``masks``, labels are masks. They move with their images, by the nearest pixel; outside an image is background.
    """

    def __init__(
        self,
        texts: Sequence[str],
        masks: bool = False,
    ):
        self._texts = tuple(texts)
        self._masks = masks
        self._chain = [_built(text, masks) for text in texts]

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        seed: int | Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Transform images and, if labels are masks, their masks. Shapes, dtypes and device stay.

        Args:
            x: ``(n, channels, height, width)`` float32 in [-1, 1].
            y: ``(n, ...)`` labels.
            seed: of the draws for all images together, or ``n`` seeds, one for each image.

        Returns:
            The images and their labels.
        """
        if not len(x):
            return x, y
        images = x.cpu()
        labels = y.cpu() if self._masks else y
        if isinstance(seed, int):
            with _drawing(seed):
                pairs = [
                    self._transformed(image, label, self._chain)
                    for image, label in zip(images, labels)
                ]
        else:
            pairs = [self._transform_alone(*each) for each in zip(images, labels, seed)]
        made = torch.stack([image for image, _ in pairs]).sub_(0.5).div_(0.5)
        self._check_finite(made, self._title)
        made = made.contiguous(memory_format=torch.channels_last).to(x.device)
        return made, torch.stack([label for _, label in pairs]).to(
            y.device
        ) if self._masks else y

    def _transform_alone(
        self,
        image: Tensor,
        label: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        """One image and its label, with draws that no other image shares."""
        with _drawing(seed):
            return self._transformed(image, label, self._chain)

    def check(
        self,
        x: np.ndarray,
        y: Tensor,
        where: str,
    ) -> None:
        """Checks that the chain fits a participant's training samples ``(n, *input_shape)``, and tries it on the first.

        ``y (1, ...)`` is the first one's label, as the run's task has targets.

        Args:
            x: training samples ``(n, *input_shape)``.
            y: the first label ``(1, ...)``.
            where: begins the message of an error.
        """
        shape = tuple(x.shape[1:])
        other = f"takes images (channels, height, width), and samples have shape {shape}; leave augment out"
        require(len(shape) == 3, f"{where}: {self._title} {other}")
        for text in self._texts:
            self._check_sizes(text, shape)
            self._check_range(text, x, where)
        surely = [_built(text, self._masks, surely=True) for text in self._texts]
        image = torch.from_numpy(np.ascontiguousarray(x[0], np.float32))
        with _drawing(0):
            for _ in range(TRIES):
                made, _ = self._transformed(image, y[0], surely)
                self._check_finite(made, f"{where}: {self._title}")

    @property
    def _title(self) -> str:
        return f"training: augment = {list(self._texts)}"

    @staticmethod
    def _check_finite(
        images: Tensor,
        where: str,
    ) -> None:
        require(
            bool(images.isfinite().all()),
            f"{where}: a result is not finite; leave out what makes it so",
        )

    def _check_sizes(
        self,
        text: str,
        shape: tuple[int, ...],
    ) -> None:
        """Refuses what would take much memory, before it does."""
        name, settings = parse_transform(text)
        side = max(shape[1:])
        most = {
            "size": LARGEST_FACTOR * side,
            "padding": side,
            "kernel_size": LARGEST_FACTOR * side,
        }
        if name == "ElasticTransform":
            most["sigma"] = (
                LARGEST_FACTOR * side // 8
            )  # its kernel is eight sigmas long
        for key in (key for key in settings if key in most):
            value = settings[key]
            limit = most[key]
            largest = max(value) if isinstance(value, (list, tuple)) else value
            large = f"{key} = {value!r} is too large for images of shape {shape}"
            require(
                largest <= limit,
                f"{name_transform(text)}: {large}; it may be up to {limit}",
            )

    def _check_range(
        self,
        text: str,
        x: np.ndarray,
        where: str,
    ) -> None:
        name = parse_transform(text)[0]
        low = float(x.min()) / 2 + 0.5
        high = float(x.max()) / 2 + 0.5
        is_valid = (name not in COLOUR and name not in POLICIES) or (
            low >= -ROUNDING and high <= 1 + ROUNDING
        )
        reason = f"{name_transform(text)} takes images in [0, 1], and these are in [{low:.3g}, {high:.3g}]"
        require(is_valid, f"{where}: {reason}; scale them, or leave {name} out")

    def _transformed(
        self,
        image: Tensor,
        label: Tensor,
        chain: Sequence[v2.Transform],
    ) -> tuple[Tensor, Tensor]:
        """One image in [-1, 1] ``(channels, height, width)``, in [0, 1] once it is transformed, and its label."""
        moved = tv_tensors.Image(image * 0.5 + 0.5)
        mask = tv_tensors.Mask(label) if self._masks else None
        longest = LARGEST_FACTOR * max(image.shape[1:])
        resized = self._texts[0]
        for text, transform in zip(self._texts, chain):
            before = moved.shape
            try:
                moved, mask = (
                    (transform(moved), None) if mask is None else transform(moved, mask)
                )
            except Exception as error:  # torchvision raises many kinds of errors for images that it does not take
                reason = f"{name_transform(text)} fails on images of shape {tuple(before)} ({one_line(error)})"
                raise ConfigError(
                    f"{reason}; correct its settings, or leave it out"
                ) from error
            resized = text if moved.shape != before else resized
            largest = max(moved.shape[1:])
            require(
                largest <= longest,
                f"{name_transform(text)} makes images of {largest} pixels a side; lower its settings",
            )
        same = moved.shape == image.shape and moved.dtype == image.dtype
        require(
            same
            and (
                mask is None
                or (mask.shape == label.shape and mask.dtype == label.dtype)
            ),
            f"{name_transform(resized)} makes images of shape {tuple(moved.shape)} {moved.dtype} of "
            f"{tuple(image.shape)} {image.dtype}; crop, pad or resize them to size=[{image.shape[1]},{image.shape[2]}]",
        )
        return moved.as_subclass(Tensor), label if mask is None else mask.as_subclass(
            Tensor
        )


def _built(
    text: str,
    masks: bool,
    surely: bool = False,
) -> v2.Transform:
    """One transform; ``surely``: applied each time where that is left to chance."""
    name, settings = parse_transform(text)
    cls = getattr(v2, name, None)
    if cls is None:
        reason = f"torchvision {torchvision.__version__} has no {name}"
        raise ConfigError(
            f"{name_transform(text)}: {reason}; install a newer one, or leave it out"
        )
    alone = f"{name} cannot transform masks with their images; leave it out"
    require(not masks or name not in WITHOUT_MASKS, f"{name_transform(text)}: {alone}")
    if "interpolation" in settings:
        settings["interpolation"] = v2.InterpolationMode(settings["interpolation"])
    if "policy" in settings:
        settings["policy"] = v2.AutoAugmentPolicy(settings["policy"])
    if "fill" in settings:
        settings["fill"] = {tv_tensors.Image: settings["fill"], tv_tensors.Mask: 0}
    if surely and "p" in ALLOWED[name]:
        settings["p"] = 1.0
    try:
        return cls(**settings)
    except Exception as error:  # of whatever kind
        raise ConfigError(
            f"{name_transform(text)}: torchvision refuses it ({one_line(error)}); correct its settings"
        ) from error


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Inside it, draws come from this seed; after it, torch's generators are as they were, a GPU's as well."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        yield
