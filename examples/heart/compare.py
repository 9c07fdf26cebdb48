# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each hospital has of the runs so far, beside its most frequent label and beside training alone."""

import argparse
from collections import defaultdict

import torch
from client import Split, measure, read_hospital, train
from job import DATA, HOSPITALS
from model import HeartModel

from cfl_flare import find_runs

Rows = dict[str, dict[str, list[tuple[float, float]]]]


def majority(data: dict[str, Split]) -> tuple[float, float]:
    """Accuracy and AUC of always predicting the label that most patients in training have."""
    guess = data["train"][1].mean() > 0.5
    return ((data["test"][1] > 0) == guess).float().mean().item(), 0.5


def alone(data: dict[str, Split], epochs: int, lr: float) -> tuple[float, float]:
    """Accuracy and AUC of a model that the hospital trains alone."""
    torch.manual_seed(0)
    model = HeartModel()
    for _ in range(epochs):
        train(model, data["train"], lr)
    found = measure(model, data["test"])
    return found["accuracy"], found["auc"]


def main() -> None:
    """Prints accuracy and AUC, means over the folds that were run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--workspace", default="cfl-runs", help="of the runs")
    parser.add_argument("--epochs", type=int, default=20, help="of training alone")
    parser.add_argument("--lr", type=float, default=0.02, help="of training alone")
    args = parser.parse_args()
    rows: Rows = defaultdict(lambda: defaultdict(list))
    folds: set[int] = set()
    for run in find_runs(args.workspace):
        folds.add(int(run.folder.relative_to(args.workspace).parts[0].rpartition("-")[2]))
        for hospital in run.summary["participants"]:
            rows[run.name][hospital["name"]].append((hospital["served_accuracy"], hospital["served_auc"]))
    patients = {}
    for hospital in HOSPITALS:
        for fold in sorted(folds):
            data = read_hospital(DATA, hospital, fold)
            patients[hospital] = sum(len(labels) for _, labels in data.values())
            rows["majority class"][hospital].append(majority(data))
            rows["alone"][hospital].append(alone(data, args.epochs, args.lr))
    show(rows, patients, folds)


def show(rows: Rows, patients: dict[str, int], folds: set[int]) -> None:
    """Prints a line for each row; in the last column the mean over all patients' accuracy."""
    print(
        f"{'accuracy / AUC':16}" + "".join(f"{h:>16}" for h in HOSPITALS) + f"   accuracy of all, folds {sorted(folds)}"
    )
    for name, found in rows.items():
        means = {h: torch.tensor(found[h]).mean(0).tolist() for h in HOSPITALS}
        every = sum(patients[h] * means[h][0] for h in HOSPITALS) / sum(patients.values())
        print(
            f"{name:16}" + "".join(f"{accuracy:8.3f} / {auc:.3f}" for accuracy, auc in means.values()) + f"{every:8.3f}"
        )


if __name__ == "__main__":
    main()
