# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The forms that labels have, told from their dtype and shape, and the strata by which they are dealt out.

class
    ``(n,)`` whole numbers from 0: the class of each sample.
several
    ``(n, C)`` whole numbers, 0 or 1: which of C findings each sample has.
number
    ``(n,)`` floats, or whole numbers with one below 0: what a regression predicts.
time
    ``(n, 2)`` floats: the time, above 0, and 1 if the event happened then, 0 if the sample was censored then.
mask
    ``(n, h, w)`` whole numbers from 0: the class of each pixel, 0 for the background.
"""

from __future__ import annotations

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.data.classes import MOST_CLASSES

FORMS = {
    "class": "class numbers",
    "several": "several findings of 0 or 1 each",
    "number": "numbers to predict",
    "time": "times with events",
    "mask": "masks",
}
# Squares of larger numbers, and sums of them, are beyond float32.
LARGEST = 1e16


def form_of(y: np.ndarray, where: str) -> str:
    """The form of labels, one of `FORMS`; bools count as 0 and 1. A DataError with ``where`` if they have none."""
    is_whole, is_real = y.dtype.kind in "biu", y.dtype.kind == "f"
    if y.ndim == 1 and (is_real or (is_whole and y.min(initial=0) < 0)):
        return "number"
    if y.ndim == 2 and is_real and y.shape[1] == 2:
        return "time"
    if y.ndim == 2 and is_whole and y.shape[1]:
        if y.min(initial=0) < 0 or y.max(initial=0) > 1:
            row, column = np.argwhere((y != 0) & (y != 1))[0]
            meaning = f"labels of shape {y.shape} say which of {y.shape[1]} findings a sample has"
            value = f"sample {row} has {y[row, column]}"
            way_out = "write 1 for a finding that is there and 0 for one that is not, or one class number per sample"
            raise DataError(f"{where}: {meaning}, and {value}; {way_out} (n,)")
        return "several"
    if y.ndim not in (1, 3) or not is_whole:
        raise DataError(
            f"{where}: labels have dtype {y.dtype} and shape {y.shape}; give class numbers or numbers to predict (n,), "
            "findings of 0 or 1 (n, C), times and events as floats (n, 2), or masks (n, h, w) of class numbers"
        )
    if y.min(initial=0) < 0:
        raise DataError(
            f"{where}: a mask has the label {y.min()}, below 0; number the classes from 1, the rest is 0"
        )
    if y.max(initial=0) >= MOST_CLASSES:
        way_out = "number the classes from 0, and give numbers to predict as floats"
        raise DataError(f"{where}: label {y.max()} is not a class number; {way_out}")
    return "class" if y.ndim == 1 else "mask"


def check_labels(y: np.ndarray, x: np.ndarray, where: str) -> None:
    """Raises a DataError if labels have none of the forms, or do not fit it or the samples ``(n, *input_shape)``."""
    form = form_of(y, where)
    if form == "mask" and (x.ndim != 4 or x.shape[2:] != y.shape[1:]):
        reason = (
            f"masks are {y.shape[1]}x{y.shape[2]}, and samples have shape {x.shape[1:]}"
        )
        raise DataError(
            f"{where}: {reason}; give each image (channels, h, w) a mask of its height and width"
        )
    if form not in ("number", "time"):
        return
    valid = (
        np.abs(y.reshape(len(y), -1).astype(np.float64)).max(axis=1) <= LARGEST
    )  # NaN is not
    if len(bad := np.flatnonzero(~valid)):
        label = f"sample {bad[0]} has the label {y[bad[0]]}"
        raise DataError(
            f"{where}: {label}; labels are finite numbers up to {LARGEST:g}"
        )
    if form == "number":
        return
    time, event = y.T
    if len(bad := np.flatnonzero(time <= 0)):
        raise DataError(
            f"{where}: sample {bad[0]} has the time {time[bad[0]]}; times are above 0"
        )
    if len(bad := np.flatnonzero(~np.isin(event, (0, 1)))):
        advice = "write 1 where it happened, 0 where the sample was censored"
        raise DataError(
            f"{where}: sample {bad[0]} has the event {event[bad[0]]}; {advice}"
        )


def of_one_form(
    train: np.ndarray, test: np.ndarray, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """The labels of both splits, of one form: bools as bytes; numbers as floats, also where only one split has them."""
    form, other = form_of(train, f"{where}: training"), form_of(test, f"{where}: test")
    if "number" in (form, other) and {form, other} <= {"number", "class"}:
        y, test_y = (
            labels if labels.dtype.kind == "f" else labels.astype(np.float64)
            for labels in (train, test)
        )
        return y, test_y
    if form != other:
        reason = f"training labels are {FORMS[form]} {train.shape}, test labels {FORMS[other]} {test.shape}"
        raise DataError(f"{where}: {reason}; give both the same form")
    if train.shape[1:] != test.shape[1:]:
        reason = f"training labels have shape {train.shape}, test labels {test.shape}"
        raise DataError(f"{where}: {reason}; give both the same findings")
    y, test_y = (
        labels.astype(np.uint8) if labels.dtype == bool else labels
        for labels in (train, test)
    )
    return y, test_y


def strata(y: np.ndarray, train: np.ndarray | None = None) -> np.ndarray:
    """The stratum of each sample: by it a pooled set is dealt out, and split for testing.

    It is the class; the first finding, counted from 1, and 0 without one; the fifth of the training labels in which a
    number lies; the event, 0 or 1; of a mask, the class with most pixels apart from the background, and 0 without one.

    Args:
        y: the labels of one split.
        train: the training labels, whose fifths hold for both splits; by default ``y``.

    Returns:
        ``(n,)`` int64, from 0.
    """
    if not len(y):
        split = "training" if train is None else "test"
        raise DataError(
            f"there are no {split} samples to deal out; put some into the source's {split} split"
        )
    form = form_of(y, "labels")
    if form == "several":
        return np.where(y.any(axis=1), 1 + y.argmax(axis=1), 0)
    if form == "number":
        numbers = y if train is None else train
        fifths = np.quantile(numbers, (0.2, 0.4, 0.6, 0.8), method="higher")
        edges = np.unique(fifths)  # fewer where many numbers are equal
        return np.searchsorted(edges[edges > numbers.min()], y, side="right")
    if form == "mask":
        return np.array([_largest(mask) for mask in y], np.int64)
    return (y if form == "class" else y[:, 1]).astype(np.int64)


def _largest(mask: np.ndarray) -> int:
    pixels = np.bincount(mask.ravel().astype(np.int64))
    pixels[:1] = 0
    return int(pixels.argmax()) if pixels.any() else 0


def outputs_for(train: np.ndarray, test: np.ndarray) -> int:
    """How many outputs a model of both splits' labels has: their classes or findings; 1 for a number or a risk."""
    form = form_of(train, "labels")
    if form in ("number", "time"):
        return 1
    return (
        train.shape[1]
        if form == "several"
        else int(max(train.max(), test.max(initial=0))) + 1
    )
