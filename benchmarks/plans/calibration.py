# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Discrimination and calibration by method, at ten hospitals: pneumonia in X-rays, and blood cells.

Accuracy names neither: a model may rank patients well and give probabilities that are far from what happens. Hospitals
differ by the cells or findings that they see, or by their scanners. A seed is of data, initial models and batches.

    tables.py run --plan pneumonia --seeds 0 1 2 --out cells
    tables.py run --plan blood-ten --seeds 0 1 2 --out cells
"""

from dataclasses import replace

from cfl_flare.data import Npz
from cfl_flare.training.settings import TrainSettings
from plans import blood
from plans.plan import BASELINES, model

ROWS = {
    **BASELINES,
    **{name: (name,) for name in ("fedavg", "fedprox", "finetune", "fedper", "ditto")},
    **{name: (f"{name}:k=2",) for name in ("ifca", "fesem", "wecfl", "cgpfl")},
    **{f"{name}-cam": (f"{name}-cam:k=2,warmup=30%",) for name in ("ifca", "fesem")},
    "fedavg+": ("fedavg+:k=2",),
    "cfl": ("cfl:eps1=0.6,eps2=1.1",),
}

BLOOD = replace(
    blood.PLAN,
    name="blood-ten",
    title="Blood cells at ten hospitals: AUROC and calibration",
    training=TrainSettings(lr=0.01, local_steps=10, measures=("auroc", "auprc", "balanced_accuracy", "brier", "ece")),
    participants=10,
    rounds=20,
    evaluate_every=10,
    indicator_samples=0,
    partitions={
        "labels": {**blood.LABELS, "groups": 2},
        "scanners": {"partition": "scanner", "groups": 2},
    },
    rows=ROWS,
    sweeps={},
    tables={},
    columns=("accuracy", "balanced_accuracy", "auroc", "ece", "brier", "worst_accuracy", "ari"),
    compared=("accuracy", "auroc"),
    averaged=("last", 1),
    after=None,
)
PNEUMONIA = replace(
    BLOOD,
    name="pneumonia",
    title="Pneumonia in X-rays at ten hospitals: AUROC and calibration",
    source=Npz(path="pneumoniamnist.npz"),
    model=model("fashion-cnn", (1, 28, 28), 2),
    partitions={
        "labels": {"partition": "cluster_dirichlet", "a_between": 0.5, "a_within": 10.0, "groups": 2},
        "scanners": {"partition": "scanner", "groups": 2},
    },
)
