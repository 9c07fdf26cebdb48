# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a partition in numbers: sizes, label counts, true groups, and what stayed unused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cfl_flare.data.deal import Deal
from cfl_flare.data.labels import strata
from cfl_flare.data.samples import Samples


@dataclass(frozen=True)
class PartitionReport:
    """A partition in numbers. Labels are those of the source, before a rule changes any.

    Labels that are no class numbers are counted by the strata of `cfl_flare.data.labels`, each as a class.

    Attributes:
        rule: the rule's name.
        names: the participants.
        truth: their true groups, None where the rule has none.
        train: ``(participants, classes)`` training samples of each class.
        test: ``(participants, classes)`` test samples of each class.
        train_total: ``(classes,)`` training samples of the source.
        test_total: ``(classes,)`` test samples of the source.
        train_unused: training samples of the source that no participant has.
        test_unused: test samples of the source that no participant has.
        disjoint: no sample was given to two participants, or to one for training and for testing.
    """

    rule: str
    names: list[str]
    truth: list[int | None]
    train: np.ndarray
    test: np.ndarray
    train_total: np.ndarray
    test_total: np.ndarray
    train_unused: int
    test_unused: int
    disjoint: bool


def participant_names(participants: int) -> list[str]:
    """``p0, p1, ...``, with as many digits as the last one needs."""
    width = len(str(participants - 1))
    return [f"p{i:0{width}d}" for i in range(participants)]


def report_of(train: Samples, test: Samples, deal: Deal, rule: str, names: list[str] | None = None) -> PartitionReport:
    """Counts the samples of a deal of a source's splits by a rule, perhaps to participants of these names."""
    y = np.concatenate((strata(train.y), strata(test.y, train.y)))
    classes = int(y.max()) + 1
    own, own_test = (
        np.stack([np.bincount(y[part], minlength=classes) for part in parts]) for parts in (deal.train, deal.test)
    )
    times = np.bincount(np.concatenate((*deal.train, *deal.test)), minlength=len(y))  # that each sample was dealt
    return PartitionReport(
        rule=rule,
        names=names or participant_names(len(deal.train)),
        truth=list(deal.truth),
        train=own,
        test=own_test,
        train_total=np.bincount(y[: len(train)], minlength=classes),
        test_total=np.bincount(y[len(train) :], minlength=classes),
        train_unused=int((times[: len(train)] == 0).sum()),
        test_unused=int((times[len(train) :] == 0).sum()),
        disjoint=bool((times <= 1).all()),
    )
