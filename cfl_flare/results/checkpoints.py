# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A whole run between two rounds, participants included, so that an interrupted run ends as an uninterrupted one."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cfl_flare.core.config import unmarked
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params
from cfl_flare.methods import ServerState
from cfl_flare.results.metrics import ACCURACY, Metric, RoundMetrics
from cfl_flare.results.store import Store, StoreError, state_metadata, state_of


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
    """

    record: dict[str, Any] | None = None
    failed_rounds: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    best: dict[str, Any] | None = None
    watched: dict[str, Any] | None = None
    stopped: str | None = None
    metric: dict[str, str] | None = None

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
        return self.state.round if self.progress.record is None else int(self.progress.record["round"])

    def save(self, store: Store, run: Mapping[str, Any]) -> str | None:
        """Writes it; returns why it cannot be written, or None, see `Store.try_to_save`.

        A run with other settings than ``run``, which are JSON values, cannot resume from here.
        """
        memory = {f"{name}#{what}": params for name, part in self.memory.items() for what, params in part.items()}
        # dataclasses.asdict would count a Counter's items instead of copying it.
        progress = {**vars(self.progress), "rejected": dict(self.progress.rejected)}
        metadata = {
            **state_metadata(self.state),
            "slots": list(self.state.bank),
            "progress": progress,
            "last": None if self.last is None else dataclasses.asdict(self.last),
            "run": unmarked(run),
        }
        return store.try_to_save(self.state.round, {**self.state.bank, **memory}, metadata, self.state.arrays)

    @classmethod
    def latest(
        cls,
        store: Store,
        layout: Layout,
        run: Mapping[str, Any],
        as_written_now: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> Checkpoint | None:
        """The newest intact checkpoint of a run with these settings; None if there is none.

        ``as_written_now`` turns settings that an earlier version wrote into those that this one writes.

        Raises:
            StoreError: it is of a run with other settings.
        """
        if not store.versions():
            return None
        try:
            checkpoint, settings = cls.read(store, layout)
        except StoreError:  # each damaged version has been logged
            return None
        other = StoreError(f"{store.folder} holds checkpoints of a run with other settings; use another folder")
        try:
            written = json.dumps(as_written_now(settings), sort_keys=True)
        except (ConfigError, KeyError) as error:
            raise other from error
        if written != json.dumps(unmarked(run), sort_keys=True):
            raise other
        return checkpoint

    @classmethod
    def read(cls, store: Store, layout: Layout) -> tuple[Checkpoint, Mapping[str, Any]]:
        """The newest intact checkpoint, and the settings of its run; a `StoreError` says that there is none."""
        _, models, metadata = store.latest(layout)
        slots = metadata.get("slots", [*models])  # a job of version 0.2 wrote the server's state alone
        memory: dict[str, dict[str, Params]] = {}
        for key in models.keys() - set(slots):
            name, _, what = key.rpartition("#")
            memory.setdefault(name, {})[what] = models[key]
        progress, last = metadata.get("progress", {}), metadata.get("last")
        checkpoint = cls(
            state_of({slot: models[slot] for slot in slots}, metadata),
            Progress(**{**progress, "rejected": Counter(progress.get("rejected", {}))}),
            memory,
            None if last is None else RoundMetrics(**last),
        )
        return checkpoint, metadata.get("run", {})
