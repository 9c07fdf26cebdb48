# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a pooled data set is dealt out to participants: METHODS by name, each a rule for class shares.

A partition yields shares: ``(participants, classes)``, how much of each class each participant gets. Training and test
samples are dealt by the same shares, so that a participant is tested on what it is trained on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cfl_flare.config import check_types, require
from cfl_flare.data.sources import Samples
from cfl_flare.errors import DataError
from cfl_flare.seeds import stream

REDRAWS = 1000


@dataclass(frozen=True)
class Partition(ABC):
    """A rule by which classes are shared out. Its fields are its settings."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_types(self, f"partition {self.name}")

    def check(self, participants: int) -> None:
        """Whether the rule can be drawn for so many participants.

        Raises:
            ConfigError: it cannot.
        """
        require(participants >= 1, f"partition {self.name}: participants = {participants} should be >= 1")

    @abstractmethod
    def shares(self, participants: int, classes: int, rng: np.random.Generator) -> np.ndarray | None:
        """``(participants, classes)``, columns that sum to one; None if this draw will not do and must be redrawn."""

    def truth(self, participants: int) -> list[int | None]:
        """The true group of each participant; None where the rule has no groups."""
        return [None] * participants

    def alter(self, samples: Samples, group: int | None, classes: int, seed: int) -> Samples:
        """What becomes of a participant's samples; for rules that shift features or labels."""
        return samples


@dataclass(frozen=True)
class Grouped(Partition):
    """A rule with true groups: consecutive blocks of participants, of equal size.

    Attributes:
        groups: how many.
    """

    groups: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.groups >= 1, f"partition {self.name}: groups = {self.groups} should be >= 1")

    def check(self, participants: int) -> None:
        """A group without a participant is refused."""
        super().check(participants)
        require(
            self.groups <= participants,
            f"partition {self.name}: groups = {self.groups} need at least as many participants, not {participants}",
        )

    def truth(self, participants: int) -> list[int | None]:
        """The block in which each participant lies."""
        return [i * self.groups // participants for i in range(participants)]


@dataclass(frozen=True)
class IID(Partition):
    """Every participant gets the same share of every class."""

    name: ClassVar[str] = "iid"

    def shares(self, participants: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        """1/m each."""
        return np.full((participants, classes), 1 / participants)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is spread over the participants by Dirichlet(alpha) (thesis A.2, client-wise non-IID).

    Attributes:
        alpha: concentration; 0.1 in the thesis. Small is uneven.
    """

    name: ClassVar[str] = "dirichlet"

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha > 0, f"partition dirichlet: alpha = {self.alpha} should be > 0")

    def shares(self, participants: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        """One draw a class."""
        return rng.dirichlet(np.full(participants, self.alpha), size=classes).T


@dataclass(frozen=True)
class ClusterDirichlet(Grouped):
    """Classes over groups by Dirichlet(a_between), then over a group's participants by Dirichlet(a_within).

    Thesis A.2, cluster-wise non-IID, (0.1, 10); redrawn until every group has at least 30 % of the mean size. The group
    is the truth.

    Attributes:
        a_between: concentration over the groups.
        a_within: concentration inside a group.
        groups: number of groups, 10 in the thesis whatever K is.
    """

    name: ClassVar[str] = "cluster_dirichlet"

    a_between: float = 0.1
    a_within: float = 10.0
    groups: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("a_between", "a_within"):
            value = getattr(self, key)
            require(value > 0, f"partition cluster_dirichlet: {key} = {value} should be > 0")

    def shares(self, participants: int, classes: int, rng: np.random.Generator) -> np.ndarray | None:
        """None while a group is too small."""
        between = rng.dirichlet(np.full(self.groups, self.a_between), size=classes)
        if between.sum(axis=0).min() < 0.3 * classes / self.groups:
            return None
        truth = np.array(self.truth(participants))
        shares = np.zeros((participants, classes))
        for g in range(self.groups):
            members = np.flatnonzero(truth == g)
            within = rng.dirichlet(np.full(len(members), self.a_within), size=classes).T
            shares[members] = within * between[:, g]
        return shares


@dataclass(frozen=True)
class LabelPermutation(Grouped):
    """Groups that share the images but name them differently: each group permutes the labels (concept shift).

    It stands for hospitals that code the same findings by different schemes: one global model cannot serve two of them.
    The group is the truth; the first keeps the labels as they are.

    Attributes:
        groups: how many.
    """

    name: ClassVar[str] = "label_permutation"

    def shares(self, participants: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        """The same share of every class."""
        return np.full((participants, classes), 1 / participants)

    def alter(self, samples: Samples, group: int | None, classes: int, seed: int) -> Samples:
        """Renames the classes as the group does."""
        order = stream(seed, "label permutation", group or 0).permutation(classes) if group else np.arange(classes)
        return Samples(samples.x, order[samples.y])


PARTITIONS: dict[str, type[Partition]] = {cls.name: cls for cls in (IID, Dirichlet, ClusterDirichlet, LabelPermutation)}


def deal(y: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Indices of each participant's samples: every sample goes to exactly one participant.

    Args:
        y: ``(n,)`` labels.
        shares: ``(participants, classes)``, columns that sum to one.
        rng: shuffles each class first.
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(len(shares))]
    for c in range(shares.shape[1]):
        indices = rng.permutation(np.flatnonzero(y == c))
        bounds = np.round(np.cumsum(shares[:, c]) * len(indices)).astype(int)
        bounds[-1] = len(indices)
        for part, piece in zip(parts, np.split(indices, bounds[:-1])):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def partition(
    train: Samples, test: Samples, rule: Partition, participants: int, seed: int, min_samples: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Deals training and test samples by the same shares, redrawn until nobody has too few.

    Returns:
        Indices into the training and into the test samples, for each participant.

    Raises:
        ConfigError: the rule cannot be drawn for so many participants.
        DataError: no draw gave everyone enough samples.
    """
    rule.check(participants)
    classes = int(max(train.y.max(), test.y.max())) + 1
    fewest = 0
    for attempt in range(REDRAWS):
        rng = stream(seed, "partition", attempt)
        shares = rule.shares(participants, classes, rng)
        if shares is None:
            continue
        mine, tests = deal(train.y, shares, rng), deal(test.y, shares, rng)
        if min(map(len, mine)) >= min_samples and min(map(len, tests)) >= 1:
            return mine, tests
        fewest = max(fewest, min(map(len, mine)))
    raise DataError(
        f"partition {rule.name}: no draw of {REDRAWS} gave each of {participants} participants {min_samples} training "
        f"samples and 1 test sample (best: {fewest}); take fewer participants, a milder rule or a lower min_samples"
    )
