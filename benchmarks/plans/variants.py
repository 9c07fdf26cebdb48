# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods changed to look like other people's code, to find out where figures differ; no part of the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from cfl_flare.methods import IFCA, Download
from cfl_flare.training.learner import Learner


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
