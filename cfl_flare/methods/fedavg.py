# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods with one global model, or none: FedAvg, FedProx, Finetune, Local."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from cfl_flare.core.config import require
from cfl_flare.core.params import Params
from cfl_flare.methods.base import Method
from cfl_flare.methods.penalties import Proximal
from cfl_flare.methods.state import Assignment, Download, ServerState, Update
from cfl_flare.training.learner import Learner
from cfl_flare.training.penalties import Term


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging: one model for all, the weighted mean of the participants' (thesis Eq. 2.6)."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al. 2017"

    @property
    def sums(self) -> bool:
        """One mean is all there is."""
        return True

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Theta_g = sum psi_i theta_i (thesis Eq. 2.6)."""
        return state.after(self.means(state, updates))


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose participants are held near the global model by mu/2 ||theta - Theta_g||^2.

    Attributes:
        mu: strength of the proximal term; FedCUAU's experiments use 0.001.
    """

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"

    mu: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.mu < float("inf"), f"method fedprox: mu = {self.mu} should be >= 0")

    def terms(self, learner: Learner, download: Download, own: str) -> list[Term]:
        """mu/2 ||theta - Theta_g||^2, beside any other penalty."""
        return Proximal(mu=self.mu).terms(download, own, 0) + super().terms(learner, download, own)


@dataclass(frozen=True, kw_only=True)
class Finetune(FedAvg):
    """FedAvg, and each participant trains the global model for one more local round before it predicts with it."""

    name: ClassVar[str] = "finetune"
    paper: ClassVar[str] = "Cheng et al. 2021; thesis sec. 7.4"

    finetune: bool = True

    @property
    def label(self) -> str:
        """Its name says it."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """No federation: each participant trains alone, and its model never leaves it."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "baseline of all five papers"
    no_penalties: ClassVar[str] = "have no common model to hold on to; leave them out"
    starts_on_site: ClassVar[bool] = True

    def start(self, initial: Callable[[int], Params]) -> ServerState:
        """Nothing is kept on the server; every site builds the same untrained model from the run's seed."""
        return ServerState(bank={})

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Nothing is sent."""
        return Download()

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Goes on with its own model."""
        learner.memory["model"] = learner.train(self.serve(learner, download))
        return Update(learner.participant, learner.samples)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Nothing to average."""
        return state.after({})

    def serve(self, learner: Learner, download: Download) -> Params:
        """Its own model."""
        return learner.memory.get("model") or learner.initial(0)
