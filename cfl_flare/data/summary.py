# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A participant's data, and what it and a whole partition are in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cfl_flare.core.text import plain
from cfl_flare.data.classes import LONGEST_NAME, describe_classes, list_names
from cfl_flare.data.deal import Deal
from cfl_flare.data.labels import form_of, outputs_for, strata
from cfl_flare.data.pixels import describe_range
from cfl_flare.data.preparation import CLIP, Preparation
from cfl_flare.data.samples import Samples

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
class ParticipantData:
    """One participant's samples, normalised, float32.

    Attributes:
        group: its true group in a simulation, else None.
        preparation: how its samples were filled up and scaled; None if the source has no such step.
        stream: names its random streams, so that they do not depend on what a hospital is called; empty for its name.
        clipped: how many of its numbers were too far from their mean; None if none is ever clipped.
    """

    name: str
    train: Samples
    test: Samples
    group: int | None = None
    preparation: Preparation | None = None
    stream: str = ""
    clipped: int | None = None


@dataclass(frozen=True)
class DataSummary:
    """A participant's data in numbers.

    Attributes:
        form: of the labels, one of `cfl_flare.data.labels.FORMS`.
        outputs: how many a model of these labels has.
        train: training samples of each class, with each finding, without and with the event, or whose mask has each
            class; empty for numbers.
        test: test samples, likewise.
        span: mean, smallest and largest of the training numbers or times; None for other labels.
        reach: the largest absolute value of a normalised training sample.
        identical: all training samples are the same.
        names: of the classes or findings, in the order of their numbers; none if they are called by these.
        least: the smallest number of all normalised training samples.
        most: the largest one.
        prepared: a source has filled up the samples; else they are pixels.
        scaled: a source has scaled the samples by a mean and a deviation.
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
    names: tuple[str, ...] = ()
    least: float = 0.0
    most: float = 0.0
    prepared: bool = False
    scaled: bool = False

    @classmethod
    def of(cls, data: ParticipantData) -> DataSummary:
        x, y, test_y = data.train.x, data.train.y, data.test.y
        form, outputs = form_of(y, data.name), outputs_for(y, test_y)
        if form in ("class", "mask"):
            outputs = max(outputs, len(data.train.classes))
        numbers = y if form == "number" else y[:, 0] if form == "time" else None
        return cls(
            shape=tuple(x.shape[1:]),
            form=form,
            samples=(len(y), len(test_y)),
            outputs=outputs,
            train=_counts(y, form, outputs),
            test=_counts(test_y, form, outputs),
            span=None
            if numbers is None
            else (float(numbers.mean()), float(numbers.min()), float(numbers.max())),
            reach=float(np.abs(x).max()),
            identical=len(x) > 1 and bool((x == x[:1]).all()),
            names=data.train.classes,
            least=float(x.min()),
            most=float(x.max()),
            prepared=data.preparation is not None,
            scaled=data.preparation is not None and data.preparation.is_scaled,
        )

    @property
    def line(self) -> str:
        shape = "x".join(map(str, self.shape))
        train, test = self.samples
        return f"{train} training and {test} test samples of {shape}, {COUNTED[self.form]} {self.counts}"

    @property
    def counts(self) -> str:
        """Training and test samples by label, or the span of the training numbers."""
        span = (
            ""
            if self.span is None
            else "mean {:.4g}, from {:.4g} to {:.4g}".format(*self.span)
        )
        if self.form == "number":
            return span
        counts = zip(range(len(self.train)), self.train, self.test)
        by_label = ", ".join(f"{self._name(c)}: {n}+{m}" for c, n, m in counts)
        return f"{by_label}; times of {span}" if span else by_label

    def _name(self, number: int) -> str:
        """What a class or finding is called in a line."""
        if self.form == "time":
            return ("censored", "event")[number]
        if self.names:
            return plain(self.names[number], LONGEST_NAME)
        return str(number)

    @property
    def remarks(self) -> list[str]:
        """What is unusual but does not prevent a job from running, each with its way out."""
        untested = "no test samples: it trains, and no figure says how good its model is here; keep some samples back"
        counts = enumerate(zip(self.train, self.test))
        absent = [
            self._name(c) for c, (n, m) in counts if m and not n and self.form != "time"
        ]
        unknown = f"test labels {', '.join(absent)} never occur in training; check how the two were split"
        identical = "all training samples are the same; check how they were written"
        lines = [
            untested * (not self.samples[1]),
            unknown * bool(absent),
            self._alike,
            identical * self.identical,
        ]
        return [line for line in (*lines, self._without_rows, self.unscaled) if line]

    @property
    def _without_rows(self) -> str:
        """A remark on classes that no sample has; empty if all have some."""
        if self.form != "class":
            return ""
        empty = [
            self._name(c)
            for c, (n, m) in enumerate(zip(self.train, self.test))
            if not n + m
        ]
        if not empty:
            return ""
        way_out = "if the labels are codes and not numbers from 0, name them by classes, alike at all sites"
        if self.names:
            way_out = "check that other sites have some"
        return f"no sample is of class {list_names(empty)}; {way_out}"

    @property
    def _alike(self) -> str:
        """A remark on training labels from which nothing can be learned; empty if they differ."""
        if (
            self.form == "number"
            and self.span is not None
            and self.span[1] == self.span[2]
        ):
            return (
                f"all training samples have label {self.span[1]:.4g}; check the labels"
            )
        if self.form == "class" and np.count_nonzero(self.train) == 1:
            return f"all training samples have label {self._name(int(np.argmax(self.train)))}; check the labels"
        if self.form == "several" and not any(self.train):
            return "no training sample has a finding; check the labels"
        if self.form == "mask" and not any(self.train[1:]):
            return (
                "no training mask has a class besides the background; check the masks"
            )
        if self.form == "time" and not self.train[1]:
            return "no training sample has the event; check the column of events"
        return ""

    @property
    def unscaled(self) -> str:
        """A remark on samples that were never scaled; empty if they were."""
        smallest = (self.least + 1) / 2
        largest = (self.most + 1) / 2
        if not self.prepared:
            return describe_range(smallest, largest)
        if not self.scaled and self.reach > FAR:
            return f"samples go from {smallest:.3g} to {largest:.3g} where 0 to 1 is expected; set scaling to auto"
        if self.reach <= FAR:
            return ""
        return f"samples reach {self.reach:.0f} deviations; look for a mistaken unit, or set scaling to auto"


def _counts(y: np.ndarray, form: str, outputs: int) -> tuple[int, ...]:
    """Samples by label, as `DataSummary.train` has them."""
    labels = 2 if form == "time" else outputs
    if form == "number":
        return ()
    if form == "several":
        return tuple(y.sum(axis=0, dtype=np.int64).tolist())
    if form == "mask":
        return tuple(int((y == c).any(axis=(1, 2)).sum()) for c in range(outputs))
    return (
        tuple(np.bincount(strata(y), minlength=labels).tolist())
        if len(y)
        else (0,) * labels
    )


def class_lines(people: Sequence[ParticipantData]) -> list[str]:
    """Lines on the classes of participants together: their names by number, and classes without a sample."""
    labels = [
        part.y for data in people for part in (data.train, data.test) if len(part)
    ]
    if not labels or form_of(labels[0], people[0].name) != "class":
        return []
    names = people[0].train.classes
    every = np.concatenate(labels)
    return describe_classes(names, np.bincount(every, minlength=len(names)).tolist())


def clipped_line(people: Iterable[ParticipantData]) -> list[str]:
    """How many numbers of tables are clipped, in one line; none if none is ever clipped."""
    counts = [data.clipped for data in people if data.clipped is not None]
    line = f"{sum(counts)} numbers are further from their mean than {CLIP:g} deviations, and clipped"
    return [line] if counts else []


@dataclass(frozen=True)
class PartitionReport:
    """A partition in numbers. Labels are those of the source, before a rule changes any.

    Labels that are no class numbers are counted by the strata of `cfl_flare.data.labels`, each as a class.

    Attributes:
        truth: the participants' true groups, None where the rule has none.
        train: ``(participants, classes)`` training samples of each class; ``test`` likewise.
        train_total: ``(classes,)`` training samples of the source; ``test_total`` likewise.
        train_unused: training samples of the source that no participant has; ``test_unused`` likewise.
        disjoint: no sample was given to two participants, or to one for training and for testing.
        classes: the names of the classes; none if they are called by their numbers.
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
    classes: tuple[str, ...] = ()

    def name_class(self, number: int) -> str:
        """What a class is called in tables and figures."""
        return (
            plain(self.classes[number], LONGEST_NAME) if self.classes else str(number)
        )


