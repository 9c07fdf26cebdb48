# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Data sources by their names on the command line: each reads one site's training and test samples."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import ColumnsError, DataError, MissingDataError
from cfl_flare.core.settings import setting
from cfl_flare.core.text import shown
from cfl_flare.data.classes import (
    CLASS_NAMES,
    CLASSES_HELP,
    as_names,
    check_names,
    number_words,
    numbers_of,
    order_of,
)
from cfl_flare.data.columns import Columns
from cfl_flare.data.femnist import FEMNIST
from cfl_flare.data.files import expanded, find, read_npz, reading_within
from cfl_flare.data.frames import is_table
from cfl_flare.data.hospitals import Heart, Stroke
from cfl_flare.data.images import CONVERT, RESIZE, Folder
from cfl_flare.data.labels import form_of
from cfl_flare.data.loading import checked
from cfl_flare.data.named import (
    CIFAR10,
    CIFAR100,
    EMNIST,
    MNIST,
    FashionMNIST,
    MedMNIST,
)
from cfl_flare.data.pixels import RANGE, RANGE_HELP, scale_to
from cfl_flare.data.preparation import Scaling
from cfl_flare.data.samples import DataSource, NamedSource, Samples, Wrapped
from cfl_flare.data.splits import split_by_class
from cfl_flare.data.table import Table
from cfl_flare.data.table_settings import columns_of

__all__ = ["SOURCES", "DataSource", "Digits", "Npz", "Samples", "SiteData"]

logger = logging.getLogger(__name__)

VARIABLE = "CFL_DATA"
LABEL = "CFL_LABEL"
EVENT = "CFL_EVENT"
PATIENT = "CFL_PATIENT"
GROUP = "CFL_GROUP"
COLUMNS = "CFL_COLUMNS"
# The array of an .npz file with the names of its classes, in the order of their numbers.
CLASSES = "classes"
# Where FLARE's container launchers mount the datasets of a job's study: /data/<study>/<dataset>.
MOUNTS = Path("/data")


