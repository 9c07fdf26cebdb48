# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Blood cells at 40 hospitals, all methods of the project: nobody has published such a table.

Hospitals fall into four groups, by the cells that they see, by their scanners, or by both. Ten outliers, whose labels
are random, are hospitals that fit into none (``--set outliers=10``): the figure ``sound`` is the accuracy of the
others, and ``sound_ari`` compares their clusters with their groups; the sweep ``k5`` has a cluster for the outliers.
With ``--set data_seed=0`` the seeds are those of initial models and batches alone.

    tables.py run --plan blood --out cells                                           the table
    tables.py run --plan blood --table robust --set outliers=10 --out cells  outliers
    tables.py run --plan blood --rows k5 --partitions labels --set outliers=10 --out cells  with one cluster more
    tables.py run --plan blood --table robust --seeds 0 1 2 3 4 --set data_seed=0 --out cells  initial seeds

The plan ``private`` has private layers at ten hospitals in two groups, by the cells that they see or by their scanners:
FedAvg, WeCFL and IFCA without private layers, with private normalisation layers (FedAvg's is FedBN) and with a private
head (FedAvg's is FedPer, bit for bit, and has its name), beside Ditto. The thesis's network for such images has no
normalisation layer; its one for Fashion-MNIST has. A seed is of data, initial models and batches. IFCA's participants
choose by 64 of their samples: all of them would take most of the time.

    tables.py run --plan private --seeds 0 1 2 3 4 --out cells

The plans ``blood-ten`` and ``pneumonia`` have discrimination and calibration by method, at ten hospitals.
Accuracy names neither: a model may rank patients well and give probabilities that are far from what happens. Hospitals
differ by the cells or findings that they see, or by their scanners. A seed is of data, initial models and batches.

    tables.py run --plan pneumonia --seeds 0 1 2 --out cells
    tables.py run --plan blood-ten --seeds 0 1 2 --out cells
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from cfl_flare.data import Npz
from cfl_flare.results.run_dir import ASSIGNMENTS, load_run, read_lines
from cfl_flare.training.settings import TrainSettings
from plans.plan import BASELINES, PRIVATE, Plan, model


def stable(lines: Sequence[Mapping[str, object]]) -> int | None:
    """After how many rounds nobody who has a cluster changes it any more; None where nobody has one."""
    last: dict[object, object] = {}
    settled: int | None = None
    for line in lines:
        name, cluster = line["participant"], line["cluster"]
        if cluster is not None and last.get(name) != cluster:
            last[name], settled = cluster, int(str(line["round"])) + 1
    return settled


def after(plan: Plan, folder: Path) -> dict[str, float]:
    """Rounds to a stable assignment; of those with sound labels the accuracy, weighted, and beside outliers the ARI."""
    people = load_run(folder).summary["participants"]
    sound = [person for person in people if person["name"] not in plan.random_labels]
    weights = [person["samples"] for person in sound]
    measured = {"sound": float(np.average([person["served_accuracy"] for person in sound], weights=weights))}
    if plan.outliers and all(person["cluster"] is not None for person in sound):
        groups, clusters = ([person[what] for person in sound] for what in ("group", "cluster"))
        measured["sound_ari"] = float(adjusted_rand_score(groups, clusters))
    rounds = stable(read_lines(folder / ASSIGNMENTS))
    return measured if rounds is None else {**measured, "stable": rounds}


LABELS = {"partition": "cluster_dirichlet", "a_between": 0.1, "a_within": 10.0}
ROWS = {
    **BASELINES,
    **{name: (name,) for name in ("fedavg", "fedprox", "finetune", "per-fedavg", "fedper", "fedbabu", "ditto")},
    "ifca": ("ifca:k=4",),
    "ifca-shared": ("ifca:k=4,shared_backbone=True",),
    "fesem": ("fesem:k=4",),
    "wecfl": ("wecfl:k=4",),
    "wecfl-con": ("wecfl:k=4,clustering_rounds=10", "contrastive:mu=0.5,tau=1"),
    "wecfl-cks": ("wecfl:k=4,clustering_rounds=10", "knowledge_sharing:lam=0.1"),
    "wecfl-con-cks": (
        "wecfl:k=4,clustering_rounds=10",
        *("contrastive:mu=0.5,tau=1,scope=head", "knowledge_sharing:lam=0.1,scope=backbone"),
    ),
    "ifca-cam": ("ifca-cam:k=4,warmup=30%",),
    "fesem-cam": ("fesem-cam:k=4,warmup=30%",),
    "fedavg+": ("fedavg+:k=4",),
    "cfl": ("cfl:eps1=0.6,eps2=1.1",),
    "fl-hc": ("fl-hc:k=4,rounds_before=5",),
    "fedgroup": ("fedgroup:k=4",),
    "cgpfl": ("cgpfl:k=4",),
    "fedac": ("fedac:k=4",),
    "fedac-fixed": ("fedac:k=4,tuning=False",),
    "fedcuau": ("fedcuau:k=4",),
    "fedds": ("fedds:k=4",),
    "feddsmic": ("feddsmic:k=4",),
}
ROBUST = ("fedavg", "ifca", "fesem", "wecfl", "ifca-cam", "fesem-cam")

PLAN = Plan(
    name="blood",
    title="Blood cells at 40 hospitals",
    source=Npz(path="bloodmnist28.npz"),
    model=model("path-cnn", (3, 28, 28), 8),
    training=TrainSettings(lr=0.01, momentum=0.9, batch_size=32, local_steps=10),
    participants=40,
    rounds=40,
    indicator_samples=10,
    partitions={
        "labels": {**LABELS, "groups": 4},
        "scanners": {"partition": "scanner", "groups": 4},
        "both": {**LABELS, "partition": "crossed", "rule": "cluster_dirichlet", "groups": 2, "scanners": 2},
    },
    rows=ROWS,
    sweeps={"k5": {f"{row}-k5": (ROWS[row][0].replace("k=4", "k=5"),) for row in ROBUST[1:]}},
    tables={"robust": (("labels",), ROBUST)},
    columns=("accuracy", "macro_f1", "worst_accuracy", "sound", "sound_ari", "ari", "nmi", "clusters_in_use", "stable"),
    compared=("accuracy", "macro_f1"),
    after=after,
)
WECFL, IFCA = "wecfl:k=2", "ifca:k=2,assignment_samples=64"
NORM, HEAD = f"{PRIVATE}norm", f"{PRIVATE}head"

PRIVATE_LAYERS = replace(
    PLAN,
    name="private",
    title="Private layers on blood cells at ten hospitals",
    model=model("fashion-cnn", (3, 28, 28), 8),
    participants=10,
    rounds=20,
    evaluate_every=10,
    indicator_samples=0,
    partitions={
        "labels": {**LABELS, "groups": 2},
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
CALIBRATED = {
    **BASELINES,
    **{name: (name,) for name in ("fedavg", "fedprox", "finetune", "fedper", "ditto")},
    **{name: (f"{name}:k=2",) for name in ("ifca", "fesem", "wecfl", "cgpfl")},
    **{f"{name}-cam": (f"{name}-cam:k=2,warmup=30%",) for name in ("ifca", "fesem")},
    "fedavg+": ("fedavg+:k=2",),
    "cfl": ("cfl:eps1=0.6,eps2=1.1",),
}

TEN = replace(
    PLAN,
    name="blood-ten",
    title="Blood cells at ten hospitals: AUROC and calibration",
    training=TrainSettings(lr=0.01, local_steps=10, measures=("auroc", "auprc", "balanced_accuracy", "brier", "ece")),
    participants=10,
    rounds=20,
    evaluate_every=10,
    indicator_samples=0,
    partitions={
        "labels": {**LABELS, "groups": 2},
        "scanners": {"partition": "scanner", "groups": 2},
    },
    rows=CALIBRATED,
    sweeps={},
    tables={},
    columns=("accuracy", "balanced_accuracy", "auroc", "ece", "brier", "worst_accuracy", "ari"),
    compared=("accuracy", "auroc"),
    averaged=("last", 1),
    after=None,
)
PNEUMONIA = replace(
    TEN,
    name="pneumonia",
    title="Pneumonia in X-rays at ten hospitals: AUROC and calibration",
    source=Npz(path="pneumoniamnist.npz"),
    model=model("fashion-cnn", (1, 28, 28), 2),
    partitions={
        "labels": {"partition": "cluster_dirichlet", "a_between": 0.5, "a_within": 10.0, "groups": 2},
        "scanners": {"partition": "scanner", "groups": 2},
    },
)
