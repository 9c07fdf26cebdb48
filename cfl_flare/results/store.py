# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What outlives a job: the server's checkpoints and the participants' memories.

FLARE's server moves a job's directory to its job store when the job ends, and the simulator wipes its workspace at each
start. Both are therefore kept in a folder of their own, ``<root>/<run name>/<site>/``, which no other user may enter.
Each version is a safetensors file and a JSON file, which is written last; a version without both does not count. The
former checks itself, and holds the checksum of the latter.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cfl_flare.core.arrays import Archive, load_arrays, save_arrays
from cfl_flare.core.config import unmarked
from cfl_flare.core.errors import CFLError, FileError, PayloadError
from cfl_flare.core.files import (
    atomic_write,
    make_folder,
    parse_json,
    private_file,
    read_text,
    writing,
)
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.text import shown
from cfl_flare.methods import ServerState
from cfl_flare.results.metrics import ACCURACY, Metric, RoundMetrics

logger = logging.getLogger(__name__)

VERSION = 1
# What a version's arrays say of its JSON file.
CHECKSUM = "description_sha256"
ARCHIVE, PREVIOUS = "archive", "previous"
NOT_MODELS = "#arrays"

Models = Mapping[str, Params]
Facts = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]


class StoreError(CFLError):
    """A run's store cannot be used."""


