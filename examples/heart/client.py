# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each hospital runs: a logistic regression in PyTorch, with FLARE's Client API."""

import argparse
from pathlib import Path

import nvflare.client as flare
import torch
from model import HeartModel
from patients import Split, read_hospital
from sklearn.metrics import roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

BATCH = 16


@torch.no_grad()
def measure(model: HeartModel, split: Split) -> dict[str, float]:
    """Loss, accuracy, and area under the ROC curve."""
    table, labels = split
    logits = model(table)
    return {
        "loss": loss_of(logits, labels).item(),
        "accuracy": ((logits > 0) == (labels > 0)).float().mean().item(),
        "auc": float(roc_auc_score(labels, logits)),
    }


def train(model: HeartModel, split: Split, lr: float) -> int:
    """One epoch; gives the number of steps."""
    table, labels = split
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    batches = torch.randperm(len(labels)).split(BATCH)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model(table[batch]), labels[batch]).backward()
        optimizer.step()
    return len(batches)


def main() -> None:
    """Takes a model, measures it, trains it, sends it back, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="table of the hospitals")
    parser.add_argument("--fold", type=int, default=0, help="which fifth of the patients is for testing")
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    flare.init()
    data = read_hospital(args.data, flare.get_site_name(), args.fold)
    model = HeartModel()
    while flare.is_running():
        input_model = flare.receive()
        if input_model is None:
            break
        model.load_state_dict(input_model.params)
        metrics = measure(model, data["test"])
        metrics["loss"] = measure(model, data["train"])["loss"]  # on training data: by this IFCA chooses among models
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics=metrics))
            continue
        steps = train(model, data["train"], args.lr)
        flare.send(flare.FLModel(params=model.state_dict(), metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": steps}))


if __name__ == "__main__":
    main()
