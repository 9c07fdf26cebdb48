# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Thesis Table 7.5 from the models of finished cells: sums of separately trained models, with and without finetuning.

As in the thesis, FedAvg and a clustered method are trained apart on the same partition; then their logits are added on
each participant's test split (Eq. 7.36). "-Finetune" trains every model for one more local round before that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from cells import FACTS
from learners import learner_of, runtime_of

from cfl_flare.core.config import from_dict
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.safetensors_io import load_arrays
from cfl_flare.data import DataConfig, Npz, ParticipantData
from cfl_flare.methods import build_method
from cfl_flare.results.run_dir import Run, load_run
from cfl_flare.training.ensemble import Served
from cfl_flare.training.runtime import Runtime
from cfl_flare.training.settings import TrainSettings

BASES = ("ifca", "fesem", "wecfl")


def models_of(run: Run, slot: str, layout: Layout) -> tuple[Params, ...]:
    """The models of one of a run's files: one, or a sum's parts."""
    arrays, meta = load_arrays(run.folder / "clusters" / f"{slot}.safetensors")
    if "ensemble" not in meta:
        return (layout.pack(arrays),)
    heads = [f"parts.{i}." for i in range(meta["ensemble"]["parts"])]
    return tuple(
        layout.pack({name.removeprefix(h): a for name, a in arrays.items() if name.startswith(h)}) for h in heads
    )


def measured(
    run: Run, work: Runtime, people: list[ParticipantData], others: list[Run], finetune: bool
) -> dict[str, Any]:
    """Accuracy and macro-F1 in percent, weighted by samples, of a run's models with the others' added."""
    rounds, rows, weights = run.summary["rounds"], [], []
    for data in people:
        learner = learner_of(work, data, rounds)
        served: tuple[Params, ...] = ()
        for one in (*others, run):
            cluster = next(p["cluster"] for p in one.summary["participants"] if p["name"] == data.name)
            own = models_of(one, "global" if cluster is None else f"cluster-{cluster}", work.resident.layout)
            method = build_method(one.summary["method"])
            if finetune:
                own = Served.of(method.finetuned(learner, Served(own))).models
            served += own
        rows.append(learner.evaluate(Served(served)))
        weights.append(len(data.train))
    return {
        name: 100 * float(np.average([row[name] for row in rows], weights=weights)) for name in ("accuracy", "macro_f1")
    }


def compare(cells: Path, partition: str, suffix: str) -> list[dict[str, Any]]:
    """The rows of the table for one partition, as far as their cells are finished."""
    runs = {
        p.parent.name.removesuffix(suffix): load_run(p.parent) for p in (cells / partition).glob(f"*{suffix}/{FACTS}")
    }
    settings = next(iter(runs.values())).summary
    training = from_dict(TrainSettings, settings["training"], "training")
    work = runtime_of(settings["model"], training, settings["seed"])
    people = DataConfig(**settings["data"]).host(Npz(path="fashionmnist.npz"), "local", 0, 1)
    rows = []
    for finetune in (False, True):
        ending = "-finetune" if finetune else ""
        for name in ("fedavg", *BASES, *(f"{b}-cam" for b in BASES)):
            if name not in runs:
                continue
            rows.append({"row": name + ending, **measured(runs[name], work, people, [], finetune)})
            if name in BASES and "fedavg" in runs:
                both = measured(runs[name], work, people, [runs["fedavg"]], finetune)
                rows.append({"row": f"fedavg{ending}+{name}{ending}", **both})
            print(rows[-1], flush=True)
    return rows


def write_ensembles(cells: Path, partition: str, suffix: str, out: Path) -> None:
    """Writes the rows as JSON."""
    commits = sorted({json.loads(p.read_text())["commit"] for p in (cells / partition).glob(f"*{suffix}/{FACTS}")})
    content = {"partition": partition, "cells": suffix, "commits": commits, "rows": compare(cells, partition, suffix)}
    out.with_suffix(".json").write_text(json.dumps(content, indent=1))
