# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Finding a site's files, and reading npz archives without ever unpickling."""

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
    """The path with ``$NAME`` and ``~`` replaced by what they stand for on this site."""
    return Path(os.path.expandvars(path)).expanduser()


def from_here(settings: dict[str, Any]) -> None:
    """Makes a source's relative paths that are there absolute: sites on this machine run in other folders."""
    for key in ("path", "root"):
        if isinstance(settings.get(key), str) and Path(settings[key]).exists():
            settings[key] = str(Path(settings[key]).resolve())


def find(path: str, where: str, folder: bool | None = False) -> Path:
    """A file, or a folder; a relative path that is not found is looked for in ``$CFL_DATA_ROOT``.

    Args:
        path: as the user wrote it.
        where: the source, for the error.
        folder: look for a folder; None for a file or a folder.

    Raises:
        DataError: it is in none of the places; all are named.
    """
    tried = [expanded(path)]
    root = os.environ.get(ROOT)
    if root and not tried[0].is_absolute():
        tried.append(Path(root) / tried[0])
    for candidate in tried:
        if (candidate.is_dir() and folder is not False) or (candidate.is_file() and not folder):
            return candidate
    if tried[0].is_absolute():
        hint = "name one that is there"
    else:
        unset = "" if root else f"{ROOT} is not set; set it to the folder that it is in, or "
        hint = f"{unset}give its whole path"
    what = {True: "folder", False: "file", None: "file or folder"}[folder]
    raise DataError(f"{where}: path = {path!r} is no {what}; tried {', '.join(map(str, tried))}; {hint}")


def find_root(root: str | None, where: str) -> Path:
    """The folder in which sets are looked up by their name: ``root``, else ``$CFL_DATA_ROOT``.

    Raises:
        DataError: neither is given, or it is no folder.
    """
    given = root or os.environ.get(ROOT)
    if not given:
        raise DataError(f"{where}: nowhere to look: root is not given and {ROOT} is not set; set one of them")
    folder = expanded(given)
    if not folder.is_dir():
        raise DataError(f"{where}: {'root' if root else ROOT} = {given!r} is no folder; looked in {folder}")
    return folder


def npz_hint(root: Path, flag: str) -> str:
    """What to do instead where a set lies in the root as a plain npz file; empty where it does not."""
    path = root / f"{flag}.npz"
    return f"; {path} is there: read it with the source npz, npz:path={path}" if path.is_file() else ""


def read_npz(path: Path, required: Sequence[str] | None = None, optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Arrays of an npz file.

    Args:
        path: the file.
        required: names of the arrays to read; None for all there are.
        optional: names of arrays that are read where they are there.

    Raises:
        DataError: no npz file, pickled objects inside, or an array that is missing.
    """
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: is a single array, not an npz file; save it with np.savez")
        with file:
            names = list(file.files if required is None else required)
            for name in names:
                if name not in file.files:
                    raise DataError(f"{path}: no array {name!r}; it has {', '.join(file.files) or 'none'}")
            arrays = {name: file[name] for name in [*names, *(n for n in optional if n in file.files)]}
    except DataError:
        raise
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        # numpy takes whatever it does not know for a pickle
        reason = one_line(error) if not path.is_file() or zipfile.is_zipfile(path) else "it is no archive of arrays"
        raise DataError(
            f"{path}: cannot be read as an npz file without pickled objects ({reason}); save arrays of numbers with "
            "np.savez"
        ) from error
    for name, array in arrays.items():
        # A member of the archive that is no .npy file comes as bytes.
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path}: {name!r} is not an array; save the file with np.savez")
    return arrays
