# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clustered additive modelling: a global model added to those of any clustering method (IFCA-CAM, FeSEM-CAM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params, WeightedMean, weighted_mean
from cfl_flare.methods.base import Method
from cfl_flare.methods.penalties import Proximal
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.methods.state import Assignment, Download, Mapped, ServerState, Update
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner

SHARED = "shared"


@dataclass(frozen=True, kw_only=True)
class CAM(Method):
    """Clustered additive modelling: a participant's prediction is h(x; Theta_g) + f(x; Theta_c(i)), logits added.

    It wraps a method that clusters: that method assigns, trains and averages the Theta_k as ever, but sees everywhere
    the sum with a frozen Theta_g. Beside it, Theta_g is trained on the sum with a frozen Theta_c(i).

    Attributes:
        base: the method that clusters, with its own weighting and penalties.
        warmup: rounds in which only one of the two parts is trained: Theta_g by FedAvg where participants choose their
            cluster (IFCA-CAM), each participant's theta_i by itself where the server clusters (FeSEM-CAM).
        updates: ``simultaneous``, both parts in each round, neither sees what the other becomes (FedSim); or
            ``alternating``, the clusters' in one round and the global one in the next (sec. 3.1).
        step: ``normalised``, a centre becomes its members' mean (thesis Eq. 7.6); or ``damped``, it goes only its
            members' share of all samples towards it (NeurIPS Eq. 6).
        lam: lambda/2 ||theta_i - Theta_c(i)||^2 is added to the loss of theta_i (Eq. 12), where the server clusters.
    """

    name: ClassVar[str] = "cam"
    paper: ClassVar[str] = "Ma et al. 2023 (NeurIPS), thesis ch. 7"
    predicts_with_several: ClassVar[bool] = True

    no_penalties: ClassVar[str] = "belong to its base; give them there"

    base: Method
    warmup: int = 10
    updates: str = "simultaneous"
    step: str = "normalised"
    lam: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        clusters = isinstance(self.base, Method) and self.base.clusters > 0 and self.base.shares_centres
        should = "should be a method that clusters: ifca, fesem or wecfl"
        require(clusters, f"method cam: base = {self.base!r} {should}")
        one = not self.base.predicts_with_several
        require(one, f"method cam: base = {self.base.label} predicts with several models; name a method that has one")
        whole = not getattr(self.base, "shared_backbone", False)
        whole_bank = not getattr(self.base, "in_parts", False)
        require(
            whole_bank, f"method cam: base = {self.base.label} has its models in parts; name one that has whole ones"
        )
        require(whole, "method cam: base has shared_backbone = True, but only whole models can be added; leave it out")
        compared = self.base.indicator is not None
        require(not compared, f"method cam: base = {self.base.label!r} compares whole models, not sums; take another")
        require(self.weighting == "samples", "method cam: weighting belongs to its base; give it there")
        require(not self.base.finetune, "method cam: finetune belongs to the whole; give it to cam, not to its base")
        require(self.warmup >= 0, f"method cam: warmup = {self.warmup} should be >= 0")
        require(0 <= self.lam < float("inf"), f"method cam: lam = {self.lam} should be >= 0")
        for name, known in (("updates", ("simultaneous", "alternating")), ("step", ("normalised", "damped"))):
            require(getattr(self, name) in known, f"method cam: {name} = {getattr(self, name)!r} should be in {known}")

    @property
    def label(self) -> str:
        """``ifca-cam``."""
        return f"{self.base.label}-cam" + "-finetune" * self.finetune

    @property
    def clusters(self) -> int:
        """The base's."""
        return self.base.clusters

    @property
    def joins_by(self) -> str:
        """The base's, of the sums."""
        return self.base.joins_by

    @property
    def sums(self) -> bool:
        """As the base; the global part is a mean."""
        return self.base.sums

    @property
    def regroups(self) -> bool:
        """As the base."""
        return self.base.regroups

    def clusters_in(self, state: ServerState) -> int:
        """The base's."""
        return self.base.clusters_in(state)

    @property
    def clustering(self) -> Method:
        """The base, with the k-means objective as a term of the participants' loss (Eq. 12)."""
        if self.base.assigns_on_site or not self.lam:
            return self.base
        return replace(self.base, penalties=(*self.base.penalties, Proximal(mu=self.lam)))

    def admit(self, state: ServerState, participants: Sequence[str]) -> ServerState:
        """As the base."""
        return self.base.admit(state, participants)

    def needs(self, state: ServerState) -> int:
        """As the base."""
        return self.base.needs(state)

    def check_model(self, layout: Layout) -> None:
        """As the base."""
        self.base.check_model(layout)

    def check_rounds(self, rounds: int) -> None:
        """There are rounds after the warm-up."""
        require(rounds > self.warmup, f"method cam: warmup = {self.warmup} leaves none of {rounds} rounds; lower it")

    def start(self, initial: Callable[[int], Params]) -> ServerState:
        """The base's models, and Theta_g from a seed of its own."""
        state = self.base.start(initial)
        return replace(state, bank={**state.bank, SHARED: initial(max(1, self.clusters))})

    def trains(self, round_number: int) -> tuple[bool, bool]:
        """Whether a round trains the clusters' models, and whether it trains the global one."""
        if round_number < self.warmup:
            return not self.base.assigns_on_site, self.base.assigns_on_site
        later = round_number - self.warmup
        return (True, True) if self.updates == "simultaneous" else (later % 2 == 0, later % 2 == 1)

    def alone(self, round_number: int) -> bool:
        """Whether it is a warm-up round in which the participants' own models stay with them."""
        return round_number < self.warmup - 1 and not self.base.assigns_on_site

    def distribute(self, state: ServerState, participant: str) -> Download:
        """The global model and what the base sends; less while only one part is trained."""
        clusters, shared = self.trains(state.round)
        if self.alone(state.round):
            return Download()
        if state.round < self.warmup:
            return Download((SHARED,) if shared else (GLOBAL,))
        known = state.assignment.get(participant)
        if not clusters and known is not None:
            return Download((SHARED, cluster_slot(known)))
        sent = self.base.distribute(state, participant)
        return replace(sent, slots=(SHARED, *sent.slots))

    def moved_slots(self, state: ServerState, slots: tuple[str, ...], cluster: int | None) -> tuple[str, ...]:
        """The base's, the global model, or both."""
        if SHARED not in slots:
            return slots
        clusters, shared = self.trains(state.round)
        moved = self.base.moved_slots(state, slots[1:], cluster) if clusters else ()
        return (*moved, SHARED) if shared else moved

    def picks(self, state: ServerState, slots: tuple[str, ...]) -> bool:
        """As the base, in rounds that train its models."""
        return self.trains(state.round)[0] and self.base.picks(state, slots[1:])

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Both parts, neither of which sees what the other becomes in this round; less where only one is trained."""
        if SHARED not in download.slots:
            return self._own_update(learner, download)
        learner.memory.pop("own", None)
        clusters, common = self.trains(learner.round)
        shared, inner = download.model(SHARED), without_shared(download)
        update = Update(learner.participant, learner.samples)
        if not inner.slots:
            learner.trained = trained = learner.part(SHARED).train(shared)
            return replace(update, diffs={SHARED: trained - shared})
        centre = self._centre(learner, download)
        own = centre
        if clusters:  # theta_i from Theta_c(i), with Theta_g frozen (Eq. 5, Eq. 13)
            update = self.clustering.local_update(learner.beside(shared), inner)
            own = centre + next(iter(update.diffs.values()))
        if common:  # theta_i^0 from Theta_g, with Theta_c(i) frozen (Eq. 8, Eq. 15)
            trained = learner.part(SHARED).beside(centre).train(shared)
            update = replace(update, diffs={**update.diffs, SHARED: trained - shared})
            shared = trained
        learner.trained = Served((shared, own))
        return update

    def _centre(self, learner: Learner, download: Download) -> Params:
        """Theta_c(i)."""
        (centre,) = Served.of(self.base.serve(learner.beside(download.model(SHARED)), without_shared(download))).models
        return centre

    def _own_update(self, learner: Learner, download: Download) -> Update:
        """FeSEM-CAM's warm-up: goes on with its own theta_i, and sends it at the end (sec. 3.3)."""
        trained = learner.memory["own"] = learner.train(self._own(learner))
        diffs = {slot: trained - model for slot, model in zip(download.slots, download.models)}
        return Update(learner.participant, learner.samples, diffs)

    def _own(self, learner: Learner) -> Params:
        return learner.memory.get("own") or learner.initial(0)

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """As the base (Eq. 2; Eq. 11 on the theta_i)."""
        if self.alone(state.round) or not self.trains(state.round)[0]:
            return {}
        clustered = sum(self.trains(r)[0] and not self.alone(r) for r in range(state.round))  # rounds so far
        return self.base.assign(replace(state, round=clustered), Mapped(updates, without_shared_diff))

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Theta_k as the base makes them (Eq. 6, 11), Theta_g = sum psi_i theta_i^0 (Eq. 9)."""
        after = state.after({})
        if assignment:
            after = self.base.aggregate(state, Mapped(updates, without_shared_diff), assignment)
            if self.step == "damped":
                after = self._damped(state, after, self.base.cluster_weights(updates, assignment))
        shared = WeightedMean(state.bank[SHARED].layout)
        for update in updates:
            if SHARED in update.diffs:
                shared.add(state.bank[SHARED] + update.diffs[SHARED], self.weight(update))
        return replace(after, bank={**after.bank, SHARED: shared.result(state.bank[SHARED])})

    def _damped(self, state: ServerState, after: ServerState, shares: Sequence[float]) -> ServerState:
        """Theta_k goes only the share of its members towards their mean (NeurIPS Eq. 6)."""
        bank = dict(after.bank)
        for k, share in enumerate(shares):
            old, new = state.bank.get(cluster_slot(k)), after.bank[cluster_slot(k)]
            if old is not None:
                bank[cluster_slot(k)] = weighted_mean([(new, share), (old, 1 - share)], old)
        if GLOBAL in bank:
            bank[GLOBAL] = self.base.common(bank, shares)
        return replace(after, bank=bank)

    def serve(self, learner: Learner, download: Download) -> Params | Served:
        """The sum; in the warm-up the part that is there."""
        if SHARED not in download.slots:
            return self._own(learner)
        if len(download.slots) == 1:
            return download.model(SHARED)
        return Served((download.model(SHARED), self._centre(learner, download)))

    def finetuned(self, learner: Learner, served: Params | Served) -> Params | Served:
        """Both parts after one more local round, each beside what the other was (thesis sec. 7.4.4)."""
        tune = partial(Learner.train, purpose="finetune", epochs=self.finetune_epochs)
        if not isinstance(served, Served):  # in the warm-up
            return tune(learner.part(SHARED) if self.base.assigns_on_site else learner, served)
        shared, own = served.models
        return Served((tune(learner.part(SHARED).beside(own), shared), tune(learner.beside(shared), own)))

    def whole_models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """The sums."""
        whole = self.base.whole_models(
            replace(state, bank={k: m for k, m in state.bank.items() if k != SHARED}), layout
        )
        return {slot: Served((state.bank[SHARED], *served.models)) for slot, served in whole.items()}

    def clustered(self, state: ServerState, update: Update) -> Params:
        """theta_i."""
        return self.base.clustered(state, without_shared_diff(update))

    def features(self, model: Params) -> np.ndarray:
        """As the base."""
        return self.base.features(model)

    def moved(self, update: Update) -> Params:
        """theta_i - Theta_c(i)."""
        return self.base.moved(without_shared_diff(update))

    def weight(self, update: Update) -> float:
        """As the base."""
        return self.base.weight(update)


def without_shared(download: Download) -> Download:
    """What the base was sent."""
    pairs = [(slot, model) for slot, model in zip(download.slots, download.models) if slot != SHARED]
    return replace(download, slots=tuple(s for s, _ in pairs), models=tuple(m for _, m in pairs))


def without_shared_diff(update: Update) -> Update:
    """What the base's participants send."""
    return replace(update, diffs={slot: diff for slot, diff in update.diffs.items() if slot != SHARED})
