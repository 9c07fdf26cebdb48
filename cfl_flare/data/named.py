# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Public image sets by their names, read through the packages that know them: torchvision and medmnist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from cfl_flare.core.config import check_types, require
from cfl_flare.core.errors import DataError
from cfl_flare.data.files import find_root, npz_hint
from cfl_flare.data.samples import DataSource, Samples, channels_first, one_label_each


@dataclass(frozen=True)
class Torchvision(DataSource):
    """A set that torchvision reads, in torchvision's own layout.

    Attributes:
        root: folder that holds the set's folder; ``$NAME`` and ``~`` are expanded on the site. Default
            ``$CFL_DATA_ROOT``.
        download: fetch it where it is not there.
    """

    name: ClassVar[str]
    # Where torchvision keeps the files below the root, and what the same set is called as a plain npz file.
    folder: ClassVar[str]
    flag: ClassVar[str]

    root: str | None = None
    download: bool = False

    def __post_init__(self) -> None:
        check_types(self, f"data {self.name}")

    def load(self) -> tuple[Samples, Samples]:
        """Both official splits, uint8."""
        train, test = (self._split(train) for train in (True, False))
        return train, test

    def _split(self, train: bool) -> Samples:
        from torchvision import datasets

        where = f"data {self.name}"
        root = find_root(self.root, where)
        try:
            found = getattr(datasets, type(self).__name__)(
                root=str(root), train=train, download=self.download, **self._options()
            )
        except Exception as error:  # torchvision and the network have many ways to fail; the user needs one
            first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
            raise DataError(
                f"{where}: cannot be read; looked in {root / self.folder} ({first}); set root, or download=True"
                + npz_hint(root, self.flag)
            ) from error
        images = channels_first(np.asarray(found.data), f"{where}: the array of images")
        labels = one_label_each(np.asarray(found.targets))
        return self._upright(Samples(images, labels)).check(f"{where}: {'training' if train else 'test'}")

    def _options(self) -> dict[str, Any]:
        """Further arguments of torchvision's class."""
        return {}

    def _upright(self, samples: Samples) -> Samples:
        """The samples as people would store them."""
        return samples


@dataclass(frozen=True)
class MNIST(Torchvision):
    """MNIST: 60,000 + 10,000 handwritten digits, 28x28 grey, 10 classes (torchvision)."""

    name: ClassVar[str] = "mnist"
    folder: ClassVar[str] = "MNIST/raw"
    flag: ClassVar[str] = "mnist"


@dataclass(frozen=True)
class FashionMNIST(Torchvision):
    """Fashion-MNIST: 60,000 + 10,000 pieces of clothing, 28x28 grey, 10 classes (torchvision)."""

    name: ClassVar[str] = "fashion-mnist"
    folder: ClassVar[str] = "FashionMNIST/raw"
    flag: ClassVar[str] = "fashionmnist"


@dataclass(frozen=True)
class CIFAR10(Torchvision):
    """CIFAR-10: 50,000 + 10,000 photographs, 32x32 colour, 10 classes (torchvision)."""

    name: ClassVar[str] = "cifar10"
    folder: ClassVar[str] = "cifar-10-batches-py"
    flag: ClassVar[str] = "cifar10"


@dataclass(frozen=True)
class CIFAR100(Torchvision):
    """CIFAR-100: 50,000 + 10,000 photographs, 32x32 colour, 100 classes (torchvision)."""

    name: ClassVar[str] = "cifar100"
    folder: ClassVar[str] = "cifar-100-python"
    flag: ClassVar[str] = "cifar100"


@dataclass(frozen=True)
class EMNIST(Torchvision):
    """EMNIST: handwritten letters and digits, 28x28 grey, up to 62 classes (torchvision).

    Attributes:
        split: which of EMNIST's arrangements; ``letters`` has 26 classes, ``balanced`` 47, ``byclass`` 62.
    """

    name: ClassVar[str] = "emnist"
    folder: ClassVar[str] = "EMNIST/raw"
    flag: ClassVar[str] = "emnist"

    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "balanced"

    def _options(self) -> dict[str, Any]:
        return {"split": self.split}

    def _upright(self, samples: Samples) -> Samples:
        """EMNIST's files hold images with rows and columns exchanged, and count letters from 1."""
        first = 1 if self.split == "letters" else 0
        return Samples(np.ascontiguousarray(samples.x.transpose(0, 1, 3, 2)), samples.y - first)


@dataclass(frozen=True)
class MedMNIST(DataSource):
    """A set of MedMNIST by its flag, e.g. pathmnist, tissuemnist, bloodmnist; needs the package medmnist.

    Sets of flat images with one label each; the validation split is left alone.

    Attributes:
        flag: which set.
        root: folder that holds ``<flag>.npz``; default ``$CFL_DATA_ROOT``.
        size: 28, or one of the larger sizes that the set comes in.
        download: fetch it where it is not there.
    """

    name: ClassVar[str] = "medmnist"

    flag: str
    root: str | None = None
    size: int = 28
    download: bool = False

    def __post_init__(self) -> None:
        check_types(self, "data medmnist")
        require(
            self.flag.isidentifier(), f"data medmnist: flag = {self.flag!r} should be a set's name such as pathmnist"
        )
        require(self.size >= 1, f"data medmnist: size = {self.size} should be >= 1")

    def load(self) -> tuple[Samples, Samples]:
        """The training and the test split, uint8."""
        where = f"data medmnist: {self.flag}"
        root = find_root(self.root, where)
        stored = self.flag if self.size == 28 else f"{self.flag}_{self.size}"
        try:
            from medmnist import INFO, dataset
        except ImportError as error:
            raise DataError(
                f"{where}: the package medmnist is not installed; pip install medmnist{npz_hint(root, stored)}"
            ) from error
        if self.flag not in INFO:
            raise DataError(f"{where}: no such set; medmnist has {', '.join(sorted(INFO))}{npz_hint(root, stored)}")
        try:
            reader = getattr(dataset, INFO[self.flag]["python_class"])
            splits = {
                split: reader(split=split, root=str(root), size=self.size, download=self.download)
                for split in ("train", "test")
            }
        except Exception as error:  # the package asserts, and reaches out to the network
            first = (str(error).splitlines() or [""])[0].strip(". ") or type(error).__name__
            raise DataError(
                f"{where}: medmnist cannot read {root / stored}.npz ({first}); set root, or download=True"
                + npz_hint(root, stored)
            ) from error
        train, test = (
            Samples(channels_first(s.imgs, f"{where}: {name} images"), one_label_each(s.labels)).check(
                f"{where}: {name}"
            )
            for name, s in splits.items()
        )
        return train, test
