# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The base of all partition rules, and how one deals out a pooled data set.

A rule yields shares: the part of each class that each participant gets. Labels that are no class numbers are dealt out
by the strata of `cfl_flare.data.labels`, each as a class. Training and test samples are dealt by the same shares, so
that a participant is tested on what it is trained on. Some rules deal both together, and split each participant's
samples afterwards. Samples that no share covers stay unused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import from_dict, require
from cfl_flare.core.errors import CFLError, ConfigError, DataError
from cfl_flare.core.seeds import stream
from cfl_flare.core.settings import check_settings
from cfl_flare.data.labels import strata
from cfl_flare.data.samples import Samples

# Of a participant's samples, where training and test samples are dealt together (FedDSMIC 5.1).
TEST_SHARE = 0.2


@dataclass(frozen=True)
class Pool:
    """How many samples of each class there are to deal out, ``(classes,)``; ``min_samples`` is a setting of the run.

    Where both splits are dealt together, a fifth of each class are test samples.
    """

    train: np.ndarray
    test: np.ndarray
    min_samples: int

    @property
    def classes(self) -> int:
        return len(self.train)


@dataclass(frozen=True)
class Deal:
    """A pooled data set, dealt out: the sorted indices of each participant's samples, and its true group, if any.

    Indices count the source's training samples and then, going on, its test samples.
    """

    train: list[np.ndarray]
    test: list[np.ndarray]
    truth: list[int | None]