class Store:
    """The versions of one run at one site, in ``<root>/<run name>/<site>``, one per round; the last two are kept.

    Args:
        folder: where they are.
        durable: a version survives a power failure; else it survives the end of this process.
    """

    def __init__(self, folder: Path, durable: bool = False):
        self.folder, self.durable = folder, durable
        self._lock: Any = None

    def part(self, name: str) -> Store:
        """The store of a part of the run, in a folder of its own."""
        return Store(self.folder / name, self.durable)

    @property
    def archive(self) -> Archive:
        """The arrays that versions refer to."""
        return Archive(self.folder / ARCHIVE, self.durable)

    def lock(self) -> None:
        """Locks the store until `unlock`, or until this process ends; a StoreError if another run holds the lock."""
        make_folder(self.folder, private=True)
        with writing(self.folder / "lock"):
            self._lock = os.fdopen(
                private_file(self.folder / "lock", os.O_WRONLY | os.O_CREAT), "w"
            )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            reason = f"{self.folder} is in use by another run of this name"
            raise StoreError(f"{reason}; give this run another run_name") from error

    def unlock(self) -> None:
        self._lock.close()

    def keep_previous(self) -> None:
        """Moves the versions of an earlier run of this name to ``previous``, in place of those before it."""
        if versions := list(self.folder.glob("round-*")):
            set_aside(self.folder, [*versions, *self.folder.glob(ARCHIVE)])

    def save(
        self, number: int, models: Models, metadata: Facts, others: Arrays | None = None
    ) -> None:
        """Writes the version after this number of rounds, then deletes all but the last two.

        Models' names must not contain ``|``; ``others`` are arrays that are not models. A FileError says that it cannot
        be written; the versions before it are left.
        """
        make_folder(self.folder, private=True)
        arrays = {
            f"{name}|{key}": a
            for name, p in models.items()
            for key, a in p.arrays().items()
        }
        arrays |= {
            f"{NOT_MODELS}|{key}": array for key, array in (others or {}).items()
        }
        path = self._path(number)
        text = json.dumps(
            {"version": VERSION, "round": number, "facts": dict(metadata)}
        )
        try:
            save_arrays(path, arrays, {CHECKSUM: _sha256(text)}, self.durable)
            atomic_write(path.with_suffix(".json"), text, self.durable)
        except FileError:  # half a version would take the room that the next one needs
            path.unlink(missing_ok=True)
            raise
        for old in map(self._path, self.versions()[:-2]):
            old.with_suffix(".json").unlink(missing_ok=True)
            old.unlink(missing_ok=True)

    def try_to_save(
        self, number: int, models: Models, metadata: Facts, others: Arrays | None = None
    ) -> str | None:
        """As `save`, but a run goes on without it: it could resume from the version before, and tries again next time.

        Returns why it cannot be written, in one line; None if it was.
        """
        try:
            self.save(number, models, metadata, others)
        except FileError as error:
            versions = self.versions()
            last = f"round {versions[-1]}" if versions else "no round"
            return f"{error}; meanwhile, a run would resume after {last}"
        return None

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.safetensors"

    def versions(self) -> list[int]:
        """Rounds of the complete versions, oldest first."""
        numbers = (
            path.stem.removeprefix("round-")
            for path in self.folder.glob("round-[0-9]*.json")
        )
        return sorted(int(number) for number in numbers if number.isdecimal())

    def load(
        self, number: int, layout: Layout
    ) -> tuple[dict[str, Params], dict[str, Any]]:
        """Reads a version: its models, and its metadata, with other arrays as ``arrays`` if there are any.

        Raises:
            PayloadError: it is missing, damaged, of another format, or of another model.
        """
        path = self._path(number)
        description = path.with_suffix(".json")
        try:
            text = read_text(description)
            content = parse_json(text, str(description))
            version = content["version"]
            metadata = content["facts"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PayloadError(
                "damaged_file", f"{path} cannot be read: {error}"
            ) from error
        if version != VERSION:
            raise PayloadError(
                "version", f"{path} has format {version!r}, this is {VERSION}"
            )
        arrays, meta = load_arrays(path)
        if meta.get(CHECKSUM) != _sha256(text):
            raise PayloadError(
                "damaged_file", f"{path} and its .json file do not match their checksum"
            )
        if not isinstance(metadata, dict):
            raise PayloadError(
                "damaged_file", f"{description}: facts are a {type(metadata).__name__}"
            )
        models: dict[str, dict[str, Any]] = {}
        for key, array in arrays.items():
            name, _, parameter = key.partition("|")
            models.setdefault(name, {})[parameter] = array
        others = models.pop(NOT_MODELS, {})
        packed = {
            name: layout.restricted(model.keys()).pack(model)
            for name, model in models.items()
        }
        return packed, {**metadata, "arrays": others} if others else metadata

    def latest(self, layout: Layout) -> tuple[int, dict[str, Params], dict[str, Any]]:
        """The newest intact version: its round, models and metadata; a StoreError says that there is none.

        Damaged versions are logged and skipped.
        """
        for number in reversed(self.versions()):
            try:
                return number, *self.load(number, layout)
            except PayloadError as error:
                logger.warning("%s; falling back to the version before it", error)
        there = sorted(
            {
                path.parents[1].name
                for path in self.folder.parents[1].glob("*/*/round-*.json")
            }
        )
        runs = ", ".join(there) or "none"
        raise StoreError(
            f"{self.folder} holds no intact version to resume from; there are runs: {runs}"
        )


def set_aside(folder: Path, paths: Sequence[Path]) -> None:
    """Moves what is in a folder to `PREVIOUS` in it, in place of what was there before."""
    previous = folder / PREVIOUS
    with writing(previous):
        shutil.rmtree(previous, ignore_errors=True)
        make_folder(previous)
        for path in paths:
            path.rename(previous / path.name)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _list_changes(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of settings that differ, those of the data's classes with both values."""
    changed = []
    for name in sorted({*earlier, *now}):
        before = earlier.get(name)
        after = now.get(name)
        if before == after:
            continue
        values = (
            f": {shown(before)} there, {shown(after)} here" if name == "classes" else ""
        )
        changed.append(f"{name}{values}")
    return changed


def state_metadata(state: ServerState) -> dict[str, Any]:
    """The part of a server's state that is not models, as JSON values; `state_of` reads it."""
    labels = {"labels": dict(state.labels)} if state.labels else {}
    return {
        "assignment": dict(state.assignment),
        "round": state.round,
        "extras": dict(state.extras),
        **labels,
    }


def state_of(models: Mapping[str, Params], metadata: Mapping[str, Any]) -> ServerState:
    return ServerState(
        dict(models),
        dict(metadata["assignment"]),
        int(metadata["round"]),
        dict(metadata["extras"]),
        dict(metadata.get("arrays", {})),
        labels=dict(metadata.get("labels", {})),
    )


@dataclass
class Progress:
    """What a server knows between two rounds besides its method's state.

    Attributes:
        record: of the last round; the next round's results complete it.
        failed_rounds: consecutive rounds with too few valid results.
        rejected: number of refused results, by reason code.
        best: the best round so far, ``{"round", "value"}``.
        watched: the best round so far by the metric that early stopping watches.
        stopped: why the run ends before its last round; None if it does not.
        metric: the metric that tells how good the run is, ``{"name", "mode"}``, once one is reported.
        classes: the names of the classes in the order of their numbers, empty if they are called by these; None if no
            site has stated any.
    """

    record: dict[str, Any] | None = None
    failed_rounds: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    best: dict[str, Any] | None = None
    watched: dict[str, Any] | None = None
    stopped: str | None = None
    metric: dict[str, Any] | None = None
    classes: list[str] | None = None

    @property
    def judged_by(self) -> Metric:
        """The metric that tells how good the run is; accuracy until one is reported."""
        return Metric(ACCURACY) if self.metric is None else Metric(**self.metric)


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds: the server's state and progress, participants' memory, and the last measured round."""

    state: ServerState
    progress: Progress = field(default_factory=Progress)
    memory: Mapping[str, Mapping[str, Params]] = field(default_factory=dict)
    last: RoundMetrics | None = None

    @property
    def recorded(self) -> int:
        """Rounds whose records are complete: those before the one in ``progress``."""
        return (
            self.state.round
            if self.progress.record is None
            else int(self.progress.record["round"])
        )

    def save(self, store: Store, run: Mapping[str, Any]) -> str | None:
        """Writes it; returns why it cannot be written, or None, see `Store.try_to_save`.

        A run with other settings than ``run``, which are JSON values, cannot resume from here.
        """
        memory = {
            f"{name}#{what}": params
            for name, part in self.memory.items()
            for what, params in part.items()
        }
        # asdict would count a Counter's items instead of copying it.
        progress = {**vars(self.progress), "rejected": dict(self.progress.rejected)}
        metadata = {
            **state_metadata(self.state),
            "slots": list(self.state.bank),
            "progress": progress,
            "last": None if self.last is None else asdict(self.last),
            "run": unmarked(run),
        }
        return store.try_to_save(
            self.state.round, {**self.state.bank, **memory}, metadata, self.state.arrays
        )

    @classmethod
    def latest(
        cls,
        store: Store,
        layout: Layout,
        run: Mapping[str, Any],
    ) -> Checkpoint | None:
        """Read the newest intact checkpoint of a run.

        Args:
            store: where the run keeps its checkpoints.
            layout: the arrays of the model that the run trains.
            run: the settings of the run, as JSON values.

        Returns:
            The checkpoint, or None if the store has no intact one.

        Raises:
            StoreError: the newest checkpoint belongs to a run with other settings.
        """
        if not store.versions():
            return None
        try:
            checkpoint, settings = cls.read(store, layout)
        except StoreError:  # each damaged version has been logged
            return None
        changed = _list_changes(settings, json.loads(json.dumps(unmarked(run))))
        if changed:
            reason = f"{store.folder} holds checkpoints of a run with other settings ({', '.join(changed)})"
            raise StoreError(f"{reason}; use another folder")
        return checkpoint

    @classmethod
    def read(cls, store: Store, layout: Layout) -> tuple[Checkpoint, Mapping[str, Any]]:
        """The newest intact checkpoint, and the settings of its run; a `StoreError` says that there is none."""
        _, models, metadata = store.latest(layout)
        slots = metadata["slots"]
        memory: dict[str, dict[str, Params]] = {}
        for key in models.keys() - set(slots):
            name, _, what = key.rpartition("#")
            memory.setdefault(name, {})[what] = models[key]
        progress = metadata["progress"]
        last = metadata["last"]
        checkpoint = cls(
            state_of({slot: models[slot] for slot in slots}, metadata),
            Progress(**{**progress, "rejected": Counter(progress["rejected"])}),
            memory,
            None if last is None else RoundMetrics(**last),
        )
        return checkpoint, metadata["run"]
