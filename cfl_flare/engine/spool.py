# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A round's updates until they are aggregated: in memory if they are small, otherwise on disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import overload

import numpy as np

from cfl_flare.core.errors import FileError, PayloadError
from cfl_flare.core.files import atomic_write
from cfl_flare.methods import Update

# The updates of a round that are larger than this are kept on disk.
SPOOL_BYTES = 512 * 2**20


class Spool:
    """Keeps the updates of one round by participant.

    Args:
        nbytes: the largest possible size of all updates of the round; it decides between memory and disk.
    """

    def __init__(self, nbytes: int):
        self._folder = Path(tempfile.mkdtemp(prefix="cfl-spool-")) if nbytes > SPOOL_BYTES else None
        self._updates: dict[str, Update] = {}

    def put(self, update: Update) -> None:
        """Keeps an update.

        Raises:
            PayloadError: it cannot be written; its participant is left out of the round.
        """
        if self._folder is not None:
            number = len(self._updates)
            try:
                for slot, diff in update.diffs.items():
                    path = self._folder / f"{number}-{slot}.npy"
                    atomic_write(path, partial(np.save, arr=diff.vector, allow_pickle=False))
            except FileError as error:
                for path in self._folder.glob(f"{number}-*.npy"):
                    path.unlink()
                raise PayloadError("server_disk", f"the server {error}; TMPDIR names it") from error
            nothing = np.zeros(0, np.float32)
            update = replace(update, diffs={s: replace(d, vector=nothing) for s, d in update.diffs.items()})
        self._updates[update.participant] = update

    def get(self, participant: str) -> Update:
        """An update, read back whole."""
        update = self._updates[participant]
        if self._folder is None:
            return update
        number = list(self._updates).index(participant)
        vectors = {s: np.load(self._folder / f"{number}-{s}.npy", allow_pickle=False) for s in update.diffs}
        return replace(update, diffs={s: replace(d, vector=vectors[s]) for s, d in update.diffs.items()})

    def head(self, participant: str) -> Update:
        """An update as it is in memory: without its vectors if these are on disk."""
        return self._updates[participant]

    def ordered(self, names: Sequence[str]) -> Updates:
        """The updates of these participants, in this order, each read when it is accessed."""
        return Updates(self, [name for name in names if name in self._updates])

    def close(self) -> None:
        """Deletes everything."""
        self._updates = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Updates(Sequence[Update]):
    """A sequence of updates that are read from the spool one at a time."""

    def __init__(self, spool: Spool, names: Sequence[str]):
        self._spool, self.names = spool, names

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Update: ...

    @overload
    def __getitem__(self, index: slice) -> Updates: ...

    def __getitem__(self, index: int | slice) -> Update | Updates:
        if isinstance(index, slice):
            return Updates(self._spool, self.names[index])
        return self._spool.get(self.names[index])

    def __iter__(self) -> Iterator[Update]:
        return (self._spool.get(name) for name in self.names)

    def heads(self) -> Iterator[Update]:
        """See `cfl_flare.methods.state.heads`."""
        return (self._spool.head(name) for name in self.names)
