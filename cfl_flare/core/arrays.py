# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays on disk: safetensors files with a checksum, and the archive of a method that keeps too many for the memory.

The metadata of a safetensors file begin with the SHA-256 of the file as it is with 64 zeros there. Files without one,
of other programs, are read as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np
from safetensors import SafetensorError, safe_open

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import FileError, PayloadError
from cfl_flare.core.files import (
    MOST_JSON,
    atomic_write,
    check_memory,
    make_folder,
    open_regular,
    parse_json,
)
from cfl_flare.core.params import Layout, Params, weighted_mean

META, CHECKSUM, BLANK = "cfl_flare", "cfl_flare_sha256", "0" * 64


def save_arrays(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    durable: bool = False,
) -> None:
    """Writes arrays and JSON metadata as one safetensors file, as `cfl_flare.core.files.atomic_write` does."""
    header: dict[str, Any] = {
        "__metadata__": {CHECKSUM: BLANK, META: json.dumps(dict(meta))}
    }
    parts, end = [], 0
    for name, array in sorted(
        arrays.items(), key=lambda item: (-item[1].itemsize, item[0])
    ):  # so that each is aligned
        kind, nbytes = array.dtype.kind.upper(), array.nbytes
        dtype = "BOOL" if kind == "B" else f"{kind}{8 * array.itemsize}"
        header[name] = {
            "dtype": dtype,
            "shape": array.shape,
            "data_offsets": (end, end + nbytes),
        }
        end += nbytes
        plain = np.asarray(
            array, array.dtype.newbyteorder("<"), order="C"
        )  # itself, if it lies so in memory
        parts.append(plain.reshape(-1).view(np.uint8).data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(head)
    for part in parts:
        digest.update(part)
    head = head.replace(BLANK.encode(), digest.hexdigest().encode(), 1)

    def write(file: BinaryIO) -> None:
        file.write(head)
        for part in parts:
            file.write(part)

    atomic_write(path, write, durable)


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads what `save_arrays` wrote, or another program's arrays. The arrays are never larger than the file.

    A PayloadError if the file is damaged, does not match its checksum, or is not a safetensors file.
    """
    try:
        with open_regular(path) as file:
            check_memory(os.fstat(file.fileno()).st_size, str(path))
        with safe_open(str(path), framework="numpy") as f:
            metadata = f.metadata() or {}
            _verify(path, metadata)
            text = metadata.get(META, "{}")
            if len(text) > MOST_JSON:
                raise FileError(
                    f"cannot read {path}: its metadata have {len(text):,} characters; name another file"
                )
            meta = parse_json(text, f"{path}: metadata")
            arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - not a mapping
    except FileError as error:
        raise PayloadError("damaged_file", str(error)) from error
    except (
        SafetensorError,
        OSError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:  # dtypes that numpy lacks
        raise PayloadError(
            "damaged_file",
            f"{path} cannot be read: {one_line(error)}; name a whole safetensors file",
        ) from error
    if not isinstance(meta, dict):
        raise PayloadError(
            "damaged_file",
            f"{path} cannot be read: its metadata are a {type(meta).__name__}",
        )
    return arrays, meta


def _verify(path: Path, metadata: Mapping[str, str]) -> None:
    """Raises a PayloadError for a file with a checksum that is not its own; damage may have hit the checksum's name."""
    if CHECKSUM not in metadata and not {META} < metadata.keys():
        return
    stated = metadata.get(CHECKSUM, BLANK)
    with open_regular(path) as file:
        length = file.read(8)
        digest = hashlib.sha256(length)
        header = file.read(int.from_bytes(length, "little"))
        digest.update(header.replace(stated.encode(), BLANK.encode(), 1))
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != stated:
        raise PayloadError(
            "damaged_file",
            f"{path} does not match its checksum; copy it again, or name another file",
        )


class Archive:
    """Named arrays in versions, one per round. A version is never overwritten, and a state names those it refers to.

    A run that resumes from a checkpoint therefore reads what an uninterrupted run reads. The folder is created with the
    first file. None is a temporary folder, deleted with the archive. ``durable`` arrays survive a power failure.
    """

    def __init__(self, folder: Path | None = None, durable: bool = False):
        self._temporary = (
            tempfile.TemporaryDirectory(prefix="cfl-archive-")
            if folder is None
            else None
        )
        self.folder = folder or Path(str(self._temporary and self._temporary.name))
        self._durable = durable

    def put(self, name: str, version: int, array: np.ndarray) -> None:
        """Writes an array under any name, as of a round."""
        make_folder(self.folder)
        path = self._path(name, version)
        atomic_write(
            path, lambda f: np.save(f, array, allow_pickle=False), durable=self._durable
        )

    def put_mean(
        self, name: str, version: int, array: np.ndarray, earlier: Sequence[int] | None
    ) -> None:
        """Writes the mean of an array and earlier ones, whose mean is there: its version, and of how many it is."""
        if earlier is not None:
            before, count = earlier
            array = np.float32(
                (self.get(name, before) * np.float64(count) + array) / (count + 1)
            )
        self.put(name, version, array)

    def get(self, name: str, version: int) -> np.ndarray:
        """An array, memory-mapped and read-only: only what is accessed is loaded. A PayloadError if it is damaged."""
        path = self._path(name, version)
        try:
            array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise PayloadError(
                "damaged_file", f"{path} cannot be read: {error}"
            ) from error
        return array

    def rewind(self, number: int) -> None:
        """Deletes the versions that a run resuming from round ``number`` will write again."""
        for path, _, version in self._files():
            if version >= number:
                path.unlink()

    def prune(self, number: int) -> None:
        """Deletes what no state from round ``number`` on refers to: all but each name's newest earlier version."""
        newest: dict[str, int] = {}
        earlier = [
            (path, name, version)
            for path, name, version in self._files()
            if version < number
        ]
        for _, name, version in earlier:
            newest[name] = max(version, newest.get(name, 0))
        for path, name, version in earlier:
            if version < newest[name]:
                path.unlink()

    def adopt(self, other: Archive) -> None:
        """Takes over the contents of another archive, as hard links where the file system supports them."""
        for path, _, _ in other._files():
            make_folder(self.folder)
            target = self.folder / path.name
            target.unlink(missing_ok=True)
            try:
                os.link(path, target)
            except OSError:
                atomic_write(target, path.read_bytes(), self._durable)

    def _path(self, name: str, version: int) -> Path:
        return self.folder / f"{quote(name, safe='')}@{version:06d}.npy"

    def _files(self) -> Iterator[tuple[Path, str, int]]:
        for path in sorted(self.folder.glob("*@*.npy")):
            name, _, version = path.stem.rpartition("@")
            yield path, name, int(version)


class LatestModels:
    """The latest known model of each participant, in an archive; one at a time is in memory.

    Its ``versions`` are, by participant, the round of its model and its number of samples.
    """

    def __init__(
        self,
        archive: Archive,
        layout: Layout,
        versions: Mapping[str, tuple[int, float]],
    ):
        self._archive, self._layout, self.versions = archive, layout, versions

    def keep(self, name: str, model: Params) -> None:
        """Writes a participant's model, as of the round in ``versions``."""
        version, _ = self.versions[name]
        self._archive.put(f"model of {name}", version, model.vector)
        if len(model.counters):
            self._archive.put(f"counters of {name}", version, model.counters)

    def parameters(self, name: str) -> np.ndarray:
        """A model's parameters without buffers, ``(parameter_size,)``, memory-mapped."""
        return self.model(name).vector[: self._layout.parameter_size]

    def model(self, name: str) -> Params:
        """A model, memory-mapped."""
        version, _ = self.versions[name]
        vector = self._archive.get(f"model of {name}", version)
        if not self._layout.counter_size:
            return Params(self._layout, vector)
        return Params(
            self._layout, vector, self._archive.get(f"counters of {name}", version)
        )

    def mean(self, names: Sequence[str], weighting: str, otherwise: Params) -> Params:
        """The mean of some models, weighted by ``"samples"`` or uniform; ``otherwise`` if there are none."""
        return weighted_mean(
            ((self.model(name), self.weight([name], weighting)) for name in names),
            otherwise,
        )

    def weight(self, names: Sequence[str], weighting: str) -> float:
        return float(
            sum(self.versions[name][1] for name in names)
            if weighting == "samples"
            else len(names)
        )

    def spread(self, names: Sequence[str], centre: Params) -> float:
        """Mean squared distance from some participants' parameters to those of a centre."""
        middle = centre.part("all").astype(np.float64)
        return float(
            np.mean([np.square(self.parameters(name) - middle).sum() for name in names])
        )
