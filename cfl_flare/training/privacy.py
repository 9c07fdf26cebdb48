# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Differential privacy of a participant's patients: the budget, how a run divides it, and what each mechanism spends.

Neighbouring data differ in one patient, who is there with all samples or is not. Where the data does not say whose
samples they are, each is of a patient of its own. In this module a sample is a patient's. Each mechanism is stated as a
Gaussian one on a Poisson sample, the whole split at rate 1. Their Rényi divergences add up (Mironov 2017, Prop. 1), and
epsilon follows from the sum (Balle et al. 2020, Thm. 21).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, Protocol

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import BudgetError, ConfigError
from cfl_flare.core.settings import check_settings, setting

TRAIN, TEST = "train", "test"
# Orders of the Rényi divergence; an epsilon is the least that one of them gives. Those below 2 take ten times as long
# to compute, and none of an epsilon below 15 needs them.
PARTS = (
    2.125,
    2.375,
    *(2 + i / 4 for i in range(1, 16) if i % 4),
    *(6.5 + i for i in range(5)),
)
ORDERS = (*PARTS, *range(2, 33), 36, 40, 44, 48, 56, 64, 80, 96, 128, 192, 256, 512)
# Shares of the budget of training samples that their count, and the method's choices or losses, get.
OF_COUNT, OF_ANSWERS = 0.02, 0.1
# Noise multipliers that are looked at for a target.
LEAST_NOISE, MOST_NOISE = 0.1, 1e4


@dataclass(frozen=True)
class DPSettings:
    """Differential privacy of a run, for each training sample and each test sample of a participant."""

    epsilon: float = setting(help="the most that the run may spend", gt=0, le=1000)
    delta: float = setting(
        1e-5, help="the probability with which epsilon may not hold", gt=0, lt=0.1
    )
    max_grad_norm: float = setting(
        1.0, help="a sample's longer gradient is scaled down to this norm", gt=0
    )
    noise_multiplier: float | None = setting(
        None,
        help="deviation of the noise in units of max_grad_norm; default: what epsilon allows over all rounds. Given, a "
        "participant stops training once epsilon is spent",
        ge=LEAST_NOISE,
        le=MOST_NOISE,
    )
    max_loss: float = setting(
        4.0, help="a sample's larger loss counts as this in choices and metrics", gt=0
    )
    rounds: int | None = setting(
        None, help="rounds that the budget is for; default: the run's", ge=1
    )
    measured: int | None = setting(
        None, help="measurements that it is for; default: the run's", ge=1
    )

    def __post_init__(self) -> None:
        check_settings(self, "training: dp")

    def over(self, rounds: int, evaluate_every: int = 1) -> DPSettings:
        """The settings in a run of this length."""
        measured = self.measured or ceil(rounds / evaluate_every)
        return replace(self, rounds=self.rounds or rounds, measured=measured)


@dataclass(frozen=True)
class Queries:
    """What a method's step asks of the training samples in a round: how often it trains, chooses, and reads losses."""

    trainings: int = 1
    choices: int = 0
    losses: int = 0


@dataclass(frozen=True)
class Spend:
    """One mechanism, or several equal ones, applied to a participant's split.

    Attributes:
        what: ``training``, ``choice``, ``losses``, ``metrics``, ``count``, or a script's own word.
        split: `TRAIN` or `TEST`.
        noise_multiplier: the noise's deviation over the sensitivity in the L2 norm.
        sample_rate: probability with which each sample takes part.
        steps: how often.
    """

    what: str
    split: str
    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int = 1


def rdp_of(spends: Iterable[Spend]) -> np.ndarray:
    """The Rényi divergence of these mechanisms together at each of `ORDERS`."""
    return np.sum(
        [
            np.zeros(len(ORDERS)),
            *(_rdp(s.noise_multiplier, s.sample_rate) * s.steps for s in spends),
        ],
        axis=0,
    )


@lru_cache(1024)
def _rdp(noise_multiplier: float, sample_rate: float) -> np.ndarray:
    if sample_rate == 1.0:
        return np.array(ORDERS) / (2 * noise_multiplier**2)
    require_opacus()
    from opacus.accountants.analysis.rdp import compute_rdp

    return np.array(
        compute_rdp(
            q=sample_rate,
            noise_multiplier=noise_multiplier,
            steps=1,
            orders=list(ORDERS),
        )
    )


def epsilon_of(rdp: np.ndarray, delta: float) -> float:
    """The epsilon that these divergences give at a delta; 0 where nothing was spent."""
    if not rdp.any():
        return 0.0
    orders = np.array(ORDERS)
    epsilons = (
        rdp
        + np.log((orders - 1) / orders)
        - (np.log(delta) + np.log(orders)) / (orders - 1)
    )
    return max(0.0, float(np.nanmin(epsilons)))


