# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The in-process loop, with what most tests set as keywords of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cfl_flare.data import DataConfig, DataSource
from cfl_flare.engine import loop
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.job_settings import JobSettings
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.methods import Method
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.store import Store
from cfl_flare.training.settings import TrainSettings


def run_loop(
    *,
    method: Method,
    model: Any,
    source: DataSource,
    data: DataConfig,
    settings: ServerSettings,
    training: TrainSettings,
    at_site: SiteSettings | None = None,
    folder: Path | None = None,
    on_round: Callable[[RoundMetrics], None] | None = None,
    checkpoints: Store | None = None,
    checkpoint_every: int = 10,
    initial_ckpt: Path | None = None,
    private: str | None = None,
    until: int | None = None,
    sites: int = 1,
    of_data: Mapping[str, Any] | None = None,
) -> Server:
    """A run of a plan with these parts; see `cfl_flare.engine.loop.run_loop`."""
    start = None if initial_ckpt is None else str(initial_ckpt)
    plan = RunPlan(
        method=method,
        model=model,
        reader=source,
        data=data,
        server=settings,
        training=training,
        job=JobSettings(min_clients=1, initial_ckpt=start, private=private),
        site=at_site or SiteSettings(),
        facts=of_data or {},
        sites=sites,
        until=until,
    )
    return loop.run_loop(plan, folder, on_round, Checkpoints(checkpoints, checkpoint_every))
