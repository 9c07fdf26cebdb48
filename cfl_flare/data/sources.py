# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Data sources: each reads one site's samples, split into training and test."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cfl_flare.config import check_types, require
from cfl_flare.errors import DataError
from cfl_flare.seeds import stream


@dataclass(frozen=True)
class Samples:
    """Some labelled samples.

    Attributes:
        x: ``(n, *input_shape)``, images as ``(n, channels, height, width)``; uint8 or float32.
        y: ``(n,)`` int64 labels, from 0.
    """

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: np.ndarray) -> Samples:
        """The samples at these indices."""
        return Samples(self.x[indices], self.y[indices])

    def check(self, where: str) -> Samples:
        """Itself, if it is sound.

        Raises:
            DataError: lengths that differ, an empty set, labels that are no class numbers, NaN or infinity.
        """
        if len(self.x) != len(self.y):
            raise DataError(f"{where}: {len(self.x)} samples but {len(self.y)} labels")
        if not len(self.y):
            raise DataError(f"{where}: no samples")
        if self.y.ndim != 1 or self.y.dtype.kind not in "iu":
            raise DataError(f"{where}: labels should be whole numbers, one a sample, not {self.y.dtype} {self.y.shape}")
        if self.y.min() < 0:
            raise DataError(f"{where}: label {self.y.min()} is below 0; number the classes from 0")
        if self.x.dtype.kind == "f" and not np.isfinite(self.x).all():
            bad = int(np.flatnonzero(~np.isfinite(self.x.reshape(len(self.x), -1)).all(axis=1))[0])
            raise DataError(f"{where}: sample {bad} holds NaN or infinity")
        if self.x.dtype.kind not in "fu" or (self.x.dtype.kind == "u" and self.x.dtype != np.uint8):
            raise DataError(f"{where}: samples have dtype {self.x.dtype}; use uint8 or float32")
        return self


class DataSource(ABC):
    """What a site reads. Derive from it to bring your own data; keep the constructor's arguments as attributes."""

    @abstractmethod
    def load(self) -> tuple[Samples, Samples]:
        """Training and test samples.

        Raises:
            DataError: they cannot be read.
        """


@dataclass(frozen=True)
class Digits(DataSource):
    """Scikit-learn's bundled handwritten digits: 1,797 images of 8x8, 10 classes; nothing is downloaded.

    Attributes:
        test_share: share of each class that is held back for testing.
        seed: of that split.
    """

    name: ClassVar[str] = "digits"

    test_share: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self, "data digits")
        require(0 < self.test_share < 1, f"data digits: test_share = {self.test_share} should be between 0 and 1")

    def load(self) -> tuple[Samples, Samples]:
        """Images in [0, 1]."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = (digits.images / 16).astype(np.float32)[:, None]
        return split_by_class(Samples(images, digits.target.astype(np.int64)), self.test_share, self.seed)


@dataclass(frozen=True)
class Npz(DataSource):
    """A file in MedMNIST's layout: ``train_images, train_labels, test_images, test_labels``, uint8 or float.

    Images are ``(n, h, w)`` or ``(n, h, w, 3)``, labels ``(n,)`` or ``(n, 1)``. A validation split is left alone.

    Attributes:
        path: the file; ``$NAME`` and ``~`` are expanded on the site. A relative path that is not found is looked for
            in ``$CFL_DATA_ROOT``.
    """

    name: ClassVar[str] = "npz"

    path: str

    def __post_init__(self) -> None:
        check_types(self, "data npz")

    def load(self) -> tuple[Samples, Samples]:
        """Both splits, images as they are stored."""
        path = self.find()
        try:
            with np.load(path, allow_pickle=False) as file:
                missing = [k for s in ("train", "test") for k in (f"{s}_images", f"{s}_labels") if k not in file]
                if missing:
                    raise DataError(f"{path}: no array {missing[0]!r}; it has {', '.join(file.files)}")
                train, test = (self._split(file, split, path) for split in ("train", "test"))
        except DataError:
            raise
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: cannot be read as an npz file without pickled objects: {error}") from error
        if train.x.shape[1:] != test.x.shape[1:]:
            raise DataError(f"{path}: training images are {train.x.shape[1:]}, test images {test.x.shape[1:]}")
        return train, test

    def find(self) -> Path:
        """The file.

        Raises:
            DataError: it is in none of the places; all are named.
        """
        path = Path(os.path.expandvars(self.path)).expanduser()
        tried = [path]
        root = os.environ.get("CFL_DATA_ROOT")
        if root and not path.is_absolute():
            tried.append(Path(root) / path)
        for candidate in tried:
            if candidate.is_file():
                return candidate
        hint = "" if root else "; CFL_DATA_ROOT is not set"
        raise DataError(f"data npz: path = {self.path!r} is no file; tried {', '.join(map(str, tried))}{hint}")

    @staticmethod
    def _split(file: Mapping[str, np.ndarray], split: str, path: Path) -> Samples:
        images, labels = file[f"{split}_images"], file[f"{split}_labels"]
        if images.ndim == 3:
            images = images[:, None]
        elif images.ndim == 4 and images.shape[3] in (1, 3):
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        else:
            raise DataError(f"{path}: {split}_images has shape {images.shape}; should be (n, h, w) or (n, h, w, 3)")
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.dtype.kind == "u":
            labels = labels.astype(np.int64)
        if images.dtype == np.float64:
            images = images.astype(np.float32)
        return Samples(images, labels).check(f"{path}: {split}")


SOURCES: dict[str, type[DataSource]] = {"digits": Digits, "npz": Npz}


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


def checked(load: Any, where: str) -> tuple[Samples, Samples]:
    """What a source's ``load`` returned, if it is a pair of sound sample sets."""
    if not (isinstance(load, tuple) and len(load) == 2 and all(isinstance(part, Samples) for part in load)):
        raise DataError(f"{where}: load() should return (train, test) as two Samples, not {type(load).__name__}")
    return load[0].check(f"{where}: training"), load[1].check(f"{where}: test")
