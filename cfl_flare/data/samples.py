# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What every data source yields, and what is checked of it."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import CFLError, DataError
from cfl_flare.core.seeds import stream

# Counts are kept by participant and class; a label beyond this is an identifier that was taken for a class.
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Samples:
    """Some labelled samples.

    Attributes:
        x: ``(n, *input_shape)``, images as ``(n, channels, height, width)``; uint8, or float32 in [0, 1].
        y: ``(n,)`` int64 labels, from 0.
        key: ``(n,)`` whose sample each is (a user, a site), whole numbers or text, for the partition ``natural``; None
            where nobody knows.
    """

    x: np.ndarray
    y: np.ndarray
    key: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: np.ndarray) -> Samples:
        """The samples at these indices."""
        return Samples(self.x[indices], self.y[indices], None if self.key is None else self.key[indices])

    def check(self, where: str) -> Samples:
        """Itself, if it is sound.

        Raises:
            DataError: lengths that differ, an empty set, labels that are no class numbers, NaN or infinity.
        """
        for name, array in (("x", self.x), ("y", self.y)):
            if not isinstance(array, np.ndarray) or not array.ndim:
                raise DataError(f"{where}: {name} is a {type(array).__name__}; make it an array, one row a sample")
        if len(self.x) != len(self.y):
            raise DataError(f"{where}: {len(self.x)} samples but {len(self.y)} labels; give one label a sample")
        if not len(self.y):
            raise DataError(f"{where}: no samples; training and test need some each")
        if self.y.ndim != 1 or self.y.dtype.kind not in "iu":
            raise DataError(f"{where}: labels should be whole numbers, one a sample, not {self.y.dtype} {self.y.shape}")
        if self.y.min() < 0:
            raise DataError(f"{where}: label {self.y.min()} is below 0; number the classes from 0")
        if self.y.max() >= MOST_CLASSES:
            raise DataError(f"{where}: label {self.y.max()} is no class number; number the classes from 0")
        if self.x.dtype.kind == "f" and not np.isfinite(self.x).all():
            bad = int(np.flatnonzero(~np.isfinite(self.x.reshape(len(self.x), -1)).all(axis=1))[0])
            raise DataError(f"{where}: sample {bad} holds NaN or infinity; mend it or leave it out")
        if self.x.dtype.kind not in "fu" or (self.x.dtype.kind == "u" and self.x.dtype != np.uint8):
            raise DataError(f"{where}: samples have dtype {self.x.dtype}; use uint8 or float32")
        if self.key is not None:
            self._check_key(self.key, where)
        return self

    def _check_key(self, key: np.ndarray, where: str) -> None:
        if key.shape != self.y.shape:
            raise DataError(f"{where}: keys have shape {key.shape}, labels {self.y.shape}; give one key a sample")
        if key.dtype.kind not in "iuU":
            raise DataError(f"{where}: keys have dtype {key.dtype}; use whole numbers or text")


class DataSource(ABC):
    """What a site reads. Derive from it to bring your own data; keep the constructor's arguments as attributes."""

    @abstractmethod
    def load(self) -> tuple[Samples, Samples]:
        """Training and test samples.

        Raises:
            DataError: they cannot be read.
        """


def split_by_class(samples: Samples, test_share: float, seed: int) -> tuple[Samples, Samples]:
    """Holds back the same share of each class for testing."""
    rng = stream(seed, "test split")
    train, test = [], []
    for c in np.unique(samples.y):
        order = rng.permutation(np.flatnonzero(samples.y == c))
        held = round(len(order) * test_share)
        test.append(order[:held])
        train.append(order[held:])
    return samples.take(np.concatenate(train)), samples.take(np.concatenate(test))


def normalised(x: np.ndarray) -> np.ndarray:
    """Float32 in about [-1, 1]: bytes over 255, then (x - 0.5) / 0.5. Floats are taken to be in [0, 1]."""
    scaled = x.astype(np.float32) / 255 if x.dtype == np.uint8 else x.astype(np.float32)
    return (scaled - 0.5) / 0.5


def read(source: DataSource, where: str) -> tuple[Samples, Samples]:
    """What a source loads: sound training and test samples that belong together.

    Args:
        source: a source, perhaps the user's own.
        where: what it is called, for the errors.

    Raises:
        DataError: ``load()`` failed, or what it returned is not sound.
    """
    try:
        loaded = source.load()
    except CFLError:
        raise
    except Exception as error:  # a source of the user's may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise DataError(
            f"{where}: load() failed with {one_line(error)} at {frame.filename}:{frame.lineno}; mend it there, or "
            "raise a DataError that says what to do"
        ) from error
    return checked(loaded, where)


def checked(load: Any, where: str) -> tuple[Samples, Samples]:
    """What a source's ``load`` returned, if it is a pair of sound sample sets that belong together."""
    if not (isinstance(load, tuple) and len(load) == 2 and all(isinstance(part, Samples) for part in load)):
        raise DataError(f"{where}: load() should return (train, test) as two Samples, not {type(load).__name__}")
    train, test = load[0].check(f"{where}: training"), load[1].check(f"{where}: test")
    if train.x.shape[1:] != test.x.shape[1:]:
        raise DataError(
            f"{where}: training samples are {train.x.shape[1:]}, test samples {test.x.shape[1:]}; bring them to "
            "one shape"
        )
    if (train.key is None) != (test.key is None):
        raise DataError(f"{where}: only one of training and test samples has keys; give both or neither")
    return train, test


def channels_first(images: np.ndarray, where: str) -> np.ndarray:
    """Images as ``(n, channels, height, width)``.

    Args:
        images: ``(n, h, w)``, ``(n, h, w, 1)`` or ``(n, h, w, 3)``.
        where: for the error.

    Raises:
        DataError: another shape.
    """
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    raise DataError(f"{where} has shape {images.shape}; should be (n, h, w) or (n, h, w, 3)")


def one_label_each(labels: np.ndarray) -> np.ndarray:
    """Labels as ``(n,)`` int64, where they are whole numbers, ``(n,)`` or ``(n, 1)``; others are left to the check."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return labels.astype(np.int64) if labels.dtype.kind in "iu" else labels
