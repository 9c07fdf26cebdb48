# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Rules by which the participants of a group share a mix of labels: cluster-wise non-IID, with known true groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.settings import setting
from cfl_flare.data.deal import Partition, Pool
from cfl_flare.data.label_skew import balanced_choices, blocks, split_evenly, used_classes

# A draw is rejected if a group has less than this share of its expected size.
SMALLEST_GROUP = 0.3


@dataclass(frozen=True)
class Grouped(Partition):
    """A rule with true groups: consecutive blocks of participants, of equal size."""

    groups: int = setting(3, help="number of groups, of equal size", ge=1)

    def check(self, participants: int) -> None:
        """Raises a ConfigError if a group would have no participant."""
        super().check(participants)
        require(
            self.groups <= participants,
            f"partition {self.name}: groups = {self.groups} need at least as many participants, not {participants}",
        )

    def truth(self, participants: int) -> list[int | None]:
        """The block of each participant."""
        return blocks(participants, self.groups)


@dataclass(frozen=True)
class Skewed(Grouped):
    """A rule with true groups that may have given sizes (thesis Fig. 7.6: 10, 10, 10, 10, 20, 30, 30, 70)."""

    group_sizes: Sequence[int] | None = setting(
        None, help="participants of each group, in place of equal groups; groups is then ignored"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self.group_sizes
        if sizes is None:
            return
        whole = isinstance(sizes, Sequence) and all(isinstance(n, int) and not isinstance(n, bool) for n in sizes)
        require(
            whole and len(sizes) > 0 and min(sizes) >= 1,
            f"partition {self.name}: group_sizes = {sizes!r} should be whole numbers >= 1 such as [10, 20, 70]",
        )

    def check(self, participants: int) -> None:
        """Raises a ConfigError if the sizes do not add up to the participants."""
        if self.group_sizes is None:
            super().check(participants)
            return
        require(
            sum(self.group_sizes) == participants,
            f"partition {self.name}: group_sizes = {list(self.group_sizes)} add up to {sum(self.group_sizes)}, not to "
            f"participants = {participants}",
        )

    def truth(self, participants: int) -> list[int | None]:
        """The block of each participant."""
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
    a_between: float = setting(0.1, help="concentration over the groups; small is uneven", gt=0)
    a_within: float = setting(10.0, help="concentration inside a group", gt=0)

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray | None:
        """None while a group is too small."""
        sizes = self.group_sizes
        # Each group's part of the participants times the number of groups; all ones for equal groups.
        weights = np.ones(self.groups) if sizes is None else np.array(sizes) * len(sizes) / participants
        between = rng.dirichlet(self.a_between * weights, size=pool.classes)
        if (pool.train @ between < SMALLEST_GROUP * weights * pool.train.sum() / len(weights)).any():
            return None
        truth = np.array(self.truth(participants))
        shares = np.zeros((participants, pool.classes))
        for g in range(len(weights)):
            members = np.flatnonzero(truth == g)
            within = rng.dirichlet(np.full(len(members), self.a_within), size=pool.classes).T
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
        require(
            1 <= self.n_client <= self.n_group,
            f"partition cluster_n_class: n_client = {self.n_client} should be between 1 and n_group = {self.n_group}",
        )

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray:
        """An equal part of each of a participant's classes."""
        used = used_classes(pool, self.n_group, "partition cluster_n_class: n_group")
        truth, choices = [g or 0 for g in self.truth(participants)], []
        for g, own in enumerate(balanced_choices(used, self.n_group, max(truth) + 1, rng)):
            choices += balanced_choices(own, self.n_client, truth.count(g), rng)
        return split_evenly(choices, pool)


@dataclass(frozen=True)
class ClassGroups(Grouped):
    """Groups of classes are spread by one Dirichlet(alpha) each, and participants' samples split 80/20 (FedDSMIC 5).

    They are spread over **all** participants, so that alpha = 10 is already near IID, and a participant's true group is
    the one of which it has most training samples. With ``disjoint`` (our addition) they are spread over the group's own
    block of participants. Classes are divided in their order. The source's training and test samples are dealt
    together, and a fifth of each participant's, drawn at random, are its test samples; as the label rule of `Quantity`
    it leaves the source's split as it is.

    A participant that would get almost nothing, as many do with a small alpha and many participants, gets what it needs
    from its largest group: enough for ``min_samples`` training samples and a test sample after all rounding, 16 to 20
    samples by default. With a higher ``min_samples`` all have more to be tested on, too: 24 leave 6.
    """

    name: ClassVar[str] = "class_groups"
    pooled: ClassVar[bool] = True

    alpha: float = setting(0.1, help="concentration; small is uneven", gt=0)
    disjoint: bool = setting(False, help="give a group's classes to its own participants alone")

    def check(self, participants: int) -> None:
        """Only disjoint groups need at least one participant each."""
        if self.disjoint:
            super().check(participants)
        else:
            Partition.check(self, participants)

    def truth(self, participants: int) -> list[int | None]:
        """The blocks if they are disjoint; otherwise not known before the draw."""
        return super().truth(participants) if self.disjoint else [None] * participants

    def truth_of(self, counts: np.ndarray) -> list[int | None]:
        """The group of which each participant has most samples."""
        if self.disjoint:
            return super().truth_of(counts)
        division = self.division(counts.shape[1])
        sums = np.stack([counts[:, division == g].sum(axis=1) for g in range(self.groups)], axis=1)
        return [int(g) for g in sums.argmax(axis=1)]

    def division(self, classes: int) -> np.ndarray:
        """The group of each class, ``(classes,)``."""
        return np.arange(classes) * self.groups // classes

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray:
        """One draw per group of classes."""
        require(
            self.groups <= pool.classes,
            f"partition class_groups: groups = {self.groups} is more than the data's {pool.classes} classes",
        )
        division = self.division(pool.classes)
        drawn = np.zeros((participants, self.groups))
        for g in range(self.groups):
            members = np.array(self.truth(participants)) == g if self.disjoint else np.ones(participants, bool)
            drawn[members, g] = rng.dirichlet(np.full(int(members.sum()), self.alpha))
        return self._without_empty(drawn, division, pool)[:, division]

    def _without_empty(self, drawn: np.ndarray, division: np.ndarray, pool: Pool) -> np.ndarray:
        """The drawn shares ``(participants, groups)``, raised to the minimum for participants that would get less.

        They get it from the group of which they have most. The slack covers the loss by rounding in each class.
        """
        train, test = (np.bincount(division, total, self.groups) for total in (pool.train, pool.test))
        slack = 1.5 * np.sqrt(np.bincount(division, minlength=self.groups))
        home = (drawn * train).argmax(axis=1)
        poor = (drawn @ train < pool.min_samples + slack[home]) | (drawn @ test < 1 + slack[home])
        least = np.maximum((pool.min_samples + slack) / np.maximum(1, train), (1 + slack) / np.maximum(1, test))
        lifted = drawn.copy()
        lifted[poor, home[poor]] = np.maximum(drawn[poor, home[poor]], least[home[poor]])
        return lifted / lifted.sum(axis=0)
