# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a partition did with the data: sizes, label counts, true groups, and what stayed unused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cfl_flare.data.deal import Deal
from cfl_flare.data.samples import Samples


@dataclass(frozen=True)
class PartitionReport:
    """A partition in numbers. Labels are counted as the source has them, before a rule renames any.

    Attributes:
        rule: the rule's name.
        names: the participants.
        truth: their true groups, None where the rule has none.
        train: ``(participants, classes)`` training samples of each class.
        test: ``(participants, classes)`` test samples of each class.
        train_total: ``(classes,)`` training samples of the source.
        test_total: ``(classes,)`` test samples of the source.
        disjoint: no sample went to two participants.
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
        """Training samples that nobody got."""
        return int(self.train_total.sum() - self.train.sum())

    @property
    def test_unused(self) -> int:
        """Test samples that nobody got."""
        return int(self.test_total.sum() - self.test.sum())

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return {
            "rule": self.rule,
            "disjoint": self.disjoint,
            "train": {"used": int(self.train.sum()), "unused": self.train_unused},
            "test": {"used": int(self.test.sum()), "unused": self.test_unused},
            "participants": [
                {
                    "name": name,
                    "group": group,
                    "train_size": int(train.sum()),
                    "test_size": int(test.sum()),
                    "train_labels": train.tolist(),
                    "test_labels": test.tolist(),
                }
                for name, group, train, test in zip(self.names, self.truth, self.train, self.test)
            ],
        }


def participant_names(participants: int) -> list[str]:
    """``p0, p1, ...``, with as many digits as the last one needs."""
    width = len(str(participants - 1))
    return [f"p{i:0{width}d}" for i in range(participants)]


def report_of(train: Samples, test: Samples, deal: Deal, rule: str) -> PartitionReport:
    """Counts what a deal did.

    Args:
        train: the samples that were dealt.
        test: the samples that were dealt.
        deal: who got what.
        rule: the rule's name.
    """
    classes = int(max(train.y.max(), test.y.max())) + 1
    counted = [
        np.stack([np.bincount(samples.y[own], minlength=classes) for own in parts])
        for samples, parts in ((train, deal.train), (test, deal.test))
    ]
    disjoint = all(len(np.unique(both)) == len(both) for both in map(np.concatenate, (deal.train, deal.test)))
    return PartitionReport(
        rule=rule,
        names=participant_names(len(deal.train)),
        truth=list(deal.truth),
        train=counted[0],
        test=counted[1],
        train_total=np.bincount(train.y, minlength=classes),
        test_total=np.bincount(test.y, minlength=classes),
        disjoint=disjoint,
    )
