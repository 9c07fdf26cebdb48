# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What outlives a job: the server's checkpoints and the participants' memories.

FLARE deletes a run's directory once it is archived, and the simulator wipes its workspace at each start. So both live
in a folder of their own, ``<root>/<run name>/<site>/``. Each version is a safetensors file and a JSON file that holds
its checksum and is written last: a version without a good pair does not count.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfl_flare.core.errors import CFLError, PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.safetensors_io import load_arrays, save_arrays
from cfl_flare.methods import ServerState

logger = logging.getLogger(__name__)

VERSION = 1
ARCHIVE = "archive"


class StoreError(CFLError):
    """A run's store cannot be used."""


class Store:
    """The versions of one run at one site, one a round; the last two are kept.

    Args:
        folder: ``<root>/<run name>/<site>``.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._lock: Any = None

    def lock(self) -> None:
        """Takes the store for this process, until it ends.

        Raises:
            StoreError: another run of the same name writes here.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(
                f"{self.folder} is in use by another run of this name; give this run another run_name"
            ) from error

    def set_aside(self) -> None:
        """Moves what an earlier run of this name left out of the way; one such generation is kept."""
        if not list(self.folder.glob("round-*")):
            return
        previous = self.folder / "previous"
        shutil.rmtree(previous, ignore_errors=True)
        previous.mkdir()
        for path in (*self.folder.glob("round-*"), *self.folder.glob(ARCHIVE)):
            path.rename(previous / path.name)

    def save(self, number: int, models: Mapping[str, Params], facts: Mapping[str, Any]) -> None:
        """Writes a version, then drops all but the last two.

        Args:
            number: rounds completed.
            models: by name; names hold no ``|``.
            facts: JSON values.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"{name}|{key}": a for name, p in models.items() for key, a in p.arrays().items()}
        path = self.folder / f"round-{number:06d}.safetensors"
        save_arrays(path, arrays, {})
        content = {"version": VERSION, "round": number, "sha256": _digest(path), "facts": dict(facts)}
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content))
        temporary.replace(path.with_suffix(".json"))
        for old in self.versions()[:-2]:
            (self.folder / f"round-{old:06d}.json").unlink(missing_ok=True)
            (self.folder / f"round-{old:06d}.safetensors").unlink(missing_ok=True)

    def versions(self) -> list[int]:
        """Rounds of the versions that were written to their end, oldest first."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self.folder.glob("round-[0-9]*.json"))

    def load(self, number: int, layout: Layout) -> tuple[dict[str, Params], dict[str, Any]]:
        """Reads a version.

        Raises:
            PayloadError: it is not there, damaged, of another format, or of another model.
        """
        path = self.folder / f"round-{number:06d}.safetensors"
        try:
            content = json.loads(path.with_suffix(".json").read_text())
            intact, facts = content["sha256"] == _digest(path), content["facts"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PayloadError("damaged_file", f"{path} cannot be read: {error}") from error
        if not intact:
            raise PayloadError("damaged_file", f"{path} does not match its checksum")
        if content.get("version") != VERSION:
            raise PayloadError("version", f"{path} has format {content.get('version')!r}, this is {VERSION}")
        arrays, _ = load_arrays(path)
        models: dict[str, dict[str, Any]] = {}
        for key, array in arrays.items():
            name, _, parameter = key.partition("|")
            models.setdefault(name, {})[parameter] = array
        return {name: layout.restricted(own.keys()).pack(own) for name, own in models.items()}, facts

    def latest(self, layout: Layout) -> tuple[int, dict[str, Params], dict[str, Any]]:
        """The newest good version; a damaged one is named in the log and the one before it taken.

        Raises:
            StoreError: there is none.
        """
        for number in reversed(self.versions()):
            try:
                return number, *self.load(number, layout)
            except PayloadError as error:
                logger.warning("%s; falling back to the version before it", error)
        there = sorted({path.parents[1].name for path in self.folder.parents[1].glob("*/*/round-*.json")})
        raise StoreError(
            f"{self.folder} holds no good version to resume from; there are runs: {', '.join(there) or 'none'}"
        )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def state_facts(state: ServerState) -> dict[str, Any]:
    """What of a server's state is not models."""
    return {"assignment": dict(state.assignment), "round": state.round, "extras": dict(state.extras)}


def state_of(models: Mapping[str, Params], facts: Mapping[str, Any]) -> ServerState:
    """The server's state from a version."""
    return ServerState(dict(models), dict(facts["assignment"]), int(facts["round"]), dict(facts["extras"]))
