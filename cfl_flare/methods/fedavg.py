# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One global model: FedAvg, FedProx, Finetune, Per-FedAvg; and Local, no federation at all.

* Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Agüera y Arcas: Communication-Efficient Learning
  of Deep Networks from Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629 (FedAvg).
* Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith: Federated Optimization in
  Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127 (FedProx).
* G. Cheng, K. Chadha, J. Duchi: Fine-tuning is Fine in Federated Learning, 2021, https://arxiv.org/abs/2108.07313
  (Finetune).
* Alireza Fallah, Aryan Mokhtari, Asuman Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A
  Model-Agnostic Meta-Learning Approach, NeurIPS 2020, https://arxiv.org/abs/2002.07948 (Per-FedAvg).
"""

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
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """Theta_g = sum psi_i theta_i (thesis Eq. 2.6).

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        return state.after(self.compute_means(state, updates))


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

    def list_terms(
        self,
        download: Download,
        slot: str,
    ) -> list[Term]:
        """mu/2 ||theta - Theta_g||^2, and any other penalty.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.

        Returns:
            The terms.
        """
        return [
            Pull.to(self.mu, download.model(slot)),
            *super().list_terms(download, slot),
        ]


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

    def finetune_served(
        self, learner: Learner, served: Params | Served
    ) -> Params | Served:
        """The global model after one more local round that is held near it."""
        if not self.pull:
            return super().finetune_served(learner, served)
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
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """Start the run.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        return ServerState(bank={})

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """Send a participant its models (distribution step).

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        return Download()

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Train the models that were sent (local update step).

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        near = [Pull.to(self.pull, learner.initial(0))] if self.pull else []
        start = self.serve(learner, download)
        learner.memory["model"] = learner.train(start, near)
        return Update(learner.participant, learner.samples)

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """Compute the new models (M-step).

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        return state.after({})

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params:
        """Choose what the participant predicts with.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
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
        """The learning rate eta of inner and personal steps.

        Args:
            learner: the participant's data, random streams and memory.
        """
        return learner.lr if self.inner_lr is None else self.inner_lr

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """w <- w - eps grad l(w - eta grad l(w; D); D') (FedDSMIC Alg. 2, Eq. 15-16), tau = the run's local steps.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        return self.train_slot(
            learner, download, download.slots[0], inner_lr=self.eta(learner)
        )

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params:
        """w - eta grad l(w; D), once or a few times (FedDSMIC Eq. 8).

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        # The served model, then gradient steps on the participant's own data.
        (model,) = Served.of(super().serve(learner, download)).models
        return learner.adapt_model(model, self.personal_steps, self.eta(learner))


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Adapting, FedAvg):
    """FedAvg of models trained by first-order MAML; each participant adapts the mean by a gradient step.

    It is Per-FedAvg (FO): the second-order term of the gradient is left out.
    """

    name: ClassVar[str] = "per-fedavg"
    paper: ClassVar[str] = "Fallah et al. 2020"
