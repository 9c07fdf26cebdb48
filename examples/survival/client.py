# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each hospital runs: a Cox regression in NumPy with FLARE's Client API.

Patients are synthetic: in half of the hospitals the treatment helps the young, in the other half the old.
"""

import argparse

import numpy as np
import nvflare.client as flare
from model import COVARIATES, Cohort, c_index, loss_and_gradient

SHARED = {"age": 0.5, "treatment": -0.2, "stage": 0.8, "marker": 0.3}
INTERACTION = 1.2


def simulate(rng: np.random.Generator, patients: int, interaction: float) -> Cohort:
    """Draws patients with exponential times, of whom about a third are censored."""
    age, stage, marker = rng.normal(size=(3, patients))
    treatment = rng.integers(0, 2, patients) - 0.5
    covariates = np.stack([age, treatment, age * treatment, stage, marker], axis=1)
    effects = np.array([SHARED.get(name, interaction) for name in COVARIATES])
    event = rng.exponential(1 / np.exp(covariates @ effects))
    censoring = rng.exponential(2, patients)
    times = np.minimum(event, censoring)
    order = np.argsort(times)
    return Cohort(covariates[order], times[order], (event <= censoring)[order])


def load_site(site: str, patients: int) -> dict[str, Cohort]:
    """A hospital's patients to train on and to test on."""
    index = int(site.rpartition("-")[2]) - 1
    interaction = INTERACTION if index % 2 == 0 else -INTERACTION
    return {
        split: simulate(np.random.default_rng([index, number]), patients, interaction)
        for number, split in enumerate(("train", "test"))
    }


def main() -> None:
    """Takes a model, measures it, trains it, sends it back, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--patients", type=int, default=300)
    parser.add_argument("--steps", type=int, default=10, help="of gradient descent in a round")
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args()

    flare.init()
    data = load_site(flare.get_site_name(), args.patients)
    while flare.is_running():
        input_model = flare.receive()
        if input_model is None:
            break
        beta = input_model.params["beta"]
        metrics = {"c_index": c_index(beta, data["test"]), "loss": loss_and_gradient(beta, data["train"])[0]}
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics=metrics))
            continue
        for _ in range(args.steps):
            beta = beta - args.lr * loss_and_gradient(beta, data["train"])[1]
        flare.send(flare.FLModel(params={"beta": beta}, metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": args.steps}))


if __name__ == "__main__":
    main()
