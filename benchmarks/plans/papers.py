# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of three papers: FedAC, FedCUAU and FedDSMIC.

FedAC on CIFAR-10 (Zhang et al. 2024, sec. 5): Table 1, and what its Fig. 3 and 4 vary.

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

FedCUAU on CIFAR-10 (sec. 4 and 6.3): Table 1, where some tiers alone train, and Table 3, with and without CUAU.

The paper trains a ResNet-18 for 500 rounds, and drops the learning rate at half and at three quarters of them; here it
is a small network with BatchNorm for 120. The paper names no batch size and no momentum. Initial and personalised
accuracy are measured once a run is done, on all participants, of whichever tiers trained. FedCUAU's first round is its
stage 1, so it is given one more than its base:

    tables.py run --plan fedcuau --partitions tiers --rows fedavg fedbabu --out cells
    tables.py run --plan fedcuau --partitions tiers --rows fedavg-cuau fedbabu-cuau --rounds 121 --out cells
    tables.py run --plan fedcuau --partitions tiers --rows stage1 --rounds 121 --out cells     a smaller rate in stage 1
    tables.py run --plan fedcuau --partitions C1 C1+C2 C1+C2+C3 C4 C3+C4 C2+C3+C4 --rows fedavg --out cells

FedDSMIC on Fashion-MNIST and on blood cells (Li et al. 2022, sec. 5): Table 2, and what Fig. 6 to 8 vary.

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

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from sources import JpegNpz

from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import from_dict, require
from cfl_flare.data import DataConfig, Npz
from cfl_flare.engine.newcomers import onboard_unseen
from cfl_flare.methods import FedCUAU, FedPer, Method
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from plans.plan import BASELINES, Plan, learner_of, model, runtime_of

# ---- FedAC ----


SIZES = {"partition": "quantity", "lo": 50, "hi": 350}
# One of the two changes at a time; the other stays at 0.1.
PULLS = [(mu, 0.1) for mu in (0, 0.01, 1)] + [(0.1, lam) for lam in (0, 0.01, 1)]

FEDAC = Plan(
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
    FEDAC,
    name="shared-sets",
    title="FedAC on CIFAR-10 with shared label sets",
    training=replace(FEDAC.training, lr=0.1),
    participants=40,
    rounds=100,
    sample=10,
    evaluate_every=50,
    partitions={
        "shared": {"partition": "n_class", "n": 2, "sets": 10},
        "own": {"partition": "n_class", "n": 2},
    },
    rows={
        **{row: method for row, method in FEDAC.rows.items() if row not in ("fesem", "fedgroup", "fl-hc")},
        "wecfl": ("wecfl:k=10",),
        "fedac-fixed": ("fedac:k=10,tuning=False",),
    },
    sweeps={"pull": {f"fedac-fixed-mu{mu}": (f"fedac:k=10,tuning=False,mu={mu},lam=0",) for mu in (0, 1, 3)}},
    averaged=("last", 1),
)


# ---- FedCUAU ----


TIERS = {"partition": "heterogeneity_tiers", "alphas": [1000, 1, 0.5, 0.1]}
TRAINED_ON = {
    **{"C1": (0,), "C1+C2": (0, 1), "C1+C2+C3": (0, 1, 2)},
    **{"C4": (3,), "C3+C4": (2, 3), "C2+C3+C4": (1, 2, 3)},
}


EPOCHS = 5  # of fine-tuning


def personal(plan: Plan, folder: Path) -> dict[str, float]:
    """FedCUAU's two accuracies (sec. 3.2 and 6.2) from a run's models, and the second of each tier, ``c1`` to ``c4``.

    The initial one is C1's model's, or the global one's, on the pooled test samples. The personalised one is what each
    participant reaches after five epochs of fine-tuning its own cluster's model at the last learning rate.

    Whoever was never asked has no cluster, and starts from C1's model, as the participants of tiers that did not train.

    Args:
        plan: where the samples come from.
        folder: the run's.
    """
    run = load_run(folder)
    summary = run.summary
    training = from_dict(TrainSettings, summary["training"], "training")
    work = runtime_of(summary["model"], training, summary["seed"])
    models = {
        path.stem: work.resident.layout.pack(load_arrays(path)[0])
        for path in (folder / "clusters").glob("*.safetensors")
    }
    first = models.get("global") or models["cluster-0"]
    clusters = {p["name"]: p["cluster"] for p in summary["participants"] if p["cluster"] is not None}
    # A cluster method's first round was its stage 1, so that its learning rates are those of the round before.
    last = summary["rounds"] - (2 if clusters else 1)
    everyone = DataConfig(**{key: value for key, value in summary["data"].items() if key != "groups"})
    initial, sizes, own, tiers = [], [], [], []
    for data in everyone.host(plan.source, "local", 0, 1):
        learner = learner_of(work, data, last)
        start = models[f"cluster-{clusters[data.name]}"] if data.name in clusters else first
        initial.append(learner.evaluate(first)["accuracy"])
        own.append(learner.evaluate(learner.train(start, purpose="finetune", epochs=EPOCHS))["accuracy"])
        sizes.append(len(data.test))
        tiers.append(data.group or 0)
    by_tier = {f"c{t + 1}": float(np.mean([a for a, g in zip(own, tiers) if g == t])) for t in sorted(set(tiers))}
    return {"initial": float(np.average(initial, weights=sizes)), "personalised": float(np.mean(own)), **by_tier}


def heads_travel(method: Method) -> None:
    """Refuses FedPer, and FedCUAU on it: the heads that its participants are measured with stay with them."""
    base = method.base if isinstance(method, FedCUAU) else method
    require(
        not isinstance(base, FedPer),
        "plan fedcuau: row fedper: its heads stay with the participants, so that a finished run's models do not give "
        "its accuracies; use `cfl-flare run --method fedper:finetune=True,finetune_epochs=5`",
    )


FEDCUAU = Plan(
    name="fedcuau",
    title="FedCUAU on CIFAR-10",
    source=JpegNpz(path="cifar10_jpeg.npz"),
    model=model("fashion-cnn", (3, 32, 32), 10),
    training=TrainSettings(lr=0.1, momentum=0.0, batch_size=32, local_epochs=1, lr_decay=0.1, lr_milestones=(60, 90)),
    participants=100,
    rounds=120,
    sample=10,
    evaluate_every=10,
    partitions={"tiers": TIERS, **dict.fromkeys(TRAINED_ON, TIERS)},
    groups=TRAINED_ON,
    rows={
        "fedavg": ("fedavg",),
        "fedbabu": ("fedbabu:finetune=False",),
        "fedavg-cuau": ("fedcuau:base=fedavg,k=2",),
        "fedbabu-cuau": ("fedcuau:base=fedbabu,k=2",),
    },
    sweeps={
        "stage1": {
            f"{base}-cuau-stage1": (f"fedcuau:base={base},k=2,stage1_lr=0.01",) for base in ("fedavg", "fedbabu")
        }
    },
    columns=("initial", "personalised", "c1", "c2", "c3", "c4", "ari", "clusters_in_use"),
    compared=("initial", "personalised"),
    averaged=("last", 1),
    after=personal,
    refuse=heads_travel,
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

FEDDSMIC_BLOOD = replace(
    FEDDSMIC,
    name="feddsmic-blood",
    title="FedDSMIC on blood cells",
    source=Npz(path="bloodmnist28.npz"),
    model=model("path-cnn", (3, 28, 28), 8),
    participants=40,
    rounds=60,
)
