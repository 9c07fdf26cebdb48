# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each site runs: segmentation with MONAI and FLARE's Client API. Its training does not know of scanners.

Scans are synthetic: lesions are bright and cysts dark with one scanner, and the other way round with the other.
"""

import argparse

import numpy as np
import nvflare.client as flare
import torch
from model import LesionNet
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks import one_hot

BATCH = 8
SIZE = 48
Split = tuple[torch.Tensor, torch.Tensor]


def ellipse(rng: np.random.Generator) -> np.ndarray:
    """A mask of an ellipse somewhere in the image."""
    (x, y), (a, b) = rng.uniform(10, SIZE - 10, 2), rng.uniform(4, 9, 2)
    rows, columns = np.ogrid[:SIZE, :SIZE]
    return ((rows - x) / a) ** 2 + ((columns - y) / b) ** 2 <= 1


def scan(rng: np.random.Generator, lesion_is_bright: bool) -> tuple[np.ndarray, np.ndarray]:
    """An image with a lesion and a cyst, and the lesion's mask."""
    cyst, lesion = ellipse(rng), ellipse(rng)
    contrast = 0.4 if lesion_is_bright else -0.4
    image = 0.5 - contrast * cyst
    image[lesion] = 0.5 + contrast
    image += rng.normal(0, 0.15, image.shape)
    return image.astype(np.float32), lesion.astype(np.float32)


def load_site(site: str, samples: int) -> dict[str, Split]:
    """A site's scans and masks, of shape (scans, 1, 48, 48); every second site has the other scanner."""
    index = int(site.rpartition("-")[2]) - 1
    splits = {}
    for number, (split, count) in enumerate({"train": samples, "test": samples // 4}.items()):
        rng = np.random.default_rng([index, number])
        images, masks = zip(*(scan(rng, lesion_is_bright=index % 2 == 0) for _ in range(count)), strict=True)
        splits[split] = tuple(torch.from_numpy(np.stack(arrays))[:, None] for arrays in (images, masks))
    return splits


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