def participant_names(participants: int) -> list[str]:
    """``p0, p1, ...``, with as many digits as the last one needs."""
    width = len(str(participants - 1))
    return [f"p{i:0{width}d}" for i in range(participants)]


def report_of(
    train: Samples, test: Samples, deal: Deal, rule: str, names: list[str] | None = None
) -> PartitionReport:
    """Counts the samples of a deal of a source's splits by a rule, perhaps to participants of these names."""
    y = np.concatenate((strata(train.y), strata(test.y, train.y)))
    classes = int(y.max()) + 1
    counts, test_counts = (
        np.stack([np.bincount(y[part], minlength=classes) for part in parts])
        for parts in (deal.train, deal.test)
    )
    times = np.bincount(
        np.concatenate((*deal.train, *deal.test)), minlength=len(y)
    )  # that each sample was dealt
    return PartitionReport(
        rule=rule,
        names=names or participant_names(len(deal.train)),
        truth=list(deal.truth),
        train=counts,
        test=test_counts,
        train_total=np.bincount(y[: len(train)], minlength=classes),
        test_total=np.bincount(y[len(train) :], minlength=classes),
        train_unused=int((times[: len(train)] == 0).sum()),
        test_unused=int((times[len(train) :] == 0).sum()),
        disjoint=bool((times <= 1).all()),
        classes=train.classes if form_of(train.y, rule) == "class" else (),
    )
