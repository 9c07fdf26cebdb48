# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each hospital runs: a Cox regression in NumPy with FLARE's Client API."""

import argparse

import nvflare.client as flare
from model import c_index, loss_and_gradient
from patients import load_site


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
