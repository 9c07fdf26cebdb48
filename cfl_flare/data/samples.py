# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What every data source yields, and how it is validated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.core.settings import check_settings
from cfl_flare.data.classes import check_names
from cfl_flare.data.labels import LARGEST, check_labels, form_of

if TYPE_CHECKING:
    from cfl_flare.data.columns import Columns
    from cfl_flare.data.preparation import Preparation

NOTES = ("key", "group", "patient")  # of each sample, besides its label


@dataclass(frozen=True)
class Samples:
    """Labelled samples.

    Attributes:
        x: ``(n, *input_shape)``, images as ``(n, channels, height, width)``; uint8, or float32 in [0, 1].
        y: the labels, ``(n, ...)``, in one of the forms of `cfl_flare.data.labels`: for classes ``(n,)`` int64, from 0,
            or the classes' names as text, which `read` numbers.
        key: ``(n,)`` the owner of each sample (a user, a site), whole numbers or text, for the partition ``natural``;
            None if unknown.
        group: ``(n,)`` int64, the true group of each sample's owner; None if unknown.
        patient: ``(n,)`` whole numbers or text, whose sample each is; None if each is of a patient of its own.
        classes: the names of the classes in the order of their numbers, or of the findings; none if they have none.
    """

    x: np.ndarray
    y: np.ndarray
    key: np.ndarray | None = None
    group: np.ndarray | None = None
    patient: np.ndarray | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    @classmethod
    def of_images(cls, where: str, images: np.ndarray, labels: np.ndarray) -> Samples:
        """Samples of images as `channels_first` takes them, and of a file's labels.

        Whole numbers ``(n,)`` or ``(n, 1)`` become ``(n,)`` int64, floats ``(n, 1)`` and masks ``(n, h, w, 1)`` lose
        their last dimension; other labels are unchanged, for `check` to refuse if they have no form.
        """
        images = channels_first(images, where)
        if images.dtype == np.float64:
            with np.errstate(over="ignore"):  # `check` refuses what becomes infinite
                images = images.astype(np.float32)
        if labels.ndim in (2, 4) and labels.shape[-1] == 1:
            labels = labels[..., 0]
        are_classes = labels.ndim == 1 and labels.dtype.kind in "iu"
        return cls(images, labels.astype(np.int64) if are_classes else labels)

    def take(self, indices: np.ndarray) -> Samples:
        notes = {
            name: None if (of := getattr(self, name)) is None else of[indices]
            for name in NOTES
        }
        return Samples(self.x[indices], self.y[indices], **notes, classes=self.classes)

    @property
    def outputs(self) -> int:
        """How many outputs a model of these labels needs at least: one for each class that has a name or a sample."""
        largest = int(self.y.max()) if self.y.size else -1
        return max(len(self.classes), largest + 1)

    def joined(self, other: Samples) -> Samples:
        """Its samples, then the other's; float32 where only one has bytes, labels as floats where only one's are."""
        x, others = (
            (self.x, other.x)
            if self.x.dtype == other.x.dtype
            else (scaled(self.x), scaled(other.x))
        )
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in NOTES}
        notes = {
            name: None if a is None or b is None else np.concatenate((a, b))
            for name, (a, b) in pairs.items()
        }
        y = np.concatenate((self.y, other.y))
        return Samples(np.concatenate((x, others)), y, **notes, classes=self.classes)

    def check(self, where: str, missing: bool = False, fewest: int = 1) -> Samples:
        """Returns itself; a DataError if it is not valid, or has fewer samples than ``fewest``.

        With ``missing``, NaN is allowed in x, as the source's `preparation` fills it up. An empty set that may be one
        is not looked into.
        """
        x, y = self.x, self.y
        for name, array in (("x", x), ("y", y)):
            if not isinstance(array, np.ndarray) or not array.ndim:
                raise DataError(
                    f"{where}: {name} is a {type(array).__name__}; make it an array, one row per sample"
                )
        if len(x) != len(y):
            raise DataError(
                f"{where}: {len(x)} samples but {len(y)} labels; give one label per sample"
            )
        if len(y) < fewest:
            raise DataError(f"{where}: no samples; it needs some")
        if not len(y):
            return self
        check_labels(y, x, where)
        _check_classes(self, where)
        gaps = missing and x.dtype.kind == "f" and bool(np.isnan(x).any())
        check_values(
            np.nan_to_num(x, posinf=np.inf, neginf=-np.inf) if gaps else x, where
        )
        for what, names in (("key", self.key), ("patient", self.patient)):
            if names is not None and names.shape != y.shape[:1]:
                reason = f"{what}s have shape {names.shape}, labels {y.shape}"
                raise DataError(f"{where}: {reason}; give one {what} per sample")
            if names is not None and names.dtype.kind not in "iuU":
                raise DataError(
                    f"{where}: {what}s have dtype {names.dtype}; use whole numbers or text"
                )
            if names is not None and names.dtype.kind == "U" and (names == "").any():
                row = int(np.flatnonzero(names == "")[0])
                raise DataError(
                    f"{where}: sample {row} has no {what}; name it, or leave the sample out"
                )
        return self


def _check_classes(samples: Samples, where: str) -> None:
    """Raises a DataError if the classes' names are too few, or are no names."""
    if not samples.classes:
        return
    check_names(samples.classes, where)
    form = form_of(samples.y, where)
    count = {
        "class": samples.outputs,
        "mask": samples.outputs,
        "several": samples.y.shape[-1],
    }.get(form, 0)
    fits = (
        len(samples.classes) == count
        if form == "several"
        else len(samples.classes) >= count > 0
    )
    if not fits:
        reason = (
            f"{len(samples.classes)} names of classes, and labels have {count} classes"
        )
        raise DataError(
            f"{where}: {reason}; give each class a name, in the order of their numbers"
        )


