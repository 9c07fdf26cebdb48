# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clustered additive modelling: a global model added to those of any clustering method (IFCA-CAM, FeSEM-CAM).

* Jie Ma, Tianyi Zhou, Guodong Long, Jing Jiang, Chengqi Zhang: Structured Federated Learning through Clustered
  Additive Modeling, NeurIPS 2023. Equations without another source are those of this paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params, weighted_mean
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.penalties import Proximal
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.methods.state import (
    Assignment,
    Counts,
    Download,
    Mapped,
    Plan,
    ServerState,
    Traits,
    Update,
)
from cfl_flare.methods.wrapper import Wrapper
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner

SHARED = "shared"
# The traits that CAM needs of its base, and what else a base is that lacks them.
NEEDED = {
    "shares_centres": "has no fixed number of centres that all may be sent",
    "serves_one": "predicts with several models",
    "whole_models": "has its models in parts, as with shared_backbone = True, but only whole ones can be added",
    "takes_penalties": "trains without penalties, and lam > 0 is one",
    "compares_models": "does not compare models, which are all that its warm-up has",
}


@dataclass(frozen=True, kw_only=True)
class CAM(Wrapper):
    """Clustered additive modelling: a participant's prediction is h(x; Theta_g) + f(x; Theta_c(i)), logits added.

    It wraps a method that clusters: that method assigns, trains and averages the Theta_k as usual, but always sees
    the sum with a frozen Theta_g. Theta_g in turn is trained on the sum with a frozen Theta_c(i).

    The warm-up trains one part alone: Theta_g by FedAvg where participants choose their cluster (IFCA-CAM), each
    participant's theta_i by itself where the server clusters (FeSEM-CAM).
    """

    name: ClassVar[str] = "cam"
    paper: ClassVar[str] = "Ma et al. 2023 (NeurIPS), thesis ch. 7"

    base: Method = setting(
        help="the method that clusters, with its own weighting and penalties"
    )
    warmup: int = setting(
        10, help="rounds in which only one of the two parts is trained", ge=0
    )
    updates: Literal["simultaneous", "alternating"] = setting(
        "simultaneous",
        help="simultaneous, both parts in each round, neither sees the other's new value (FedSim), or alternating, the "
        "clusters' part and then the global one, in two rounds that count as one of the paper's (sec. 3.1)",
        choices=("simultaneous", "alternating"),
    )
    step: Literal["normalised", "damped"] = setting(
        "normalised",
        help="normalised, a centre becomes its members' mean (thesis Eq. 7.6), or damped, it moves only its members' "
        "share of all samples towards it (NeurIPS Eq. 6)",
        choices=("normalised", "damped"),
    )
    lam: float = setting(
        0.01,
        help="lambda/2 ||theta_i - Theta_c(i)||^2 is added to the loss, where the server clusters (Eq. 12)",
        ge=0,
    )

    def __post_init__(self) -> None:
        clusters = isinstance(self.base, Method) and self.base.clusters > 0
        require(
            clusters,
            f"method cam: base = {self.base!r} should be a method that clusters: ifca, fesem or wecfl",
        )
        super().__post_init__()
        traits = self.base.traits
        if self.chooses:
            compared = ()
        else:
            compared = ("compares_models", *(("takes_penalties",) if self.lam else ()))
        for trait in traits.lacking(
            "shares_centres", "serves_one", "whole_models", *compared
        ):
            lacks = f"base = {self.base.label} {NEEDED[trait]}, or does not declare the trait {trait}"
            raise ConfigError(
                f"method cam: {lacks}; leave that out, or take ifca, fesem or wecfl"
            )
        sums = traits.indicator is None
        require(
            sums,
            f"method cam: base = {self.base.label!r} compares whole models, not sums; take another",
        )

    @property
    def traits(self) -> Traits:
        """A participant trains the common model as well; what it would choose by twice has one account."""
        base = self.base.traits.queries
        twice = (
            None
            if base is None or base.choices
            else replace(base, trainings=base.trainings + 1)
        )
        return replace(super().traits, queries=twice)

    @property
    def inner(self) -> tuple[Method, ...]:
        return (self.base,)

    def view_state(
        self,
        state: ServerState,
        i: int,
    ) -> ServerState:
        """All but Theta_g; rounds count where the base clusters.

        Args:
            state: the server's state between two rounds.
            i: the number of the part.

        Returns:
            The state as the part sees it.
        """
        clustered = sum(
            self.trains(r)[0] and not self.alone(r) for r in range(state.round)
        )
        return replace(
            state,
            bank={k: m for k, m in state.bank.items() if k != SHARED},
            round=clustered,
        )

    def view_update(
        self,
        i: int,
        update: Update,
    ) -> Update:
        """An update without the difference of Theta_g.

        Args:
            i: the number of the part.
            update: the update of one participant.

        Returns:
            The update as the part sees it.
        """
        return replace(
            update,
            diffs={slot: diff for slot, diff in update.diffs.items() if slot != SHARED},
        )

    @property
    def label(self) -> str:
        return f"{self.base.label}-cam" + "-finetune" * self.finetune

    @property
    def clustering(self) -> Method:
        """The base, with the k-means objective as a term of the participants' loss (Eq. 12)."""
        if self.chooses or not self.lam:
            return self.base
        return replace(
            self.base, penalties=(*self.base.penalties, Proximal(mu=self.lam))
        )

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
        if rounds is None:
            return
        left = rounds - self.warmup
        require(
            left > 0,
            f"method cam: warmup = {self.warmup} leaves none of {rounds} rounds; lower it",
        )
        paired = self.updates == "simultaneous" or left % 2 == 0
        each = "updates = 'alternating' takes two rounds, one for the clusters' part and one for the global one"
        odd = f"but {left} are left after warmup = {self.warmup}"
        require(paired, f"method cam: {each}, {odd}; take {rounds + 1} rounds")

    def plan(self, state: ServerState) -> Plan:
        """As the base; where the parts alternate, the same participants train one and then the other.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        plan = super().plan(state)
        later = state.round - self.warmup
        second = self.updates == "alternating" and later > 0 and later % 2 == 1
        return replace(plan, draw=state.round - 1) if second else plan

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """The base's models, and Theta_g from a seed of its own.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        state = self.base.start(initial, participants)
        common = f"method cam: base = {self.base.label!r} has no common model ({GLOBAL!r}), which ends the warm-up"
        require(self.chooses or GLOBAL in state.bank, f"{common}; take fesem or wecfl")
        return replace(
            state, bank={**state.bank, SHARED: initial(max(1, self.clusters))}
        )

    @property
    def chooses(self) -> bool:
        """Participants choose their cluster, as in IFCA-CAM; else the server clusters, as in FeSEM-CAM."""
        return self.base.traits.assigns_on_site

    def trains(self, round_number: int) -> tuple[bool, bool]:
        """Two flags: the round trains the clusters' models, and it trains the global one.

        Args:
            round_number: the round, from 0.
        """
        if round_number < self.warmup:
            return not self.chooses, self.chooses
        later = round_number - self.warmup
        if self.updates == "simultaneous":
            return (True, True)
        return (later % 2 == 0, later % 2 == 1)

    def alone(self, round_number: int) -> bool:
        """True for a warm-up round in which each participant keeps its own model.

        Args:
            round_number: the round, from 0.
        """
        return round_number < self.warmup - 1 and not self.chooses

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """The global model and the download of the base, or one of them while only one part is trained.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        clusters, shared = self.trains(state.round)
        if self.alone(state.round):
            return Download()
        if state.round < self.warmup:
            return Download((SHARED,) if shared else (GLOBAL,))
        sent = self.base.distribute(state, participant)
        slots = (SHARED, *sent.slots)
        if not clusters:
            return replace(
                sent, slots=slots, returns=(SHARED,), to_train=(), trains_choice=False
            )
        return replace(
            sent, slots=slots, returns=(*sent.returned, *([SHARED] if shared else []))
        )

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Trains both parts, or one in some rounds. Neither sees the other's new value in this round.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        if SHARED not in download.slots:
            return self._own_update(learner, download)
        learner.memory.pop("own", None)
        clusters, common = self.trains(learner.round)
        shared = download.model(SHARED)
        inner = without_shared(download)
        update = Update(learner.participant, learner.samples)
        if not inner.slots:
            part = learner.part(SHARED)
            trained = part.train(shared)
            learner.trained = part.trained
            return replace(update, diffs={SHARED: trained - shared})
        personal = centre = self._centre(learner, download)
        before = learner.with_private(centre)
        if clusters:  # theta_i from Theta_c(i), with Theta_g frozen (Eq. 5, Eq. 13)
            update = self.clustering.local_update(
                self._beside_shared(learner, download), inner
            )
            personal = centre + next(iter(update.diffs.values()))
        if common:  # theta_i^0 from Theta_g, with Theta_c(i) frozen (Eq. 8, Eq. 15)
            trained = learner.part(SHARED).beside(before).train(shared)
            chosen = next(
                (k for k, slot in inner.choices.items() if inner.model(slot) is centre),
                None,
            )
            update = replace(
                update, diffs={**update.diffs, SHARED: trained - shared}, cluster=chosen
            )
            shared = trained
        learner.trained = Served((shared, personal), parts=(SHARED, ""))
        return update

    def _beside_shared(
        self,
        learner: Learner,
        download: Download,
    ) -> Learner:
        """The participant whose loss is of the sum with a frozen Theta_g."""
        return learner.beside(learner.part(SHARED).with_private(download.model(SHARED)))

    def _centre(
        self,
        learner: Learner,
        download: Download,
    ) -> Params:
        """Theta_c(i)."""
        (centre,) = Served.of(
            self.base.serve(
                self._beside_shared(learner, download), without_shared(download)
            )
        ).models
        return centre

    def _own_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """FeSEM-CAM's warm-up: trains its own theta_i further, and sends it in the last warm-up round (sec. 3.3)."""
        trained = learner.memory["own"] = learner.train(self._personal(learner))
        diffs = {
            slot: trained - model
            for slot, model in zip(download.slots, download.models)
        }
        return Update(learner.participant, learner.samples, diffs)

    def _personal(self, learner: Learner) -> Params:
        return learner.memory.get("own") or learner.initial(0)

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """As the base (Eq. 2; Eq. 11 on the theta_i); where participants choose, in the global model's rounds, too.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        if self.alone(state.round) or (state.round < self.warmup and self.chooses):
            return {}
        if self.chooses or self.trains(state.round)[0]:
            return super().assign(state, updates)
        return {}

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """The base's models as in the base, the global one in the global mean.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        return {
            **self.count_by_slot(only_shared(update)),
            **super().counts_in(state, update, assignment),
        }

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """The base's Theta_k (Eq. 6, 11), and Theta_g = sum psi_i theta_i^0 (Eq. 9).

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        after = state.after({}, assignment)
        if assignment and self.trains(state.round)[0]:
            of_base = self.view_argument(0, updates)
            after = self.base.aggregate(state, of_base, assignment)
            if self.step == "damped":
                after = self._damped(
                    state,
                    after,
                    self.base.compute_cluster_weights(state, of_base, assignment),
                )
        shared = self.compute_means(state, Mapped(updates, only_shared))[SHARED]
        return replace(after, bank={**after.bank, SHARED: shared})

    def _damped(
        self,
        state: ServerState,
        after: ServerState,
        shares: Sequence[float],
    ) -> ServerState:
        """Moves Theta_k towards its members' mean by their share alone (NeurIPS Eq. 6)."""
        bank = dict(after.bank)
        for k, share in enumerate(shares):
            old = state.bank.get(cluster_slot(k))
            new = after.bank[cluster_slot(k)]
            if old is not None:
                bank[cluster_slot(k)] = weighted_mean(
                    [(new, share), (old, 1 - share)], old
                )
        if GLOBAL in bank:
            bank[GLOBAL] = self.base.average_centres(bank, shares)
        return replace(after, bank=bank)

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params | Served:
        """The sum, or during the warm-up the only part there is.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        if SHARED not in download.slots:
            return self._personal(learner)
        if len(download.slots) == 1:
            return Served((download.model(SHARED),), parts=(SHARED,))
        return Served(
            (download.model(SHARED), self._centre(learner, download)),
            parts=(SHARED, ""),
        )

    def finetune_served(
        self,
        learner: Learner,
        served: Params | Served,
    ) -> Params | Served:
        """Both parts after one more local round, each in a sum with the other's old value (thesis sec. 7.4.4).

        Args:
            learner: the participant's data, random streams and memory.
            served: the models that the participant predicts with.

        Returns:
            The tuned models.
        """
        tune = partial(Learner.train, purpose="finetune", epochs=self.finetune_epochs)
        models = Served.of(served).models
        if len(models) == 1:  # in the warm-up
            return tune(learner.part(SHARED) if self.chooses else learner, models[0])
        shared, personal = models
        return Served(
            (
                tune(learner.part(SHARED).beside(personal), shared),
                tune(learner.beside(shared), personal),
            )
        )

    def join(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """Place a newcomer to the finished run.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            The state in which the newcomer may be assigned.
        """
        return Method.join(self, state, update)

    def list_models(
        self,
        state: ServerState,
        layout: Layout,
    ) -> dict[str, Served]:
        """List the models that the run leaves.

        Args:
            state: the server's state between two rounds.
            layout: the names and shapes of a model's arrays.

        Returns:
            What predicts, by name.
        """
        shared = state.bank[SHARED]
        of_base = self.base.list_models(self.view_state(state, 0), layout)
        return {
            s: replace(of, models=(shared, *of.models), parts=(SHARED, ""))
            for s, of in of_base.items()
        }


def only_shared(update: Update) -> Update:
    """The part of an update that belongs to the global model.

    Args:
        update: the update of one participant.
    """
    return replace(
        update,
        diffs={slot: diff for slot, diff in update.diffs.items() if slot == SHARED},
    )


def without_shared(download: Download) -> Download:
    """The part of a download that belongs to the base.

    Args:
        download: the models that the participant was sent.
    """
    pairs = [
        (slot, model)
        for slot, model in zip(download.slots, download.models)
        if slot != SHARED
    ]
    return replace(
        download, slots=tuple(s for s, _ in pairs), models=tuple(m for _, m in pairs)
    )
