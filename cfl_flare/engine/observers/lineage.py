# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run's lineage, an entry a round: digests of what it began with, of each record, each checkpoint, all its files."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from cfl_flare.core.files import file_sha256
from cfl_flare.engine.observers.observer import Observer, Running
from cfl_flare.methods import describe_method
from cfl_flare.results.lineage import KEPT, Chain, data_digests
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.store import Store


class Signer(Protocol):
    """Signs the head of a closed chain; see `cfl_flare.flare.signature`."""

    @property
    def name(self) -> str: ...

    def sign(self, folder: Path, head: str) -> None: ...


class Lineage(Observer):
    """Writes the chain into the run's folder; see `cfl_flare.results.lineage`.

    Args:
        store: of the run's checkpoints, where a copy of the chain outlives the run's folder; None for none.
        signer: signs the chain when the run is over; None leaves it unsigned.
    """

    def __init__(self, store: Store | None = None, signer: Signer | None = None):
        self._store, self._signer = store, signer
        self._chain: Chain | None = None
        self._last = False

    def begin(self, server: Running) -> None:
        self._last = server.finished
        if self._chain is not None or server.recorder is None:
            return
        rounds, kept = server.state.round, None if self._store is None else self._store.folder / KEPT
        self._chain = Chain(server.recorder.folder, rounds, kept)
        settings = {"method": describe_method(server.method), **server.recorder.settings}
        settings.pop("sites_left_out", None)  # sites may join later
        self._chain.begin(rounds, settings, self._data(server), self._checkpoint(rounds))

    def done(self, server: Running, measured: RoundMetrics | None) -> None:
        if self._chain is None or server.recorder is None:
            return
        rounds, data = server.state.round, self._data(server)
        if not self._last:
            self._chain.round(rounds, data, self._checkpoint(rounds))
            return
        self._chain.close(rounds, data, None if self._signer is None else self._signer.name)
        if self._signer is not None:
            self._signer.sign(server.recorder.folder, self._chain.head)

    @staticmethod
    def _data(server: Running) -> dict[str, str]:
        """By participant, the digest of what it said of its data."""
        return data_digests(p.check_in() for p in server.participants.values())

    def _checkpoint(self, rounds: int) -> dict[str, str]:
        """The digests of the checkpoint after so many rounds; none if it was not due."""
        files = [] if self._store is None else self._store.files(rounds)
        return {path.name: file_sha256(path) for path in files}
