# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Rules with known true groups, whose participants share a mix of labels, a device, or names of the labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.core.seeds import stream
from cfl_flare.core.settings import each, setting
from cfl_flare.data.deal import Partition, Pool
from cfl_flare.data.label_skew import (
    IID,
    balanced_choices,
    blocks,
    split_evenly,
    used_classes,
)
from cfl_flare.data.labels import FORMS, form_of
from cfl_flare.data.samples import Samples, scaled


@dataclass(frozen=True)
class Grouped(Partition):
    """A rule with true groups: consecutive blocks of participants, of equal size."""

    groups: int = setting(3, help="number of groups, of equal size", ge=1)

    def check(self, participants: int) -> None:
        super().check(participants)
        self.check_each_has_one(self.groups, f"groups = {self.groups}", participants)

    def truth(self, participants: int) -> list[int | None]:
        return blocks(participants, self.groups)


@dataclass(frozen=True)
class Skewed(Grouped):
    """A rule with true groups that may have given sizes (thesis Fig. 7.6: 10, 10, 10, 10, 20, 30, 30, 70)."""

    group_sizes: Sequence[int] | None = setting(
        None,
        help="participants of each group, in place of equal groups; groups is then ignored",
        bounds=each(
            "whole numbers >= 1 such as [10, 20, 70]",
            lambda n: type(n) is int and n >= 1,
        ),
    )

    def check(self, participants: int) -> None:
        if self.group_sizes is None:
            super().check(participants)
            return
        total = sum(self.group_sizes)
        differ = f"add up to {total}, not to participants = {participants}"
        self.require(
            total == participants, f"group_sizes = {list(self.group_sizes)} {differ}"
        )

    def truth(self, participants: int) -> list[int | None]:
        if self.group_sizes is None:
            return super().truth(participants)
        return [g for g, size in enumerate(self.group_sizes) for _ in range(size)]


@dataclass(frozen=True)
class ClusterDirichlet(Skewed):
    """Classes over groups by Dirichlet(a_between), then over a group's participants by Dirichlet(a_within).

    Thesis A.2, cluster-wise non-IID, (0.1, 10); redrawn until every group has at least 30 % of the mean size. The group
    is the true group. With ``group_sizes``, a group's concentration, and so its mean size, is proportional to its
    participants.
    """

    name: ClassVar[str] = "cluster_dirichlet"

    groups: int = 10
    a_between: float = setting(
        0.1, help="concentration over the groups; small is uneven", gt=0
    )
    a_within: float = setting(10.0, help="concentration inside a group", gt=0)

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray | None:
        sizes = self.group_sizes
        # Each group's part of the participants times the number of groups; all ones for equal groups.
        weights = (
            np.ones(self.groups)
            if sizes is None
            else np.array(sizes) * len(sizes) / participants
        )
        between = rng.dirichlet(self.a_between * weights, size=pool.classes)
        if (
            pool.train @ between < 0.3 * weights * pool.train.sum() / len(weights)
        ).any():
            return None
        truth = np.array(self.truth(participants))
        shares = np.zeros((participants, pool.classes))
        for g in range(len(weights)):
            members = np.flatnonzero(truth == g)
            within = rng.dirichlet(
                np.full(len(members), self.a_within), size=pool.classes
            ).T
            shares[members] = within * between[:, g]
        return shares


@dataclass(frozen=True)
class ClusterNClass(Skewed):
    """n_group classes for each group, and n_client of them for each of its participants (thesis A.2, (3, 2)).

    Classes are used equally, over the groups and over the participants of a group. A class is split evenly among the
    participants that have it. Where groups times n_group is less than the classes, some classes stay unused. The group
    is the true group.
    """

    name: ClassVar[str] = "cluster_n_class"

    groups: int = 10
    n_group: int = setting(3, help="classes of each group")
    n_client: int = setting(2, help="classes of each participant, among its group's")

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = f"between 1 and n_group = {self.n_group}"
        self.require(
            1 <= self.n_client <= self.n_group,
            f"n_client = {self.n_client} should be {wanted}",
        )

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray:
        used = used_classes(pool, self.n_group, "partition cluster_n_class: n_group")
        truth, choices = [g or 0 for g in self.truth(participants)], []
        for g, classes in enumerate(
            balanced_choices(used, self.n_group, max(truth) + 1, rng)
        ):
            choices += balanced_choices(classes, self.n_client, truth.count(g), rng)
        return split_evenly(choices, pool)