@dataclass(frozen=True)
class Partition(ABC):
    """A rule that deals out the samples of each class. Its fields are its settings."""

    name: ClassVar[str]
    # All participants get equally many test samples, as they do training samples.
    equal_tests: ClassVar[bool] = False
    # Training and test samples are dealt together, and each participant's own are split at random.
    pooled: ClassVar[bool] = False
    # Whether the shares are random; if not, drawing again is useless.
    random: ClassVar[bool] = True
    # Participants may have no test sample: they are trained and not measured.
    every: ClassVar[bool] = False
    advice: ClassVar[str] = (
        "take fewer participants, a milder rule or a lower min_samples"
    )

    def __post_init__(self) -> None:
        check_settings(self, f"partition {self.name}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Partition:
        """The rule with these settings; a ConfigError for one that is unknown or out of its range."""
        return from_dict(cls, settings, f"partition {cls.name}")

    def check(self, participants: int) -> None:
        """Raises a ConfigError if the rule does not work for this number of participants."""
        self.require(participants >= 1, f"participants = {participants} should be >= 1")

    def check_each_has_one(self, groups: int, what: str, participants: int) -> None:
        """Raises a ConfigError if there are fewer participants than groups; ``what`` names the groups in it."""
        self.require(
            groups <= participants,
            f"{what} need at least as many participants, not {participants}",
        )

    @classmethod
    def require(
        cls,
        condition: bool,
        message: str,
        kind: Callable[[str], CFLError] = ConfigError,
    ) -> None:
        """As `cfl_flare.core.config.require`, with a message about this rule."""
        require(condition, f"partition {cls.name}: {message}", kind)

    @abstractmethod
    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray | None:
        """The share of each class that each participant gets, ``(participants, classes)``.

        Columns sum to one, or to less where samples stay unused. None if the shares must be drawn again. A ConfigError
        if the settings do not fit the data, a DataError if the data does not fit the rule.
        """

    def strata(self, train: Samples, test: Samples) -> tuple[np.ndarray, np.ndarray]:
        """What is dealt out as classes, ``(n,)`` each, numbered over both splits; for nearly all rules, by labels."""
        return strata(train.y), strata(test.y, train.y)

    def truth(self, participants: int) -> list[int | None]:
        """The true group of each participant as far as it is known before the draw, else None."""
        return [None] * participants

    def truth_of(
        self, counts: np.ndarray, train: Samples, parts: Sequence[np.ndarray]
    ) -> list[int | None]:
        """The true group of each participant after the draw.

        It follows from its training samples of each class, ``counts (participants, classes)``, and their indices
        ``parts`` among the source's.
        """
        return self.truth(len(counts))

    def alter(
        self, samples: Samples, group: int | None, classes: int, seed: int
    ) -> Samples:
        """A participant's samples as the rule changes them; for rules that shift features or labels."""
        return samples


def rounded(shares: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Shares ``(participants, classes)`` of ``totals (classes,)`` as whole numbers of samples.

    No class exceeds its total; where a column of shares sums to one, its counts sum to the total.
    """
    bounds = np.minimum(np.round(np.cumsum(shares, axis=0) * totals), totals).astype(
        np.int64
    )
    return np.diff(bounds, axis=0, prepend=0)


def evened(shares: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """As `rounded`, but the next classes make up for what a participant loses by rounding in one.

    Where classes have fewer samples than there are participants, this leaves no participant without samples.
    """
    exact = shares * totals
    counts = np.floor(exact).astype(np.int64)
    owed = np.zeros(len(shares))
    for c in range(len(totals)):
        rest = exact[:, c] - counts[:, c]
        owed += rest
        order = np.argsort(np.where(rest > 0, -owed, np.inf), kind="stable")
        first = order[: int(np.round(exact[:, c].sum())) - counts[:, c].sum()]
        counts[first, c] += 1
        owed[first] -= 1
    return counts


def apportioned(counts: np.ndarray, size: int) -> np.ndarray:
    """Counts reduced to ``size`` in each row, in proportion, by largest remainders; no count grows."""
    exact = counts * (size / counts.sum(axis=1, keepdims=True))
    cut = np.floor(exact).astype(np.int64)
    order = np.argsort(cut - exact, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return cut + (rank < size - cut.sum(axis=1, keepdims=True))


def filled(
    odds: np.ndarray, sizes: np.ndarray, totals: np.ndarray, rng: np.random.Generator
) -> np.ndarray | None:
    """Draws each participant's labels from its own distribution, without replacement.

    All draw at once. If a class is drawn more often than it has samples, chance decides who gets them. The others draw
    again among the remaining classes, so that no participant is served last.

    Args:
        odds: ``(participants, classes)`` label distributions, not necessarily of sum one.
        sizes: ``(participants,)`` how many each draws.
        totals: ``(classes,)`` samples of each class.

    Returns:
        ``(participants, classes)`` int64; None if only classes are left that some participant's distribution excludes.
    """
    counts = np.zeros(odds.shape, np.int64)
    left, need = totals.astype(np.int64), np.asarray(sizes, np.int64)
    while need.any():
        open_odds = odds * (left > 0)
        mass = open_odds.sum(axis=1, keepdims=True)
        if (mass[need > 0] <= 0).any():
            return None
        # A participant that draws no more gets a distribution all the same: the first class.
        first = np.eye(1, odds.shape[1]).repeat(len(odds), axis=0)
        drawn = rng.multinomial(
            need, np.divide(open_odds, mass, out=first, where=mass > 0)
        )
        for c in np.flatnonzero(drawn.sum(axis=0) > left):
            drawn[:, c] = rng.multivariate_hypergeometric(drawn[:, c], left[c])
        counts += drawn
        left, need = left - drawn.sum(axis=0), need - drawn.sum(axis=1)
    return counts


def deal(
    stratum: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draws the indices of each participant's samples from strata ``(n,)``, by counts ``(participants, classes)``."""
    parts: list[list[np.ndarray]] = [[] for _ in range(len(counts))]
    for c in np.flatnonzero(counts.any(axis=0)):
        indices = rng.permutation(np.flatnonzero(stratum == c))
        # The last piece, beyond all counts, stays unused.
        for part, piece in zip(parts, np.split(indices, np.cumsum(counts[:, c]))):
            part.append(piece)
    nothing = np.empty(0, np.int64)
    return [np.sort(np.concatenate([nothing, *part])) for part in parts]


def split(
    counts: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws which of each participant's samples it is tested on: a fifth of them, rounded, and at least one.

    Returns its training and its test samples of each class, which add up to ``counts (participants, classes)``.
    """
    sizes = counts.sum(axis=1)
    test_sizes = np.clip(
        np.round(TEST_SHARE * sizes).astype(np.int64), 1, sizes
    )  # none where there is none
    tests = np.stack(
        [
            rng.multivariate_hypergeometric(row, size)
            for row, size in zip(counts, test_sizes)
        ]
    )
    return counts - tests, tests


def dealt(
    train: Samples,
    test: Samples,
    rule: Partition,
    participants: int,
    seed: int,
    min_samples: int,
) -> Deal:
    """Deals training and test samples by a rule's shares, redrawn until no participant has too few.

    Each participant gets at least ``min_samples`` training samples and one test sample; a DataError if no draw gives
    that. The result depends only on the arguments, so that all sites draw the same.
    """
    rule.check(participants)
    stratum, test_stratum = rule.strata(train, test)
    classes = int(max(stratum.max(), test_stratum.max())) + 1
    totals, test_totals = (
        np.bincount(part, minlength=classes) for part in (stratum, test_stratum)
    )
    if rule.pooled:
        every = totals + test_totals
        test_totals = np.round(TEST_SHARE * every).astype(np.int64)
        totals = every - test_totals
    pool = Pool(totals, test_totals, min_samples)
    fewest, draws = 0, 1000 if rule.random else 1
    attempts = list(range(draws))
    for to_counts in (
        rounded,
        evened,
    ):  # in this order, so that evening out changes only what needs it
        for attempt in attempts.copy():
            rng = stream(seed, "partition", attempt)
            shares = rule.shares(participants, pool, rng)
            if shares is None:
                attempts.remove(attempt)
                continue
            if rule.pooled:
                counts, tests = split(to_counts(shares, totals + test_totals), rng)
            else:
                counts, tests = (
                    to_counts(shares, totals),
                    to_counts(shares, test_totals),
                )
            smallest, smallest_test = (
                int(counts.sum(axis=1).min()),
                int(tests.sum(axis=1).min()),
            )
            if smallest < min_samples or (smallest_test < 1 and not rule.every):
                fewest = max(fewest, smallest)
                continue
            if rule.equal_tests:
                tests = apportioned(tests, smallest_test)
            if rule.pooled:
                parts = deal(
                    np.concatenate((stratum, test_stratum)),
                    np.concatenate((counts, tests)),
                    rng,
                )
            else:
                parts = deal(stratum, counts, rng) + [
                    len(train) + part for part in deal(test_stratum, tests, rng)
                ]
            train_parts, test_parts = parts[:participants], parts[participants:]
            return Deal(
                train_parts, test_parts, rule.truth_of(counts, train, train_parts)
            )
    wanted = f"{min_samples} training samples and 1 test sample (best: {fewest})"
    none = f"no draw of {draws} gave each of {participants} participants {wanted}"
    raise DataError(f"partition {rule.name}: {none}; {rule.advice}")


def dealt_by_patient(
    train: Samples,
    test: Samples,
    rule: Partition,
    participants: int,
    seed: int,
    min_samples: int,
) -> Deal:
    """As `dealt`, of patients instead of samples, each by the label of the first: all samples of one stay together."""
    rows: list[np.ndarray] = []  # of each patient

    def heads(samples: Samples, offset: int) -> Samples:
        _, first, number = np.unique(
            np.asarray(samples.patient), return_index=True, return_inverse=True
        )
        order = np.argsort(number, kind="stable")
        rows.extend(
            np.split(offset + order, np.flatnonzero(np.diff(number[order])) + 1)
            if len(order)
            else []
        )
        return replace(samples.take(first), patient=None)

    def expanded(parts: list[np.ndarray]) -> list[np.ndarray]:
        return [
            np.sort(np.concatenate([rows[patient] for patient in part]))
            for part in parts
        ]

    deal = dealt(
        heads(train, 0), heads(test, len(train)), rule, participants, seed, min_samples
    )
    return Deal(expanded(deal.train), expanded(deal.test), deal.truth)
