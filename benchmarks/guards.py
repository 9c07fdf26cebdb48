# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the server's guards cost, and how long honest updates are.

``floor``: what a floor of three sites and 30 training samples a cluster costs: accuracy and clusters, with and without
it. Each of 16 participants is a site of its own. With the floor the server assigns so that every cluster has three
sites, or, where participants choose, holds back the model of a cluster that has fewer. All else is the same, seed by
seed. Hospitals of the stroke trial are judged by their log-loss. A run that is in the file already is not run again.

``norms``: how much longer than the median honest updates are, which the default of ``clip_norm`` must exceed. It runs
the golden record's cases without FLARE (all methods, penalties and wrappers on digits, with sampling and resumed runs).
Of each round it notes the longest update over the round's lower median, apart for parameters, for buffers and for each
layer. It also notes how many times BatchNorm's variances, and by how many standard deviations its means, were outside
of what was sent and of the round's median.

    CFL_DATA_ROOT=... python benchmarks/guards.py floor --out benchmarks/results/floor.json
    python benchmarks/guards.py norms --out benchmarks/results/update-norms.json
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from common import measure_missing, provenance
from kept import interval
from plans.hospitals import STROKE
from plans.later import FirstImages
from plans.plan import model

from cfl_flare.cli.specs import build_named
from cfl_flare.data import DataConfig, DataSource, Digits
from cfl_flare.engine import round as rounds
from cfl_flare.engine.clipping import Norms, Statistics
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings

# ---- The floor under clusters ----


SITES, ROUNDS = 16, 30
FIRST = 4000, 1500  # images to train and to test, so that a run takes seconds
FLOOR = {"min_sites_per_cluster": 3, "min_samples_per_cluster": 30, "hold_small_clusters": True}
METHODS = ("wecfl", "ifca")
IMAGES = TrainSettings(lr=0.1, momentum=0.9, batch_size=16, local_steps=5)
KEYS = ("accuracy", "loss")


@dataclass(frozen=True)
class Case:
    """Data, dealt to 16 sites, and the number of clusters."""

    source: DataSource
    model: Any
    training: TrainSettings
    partition: Mapping[str, Any]
    k: int
    min_samples: int = 8


CASES = {
    "digits": Case(
        Digits(),
        model("mlp", (1, 8, 8), 10),
        IMAGES,
        {"partition": "cluster_dirichlet", "a_between": 0.1, "a_within": 1.0, "groups": 4},
        4,
    ),
    "blood cells": Case(
        FirstImages("bloodmnist28.npz", *FIRST),
        model("mlp", (3, 28, 28), 8),
        replace(IMAGES, lr=0.02),
        {"partition": "dirichlet", "alpha": 0.3},
        4,
    ),
    "Fashion-MNIST": Case(
        FirstImages("fashionmnist.npz", *FIRST),
        model("mlp", (1, 28, 28), 10),
        IMAGES,
        {"partition": "label_permutation", "groups": 3},
        3,
    ),
    "stroke": Case(STROKE.source, STROKE.model, STROKE.training, {"partition": "natural"}, 3, 120),
}


