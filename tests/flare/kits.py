# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A kit on disk and FLARE's context in it, for components that run without FLARE's processes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from cfl_flare.core.config import describe, marked
from cfl_flare.data import DataSource
from cfl_flare.flare import wire
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.policy import SOFTWARE
from cfl_flare.models import Logistic

SITE = "site-1"
MODEL = describe(Logistic((1, 4, 4), 2), "model")
JOB = {"method": {"method": "fedavg"}, "model": MODEL, "data": {}, "training": {"local_steps": 2}, "seed": 0}
JOB |= {"run_name": "ward"}


def kit(folder: Path, real: bool = True, **policy: Any) -> Path:
    """A site's kit that is prepared for cfl_flare, or a simulator's workspace."""
    for name in ("startup", "local", "job"):
        (folder / name).mkdir(parents=True)
    (folder / "job" / "meta.json").write_text("{}")
    (folder / "local" / "resources.json").write_text(json.dumps({"class_allow_list": list(CLASSES)}))
    if real:
        (folder / "startup" / "fed_client.json").write_text("{}")
    if policy:
        (folder / "local" / "cfl.json").write_text(json.dumps(policy))
    return folder


def context(folder: Path) -> FLContext:
    """FLARE's context of a job's process in a kit."""
    engine = SimpleNamespace(get_workspace=lambda: Workspace(str(folder), SITE), fire_event=lambda *event: None)
    fl_ctx = FLContext()
    job = {"ENGINE": engine, "IDENTITY_NAME": SITE, "RUN_NUM": "job"}
    for key, value in job.items():
        fl_ctx.set_prop(getattr(ReservedKey, key), value)
    fl_ctx.set_prop(FLContextKey.JOB_META, {})
    return fl_ctx


def executor(source: DataSource | dict[str, Any], **changes: Any) -> ClusteredExecutor:
    """The executor of a job with this source."""
    return ClusteredExecutor(
        **{**{key: marked(value) for key, value in JOB.items()}, "source": marked(describe(source, "data")), **changes}
    )


BOUNDS = {"min_sites_per_cluster": 3, "min_samples_per_cluster": 30, "hold_small_clusters": True}
BOUNDS |= {"max_weight_share": 1 / 3}


def check_in(**changes: Any) -> Shareable:
    """The server's first task, of a job with the defaults at real sites."""
    content = {"software": SOFTWARE, "job": JOB, "memory_of": None, "index": 0, "sites": 1}
    return wire.to_shareable({}, {**content, "bounds": BOUNDS, **changes})


def answer(site: ClusteredExecutor, task: Shareable, folder: Path, name: str = wire.CHECK_TASK) -> dict[str, Any]:
    """What a site in a kit answers to a task."""
    said = site.execute(name, task, context(folder), Signal())
    return wire.content_of(wire.from_shareable(said).meta)


def npz(path: Path, tests: int = 20) -> Path:
    """A small file in MedMNIST's layout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images, labels = np.random.default_rng(0).integers(0, 256, (20, 4, 4), np.uint8), np.arange(20) % 2
    rows = np.arange(tests) % 20
    np.savez(path, train_images=images, train_labels=labels, test_images=images[rows], test_labels=labels[rows])
    return path
