# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How often ``cfl-flare drift`` raises an alarm at hospitals of the stroke trial.

Each hospital's patients are divided into four parts of equal size, at random or by date. FedAvg trains on half of the
first parts. The command's test then compares the losses of the other half with those of each later part. At random no
hospital has changed, so that each alarm is false.

    python benchmarks/drift.py --out benchmarks/results/drift.json
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import provenance, write_json

from cfl_flare.data import DataConfig, Samples
from cfl_flare.data.hospitals import STROKE_COLUMNS, Stroke
from cfl_flare.data.table import Table
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.extensions.aftercare.drift import FEWEST, losses, rise
from cfl_flare.results.model_file import read_model
from cfl_flare.training.tasks import build_task

PARTS, TEST_SHARE, LEVEL, SEEDS = 4, 0.5, 0.05, 5
LARGE = int(PARTS * FEWEST / TEST_SHARE)  # patients of a hospital, so that the command has enough in each part
MODEL = {
    "class_path": "cfl_flare.models.MLP",
    "args": {"input_shape": [len(STROKE_COLUMNS.features)], "num_classes": 2, "hidden": []},
}


def divide_patients(seed: int, by_date: bool) -> pd.DataFrame:
    """Returns the patients of large hospitals, with the number of the part of each."""
    with Stroke().leave():
        frame = pd.read_csv(Stroke().inner.path)
    frame = frame[frame["dependent"].notna()].astype({"dependent": int})
    sizes = frame.groupby("HOSPNUM")["AGE"].transform("size")
    frame = frame[sizes >= LARGE].sample(frac=1, random_state=seed)
    if by_date:
        frame = frame.sort_values("RDATE", kind="stable")
    hospitals = frame.groupby("HOSPNUM")
    part = hospitals.cumcount() * PARTS // hospitals["AGE"].transform("size")
    return frame.drop(columns=["days", "died", "RDATE", "COUNTRY"]).assign(part=part)


def write_part(frame: pd.DataFrame, part: int, folder: Path, **settings: Any) -> Table:
    """Writes the patients of a part, and returns the table of them."""
    path = folder / f"part-{part}.csv"
    frame[frame["part"] == part].drop(columns="part").to_csv(path, index=False)
    return Table(str(path), "dependent", "HOSPNUM", columns=STROKE_COLUMNS.to_dict(), **settings)


def measure(seed: int, by_date: bool) -> dict[str, float]:
    """Returns the number of hospitals, and the fraction of tests that raised an alarm."""
    frame = divide_patients(seed, by_date)
    alarms = list[bool]()
    with TemporaryDirectory() as name:
        folder = Path(name)
        source = write_part(frame, 0, folder, test_share=TEST_SHARE, seed=seed)
        later = [Samples.joined(*write_part(frame, part, folder).load()) for part in range(1, PARTS)]
        run = RunPlan.of(
            method="fedavg",
            model=MODEL,
            data=source,
            partition={"partition": "natural"},
            min_samples=2,
            training={"lr": 0.05, "local_epochs": 1},
            num_rounds=20,
            min_clients=1,
            seed=seed,
        )
        run_loop(run, folder / "run")
        module, task = read_model(folder / "run" / "clusters" / "global.safetensors"), build_task("classification")
        people = DataConfig(partition="natural", min_samples=2).resolved(source).host(source, "local", 0, 1)
        for person in people:
            before = losses(module, task, person.test, person.name)
            for samples in later:
                own = samples.take(np.flatnonzero(samples.key == int(person.name)))
                assert person.preparation is not None
                prepared = replace(own, x=person.preparation.apply(own.x))
                alarms.append(rise(before, losses(module, task, prepared, person.name), LEVEL).p <= LEVEL)
    return {"hospitals": len(people), "command": statistics.fmean(alarms)}


def main() -> None:
    """Runs the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--seeds", type=int, nargs="+", default=list(range(SEEDS)))
    given = options.parse_args()
    torch.set_num_threads(1)
    content: dict[str, Any] = {**provenance(), "seeds": given.seeds, "level": LEVEL, "cells": {}, "means": {}}
    for order in ("shuffled", "by_date"):
        cells = [measure(seed, order == "by_date") for seed in given.seeds]
        content["cells"][order] = cells
        content["means"][order] = {key: statistics.fmean(cell[key] for cell in cells) for key in cells[0]}
        print(order, content["means"][order], flush=True)
    write_json(given.out, content, indent=1)


if __name__ == "__main__":
    main()
