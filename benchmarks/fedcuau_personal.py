# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedCUAU's two accuracies (sec. 3.2 and 6.2), from the models that a run left: initial and personalised.

The initial one is C1's model's, or the global one's, on the pooled test samples. The personalised one is what each
participant reaches after five epochs of fine-tuning its own cluster's model at the last learning rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from learners import learner_of, runtime_of

from cfl_flare.core.config import from_dict
from cfl_flare.core.safetensors_io import load_arrays
from cfl_flare.data import DataConfig
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings

if TYPE_CHECKING:
    from plans.plan import Plan

EPOCHS = 5


def personal(plan: Plan, folder: Path) -> dict[str, float]:
    """Both accuracies over all participants, and the personalised one of each tier, ``c1`` to ``c4``.

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