def check_values(x: np.ndarray, where: str) -> np.ndarray:
    """Returns samples; raises a DataError if they are not bytes or floats, not finite, or too large for float32."""
    if x.dtype.kind != "f" and x.dtype != np.uint8:
        way_out = "use uint8 or float32, or, for images of an .npz file, set range to their smallest and largest number"
        raise DataError(f"{where}: samples have dtype {x.dtype}; {way_out}")
    if x.dtype.kind != "f" or not x.size:
        return x
    rows = x.reshape(len(x), -1)
    largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    if len(bad := np.flatnonzero(~np.isfinite(largest))):
        raise DataError(
            f"{where}: sample {bad[0]} holds NaN or infinity; fix it or leave it out"
        )
    if float(largest.max()) > LARGEST:
        place = largest.argmax()
        raise DataError(
            f"{where}: sample {place} reaches {largest.max():.3g}; scale the samples to about 0 to 1"
        )
    return x


class DataSource(ABC):
    """What a site reads. Derive from it to bring your own data; keep the constructor's arguments as attributes.

    Each method may raise a DataError: the samples cannot be read.
    """

    # Whether `load` leaves it to `preparation` to fill up and scale each participant's samples.
    prepares: ClassVar[bool] = False
    # Whether it reads the same samples everywhere, and nobody's own: only such are dealt out at real sites.
    public: ClassVar[bool] = False

    @property
    def agreed_columns(self) -> Columns | None:
        """What sites agreed on of their tables' columns; None where they did not, and for other data."""
        return None

    @property
    def agreed_classes(self) -> tuple[str, ...]:
        """The names of classes that were agreed on before the data was read; none where nothing was."""
        return ()

    @property
    def stated_classes(self) -> tuple[str, ...]:
        """The names of classes that a job states, which its author knows without the data; none if it states none."""
        return self.agreed_classes

    @property
    def usual_partition(self) -> Mapping[str, Any] | None:
        """The partition of a simulation, unless another is named; None for the command's."""
        return None

    @property
    def patient(self) -> str | None:
        """What names the patients, a column or arrays; None if each sample is of a patient of its own."""
        return None

    @property
    def group_label(self) -> str | None:
        """The group that the site names as its own, for a method of given groups; None if it names none."""
        return None

    @abstractmethod
    def load(self) -> tuple[Samples, Samples]:
        """Training and test samples."""

    def preparation(
        self, train: Samples, federation: Samples | None = None
    ) -> Preparation | None:
        """What fills up and scales a participant's samples for its models; None if they are normalised as pixels.

        Args:
            train: its training samples, as `load` gives them, to which it is fitted.
            federation: those of all participants that train, in a simulation; None at a real site.
        """
        return None

    @property
    def positive(self) -> str | None:
        """What class 1 is, where there are two; None where that is not known, or there are no classes."""
        return None

    def described(self) -> list[str]:
        """What became of what was read, in lines for whoever starts a run; none if that is plain."""
        return []


class NamedSource(DataSource):
    """A source of cfl_flare's own, a dataclass whose fields are its settings."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_settings(self, f"data {self.name}")


class Wrapped(NamedSource):
    """A source that reads by another one."""

    @cached_property
    @abstractmethod
    def inner(self) -> DataSource:
        """The other one."""

    def leave(self) -> AbstractContextManager[None]:
        """Inside it, the other one may read its paths."""
        return nullcontext()

    def load(self) -> tuple[Samples, Samples]:
        with self.leave():
            return self.inner.load()

    def preparation(
        self, train: Samples, federation: Samples | None = None
    ) -> Preparation | None:
        with self.leave():
            return self.inner.preparation(train, federation)

    def described(self) -> list[str]:
        with self.leave():
            return self.inner.described()


class ReadOnce(Wrapped):
    """A source whose samples are read once, for a run that uses them in several ways."""

    inner: DataSource

    def __init__(self, source: DataSource):
        self.inner, self.prepares = source, source.prepares  # type: ignore[misc]

    @cached_property
    def _loaded(self) -> tuple[Samples, Samples]:
        return self.inner.load()

    def load(self) -> tuple[Samples, Samples]:
        return self._loaded

    @property
    def positive(self) -> str | None:
        return self.inner.positive

    @property
    def agreed_classes(self) -> tuple[str, ...]:
        return self.inner.agreed_classes

    @property
    def stated_classes(self) -> tuple[str, ...]:
        return self.inner.stated_classes

    @property
    def patient(self) -> str | None:
        return self.inner.patient


def scaled(x: np.ndarray) -> np.ndarray:
    """Float32: bytes over 255, floats as they are."""
    return x.astype(np.float32) / 255 if x.dtype == np.uint8 else x.astype(np.float32)


def normalised(x: np.ndarray) -> np.ndarray:
    """Pixels as float32 in about [-1, 1]: bytes over 255, then (x - 0.5) / 0.5. Floats should be in [0, 1]."""
    return (scaled(x) - 0.5) / 0.5


def channels_first(images: np.ndarray, where: str) -> np.ndarray:
    """Images ``(n, h, w)``, ``(n, h, w, 1)`` or ``(n, h, w, 3)`` as ``(n, channels, h, w)``."""
    if images.ndim == 3 or images.shape[:1] == (0,):
        return images[:, None]
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    raise DataError(
        f"{where}: images have shape {images.shape}; it should be (n, h, w) or (n, h, w, 3)"
    )
