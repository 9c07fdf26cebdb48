# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The work of the league table: network, shares and local training, which every peer's script takes from here.

It needs numpy and torch alone, of any version, as each peer runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLUSTERS, BATCH, EPOCHS, LR = 4, 32, 2, 0.2
PARAMETERS = 11_274
MARK = "FOUND "  # as in common.py, which not every environment can import


class Net(nn.Module):
    """Two convolutions and a linear layer, for images ``(n, 1, 28, 28)``; ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.classifier = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(n, 10)``."""
        return self.classifier(self.features(x).flatten(1))


class Share(NamedTuple):
    """A participant's samples: images float32 ``(n, 1, 28, 28)`` in [-1, 1], as cfl_flare has them, labels int64."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@cache
def shares_of(path: Path) -> list[Share]:
    """The participants' shares, from the file that ``league.py`` writes."""
    arrays = np.load(path, allow_pickle=False)
    parts = []
    for split in ("train", "test"):
        x = torch.from_numpy(arrays[f"{split}_images"]).float().div(127.5).sub(1).unsqueeze(1)
        y, owner = (torch.from_numpy(arrays[f"{split}_{name}"]).long() for name in ("labels", "owner"))
        parts.append([(x[owner == i], y[owner == i]) for i in range(int(owner.max()) + 1)])
    return [Share(*train, *test) for train, test in zip(*parts)]


def train(model: nn.Module, share: Share) -> None:
    """A participant's round of SGD."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(share.y)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(share.x[batch]), share.y[batch]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, share: Share) -> float:
    """On the share's test samples."""
    model.eval()
    return float((model(share.test_x).argmax(1) == share.test_y).float().mean())


def bare(shares: Sequence[Share]) -> float:
    """CPU seconds of a round of local training and evaluation, in a torch loop without any library."""
    model = Net()
    train(model, shares[0])
    start = time.process_time()
    for share in shares:
        train(model, share)
        accuracy(model, share)
    return time.process_time() - start


class Order(NamedTuple):
    """What a script runs: a method with one of its libraries."""

    library: str
    method: str
    shares: Path
    rounds: int


def order(*rows: str) -> Order:
    """The order on the command line; rows are ``LIBRARY-METHOD``."""
    options = argparse.ArgumentParser()
    options.add_argument("row", choices=rows)
    options.add_argument("shares", type=Path)
    options.add_argument("rounds", type=int)
    given = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Order(*given.row.split("-"), given.shares.resolve(), given.rounds)


def tell(served: Sequence[float], parameters: int, *packages: str) -> None:
    """Prints the mean of the participants' accuracies after the last round, and the packages' versions."""
    if parameters != PARAMETERS:
        raise ValueError(f"the network has {parameters} parameters; it should have {PARAMETERS}, as everyone's")
    facts = {"accuracy": float(np.mean(served)), "versions": {name: version(name) for name in packages}}
    print(MARK + json.dumps(facts), flush=True)


def size(model: nn.Module) -> int:
    """The number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(MARK + json.dumps({"bare_cpu_seconds": bare(shares_of(Path(sys.argv[1])))}), flush=True)
