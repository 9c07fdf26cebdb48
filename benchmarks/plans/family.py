# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The thesis's family (J. Ma, 2023, sec. 3.5 and chapters 3 to 7), and Fed-CAM: Fashion-MNIST, and CIFAR-10.

    tables.py run --plan family --table 3.1 --out cells                       a table, all of its rows and partitions
    tables.py run --plan family-cifar10 --table 7.6 --out cells               warm-up lengths of IFCA-CAM
    tables.py run --plan family-cifar10 --rows ifca fesem wecfl --partitions cluster_n_class --out cells  Fig. 3.2

The CIFAR-10 images are the JPEG version.

The plan ``paired`` has these methods beside each other on Fashion-MNIST, with three seeds and more.
A seed is of data, initial models and batches. It is measured after every tenth round, and its figures are those of the
end. IFCA's participants choose by 64 of their samples: all of the thesis's 320 would take most of the time.

    tables.py run --plan paired --seeds 0 1 2 --partitions cluster_dirichlet cluster_n_class --out cells

How much of IFCA is chance of deal and of initial models (thesis Table 3.1: it collapses), and whether CAM changes that,
say 10 deals with 3 starts each:

    tables.py run --plan paired --rows ifca ifca-cam --seeds 0 1 2 --set data_seed=0 --out starts    to data_seed=9

The plan ``digits`` has all methods on scikit-learn's digits, dealt in seven ways: small enough for many seeds. It asks
when a method pays. The ways go from nothing to find (``iid``) over label shares, where what differs is how often a
class occurs, to groups that contradict each other (``labels_permuted``) or see differently (``scanners``).

    tables.py run --plan digits --seeds 0 1 2 --out cells

The plan ``research`` has CIFAR-10 at 8 sites, dealt by Dirichlet shares with alpha 0.1 and 0.5, as FLARE's research
entries have it. Two clusters are a guess, as such a deal has no true groups.

    tables.py run --plan research --seeds 0 1 2 3 4 --out cells
