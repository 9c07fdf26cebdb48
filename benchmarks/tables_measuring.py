# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What of a difference to a published figure is the measuring: finished cells' models, measured in other ways.

``quarter``: a random quarter of each participant's test split, as large as with four times as many participants. Fewer
samples give fewer wrong classes among the predictions, and macro-F1 counts each of them as zero. ``batch``: BatchNorm
with the statistics of test batches of 32, as in the thesis's reference code, which never switches to evaluation mode.

    CFL_DATA_ROOT=... python benchmarks/tables_measuring.py --cells cells --suffix=-m50-r60-s0
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import numpy as np
import torch
from cells import FACTS

from cfl_flare.data import DataConfig, Npz, ParticipantData
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.served import load_model
from cfl_flare.training.measures import accuracy, macro_f1

WAYS = ("as measured", "quarter", "batch")


def predicted(model: torch.nn.Module, x: torch.Tensor, way: str) -> np.ndarray:
    """Predictions ``(n,)``."""
    if way != "batch":
        with torch.no_grad():
            return model(x).argmax(1).numpy()
    model = copy.deepcopy(model).train()
    with torch.no_grad():
        return np.concatenate([model(part).argmax(1).numpy() for part in x.split(32)])


def measured(cell: Path, people: list[ParticipantData], way: str) -> list[float]:
    """Accuracy and macro-F1 in percent, weighted by samples, of the models at the end of a cell."""
    run = load_run(cell)
    clusters = {p["name"]: p["cluster"] for p in run.summary["participants"]}
    models = {path.stem: load_model(cell, path.stem) for path in (cell / "clusters").glob("*.safetensors")}
    rows, weights = [], []
    for data in people:
        some = np.random.default_rng(0).permutation(len(data.test))
        some = some[: max(1, len(some) // 4)] if way == "quarter" else some
        cluster = clusters[data.name]
        model = models["global" if cluster is None else f"cluster-{cluster}"]
        labels, guess = data.test.y[some], predicted(model, torch.from_numpy(data.test.x[some]), way)
        rows.append([100 * accuracy(labels, guess), 100 * macro_f1(labels, guess)])
        weights.append(len(data.train))
    return [round(float(v), 2) for v in np.average(rows, axis=0, weights=weights)]


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--cells", type=Path, required=True)
    options.add_argument("--suffix", default="-m50-r60-s0", help="of the cells' names (%(default)s)")
    given = options.parse_args()
    for path in sorted(given.cells.glob(f"*/*{given.suffix}/{FACTS}")):
        settings = load_run(path.parent).summary["data"]
        people = DataConfig(**settings).host(Npz(path="fashionmnist.npz"), "local", 0, 1)
        found = {way: measured(path.parent, people, way) for way in WAYS}
        print(path.parent.parent.name, json.loads(path.read_text())["row"], json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
