# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each site runs: segmentation with MONAI and FLARE's Client API. Nothing in it knows of scanners or clusters."""

import argparse

import nvflare.client as flare
import torch
from model import LesionNet
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks import one_hot
from scans import Split, load_site

BATCH = 8


@torch.no_grad()
def dice(model: LesionNet, split: Split) -> float:
    """Mean Dice coefficient of the lesions."""
    model.eval()
    images, masks = split
    metric = DiceMetric(include_background=False)
    metric(one_hot(model(images).argmax(1, keepdim=True), 2), one_hot(masks, 2))
    return metric.aggregate().item()


def train(model: LesionNet, split: Split, lr: float) -> int:
    """One epoch; gives the number of steps."""
    model.train()
    images, masks = split
    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    batches = torch.randperm(len(images)).split(BATCH)
    for batch in batches:
        optimizer.zero_grad()
        loss(model(images[batch]), masks[batch]).backward()
        optimizer.step()
    return len(batches)


def main() -> None:
    """Takes a model, measures it, trains it, sends it back, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=64, help="scans to train on")
    parser.add_argument("--lr", type=float, default=0.005)
    args = parser.parse_args()

    flare.init()
    data = load_site(flare.get_site_name(), args.samples)
    model = LesionNet()
    while flare.is_running():
        input_model = flare.receive()
        if input_model is None:
            break
        model.load_state_dict(input_model.params)
        metrics = {"dice": dice(model, data["test"])}
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics=metrics))
            continue
        steps = train(model, data["train"], args.lr)
        flare.send(flare.FLModel(params=model.state_dict(), metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": steps}))


if __name__ == "__main__":
    main()