"""

from __future__ import annotations

from dataclasses import replace

from sources import JpegNpz

from cfl_flare.data import Digits, Npz
from cfl_flare.training.settings import TrainSettings
from plans import blood
from plans.plan import BASELINES, Plan, Rows, model

CON, REP, CKS = "contrastive:mu=2,tau=0.1", "contrastive:on=representations,mu=0.5,tau=1", "knowledge_sharing:lam=0.1"
CON_CKS = (f"{CON},scope=head", f"{CKS},scope=backbone")
CLUSTER_WISE, CLIENT_WISE = ("cluster_dirichlet", "cluster_n_class"), ("dirichlet", "n_class")
ONE_MODEL = ("fedavg", "fedprox")


def clustered(k: int) -> Rows:
    """The rows of a table that have K models."""
    ifca = f"k={k},assignment_samples=320"
    return {
        "fedavg+": (f"fedavg+:k={k}",),
        "fedprox+": (f"fedprox+:k={k}",),
        "ifca": (f"ifca:{ifca}",),
        "fesem": (f"fesem:k={k}",),
        "wecfl": (f"wecfl:k={k}",),
        # 30 of the thesis's 100 rounds (sec. 7.4.5)
        "ifca-cam": (f"ifca-cam:{ifca},warmup=30%",),
        "fesem-cam": (f"fesem-cam:k={k},warmup=30%",),
    }


IFCA, FEW_SHOT = "k=10,assignment_samples=320", "k=10,clustering_rounds=10"
CHAPTER_3 = (*ONE_MODEL, "fedavg+", "fedprox+", "ifca", "fesem", "wecfl")
CHAPTER_7 = (*ONE_MODEL, "fedavg+", "fedprox+", "ifca", "ifca-cam", "fesem", "fesem-cam")

PLAN = Plan(
    name="family",
    title="Fashion-MNIST",
    source=Npz(path="fashionmnist.npz"),
    model=model("fashion-cnn", (1, 28, 28), 10),
    # The thesis's reference code keeps the momentum, and its accuracies depend on it.
    training=TrainSettings(lr=0.001, momentum=0.9, batch_size=32, local_steps=10, keep_momentum=True),
    participants=50,  # 200 in the thesis, and 100 rounds
    rounds=60,
    partitions={
        "cluster_dirichlet": {"partition": "cluster_dirichlet", "a_between": 0.1, "a_within": 10.0, "groups": 10},
        "cluster_n_class": {"partition": "cluster_n_class", "n_group": 3, "n_client": 2, "groups": 10},
        "dirichlet": {"partition": "dirichlet", "alpha": 0.1},
        "n_class": {"partition": "n_class", "n": 2},
    },
    # The thesis clusters in the first ten rounds alone where FeSEM and WeCFL have penalties.
    rows={
        **BASELINES,
        "fedavg": ("fedavg",),
        "fedprox": ("fedprox",),
        **clustered(10),
        "wecfl-con-para": (f"wecfl:{FEW_SHOT}", CON),
        "wecfl-con-rep": (f"wecfl:{FEW_SHOT}", REP),
        "wecfl-cks": (f"wecfl:{FEW_SHOT}", CKS),
        "wecfl-con-cks": (f"wecfl:{FEW_SHOT}", *CON_CKS),
        "ifca-con-para": (f"ifca:{IFCA}", CON),
        "ifca-cks": (f"ifca:{IFCA}", CKS),
    },
    sweeps={
        "warmup": {f"ifca-cam-w{share}": (f"ifca-cam:{IFCA},warmup={share}%",) for share in (0, 10, 20, 40, 50)},
    },
    tables={
        "3.1": (CLUSTER_WISE, CHAPTER_3),
        "3.3": (CLIENT_WISE, CHAPTER_3),
        "7.1": (CLUSTER_WISE, CHAPTER_7),
        "7.3": (CLIENT_WISE, CHAPTER_7),
        "7.6": (("dirichlet",), ("ifca", "ifca-cam", "warmup")),
    },
    columns=("accuracy", "macro_f1", "worst_accuracy", "ari", "nmi", "clusters_in_use"),
)

CIFAR10 = replace(
    PLAN,
    name="family-cifar10",
    title="CIFAR-10",
    source=JpegNpz(path="cifar10_jpeg.npz"),
    model=model("cifar-cnn", (3, 32, 32), 10),
)


def sooner(rows: Rows) -> Rows:
    """The same with fewer samples to choose a model by."""
    return {row: (first.replace("=320", "=64"), *rest) for row, (first, *rest) in rows.items()}


PAIRED = replace(
    PLAN,
    name="paired",
    title="The thesis's methods on Fashion-MNIST, three seeds",
    participants=30,
    rounds=20,
    evaluate_every=10,
    rows={
        **BASELINES,
        **sooner({row: PLAN.rows[row] for row in ("fedavg", "fesem", "wecfl", "ifca", "ifca-cam", "fesem-cam")}),
        **sooner({row: method for row, method in PLAN.rows.items() if "con" in row or "cks" in row}),
        **sooner({"ifca-con-cks": (f"ifca:{IFCA}", *CON_CKS)}),
    },
    sweeps={},
    tables={},
    averaged=("last", 1),
)


OF_FOUR = {"groups": 4}

DIGITS = replace(
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
        "label_groups": {"partition": "cluster_dirichlet", "a_between": 0.1, "a_within": 10.0, **OF_FOUR},
        "labels_permuted": {"partition": "label_permutation", **OF_FOUR},
        "scanners": {"partition": "scanner", **OF_FOUR},
    },
    sweeps={},
    tables={},
    columns=("accuracy", "macro_f1", "worst_accuracy", "ari", "clusters_in_use"),
    averaged=("last", 1),
    after=None,
)


RESEARCH = replace(
    PLAN,
    name="research",
    title="CIFAR-10 at 8 sites, as in FLARE's research entries",
    source=CIFAR10.source,
    model=CIFAR10.model,
    # FLARE's entries train for 50 rounds of 4 epochs on a GPU. These are 50 rounds of 40 steps, for a processor.
    training=TrainSettings(lr=0.02, momentum=0.9, batch_size=32, local_steps=40),
    participants=8,
    rounds=50,
    evaluate_every=50,
    partitions={f"alpha-{alpha}": {"partition": "dirichlet", "alpha": alpha} for alpha in (0.1, 0.5)},
    rows={
        **BASELINES,
        "fedavg": ("fedavg",),
        "finetune": ("finetune",),
        "ifca": ("ifca:k=2,assignment_samples=320",),
        **{row: (f"{row}:k=2",) for row in ("fesem", "wecfl")},
    },
    sweeps={},
    tables={},
    columns=("accuracy", "macro_f1", "worst_accuracy", "clusters_in_use"),
    averaged=("last", 1),
)
