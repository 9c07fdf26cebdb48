# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Vectors that a method keeps on the server's disk, because one for each participant would not fit into memory."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

import numpy as np

from cfl_flare.errors import PayloadError


class Archive:
    """Named vectors in versions that are never written over; a state names the versions that it means.

    That makes a resumed run read what the undisturbed one read. Reading maps the file into memory and loads what is
    touched.

    Args:
        folder: where they lie; it is made when the first one is written.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def put(self, name: str, version: int, vector: np.ndarray) -> str:
        """Writes a vector.

        Args:
            name: whose it is; any text.
            version: the round.
            vector: float32.

        Returns:
            The key under which `get` finds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        key = f"{quote(name, safe='')}@{version:06d}"
        temporary = self.folder / f"{key}.tmp.npy"
        np.save(temporary, vector.astype(np.float32, copy=False), allow_pickle=False)
        temporary.replace(self.folder / f"{key}.npy")
        return key

    def get(self, key: str) -> np.ndarray:
        """A vector, memory-mapped, read-only.

        Raises:
            PayloadError: it is not there, or damaged.
        """
        try:
            return np.load(self.folder / f"{key}.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise PayloadError("damaged_file", f"{self.folder / key}.npy cannot be read: {error}") from error

    def keep(self, keys: Collection[str]) -> None:
        """Drops all others."""
        for path in self.folder.glob("*.npy"):
            if path.stem not in keys:
                path.unlink(missing_ok=True)
