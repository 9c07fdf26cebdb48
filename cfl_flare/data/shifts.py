# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Rules by which groups have the same labels, but other images (feature shift) or label names (concept shift)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import DataError
from cfl_flare.core.seeds import stream
from cfl_flare.core.settings import setting
from cfl_flare.data.deal import Pool
from cfl_flare.data.groups import Grouped
from cfl_flare.data.label_skew import IID
from cfl_flare.data.labels import FORMS, form_of
from cfl_flare.data.samples import Samples


@dataclass(frozen=True)
class Shift(Grouped):
    """A rule whose groups differ in their samples only: every participant gets the same share of every class."""

    random: ClassVar[bool] = False

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray:
        """1/m each."""
        return IID().shares(participants, pool, rng)


@dataclass(frozen=True)
class LabelPermutation(Shift):
    """Groups that share the images but name them differently: each group permutes the labels (concept shift).

    It models hospitals that code the same findings by different schemes: one global model cannot serve two of them. The
    group is the true group; the first one keeps the labels as they are, and no two groups have the same permutation.
    """

    name: ClassVar[str] = "label_permutation"

    def strata(self, train: Samples, test: Samples) -> tuple[np.ndarray, np.ndarray]:
        """The classes.

        Raises:
            DataError: the labels are no class numbers.
        """
        form = form_of(train.y, "partition label_permutation")
        if form != "class":
            raise DataError(
                f"partition label_permutation: labels are {FORMS[form]}, and it exchanges class numbers; take scanner "
                "or another rule"
            )
        return super().strata(train, test)

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray:
        """1/m each."""
        most = math.factorial(min(pool.classes, 20))
        require(
            self.groups <= most,
            f"partition label_permutation: groups = {self.groups} is more than the {most} orders of {pool.classes} "
            "classes",
        )
        return super().shares(participants, pool, rng)

    def alter(self, samples: Samples, group: int | None, classes: int, seed: int) -> Samples:
        """The samples with the group's label names."""
        orders = [np.arange(classes)]
        for g in range(1, (group or 0) + 1):  # each differs from those of all groups before it
            rng = stream(seed, "label permutation", g)
            order = rng.permutation(classes)
            while any(np.array_equal(order, other) for other in orders):
                order = rng.permutation(classes)
            orders.append(order)
        return Samples(samples.x, orders[-1][samples.y], samples.key)


@dataclass(frozen=True)
class Scanner(Shift):
    """Groups of sites with different devices, which image the same classes differently (feature shift).

    Labels are IID. Each group rotates, regrades, inverts and blurs its images by its own amounts; the first group's
    images stay as they are. Masks are rotated with their images. The group is the true group.
    """

    name: ClassVar[str] = "scanner"

    rotation: bool = setting(True, help="rotate by a quarter turn more for each group, and by 4 to 10 degrees")
    contrast: bool = setting(True, help="apply a gamma of 0.5 to 0.7 or 1.4 to 2, and a contrast of 0.6 to 0.9")
    inversion: bool = setting(
        True, help="exchange black and white in every second group; alone it makes at most two groups"
    )
    blur: bool = setting(True, help="smooth by a Gaussian of 0.5 to 1 pixel")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.rotation or self.contrast or self.inversion or self.blur,
            "partition scanner: rotation, contrast, inversion and blur are all off; leave one on",
        )
        require(
            self.rotation or self.contrast or self.blur or self.groups <= 2,
            f"partition scanner: groups = {self.groups} cannot differ by inversion alone; turn another shift on",
        )

    def alter(self, samples: Samples, group: int | None, classes: int, seed: int) -> Samples:
        """The images as the group's device takes them, of the same dtype.

        Raises:
            DataError: the samples are not images, floats outside [0, 1], or not square although they are rotated.
        """
        x = samples.x
        if x.ndim != 4:
            raise DataError(f"partition scanner: samples have shape {x.shape[1:]}; it needs images (channels, h, w)")
        if self.rotation and x.shape[2] != x.shape[3]:
            raise DataError(f"partition scanner: images are {x.shape[2]}x{x.shape[3]}; to turn them, square them first")
        if x.dtype != np.uint8 and (x.min() < 0 or x.max() > 1):
            raise DataError(f"partition scanner: images go from {x.min():.3g} to {x.max():.3g}; it needs [0, 1]")
        if not group:
            return samples
        bright = x.astype(np.float32) / 255 if x.dtype == np.uint8 else x.astype(np.float32)
        rng = stream(seed, "scanner", group)
        # All amounts are drawn first, so that no switch changes another's; none is close to zero.
        angle, gamma = rng.choice((-1, 1), 2) * rng.uniform((4, 0.5), (10, 1))
        contrast, sigma = rng.uniform(0.6, 0.9), rng.uniform(0.5, 1)
        y = samples.y
        if self.rotation:
            bright = _rotated(bright, group, angle, order=1)
            y = _rotated(y, group, angle, order=0) if form_of(y, "partition scanner") == "mask" else y
        taken = self._regraded(bright, group, gamma, contrast, sigma)
        return Samples(np.round(taken * 255).astype(np.uint8) if x.dtype == np.uint8 else taken, y, samples.key)

    def _regraded(self, x: np.ndarray, group: int, gamma: float, contrast: float, sigma: float) -> np.ndarray:
        """Images in [0, 1], ``(n, channels, h, w)``, float32."""
        from scipy import ndimage

        if self.blur:
            x = ndimage.gaussian_filter(x, (0, 0, sigma, sigma))
        if self.contrast:
            x = 0.5 + contrast * (np.clip(x, 0, 1) ** 2**gamma - 0.5)
        if self.inversion and (group + group // 4) % 2:  # so that eight groups differ in rotation or inversion
            x = 1 - x
        return np.clip(x, 0, 1).astype(np.float32)


def _rotated(x: np.ndarray, group: int, angle: float, order: int) -> np.ndarray:
    """Square images or masks ``(..., h, w)``, turned by a quarter for each group and by an angle in degrees.

    Args:
        x: the images or masks.
        group: of the participant.
        angle: in degrees.
        order: of the splines between pixels; 0 takes the nearest one, as masks need.
    """
    from scipy import ndimage

    x = np.rot90(x, group % 4, axes=(-2, -1))
    return ndimage.rotate(x, angle, axes=(-1, -2), reshape=False, order=order, mode="nearest")
