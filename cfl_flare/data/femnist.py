# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FEMNIST from the files that LEAF's scripts write (Caldas et al. 2018): handwritten characters by their writers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import DataError
from cfl_flare.core.settings import setting
from cfl_flare.core.text import shown
from cfl_flare.data.files import authorised, entries, find_root
from cfl_flare.data.loading import checked
from cfl_flare.data.samples import NamedSource, Samples

# Height and width of a character, and the number of classes: digits, upper case and lower case letters.
SIDE = 28
CLASSES = 62


@dataclass(frozen=True)
class FEMNIST(NamedSource):
    """FEMNIST by its writers: LEAF's JSON files in ``femnist/train`` and ``femnist/test``, 28x28 grey, 62 classes.

    LEAF's ``preprocess.sh`` writes these files below ``data/train`` and ``data/test``. The partition ``natural`` makes
    each writer a participant.
    """

    name: ClassVar[str] = "femnist"
    public: ClassVar[bool] = True
    folder: ClassVar[str] = "femnist"

    root: str | None = setting(
        None, help="folder that holds the folder femnist; default $CFL_DATA_ROOT"
    )

    @property
    def usual_partition(self) -> Mapping[str, Any]:
        return {"partition": "natural"}

    def load(self) -> tuple[Samples, Samples]:
        where = "data femnist"
        folder = find_root(self.root, where) / self.folder
        splits = tuple(
            read_leaf(authorised(folder / split, where), where)
            for split in ("train", "test")
        )
        return checked(splits, where)


def read_leaf(folder: Path, where: str) -> Samples:
    """Read all JSON files of a folder that LEAF wrote, in the order of their names.

    Args:
        folder: with one or more files ``*.json``.
        where: the source, for errors.

    Returns:
        Images ``(n, 1, 28, 28)`` uint8, labels ``(n,)`` int64, and the writer of each sample as its key.

    Raises:
        DataError: there is no such file, or one is not as LEAF writes it.
    """
    files = (
        [path for path in entries(folder, where) if path.suffix == ".json"]
        if folder.is_dir()
        else []
    )
    if not files:
        raise DataError(
            f"{where}: {folder} has no .json files: expected those that LEAF's preprocess.sh wrote\n"
            "hint: copy LEAF's data/femnist/data/train and test into femnist/train and femnist/test"
        )
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    writers: list[np.ndarray] = []
    for path in files:
        for writer, x, y in read_users(path):
            images.append(x)
            labels.append(y)
            writers.append(np.full(len(y), writer))
    return Samples(
        np.concatenate(images), np.concatenate(labels), np.concatenate(writers)
    )


def read_users(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Read one file: of each user with samples its name, images ``(n, 1, 28, 28)`` uint8 and labels ``(n,)`` int64.

    Raises:
        DataError: the file is not as LEAF writes it.
    """
    try:
        content = json.loads(path.read_bytes())
        user_data = content["user_data"]
        users = [
            (str(user), read_user(user_data[user], f"{path}: user {shown(user)}"))
            for user in content["users"]
        ]
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{path}: it is not a file of LEAF ({one_line(error)})"
        raise DataError(
            f"{reason}: expected the keys users and user_data\nhint: write it by preprocess.sh"
        ) from error
    return [(user, x, y) for user, (x, y) in users if len(y) > 0]


def read_user(content: Mapping[str, Any], where: str) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of one user; pixels from 0 to 1 become bytes.

    Raises:
        DataError: images are not 784 pixels from 0 to 1, or labels are not classes from 0 to 61.
    """
    x = np.asarray(content["x"], np.float64).reshape(-1, SIDE * SIDE)
    y = np.asarray(content["y"])
    if len(x) != len(y):
        raise DataError(
            f"{where}: {len(x)} images and {len(y)} labels: expected a label for each image"
        )
    if len(y) == 0:
        return np.zeros((0, 1, SIDE, SIDE), np.uint8), np.zeros(0, np.int64)
    if not (x.min() >= 0 and x.max() <= 1):
        raise DataError(
            f"{where}: pixels from {x.min():g} to {x.max():g} are invalid: expected 0 to 1"
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= CLASSES:
        raise DataError(
            f"{where}: labels are invalid: expected classes from 0 to {CLASSES - 1}"
        )
    return np.rint(x * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE), y.astype(
        np.int64
    )
