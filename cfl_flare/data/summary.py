# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A participant's data in numbers, and what is unusual about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cfl_flare.data.federate import ParticipantData

# Normalised samples are in [-1, 1], or within a few deviations; beyond this they were never scaled.
FAR = 20


@dataclass(frozen=True)
class DataSummary:
    """A participant's data in numbers.

    Attributes:
        shape: of one sample.
        train: training samples of each class.
        test: test samples of each class.
        reach: the largest absolute value of a normalised training sample.
        identical: all training samples are the same.
    """

    shape: tuple[int, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    reach: float
    identical: bool

    @classmethod
    def of(cls, data: ParticipantData) -> DataSummary:
        """Summarises a participant's data."""
        classes = int(max(data.train.y.max(), data.test.y.max())) + 1
        train, test = (tuple(np.bincount(y, minlength=classes).tolist()) for y in (data.train.y, data.test.y))
        x = data.train.x
        return cls(tuple(x.shape[1:]), train, test, float(np.abs(x).max()), len(x) > 1 and bool((x == x[:1]).all()))

    @property
    def line(self) -> str:
        """The numbers in one line."""
        shape = "x".join(map(str, self.shape))
        return f"{sum(self.train)} training and {sum(self.test)} test samples of {shape}, by class {self.counts}"

    @property
    def counts(self) -> str:
        """Training and test samples of each class."""
        return ", ".join(f"{c}: {n}+{m}" for c, (n, m) in enumerate(zip(self.train, self.test)))

    @property
    def remarks(self) -> list[str]:
        """What is unusual but does not prevent a job from running, each with its way out."""
        found = []
        absent = [c for c, (n, m) in enumerate(zip(self.train, self.test)) if m and not n]
        if absent:
            found.append(f"test labels {absent} never occur in training; check how the two were split")
        if np.count_nonzero(self.train) == 1:
            found.append(f"all training samples have label {int(np.argmax(self.train))}; check the labels")
        if self.identical:
            found.append("all training samples are the same; check how they were written")
        return [*found, *filter(None, [self.unscaled])]

    @property
    def unscaled(self) -> str:
        """A remark on samples that were never scaled; empty if they were."""
        if self.reach <= FAR:
            return ""
        largest = (self.reach + 1) / 2
        return f"samples reach {largest:.0f} where 0 to 1 is expected; bring them to uint8, or floats in [0, 1]"
