# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A user's own model and data, as a job names them by class path."""

import sys
import time

import torch

from cfl_flare.data import DataSource, Digits, Samples
from cfl_flare.errors import DataError
from cfl_flare.models import MLP


class Touchy(MLP):
    """An MLP that breaks on about one in five participants and rounds, and gives NaN on as many others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.initial_seed() % 5 == 0:
            raise RuntimeError("the scanner's cable came off")
        logits = super().forward(x)
        return logits * float("nan") if self.training and torch.initial_seed() % 5 == 1 else logits


class HalfTheDigits(DataSource):
    """Every other digit."""

    def __init__(self, offset: int = 0):
        self.offset = offset

    def load(self) -> tuple[Samples, Samples]:
        train, test = Digits().load()
        return Samples(train.x[self.offset :: 2], train.y[self.offset :: 2]), test


class AbsentAtSite2(DataSource):
    """The digits, but not at site-2."""

    def load(self) -> tuple[Samples, Samples]:
        if any("site-2" in argument for argument in sys.argv):
            raise DataError("the archive at /mnt/ward2/archive.npz is not mounted")
        return Digits().load()


class SlowMLP(MLP):
    """An MLP whose training step takes a fifth of a second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(0.2)
        return super().forward(x)
