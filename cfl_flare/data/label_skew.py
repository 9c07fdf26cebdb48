# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Rules by which every participant has its own mix of labels: client-wise non-IID."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.data.deal import Partition, Pool, filled, positive

# A class of probability 0 could not be had when all others are gone; this keeps it possible, last of all.
LAST_RESORT = 1e-12


@dataclass(frozen=True)
class IID(Partition):
    """Every participant gets the same share of every class."""

    name: ClassVar[str] = "iid"
    random: ClassVar[bool] = False

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray:
        """1/m each."""
        return np.full((participants, pool.classes), 1 / participants)


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
        positive(self.alpha, "partition dirichlet: alpha")

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray:
        """One draw a class."""
        return rng.dirichlet(np.full(participants, self.alpha), size=pool.classes).T


@dataclass(frozen=True)
class NClass(Partition):
    """Every participant has n classes, all classes are used alike, and a class is split evenly among its takers.

    Thesis A.2, client-wise n-class, n = 2 there; FedAC 5.1, n = 3.

    Attributes:
        n: classes of each participant.
    """

    name: ClassVar[str] = "n_class"

    n: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n >= 1, f"partition n_class: n = {self.n} should be >= 1")

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray:
        """1 / takers of the class, for each taker."""
        used = np.flatnonzero(pool.train)
        require(self.n <= len(used), f"partition n_class: n = {self.n} is more than the data's {len(used)} classes")
        takers = np.zeros((participants, pool.classes))
        for own, classes in zip(takers, balanced_choices(used, self.n, participants, rng)):
            own[classes] = 1
        return takers / np.maximum(1, takers.sum(axis=0))


@dataclass(frozen=True)
class LDA(Partition):
    """Everyone gets equally many samples, with labels drawn from an own Dirichlet(alpha) (FedCUAU 3.2).

    Latent Dirichlet allocation. A class that runs out is left out of the later draws, so that with a small alpha some
    participants stray from their distribution. What does not divide evenly stays unused.

    Attributes:
        alpha: concentration of the label distributions; small is uneven.
    """

    name: ClassVar[str] = "lda"
    equal_tests: ClassVar[bool] = True

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.alpha, "partition lda: alpha")

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray | None:
        """The drawn counts over the classes' totals."""
        return equal_draws(np.full(participants, self.alpha), pool, rng)


@dataclass(frozen=True)
class HeterogeneityTiers(Partition):
    """Consecutive blocks of participants, of equal sizes, from nearly IID to very uneven (FedCUAU Table 2).

    Each is dealt to as by `LDA`, with its tier's alpha. The tier is the truth.

    Attributes:
        alphas: concentration of each tier's label distributions.
    """

    name: ClassVar[str] = "heterogeneity_tiers"
    equal_tests: ClassVar[bool] = True

    alphas: Sequence[float] = (1000, 1, 0.5, 0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        where = "partition heterogeneity_tiers: alphas"
        listed = isinstance(self.alphas, Sequence) and not isinstance(self.alphas, str) and len(self.alphas) > 0
        require(listed, f"{where} = {self.alphas!r} should be a list of numbers such as [1000, 1, 0.5, 0.1]")
        for i, alpha in enumerate(self.alphas):
            positive(alpha, f"{where}[{i}]")

    def check(self, participants: int) -> None:
        """A tier without a participant is refused."""
        super().check(participants)
        require(
            len(self.alphas) <= participants,
            f"partition {self.name}: {len(self.alphas)} tiers need at least as many participants, not {participants}",
        )

    def truth(self, participants: int) -> list[int | None]:
        """The block in which each participant lies."""
        return blocks(participants, len(self.alphas))

    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray | None:
        """The drawn counts over the classes' totals."""
        return equal_draws(np.array([self.alphas[tier or 0] for tier in self.truth(participants)]), pool, rng)


def blocks(participants: int, groups: int) -> list[int | None]:
    """Consecutive groups of nearly equal size."""
    return [i * groups // participants for i in range(participants)]


def equal_draws(alphas: np.ndarray, pool: Pool, rng: np.random.Generator) -> np.ndarray | None:
    """Shares by which everyone has equally many training samples, with labels ~ Dirichlet(own alpha).

    Args:
        alphas: ``(participants,)`` concentrations.
        pool: what there is.
        rng: draws.
    """
    odds = np.array([rng.dirichlet(np.full(pool.classes, alpha)) for alpha in alphas])
    size = pool.train.sum() // len(alphas)
    return shares_of(filled(np.maximum(odds, LAST_RESORT), np.full(len(alphas), size), pool.train, rng), pool)


def shares_of(counts: np.ndarray | None, pool: Pool) -> np.ndarray | None:
    """Training counts as shares of their classes; None stays None."""
    return None if counts is None else counts / np.maximum(1, pool.train)


def balanced_choices(items: np.ndarray, n: int, times: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Chooses n different items so many times, at random, so that no item is used more than once above any other.

    Each choice takes the items that were used least so far, and chance decides among equals. Choices differ from each
    other as long as a few tries find a new one.
    """
    uses = np.zeros(len(items), int)
    chosen: list[np.ndarray] = []
    seen: set[tuple[int, ...]] = set()
    for _ in range(times):
        for _attempt in range(20 if len(seen) < math.comb(len(items), n) else 1):
            picked = np.sort(np.lexsort((rng.random(len(items)), uses))[:n])
            if tuple(picked) not in seen:
                break
        seen.add(tuple(picked))
        uses[picked] += 1
        chosen.append(items[picked])
    return chosen
