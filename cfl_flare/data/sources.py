# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Data sources by the name that the command line knows them by: each reads one site's samples, training and test."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from cfl_flare.core.config import check_types, require
from cfl_flare.core.errors import DataError
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

__all__ = [
    "PLACE",
    "SOURCES",
    "DataSource",
    "Digits",
    "Npz",
    "Samples",
    "SiteData",
    "checked",
    "normalised",
    "split_by_class",
]

logger = logging.getLogger(__name__)

PLACE = "CFL_DATA"
# Where FLARE's container launchers mount the datasets of a job's study: /data/<study>/<dataset>.
MOUNTS = Path("/data")


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


@dataclass(frozen=True)
class SiteData(DataSource):
    """What the site itself says is its data: an .npz file in MedMNIST's layout, or a folder of images by class.

    A folder with a single .npz file in it stands for that file, as what is mounted is always a folder.

    The first of these that is given counts, and must be there: ``path``; the site's environment variable ``CFL_DATA``;
    the one dataset that FLARE's container launchers (Docker, Kubernetes, Slurm) mount for the job's study.

    Attributes:
        path: for a site by itself; a job leaves it out, as its author does not know the sites' paths.
        study: the study whose mounted dataset is taken; a job leaves it out, and gets its own study's.
        size: resize a folder's images to this height and width; None if they have one size already.
        channels: 1 (grey) or 3 (colour), to which a folder's images are converted; None if they agree already.
    """

    name: ClassVar[str] = "site"

    path: str | None = None
    study: str | None = None
    size: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        check_types(self, "data site")
        require(self.path is None or bool(self.path), "data site: path = '' should name a file or a folder")
        Folder("", self.size, self.channels)  # its checks of both

    def load(self) -> tuple[Samples, Samples]:
        """Training and test samples, as the source npz or the source folder reads them."""
        place, how = self.place()
        within = list(place.glob("*.npz")) if place.is_dir() else []
        place = within[0] if len(within) == 1 else place
        logger.info("data: %s (%s)", place, how)
        source = Folder(str(place), self.size, self.channels) if place.is_dir() else Npz(str(place))
        return source.load()

    def place(self) -> tuple[Path, str]:
        """Where the data is, and by which of the ways it was found.

        Raises:
            DataError: nowhere, or what was named is not there.
        """
        if self.path is not None:
            return find(self.path, "data site", folder=None), "path"
        named = os.environ.get(PLACE)
        if named:
            return find(named, f"data site: {PLACE}", folder=None), PLACE
        mounted = self._mounted()
        if len(mounted) == 1:
            return mounted[0], f"mounted for study {self.study}"
        of_study = f"what is mounted for study {self.study} ({len(mounted)} datasets)" if self.study else "no study"
        raise DataError(
            f"data site: this site does not say where its data is; tried path (not given), {PLACE} (not set), "
            f"{of_study}; set {PLACE} to an .npz file or a folder of images by class, where the site is started"
        )

    def _mounted(self) -> list[Path]:
        """The study's datasets. A plain folder of that name is none: the job's author chooses the study."""
        return [p for p in sorted((MOUNTS / self.study).glob("*")) if os.path.ismount(p)] if self.study else []


SOURCES: dict[str, type[DataSource]] = {
    "digits": Digits,
    "npz": Npz,
    "site": SiteData,
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