def measured(data: str, method: str, floor: bool, seed: int) -> dict[str, Any]:
    """One run."""
    case = CASES[data]
    started = time.process_time()
    with TemporaryDirectory() as folder:
        run_loop(
            RunPlan(
                method=build_named(f"{method}:k={case.k}"),
                model=case.model,
                reader=case.source,
                data=DataConfig(SITES, case.partition, seed=seed, min_samples=case.min_samples),
                server=ServerSettings(ROUNDS, seed, evaluate_every=5, **(FLOOR if floor else {})),
                training=case.training,
                sites=SITES,
            ),
            folder=Path(folder),
        )
        run = load_run(folder)
    final, rounds = run.summary["final"], run.rounds
    sizes = sorted((size for size in rounds[-1]["cluster_sizes"] if size), reverse=True)
    return {
        **{key: final[f"served_{key}"] for key in KEYS if f"served_{key}" in final},
        **{"ari": final.get("ari"), "clusters": len(sizes), "sizes": sizes},
        "rounds_moved": sum("moved_for_floor" in line for line in rounds),
        "rounds_held": sum("held_back" in line for line in rounds),
        "smallest": min(size for line in rounds for size in line["cluster_sizes"] if size),
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """A line a data set and method: means with and without the floor, and the difference, in percent."""
    lines = []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        of = {f: [r for r in rows if (r["data"], r["method"], r["floor"]) == (data, method, f)] for f in (False, True)}
        if len(of[True]) != len(of[False]) or len(of[True]) < 2:
            continue
        line: dict[str, Any] = {"data": data, "method": method}
        for key in (*KEYS, "ari", "clusters"):
            pairs = [[row.get(key) for row in rows] for rows in of.values()]
            if any(value is None for pair in pairs for value in pair):
                continue
            scale = 1 if key in ("loss", "ari", "clusters") else 100
            without, under = ([scale * value for value in pair] for pair in pairs)
            line[key] = {"without": statistics.mean(without), "with": statistics.mean(under)}
            line[key]["difference"] = list(interval([b - a for a, b in zip(without, under)]))
        line["rounds_moved"] = statistics.mean(row["rounds_moved"] for row in of[True])
        line["rounds_held"] = statistics.mean(row["rounds_held"] for row in of[True])
        lines.append(line)
    return {"summary": lines}


def measure_floor(given: argparse.Namespace) -> None:
    """``floor``: runs what is missing."""
    wanted = (
        {"data": data, "method": method, "floor": floor, "seed": seed}
        for method, seed, data, floor in product(METHODS, given.seeds, CASES, (False, True))
    )
    setting = {"participants": SITES, "sites": SITES, "rounds": ROUNDS, "seeds": given.seeds, "floor": FLOOR}
    measure_missing(given.out, wanted, measured, summarize, **setting)


# ---- The norms of honest updates ----


ROOT = Path(__file__).resolve().parents[1]
RATIOS: dict[str, list[float]] = {
    "parameters": [],
    "buffers": [],
    "layer": [],
    "running_var": [],
    "running_mean": [],
}


class Watched(Norms):
    """Norms that are noted before they are used."""

    def excess(self, bound: float, of_statistics: float) -> dict[tuple[str, str], dict[str, float]]:
        """As the parent's; the ratios are those for a bound of next to nothing."""
        for (_, part), far in super().excess(1e-6, 1e-6).items():
            RATIOS[part.partition(" ")[0]].append(max(far.values()) * 1e-6)
        return super().excess(bound, of_statistics)


class WatchedStatistics(Statistics):
    """Running statistics that are noted before they are used."""

    def excess(self, bound: float):  # type: ignore[no-untyped-def]
        """As the parent's; the ratios are those for a bound of 1."""
        for (_, name), far in super().excess(1.0)[1].items():
            RATIOS[name.rpartition(".")[2]].append(max(far.values()))
        return super().excess(bound)


def measure_norms(given: argparse.Namespace) -> None:
    """``norms``."""
    about = provenance()
    rounds.Norms = Watched  # type: ignore[misc]
    rounds.Statistics = WatchedStatistics  # type: ignore[misc]
    sys.path.insert(0, str(ROOT))
    sys.argv = ["record.py", "check", "--part", "loop"]
    try:
        runpy.run_path(str(ROOT / "tests" / "golden" / "record.py"), run_name="__main__")
    finally:
        norms: dict[str, Any] = {
            part: {
                "rounds": len(ratios),
                "max": max(ratios),
                **{f"quantile {q}": float(np.quantile(ratios, q)) for q in (0.5, 0.9, 0.99, 0.999)},
            }
            for part, ratios in RATIOS.items()
            if ratios
        }
        given.out.write_text(json.dumps({**about, "longest update over the median": norms}, indent=1) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("floor", "norms"))
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the floor's runs")
    given = parser.parse_args()
    (measure_floor if given.what == "floor" else measure_norms)(given)


if __name__ == "__main__":
    main()
