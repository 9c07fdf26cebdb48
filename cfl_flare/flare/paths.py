# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Paths on a machine that runs FLARE."""

from __future__ import annotations

import os
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.utils.file_utils import resolve_path_under_root

from cfl_flare.core.config import check_run_name
from cfl_flare.core.errors import ConfigError
from cfl_flare.flare.compat import SIMULATED_JOB
from cfl_flare.results.store import Store

STATE_ROOT = "CFL_STATE_ROOT"


def state_root(fl_ctx: FLContext) -> Path:
    """The operator's ``$CFL_STATE_ROOT``, else ``cfl_state`` beside the site's kit or the simulator's workspace."""
    chosen = os.environ.get(STATE_ROOT)
    if chosen:
        return Path(chosen).expanduser()
    kit = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).resolve()
    workspace = kit.parent if fl_ctx.get_job_id() == SIMULATED_JOB else kit
    return workspace.parent / "cfl_state"


def store_for(run_name: str, fl_ctx: FLContext) -> Store:
    """This site's store of a run.

    Raises:
        ConfigError: the name is not a folder's, or points outside the state root.
    """
    check_run_name(run_name, "run_name")
    root = state_root(fl_ctx)
    try:
        folder = resolve_path_under_root(str(root), os.path.join(run_name, fl_ctx.get_identity_name()), "run_name")
    except ValueError as error:
        raise ConfigError(f"run: run_name = {run_name!r}: {error}") from error
    return Store(Path(folder))
