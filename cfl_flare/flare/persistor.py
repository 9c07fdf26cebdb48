# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's persistor for a bank of cluster models: where the server's checkpoints lie, and what is resumed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.learnable import Learnable
from nvflare.app_common.abstract.learnable_persistor import LearnablePersistor
from nvflare.app_common.abstract.model import ModelLearnable, make_model_learnable
from nvflare.app_common.app_event_type import AppEventType

from cfl_flare.core.config import check_run_name
from cfl_flare.core.files import copy_folder
from cfl_flare.core.params import Layout
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.server import Server
from cfl_flare.flare.policy import store_for
from cfl_flare.results.ancestry import ANCESTRY, Ancestry
from cfl_flare.results.run_dir import BEST
from cfl_flare.results.store import Checkpoint

logger = logging.getLogger(__name__)


class ClusterModelPersistor(LearnablePersistor):
    """Writes the server's state after each round, outside the job's workspace, and reads it to resume.

    Args:
        run_name: names the run's folder under the state root.
        resume_from: name of the run to resume; None for a new run.

    Attributes:
        earlier: the runs in which the models were trained that are resumed; None for a new run.
    """

    def __init__(self, run_name: str, resume_from: str | None = None):
        super().__init__()
        self.run_name = run_name
        self.resume_from = resume_from
        self.earlier: Ancestry | None = None
        self._checkpoints: JobCheckpoints | None = None
        self._best: Path | None = None

    def open(
        self, layout: Layout, results: Path, fl_ctx: FLContext
    ) -> Checkpoint | None:
        """Locks the run's folder for this job, and reads the checkpoint to resume from; None for a new run.

        Raises:
            StoreError: the folder is in use, or there is no intact version to resume from.
        """
        for name in filter(None, (self.run_name, self.resume_from)):
            check_run_name(name)
        store = store_for(self.run_name, fl_ctx)
        store.lock()
        self._checkpoints = JobCheckpoints(
            store, results=results, fire=lambda event: self.fire_event(event, fl_ctx)
        )
        if self.resume_from is None:
            store.keep_previous()
            return None
        source = (
            store
            if self.resume_from == self.run_name
            else store_for(self.resume_from, fl_ctx)
        )
        checkpoint, run = Checkpoint.read(source, layout)
        self.earlier = Ancestry.of(run.get(ANCESTRY), f"{source.folder}: {ANCESTRY}")
        self.log_info(
            fl_ctx,
            f"resuming run {self.resume_from!r} after {checkpoint.state.round} rounds",
        )
        if source is not store:
            store.keep_previous()
            store.archive.adopt(source.archive)
        self._best = (
            source.folder / BEST if checkpoint.progress.best is not None else None
        )
        return checkpoint

    def restore_best(self) -> None:
        """Gives the job's results the models of the best round before it was resumed."""
        if self._best is not None:
            link_folder(self._best, self.checkpoints.results / BEST)

    @property
    def checkpoints(self) -> JobCheckpoints:
        assert self._checkpoints is not None, "call open() first"
        return self._checkpoints

    def load(self, fl_ctx: FLContext) -> ModelLearnable:
        """FLARE's hook for loading; returns nothing, as the method creates the models."""
        return make_model_learnable(weights={}, meta_props={})

    def save(self, learnable: Learnable, fl_ctx: FLContext) -> None:
        """FLARE's hook for saving; does nothing, as each round writes a checkpoint."""


@dataclass
class JobCheckpoints(Checkpoints):
    """A job's checkpoints, with the models of its best round so far: a job's results do not outlive it at the server.

    ``fire`` fires FLARE's events of persistence.
    """

    results: Path = Path()
    fire: Callable[[str], None] = lambda event: None
    _best: Any = None

    def save(self, server: Server, due: bool = False) -> None:
        self.fire(AppEventType.BEFORE_LEARNABLE_PERSIST)
        ancestry = Ancestry.of(self.run.get(ANCESTRY)).with_participants(
            server.participants
        )  # some joined late
        self.run = {**self.run, ANCESTRY: ancestry.to_list()}
        super().save(server, due)
        if self.store is not None and server.progress.best != self._best:
            link_folder(self.results / BEST, self.store.folder / BEST)
            self._best = server.progress.best
        self.fire(AppEventType.AFTER_LEARNABLE_PERSIST)


def link_folder(source: Path, target: Path) -> None:
    """Puts a folder's files into another place, as links where the file system has them. A failure is logged."""
    if not source.is_dir():
        return
    try:
        shutil.rmtree(target, ignore_errors=True)
        copy_folder(source, target, as_links=True)
    except OSError as error:  # the run has its last models all the same
        logger.error(
            "the models of the best round are not kept in %s: %s", target, error
        )
