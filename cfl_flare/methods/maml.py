# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""First-order MAML: models that are trained to be good after one gradient step on a participant's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cfl_flare.core.config import require
from cfl_flare.core.params import Params
from cfl_flare.methods.base import Method
from cfl_flare.methods.fedavg import FedAvg
from cfl_flare.methods.state import Download, Update
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Adapting(Method):
    """First-order MAML in place of SGD, for a method whose participants train one model and are served one.

    Participants predict with the model that is served after a few gradient steps on their own training data.

    Attributes:
        inner_lr: eta, the length of the inner steps and of the personal ones; None for the run's learning rate.
        personal_steps: gradient steps from the served model to a participant's own; 0 serves it as it is.
    """

    inner_lr: float | None = None
    personal_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        where, lr = f"method {self.name}", self.inner_lr
        require(lr is None or 0 <= lr < float("inf"), f"{where}: inner_lr = {lr} should be a number >= 0 or None")
        require(self.personal_steps >= 0, f"{where}: personal_steps = {self.personal_steps} should be >= 0")

    def eta(self, learner: Learner) -> float:
        """The length of an inner step in this round."""
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
    """FedAvg of models trained by first-order MAML; each participant tunes the mean by a gradient step of its own.

    It is Per-FedAvg (FO): the second-order term of the gradient is left out.
    """

    name: ClassVar[str] = "per-fedavg"
    paper: ClassVar[str] = "Fallah et al. 2020"
