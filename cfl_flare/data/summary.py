# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a participant's data is, in numbers, and what is strange about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cfl_flare.data.federate import ParticipantData

# Normalised samples lie in [-1, 1], or in a few deviations; this far out they were never scaled.
FAR = 20


@dataclass(frozen=True)
class Facts:
    """A participant's data in numbers.

    Attributes:
        shape: of one sample.
        train: training samples of each class.
        test: test samples of each class.
        reach: the largest absolute value of a normalised training sample.
        alike: all training samples are the same.
    """

    shape: tuple[int, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    reach: float
    alike: bool

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
        """What is strange, but does not keep a job from running; each with its way out."""
        strange = []
        absent = [c for c, (n, m) in enumerate(zip(self.train, self.test)) if m and not n]
        if absent:
            strange.append(f"test labels {absent} never occur in training; check how the two were split")
        if np.count_nonzero(self.train) == 1:
            strange.append(f"all training samples have label {int(np.argmax(self.train))}; check the labels")
        if self.alike:
            strange.append("all training samples are the same; check how they were written")
        return [*strange, *([self.unscaled] if self.unscaled else [])]

    @property
    def unscaled(self) -> str:
        """That samples were never scaled, and the way out; empty where they were."""
        if self.reach <= FAR:
            return ""
        largest = (self.reach + 1) / 2
        return f"samples reach {largest:.0f} where 0 to 1 is expected; bring them to uint8, or floats in [0, 1]"


def facts_of(data: ParticipantData) -> Facts:
    """Looks at a participant's data."""
    classes = int(max(data.train.y.max(), data.test.y.max())) + 1
    train, test = (np.bincount(y, minlength=classes).tolist() for y in (data.train.y, data.test.y))
    x = data.train.x
    return Facts(
        tuple(x.shape[1:]), tuple(train), tuple(test), float(np.abs(x).max()), len(x) > 1 and bool((x == x[:1]).all())
    )
