# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One global model: FedAvg, FedProx, Finetune, Per-FedAvg; and Local, no federation at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from cfl_flare.core.params import Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.state import (
    PLAIN,
    Assignment,
    Download,
    ServerState,
    Traits,
    Update,
)
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Pull, Term
from cfl_flare.training.privacy import Queries


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging: one model for all, the weighted mean of the participants' (thesis Eq. 2.6)."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al. 2017"

    @property
    def traits(self) -> Traits:
        return replace(PLAIN, averages_only=True)

    def aggregate(
        self, state: ServerState, updates: Sequence[Update], assignment: Assignment
    ) -> ServerState:
        """Theta_g = sum psi_i theta_i (thesis Eq. 2.6)."""
        return state.after(self.means(state, updates))


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose participants are held near the global model by mu/2 ||theta - Theta_g||^2."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"

    mu: float = setting(
        0.001,
        help="strength of the proximal term; FedCUAU's experiments use 0.001",
        ge=0,
    )

    @property
    def traits(self) -> Traits:
        """Its term is one that scripts of FLARE's know."""
        return replace(super().traits, proximal=self.mu)

    def terms(self, download: Download, slot: str) -> list[Term]:
        """mu/2 ||theta - Theta_g||^2, and any other penalty."""
        return [Pull.to(self.mu, download.model(slot)), *super().terms(download, slot)]


@dataclass(frozen=True, kw_only=True)
class Finetune(FedAvg):
    """FedAvg, and each participant trains the global model for one more local round before it predicts with it."""

    name: ClassVar[str] = "finetune"
    paper: ClassVar[str] = "Cheng et al. 2021; thesis sec. 7.4"

    finetune: bool = True
    pull: float = setting(
        0.0,
        help="lambda of lambda/2 ||theta_i - Theta_g||^2 in the last round, which holds a model near the global one",
        ge=0,
    )

    @property
    def label(self) -> str:
        return self.name

    def finetuned(self, learner: Learner, served: Params | Served) -> Params | Served:
        """The global model after one more local round that is held near it."""
        if not self.pull:
            return super().finetuned(learner, served)
        (model,) = Served.of(served).models
        near = [Pull.to(self.pull, model)]
        return learner.train(
            model, near, purpose="finetune", epochs=self.finetune_epochs
        )


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """No federation: each participant trains alone, and its model never leaves it."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "baseline (Li et al. 2022, Table 2)"

    pull: float = setting(
        0.0,
        help="lambda of lambda/2 ||theta_i - theta_0||^2, which holds a model near the untrained one",
        ge=0,
    )

    @property
    def traits(self) -> Traits:
        refusal = "need a common model, and there is none; leave them out"
        return Traits(
            starts_on_site=True,
            serves_one=True,
            no_penalties=refusal,
            queries=Queries(),
        )

    def start(
        self, initial: Callable[[int], Params], participants: Sequence[str] = ()
    ) -> ServerState:
        return ServerState(bank={})

    def distribute(self, state: ServerState, participant: str) -> Download:
        return Download()

    def local_update(self, learner: Learner, download: Download) -> Update:
        near = [Pull.to(self.pull, learner.initial(0))] if self.pull else []
        start = self.serve(learner, download)
        learner.memory["model"] = learner.train(start, near)
        return Update(learner.participant, learner.samples)

    def aggregate(
        self, state: ServerState, updates: Sequence[Update], assignment: Assignment
    ) -> ServerState:
        return state.after({})

    def serve(self, learner: Learner, download: Download) -> Params:
        return learner.memory.get("model") or learner.initial(0)


@dataclass(frozen=True, kw_only=True)
class Adapting(Method):
    """First-order MAML in place of SGD, for a method whose participants train one model and are served one.

    A participant adapts the model that it is served by a few gradient steps on its own training data, and predicts
    with the result.
    """

    inner_lr: float | None = setting(
        None,
        help="eta, the learning rate of inner and personal steps; None for the run's learning rate",
        ge=0,
    )
    personal_steps: int = setting(
        1,
        help="gradient steps from the served model to a participant's own; 0 serves it unchanged",
        ge=0,
    )

    @property
    def traits(self) -> Traits:
        return replace(super().traits, queries=None)

    def eta(self, learner: Learner) -> float:
        return learner.lr if self.inner_lr is None else self.inner_lr

    def local_update(self, learner: Learner, download: Download) -> Update:
        """w <- w - eps grad l(w - eta grad l(w; D); D') (FedDSMIC Alg. 2, Eq. 15-16), tau = the run's local steps."""
        return self.trained(
            learner, download, download.slots[0], inner_lr=self.eta(learner)
        )

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
