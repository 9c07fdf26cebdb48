# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's persistor for a bank of cluster models: the only writer of the server's checkpoints."""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.learnable import Learnable
from nvflare.app_common.abstract.learnable_persistor import LearnablePersistor
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable

from cfl_flare.core.arrays import Archive
from cfl_flare.core.config import check_run_name
from cfl_flare.core.params import Layout
from cfl_flare.flare.policy import store_for
from cfl_flare.methods import ServerState
from cfl_flare.results.store import ARCHIVE, Store, state_metadata, state_of


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
        self._store: Store | None = None

    def open(self, layout: Layout, fl_ctx: FLContext) -> ServerState | None:
        """Locks the run's folder for this job.

        Returns:
            The state to resume from; None for a new run.

        Raises:
            StoreError: the folder is in use, or there is no intact version to resume from.
        """
        for name in filter(None, (self.run_name, self.resume_from)):
            check_run_name(name)
        self._store = store_for(self.run_name, fl_ctx)
        self._store.lock()
        if self.resume_from is None:
            self._store.keep_previous()
            return None
        source = self._store if self.resume_from == self.run_name else store_for(self.resume_from, fl_ctx)
        number, models, metadata = source.latest(layout)
        self.log_info(fl_ctx, f"resuming run {self.resume_from!r} after {number} rounds")
        if source is not self._store:
            self._store.keep_previous()
            self.archive.adopt(Archive(source.folder / ARCHIVE))
        return state_of(models, metadata)

    @property
    def store(self) -> Store:
        """The run's folder."""
        assert self._store is not None, "call open() first"
        return self._store

    @property
    def archive(self) -> Archive:
        """The archive of the method's arrays."""
        return Archive(self.store.folder / ARCHIVE)

    def save_state(self, state: ServerState) -> None:
        """Writes a checkpoint. If it cannot be written, the run goes on, and the log says so in each round."""
        why = self.store.try_to_save(state.round, state.bank, state_metadata(state), state.arrays)
        if why is not None:
            self.logger.error(f"no checkpoint after round {state.round}: {why}")

    def load(self, fl_ctx: FLContext) -> ModelLearnable:
        """FLARE's hook for loading; returns nothing, as the method creates the models."""
        return make_model_learnable(weights={}, meta_props={})

    def save(self, learnable: Learnable, fl_ctx: FLContext) -> None:
        """FLARE's hook for saving: ``{"state": ServerState}`` in the learnable's meta."""
        meta: dict[str, Any] = learnable[ModelLearnableKey.META]
        self.save_state(meta["state"])
