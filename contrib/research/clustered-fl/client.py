# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Client-side training: handwritten digits, which half of the sites label by another scheme."""

import argparse

import nvflare.client as flare
import torch
from model import DigitNet
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

TRAIN = 140  # of a site's 179 images


def load_share(site: str, sites: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A site's images and labels. Every second site names the digits by another scheme."""
    index = int(site.rpartition("-")[2]) - 1
    digits = load_digits()
    images = torch.tensor(digits.images[index::sites] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[index::sites])
    return images, (labels + 5) % 10 if index % 2 == 1 else labels


@torch.no_grad()
def measure(model: DigitNet, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy."""
    logits = model(images)
    return cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()


def main() -> None:
    """Receives a model, evaluates it, trains it, sends it back, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=10, help="the digits are dealt to so many sites")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    flare.init()
    images, labels = load_share(flare.get_site_name(), args.parts)
    train, test = (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])
    model = DigitNet()
    while flare.is_running():
        input_model = flare.receive()
        if input_model is None:
            break
        model.load_state_dict(input_model.params)
        metrics = {"loss": measure(model, *train)[0], "accuracy": measure(model, *test)[1]}
        if flare.is_evaluate():  # IFCA compares the loss of several models, on training data
            flare.send(flare.FLModel(metrics=metrics))
            continue
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
        batches = [batch for _ in range(args.epochs) for batch in torch.randperm(TRAIN).split(20)]
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(model(train[0][batch]), train[1][batch]).backward()
            optimizer.step()
        meta = {"NUM_STEPS_CURRENT_ROUND": len(batches)}
        flare.send(flare.FLModel(params=model.state_dict(), metrics=metrics, meta=meta))


if __name__ == "__main__":
    main()
