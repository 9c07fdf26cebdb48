# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""IFCA and HypCluster: participants choose among K models the one that fits them best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from cfl_flare.config import require
from cfl_flare.ensemble import Served
from cfl_flare.methods.base import GLOBAL, Method, cluster_slot
from cfl_flare.methods.state import Assignment, Download, ServerState, Update
from cfl_flare.params import Layout, Params
from cfl_flare.training.learner import Learner

BACKBONE = "backbone"


@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """Iterative federated clustering: each participant picks the one of K models that fits its training data best.

    HypCluster is the same algorithm.

    Attributes:
        k: number of clusters K; each model starts from its own seed.
        assignment_samples: how many of its training samples a participant reads to choose; None reads them all.
        shared_backbone: the K models share all layers but the head, which everyone trains (IFCA's weight sharing); then
            only the heads travel K times.
    """

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh et al. 2020; Mansour et al. 2020; thesis Eq. 3.1"
    assigns_on_site: ClassVar[bool] = True

    k: int
    assignment_samples: int | None = None
    shared_backbone: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.k >= 1, f"method ifca: k = {self.k} should be >= 1")
        samples = self.assignment_samples
        require(samples is None or samples >= 1, f"method ifca: assignment_samples = {samples} should be >= 1 or None")

        require(
            not (self.shared_backbone and self.penalties),
            f"method ifca: penalties = {[p.name for p in self.penalties]} do not go with shared_backbone = True, where "
            "no whole centres travel; leave one of them out",
        )

    @property
    def clusters(self) -> int:
        """K."""
        return self.k

    @property
    def joins_by(self) -> str:
        """As everyone in each round."""
        return "smallest loss on its training data"

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the K models, or of their heads."""
        return tuple(cluster_slot(k) for k in range(self.k))

    def start(self, initial: Callable[[int], Params]) -> ServerState:
        """K models from K seeds; a shared backbone is that of the first."""
        models = [initial(k) for k in range(self.k)]
        if not self.shared_backbone:
            return ServerState(bank=dict(zip(self.slots, models)))
        layout = models[0].layout
        heads = {slot: model.take(layout.head) for slot, model in zip(self.slots, models)}
        return ServerState(bank={BACKBONE: models[0].take(layout.backbone), **heads})

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Everyone compares all K models."""
        return Download((BACKBONE, *self.slots)) if self.shared_backbone else self.with_penalties(state, self.slots)

    def choose(self, learner: Learner, download: Download) -> int:
        """c(i) = argmin_k loss(Theta_k, own training data), ties to the lowest k (thesis Eq. 3.1b)."""
        sent = [k for k, slot in enumerate(self.slots) if slot in download.slots]
        losses = learner.losses([download.model(self.slots[k]) for k in sent], self.assignment_samples)
        return sent[int(losses.argmin())]

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Trains a copy of the chosen model."""
        chosen = self.choose(learner, download)
        update = self.trained_update(learner, download, cluster_slot(chosen), cluster=chosen)
        if not self.shared_backbone:
            return update
        (diff,) = update.diffs.values()
        head, backbone = diff.take(diff.layout.head), diff.take(diff.layout.backbone)
        return replace(update, diffs={cluster_slot(chosen): head, BACKBONE: backbone})

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """The participants have chosen already."""
        return {u.participant: u.cluster for u in updates if u.cluster is not None}

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Averages each model over those who chose it, with psi (thesis Eq. 3.1a); an empty cluster keeps its model.

        For penalties that need it, the mean of the K models is kept as well (thesis Eq. 5.6).
        """
        means = self.means(state, updates)
        if not self.penalties:
            return state.after(means, assignment)
        weights = self.cluster_weights(updates, assignment)
        return state.after({**means, GLOBAL: self.common(means, weights)}, assignment, weights=weights)

    def clustered(self, state: ServerState, update: Update) -> Params:
        """The model that it chose and trained, or its head."""
        slot = cluster_slot(update.cluster or 0)
        return state.bank[slot] + update.diffs[slot]

    def moved(self, update: Update) -> Params:
        """The difference of the model that it chose, or of its head."""
        return update.diffs[cluster_slot(update.cluster or 0)]

    def serve(self, learner: Learner, download: Download) -> Params:
        """The model that fits best now."""
        return download.model(cluster_slot(self.choose(learner, download)))

    def check_model(self, layout: Layout) -> None:
        """A shared backbone needs a head apart from it."""
        super().check_model(layout)
        if self.shared_backbone:
            layout.select("backbone")

    def moved_slots(self, state: ServerState, slots: tuple[str, ...], cluster: int | None) -> tuple[str, ...]:
        """The chosen model, and the shared backbone."""
        chosen = () if cluster is None else (cluster_slot(cluster),)
        return (*chosen, BACKBONE) if self.shared_backbone else chosen

    def compose(self, download: Download, layout: Layout) -> Download:
        """Backbone and heads, put together."""
        if not self.shared_backbone:
            return download
        backbone, *heads = download.models
        return Download(self.slots, tuple(layout.join(backbone, head) for head in heads))

    def whole_models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """The K models."""
        slots = (BACKBONE, *self.slots) if self.shared_backbone else self.slots
        whole = self.compose(Download(slots, tuple(state.bank[slot] for slot in slots)), layout).models
        return {slot: Served((model,)) for slot, model in zip(self.slots, whole)}
