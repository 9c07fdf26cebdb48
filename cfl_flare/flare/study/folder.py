# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study's folder at the server, outside the job's workspace: it outlives the job, and a later job resumes from it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from cfl_flare.core.config import check_run_name
from cfl_flare.core.files import copy_file, copy_folder, make_folder, writing
from cfl_flare.engine.study.journal import attempt_in
from cfl_flare.flare.policy import store_for
from cfl_flare.results.store import PREVIOUS, Store, set_aside

CHECKPOINTS, LOCK = "checkpoints", "lock"


@dataclass(frozen=True)
class StudyFolder:
    """``study.json``, a folder of results for each candidate, and their checkpoints.

    Attributes:
        earlier: what the study that is resumed has found; None for a new one.
        durable: its checkpoints survive a power failure.
    """

    path: Path
    earlier: dict[str, Any] | None
    durable: bool = False

    @classmethod
    def open(
        cls,
        run_name: str,
        resume_from: str | None,
        facts: Mapping[str, Any],
        fl_ctx: FLContext,
    ) -> StudyFolder:
        """Locks the study's folder for this job. A new study moves an earlier one of its name aside.

        Raises:
            StoreError: the folder is in use.
            ConfigError: there is no study to resume, or it has other settings.
        """
        for name in filter(None, (run_name, resume_from)):
            check_run_name(name)
        store = store_for(run_name, fl_ctx)
        earlier, source = None, None
        if resume_from is not None:
            source = store_for(resume_from, fl_ctx).folder
            earlier = attempt_in(source, facts, f"run: resume_from = {resume_from!r}")
        store.lock()
        path = store.folder
        old = [entry for entry in path.iterdir() if entry.name not in (PREVIOUS, LOCK)]
        if source != path and old:
            set_aside(path, old)
        if source is not None and source != path:
            _copy(source, path, PREVIOUS, LOCK)
        return cls(path, earlier, store.durable)

    def checkpoints(self, candidate: str) -> Store:
        """Where a candidate's checkpoints are."""
        return Store(self.path / CHECKPOINTS / candidate, self.durable)

    def publish(self, results: Path) -> None:
        """Copies what the study has found so far to the job's results; a FileError if it cannot."""
        _copy(self.path, results, PREVIOUS, LOCK, CHECKPOINTS)

    def clean(self) -> None:
        """Deletes the checkpoints of a finished study."""
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)


def _copy(source: Path, target: Path, *without: str) -> None:
    """Copies a folder but for what is directly in it and has one of these names."""
    make_folder(target)
    with writing(target):
        for entry in source.iterdir():
            if entry.name in without:
                continue
            if entry.is_dir():
                shutil.rmtree(
                    target / entry.name, ignore_errors=True
                )  # an earlier rung's
                copy_folder(entry, target / entry.name)
            else:
                copy_file(entry, target / entry.name)
