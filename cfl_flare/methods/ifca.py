# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""IFCA and HypCluster: participants choose among K models the one that fits them best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params
from cfl_flare.methods.base import GLOBAL, Method, cluster_slot
from cfl_flare.methods.state import Assignment, Download, ServerState, Update
from cfl_flare.training.ensemble import Served
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
    def sums(self) -> bool:
        """Participants choose on the site; the server only averages."""
        return True

    @property
    def regroups(self) -> bool:
        """A model that too few sites picked is offered to nobody any more."""
        return True

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

    def offered(self, state: ServerState) -> tuple[str, ...]:
        """The names of the models that participants choose among: all K, but for those that were closed."""
        closed = {cluster_slot(k) for k in state.extras.get("closed", ())}
        return tuple(slot for slot in self.slots if slot not in closed)

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Everyone compares all K models."""
        offered = self.offered(state)
        return Download((BACKBONE, *offered)) if self.shared_backbone else self.with_penalties(state, offered)

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

        For penalties that need it, the mean of the K models is kept as well (thesis Eq. 5.6). Where small clusters are
        merged, the assignment is not always what was chosen: then the chosen model is closed, and its update dropped.
        """
        closed = set(state.extras.get("closed", ()))

        def kept() -> Iterator[Update]:
            for update in updates:
                if update.cluster == assignment[update.participant]:
                    yield update
                else:
                    closed.add(update.cluster)

        means = self.means(state, kept())
        extras: dict[str, Any] = {"closed": sorted(closed)} if closed else {}
        if self.penalties:
            extras["weights"] = self.cluster_weights(kept(), assignment)
            means[GLOBAL] = self.common(means, extras["weights"])
        return state.after(means, assignment, **extras)

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
        """The chosen model, which must have been offered, and the shared backbone."""
        chosen = tuple(slot for slot in slots if cluster is not None and slot == cluster_slot(cluster))
        return (*chosen, BACKBONE) if self.shared_backbone else chosen

    def compose(self, download: Download, layout: Layout) -> Download:
        """Backbone and heads, put together."""
        if not self.shared_backbone:
            return download
        backbone, *heads = download.models
        return Download(download.slots[1:], tuple(layout.join(backbone, head) for head in heads))

    def whole_models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """The K models, but for those that were closed."""
        slots = (BACKBONE, *self.offered(state)) if self.shared_backbone else self.offered(state)
        whole = self.compose(Download(slots, tuple(state.bank[slot] for slot in slots)), layout)
        return {slot: Served((model,)) for slot, model in zip(whole.slots, whole.models)}
