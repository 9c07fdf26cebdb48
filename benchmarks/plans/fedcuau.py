# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedCUAU on CIFAR-10 (sec. 4 and 6.3): Table 1, where some tiers alone train, and Table 3, with and without CUAU.

The paper trains a ResNet-18 for 500 rounds, and drops the learning rate at half and at three quarters of them; here it
is a small network with BatchNorm for 120. The paper names no batch size and no momentum. Initial and personalised
accuracy are measured once a run is done, on all participants, of whichever tiers trained. FedCUAU's first round is its
stage 1, so it is given one more than its base:

    tables.py run --plan fedcuau --partitions tiers --rows fedavg fedbabu --out cells
    tables.py run --plan fedcuau --partitions tiers --rows fedavg-cuau fedbabu-cuau --rounds 121 --out cells
    tables.py run --plan fedcuau --partitions tiers --rows stage1 --rounds 121 --out cells     a smaller rate in stage 1
    tables.py run --plan fedcuau --partitions C1 C1+C2 C1+C2+C3 C4 C3+C4 C2+C3+C4 --rows fedavg --out cells
"""

from pathlib import Path

import numpy as np
from jpeg_npz import JpegNpz
from learners import learner_of, runtime_of

from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import from_dict, require
from cfl_flare.data import DataConfig
from cfl_flare.methods import FedCUAU, FedPer, Method
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from plans.plan import Plan, model

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


PLAN = Plan(
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
