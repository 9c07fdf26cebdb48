# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Finds a site's files, and reads npz archives without unpickling anything."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import DataError

ROOT = "CFL_DATA_ROOT"


def expanded(path: str) -> Path:
    """The path with ``$NAME`` and ``~`` expanded on this site."""
    return Path(os.path.expandvars(path)).expanduser()


def from_here(settings: dict[str, Any]) -> None:
    """Makes a source's existing relative paths absolute: sites on this machine run in other folders."""
    for key in ("path", "root"):
        if isinstance(settings.get(key), str) and Path(settings[key]).exists():
            settings[key] = str(Path(settings[key]).resolve())


def find(path: str, where: str, folder: bool | None = False) -> Path:
    """Finds a file or a folder; a relative path that does not exist is looked up in ``$CFL_DATA_ROOT``.

    Args:
        path: as the user wrote it.
        where: the source, for the error.
        folder: whether it should be a folder; None for either.

    Raises:
        DataError: it does not exist; the message names all paths that were tried.
    """
    tried = [expanded(path)]
    root = os.environ.get(ROOT)
    if root and not tried[0].is_absolute():
        tried.append(Path(root) / tried[0])
    for candidate in tried:
        if (candidate.is_dir() and folder is not False) or (candidate.is_file() and not folder):
            return candidate
    if tried[0].is_absolute():
        hint = "name one that exists"
    else:
        hint = f"{'' if root else f'{ROOT} is not set; set it to the folder that it is in, or '}give its whole path"
    what = {True: "folder", False: "file", None: "file or folder"}[folder]
    raise DataError(f"{where}: path = {path!r} is not a {what}; tried {', '.join(map(str, tried))}; {hint}")


def find_root(root: str | None, where: str) -> Path:
    """The folder in which sets are looked up by their name: ``root``, else ``$CFL_DATA_ROOT``.

    Raises:
        DataError: neither is given, or it is not a folder.
    """
    given = root or os.environ.get(ROOT)
    if not given:
        raise DataError(f"{where}: nowhere to look: root is not given and {ROOT} is not set; set one of them")
    folder = expanded(given)
    if not folder.is_dir():
        raise DataError(f"{where}: {'root' if root else ROOT} = {given!r} is not a folder; looked in {folder}")
    return folder


def read_npz(path: Path, required: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Reads arrays of an npz file.

    Args:
        path: the file.
        required: names of the arrays to read; None for all.

    Raises:
        DataError: it is not an npz file, contains pickled objects, or lacks an array.
    """
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: is a single array, not an npz file; save it with np.savez")
        with file:
            names = file.files if required is None else required
            for name in names:
                if name not in file.files:
                    raise DataError(f"{path}: no array {name!r}; it has {', '.join(file.files) or 'none'}")
            arrays = {name: file[name] for name in names}
    except DataError:
        raise
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        # numpy takes everything it does not know for a pickle
        reason = one_line(error) if not path.is_file() or zipfile.is_zipfile(path) else "not an archive of arrays"
        raise DataError(
            f"{path}: cannot be read as an npz file without pickled objects ({reason}); save arrays of numbers with "
            "np.savez"
        ) from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # a member of the archive that is not an .npy file comes as bytes
            raise DataError(f"{path}: {name!r} is not an array; save the file with np.savez")
    return arrays