def require_opacus() -> None:
    """Raises a ConfigError if Opacus is not installed."""
    try:
        import opacus  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "training: dp needs Opacus; run: pip install 'cfl-flare[dp]'"
        ) from error


@lru_cache(1024)
def least_noise(
    epsilon: float,
    delta: float,
    sample_rate: float = 1.0,
    steps: int = 1,
    beside: tuple[Spend, ...] = (),
) -> float:
    """The smallest noise multiplier, within a thousandth, of equal mechanisms that stay within a budget.

    By default it is that of one Gaussian mechanism. ``beside`` is what else the budget pays for.
    """
    from scipy.optimize import (
        brentq,
    )  # it takes a while to import, and few runs need it

    def excess(log_noise: float) -> float:
        spends = [
            *beside,
            Spend("", TRAIN, float(np.exp(log_noise)), sample_rate, steps),
        ]
        return float(np.log(max(epsilon_of(rdp_of(spends), delta), 1e-12) / epsilon))

    low, high = np.log(LEAST_NOISE), np.log(MOST_NOISE)
    if excess(low) <= 0:
        return LEAST_NOISE
    if excess(high) > 0:
        raise ConfigError(
            f"training: dp: epsilon = {epsilon} is too little for this run; raise it, or shorten the run"
        )
    return float(np.exp(min(high, brentq(excess, low, high, xtol=5e-4) + 5e-4)))


@dataclass(frozen=True)
class NoisePlan:
    """How a participant's budget is divided over a run.

    It follows from settings and from the noisy count of samples alone, so that it says nothing else of them.

    Attributes:
        training: the spend of one local training.
        answer: that of one choice, or of the losses of all models.
        metrics: that of one measurement of the test split.
        rounds: how many the budget pays for.
    """

    training: Spend
    answer: Spend
    metrics: Spend
    rounds: int

    @classmethod
    def of(
        cls, dp: DPSettings, queries: Queries, samples: int, batch_size: int, steps: int
    ) -> NoisePlan:
        """The plan of a participant that said it has ``samples``, and takes ``steps`` steps a local training."""
        rounds, measured = dp.rounds or 1, dp.measured or 1
        scale = least_noise(dp.epsilon, dp.delta)
        answers = (rounds + 1) * (queries.choices + queries.losses)
        answer = Spend("answer", TRAIN, scale * (max(1, answers) / OF_ANSWERS) ** 0.5)
        metrics = Spend("metrics", TEST, scale * (measured / (1 - OF_COUNT)) ** 0.5)
        rate = min(1.0, batch_size / samples)
        fixed = (
            count_spend(dp, TRAIN),
            *([replace(answer, steps=answers)] if answers else []),
        )
        steps_a_round, noise = steps * queries.trainings, dp.noise_multiplier
        if noise is None:
            noise = least_noise(
                dp.epsilon, dp.delta, rate, rounds * steps_a_round, fixed
            )
        else:
            all_rounds = Spend("training", TRAIN, noise, rate, rounds * steps_a_round)
            while (
                rounds
                and epsilon_of(rdp_of([*fixed, all_rounds]), dp.delta) > dp.epsilon
            ):
                rounds -= 1
                all_rounds = replace(all_rounds, steps=rounds * steps_a_round)
        return cls(
            Spend("training", TRAIN, noise, rate, steps), answer, metrics, rounds
        )


def count_spend(dp: DPSettings, split: str) -> Spend:
    """That of a participant's number of samples, which it says once."""
    return Spend("count", split, least_noise(dp.epsilon, dp.delta) / OF_COUNT**0.5)


class Randomness(Protocol):
    """What noise and samples are drawn from: numpy's generator in a simulation, `SystemRandomness` at a real site."""

    def random(self, size: int) -> np.ndarray: ...

    def standard_normal(self, size: int) -> np.ndarray: ...


class SystemRandomness:
    """Numbers of the operating system's cryptographic generator, which nobody can draw again."""

    def random(self, size: int) -> np.ndarray:
        """Uniform in (0, 1), float64 of 52 random bits."""
        bits = np.frombuffer(os.urandom(8 * size), np.uint64) >> np.uint64(12)
        return (bits + 0.5) * 2.0**-52

    def standard_normal(self, size: int) -> np.ndarray:
        """Each is half the sum of four: the last bits of a single one tell what it was added to.

        (Holohan and Braghin 2021, sec. 5.1.)
        """
        from scipy.special import ndtri

        return np.asarray(ndtri(self.random(4 * size)).reshape(4, size).sum(axis=0) / 2)