@dataclass(frozen=True)
class ClassGroups(Grouped):
    """Groups of classes are spread by one Dirichlet(alpha) each, and participants' samples split 80/20 (FedDSMIC 5).

    They are spread over **all** participants, so that alpha = 10 is already near IID. A participant's true group is the
    one from which it has most training samples. With ``disjoint`` (our addition) they are spread over the group's own
    block of participants. Classes are divided in their order. The source's training and test samples are dealt
    together, and a random fifth of each participant's are its test samples. As the label rule of `Quantity` it leaves
    the source's split as it is.

    With a small alpha, many participants would get almost nothing. Such a participant gets what it needs from its
    largest group: enough for ``min_samples`` training samples and a test sample after all rounding, 16 to 20 samples by
    default. A higher ``min_samples`` leaves all more test samples, too: 24 leave 6.
    """

    name: ClassVar[str] = "class_groups"
    pooled: ClassVar[bool] = True

    alpha: float = setting(0.1, help="concentration; small is uneven", gt=0)
    disjoint: bool = setting(
        False, help="give a group's classes to its own participants alone"
    )

    def check(self, participants: int) -> None:
        if self.disjoint:
            super().check(participants)
        else:  # groups may then be more than participants
            Partition.check(self, participants)

    def truth(self, participants: int) -> list[int | None]:
        return super().truth(participants) if self.disjoint else [None] * participants

    def truth_of(
        self, counts: np.ndarray, train: Samples, parts: Sequence[np.ndarray]
    ) -> list[int | None]:
        if self.disjoint:
            return self.truth(len(counts))
        division = self.division(counts.shape[1])
        sums = np.stack(
            [counts[:, division == g].sum(axis=1) for g in range(self.groups)], axis=1
        )
        return [int(g) for g in sums.argmax(axis=1)]

    def division(self, classes: int) -> np.ndarray:
        """The group of each class, ``(classes,)``."""
        return np.arange(classes) * self.groups // classes

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray:
        excess = (
            f"groups = {self.groups} is more than the data's {pool.classes} classes"
        )
        self.require(self.groups <= pool.classes, excess)
        division = self.division(pool.classes)
        drawn = np.zeros((participants, self.groups))
        for g in range(self.groups):
            members = (
                np.array(self.truth(participants)) == g
                if self.disjoint
                else np.ones(participants, bool)
            )
            drawn[members, g] = rng.dirichlet(np.full(int(members.sum()), self.alpha))
        return self._without_empty(drawn, division, pool)[:, division]

    def _without_empty(
        self, drawn: np.ndarray, division: np.ndarray, pool: Pool
    ) -> np.ndarray:
        """The drawn shares ``(participants, groups)``, raised to the minimum for participants that would get less.

        They get it from their largest group. The slack covers the loss by rounding in each class.
        """
        train, test = (
            np.bincount(division, total, self.groups)
            for total in (pool.train, pool.test)
        )
        slack = 1.5 * np.sqrt(np.bincount(division, minlength=self.groups))
        home = (drawn * train).argmax(axis=1)
        poor = (drawn @ train < pool.min_samples + slack[home]) | (
            drawn @ test < 1 + slack[home]
        )
        least = np.maximum(
            (pool.min_samples + slack) / np.maximum(1, train),
            (1 + slack) / np.maximum(1, test),
        )
        lifted = drawn.copy()
        lifted[poor, home[poor]] = np.maximum(
            drawn[poor, home[poor]], least[home[poor]]
        )
        return lifted / lifted.sum(axis=0)


@dataclass(frozen=True)
class Shift(Grouped, IID):
    """A rule whose groups differ in their samples only: every participant gets the same share of every class."""


@dataclass(frozen=True)
class LabelPermutation(Shift):
    """Groups that share the images but name them differently: each group permutes the labels (concept shift).

    It models hospitals that code the same findings by different schemes: one global model cannot serve two of them. The
    group is the true group. The first group keeps the labels as they are, and no two have the same permutation.
    """

    name: ClassVar[str] = "label_permutation"

    def strata(self, train: Samples, test: Samples) -> tuple[np.ndarray, np.ndarray]:
        form = form_of(train.y, "partition label_permutation")
        other = f"labels are {FORMS[form]}, and it exchanges class numbers; take scanner or another rule"
        self.require(form == "class", other, DataError)
        return super().strata(train, test)

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray:
        most = math.factorial(min(pool.classes, 20))
        excess = f"groups = {self.groups} is more than the {most} orders of {pool.classes} classes"
        self.require(self.groups <= most, excess)
        return super().shares(participants, pool, rng)

    def alter(
        self, samples: Samples, group: int | None, classes: int, seed: int
    ) -> Samples:
        orders = [np.arange(classes)]
        for g in range(
            1, (group or 0) + 1
        ):  # each differs from those of all groups before it
            rng = stream(seed, "label permutation", g)
            order = rng.permutation(classes)
            while any(np.array_equal(order, other) for other in orders):
                order = rng.permutation(classes)
            orders.append(order)
        return replace(samples, y=orders[-1][samples.y], group=None)


