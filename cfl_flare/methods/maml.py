# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""First-order MAML: models trained to predict well after one gradient step on a participant's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cfl_flare.core.params import Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.fedavg import FedAvg
from cfl_flare.methods.state import Download, Update
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Adapting(Method):
    """First-order MAML in place of SGD, for a method whose participants train one model and are served one.

    A participant adapts the model that it is served by a few gradient steps on its own training data, and predicts
    with the result.
    """

    inner_lr: float | None = setting(
        None, help="eta, the learning rate of inner and personal steps; None for the run's learning rate", ge=0
    )
    personal_steps: int = setting(
        1, help="gradient steps from the served model to a participant's own; 0 serves it unchanged", ge=0
    )

    def eta(self, learner: Learner) -> float:
        """The learning rate of an inner step in this round."""
        return learner.lr if self.inner_lr is None else self.inner_lr

    def local_update(self, learner: Learner, download: Download) -> Update:
        """w <- w - eps grad l(w - eta grad l(w; D); D') (FedDSMIC Alg. 2, Eq. 15-16), tau = the run's local steps."""
        return self.trained(learner, download, download.slots[0], inner_lr=self.eta(learner))

    def serve(self, learner: Learner, download: Download) -> Params:
        """w - eta grad l(w; D), once or a few times (FedDSMIC Eq. 8)."""
        (model,) = Served.of(super().serve(learner, download)).models
        return learner.adapted(model, self.personal_steps, self.eta(learner))


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Adapting, FedAvg):
    """FedAvg of models trained by first-order MAML; each participant adapts the mean by a gradient step.

    It is Per-FedAvg (FO): the second-order term of the gradient is left out.
    """

    name: ClassVar[str] = "per-fedavg"
    paper: ClassVar[str] = "Fallah et al. 2020"
