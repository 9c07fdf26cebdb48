# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A training script as one writes it for FLARE's FedAvgRecipe. Nothing in it knows of clusters."""

import argparse

import nvflare.client as flare
import torch
from model import DigitNet
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

SITES = 8  # the digits are dealt to so many, of whom fewer may take part


def load_share(site: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A site's images and labels. Every second site names the digits by another scheme."""
    index = int(site.rpartition("-")[2]) - 1
    digits = load_digits()
    images = torch.tensor(digits.images[index::SITES] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[index::SITES])
    return images, (labels + 5) % 10 if index % 2 == 1 else labels


def main() -> None:
    """Takes a model, measures it, trains it, sends it back, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    flare.init()
    images, labels = load_share(flare.get_site_name())
    train, test = slice(0, 160), slice(160, None)
    model = DigitNet()
    while flare.is_running():
        input_model = flare.receive()
        if input_model is None:
            break
        model.load_state_dict(input_model.params)
        with torch.no_grad():
            accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
        steps = 0
        for _ in range(args.epochs):
            for batch in torch.randperm(160).split(16):
                optimizer.zero_grad()
                cross_entropy(model(images[train][batch]), labels[train][batch]).backward()
                optimizer.step()
                steps += 1
        output_model = flare.FLModel(
            params=model.state_dict(),
            metrics={"accuracy": accuracy},
            meta={"NUM_STEPS_CURRENT_ROUND": steps},
        )
        flare.send(output_model)


if __name__ == "__main__":
    main()
