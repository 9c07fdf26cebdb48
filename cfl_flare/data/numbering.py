# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of classes in place of the words and codes that samples have as labels; see `cfl_flare.data.classes`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.data.classes import (
    close_gaps,
    list_names,
    name_codes,
    number_words,
    numbers_of,
    order_of,
)

if TYPE_CHECKING:
    from cfl_flare.data.samples import Samples


def number_codes(train: Samples, test: Samples) -> tuple[Samples, Samples]:
    """Both splits with class numbers from 0 to the number of classes; codes become the classes' names."""
    if train.classes or train.y.ndim != 1 or train.y.dtype.kind not in "iu":
        return train, test
    closed = close_gaps(np.concatenate((train.y, test.y)))
    if closed is None:
        return train, test
    return _with_labels(train, test, *closed)


def name_labels(train: Samples, test: Samples, where: str) -> tuple[Samples, Samples]:
    """Both splits with numbers in place of words and codes that cannot be class numbers; see `name_codes`."""
    labels = [
        part.y
        for part in (train, test)
        if isinstance(part.y, np.ndarray) and part.y.size
    ]
    if not labels or any(y.ndim != 1 for y in labels):
        return train, test
    if all(are_words(y) for y in labels):
        words = np.concatenate([y.astype(str) for y in labels])
        return _with_labels(train, test, *number_words(words, train.classes, where))
    if any(y.dtype.kind not in "iuf" for y in labels):
        return train, test
    coded = name_codes(np.concatenate(labels))
    if coded is None:
        return train, test
    numbers, names = coded
    return _with_labels(train, test, numbers, train.classes or names)


def are_words(labels: np.ndarray) -> bool:
    """Whether labels are text."""
    return labels.dtype.kind == "U" or (
        labels.dtype.kind == "O" and all(isinstance(y, str) for y in labels.flat)
    )


def _with_labels(
    train: Samples, test: Samples, y: np.ndarray, classes: tuple[str, ...]
) -> tuple[Samples, Samples]:
    """Both splits with other labels, ``y`` of the training samples and then of the test samples."""
    count = len(train)
    return replace(train, y=y[:count], classes=classes), replace(
        test, y=y[count:], classes=classes
    )


def renumber(samples: Samples, classes: tuple[str, ...], where: str) -> Samples:
    """Samples whose classes have the numbers that they have in a run.

    Args:
        samples: of a site that numbered its classes by itself.
        classes: the names of the run's classes in the order of their numbers; none if it called them by their numbers.
        where: names the samples in an error.

    Raises:
        DataError: a class is none of the run's.
    """
    if (
        not classes
        or samples.y.ndim != 1
        or samples.y.dtype.kind not in "iu"
        or samples.classes == classes
    ):
        return samples
    if samples.classes:
        order = order_of(samples.classes, classes, where)
        return replace(samples, y=order[samples.y], classes=classes)
    if numbers_of(classes) is None:  # the numbers are those of the run's names
        return replace(samples, classes=classes)
    return replace(
        samples, y=number_words(samples.y, classes, where)[0], classes=classes
    )


def as_numbers(samples: Samples, where: str) -> Samples:
    """Samples whose labels are the numbers that their classes are called by, for a task that predicts numbers.

    Raises:
        DataError: a class is called by a word.
    """
    if not samples.classes:
        return samples
    numbers = numbers_of(samples.classes)
    if numbers is None:
        words = f"labels are names ({list_names(samples.classes)})"
        raise DataError(
            f"{where}: {words}, and the task takes numbers; set task to 'classification'"
        )
    y = numbers[samples.y]
    is_whole = bool((y == np.floor(y)).all())
    return replace(samples, y=y.astype(np.int64) if is_whole else y, classes=())
