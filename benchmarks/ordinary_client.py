# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE used the ordinary way, one client a participant: the training script of `flare_speed.py`'s comparison.

It does in a round what a participant of cfl_flare does: it measures the model on its test split, and takes ten steps.
"""

import argparse
from pathlib import Path

import numpy as np
import nvflare.client as flare
import torch
import torch.nn.functional as F

from cfl_flare.models import FashionCNN


def main() -> None:
    """Takes a model, measures it, trains it, sends it back, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shares", type=Path, required=True, help="folder of each client's own samples")
    args = parser.parse_args()
    torch.set_num_threads(1)

    flare.init()
    share = np.load(args.shares / f"{flare.get_site_name()}.npz", allow_pickle=False)
    arrays = {name: torch.from_numpy(share[name]) for name in ("x", "y", "test_x", "test_y")}
    model = FashionCNN((1, 28, 28), 10)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict({k: torch.as_tensor(v) for k, v in received.params.items()})
        model.eval()
        with torch.no_grad():
            predicted = torch.cat([model(part).argmax(1) for part in arrays["test_x"].split(64)])
        accuracy = (predicted == arrays["test_y"]).float().mean().item()
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        order = torch.cat([torch.randperm(len(arrays["y"])) for _ in range(1 + 320 // len(arrays["y"]))])
        for batch in order[:320].split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(arrays["x"][batch]), arrays["y"][batch]).backward()
            optimizer.step()
        flare.send(flare.FLModel(params=model.state_dict(), metrics={"accuracy": accuracy}))


if __name__ == "__main__":
    main()
