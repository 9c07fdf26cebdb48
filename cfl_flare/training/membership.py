# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Attacks that tell a participant's training samples, the members, from its test samples by what a model makes of them.

The participant attacks the model itself, on its own samples, and four counts of each attack leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass

import numpy as np
import torch

from cfl_flare.core.params import Params
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.runtime import Split

# An attack by the loss alone (Yeom et al. 2018), and the offline likelihood ratio (Carlini et al. 2022, sec. V-B).
LOSS, LIKELIHOOD_RATIO = "loss", "likelihood_ratio"
ATTACKS = (LOSS, LIKELIHOOD_RATIO)
# Of so many samples that are no members, an attack may take one for a member: a false positive rate of 1 %.
PER_FALSE_POSITIVE = 100
CONFIDENCE = 0.95
# Each half of fewer training samples would be a single one.
FEWEST_MEMBERS = 4


@dataclass(frozen=True)
class Counts:
    """What an attack reaches at the largest false positive rate that is at most 1 %.

    Attributes:
        true_positives: members that it takes for members.
        members: the participant's training samples.
        false_positives: test samples that it takes for members.
        non_members: the participant's test samples.
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

        ends = binomtest(self.true_positives, self.members).proportion_ci(CONFIDENCE, "exact")
        return float(ends.low), float(ends.high)


def counted(members: np.ndarray, others: np.ndarray) -> Counts:
    """Counts the samples above the lowest threshold that at most 1 % of the others pass.

    Args:
        members: scores of training samples, ``(n,)``; the higher, the more of a member.
        others: of test samples, ``(m,)``.

    >>> counted(np.array([3.0, 1.0, 5.0]), np.array([2.0, 0.0]))
    Counts(true_positives=2, members=3, false_positives=0, non_members=2)
    """
    threshold = np.sort(others)[::-1][len(others) // PER_FALSE_POSITIVE]
    return Counts(int((members > threshold).sum()), len(members), int((others > threshold).sum()), len(others))


def attacks(learner: Learner, models: Mapping[str, Served], shadow_models: int) -> dict[str, dict[str, Counts]]:
    """Attacks models with a participant's samples.

    In the likelihood ratio, a sample's confidence without it is a Gaussian. Its mean is that of half of the shadow
    models, and its deviation is the same for all samples: few models do not tell them apart (Carlini et al. 2022, sec.
    VI-C). So the score is how far the target's confidence is above that mean.

    Args:
        learner: the participant, after the run's last round.
        models: the targets, by name.
        shadow_models: how many it trains for comparison, an even number.

    Returns:
        The counts of each attack on each model.

    Raises:
        AbortedError: the job was aborted.
    """
    means = [np.mean(of_split, axis=0) for of_split in zip(*outside(learner, shadow_models))]
    counts = {}
    for name, served in models.items():
        sure = confidences(learner, served)
        unusual = [of_split - mean for of_split, mean in zip(sure, means)]
        counts[name] = {LOSS: counted(*sure), LIKELIHOOD_RATIO: counted(*unusual)}
    return counts


def outside(learner: Learner, shadow_models: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each pair of shadow models, the confidence in each training and each test sample of one that has not seen it.

    The models of a pair are trained on the two halves of the training samples. Neither has seen a test sample: every
    second one is given to the first, so that members and others have means of equally many models.
    """
    second = np.arange(learner.tests) % 2 == 1
    for number in range(shadow_models // 2):
        first, halves = halved(learner, f"shadow {number}")
        (members, others), (members_of_second, others_of_second) = (shadow(learner, half) for half in halves)
        yield np.where(first, members_of_second, members), np.where(second, others_of_second, others)


def halved(learner: Learner, name: str) -> tuple[np.ndarray, list[Learner]]:
    """Splits the training samples at random: which are in the first half, and the participant with each half.

    The two remember nothing yet, and draw from streams that have this name.
    """
    first = learner._stream(name).permutation(learner.samples) < learner.samples // 2
    halves = []
    for half, chosen in enumerate((first, ~first)):
        rows = torch.from_numpy(np.flatnonzero(chosen)).to(learner._train.y.device)
        train = Split(learner._train.x[rows], learner._train.y[rows])
        changes = {"_train": train, "samples": len(train), "_part": f"{learner._part}{name}.{half}."}
        halves.append(learner._view(**changes, memory={}, _losses={}, _weights=None))
    return first, halves


def shadow(learner: Learner, half: Learner) -> tuple[np.ndarray, np.ndarray]:
    """The confidences of a model that is trained on half of the training samples as the run trains.

    It begins untrained, and trains by itself for as many rounds as the run had.
    """
    model = half.initial(0)
    for number in range(learner.round):
        model = half.in_round(number).train(model)
    return confidences(learner._view(memory=half.memory), model)


def confidences(learner: Learner, model: Params | Served) -> tuple[np.ndarray, np.ndarray]:
    """How sure a model is of each training and of each test sample; see `LearningTask.confidences`."""
    task, splits = learner._runtime.task, (learner._train, learner._test)
    of_train, of_test = (task.confidences(learner.outputs(model, split.x), split.y).cpu().numpy() for split in splits)
    return of_train, of_test
