# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods that leave a part of the model, or a whole one, with each participant: FedPer, FedBABU, Ditto, CGPFL.

* Manoj Ghuhan Arivazhagan, Vinay Aggarwal, Aaditya Kumar Singh, Sunav Choudhary: Federated Learning with
  Personalization Layers, 2019, https://arxiv.org/abs/1912.00818 (FedPer).
* Jaehoon Oh, Sangmook Kim, Se-Young Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification,
  ICLR 2022, https://arxiv.org/abs/2106.06042 (FedBABU).
* Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith: Ditto: Fair and Robust Federated Learning through
  Personalization, ICML 2021, https://arxiv.org/abs/2012.04221 (Ditto).
* Xueyang Tang, Song Guo, Jingcai Guo: Personalized Federated Learning with Contextualized Generalization, IJCAI 2022,
  https://doi.org/10.24963/ijcai.2022/311 (CGPFL).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.fedavg import FedAvg
from cfl_flare.methods.slots import BACKBONE, GLOBAL, require_part
from cfl_flare.methods.state import Download, ServerState, Traits, Update, Weighting
from cfl_flare.methods.wecfl import FeSEM
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Pull, Term
from cfl_flare.training.privacy import Queries

HEAD = "head"
PERSONAL = "personal"


@dataclass(frozen=True, kw_only=True)
class BackboneOnly(FedAvg):
    """FedAvg of the backbones alone: the common part of FedPer and FedBABU.

    Penalties act on the whole model from which a participant starts its round.
    """

    # The part of the model that does not train.
    frozen: ClassVar[str] = ""

    @property
    def traits(self) -> Traits:
        return replace(
            super().traits, starts_on_site=True, whole_models=False, keeps_head=True
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        alone = [p.name for p in self.penalties if p.scope == "head"]
        reason = f"penalties = {alone} with scope = 'head' act on a head that does not travel"
        require(not alone, f"method {self.name}: {reason}; take scope = 'backbone'")

    def check(
        self,
        layout: Layout,
        rounds: int | None = None,
    ) -> None:
        """Check that the method fits the model and the number of rounds.

        Args:
            layout: the names and shapes of a model's arrays.
            rounds: the number of rounds of the run, if it is known.
        """
        super().check(layout, rounds)
        refusal = f"method {self.name}: only the backbone travels, but {{}}; take fedavg, or a model with more layers"
        require_part(layout, "backbone", refusal)

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """The backbone of the run's initial model; its head stays on the server, for `list_models`.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        model = initial(0)
        return ServerState(
            {
                BACKBONE: model.take(model.layout.backbone),
                HEAD: model.take(model.layout.head),
            }
        )

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
        return Download((BACKBONE,))

    def head(self, learner: Learner) -> Params:
        """The participant's head: that of the run's initial model, the same for all and never trained.

        Args:
            learner: the participant's data, random streams and memory.
        """
        initial = learner.initial(0)
        return initial.take(initial.layout.head)

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
        return learner.initial(0).layout.join(
            download.model(BACKBONE), self.head(learner)
        )

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Trains the whole model, and sends the difference of its backbone.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        start = self.serve(learner, download)
        terms = self.list_terms(Download((GLOBAL,), (start,)), GLOBAL)
        trained = learner.train(start, terms, frozen=self.frozen)
        moved = (trained - start).take(start.layout.backbone)
        return Update(learner.participant, learner.samples, {BACKBONE: moved})

    def list_models(
        self,
        state: ServerState,
        layout: Layout,
    ) -> dict[str, Served]:
        """The global backbone with the head of the run's initial model.

        Args:
            state: the server's state between two rounds.
            layout: the names and shapes of a model's arrays.

        Returns:
            What predicts, by name.
        """
        head = state.bank[HEAD]
        return {
            GLOBAL: Served(
                (layout.join(state.bank[BACKBONE], head),),
                untrained=self.untrained(head),
            )
        }

    def untrained(self, head: Params) -> frozenset[str]:
        """The arrays of the head that the server has, if participants train heads of their own.

        Args:
            head: the head at its start.
        """
        return frozenset() if self.frozen == HEAD else frozenset(head.arrays())


@dataclass(frozen=True, kw_only=True)
class FedPer(BackboneOnly):
    """FedAvg with personalization layers: the head never leaves its site (Arivazhagan et al. 2019, Alg. 1 and 2).

    A participant starts with the head of the run's initial model, which it builds itself, and keeps its own from then
    on. A run leaves ``global``, the trained backbone with that untrained head, from which later participants start. It
    has to be trained before it can predict.
    """

    name: ClassVar[str] = "fedper"
    paper: ClassVar[str] = "Arivazhagan et al. 2019"

    def head(self, learner: Learner) -> Params:
        """Its own; at first that of the run's initial model.

        Args:
            learner: the participant's data, random streams and memory.
        """
        return learner.memory.get(HEAD) or super().head(learner)

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Trains the global backbone and its own head together, keeps the head (Alg. 2).

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        update = super().local_update(learner, download)
        trained = learner.trained
        assert isinstance(trained, Params)
        learner.memory[HEAD] = trained.take(learner.initial(0).layout.head)
        return update


@dataclass(frozen=True, kw_only=True)
class FedBABU(BackboneOnly):
    """The body aggregated, the head frozen at its random start, the whole fine-tuned before use (Oh et al. 2022).

    Every site builds the head from the run's seed, so only the backbone travels. A run leaves ``global``, the trained
    backbone with that head.
    """

    name: ClassVar[str] = "fedbabu"
    paper: ClassVar[str] = "Oh et al. 2022"
    frozen: ClassVar[str] = "head"

    finetune: bool = setting(
        True,
        help="train the whole model for one more local round before predicting (Alg. 1, evaluation); without it, the "
        "paper's initial accuracy is measured",
    )

    @property
    def label(self) -> str:
        """Its name where it fine-tunes, as in the paper; ``fedbabu-initial`` where it does not."""
        return "-".join(
            [
                self.name,
                *(p.short for p in self.penalties),
                *(["initial"] * (not self.finetune)),
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """FedAvg, and a personal model v_i for each participant, held near the global one (Li et al. 2021)."""

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al. 2021"

    lam: float = setting(
        1.0,
        help="lambda of lambda/2 ||v_i - w||^2; the paper tunes it among 0.1, 1 and 2, and takes 1 where it cannot. 0 "
        "trains v_i alone",
        ge=0,
    )

    @property
    def traits(self) -> Traits:
        return replace(
            super().traits, starts_on_site=True, queries=Queries(trainings=2)
        )

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """FedAvg's step, with any penalty; then a step of v_i, pulled towards the w that was sent (Alg. 1).

        v_i starts at the run's initial model, and has a momentum of its own.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        update = super().local_update(learner, download)
        before = learner.memory.get(PERSONAL) or learner.initial(0)
        view = learner.part(PERSONAL)
        learner.memory[PERSONAL] = view.train(
            before, [Pull.to(self.lam, download.models[0])]
        )
        learner.trained = view.trained
        return update

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params | Served:
        """v_i; the global model for a participant that has not trained yet.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        personal = learner.memory.get(PERSONAL)
        if personal is None:
            return download.models[0]
        return Served((personal,), parts=(PERSONAL,))

    def finetune_served(
        self,
        learner: Learner,
        served: Params | Served,
    ) -> Params | Served:
        """v_i after one more local round without its pull, with its own momentum.

        Args:
            learner: the participant's data, random streams and memory.
            served: the models that the participant predicts with.

        Returns:
            The tuned models.
        """
        return super().finetune_served(learner.part(PERSONAL), served)


@dataclass(frozen=True, kw_only=True)
class OwnModel(Method):
    """A participant keeps a model of its own, sends it, and predicts with it: CGPFL and FedAC.

    It is sent its cluster's centre, from which it starts in its first round, or if its memory was lost.
    """

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Trains its own model, and sends it as a difference from the centre.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        slot = download.slots[0]
        centre = download.models[0]
        trained = learner.train(
            self.serve(learner, download), self.list_terms(download, slot)
        )
        learner.memory[PERSONAL] = trained
        return Update(learner.participant, learner.samples, {slot: trained - centre})

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
        return learner.memory.get(PERSONAL) or download.models[0]


@dataclass(frozen=True, kw_only=True)
class CGPFL(OwnModel, FeSEM):
    """Contextualised generalisation: personal models, each held near the k-means centre of its cluster."""

    name: ClassVar[str] = "cgpfl"
    paper: ClassVar[str] = "Tang et al. 2022"

    weighting: Weighting = (
        "uniform"  # as FeSEM; the field would come from OwnModel otherwise
    )
    cluster_on: str | tuple[str, ...] = "all"
    lam: float = setting(
        1.0, help="lambda of lambda/2 ||theta_i - Omega_c(i)||^2", ge=0
    )

    @property
    def traits(self) -> Traits:
        """A participant is sent its own cluster's centre alone."""
        return replace(super().traits, shares_centres=False)

    def list_terms(
        self,
        download: Download,
        slot: str,
    ) -> list[Term]:
        """The pull towards its centre; there is none in its first round.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.

        Returns:
            The terms.
        """
        near = [Pull.to(self.lam, download.model(slot))] if slot != GLOBAL else []
        return [*near, *super().list_terms(download, slot)]
