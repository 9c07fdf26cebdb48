# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""All methods on scikit-learn's digits, dealt in seven ways: small enough for many seeds.

It asks when a method pays. The ways go from nothing to find (``iid``) over label shares, where what differs is how
often a class occurs, to groups that contradict each other (``labels_permuted``) or see differently (``scanners``).

    tables.py run --plan digits --seeds 0 1 2 --out cells
"""

from dataclasses import replace

from cfl_flare.data import Digits
from cfl_flare.training.settings import TrainSettings
from plans import blood
from plans.plan import model

GROUPS = {"groups": 4}

PLAN = replace(
    blood.PLAN,
    name="digits",
    title="Digits, seven ways to deal them",
    source=Digits(),
    model=model("mlp", (1, 8, 8), 10),
    training=TrainSettings(lr=0.1, momentum=0.9, batch_size=16, local_steps=5),
    participants=24,
    rounds=30,
    evaluate_every=10,
    min_samples=4,
    indicator_samples=10,
    partitions={
        "iid": {"partition": "iid"},
        "dirichlet": {"partition": "dirichlet", "alpha": 0.3},
        "n_class": {"partition": "n_class", "n": 3},
        "shared_sets": {"partition": "n_class", "n": 3, "sets": 4},
        "label_groups": {"partition": "cluster_dirichlet", "a_between": 0.1, "a_within": 10.0, **GROUPS},
        "labels_permuted": {"partition": "label_permutation", **GROUPS},
        "scanners": {"partition": "scanner", **GROUPS},
    },
    sweeps={},
    tables={},
    columns=("accuracy", "macro_f1", "worst_accuracy", "ari", "clusters_in_use"),
    averaged=("last", 1),
    after=None,
)
