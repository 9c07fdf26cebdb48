# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Finds a site's files, if its operator allows a job to read them; reads npz archives without unpickling anything."""

from __future__ import annotations

import lzma
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import DataError, FileError, MissingDataError, PathError
from cfl_flare.core.files import check_memory, open_regular
from cfl_flare.core.text import plain

ROOT = "CFL_DATA_ROOT"
# An npz file's arrays may have this many bytes, and this many more for each byte of the file. No set of images is
# compressed further.
MOST_UNPACKED = 256 * 2**20
MOST_PACKING = 100
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    KeyError,
)

# Folders in which the paths that a job names must lie; None where jobs are the operator's own, as in a simulation.
_roots: ContextVar[Sequence[Path] | None] = ContextVar("roots")
_usual_roots: Sequence[Path] | None = None


def read_nothing() -> None:
    """From now on, this process reads no path that a job names outside of `reading_within`."""
    global _usual_roots
    _usual_roots = ()


@contextmanager
def reading_within(roots: Sequence[str | Path] | None) -> Iterator[None]:
    """Limits what `authorised` lets pass to these folders; None lifts the limit, for paths that the operator names."""
    token = _roots.set(
        None if roots is None else [Path(root).resolve() for root in roots]
    )
    try:
        yield
    finally:
        _roots.reset(token)


def authorised(path: Path, where: str) -> Path:
    """The path, with its links followed if there is a limit; every path that a job names passes here.

    A PathError if it lies in none of the folders that `reading_within` names. The path need not exist.
    """
    roots = _roots.get(_usual_roots)
    if roots is None:
        return path
    real = path.resolve()
    if any(real.is_relative_to(root) for root in roots):
        return real
    allowed = ", ".join(map(str, roots)) or "none"
    raise PathError(
        f"{where}: the job names {str(path)!r}, which is in no folder that the operator allows (allowed: {allowed}); "
        "leave it out of the job, so that $CFL_DATA names the data, or let the operator run 'cfl-flare site prepare' "
        "with --data-root"
    )


def expanded(path: str) -> Path:
    """A path that the user or the operator wrote on this machine, with ``$NAME`` and ``~`` expanded; never a job's."""
    return Path(os.path.expandvars(path)).expanduser()


def from_here(settings: dict[str, Any]) -> None:
    """Makes a source's paths absolute if they exist here, once expanded: sites on this machine run in other folders."""
    for key in ("path", "root"):
        if isinstance(settings.get(key), str) and expanded(settings[key]).exists():
            settings[key] = str(expanded(settings[key]).resolve())


def find(path: str, where: str, folder: bool | None = False) -> Path:
    """Finds a file or a folder; a relative path that does not exist is looked up in ``$CFL_DATA_ROOT``.

    A PathError if the operator does not allow it. A DataError if it does not exist, which names all that was tried.

    Args:
        path: as the job has it; nothing in it is expanded.
        where: the source, for the error.
        folder: whether it should be a folder; None for either.
    """
    tried = [Path(path)]
    root = os.environ.get(ROOT)
    if root and not tried[0].is_absolute():
        tried.append(expanded(root) / path)
    candidates, refused = [], []
    for candidate in tried:
        try:
            candidates.append(authorised(candidate, where))
        except PathError as error:
            refused.append(error)
    if not candidates:
        raise refused[0]
    for candidate in candidates:
        if (os.path.isdir(candidate) and folder is not False) or (
            os.path.isfile(candidate) and not folder
        ):
            return candidate
    if tried[0].is_absolute():
        hint = "name one that exists"
    else:
        hint = f"{'' if root else f'{ROOT} is not set; set it to the folder that it is in, or '}give its whole path"
    what = {True: "folder", False: "file", None: "file or folder"}[folder]
    places = ", ".join(plain(str(place), 500) for place in tried)
    raise MissingDataError(
        f"{where}: path = {path!r} is not a {what}; tried {places}; {hint}"
    )


