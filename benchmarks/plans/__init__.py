# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The papers whose tables are measured, and methods that they need beside the package's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from cfl_flare.core.params import Params
from cfl_flare.methods import IFCA, Download, Local, Update
from cfl_flare.training.learner import Learner
from plans import blood, family, hospitals, later, papers
from plans.plan import Plan


@dataclass(frozen=True, kw_only=True)
class OwnMajorityClass(Local):
    """Names a participant's most frequent training class whatever it sees: what accuracy is where labels are skewed."""

    name: ClassVar[str] = "own-majority-class"

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Nothing is trained."""
        return Update(learner.participant, learner.samples)

    def serve(self, learner: Learner, download: Download) -> Params:
        """A network whose head has no weights, and a bias for that class alone.

        The single output of a binary task is the logarithm of the odds of its labels, with one more of each.
        """
        untrained, counts = learner.initial(0), np.bincount(learner.labels, minlength=2)
        vector = untrained.vector.copy()
        for entry in untrained.layout.entries:
            if entry.head and len(entry.shape) > 1:
                entry.view(vector)[...] = 0
            elif entry.head:
                single = entry.size == 1
                entry.view(vector)[...] = (
                    np.log((counts[1] + 1) / (counts[0] + 1)) if single else np.eye(entry.size)[counts.argmax()]
                )
        return replace(untrained, vector=vector)


@dataclass(frozen=True, kw_only=True)
class BatchStatisticsIFCA(IFCA):
    """IFCA whose participants compare models in training mode: BatchNorm normalises by the batch at hand.

    The thesis's reference code never leaves that mode.
    """

    name: ClassVar[str] = "ifca-batch-statistics"

    @torch.no_grad()
    def choose(self, learner: Learner, download: Download) -> int:
        """The model of the smallest loss on the first samples, in batches of 64."""
        resident, data = learner._runtime.resident, learner._train
        samples = min(len(data), self.assignment_samples or len(data))
        losses = []
        for slot in self.slots:
            resident.load(download.model(slot))
            resident.module.train()
            parts = [slice(i, min(i + 64, samples)) for i in range(0, samples, 64) if samples - i > 1]
            total = sum(
                float(F.cross_entropy(resident.module(data.x[part]), data.y[part], reduction="sum")) for part in parts
            )
            losses.append(total)
        return losses.index(min(losses))


@dataclass(frozen=True, kw_only=True)
class RacedIFCA(IFCA):
    """IFCA whose participants race, and look up what they would have chosen by all samples.

    Attributes:
        compared: by participant and round: whether they differ, the passes of a model over a sample in the race, and
            those over all samples.
    """

    name: ClassVar[str] = "ifca-raced"
    compared: ClassVar[dict[tuple[str, int], tuple[bool, int, int]]] = {}

    def choose(self, learner: Learner, download: Download) -> int:
        """The model of the race."""
        models = [download.model(slot) for slot in download.choices.values()]
        key = learner.participant, learner.round
        if key not in self.compared:
            passes, predict = [0], learner._predict

            def counted(models: list[Params], x: torch.Tensor, **more: Any) -> torch.Tensor:
                passes[0] += len(models) * len(x)
                return predict(models, x, **more)

            vars(learner)["_predict"] = counted
            raced = learner.choice(models, self.assignment_samples, race=True)
            del vars(learner)["_predict"]
            every = len(models) * min(learner.samples, self.assignment_samples or learner.samples)
            differs = learner.choice(models, self.assignment_samples, race=False) != raced
            self.compared[key] = differs, passes[0], every
        return learner.choice(models, self.assignment_samples, race=True)


PLANS: dict[str, Plan] = {
    plan.name: plan
    for plan in (
        *(family.PLAN, family.CIFAR10, family.PAIRED, family.DIGITS, family.RESEARCH),
        *(papers.FEDAC, papers.SHARED_SETS, papers.FEDCUAU, papers.FEDDSMIC, papers.FEDDSMIC_BLOOD),
        *(blood.PLAN, blood.PRIVATE_LAYERS, blood.TEN, blood.PNEUMONIA),
        *(hospitals.STROKE, hospitals.HEART, hospitals.FLAMBY, hospitals.YEARS),
        *later.LATER,
    )
}
