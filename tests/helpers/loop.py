# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The in-process loop, with what most tests set as keywords of its own, and finished runs of every method."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cfl_flare.core.config import parse_spec
from cfl_flare.data import DataConfig, DataSource, Digits
from cfl_flare.engine import loop
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.indicator import samples_to_set_aside
from cfl_flare.engine.plan import JobSettings, RunPlan
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.methods import (
    CFL,
    COMBINATIONS,
    IFCA,
    METHODS,
    Contrastive,
    Ensemble,
    FedAvg,
    FedDS,
    KnowledgeSharing,
    Method,
    WeCFL,
    build_method,
)
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


# ---- Finished runs, with participants held back ----


MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [16, 8]}}
TRAINING = TrainSettings(lr=0.1, local_epochs=3)
# What the methods' settings need; a method added later that needs more says so by failing here.
GIVEN: dict[str, Any] = {"k": 2, "eps1": 9.0, "eps2": 0.0, "warmup": 1, "rounds_before": 1, "base": IFCA(k=2)}
GIVEN["parts"] = [FedAvg(), IFCA(k=2)]
GIVEN["groups"] = {f"p{i}": f"group {i % 2}" for i in range(8)}


def method_of(name: str) -> Method:
    """A method by its name, of two clusters."""
    if name in COMBINATIONS:
        settings = COMBINATIONS[name].settings()
        needed = [key for key, default in settings.items() if default is dataclasses.MISSING]
    else:
        settings = dict(inspect.signature(METHODS[name]).parameters)
        needed = [key for key, p in settings.items() if p.default is inspect.Parameter.empty]
    wanted = {*needed, *(key for key in ("k", "warmup", "rounds_before") if key in settings)}
    return build_method({"method": name, **{key: GIVEN[key] for key in wanted}})


def build_from_spec(spec: str, penalties: Sequence[Mapping[str, Any]] = ()) -> Method:
    """A method by its spec, such as ``wecfl:k=2``, with penalties."""
    name, values = parse_spec(spec)
    if penalties:
        values["penalties"] = penalties
    return build_method({"method": name, **values})


METHOD_LIST: dict[str, Method] = {
    **{name: method_of(name) for name in (*METHODS, *COMBINATIONS)},
    "ifca-shared": IFCA(k=2, shared_backbone=True, assignment_samples=10),
    "wecfl-few-shot": WeCFL(k=2, clustering_rounds=1, finetune=True, finetune_epochs=2),
    "wecfl-con-cks": WeCFL(k=2, penalties=(Contrastive(), KnowledgeSharing(pairwise=True))),
    "ifca-cks": IFCA(k=2, penalties=(KnowledgeSharing(pairwise=True),)),
    "fedcuau-fedper": build_method({"method": "fedcuau", "base": "fedper"}),
    "fedcuau-fedbabu": build_method({"method": "fedcuau", "base": "fedbabu", "finetune": True}),
    "ifca-cam-alternating": build_method({"method": "ifca-cam", "k": 2, "warmup": 1, "updates": "alternating"}),
    "fedavg+cfl": Ensemble(parts=(FedAvg(), CFL(eps1=9, eps2=0)), vote="logits"),
    "fedds+fedavg": Ensemble(parts=(FedDS(k=2), FedAvg())),
}


def run_of(
    method: Method,
    folder: Path,
    participants: int = 8,
    rounds: int = 3,
    groups: int = 2,
    model: dict[str, Any] = MODEL,
    training: TrainSettings = TRAINING,
) -> Path:
    """A finished run with a quarter of the participants held back."""
    rule = {"partition": "label_permutation", "groups": groups}
    run_loop(
        method=method,
        model=model,
        source=Digits(),
        data=DataConfig(participants, rule, indicator_samples=samples_to_set_aside([method]), unseen=0.25),
        settings=ServerSettings(rounds, evaluate_every=rounds),
        training=training,
        folder=folder,
    )
    return folder


def kept_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
