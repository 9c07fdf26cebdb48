# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Data sources by their names on the command line: each reads one site's training and test samples."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
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
from cfl_flare.data.columns import Columns
from cfl_flare.data.files import expanded, find, read_npz, reading_within
from cfl_flare.data.frames import is_table
from cfl_flare.data.hospitals import Heart, Stroke
from cfl_flare.data.images import CONVERT, RESIZE, Folder
from cfl_flare.data.named import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST, MedMNIST
from cfl_flare.data.preparation import Scaling
from cfl_flare.data.samples import DataSource, NamedSource, Samples, Wrapped, checked
from cfl_flare.data.splits import split_by_class
from cfl_flare.data.table import Table, columns_of

__all__ = ["SOURCES", "DataSource", "Digits", "Npz", "Samples", "SiteData"]

logger = logging.getLogger(__name__)

VARIABLE = "CFL_DATA"
LABEL = "CFL_LABEL"
EVENT = "CFL_EVENT"
PATIENT = "CFL_PATIENT"
GROUP = "CFL_GROUP"
COLUMNS = "CFL_COLUMNS"
# Where FLARE's container launchers mount the datasets of a job's study: /data/<study>/<dataset>.
MOUNTS = Path("/data")


@dataclass(frozen=True)
class Digits(NamedSource):
    """Scikit-learn's bundled handwritten digits: 1,797 images of 8x8, 10 classes; nothing is downloaded."""

    name: ClassVar[str] = "digits"
    public: ClassVar[bool] = True

    test_share: float = setting(0.25, help="share of each class that is used for testing", gt=0, lt=1)
    seed: int = setting(0, help="seed of that split")

    def load(self) -> tuple[Samples, Samples]:
        # as ``sklearn.datasets.load_digits`` reads it, without a second of importing scikit-learn
        file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
        table = np.loadtxt(str(file), delimiter=",")
        images = (table[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        return split_by_class(Samples(images, table[:, -1].astype(np.int64)), self.test_share, self.seed)


@dataclass(frozen=True)
class Npz(NamedSource):
    """A file in MedMNIST's layout: ``train_images, train_labels, test_images, test_labels``, uint8 or float.

    Images are ``(n, h, w)`` or ``(n, h, w, 3)``. Labels are class numbers or, as floats, numbers to predict, ``(n,)``
    or ``(n, 1)``; several findings of 0 or 1 ``(n, C)``; times and events as floats ``(n, 2)``; or masks ``(n, h, w)``
    or ``(n, h, w, 1)`` of class numbers. A validation split is not used.
    """

    name: ClassVar[str] = "npz"

    path: str = setting(help="the file; a relative path that does not exist is looked up in $CFL_DATA_ROOT")
    key: str | None = setting(
        None, help="the owner of each sample is in the arrays `train_<key>, test_<key>`, for the partition natural"
    )
    patient: str | None = setting(
        None,
        help="whose sample each is, where a patient has several, is in the arrays `train_<patient>, test_<patient>`",
    )
    labels: str = setting(
        "labels", help="the labels are in the arrays `train_<labels>, test_<labels>`: `masks` for segmentation"
    )

    def load(self) -> tuple[Samples, Samples]:
        path = find(self.path, "data npz")
        splits, notes = ("train", "test"), {"key": self.key, "patient": self.patient}
        kinds = ("images", self.labels, *filter(None, notes.values()))
        arrays = read_npz(path, [f"{split}_{kind}" for split in splits for kind in kinds])
        samples = []
        for split in splits:
            images, labels, *_ = (arrays[f"{split}_{kind}"] for kind in kinds)
            names = {note: arrays[f"{split}_{kind}"] for note, kind in notes.items() if kind}
            samples.append(replace(Samples.of_images(f"{path}: {split}", images, labels), **names))
        return checked(tuple(samples), str(path))


@dataclass(frozen=True)
class SiteData(Wrapped):
    """The data that the site itself names: an .npz file in MedMNIST's layout, a folder of images by class, or a table.

    The site's environment variable ``CFL_LABEL`` names the labels: a table's column (default ``label``), or an .npz
    file's arrays (default ``labels``: ``train_labels, test_labels``). ``CFL_EVENT`` names a table's column of events if
    its labels are times. ``CFL_PATIENT`` names a table's column, or an .npz file's arrays, of whose sample each is,
    where a patient has several. ``CFL_GROUP`` is the site's group, for the method groups. ``CFL_COLUMNS`` is the file
    with what the sites agreed on of a table's columns. A job whose ``columns`` say something else is refused.

    A table is a .csv, .csv.gz or .parquet file. A folder with a single .npz file, or with nothing but a table, stands
    for that file, because datasets are always mounted as folders.

    The site uses the first of these that is set, which must exist: ``path``; its environment variable ``CFL_DATA``; the
    only dataset that FLARE's container launchers (Docker, Kubernetes, Slurm) mount for the job's study.
    """

    name: ClassVar[str] = "site"
    prepares: ClassVar[bool] = True

    path: str | None = setting(
        None, help="for a site on its own; a job leaves it out, as its author does not know the sites' paths"
    )
    study: str | None = setting(
        None, help="the study whose mounted dataset is used; a job leaves it out, and gets that of its own study"
    )
    size: int | None = setting(None, help=RESIZE)
    channels: int | None = setting(None, help=CONVERT)
    columns: Mapping[str, Any] | str | None = setting(
        None, help="of a table: the file that 'cfl-flare columns' wrote, or what is in it; a job carries the latter"
    )
    scaling: Scaling = setting("auto", help="of a table, as of the source table")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agreed_columns is not None:  # what is in the file, as a job's sites do not have it
            object.__setattr__(self, "columns", self.agreed_columns.to_dict())
        require(self.path is None or bool(self.path), "data site: path = '' should name a file or a folder")
        is_name = self.study is None or bool(re.fullmatch(r"\w[\w.-]*", self.study))
        require(is_name, f"data site: study = {self.study!r} should be a name, of letters, digits, '_', '.' and '-'")
        Folder("", self.size, self.channels)  # its checks of both

    @cached_property
    def agreed_columns(self) -> Columns | None:
        return None if self.columns is None else columns_of(self.columns, "data site: columns")

    @property
    def patient(self) -> str | None:
        return os.environ.get(PATIENT) or None

    @property
    def group_label(self) -> str | None:
        return os.environ.get(GROUP) or None

    def leave(self) -> AbstractContextManager[None]:
        """What the operator names needs no leave."""
        return nullcontext() if self.path is not None else reading_within(None)

    @cached_property
    def inner(self) -> DataSource:
        path, named_by = self.located()
        inside = list(path.glob("*.npz")) or list(path.iterdir()) if path.is_dir() else []
        if len(inside) == 1 and (inside[0].suffix.lower() == ".npz" or is_table(inside[0])):
            path = inside[0]
        logger.info("data: %s (%s)", path, named_by)
        if path.is_dir():
            folder = f"{PATIENT} = {self.patient!r} is set, and {path}, a folder of images, names no patients"
            require(self.patient is None, f"data site: {folder}; make it an .npz file or a table", DataError)
            return Folder(str(path), self.size, self.channels)
        label = os.environ.get(LABEL) or None
        if is_table(path):
            event = os.environ.get(EVENT) or None
            patient, columns = self.patient, self._table_columns()
            return Table(str(path), label, patient=patient, event=event, columns=columns, scaling=self.scaling)
        return Npz(str(path), patient=self.patient, labels=label or "labels")

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
        site_settings = {"names": columns.names, "leave": columns.leave, **asdict(columns.over(None))}
        if of_job is not None and replace(of_job, **site_settings) != columns:
            way_out = f"agree with its author, or set {COLUMNS} to the file that the job was made with"
            raise ColumnsError(f"data site: the job's columns are not those of {COLUMNS} here; {way_out}")
        return columns.to_dict()

    def located(self) -> tuple[Path, str]:
        """The data's path, and what named it; a DataError if nothing names one, or it does not exist."""
        if self.path is not None:
            return find(self.path, "data site", folder=None), "path"
        if named := os.environ.get(VARIABLE):
            with reading_within(None):
                return find(str(expanded(named)), f"data site: {VARIABLE}", folder=None), VARIABLE
        # Only mounts count, not any folder of that name: the job's author chooses the study.
        mounted = [p for p in sorted((MOUNTS / self.study).glob("*")) if os.path.ismount(p)] if self.study else []
        if len(mounted) == 1:
            return mounted[0], f"mounted for study {self.study}"
        of_study = f"what is mounted for study {self.study} ({len(mounted)} datasets)" if self.study else "no study"
        tried = f"tried path (not given), {VARIABLE} (not set), {of_study}"
        way_out = "an .npz file, a folder of images by class or a table, in the shell that starts the site"
        reason = "this site does not say where its data is"
        raise MissingDataError(f"data site: {reason}; {tried}; set {VARIABLE} to {way_out}")


OWN = (Digits, Npz, SiteData, Folder, Table, Stroke, Heart)
PUBLIC_IMAGES = (MNIST, FashionMNIST, EMNIST, CIFAR10, CIFAR100, MedMNIST)
SOURCES: dict[str, type[DataSource]] = {source.name: source for source in (*OWN, *PUBLIC_IMAGES)}
