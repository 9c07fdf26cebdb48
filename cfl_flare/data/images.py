# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A source that decodes image files: one folder a class."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import DataError, FileError
from cfl_flare.core.files import check_memory, open_regular
from cfl_flare.core.settings import setting
from cfl_flare.data.classes import (
    CLASS_NAMES,
    CLASSES_HELP,
    as_name,
    as_names,
    check_names,
    check_spelling,
    list_names,
    refuse_name,
    sort_names,
)
from cfl_flare.data.files import entries, find
from cfl_flare.data.samples import NamedSource, Samples
from cfl_flare.data.splits import split_by_class

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
# What Pillow may take such files for, whatever their names say; its other formats run programs, or are videos.
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "PPM")
# Folders that an operating system or a network drive adds.
OF_SYSTEMS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information")
SPLITS: tuple[str, ...] = ("train", "test")
# An image with more pixels is not decoded.
MOST_PIXELS = 2**26
# Pillow's modes that convert to 8 bits per channel without loss, and the number of channels they convert to.
CHANNELS = {"1": 1, "L": 1, "P": 3, "RGB": 3}


@contextmanager
def silently() -> Iterator[None]:
    """Inside it, no warning is printed. Pillow warns of what is refused here anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decoded(
    files: Sequence[Any],
    label: Callable[[int], str],
    size: tuple[int, int] | None = None,
    channels: int | None = None,
) -> np.ndarray:
    """Images that Pillow decodes, uint8 ``(n, channels, height, width)``.

    A DataError if one cannot be decoded, or two differ in size or channels; both are named.

    Args:
        files: paths or open files.
        label: the name of the i-th, for the errors.
        size: ``(height, width)`` to which all are resized; None if all have the same size.
        channels: 1 or 3, to which all are converted; None if all have the same number.
    """
    from PIL import Image

    images: np.ndarray | None = None
    for i, file in enumerate(files):
        try:
            with (
                silently(),
                open_regular(file)
                if isinstance(file, Path)
                else nullcontext(file) as content,
                Image.open(content, formats=FORMATS) as image,
            ):
                if image.mode not in CHANNELS:
                    raise DataError(
                        f"{label(i)}: has mode {image.mode}; save it as 8-bit grey or RGB"
                    )
                if image.width * image.height > MOST_PIXELS:
                    pixels_of = f"{image.height}x{image.width} pixels, more than {MOST_PIXELS:,} in all"
                    raise DataError(
                        f"{label(i)}: has {pixels_of}; resize it, or remove it"
                    )
                converted = image.convert(
                    "L" if (channels or CHANNELS[image.mode]) == 1 else "RGB"
                )
            if size is not None and converted.size != (size[1], size[0]):
                converted = converted.resize(
                    (size[1], size[0]), Image.Resampling.BILINEAR
                )
        except DataError:
            raise
        except FileError as error:
            raise DataError(f"{error}, or remove it") from error
        except (
            Exception
        ) as error:  # Pillow raises many kinds of errors for a file that it cannot read
            reason = f"cannot be read as an image ({one_line(error)})"
            raise DataError(f"{label(i)}: {reason}; repair or remove it") from error
        pixels = np.asarray(converted)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        if images is None:
            check_memory(
                len(files) * pixels.nbytes, f"{len(files)} images like {label(0)}"
            )
            images = np.empty((len(files), *pixels.shape), np.uint8)
        if pixels.shape[0] != images.shape[1]:
            way_out = "convert them, or set channels=1 or channels=3 where the source has that setting"
            raise DataError(
                f"{label(0)} has {images.shape[1]} channel(s), {label(i)} has {pixels.shape[0]}; {way_out}"
            )
        if pixels.shape != images.shape[1:]:
            first, other = (
                "x".join(map(str, shape))
                for shape in (images.shape[2:], pixels.shape[1:])
            )
            way_out = "resize them, or set size where the source has that setting"
            raise DataError(
                f"{label(0)} is {first} (height x width), {label(i)} is {other}; {way_out}"
            )
        images[i] = pixels
    if images is None:
        raise DataError("no images")
    return images


RESIZE = (
    "resize images of a folder to this height and width; None if all have the same size"
)
CONVERT = "convert images of a folder to 1 (grey) or 3 (colour) channels; None if all have the same number"


@dataclass(frozen=True)
class Folder(NamedSource):
    """Image files by class: ``train/<class>/*.png`` and ``test/<class>/*.png``, or ``<class>/*.png`` split here.

    Classes have their folders' names, and are numbered in sorted order. A site that lacks a class would number the
    others differently: then name all of them by ``classes``. Hidden files are ignored.
    """

    name: ClassVar[str] = "folder"

    path: str = setting(help="the folder, found as by the source npz")
    size: int | None = setting(None, help=RESIZE, ge=1, le=8192)
    channels: int | None = setting(None, help=CONVERT, choices=(1, 3))
    test_share: float = setting(
        0.2,
        help="share of each class that is used for testing if there are no folders train and test",
        gt=0,
        lt=1,
    )
    seed: int = setting(0, help="seed of that split")
    classes: Sequence[str] | None = setting(None, help=CLASSES_HELP, bounds=CLASS_NAMES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None:
            object.__setattr__(self, "classes", as_names(self.classes))

    @property
    def agreed_classes(self) -> tuple[str, ...]:
        return tuple(self.classes or ())

    def load(self) -> tuple[Samples, Samples]:
        root, splits, classes = self._layout()
        if not splits:
            files, labels = _files(root, self._name_folders(root), classes)
            samples = Samples(self._images(files), labels, classes=classes)
            return split_by_class(samples, self.test_share, self.seed)
        files, labels = _files(
            root / "train", self._name_folders(root / "train"), classes
        )
        test_files, test_labels = _files(
            root / "test", self._name_folders(root / "test"), classes
        )
        # Decoded together, so that the shapes of both splits are compared.
        images = self._images([*files, *test_files])
        train = Samples(images[: len(files)], labels, classes=classes)
        return train, Samples(images[len(files) :], test_labels, classes=classes)

    def _layout(self) -> tuple[Path, list[str], tuple[str, ...]]:
        """The folder, those of ``train`` and ``test`` that it has, and the names of the classes."""
        root = find(self.path, "data folder", folder=True)
        inside = [
            entry.name for entry in entries(root, "data folder") if entry.is_dir()
        ]
        splits = [name for name in SPLITS if name in inside]
        if len(splits) == 1:
            raise DataError(
                f"{root}: has a folder {splits[0]} alone; give it both train and test, or neither"
            )
        if not splits:
            return root, splits, self._number_classes(self._name_folders(root), root)
        classes = self._number_classes(
            self._name_folders(root / "train"), root / "train"
        )
        tests = self._name_folders(root / "test")
        unknown = [folder for name, folder in tests.items() if name not in classes]
        if unknown:
            known = list_names(classes)
            raise DataError(
                f"{root / 'test' / unknown[0]}: not a class in training, which has {known}"
            )
        return root, splits, classes

    def _name_folders(self, folder: Path) -> dict[str, str]:
        """The folders in a split's folder, by the names of their classes."""
        folders = _classes(folder)
        names: dict[str, str] = {}
        for name in folders:
            class_name = as_name(name)
            if class_name in names:
                both = f"{names[class_name]!r} and {name!r} have one name"
                raise DataError(
                    f"{folder}: the folders {both}; put their images into one"
                )
            names[class_name] = name
        return names

    def _number_classes(self, folders: Iterable[str], where: Path) -> tuple[str, ...]:
        """The names of the classes by number; a DataError if a folder is none of those that were agreed on."""
        if self.classes is None:
            names = sort_names(folders)
            check_names(names, str(where))
            check_spelling(names, str(where))
            return names
        for name in folders:
            if name not in self.classes:
                raise DataError(refuse_name(name, self.classes, f"{where / name}"))
        return tuple(self.classes)

    def _images(self, files: Sequence[Path]) -> np.ndarray:
        size = None if self.size is None else (self.size, self.size)
        return decoded(files, lambda i: str(files[i]), size, self.channels)


def _classes(folder: Path) -> list[str]:
    names = [
        entry.name
        for entry in entries(folder, "data folder")
        if entry.is_dir() and entry.name not in OF_SYSTEMS
    ]
    if not names:
        raise DataError(
            f"{folder}: holds no folder; put each class's images into a folder of its own"
        )
    return names


def _files(
    folder: Path, folders: Mapping[str, str], classes: Sequence[str]
) -> tuple[list[Path], np.ndarray]:
    """A split's files in the order of their classes and of their names, and their labels."""
    files: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        if name not in folders:
            continue
        of_class = entries(folder / folders[name], "data folder")
        _check_images(of_class)
        files += of_class
        labels += [number] * len(of_class)
    if not files:
        raise DataError(f"{folder}: holds no images in its folders")
    return files, np.array(labels, np.int64)


def _check_images(paths: Sequence[Path]) -> None:
    """Raises a DataError if a class's folder holds something else than images."""
    wrong = [path for path in paths if path.suffix.lower() not in SUFFIXES]
    if not wrong:
        return
    reason = f"{wrong[0]}: not an image; a class's folder should hold only {', '.join(SUFFIXES)}"
    if wrong[0].is_dir():
        reason += f". If {wrong[0].parent.name!r} is no class but holds the classes' folders, name it as the path"
    raise DataError(reason)
