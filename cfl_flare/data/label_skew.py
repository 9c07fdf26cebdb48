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
from cfl_flare.core.settings import each, setting
from cfl_flare.data.deal import Partition, Pool, filled


@dataclass(frozen=True)
class IID(Partition):
    """Every participant gets the same share of every class."""

    name: ClassVar[str] = "iid"
    random: ClassVar[bool] = False

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray:
        return np.full((participants, pool.classes), 1 / participants)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is spread over the participants by Dirichlet(alpha) (thesis A.2, client-wise non-IID)."""

    name: ClassVar[str] = "dirichlet"

    alpha: float = setting(
        0.1, help="concentration, 0.1 in the thesis; small is uneven", gt=0
    )

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray:
        return rng.dirichlet(np.full(participants, self.alpha), size=pool.classes).T


@dataclass(frozen=True)
class NClass(Partition):
    """Every participant draws n classes, independently of the others; each is split evenly among those who drew it.

    Thesis A.2, client-wise n-class, n = 2 there; FedAC 5.1, n = 3. A class that nobody drew stays unused. Few
    participants share all their classes: 100 with 3 of 10 classes have about 68 different sets, and no true groups.

    With ``sets``, participants share their classes, as in the code of pFedMe (Dinh et al. 2020). Participant j has the
    classes s, s + 1, ..., s + n - 1 of set s = j mod sets. Class 0 follows the last one. The set is the true group.
    """

    name: ClassVar[str] = "n_class"

    n: int = setting(2, help="classes of each participant", ge=1)
    sets: int | None = setting(
        None,
        help="in place of draws: participant j has the n classes from j mod sets on; sets are true groups",
        ge=1,
    )

    def check(self, participants: int) -> None:
        super().check(participants)
        self.check_each_has_one(self.sets or 0, f"sets = {self.sets}", participants)

    def truth(self, participants: int) -> list[int | None]:
        return [
            None if self.sets is None else j % self.sets for j in range(participants)
        ]

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray:
        used = used_classes(pool, self.n, "partition n_class: n")
        if self.sets is None:
            return split_evenly(
                [rng.choice(used, self.n, replace=False) for _ in range(participants)],
                pool,
            )
        different = len(used) if self.n < len(used) else 1
        reason = f"of n = {self.n} classes in a row, the data's {len(used)} classes have no more different sets"
        self.require(
            self.sets <= different,
            f"sets = {self.sets} should be <= {different}: {reason}",
        )
        starts = np.arange(participants) % self.sets
        return split_evenly(
            [used[(start + np.arange(self.n)) % len(used)] for start in starts], pool
        )


@dataclass(frozen=True)
class LDA(Partition):
    """All participants have equally many samples, each with labels from its own Dirichlet(alpha) (FedCUAU 3.2).

    Latent Dirichlet allocation. Once a class is used up, later draws exclude it, so that with a small alpha some
    participants deviate from their distribution. What does not divide evenly stays unused.
    """

    name: ClassVar[str] = "lda"
    equal_tests: ClassVar[bool] = True

    alpha: float = setting(
        0.1, help="concentration of the label distributions; small is uneven", gt=0
    )

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray | None:
        return equal_draws(np.full(participants, self.alpha), pool, rng)


@dataclass(frozen=True)
class HeterogeneityTiers(Partition):
    """Consecutive blocks of participants, of equal sizes, from nearly IID to very uneven (FedCUAU Table 2).

    In each tier, samples are dealt as by `LDA`, with the tier's alpha. The tier is the true group.
    """

    name: ClassVar[str] = "heterogeneity_tiers"
    equal_tests: ClassVar[bool] = True

    alphas: Sequence[float] = setting(
        (1000, 1, 0.5, 0.1),
        help="concentration of each tier's label distributions, all > 0",
        bounds=each(
            "a list of finite numbers > 0 such as [1000, 1, 0.5, 0.1]",
            lambda alpha: type(alpha) in (int, float) and 0 < alpha < math.inf,
        ),
    )

    def check(self, participants: int) -> None:
        super().check(participants)
        self.check_each_has_one(
            len(self.alphas), f"{len(self.alphas)} tiers", participants
        )

    def truth(self, participants: int) -> list[int | None]:
        return blocks(participants, len(self.alphas))

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray | None:
        return equal_draws(
            np.array([self.alphas[tier or 0] for tier in self.truth(participants)]),
            pool,
            rng,
        )


def blocks(participants: int, groups: int) -> list[int | None]:
    """Consecutive groups of nearly equal size."""
    return [i * groups // participants for i in range(participants)]


def equal_draws(
    alphas: np.ndarray, pool: Pool, rng: np.random.Generator
) -> np.ndarray | None:
    """Shares by which all participants have equally many training samples, each with its own alpha."""
    odds = np.array([rng.dirichlet(np.full(pool.classes, alpha)) for alpha in alphas])
    odds = np.maximum(
        odds, 1e-12
    )  # so that a class of probability 0 can be drawn when all others are used up
    sizes = np.full(len(alphas), pool.train.sum() // len(alphas))
    return shares_of(filled(odds, sizes, pool.train, rng), pool)


def shares_of(counts: np.ndarray | None, pool: Pool) -> np.ndarray | None:
    """Training counts as shares of their classes; None stays None."""
    return None if counts is None else counts / np.maximum(1, pool.train)


def used_classes(pool: Pool, wanted: int, where: str) -> np.ndarray:
    """The classes that have training samples; a ConfigError if there are fewer than wanted."""
    used = np.flatnonzero(pool.train)
    require(
        wanted <= len(used),
        f"{where} = {wanted} is more than the data's {len(used)} classes",
    )
    return used


def split_evenly(choices: Sequence[np.ndarray], pool: Pool) -> np.ndarray:
    """Shares by which each class is split evenly among the participants that chose it."""
    chosen = np.zeros((len(choices), pool.classes))
    for row, classes in zip(chosen, choices):
        row[classes] = 1
    return chosen / np.maximum(1, chosen.sum(axis=0))


def balanced_choices(
    items: np.ndarray, n: int, times: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Chooses n different items, a number of times, so that no item is used more than once above any other.

    Each choice takes the items that were used least so far, at random among equals. Choices differ from each other as
    long as a few attempts find a new one.
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
