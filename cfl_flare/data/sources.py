# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Data sources by the name that the command line knows them by: each reads one site's samples, training and test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from cfl_flare.config import check_types, require
from cfl_flare.data.files import find, read_npz
from cfl_flare.data.images import Folder, JpegNpz
from cfl_flare.data.named import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST, MedMNIST
from cfl_flare.data.samples import (
    DataSource,
    Samples,
    channels_first,
    checked,
    normalised,
    one_label_each,
    split_by_class,
)
from cfl_flare.data.table import Table
from cfl_flare.errors import DataError

__all__ = ["SOURCES", "DataSource", "Digits", "Npz", "Samples", "checked", "normalised", "split_by_class"]


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
        key: names the arrays ``train_<key>, test_<key>`` that say whose each sample is, for the partition ``natural``.
    """

    name: ClassVar[str] = "npz"

    path: str
    key: str | None = None

    def __post_init__(self) -> None:
        check_types(self, "data npz")

    def load(self) -> tuple[Samples, Samples]:
        """Both splits, images as they are stored."""
        path = find(self.path, "data npz")
        kinds = ("images", "labels", *([self.key] if self.key else []))
        arrays = read_npz(path, [f"{split}_{kind}" for split in ("train", "test") for kind in kinds])
        train, test = (self._split(arrays, split, path) for split in ("train", "test"))
        if train.x.shape[1:] != test.x.shape[1:]:
            raise DataError(
                f"{path}: training images are {train.x.shape[1:]}, test images {test.x.shape[1:]}; bring "
                "them to one shape"
            )
        return train, test

    def _split(self, arrays: dict[str, np.ndarray], split: str, path: Path) -> Samples:
        images = channels_first(arrays[f"{split}_images"], f"{path}: {split}_images")
        if images.dtype == np.float64:
            images = images.astype(np.float32)
        key = arrays[f"{split}_{self.key}"] if self.key else None
        return Samples(images, one_label_each(arrays[f"{split}_labels"]), key).check(f"{path}: {split}")


SOURCES: dict[str, type[DataSource]] = {
    "digits": Digits,
    "npz": Npz,
    "jpeg-npz": JpegNpz,
    "folder": Folder,
    "table": Table,
    "mnist": MNIST,
    "fashion-mnist": FashionMNIST,
    "emnist": EMNIST,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "medmnist": MedMNIST,
}
