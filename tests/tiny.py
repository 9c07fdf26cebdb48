# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Models and participants small enough to compute by hand."""

import numpy as np
import torch
from torch import nn

from cfl_flare.methods import Update
from cfl_flare.params import Layout, Params
from cfl_flare.training.learner import Learner, Split, Workshop
from cfl_flare.training.settings import TrainSettings


class Coin(nn.Module):
    """Two logits for one feature, no bias. On x = 1 the logits are the two weights themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


LAYOUT = Layout.of(Coin())


def coin(a: float, b: float) -> Params:
    """The Coin with these two weights."""
    return Params(LAYOUT, np.array([a, b], np.float32))


def update(name: str, samples: int, slot: str, a: float, b: float, cluster: int | None = None) -> Update:
    """An update of the Coin."""
    return Update(name, samples, {slot: coin(a, b)}, cluster)


def initial(index: int) -> Params:
    """Untrained model number i: weights (i, -i)."""
    return coin(index, -index)


def learner(
    labels: list[int], lr: float = 1.0, steps: int = 1, memory: dict[str, Params] | None = None, **more
) -> Learner:
    """A participant whose features are all 1 and whose batches are its whole data."""
    settings = TrainSettings(lr=lr, momentum=0.0, local_steps=steps, batch_size=len(labels), **more)
    split = Split.of(np.ones((len(labels), 1), np.float32), np.array(labels))
    return Learner(Workshop(Coin, settings, seed=0), "p", split, split, {} if memory is None else memory)
