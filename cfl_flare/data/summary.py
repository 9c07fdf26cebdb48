# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A participant's data in numbers, and what is unusual about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cfl_flare.data.federate import ParticipantData
from cfl_flare.data.labels import form_of, outputs_for, strata

# Normalised samples are in [-1, 1], or within a few deviations; beyond this they were never scaled.
FAR = 20
# What the counts of each form of labels are.
COUNTED = {
    "class": "by class",
    "several": "by finding",
    "number": "labels of",
    "time": "by event",
    "mask": "with pixels of class",
}


@dataclass(frozen=True)
class DataSummary:
    """A participant's data in numbers.

    Attributes:
        shape: of one sample.
        form: of the labels, one of `cfl_flare.data.labels.FORMS`.
        samples: how many there are for training and for testing.
        outputs: how many a model of these labels has.
        train: training samples of each class, with each finding, without and with the event, or whose mask has each
            class; empty for numbers.
        test: test samples, likewise.
        span: mean, smallest and largest of the training numbers or times; None for other labels.
        reach: the largest absolute value of a normalised training sample.
        identical: all training samples are the same.
    """

    shape: tuple[int, ...]
    form: str
    samples: tuple[int, int]
    outputs: int
    train: tuple[int, ...]
    test: tuple[int, ...]
    span: tuple[float, float, float] | None
    reach: float
    identical: bool

    @classmethod
    def of(cls, data: ParticipantData) -> DataSummary:
        """Summarises a participant's data."""
        x, y, test_y = data.train.x, data.train.y, data.test.y
        form, outputs = form_of(y, data.name), outputs_for(y, test_y)
        numbers = y if form == "number" else y[:, 0] if form == "time" else None
        return cls(
            shape=tuple(x.shape[1:]),
            form=form,
            samples=(len(y), len(test_y)),
            outputs=outputs,
            train=_counts(y, form, outputs),
            test=_counts(test_y, form, outputs),
            span=None if numbers is None else (float(numbers.mean()), float(numbers.min()), float(numbers.max())),
            reach=float(np.abs(x).max()),
            identical=len(x) > 1 and bool((x == x[:1]).all()),
        )

    @property
    def line(self) -> str:
        """The numbers in one line."""
        shape = "x".join(map(str, self.shape))
        train, test = self.samples
        return f"{train} training and {test} test samples of {shape}, {COUNTED[self.form]} {self.counts}"

    @property
    def counts(self) -> str:
        """Training and test samples by label, or the span of the training numbers."""
        span = "" if self.span is None else "mean {:.4g}, from {:.4g} to {:.4g}".format(*self.span)
        if self.form == "number":
            return span
        names = ("censored", "event") if self.form == "time" else range(len(self.train))
        by_label = ", ".join(f"{c}: {n}+{m}" for c, n, m in zip(names, self.train, self.test))
        return f"{by_label}; times of {span}" if span else by_label

    @property
    def remarks(self) -> list[str]:
        """What is unusual but does not prevent a job from running, each with its way out."""
        found = [*self._untested, *self._absent, *self._alike]
        if self.identical:
            found.append("all training samples are the same; check how they were written")
        return [*found, *filter(None, [self.unscaled])]

    @property
    def _untested(self) -> list[str]:
        """A remark on a test split without samples; empty if it has some."""
        if self.samples[1]:
            return []
        return ["no test samples: it trains, and no figure says how good its model is here; keep some samples back"]

    @property
    def _absent(self) -> list[str]:
        """A remark on labels that only test samples have; empty if there are none."""
        absent = [c for c, (n, m) in enumerate(zip(self.train, self.test)) if m and not n]
        if not absent or self.form == "time":
            return []
        return [f"test labels {absent} never occur in training; check how the two were split"]

    @property
    def _alike(self) -> list[str]:
        """A remark on training labels from which nothing can be learned; empty if they differ."""
        if self.form == "number" and self.span is not None and self.span[1] == self.span[2]:
            return [f"all training samples have label {self.span[1]:.4g}; check the labels"]
        if self.form == "class" and np.count_nonzero(self.train) == 1:
            return [f"all training samples have label {int(np.argmax(self.train))}; check the labels"]
        if self.form == "several" and not any(self.train):
            return ["no training sample has a finding; check the labels"]
        if self.form == "mask" and not any(self.train[1:]):
            return ["no training mask has a class besides the background; check the masks"]
        if self.form == "time" and not self.train[1]:
            return ["no training sample has the event; check the column of events"]
        return []

    @property
    def unscaled(self) -> str:
        """A remark on samples that were never scaled; empty if they were."""
        if self.reach <= FAR:
            return ""
        largest = (self.reach + 1) / 2
        return f"samples reach {largest:.0f} where 0 to 1 is expected; bring them to uint8, or floats in [0, 1]"


def clipped_line(people: Iterable[ParticipantData]) -> list[str]:
    """How many numbers of tables are clipped, in one line; none if none is ever clipped."""
    found = [(one.clipped, one.preparation.clip) for one in people if one.clipped is not None and one.preparation]
    count = sum(clipped for clipped, _ in found)
    return (
        [f"{count} numbers are further from their mean than {found[0][1]:g} deviations, and clipped"] if found else []
    )


def _counts(y: np.ndarray, form: str, outputs: int) -> tuple[int, ...]:
    """Samples by label, as `DataSummary.train` has them."""
    if form == "several":
        found = y.sum(axis=0, dtype=np.int64)
    elif form == "mask":
        found = np.array([(y == c).any(axis=(1, 2)).sum() for c in range(outputs)])
    elif form == "number":
        found = np.zeros(0, np.int64)
    elif not len(y):
        found = np.zeros(2 if form == "time" else outputs, np.int64)
    else:
        found = np.bincount(strata(y), minlength=2 if form == "time" else outputs)
    return tuple(found.tolist())
