# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each hospital runs: a logistic regression in PyTorch, with FLARE's Client API."""

import argparse
from pathlib import Path

import numpy as np
import nvflare.client as flare
import pandas as pd
import torch
from model import HeartModel
from sklearn.metrics import roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

BATCH = 16
SCALES = {
    "age": (54, 9),
    "trestbps": (132, 19),
    "chol": (240, 60),
    "thalach": (138, 26),
    "oldpeak": (0.9, 1.1),
    "ca": (0.7, 0.9),
}
CATEGORIES = {
    "sex": (1,),
    "fbs": (1,),
    "exang": (1,),
    "cp": (1, 2, 3, 4),
    "restecg": (0, 1, 2),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}
FOLDS = 5
Split = tuple[torch.Tensor, torch.Tensor]


def read_hospital(data: Path, hospital: str, fold: int) -> dict[str, Split]:
    """Features and labels of the patients to train on and of those to test on.

    Measurements are scaled by fixed numbers, and a missing one is the middle of its scale. Of a category that is
    missing no column is set. Columns of their own say what is missing, for those that some hospitals hardly measure.

    Args:
        data: the table of all four hospitals.
        hospital: cleveland, hungary, switzerland or long-beach.
        fold: which fifth of the patients is for testing, from 0.
    """
    patients = pd.read_csv(data)
    table = patients[patients["hospital"] == hospital]
    columns = [((table[name] - centre) / scale).fillna(0) for name, (centre, scale) in SCALES.items()]
    columns += [table[name] == value for name, values in CATEGORIES.items() for value in values]
    columns += [table[name].isna() for name in ("chol", "slope", "ca", "thal", "oldpeak")]
    features = torch.tensor(np.stack(columns, axis=1), dtype=torch.float32)
    labels = torch.tensor((table["num"] > 0).to_numpy(), dtype=torch.float32)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in (0, 1):  # each fold has its share of both
        test[torch.nonzero(labels == label).ravel()[fold::FOLDS]] = True
    return {"train": (features[~test], labels[~test]), "test": (features[test], labels[test])}


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
