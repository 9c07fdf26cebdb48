# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are written as a whole or not at all, and read only if they are regular files of a bounded size.

`open_regular` opens every file that may come from elsewhere. Every error is a `FileError`, one line with the path and
the way out.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from cfl_flare.core.errors import FileError

# A file of JSON is at most this large, and so is a line of JSON Lines. In memory it can be 20 times as large.
MOST_JSON = 64 * 2**20
# A file of JSON Lines, which is read line by line.
MOST_LINES = 512 * 2**20
# Entries of folders that a search for a run or images looks at.
MOST_ENTRIES = 1_000_000

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def explained(error: OSError, path: Path | str | None = None) -> str:
    """An error of the system in one line: the file, the reason, the way out."""
    if isinstance(error, FileError):
        return str(error)
    name = (
        path
        if path is not None
        else error.filename
        if error.filename is not None
        else "a file"
    )
    if error.errno in FULL:
        way_out = "free space on its disk, or use another one"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        way_out = "allow this user to, or use another folder"
    else:
        way_out = "name another one, or repair it"
    return f"{name}: {error.strerror or type(error).__name__}; {way_out}"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an error of the system inside it into a `FileError` that names the path and the way out."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {explained(error, path)}") from error


def make_folder(path: Path, private: bool = False) -> None:
    """Makes a folder and those above it, unless it exists; no other user may enter private ones, or new ones there."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    with writing(path):
        for folder in reversed(missing):
            folder.mkdir(
                mode=0o700 if private or is_private(folder.parent) else 0o777,
                exist_ok=True,
            )
        path.mkdir(exist_ok=True)


# The folders named by `keep_private`.
_private_roots: set[Path] = set()


def keep_private(root: Path) -> None:
    """From now on, this process makes all folders and files below a folder readable for their owner alone.

    Args:
        root: a folder, which need not exist. Its own permissions stay as they are.
    """
    _private_roots.add(root.resolve())


def is_private(folder: Path) -> bool:
    """Whether a new file in a folder must be readable for its owner alone.

    It must be if the folder can be entered by its owner alone, or lies in a folder that `keep_private` named.
    """
    if not stat.S_IMODE(folder.stat().st_mode) & 0o077:
        return True
    place = folder.resolve()
    return not _private_roots.isdisjoint((place, *place.parents))


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's content. The copy has the permissions of a new file in its folder."""
    with open(source, "rb") as content, open(target, "wb", opener=private_file) as copy:
        shutil.copyfileobj(content, copy)


def copy_folder(source: Path, target: Path, as_links: bool = False) -> None:
    """Copy a folder with all that is in it.

    Args:
        source: the folder.
        target: its copy, which is made if it does not exist.
        as_links: make hard links if the file system has them. In a private folder, they make their file private.

    Raises:
        OSError: a file cannot be read or written.
    """
    make_folder(target)
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if entry.is_dir():
            copy_folder(entry, place, as_links)
        elif not (as_links and _link_file(entry, place)):
            copy_file(entry, place)


def _link_file(source: Path, target: Path) -> bool:
    """Whether a hard link could be made."""
    try:
        os.link(source, target)
    except OSError:
        return False
    if is_private(target.parent):
        target.chmod(0o600)
    return True


def find_open_folders(root: Path) -> list[Path]:
    """The folders below a folder that others than their owner may enter or list."""
    if not root.is_dir():
        return []
    folders = [
        path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()
    ]
    return sorted(path for path in folders if stat.S_IMODE(path.stat().st_mode) & 0o077)


def private_file(path: str | Path, flags: int) -> int:
    """An opener for `open`: a file that it makes in a private folder is private."""
    return os.open(path, flags, 0o600 if is_private(Path(path).parent) else 0o666)


def atomic_write(
    path: Path,
    content: str | bytes | Callable[[BinaryIO], object],
    durable: bool = False,
) -> None:
    """Writes a file in one step: a reader finds the old content or the new, never a part of it.

    Args:
        path: the file, in a folder that exists. A file that is replaced keeps its permissions.
        content: text, bytes, or a function that writes to the open file.
        durable: force file and folder to the disk, so that the new content survives a power failure.
    """
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            mode = path.stat().st_mode if path.exists() else None
            if mode is not None and not stat.S_ISREG(mode):
                raise FileError(
                    f"cannot write {path}: it is {KINDS[stat.S_IFMT(mode)]}; name a regular file"
                )
            with open(temporary, "wb", opener=private_file) as file:
                if mode is not None:
                    os.fchmod(file.fileno(), stat.S_IMODE(mode))
                if callable(content):
                    content(file)
                else:
                    file.write(
                        content.encode() if isinstance(content, str) else content
                    )
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append(path: Path, text: str | bytes, durable: bool = False) -> None:
    """Appends text to a file, which is created if it does not exist: all of it, or nothing.

    ``durable`` text is on the disk when this returns, and survives a power failure.
    """
    rest = memoryview(text.encode() if isinstance(text, str) else text)
    with writing(path), open(path, "ab", buffering=0, opener=private_file) as file:
        before = file.tell()
        try:
            while rest:
                rest = rest[file.write(rest) :]
            if durable:
                os.fsync(file.fileno())
                if not before:
                    _sync_folder(path.parent)
        except BaseException:
            file.truncate(before)
            if not before:
                path.unlink()
            raise


