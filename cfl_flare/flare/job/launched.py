# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A training script in a job, which a launcher starts, so that the server hears of its errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nvflare.job_config.api import FedJob, JobCtx
from nvflare.job_config.script_runner import ScriptRunner

from cfl_flare.flare.client_api import cfl_launcher
from cfl_flare.flare.client_api.rules import evaluate_module

LAUNCHER = Path(cfl_launcher.__file__)


class LaunchedScript(ScriptRunner):
    """FLARE's runner of a script, with `cfl_flare.flare.client_api.cfl_launcher` in the script's place.

    Args:
        script: its path; an absolute one is found by its name at the sites.
        script_args: its command line.
        evaluate: the function that measures each model that the script is sent; None if the script does.
        settings: as FLARE's runner takes them.
    """

    def __init__(self, script: str, script_args: str = "", evaluate: str | None = None, **settings: Any):
        name = os.path.basename(script) if os.path.isabs(script) else os.path.normpath(script)
        name = quote(name) + ("" if evaluate is None else f":{evaluate}")
        super().__init__(script=script, script_args=f"{name} {script_args}", **settings)
        self._script: str = script
        self._evaluate = evaluate

    def _external_process_argv(self) -> list[str]:
        script, self._script = self._script, LAUNCHER.name
        try:
            return list(super()._external_process_argv())
        finally:
            self._script = script

    def add_to_fed_job(self, job: FedJob, ctx: JobCtx, **kwargs: Any) -> dict[str, Any]:
        """Adds the script, what it imports, and the launcher, which is what the site's executor runs."""
        added: dict[str, Any] = super().add_to_fed_job(job, ctx, **kwargs)
        job.add_file_source(str(LAUNCHER), None, None, ctx)
        module = None if self._evaluate is None else evaluate_module(self._script, self._evaluate)
        if module is not None and module != Path(self._script):
            job.add_file_source(str(module), None, None, ctx)
        if not self._launch_external_process:
            executor = job._get_app(ctx).app_config.executors[-1].executor
            executor._task_script_path = LAUNCHER.name
        return added
