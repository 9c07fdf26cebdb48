# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays that a method keeps on the server's disk, because one for each participant would not fit into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Layout, Params, weighted_mean


class Archive:
    """Named arrays in versions, one a round, that are never written over: a state names the versions that it means.

    So a run that goes on from a checkpoint reads what the undisturbed one read. Reading maps the file into memory, and
    loads what is touched.

    Args:
        folder: where they lie; it is made when the first one is written. None is a temporary one, which goes with the
            archive.
    """

    def __init__(self, folder: Path | None = None):
        self._temporary = tempfile.TemporaryDirectory(prefix="cfl-archive-") if folder is None else None
        self.folder = folder or Path(str(self._temporary and self._temporary.name))

    def put(self, name: str, version: int, array: np.ndarray) -> None:
        """Writes one.

        Args:
            name: any text.
            version: the round in which it came to be.
            array: what to keep.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(name, version)
        with path.with_suffix(".tmp").open("wb") as f:
            np.save(f, array, allow_pickle=False)
            if self._temporary is None:  # else nobody reads it after this process
                f.flush()
                os.fsync(f.fileno())
        path.with_suffix(".tmp").replace(path)

    def get(self, name: str, version: int) -> np.ndarray:
        """One of them, memory-mapped, read-only.

        Raises:
            PayloadError: it is not there, or damaged.
        """
        path = self._path(name, version)
        try:
            array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise PayloadError("damaged_file", f"{path} cannot be read: {error}") from error
        return array

    def rewind(self, number: int) -> None:
        """Drops what a run that goes on from round ``number`` has not written yet."""
        for path, _, version in self._files():
            if version >= number:
                path.unlink()

    def prune(self, number: int) -> None:
        """Drops what no state from round ``number`` on names: all but the newest of each name's earlier versions."""
        newest: dict[str, int] = {}
        earlier = [(path, name, version) for path, name, version in self._files() if version < number]
        for _, name, version in earlier:
            newest[name] = max(version, newest.get(name, 0))
        for path, name, version in earlier:
            if version < newest[name]:
                path.unlink()

    def adopt(self, other: Archive) -> None:
        """Takes over what another archive holds, as links where the file system allows it."""
        for path, _, _ in other._files():
            self.folder.mkdir(parents=True, exist_ok=True)
            target = self.folder / path.name
            target.unlink(missing_ok=True)
            try:
                os.link(path, target)
            except OSError:
                target.write_bytes(path.read_bytes())

    def _path(self, name: str, version: int) -> Path:
        return self.folder / f"{quote(name, safe='')}@{version:06d}.npy"

    def _files(self) -> Iterator[tuple[Path, str, int]]:
        for path in sorted(self.folder.glob("*@*.npy")):
            name, _, version = path.stem.rpartition("@")
            yield path, name, int(version)


class LatestModels:
    """The latest known model of each participant, in an archive; one at a time is in memory.

    Args:
        archive: where they lie.
        layout: theirs.
        versions: by participant, the round in which its model came, and its samples.
    """

    def __init__(self, archive: Archive, layout: Layout, versions: Mapping[str, tuple[int, int]]):
        self._archive, self._layout, self.versions = archive, layout, versions

    @property
    def names(self) -> list[str]:
        """The participants."""
        return list(self.versions)

    def keep(self, name: str, model: Params) -> None:
        """Writes a participant's model, as of the round that ``versions`` has for it."""
        version, _ = self.versions[name]
        self._archive.put(f"model of {name}", version, model.vector)
        if len(model.counters):
            self._archive.put(f"counters of {name}", version, model.counters)

    def parameters(self, name: str) -> np.ndarray:
        """A model's parameters, without buffers, ``(parameter_size,)``, memory-mapped."""
        return self._archive.get(f"model of {name}", self.versions[name][0])[: self._layout.parameter_size]

    def model(self, name: str) -> Params:
        """A model, memory-mapped."""
        version, _ = self.versions[name]
        vector = self._archive.get(f"model of {name}", version)
        if not self._layout.counter_size:
            return Params(self._layout, vector)
        return Params(self._layout, vector, self._archive.get(f"counters of {name}", version))

    def mean(self, names: Sequence[str], weighting: str, otherwise: Params) -> Params:
        """The mean of some participants' models, by samples or uniform; ``otherwise`` of none."""
        return weighted_mean(((self.model(name), self.weight([name], weighting)) for name in names), otherwise)

    def weight(self, names: Sequence[str], weighting: str) -> float:
        """What some participants count together."""
        return float(sum(self.versions[name][1] for name in names) if weighting == "samples" else len(names))

    def spread(self, names: Sequence[str], centre: Params) -> float:
        """Mean squared distance of some participants' parameters to a centre's."""
        middle = centre.part("all").astype(np.float64)
        return float(np.mean([np.square(self.parameters(name) - middle).sum() for name in names]))
