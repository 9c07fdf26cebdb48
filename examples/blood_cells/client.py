# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each hospital runs: plain PyTorch with FLARE's Client API."""

import argparse
import os
from pathlib import Path

import numpy as np
import nvflare.client as flare
import torch
from model import BloodNet
from torch.nn.functional import cross_entropy

BATCH = 32


def load_share(file: str, site: str, sites: int, samples: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A hospital's training and test images with their labels: its own share of a file that simulates them all.

    Every second hospital numbers the kinds of cells by another scheme, which nobody has told the others.
    """
    index = int(site.rpartition("-")[2]) - 1
    splits = {}
    with np.load(Path(os.environ["CFL_DATA_ROOT"]) / file) as arrays:
        for split in ("train", "test"):
            images = arrays[f"{split}_images"][index::sites][:samples]
            labels = arrays[f"{split}_labels"][index::sites][:samples].ravel().astype(np.int64)
            if index % 2 == 1:
                labels = (labels + 4) % 8
            pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
            splits[split] = pixels, torch.from_numpy(labels)
    return splits


@torch.no_grad()
def measure(model: BloodNet, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy."""
    logits = model(images)
    return cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()


def train(model: BloodNet, images: torch.Tensor, labels: torch.Tensor, lr: float) -> int:
    """One epoch; gives the number of steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    batches = torch.randperm(len(labels)).split(BATCH)
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    return len(batches)


def main() -> None:
    """Takes a model, measures it, trains it, sends it back, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", required=True, help="in the folder that $CFL_DATA_ROOT names")
    parser.add_argument("--sites", type=int, required=True, help="how many share the file")
    parser.add_argument("--samples", type=int, required=True, help="most images of a split")
    parser.add_argument("--lr", type=float, required=True)
    args = parser.parse_args()

    flare.init()
    data = load_share(args.file, flare.get_site_name(), args.sites, args.samples)
    model = BloodNet()
    while flare.is_running():
        input_model = flare.receive()
        if input_model is None:
            break
        model.load_state_dict(input_model.params)
        loss, _ = measure(model, *data["train"])  # on training data: by this IFCA chooses among models
        _, accuracy = measure(model, *data["test"])
        metrics = {"loss": loss, "accuracy": accuracy}
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics=metrics))
            continue
        steps = train(model, *data["train"], args.lr)
        flare.send(flare.FLModel(params=model.state_dict(), metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": steps}))


if __name__ == "__main__":
    main()
