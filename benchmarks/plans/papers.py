# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAC where there is something to find, and the table of FedDSMIC.

The plan ``shared-sets`` has FedAC (Zhang et al. 2024) with 40 participants of CIFAR-10 and ten sets of labels. The
paper's Table 1 deals label sets at random, so that hardly two participants have the same one. Here each set belongs to
four. The learning rate is ten times the paper's, as the paper's hardly leaves local training in so few rounds. The
paper does not publish its K, mu and lambda. IFCA's participants choose by 64 of their samples: all of them would double
its time. The images are the JPEG version of CIFAR-10.

    tables.py run --plan shared-sets --seeds 0 1 2 --out cells

FedDSMIC on Fashion-MNIST (Li et al. 2022, sec. 5): Table 2, and what Fig. 6 to 8 vary.

Fashion-MNIST takes MNIST's place with its settings, the convex model included, but for the rounds. 100 samples of each
class are held back whatever a row compares models on, so that all rows train on the same data. A fifth of the
participants is held back from training, and joins the finished run (Table 3), so that 80 of the 100 train, where the
paper's Table 2 is of all. Momentum starts at zero in each round, which the paper does not say.

    tables.py run --plan feddsmic --out cells                                      Table 2 and Fig. 6
    tables.py run --plan feddsmic --rows indicator --partitions alpha0.5 ...       Fig. 7
    tables.py run --plan feddsmic --set local_steps=10 --partitions alpha0.5 ...   Table 2's last rows: tau
    tables.py run --plan feddsmic --set sample=0.2 --partitions alpha0.5 ...       Fig. 8: participation
"""

from __future__ import annotations

from pathlib import Path

from sources import JpegNpz

from cfl_flare.data import Npz
from cfl_flare.engine.newcomers import onboard_unseen
from cfl_flare.training.settings import TrainSettings
from plans.plan import BASELINES, Plan, model

# ---- FedAC ----


SHARED_SETS = Plan(
    name="shared-sets",
    title="FedAC on CIFAR-10 with shared label sets",
    source=JpegNpz(path="cifar10_jpeg.npz"),
    model=model("fedac-cnn", (3, 32, 32), 10),
    training=TrainSettings(lr=0.1, momentum=0.0, batch_size=32, local_steps=5),
    participants=40,
    rounds=100,
    sample=10,
    evaluate_every=50,
    partitions={"shared": {"partition": "n_class", "n": 2, "sets": 10}},
    rows={
        **BASELINES,
        "fedavg": ("fedavg",),
        "fedper": ("fedper",),
        "ifca": ("ifca:k=10,assignment_samples=64",),
        "fedac": ("fedac:k=10",),
        "fedac-fixed": ("fedac:k=10,tuning=False",),
    },
    compared=("accuracy",),
    averaged=("last", 1),
)


# ---- FedDSMIC ----


def joined(plan: Plan, folder: Path) -> dict[str, float]:
    """Accuracy of the participants that were held back, weighted by their samples, once they have joined the run."""
    return {"unseen": onboard_unseen(folder, plan.source)["served_accuracy"]}


FEDDSMIC = Plan(
    name="feddsmic",
    title="FedDSMIC on Fashion-MNIST",
    source=Npz(path="fashionmnist.npz"),
    model=model("logistic", (1, 28, 28), 10),
    training=TrainSettings(lr=0.01, momentum=0.9, batch_size=32, local_steps=20),
    participants=100,
    rounds=200,
    indicator_samples=100,
    unseen=0.2,
    partitions={f"alpha{a}": {"partition": "class_groups", "groups": 3, "alpha": a} for a in (0.05, 0.5, 1, 10)},
    rows={
        **BASELINES,
        "fedavg": ("fedavg",),
        "fedprox": ("fedprox",),
        "ifca": ("ifca:k=3",),
        "fesem": ("fesem:k=3",),
        "per-fedavg": ("per-fedavg",),
        "fedgroup": ("fedgroup:k=3",),
        "fedds": ("fedds:k=3",),
        "feddsmic": ("feddsmic:k=3",),
    },
    sweeps={"indicator": {f"feddsmic-n{n}": (f"feddsmic:k=3,indicator_samples={n}",) for n in (1, 100)}},
    columns=("accuracy", "bottom_accuracy", "unseen", "macro_f1", "worst_accuracy", "ari", "clusters_in_use"),
    compared=("accuracy", "bottom_accuracy"),
    averaged=("best", 5),
    after=joined,
)
