# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAC on CIFAR-10 (Zhang et al. 2024, sec. 5): Table 1, and what its Fig. 3 and 4 vary.

The paper trains for 1000 rounds; its K, mu and lambda are not published ("optimal", and K = 10 in Fig. 4c). FL+HC's
rounds before the clustering are ours, and so is that IFCA's participants choose by 64 of their samples, to train and to
be measured: all of them would double its time. mu and lambda are not tuned for the main table, nor is CGPFL's lambda.
The images are the JPEG version of CIFAR-10.

    tables.py run --plan fedac --rows fedavg fedac ... --out cells         the main table
    tables.py run --plan fedac --rows number pull likeness --out cells     the sweeps, and any other: --rows fedac:k=5

The plan ``shared-sets`` has FedAC where there is something to find: 40 participants with ten sets of labels, or sets of
their own.
FedAC's Table 1 deals label sets at random, so that hardly two participants have the same one. With ``shared`` each set
belongs to four. The learning rate is ten times the paper's, as the paper's hardly leaves local training in so few
rounds; ``pull`` has values of mu with which a round moves a model a good part of the way to its centre.

    tables.py run --plan shared-sets --seeds 0 1 2 --out cells
"""

from dataclasses import replace

from jpeg_npz import JpegNpz

from cfl_flare.training.settings import TrainSettings
from plans.plan import BASELINES, Plan, model

SIZES = {"partition": "quantity", "lo": 50, "hi": 350}
# One of the two changes at a time; the other stays at 0.1.
PULLS = [(mu, 0.1) for mu in (0, 0.01, 1)] + [(0.1, lam) for lam in (0, 0.01, 1)]

PLAN = Plan(
    name="fedac",
    title="FedAC on CIFAR-10",
    source=JpegNpz(path="cifar10_jpeg.npz"),
    model=model("fedac-cnn", (3, 32, 32), 10),
    training=TrainSettings(lr=0.01, momentum=0.0, batch_size=32, local_steps=5),
    participants=100,
    rounds=500,
    sample=25,
    evaluate_every=20,
    partitions={
        "dirichlet": {**SIZES, "rule": "dirichlet", "alpha": 0.1},
        "n_class": {**SIZES, "rule": "n_class", "n": 3},
    },
    rows={
        **BASELINES,
        "fedavg": ("fedavg",),
        "fedper": ("fedper",),
        "fesem": ("fesem:k=10",),
        "fedgroup": ("fedgroup:k=10",),
        "fl-hc": ("fl-hc:k=10,rounds_before=10",),
        "cgpfl": ("cgpfl:k=10",),
        "ifca": ("ifca:k=10,assignment_samples=64",),
        "fedac": ("fedac:k=10",),
    },
    sweeps={
        "number": {
            **{f"fedac-k{k}": (f"fedac:k={k}",) for k in (3, 20)},
            **{f"fedac-k{k}-fixed": (f"fedac:k={k},tuning=False",) for k in (3, 10, 20)},
        },
        "pull": {f"fedac-mu{mu}-lam{lam}": (f"fedac:k=10,mu={mu},lam={lam}",) for mu, lam in PULLS},
        "likeness": {"fedac-l2": ("fedac:k=10,similarity=l2",)},
    },
    compared=("accuracy",),
)
SHARED_SETS = replace(
    PLAN,
    name="shared-sets",
    title="FedAC on CIFAR-10 with shared label sets",
    training=replace(PLAN.training, lr=0.1),
    participants=40,
    rounds=100,
    sample=10,
    evaluate_every=50,
    partitions={
        "shared": {"partition": "n_class", "n": 2, "sets": 10},
        "own": {"partition": "n_class", "n": 2},
    },
    rows={
        **{row: method for row, method in PLAN.rows.items() if row not in ("fesem", "fedgroup", "fl-hc")},
        "wecfl": ("wecfl:k=10",),
        "fedac-fixed": ("fedac:k=10,tuning=False",),
    },
    sweeps={"pull": {f"fedac-fixed-mu{mu}": (f"fedac:k=10,tuning=False,mu={mu},lam=0",) for mu in (0, 1, 3)}},
    averaged=("last", 1),
)
