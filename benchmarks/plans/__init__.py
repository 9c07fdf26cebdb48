# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The papers whose tables are measured, and the baseline that they need beside the package's methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.core.params import Params
from cfl_flare.methods import Download, Local, Update
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


PLANS: dict[str, Plan] = {
    plan.name: plan
    for plan in (
        *(family.PLAN, family.CIFAR10, family.PAIRED, family.DIGITS, family.RESEARCH),
        *(papers.SHARED_SETS, papers.FEDDSMIC),
        *(blood.PLAN, blood.PRIVATE_LAYERS, blood.TEN, blood.PNEUMONIA),
        *(hospitals.STROKE, hospitals.HEART, hospitals.FLAMBY),
        *later.LATER,
    )
}