def find_root(root: str | None, where: str, writes: bool = False) -> Path:
    """The folder in which sets are looked up by their name: ``root`` as the job has it, else ``$CFL_DATA_ROOT``.

    A PathError if the operator does not allow it, or a job would download a set into it (``writes``). A DataError if
    neither is given, or it is not a folder.
    """
    given = root or os.environ.get(ROOT)
    if not given:
        raise DataError(
            f"{where}: nowhere to look: root is not given and {ROOT} is not set; set one of them"
        )
    folder = authorised(Path(root) if root else expanded(given), where)
    if not folder.is_dir():
        raise DataError(
            f"{where}: {'root' if root else ROOT} = {given!r} is not a folder; looked in {folder}"
        )
    if writes and _roots.get(_usual_roots) is not None:
        raise PathError(
            f"{where}: download = True: a job may read {folder}, but not write to it; leave download out"
        )
    return folder


def entries(folder: Path, where: str) -> list[Path]:
    """What is in a folder, sorted by name, without hidden files; a link is `authorised` as the job's own paths are."""
    visible = sorted(
        entry for entry in folder.iterdir() if not entry.name.startswith(".")
    )
    for entry in visible:
        if _roots.get(_usual_roots) is not None and entry.is_symlink():
            authorised(entry, where)
    return visible


def read_npz(
    path: Path, required: Sequence[str] | None = None, optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Reads arrays of an npz file; none is unpickled, or read before its size is bounded.

    Args:
        path: the file.
        required: the names of arrays that it must have; None for all that it has.
        optional: the names of arrays that are read if it has them.

    Returns:
        The arrays by name.

    Raises:
        DataError: it is not an npz file, contains pickled objects, lacks an array, or would be too large.
    """
    try:
        with open_regular(path) as file:
            return _arrays(path, file, required, optional)
    except DataError:
        raise
    except FileError as error:
        raise DataError(str(error)) from error
    except (OSError, ValueError, EOFError, *ZIP_ERRORS) as error:
        # numpy takes everything it does not know for a pickle
        reason = (
            one_line(error) if zipfile.is_zipfile(path) else "not an archive of arrays"
        )
        problem = f"cannot be read as an npz file without pickled objects ({reason})"
        raise DataError(
            f"{path}: {problem}; save arrays of numbers with np.savez"
        ) from error


def _arrays(
    path: Path,
    file: BinaryIO,
    required: Sequence[str] | None,
    optional: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    if file.read(6) == b"\x93NUMPY":
        raise DataError(
            f"{path}: is a single array, not an npz file; save it with np.savez"
        )
    with zipfile.ZipFile(file) as archive:
        members = {
            info.filename.removesuffix(".npy"): info for info in archive.infolist()
        }
        names = (
            list(members)
            if required is None
            else [*required, *(name for name in optional if name in members)]
        )
        for name in names:
            if name not in members:
                raise DataError(
                    f"{path}: no array {name!r}; it has {', '.join(members) or 'none'}"
                )
        total = sum(
            _declared(archive, members[name], f"{path}: {name!r}") for name in names
        )
        if total > MOST_UNPACKED + MOST_PACKING * os.fstat(file.fileno()).st_size:
            reason = f"its arrays would have {total:,} bytes, which no images in a file of this size have"
            raise DataError(
                f"{path}: {reason}; save them without compression, with np.savez"
            )
        check_memory(total, str(path))
        arrays = {}
        for name in names:
            with archive.open(members[name]) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            arrays[name] = (
                np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
            )
        return arrays


def _declared(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> int:
    """The size of an array, if its header and the archive's directory agree on it, and its values are plain."""
    with archive.open(info) as member:
        try:
            version = np.lib.format.read_magic(member)
        except ValueError as error:
            raise DataError(
                f"{where} is not an array; save the file with np.savez"
            ) from error
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(member)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds objects")
        nbytes = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or nbytes != info.file_size - member.tell():
            raise DataError(
                f"{where} has shape {shape} and {info.file_size:,} bytes; save the file again"
            )
        return nbytes