@dataclass(frozen=True)
class Scanner(Shift):
    """Groups of sites with different devices, which image the same classes differently (feature shift).

    Labels are IID. Each group rotates, regrades, inverts and blurs its images by its own amounts; the first group's
    images stay as they are. Masks are rotated with their images. The group is the true group. Rotated sets of the
    literature have ``angles`` and nothing else: ``scanner:groups=4,angles=[90,180,270],contrast=False,...``.
    """

    name: ClassVar[str] = "scanner"

    rotation: bool = setting(
        True,
        help="rotate by a quarter turn more for each group, and by 4 to 10 degrees",
    )
    contrast: bool = setting(
        True,
        help="apply a gamma of 0.5 to 0.7 or 1.4 to 2, and a contrast of 0.6 to 0.9",
    )
    inversion: bool = setting(
        True,
        help="exchange black and white in every second group; alone it makes at most two groups",
    )
    blur: bool = setting(True, help="smooth by a Gaussian of 0.5 to 1 pixel")
    angles: Sequence[float] | None = setting(
        None,
        help="degrees by which each group after the first turns its images, in place of drawn ones",
        bounds=each(
            "degrees such as [90, 180, 270]",
            lambda a: type(a) in (int, float) and -360 <= a <= 360,
            fewest=0,
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.angles is not None:
            one_each = f"angles = {list(self.angles)} should be {self.groups - 1} for groups = {self.groups}"
            self.require(
                len(self.angles) == self.groups - 1,
                f"{one_each}: the first group's images are not turned",
            )
            self.require(
                self.rotation,
                "angles belong to rotation = True; leave one of the two out",
            )
        many = self.rotation or self.contrast or self.blur
        self.require(
            many or self.inversion,
            "rotation, contrast, inversion and blur are all off; leave one on",
        )
        alone = f"groups = {self.groups} cannot differ by inversion alone; turn another shift on"
        self.require(many or self.groups <= 2, alone)

    def alter(
        self, samples: Samples, group: int | None, classes: int, seed: int
    ) -> Samples:
        x = samples.x
        self.require(
            x.ndim == 4,
            f"samples have shape {x.shape[1:]}; it needs images (channels, h, w)",
            DataError,
        )
        height, width = x.shape[2:]
        square = f"images are {height}x{width}; to turn them, square them first"
        self.require(not self.rotation or height == width, square, DataError)
        if x.dtype != np.uint8 and (x.min() < 0 or x.max() > 1):
            raise DataError(
                f"partition scanner: images go from {x.min():.3g} to {x.max():.3g}; it needs [0, 1]"
            )
        if not group:
            return samples
        bright = scaled(x)
        rng = stream(seed, "scanner", group)
        # All amounts are drawn first, so that no switch changes another's; none is close to zero.
        angle, gamma = rng.choice((-1, 1), 2) * rng.uniform((4, 0.5), (10, 1))
        contrast, sigma = rng.uniform(0.6, 0.9), rng.uniform(0.5, 1)
        y, quarters = samples.y, group
        if self.angles is not None:
            quarters, angle = (
                int(self.angles[group - 1] // 90),
                self.angles[group - 1] % 90,
            )
        if self.rotation:
            bright = _rotated(bright, quarters, angle, order=1)
            y = (
                _rotated(y, quarters, angle, order=0)
                if form_of(y, "partition scanner") == "mask"
                else y
            )
        taken = self._regraded(bright, group, gamma, contrast, sigma)
        x = np.round(taken * 255).astype(np.uint8) if x.dtype == np.uint8 else taken
        return replace(samples, x=x, y=y, group=None)

    def _regraded(
        self, x: np.ndarray, group: int, gamma: float, contrast: float, sigma: float
    ) -> np.ndarray:
        """Images in [0, 1], ``(n, channels, h, w)``, float32."""
        from scipy import ndimage

        if self.blur:
            x = ndimage.gaussian_filter(x, (0, 0, sigma, sigma))
        if self.contrast:
            x = 0.5 + contrast * (np.clip(x, 0, 1) ** 2**gamma - 0.5)
        if (
            self.inversion and (group + group // 4) % 2
        ):  # so that eight groups differ in rotation or inversion
            x = 1 - x
        return np.clip(x, 0, 1).astype(np.float32)


def _rotated(x: np.ndarray, quarters: int, angle: float, order: int) -> np.ndarray:
    """Square images or masks ``(..., h, w)``, turned by a number of quarters and by an angle in degrees.

    ``order`` is that of the splines between pixels; 0 takes the nearest one, as masks need.
    """
    from scipy import ndimage

    x = np.rot90(x, quarters % 4, axes=(-2, -1))
    return (
        x
        if angle == 0
        else ndimage.rotate(
            x, angle, axes=(-1, -2), reshape=False, order=order, mode="nearest"
        )
    )
