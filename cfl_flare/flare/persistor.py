# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What outlives a job at the server: a run's checkpoints, which FLARE's persistor opens, and a study's folder."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.learnable import Learnable
from nvflare.app_common.abstract.learnable_persistor import LearnablePersistor
from nvflare.app_common.abstract.model import ModelLearnable, make_model_learnable
from nvflare.app_common.app_event_type import AppEventType

from cfl_flare.core.arrays import Archive
from cfl_flare.core.config import check_run_name, require
from cfl_flare.core.files import make_folder, writing
from cfl_flare.core.params import Layout
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.server import Server
from cfl_flare.engine.study.file import differing
from cfl_flare.flare.policy import store_for
from cfl_flare.results.run_dir import BEST
from cfl_flare.results.store import ARCHIVE, Checkpoint, Store
from cfl_flare.results.study import load_study

logger = logging.getLogger(__name__)
CHECKPOINTS, PREVIOUS, LOCK = "checkpoints", "previous", "lock"


class ClusterModelPersistor(LearnablePersistor):
    """Writes the server's state after each round, outside the job's workspace, and reads it to resume.

    Args:
        run_name: names the run's folder under the state root.
        resume_from: name of the run to resume; None for a new run.
    """

    def __init__(self, run_name: str, resume_from: str | None = None):
        super().__init__()
        self.run_name = run_name
        self.resume_from = resume_from
        self._checkpoints: JobCheckpoints | None = None
        self._best: Path | None = None

    def open(self, layout: Layout, results: Path, fl_ctx: FLContext) -> Checkpoint | None:
        """Locks the run's folder for this job, and reads the checkpoint to resume from; None for a new run.

        Raises:
            StoreError: the folder is in use, or there is no intact version to resume from.
        """
        for name in filter(None, (self.run_name, self.resume_from)):
            check_run_name(name)
        store = store_for(self.run_name, fl_ctx)
        store.lock()
        self._checkpoints = JobCheckpoints(store, results=results, fire=lambda event: self.fire_event(event, fl_ctx))
        if self.resume_from is None:
            store.keep_previous()
            return None
        source = store if self.resume_from == self.run_name else store_for(self.resume_from, fl_ctx)
        checkpoint, _ = Checkpoint.read(source, layout)
        self.log_info(fl_ctx, f"resuming run {self.resume_from!r} after {checkpoint.state.round} rounds")
        if source is not store:
            store.keep_previous()
            Archive(store.folder / ARCHIVE).adopt(Archive(source.folder / ARCHIVE))
        self._best = source.folder / BEST if checkpoint.progress.best is not None else None
        return checkpoint

    def restore_best(self) -> None:
        """Gives the job's results the models of the best round before it was resumed."""
        if self._best is not None:
            link_folder(self._best, self.checkpoints.results / BEST)

    @property
    def checkpoints(self) -> JobCheckpoints:
        """Where the run's checkpoints go."""
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

    Attributes:
        results: the folder of the job's results.
        fire: fires FLARE's events of persistence.
    """

    results: Path = Path()
    fire: Callable[[str], None] = lambda event: None
    _best: Any = None

    def save(self, server: Server, due: bool = False) -> None:
        self.fire(AppEventType.BEFORE_LEARNABLE_PERSIST)
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
        shutil.copytree(source, target, copy_function=_link)
    except OSError as error:  # the run has its last models all the same
        logger.error("the models of the best round are not kept in %s: %s", target, error)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@dataclass(frozen=True)
class StudyFolder:
    """``study.json``, a folder of results for each candidate, and their checkpoints.

    Attributes:
        path: where it is.
        earlier: what the study that is resumed has found; None for a new one.
    """

    path: Path
    earlier: dict[str, Any] | None

    @classmethod
    def open(cls, run_name: str, resume_from: str | None, facts: Mapping[str, Any], fl_ctx: FLContext) -> StudyFolder:
        """Locks the study's folder for this job. A new study moves an earlier one of its name aside.

        Raises:
            StoreError: the folder is in use.
            ConfigError: there is no study to resume, or it has other settings.
            FileError: a file cannot be written.
        """
        for name in filter(None, (run_name, resume_from)):
            check_run_name(name)
        store = store_for(run_name, fl_ctx)
        earlier, source = None, None
        if resume_from is not None:
            source = store_for(resume_from, fl_ctx).folder
            earlier = load_study(source)
            what = differing(earlier, facts)
            require(
                not what,
                f"run: resume_from = {resume_from!r} names a study with other settings ({what}); give the job the "
                "same ones, or leave resume_from out",
            )
        store.lock()
        path = store.folder
        if source != path:
            _set_aside(path)
        if source is not None and source != path:
            _copy(source, path, PREVIOUS, LOCK)
        return cls(path, earlier)

    def checkpoints(self, candidate: str) -> Store:
        """Where a candidate's checkpoints are."""
        return Store(self.path / CHECKPOINTS / candidate)

    def publish(self, results: Path) -> None:
        """Copies what the study has found so far to the job's results.

        Raises:
            FileError: it cannot be written.
        """
        _copy(self.path, results, PREVIOUS, LOCK, CHECKPOINTS)

    def clean(self) -> None:
        """Deletes the checkpoints of a finished study."""
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)


def _set_aside(path: Path) -> None:
    """Moves what an earlier study of this name left to ``previous``, in place of what was there before."""
    old = [entry for entry in path.iterdir() if entry.name not in (PREVIOUS, LOCK)]
    if not old:
        return
    with writing(path / PREVIOUS):
        shutil.rmtree(path / PREVIOUS, ignore_errors=True)
        (path / PREVIOUS).mkdir()
        for entry in old:
            entry.rename(path / PREVIOUS / entry.name)


def _copy(source: Path, target: Path, *without: str) -> None:
    """Copies a folder but for what is directly in it and has one of these names."""
    make_folder(target)
    with writing(target):
        for entry in source.iterdir():
            if entry.name in without:
                continue
            if entry.is_dir():
                shutil.rmtree(target / entry.name, ignore_errors=True)  # an earlier rung's
                shutil.copytree(entry, target / entry.name)
            else:
                shutil.copy2(entry, target / entry.name)
