# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a partition in numbers: sizes, label counts, true groups, and what stayed unused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cfl_flare.data.deal import Deal
from cfl_flare.data.samples import Samples


@dataclass(frozen=True)
class PartitionReport:
    """A partition in numbers. Labels are those of the source, before a rule changes any.

    Attributes:
        rule: the rule's name.
        names: the participants.
        truth: their true groups, None where the rule has none.
        train: ``(participants, classes)`` training samples of each class.
        test: ``(participants, classes)`` test samples of each class.
        train_total: ``(classes,)`` training samples of the source.
        test_total: ``(classes,)`` test samples of the source.
        disjoint: no sample was given to two participants.
    """

    rule: str
    names: list[str]
    truth: list[int | None]
    train: np.ndarray
    test: np.ndarray
    train_total: np.ndarray
    test_total: np.ndarray
    disjoint: bool

    @property
    def train_unused(self) -> int:
        """Training samples that no participant has."""
        return int(self.train_total.sum() - self.train.sum())

    @property
    def test_unused(self) -> int:
        """Test samples that no participant has."""
        return int(self.test_total.sum() - self.test.sum())


def participant_names(participants: int) -> list[str]:
    """``p0, p1, ...``, with as many digits as the last one needs."""
    width = len(str(participants - 1))
    return [f"p{i:0{width}d}" for i in range(participants)]


def report_of(train: Samples, test: Samples, deal: Deal, rule: str) -> PartitionReport:
    """Counts the samples of a deal of a source's training and test samples by a rule."""
    classes = int(max(train.y.max(), test.y.max())) + 1
    dealt = ((train, deal.train), (test, deal.test))
    own, own_test = (np.stack([np.bincount(s.y[part], minlength=classes) for part in parts]) for s, parts in dealt)
    total, total_test = (np.bincount(samples.y, minlength=classes) for samples in (train, test))
    disjoint = all(len(np.unique(every)) == len(every) for every in map(np.concatenate, (deal.train, deal.test)))
    names = participant_names(len(deal.train))
    return PartitionReport(rule, names, list(deal.truth), own, own_test, total, total_test, disjoint)