@dataclass(frozen=True)
class Digits(NamedSource):
    """Scikit-learn's bundled handwritten digits: 1,797 images of 8x8, 10 classes; nothing is downloaded."""

    name: ClassVar[str] = "digits"
    public: ClassVar[bool] = True

    test_share: float = setting(
        0.25, help="share of each class that is used for testing", gt=0, lt=1
    )
    seed: int = setting(0, help="seed of that split")

    def load(self) -> tuple[Samples, Samples]:
        # as ``sklearn.datasets.load_digits`` reads it, without a second of importing scikit-learn
        file = distribution("scikit-learn").locate_file(
            "sklearn/datasets/data/digits.csv.gz"
        )
        table = np.loadtxt(str(file), delimiter=",")
        images = (table[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        return split_by_class(
            Samples(images, table[:, -1].astype(np.int64)), self.test_share, self.seed
        )


@dataclass(frozen=True)
class Npz(NamedSource):
    """A file in MedMNIST's layout: ``train_images, train_labels, test_images, test_labels``, uint8 or float.

    Images are ``(n, h, w)`` or ``(n, h, w, 3)``. Labels are class numbers or, as floats, numbers to predict, ``(n,)``
    or ``(n, 1)``; several findings of 0 or 1 ``(n, C)``; times and events as floats ``(n, 2)``; or masks ``(n, h, w)``
    or ``(n, h, w, 1)`` of class numbers. Labels may also be words, and an array ``classes`` may name the class numbers.
    A validation split is not used.
    """

    name: ClassVar[str] = "npz"

    path: str = setting(
        help="the file; a relative path that does not exist is looked up in $CFL_DATA_ROOT"
    )
    key: str | None = setting(
        None,
        help="the owner of each sample is in the arrays `train_<key>, test_<key>`, for the partition natural",
    )
    patient: str | None = setting(
        None,
        help="whose sample each is, where a patient has several, is in the arrays `train_<patient>, test_<patient>`",
    )
    labels: str = setting(
        "labels",
        help="the labels are in the arrays `train_<labels>, test_<labels>`: `masks` for segmentation",
    )

    classes: Sequence[str] | None = setting(None, help=CLASSES_HELP, bounds=CLASS_NAMES)
    range: Sequence[float] | None = setting(None, help=RANGE_HELP, bounds=RANGE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None:
            object.__setattr__(self, "classes", as_names(self.classes))

    @property
    def agreed_classes(self) -> tuple[str, ...]:
        return tuple(self.classes or ())

    @property
    def usual_partition(self) -> Mapping[str, Any] | None:
        return None if self.key is None else {"partition": "natural"}

    def load(self) -> tuple[Samples, Samples]:
        path = find(self.path, "data npz")
        kinds = ("images", self.labels, *filter(None, (self.key, self.patient)))
        required = [f"{split}_{kind}" for split in ("train", "test") for kind in kinds]
        arrays = read_npz(path, required, optional=[CLASSES])
        named = arrays.get(CLASSES)
        samples = []
        for split in ("train", "test"):
            images = arrays[f"{split}_images"]
            if self.range is not None:
                images = scale_to(images, self.range, f"{path}: {split}")
            of_split = Samples.of_images(
                f"{path}: {split}", images, arrays[f"{split}_{self.labels}"]
            )
            owners = None if self.key is None else arrays[f"{split}_{self.key}"]
            patients = (
                None if self.patient is None else arrays[f"{split}_{self.patient}"]
            )
            samples.append(replace(of_split, key=owners, patient=patients))
        train, test = self._name_classes(samples[0], samples[1], named, str(path))
        return checked((train, test), str(path))

    def _name_classes(
        self, train: Samples, test: Samples, named: np.ndarray | None, where: str
    ) -> tuple[Samples, Samples]:
        """Both splits with class numbers as they were agreed on, and their names.

        Args:
            train: the training samples, with the file's labels.
            test: the test samples, likewise.
            named: the file's array of names, in the order of its class numbers; None if it has none.
            where: names the file in an error.
        """
        agreed = self.agreed_classes
        names = () if named is None else as_names(named.reshape(-1).tolist())
        check_names(names, where)
        are_numbers = train.y.dtype.kind in "biuf" and test.y.dtype.kind in "biuf"
        if not are_numbers:
            return replace(train, classes=agreed), replace(test, classes=agreed)
        if (
            train.y.ndim == 1
            and not names
            and numbers_of(agreed) is not None
            and agreed
        ):
            parts = [number_words(part.y, agreed, where)[0] for part in (train, test)]
            return replace(train, y=parts[0], classes=agreed), replace(
                test, y=parts[1], classes=agreed
            )
        if not names or not agreed:
            classes = agreed or names
            return replace(train, classes=classes), replace(test, classes=classes)
        order = order_of(names, agreed, where)
        return _reorder(train, order, agreed, where), _reorder(
            test, order, agreed, where
        )


def _reorder(
    samples: Samples, order: np.ndarray, classes: tuple[str, ...], where: str
) -> Samples:
    """Samples with the agreed class numbers in place of the file's: ``order`` has the agreed one of each."""
    y = samples.y
    form = form_of(y, where)
    if form in ("class", "mask"):
        if y.size and y.max() >= len(order):
            reason = f"label {y.max()} has no name, as {CLASSES} has {len(order)}"
            raise DataError(
                f"{where}: {reason}; give each class a name, in the order of their numbers"
            )
        return replace(samples, y=order[y.astype(np.int64)], classes=classes)
    if form == "several" and y.shape[1] == len(order) == len(classes):
        ordered = np.zeros_like(y)
        ordered[:, order] = y
        return replace(samples, y=ordered, classes=classes)
    reason = (
        f"{CLASSES} names {len(order)} of {len(classes)} classes that were agreed on"
    )
    raise DataError(
        f"{where}: {reason}; they name class numbers, masks, or all findings"
    )


@dataclass(frozen=True)
class SiteData(Wrapped):
    """The data that the site itself names: an .npz file in MedMNIST's layout, a folder of images by class, or a table.

    The site's environment variable ``CFL_LABEL`` names the labels: a table's column (default ``label``), or an .npz
    file's arrays (default ``labels``: ``train_labels, test_labels``). ``CFL_EVENT`` names a table's column of events if
    its labels are times. ``CFL_PATIENT`` names a table's column, or an .npz file's arrays, of whose sample each is,
    where a patient has several. ``CFL_GROUP`` is the site's group, for the method groups. ``CFL_COLUMNS`` is the file
    with what the sites agreed on of a table's columns. A job whose ``columns`` say something else is refused.

    A table is a text file such as .csv, or a Parquet, Feather, Excel, Stata, SAS, SPSS or JSON file. A folder with a
    single .npz file, or with nothing but a table, stands for that file, because datasets are always mounted as folders.

    The site uses the first of these that is set, which must exist: ``path``; its environment variable ``CFL_DATA``; the
    only dataset that FLARE's container launchers (Docker, Kubernetes, Slurm) mount for the job's study.
    """

    name: ClassVar[str] = "site"
    prepares: ClassVar[bool] = True

    path: str | None = setting(
        None,
        help="for a site on its own; a job leaves it out, as its author does not know the sites' paths",
    )
    study: str | None = setting(
        None,
        help="the study whose mounted dataset is used; a job leaves it out, and gets that of its own study",
    )
    size: int | None = setting(None, help=RESIZE)
    channels: int | None = setting(None, help=CONVERT)
    columns: Mapping[str, Any] | str | None = setting(
        None,
        help="of a table: the file that 'cfl-flare columns' wrote, or what is in it; a job carries the latter",
    )
    scaling: Scaling = setting("auto", help="of a table, as of the source table")
    classes: Sequence[str] | None = setting(None, help=CLASSES_HELP, bounds=CLASS_NAMES)
    range: Sequence[float] | None = setting(None, help=RANGE_HELP, bounds=RANGE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None:
            object.__setattr__(self, "classes", as_names(self.classes))
        if (
            self.agreed_columns is not None
        ):  # what is in the file, as a job's sites do not have it
            object.__setattr__(self, "columns", self.agreed_columns.to_dict())
        require(
            self.path is None or bool(self.path),
            "data site: path = '' should name a file or a folder",
        )
        is_name = self.study is None or bool(re.fullmatch(r"\w[\w.-]*", self.study))
        require(
            is_name,
            f"data site: study = {self.study!r} should be a name, of letters, digits, '_', '.' and '-'",
        )
        Folder("", self.size, self.channels)  # its checks of both

    @cached_property
    def agreed_columns(self) -> Columns | None:
        return (
            None
            if self.columns is None
            else columns_of(self.columns, "data site: columns")
        )

    @property
    def patient(self) -> str | None:
        return os.environ.get(PATIENT) or None

    @property
    def group_label(self) -> str | None:
        return os.environ.get(GROUP) or None

    @property
    def agreed_classes(self) -> tuple[str, ...]:
        if self.stated_classes:
            return self.stated_classes
        with self.leave():
            return self.inner.agreed_classes

    @property
    def stated_classes(self) -> tuple[str, ...]:
        if self.classes is not None:
            return tuple(self.classes)
        return () if self.agreed_columns is None else self.agreed_columns.classes

    def leave(self) -> AbstractContextManager[None]:
        """What the operator names needs no leave."""
        return nullcontext() if self.path is not None else reading_within(None)

    @cached_property
    def inner(self) -> DataSource:
        path, named_by = self.located()
        inside = (
            list(path.glob("*.npz")) or list(path.iterdir()) if path.is_dir() else []
        )
        if len(inside) == 1 and (
            inside[0].suffix.lower() == ".npz" or is_table(inside[0])
        ):
            path = inside[0]
        logger.info("data: %s (%s)", path, named_by)
        takes_range = not path.is_dir() and not is_table(path)
        no_range = f"range = {shown(self.range)} is of images in an .npz file, and {path} is none; leave it out"
        require(self.range is None or takes_range, f"data site: {no_range}", DataError)
        if path.is_dir():
            folder = f"{PATIENT} = {self.patient!r} is set, and {path}, a folder of images, names no patients"
            require(
                self.patient is None,
                f"data site: {folder}; make it an .npz file or a table",
                DataError,
            )
            return Folder(str(path), self.size, self.channels, classes=self.classes)
        label = os.environ.get(LABEL) or None
        if is_table(path):
            event = os.environ.get(EVENT) or None
            patient, columns = self.patient, self._table_columns()
            table = Table(
                str(path),
                label,
                patient=patient,
                event=event,
                columns=columns,
                classes=self.classes,
            )
            return replace(table, scaling=self.scaling)
        labels = label or "labels"
        return Npz(
            str(path),
            patient=self.patient,
            labels=labels,
            classes=self.classes,
            range=self.range,
        )

    def _table_columns(self) -> dict[str, Any] | None:
        """What the sites agreed on of a table's columns; the job must say what the operator says, or nothing."""
        named, of_job = os.environ.get(COLUMNS), self.agreed_columns
        if not named:
            return None if of_job is None else of_job.to_dict()
        if self.scaling == "none":
            reason = f"scaling = 'none': {COLUMNS} is set here, and numbers are scaled"
            raise ColumnsError(f"data site: {reason}; leave it out")
        with reading_within(None):
            columns = Columns.read(find(str(expanded(named)), f"data site: {COLUMNS}"))
        # How its file is written, and what it leaves out, is a site's own matter.
        site_settings = {
            "names": columns.names,
            "leave": columns.leave,
            **asdict(columns.over(None)),
        }
        if of_job is not None and replace(of_job, **site_settings) != columns:
            way_out = f"agree with its author, or set {COLUMNS} to the file that the job was made with"
            raise ColumnsError(
                f"data site: the job's columns are not those of {COLUMNS} here; {way_out}"
            )
        if self.classes is not None and tuple(self.classes) != columns.classes:
            raise ColumnsError(
                f"data site: the job's classes are {shown(self.classes)}, and those of {COLUMNS} here "
                f"{shown(columns.classes)}; agree with its author"
            )
        return columns.to_dict()

    def located(self) -> tuple[Path, str]:
        """The data's path, and what named it; a DataError if nothing names one, or it does not exist."""
        if self.path is not None:
            return find(self.path, "data site", folder=None), "path"
        if named := os.environ.get(VARIABLE):
            with reading_within(None):
                return find(
                    str(expanded(named)), f"data site: {VARIABLE}", folder=None
                ), VARIABLE
        # Only mounts count, not any folder of that name: the job's author chooses the study.
        mounted = (
            [p for p in sorted((MOUNTS / self.study).glob("*")) if os.path.ismount(p)]
            if self.study
            else []
        )
        if len(mounted) == 1:
            return mounted[0], f"mounted for study {self.study}"
        of_study = (
            f"what is mounted for study {self.study} ({len(mounted)} datasets)"
            if self.study
            else "no study"
        )
        tried = f"tried path (not given), {VARIABLE} (not set), {of_study}"
        way_out = "an .npz file, a folder of images by class or a table, in the shell that starts the site"
        reason = "this site does not say where its data is"
        raise MissingDataError(
            f"data site: {reason}; {tried}; set {VARIABLE} to {way_out}"
        )


OWN = (Digits, Npz, SiteData, Folder, Table, Stroke, Heart)
PUBLIC_IMAGES = (MNIST, FashionMNIST, EMNIST, FEMNIST, CIFAR10, CIFAR100, MedMNIST)
SOURCES: dict[str, type[DataSource]] = {
    source.name: source for source in (*OWN, *PUBLIC_IMAGES)
}