# Noisy sums are rounded to a multiple of the noise's deviation by this factor.
GRID = 2.0**-20


def add_noise(
    values: np.ndarray, deviation: float, randomness: Randomness
) -> np.ndarray:
    """Add Gaussian noise to sums, and round the results to a grid.

    A floating-point number has few neighbours. Without the grid, the last bits of a noisy sum would exclude some of the
    sums that it may have been (Mironov 2012). Each multiple of the grid is possible for every sum.

    Args:
        values: ``(n,)`` float64 sums.
        deviation: the standard deviation of the noise, above 0.
        randomness: what the noise is drawn from.

    Returns:
        ``(n,)`` float64 multiples of the largest power of two that is at most ``deviation`` times `GRID`.
    """
    grid = 2.0 ** np.floor(np.log2(deviation * GRID))
    noisy = values + deviation * randomness.standard_normal(len(values))
    return np.asarray(np.rint(noisy / grid) * grid)


class Books:
    """Where a site writes down what its participants spend, before the noise is drawn.

    These write nothing, as all of a simulation is known from its settings.
    """

    def spend(
        self, participant: str, round_number: int, spends: Sequence[Spend]
    ) -> None:
        """Writes what is about to be spent.

        Raises:
            BudgetError: it is more than the run or the site may spend; nothing is drawn, and nothing leaves.
            LedgerError: the record cannot be trusted.
        """
        return

    def counts(self, participant: str) -> Mapping[str, int] | None:
        """The numbers of samples that this run's participant said before, by split; None for a new one."""
        return None

    def said(
        self, participant: str, counts: Mapping[str, int], spends: Sequence[Spend]
    ) -> None:
        """Writes the numbers of samples that it is about to say, and what they spend."""
        return

    def report(self, code: str) -> str:
        """What leaves in place of the code of a failure that the data may have decided on."""
        return code


@dataclass(frozen=True)
class Account:
    """A participant's account in a run: its plan, and where it writes what it spends.

    Attributes:
        samples: the numbers of samples that it says, by split.
        queries: what the method asks for in a round.
    """

    name: str
    dp: DPSettings
    plan: NoisePlan
    samples: Mapping[str, int]
    queries: Queries
    books: Books

    @classmethod
    def open(
        cls,
        name: str,
        dp: DPSettings,
        queries: Queries,
        sizes: Mapping[str, int],
        steps: Any,
        batch_size: int,
        books: Books,
        randomness: Randomness,
    ) -> Account:
        """The account of a participant with splits of these ``sizes``; ``steps`` gives those of a local training."""
        samples = books.counts(name)
        if samples is None:
            spends = [count_spend(dp, split) for split in sizes]
            noise = randomness.standard_normal(len(sizes))
            noisy = [
                size + spend.noise_multiplier * z
                for size, spend, z in zip(sizes.values(), spends, noise)
            ]
            samples = {
                split: max(1, round(count)) for split, count in zip(sizes, noisy)
            }
            books.said(name, samples, spends)
        plan = NoisePlan.of(
            dp, queries, samples[TRAIN], batch_size, steps(samples[TRAIN])
        )
        return cls(name, dp, plan, samples, queries, books)


class RoundAccount:
    """What a participant spends in one round. Each mechanism is entered before its noise is drawn."""

    def __init__(self, account: Account, round_number: int):
        self.account, self.round = account, round_number
        self._counts: dict[str, int] = {}

    def enter(self, spend: Spend, what: str) -> Spend:
        """Enters one mechanism.

        Raises:
            BudgetError: the budget does not pay for this round, or the method asks for more than it declares.
        """
        account, queries = self.account, self.account.queries
        allowed = {
            "training": queries.trainings,
            "choice": queries.choices,
            "losses": queries.losses,
            "metrics": 1,
        }
        self._counts[what] = self._counts.get(what, 0) + 1
        last = account.plan.rounds + (
            what != "training"
        )  # models are measured and chosen once more after the last
        paid = self._counts[what] <= allowed[what] and self.round < last
        limit = f"{allowed[what]} a round in {account.plan.rounds} rounds"
        reason = f"epsilon = {account.dp.epsilon} pays for {limit} of {what}"
        further = f"and this would be number {self._counts[what]} in round {self.round}"
        require(
            paid,
            f"{account.name}: {reason}, {further}; shorten the run, or raise epsilon",
            BudgetError,
        )
        entered = replace(spend, what=what)
        account.books.spend(account.name, self.round, [entered])
        return entered
