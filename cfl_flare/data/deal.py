# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a partition rule is, and how a pooled data set is dealt out by one.

A rule yields shares: how much of each class each participant gets. Training and test samples are dealt by the same
shares, so that a participant is tested on what it is trained on. What no share claims stays unused, and is reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import check_types, from_dict, require
from cfl_flare.core.errors import DataError
from cfl_flare.core.seeds import stream
from cfl_flare.data.samples import Samples

REDRAWS = 1000


@dataclass(frozen=True)
class Pool:
    """What there is to deal.

    Attributes:
        train: ``(classes,)`` training samples of each class.
        test: ``(classes,)`` test samples of each class.
        min_samples: fewest training samples that a participant must get.
    """

    train: np.ndarray
    test: np.ndarray
    min_samples: int

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.train)


@dataclass(frozen=True)
class Deal:
    """Who got what.

    Attributes:
        train: indices of each participant's training samples, sorted.
        test: indices of each participant's test samples, sorted.
        truth: the true group of each participant, None where the rule has none.
    """

    train: list[np.ndarray]
    test: list[np.ndarray]
    truth: list[int | None]


@dataclass(frozen=True)
class Partition(ABC):
    """A rule by which classes are shared out. Its fields are its settings."""

    name: ClassVar[str]
    # Everyone gets the same number of test samples, as the rule already gives everyone the same of training samples.
    equal_tests: ClassVar[bool] = False
    # Whether the shares depend on chance; if not, drawing again is no use.
    random: ClassVar[bool] = True
    advice: ClassVar[str] = "take fewer participants, a milder rule or a lower min_samples"

    def __post_init__(self) -> None:
        check_types(self, f"partition {self.name}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Partition:
        """The rule with these settings.

        Raises:
            ConfigError: an unknown setting, or a value out of its range.
        """
        return from_dict(cls, settings, f"partition {cls.name}")

    def check(self, participants: int) -> None:
        """Whether the rule can be drawn for so many participants.

        Raises:
            ConfigError: it cannot.
        """
        require(participants >= 1, f"partition {self.name}: participants = {participants} should be >= 1")

    @abstractmethod
    def shares(self, participants: int, pool: Pool, rng: np.random.Generator) -> np.ndarray | None:
        """How much of each class each participant gets.

        Returns:
            ``(participants, classes)``, columns that sum to one, or to less where samples stay unused; None if this
            draw will not do and must be redrawn.

        Raises:
            ConfigError: the settings do not fit the data.
            DataError: the data does not fit the rule.
        """

    def strata(self, samples: Samples, other: Samples) -> np.ndarray:
        """``(n,)`` what is shared out in place of classes; the labels, for nearly every rule.

        Args:
            samples: those to be dealt.
            other: the other split, for rules that number what they find in both.
        """
        return samples.y

    def truth(self, participants: int) -> list[int | None]:
        """The true group of each participant where it is known before the draw; None where there is none."""
        return [None] * participants

    def truth_of(self, counts: np.ndarray) -> list[int | None]:
        """The true group of each participant, from its training samples of each class ``(participants, classes)``."""
        return self.truth(len(counts))

    def alter(self, samples: Samples, group: int | None, classes: int, seed: int) -> Samples:
        """What becomes of a participant's samples; for rules that shift features or labels."""
        return samples


def positive(value: float, where: str) -> None:
    """Refuses a concentration that is not a positive, finite number.

    Raises:
        ConfigError: it is not.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    require(number and 0 < value < float("inf"), f"{where} = {value!r} should be a finite number > 0")


def rounded(shares: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Shares as whole samples, so that no class is overdrawn.

    Args:
        shares: ``(participants, classes)``, columns that sum to at most one.
        totals: ``(classes,)`` samples that there are.

    Returns:
        ``(participants, classes)`` int64; where a column sums to one, its counts sum to the total.
    """
    bounds = np.minimum(np.round(np.cumsum(shares, axis=0) * totals), totals).astype(np.int64)
    return np.diff(bounds, axis=0, prepend=0)


def evened(shares: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """As `rounded`, but what rounding takes from somebody in one class is made up for in the next ones.

    Where there are fewer samples of a class than participants, it is this that leaves nobody without any.
    """
    exact = shares * totals
    counts = np.floor(exact).astype(np.int64)
    owed = np.zeros(len(shares))
    for c in range(len(totals)):
        rest = exact[:, c] - counts[:, c]
        owed += rest
        order = np.argsort(np.where(rest > 0, -owed, np.inf), kind="stable")
        lucky = order[: int(np.round(exact[:, c].sum())) - counts[:, c].sum()]
        counts[lucky, c] += 1
        owed[lucky] -= 1
    return counts


def apportioned(counts: np.ndarray, size: int) -> np.ndarray:
    """Counts cut down to ``size`` in each row, in proportion, by largest remainders; no count grows."""
    exact = counts * (size / counts.sum(axis=1, keepdims=True))
    cut = np.floor(exact).astype(np.int64)
    order = np.argsort(cut - exact, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return cut + (rank < size - cut.sum(axis=1, keepdims=True))


def filled(odds: np.ndarray, sizes: np.ndarray, totals: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Draws each participant's labels from its own distribution, without putting a sample back.

    All draw at once. Where a class is asked for more often than it has samples, chance decides who gets them, and the
    others draw again among the classes that are left; so nobody is served last.

    Args:
        odds: ``(participants, classes)`` label distributions, not necessarily of sum one.
        sizes: ``(participants,)`` how many each draws.
        totals: ``(classes,)`` samples that there are.
        rng: draws.

    Returns:
        ``(participants, classes)`` int64 with rows that sum to ``sizes``; None if what is left is no use to somebody.
    """
    counts = np.zeros(odds.shape, np.int64)
    left, need = totals.astype(np.int64), np.asarray(sizes, np.int64)
    while need.any():
        open_odds = odds * (left > 0)
        mass = open_odds.sum(axis=1, keepdims=True)
        if (mass[need > 0] <= 0).any():
            return None
        asked = rng.multinomial(need, np.divide(open_odds, mass, out=_first(odds.shape), where=mass > 0))
        for c in np.flatnonzero(asked.sum(axis=0) > left):
            asked[:, c] = rng.multivariate_hypergeometric(asked[:, c], left[c])
        counts += asked
        left, need = left - asked.sum(axis=0), need - asked.sum(axis=1)
    return counts


def _first(shape: tuple[int, ...]) -> np.ndarray:
    """A distribution for those who draw nothing any more: all on the first class."""
    return np.eye(1, shape[1]).repeat(shape[0], axis=0)


def deal(strata: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Indices of each participant's samples: no sample goes to two.

    Args:
        strata: ``(n,)`` labels.
        counts: ``(participants, classes)`` how many of each.
        rng: shuffles each class first.
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(len(counts))]
    for c in np.flatnonzero(counts.any(axis=0)):
        indices = rng.permutation(np.flatnonzero(strata == c))
        # The last piece, beyond everyone's count, is what stays unused.
        for part, piece in zip(parts, np.split(indices, np.cumsum(counts[:, c]))):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def dealt(train: Samples, test: Samples, rule: Partition, participants: int, seed: int, min_samples: int) -> Deal:
    """Deals training and test samples by the same shares, redrawn until nobody has too few.

    It depends on the samples, the rule, the participants and the seed alone, so that every site draws the same.

    Args:
        train: to be dealt.
        test: to be dealt.
        rule: how.
        participants: among how many.
        seed: of the draw.
        min_samples: fewest training samples of a participant; everyone also gets a test sample.

    Raises:
        ConfigError: the rule cannot be drawn for so many participants, or such data.
        DataError: no draw gave everyone enough samples.
    """
    rule.check(participants)
    strata, test_strata = rule.strata(train, test), rule.strata(test, train)
    classes = int(max(strata.max(), test_strata.max())) + 1
    totals, test_totals = np.bincount(strata, minlength=classes), np.bincount(test_strata, minlength=classes)
    pool = Pool(totals, test_totals, min_samples)
    fewest, draws = 0, REDRAWS if rule.random else 1
    attempts = list(range(draws))
    # Evened counts come second, so that whatever can be dealt without them is dealt as it always was.
    for whole in (rounded, evened):
        for attempt in attempts.copy():
            rng = stream(seed, "partition", attempt)
            shares = rule.shares(participants, pool, rng)
            if shares is None:
                attempts.remove(attempt)
                continue
            counts, tests = whole(shares, totals), whole(shares, test_totals)
            smallest, smallest_test = int(counts.sum(axis=1).min()), int(tests.sum(axis=1).min())
            if smallest >= min_samples and smallest_test >= 1:
                if rule.equal_tests:
                    tests = apportioned(tests, smallest_test)
                return Deal(deal(strata, counts, rng), deal(test_strata, tests, rng), rule.truth_of(counts))
            fewest = max(fewest, smallest)
    raise DataError(
        f"partition {rule.name}: no draw of {draws} gave each of {participants} participants {min_samples} training "
        f"samples and 1 test sample (best: {fewest}); {rule.advice}"
    )
