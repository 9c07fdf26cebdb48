# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A user's own model and data, as a job names them by class path."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from nvflare.apis.analytix import AnalyticsData
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import ReservedKey
from nvflare.app_common.widgets.streaming import AnalyticsReceiver

from cfl_flare.core.errors import DataError
from cfl_flare.core.params import weighted_mean
from cfl_flare.data import DataSource, Digits, Samples
from cfl_flare.data.images import Folder
from cfl_flare.methods import GLOBAL, Assignment, FedAvg, ServerState, Update
from cfl_flare.models import MLP
from cfl_flare.training.tasks import Binary


class Touchy(MLP):
    """An MLP that breaks on about one in five participants and rounds, and gives NaN on as many others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.initial_seed() % 5 == 2:
            raise RuntimeError("the scanner's cable came off")
        logits = super().forward(x)
        return logits * float("nan") if self.training and torch.initial_seed() % 5 in (0, 3) else logits


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


class SmallAtSites2And3(DataSource):
    """A few of the digits: at site-2 none to test with, at site-3 zeros alone."""

    def load(self) -> tuple[Samples, Samples]:
        train, test = (s.take(np.flatnonzero(s.y < 3)[:60]) for s in Digits().load())
        if any("site-2" in argument for argument in sys.argv):
            return train.take(np.arange(10)), test.take(np.arange(0))
        if any("site-3" in argument for argument in sys.argv):
            train, test = (s.take(np.flatnonzero(s.y == 0)[:9]) for s in (train, test))
        return train, test


class FoldersOfSites(DataSource):
    """A folder of images by class for each site, as its own folder holds it."""

    def __init__(self, root: str, classes: Sequence[str] | None = None):
        self.root = root
        self.classes = classes

    @property
    def agreed_classes(self) -> tuple[str, ...]:
        return tuple(self.classes or ())

    def load(self) -> tuple[Samples, Samples]:
        words = " ".join(sys.argv)
        (site,) = [folder for folder in Path(self.root).iterdir() if folder.name in words]
        return Folder(str(site), classes=self.classes).load()


@dataclass(frozen=True, kw_only=True)
class Cautious(FedAvg):
    """FedAvg whose server moves by a share of the way."""

    name: ClassVar[str] = "cautious"
    paper: ClassVar[str] = "none"

    share: float = 0.9

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        old = state.bank[GLOBAL]
        mean = self.compute_means(state, updates)[GLOBAL]
        return state.after({GLOBAL: weighted_mean([(old, 1 - self.share), (mean, self.share)], otherwise=old)})


class Received(DXOFilter):
    """At the server: writes down what each model looks like that arrives."""

    def __init__(self, path: str):
        super().__init__([DataKind.WEIGHTS, DataKind.WEIGHT_DIFF], [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
        self.path = path

    def process_dxo(self, dxo: DXO, shareable, fl_ctx) -> None:
        if not dxo.data:
            return
        values = np.concatenate([np.ravel(array) for array in dxo.data.values()])
        steps = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
        task = shareable.get_header(ReservedKey.TASK_NAME)
        seen = {"task": task, "names": sorted(dxo.data), "steps": steps, "largest": float(np.abs(values).max())}
        with open(self.path, "a") as f:
            f.write(json.dumps({**seen, "moved": float((values != 0).mean())}) + "\n")


class Series(AnalyticsReceiver):
    """At the server: writes down what experiment tracking is given."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def initialize(self, fl_ctx) -> None:
        Path(self.path).touch()

    def save(self, fl_ctx, shareable, record_origin: str) -> None:
        data = AnalyticsData.from_dxo(from_shareable(shareable))
        with open(self.path, "a") as f:
            f.write(json.dumps({"tag": data.tag, "value": data.value, "step": data.step}) + "\n")

    def finalize(self, fl_ctx) -> None:
        pass


class Parity(DataSource):
    """The digits, and whether each is odd."""

    def load(self) -> tuple[Samples, Samples]:
        return tuple(Samples(s.x, s.y % 2) for s in Digits().load())


@dataclass(frozen=True)
class Hinge(Binary):
    """Whether a digit is odd, by the hinge loss of a support vector machine."""

    name: ClassVar[str] = "hinge"

    margin: float = 1.0

    def loss(self, outputs, targets, weights=None, smoothing=0.0):
        return torch.relu(self.margin - outputs[:, 0] * (2 * targets - 1)).mean()
