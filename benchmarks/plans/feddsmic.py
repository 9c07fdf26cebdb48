# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedDSMIC on Fashion-MNIST and on blood cells (Li et al. 2022, sec. 5): Table 2, and what Fig. 6 to 8 vary.

Fashion-MNIST takes MNIST's place with its settings, the convex model included, but for the rounds; blood cells stand
for colour images, with the thesis's network for such a set: the paper's MobileNet-v2 on CIFAR-10 takes days here. 100
samples of each class are held back whatever a row compares models on, so that all rows train on the same data. A fifth
of the participants is held back from training, and joins the finished run (Table 3), so that 80 of the 100 train, where
the paper's Table 2 is of all. Momentum starts at zero in each round, which the paper does not say.

    tables.py run --plan feddsmic --out cells                                      Table 2 and Fig. 6
    tables.py run --plan feddsmic --rows indicator --partitions alpha0.5 ...       Fig. 7
    tables.py run --plan feddsmic --set local_steps=10 --partitions alpha0.5 ...   Table 2's last rows: tau
    tables.py run --plan feddsmic --set sample=0.2 --partitions alpha0.5 ...       Fig. 8: participation
"""

from dataclasses import replace
from pathlib import Path

from cfl_flare.data import Npz
from cfl_flare.engine.newcomers import onboard_unseen
from cfl_flare.training.settings import TrainSettings
from plans.plan import BASELINES, Plan, model


def joined(plan: Plan, folder: Path) -> dict[str, float]:
    """Accuracy of the participants that were held back, weighted by their samples, once they have joined the run."""
    return {"unseen": onboard_unseen(folder, plan.source)["served_accuracy"]}


PLAN = Plan(
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

BLOOD = replace(
    PLAN,
    name="feddsmic-blood",
    title="FedDSMIC on blood cells",
    source=Npz(path="bloodmnist28.npz"),
    model=model("path-cnn", (3, 28, 28), 8),
    participants=40,
    rounds=60,
)
