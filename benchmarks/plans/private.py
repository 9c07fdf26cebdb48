# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Private layers on blood cells at ten hospitals in two groups, by the cells that they see or by their scanners.

FedAvg, WeCFL and IFCA without private layers, with private normalisation layers (FedAvg's is FedBN) and with a private
head (FedAvg's is FedPer, bit for bit, and has its name), beside Ditto. The thesis's network for such images has no
normalisation layer; its one for Fashion-MNIST has. A seed is of data, initial models and batches. IFCA's participants
choose by 64 of their samples: all of them would take most of the time.

    tables.py run --plan private --seeds 0 1 2 3 4 --out cells
"""

from dataclasses import replace

from plans import blood
from plans.plan import BASELINES, PRIVATE, model

WECFL, IFCA = "wecfl:k=2", "ifca:k=2,assignment_samples=64"
NORM, HEAD = f"{PRIVATE}norm", f"{PRIVATE}head"

PLAN = replace(
    blood.PLAN,
    name="private",
    title="Private layers on blood cells at ten hospitals",
    model=model("fashion-cnn", (3, 28, 28), 8),
    participants=10,
    rounds=20,
    evaluate_every=10,
    indicator_samples=0,
    partitions={
        "labels": {**blood.LABELS, "groups": 2},
        "scanners": {"partition": "scanner", "groups": 2},
    },
    rows={
        **BASELINES,
        "fedavg": ("fedavg",),
        "fedavg-norm": ("fedavg", NORM),
        "fedper": ("fedper",),
        "ditto": ("ditto",),
        "wecfl": (WECFL,),
        "wecfl-norm": (WECFL, NORM),
        "wecfl-head": (WECFL, HEAD),
        "ifca": (IFCA,),
        "ifca-norm": (IFCA, NORM),
        "ifca-head": (IFCA, HEAD),
    },
    sweeps={},
    tables={},
    columns=("accuracy", "macro_f1", "worst_accuracy", "ari", "clusters_in_use"),
    averaged=("last", 1),
    after=None,
)
