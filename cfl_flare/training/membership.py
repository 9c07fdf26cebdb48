# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Attacks that tell a participant's training samples, the members, from its test samples by what a model makes of them.

The participant attacks the model itself, on its own samples, and four counts of each attack leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch

from cfl_flare.core.params import Params
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.measures import LARGEST

# An attack by the loss alone (Yeom et al. 2018), and by the likelihood's ratio to that of models that have not seen the
# sample (offline RMIA, Zarifzadeh et al. 2024, with a = 0; with few models it is stronger than one with a Gaussian).
LOSS, LIKELIHOOD_RATIO = "loss", "likelihood_ratio"
ATTACKS = (LOSS, LIKELIHOOD_RATIO)
# Of so many samples that are no members, an attack may take one for a member: a false positive rate of 1 %.
PER_FALSE_POSITIVE = 100
# Each half of fewer training samples would be a single one.
FEWEST_MEMBERS = 4


@dataclass(frozen=True)
class AttackRule:
    """A site operator's rule on membership attacks.

    Attributes:
        most_tpr: the site objects to a model by which attacks reach more at 1 % false positives; None for no bound.
        accepts_unmeasured: if a participant's test split is too small to measure, the site accepts what the other
            members measure.
    """

    most_tpr: float | None = None
    accepts_unmeasured: bool = False


NO_RULE = AttackRule()


@dataclass(frozen=True)
class Counts:
    """What an attack reaches at the largest false positive rate that is at most 1 %.

    Attributes:
        true_positives: members that it takes for members.
        members: the participant's training samples; where the data says whose they are, its training patients.
        false_positives: test samples that it takes for members.
        non_members: the participant's test samples, or patients.
    """

    true_positives: int
    members: int
    false_positives: int
    non_members: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(self.numbers, other.numbers)))

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """All four, in the order above."""
        return astuple(self)

    @property
    def rate(self) -> float:
        """The true positive rate."""
        return self.true_positives / self.members

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval by Clopper and Pearson.

        >>> [round(end, 4) for end in Counts(0, 72, 0, 40).interval]
        [0.0, 0.0499]
        """
        from scipy.stats import binomtest

        ends = binomtest(self.true_positives, self.members).proportion_ci(0.95, "exact")
        return float(ends.low), float(ends.high)


def counted(members: np.ndarray, others: np.ndarray) -> Counts:
    """Counts the samples above the lowest threshold that at most 1 % of the others pass.

    Both are scores, of training samples ``(n,)`` and of test samples ``(m,)``; the higher, the more of a member.

    >>> counted(np.array([3.0, 1.0, 5.0]), np.array([2.0, 0.0]))
    Counts(true_positives=2, members=3, false_positives=0, non_members=2)
    """
    threshold = np.sort(others)[::-1][len(others) // PER_FALSE_POSITIVE]
    return Counts(
        int((members > threshold).sum()),
        len(members),
        int((others > threshold).sum()),
        len(others),
    )


def attacks(
    learner: Learner, models: Mapping[str, Served], shadow_models: int
) -> dict[str, dict[str, Counts]]:
    """The counts of each attack on each model, with a participant's samples after the run's last round.

    ``shadow_models`` is the even number of those that it trains for comparison. An AbortedError if the job was aborted.
    """
    usual = [
        mean_likelihood(of_split) for of_split in zip(*outside(learner, shadow_models))
    ]
    counts = {}
    for name, served in models.items():
        likelihoods = log_likelihoods(learner, served)
        ratios = [of_split - mean for of_split, mean in zip(likelihoods, usual)]
        counts[name] = {LOSS: counted(*likelihoods), LIKELIHOOD_RATIO: counted(*ratios)}
    return counts


def mean_likelihood(logarithms: Sequence[np.ndarray]) -> np.ndarray:
    """The logarithm of the mean of several likelihoods, of which logarithms are given, ``(n,)`` each."""
    total: np.ndarray = np.logaddexp.reduce(np.stack(logarithms))
    return total - np.log(len(logarithms))


def outside(
    learner: Learner, shadow_models: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each pair of shadow models, how likely each training and each test patient is to one that has not seen it.

    The models of a pair are trained on the two halves of the training samples. Neither has seen a test sample: every
    second one is given to the first, so that members and others are compared with equally many.
    """
    second = np.arange(learner._test.patients) % 2 == 1
    for number in range(shadow_models // 2):
        first, halves = halved(learner, f"shadow {number}")
        (members, others), (members_of_second, others_of_second) = (
            shadow(learner, half) for half in halves
        )
        yield (
            np.where(first, members_of_second, members),
            np.where(second, others_of_second, others),
        )


def halved(learner: Learner, name: str) -> tuple[np.ndarray, list[Learner]]:
    """Splits the training patients at random: which are in the first half, and the participant with each half.

    The two remember nothing yet, and draw from streams that have this name.
    """
    split = learner._train
    first = learner._stream(name).permutation(split.patients) < split.patients // 2
    halves = []
    for half, chosen in enumerate((first, ~first)):
        rows = np.flatnonzero(
            chosen if split.patient is None else chosen[split.patient]
        )
        train = split.take(torch.from_numpy(rows).to(split.y.device))
        changes = {
            "_train": train,
            "samples": len(train),
            "_part": f"{learner._part}{name}.{half}.",
        }
        halves.append(learner._view(**changes, memory={}, _compared={}))
    return first, halves


def shadow(learner: Learner, half: Learner) -> tuple[np.ndarray, np.ndarray]:
    """How likely all samples are to a model that is trained on half of the training samples as the run trains.

    It begins untrained, and trains by itself for as many rounds as the run had.
    """
    model = half.initial(0)
    for number in range(learner.round):
        model = half.in_round(number).train(model)
    return log_likelihoods(learner._view(memory=half.memory), model)


@torch.no_grad()
def log_likelihoods(
    learner: Learner, model: Params | Served
) -> tuple[np.ndarray, np.ndarray]:
    """The mean logarithm of the likelihood of each training and of each test patient's samples, float64.

    It is the plain loss with a minus.
    """
    task, of_splits = learner._runtime.task, []
    for split in (learner._train, learner._test):
        losses = task.sample_losses(
            learner.outputs(model, split.x).double()[None], split.y
        )[0]
        of_splits.append(
            split.by_patient(
                losses.neg().nan_to_num(-LARGEST, LARGEST, -LARGEST).cpu().numpy()
            )
        )
    return of_splits[0], of_splits[1]