@contextmanager
def locked(path: Path, patience: float | None = None) -> Iterator[None]:
    """Keeps other processes that do the same from a file meanwhile, by a file of its name that ends in ``.lock``.

    The folder is made if there is none, and is its owner's alone. Without ``patience`` it waits for ever.

    Raises:
        FileError: another process has not released the file after these seconds, or the lock cannot be written.
    """
    make_folder(path.parent, private=True)
    lock = path.with_suffix(".lock")
    with writing(lock), lock.open("ab") as file:
        _wait_for(lock, file, patience)
        yield


def _wait_for(lock: Path, file: BinaryIO, patience: float | None) -> None:
    if patience is None:
        return fcntl.flock(file, fcntl.LOCK_EX)
    end = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise FileError(
                    f"{lock}: another process has locked it for {patience:g} s; end that one"
                ) from error
            time.sleep(0.005)


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """Opens a file of at most ``limit`` bytes for reading. It never blocks, nor opens a pipe, device, socket or folder.

    Links are followed. Without a limit, the caller reads it piece by piece.
    """
    try:
        _check_regular(path, os.stat(path), limit)
        file = os.fdopen(
            os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC),
            "rb",
        )
    except FileError:
        raise
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        reason = (
            explained(error, path)
            if isinstance(error, OSError)
            else f"{str(path)!r}: {error}; name another one"
        )
        raise FileError(f"cannot read {reason}") from error
    try:
        _check_regular(
            path, os.fstat(file.fileno()), limit
        )  # it may have been replaced meanwhile
    except FileError:
        file.close()
        raise
    return file


def _check_regular(path: Path, status: os.stat_result, limit: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "no file")
        raise FileError(f"cannot read {path}: it is {kind}; name a regular file")
    if limit is not None and status.st_size > limit:
        raise FileError(
            f"cannot read {path}: it has {status.st_size:,} bytes, more than {limit:,}; name another file"
        )


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def read_text(path: Path, limit: int = MOST_JSON) -> str:
    with open_regular(path, limit) as file:
        try:
            return file.read(limit + 1).decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = (
                error.strerror
                if isinstance(error, OSError)
                else "it is not text in UTF-8"
            )
            raise FileError(
                f"cannot read {path}: {reason}; name another file"
            ) from error


def read_json(path: Path) -> Any:
    return parse_json(read_text(path), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """The content of JSON text; ``where`` names it in the error."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = (
            "nested too deeply" if isinstance(error, RecursionError) else str(error)
        )
        raise FileError(
            f"cannot read {where}: it is not JSON ({reason}); name another file"
        ) from error


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in the complete lines of a JSON Lines file that may still be growing."""
    with open_regular(path, MOST_LINES) as file:
        for number, line in enumerate(
            iter(lambda: file.readline(MOST_JSON + 1), b""), start=1
        ):
            if not line.endswith(b"\n"):
                if len(line) > MOST_JSON:
                    raise FileError(
                        f"cannot read {path}: line {number} is too long; name another file"
                    )
                return
            content = parse_json(line, f"{path}: line {number}")
            if not isinstance(content, dict):
                raise FileError(
                    f"cannot read {path}: line {number} is not a JSON object; name another file"
                )
            yield content


def below(folder: Path) -> Iterator[Path]:
    """All files in a folder and below it, links to folders not followed; sorted within each folder."""
    seen = 0
    for place, folders, files in os.walk(folder):
        folders.sort()
        seen += len(folders) + len(files)
        if seen > MOST_ENTRIES:
            raise FileError(
                f"cannot read {folder}: it holds more than {MOST_ENTRIES:,} files; name a folder below it"
            )
        yield from (Path(place, name) for name in sorted(files))


def check_memory(nbytes: int, where: str) -> None:
    """Checks what a file asks for before any of it is allocated."""
    import psutil

    free = psutil.virtual_memory().available
    if nbytes > free:
        raise FileError(
            f"{where} would take {nbytes:,} bytes of memory, and {free:,} are free; use a smaller one"
        )
