# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Public image sets by their names, read with torchvision and medmnist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import DataError
from cfl_flare.core.seeds import stream
from cfl_flare.core.settings import setting
from cfl_flare.data.files import authorised, find_root
from cfl_flare.data.loading import checked
from cfl_flare.data.samples import NamedSource, Samples


@contextmanager
def _reading(where: str, file: Path, hint: str) -> Iterator[None]:
    """Turns any error inside it into one line. These packages and the network fail in many ways."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0].strip(". ") or type(
            error
        ).__name__
        raise DataError(
            f"{where}: cannot read {file} ({reason}); set root, or download=True{hint}"
        ) from error


def _npz_hint(root: Path, name: str) -> str:
    """What to do instead if the set is in the root as a plain npz file; empty if it is not."""
    path = root / f"{name}.npz"
    return (
        f"; {path} exists: read it with the source npz, npz:path={path}"
        if path.is_file()
        else ""
    )


@dataclass(frozen=True)
class Torchvision(NamedSource):
    """A set that torchvision reads, in torchvision's own layout."""

    public: ClassVar[bool] = True
    # Where torchvision keeps the files below the root.
    folder: ClassVar[str]

    root: str | None = setting(
        None, help="folder that holds the set's folder; default $CFL_DATA_ROOT"
    )
    download: bool = setting(False, help="download the set if it is not there")
    samples: int | None = setting(
        None,
        help="so many training and test samples together, drawn by sample_seed; default: all",
        ge=2,
    )
    sample_seed: int = setting(0, help="seed of the draw of samples", ge=0)

    def load(self) -> tuple[Samples, Samples]:
        from torchvision import datasets

        where = f"data {self.name}"
        root = find_root(self.root, where, self.download)
        authorised(root / self.folder, where)
        with _reading(
            where, root / self.folder, _npz_hint(root, self.name.replace("-", ""))
        ):
            reader = getattr(datasets, type(self).__name__)
            sets = [
                reader(str(root), train=train, **self._options())
                for train in (True, False)
            ]
        splits = (
            Samples.of_images(where, np.asarray(s.data), np.asarray(s.targets))
            for s in sets
        )
        train, test = checked(tuple(map(self._upright, splits)), where)
        return subset((train, test), self.samples, self.sample_seed, where)

    def _options(self) -> dict[str, Any]:
        return {"download": self.download}

    def _upright(self, samples: Samples) -> Samples:
        return samples


def subset(
    splits: tuple[Samples, Samples], samples: int | None, seed: int, where: str
) -> tuple[Samples, Samples]:
    """Draw some of a set's samples without replacement; the ratio of the splits stays.

    Args:
        splits: training and test samples.
        samples: of both splits together; None for all.
        seed: of the draw.
        where: the source, for errors.

    Raises:
        ConfigError: there are fewer.
    """
    if samples is None:
        return splits
    train, test = splits
    total = len(train) + len(test)
    require(
        samples <= total,
        f"{where}: samples = {samples} exceeds the {total} samples; lower it",
    )
    of_training = min(max(1, round(samples * len(train) / total)), samples - 1)
    rows = stream(seed, "subset", "train").permutation(len(train))[:of_training]
    test_rows = stream(seed, "subset", "test").permutation(len(test))[
        : samples - of_training
    ]
    return train.take(np.sort(rows)), test.take(np.sort(test_rows))


@dataclass(frozen=True)
class MNIST(Torchvision):
    """MNIST: 60,000 + 10,000 handwritten digits, 28x28 grey, 10 classes (torchvision)."""

    name = "mnist"
    folder = "MNIST/raw"


@dataclass(frozen=True)
class FashionMNIST(Torchvision):
    """Fashion-MNIST: 60,000 + 10,000 pieces of clothing, 28x28 grey, 10 classes (torchvision)."""

    name = "fashion-mnist"
    folder = "FashionMNIST/raw"


@dataclass(frozen=True)
class CIFAR10(Torchvision):
    """CIFAR-10: 50,000 + 10,000 photographs, 32x32 colour, 10 classes (torchvision)."""

    name = "cifar10"
    folder = "cifar-10-batches-py"


@dataclass(frozen=True)
class CIFAR100(Torchvision):
    """CIFAR-100: 50,000 + 10,000 photographs, 32x32 colour, 100 classes (torchvision)."""

    name = "cifar100"
    folder = "cifar-100-python"


@dataclass(frozen=True)
class EMNIST(Torchvision):
    """EMNIST: handwritten letters and digits, 28x28 grey, up to 62 classes (torchvision)."""

    name = "emnist"
    folder = "EMNIST/raw"

    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = (
        setting(
            "balanced",
            help="which of EMNIST's arrangements; letters has 26 classes, balanced 47, byclass 62",
        )
    )

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "split": self.split}

    def _upright(self, samples: Samples) -> Samples:
        """EMNIST's files have rows and columns exchanged, and count letters from 1."""
        first = 1 if self.split == "letters" else 0
        return Samples(
            np.ascontiguousarray(samples.x.transpose(0, 1, 3, 2)), samples.y - first
        )


@dataclass(frozen=True)
class MedMNIST(NamedSource):
    """A set of MedMNIST by its flag, e.g. pathmnist, tissuemnist, bloodmnist; needs the package medmnist.

    Sets of 2-D images with one label each, or with several findings (chestmnist); the validation split is not used.
    """

    name: ClassVar[str] = "medmnist"
    public: ClassVar[bool] = True

    flag: str = setting(help="which set, such as pathmnist")
    root: str | None = setting(
        None, help="folder that holds `<flag>.npz`; default $CFL_DATA_ROOT"
    )
    size: int = setting(
        28,
        help="height and width: 28, or one of the larger sizes that the set comes in",
        ge=1,
    )
    download: bool = setting(False, help="download the set if it is not there")

    def __post_init__(self) -> None:
        super().__post_init__()
        is_name = self.flag.isidentifier()
        require(
            is_name,
            f"data medmnist: flag = {self.flag!r} should be a set's name such as pathmnist",
        )

    def load(self) -> tuple[Samples, Samples]:
        where = f"data medmnist: {self.flag}"
        root = find_root(self.root, where, self.download)
        stored = self.flag if self.size == 28 else f"{self.flag}_{self.size}"
        authorised(root / f"{stored}.npz", where)
        hint = _npz_hint(root, stored)
        try:
            from medmnist import INFO, dataset
        except ImportError as error:
            raise DataError(
                f"{where}: the package medmnist is not installed; pip install medmnist{hint}"
            ) from error
        if self.flag not in INFO:
            raise DataError(
                f"{where}: no such set; medmnist has {', '.join(sorted(INFO))}{hint}"
            )
        with _reading(where, root / f"{stored}.npz", hint):
            reader = getattr(dataset, INFO[self.flag]["python_class"])
            options = {"root": str(root), "size": self.size, "download": self.download}
            sets = [reader(split=split, **options) for split in ("train", "test")]
        return checked(
            tuple(Samples.of_images(where, s.imgs, s.labels) for s in sets), where
        )
