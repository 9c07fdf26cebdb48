# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays that a method keeps on the server's disk because one for each participant would not fit into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.files import atomic_write, make_folder
from cfl_flare.core.params import Layout, Params, weighted_mean


class Archive:
    """Named arrays in versions, one per round. A version is never overwritten, and a state names those it refers to.

    A run that resumes from a checkpoint therefore reads what an uninterrupted run reads.

    Args:
        folder: where the files are; created with the first one. None for a temporary folder, deleted with the archive.
    """

    def __init__(self, folder: Path | None = None):
        self._temporary = tempfile.TemporaryDirectory(prefix="cfl-archive-") if folder is None else None
        self.folder = folder or Path(str(self._temporary and self._temporary.name))

    def put(self, name: str, version: int, array: np.ndarray) -> None:
        """Writes an array under any name, as of a round.

        Raises:
            FileError: it cannot be written.
        """
        make_folder(self.folder)
        path = self._path(name, version)
        atomic_write(path, lambda f: np.save(f, array, allow_pickle=False), durable=self._temporary is None)

    def get(self, name: str, version: int) -> np.ndarray:
        """An array, memory-mapped and read-only: only what is accessed is loaded.

        Raises:
            PayloadError: it is missing or damaged.
        """
        path = self._path(name, version)
        try:
            array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise PayloadError("damaged_file", f"{path} cannot be read: {error}") from error
        return array

    def rewind(self, number: int) -> None:
        """Deletes the versions that a run resuming from round ``number`` will write again."""
        for path, _, version in self._files():
            if version >= number:
                path.unlink()

    def prune(self, number: int) -> None:
        """Deletes what no state from round ``number`` on refers to: all but each name's newest earlier version."""
        newest: dict[str, int] = {}
        earlier = [(path, name, version) for path, name, version in self._files() if version < number]
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
                atomic_write(target, path.read_bytes())

    def _path(self, name: str, version: int) -> Path:
        return self.folder / f"{quote(name, safe='')}@{version:06d}.npy"

    def _files(self) -> Iterator[tuple[Path, str, int]]:
        for path in sorted(self.folder.glob("*@*.npy")):
            name, _, version = path.stem.rpartition("@")
            yield path, name, int(version)


class LatestModels:
    """The latest known model of each participant, in an archive; one at a time is in memory.

    Args:
        archive: holds the models.
        layout: of each model.
        versions: by participant, the round of its model and its number of samples.
    """

    def __init__(self, archive: Archive, layout: Layout, versions: Mapping[str, tuple[int, float]]):
        self._archive, self._layout, self.versions = archive, layout, versions

    @property
    def names(self) -> list[str]:
        """The participants."""
        return list(self.versions)

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
        return Params(self._layout, vector, self._archive.get(f"counters of {name}", version))

    def mean(self, names: Sequence[str], weighting: str, otherwise: Params) -> Params:
        """The mean of some models, weighted by ``"samples"`` or uniform; ``otherwise`` if there are none."""
        return weighted_mean(((self.model(name), self.weight([name], weighting)) for name in names), otherwise)

    def weight(self, names: Sequence[str], weighting: str) -> float:
        """The total weight of some participants."""
        return float(sum(self.versions[name][1] for name in names) if weighting == "samples" else len(names))

    def spread(self, names: Sequence[str], centre: Params) -> float:
        """Mean squared distance from some participants' parameters to those of a centre."""
        middle = centre.part("all").astype(np.float64)
        return float(np.mean([np.square(self.parameters(name) - middle).sum() for name in names]))
