# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""CFL-GP: participants are clustered by the spectrum of their gradients, all taken at the same models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import number_by_silhouette
from cfl_flare.clustering.kmeans import STARTS_ON_SHORT_ROWS, first_kmeans, renamed
from cfl_flare.clustering.measures import before_gap, inner_products, leading
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method, cluster_slot
from cfl_flare.methods.ifca import of_least_loss
from cfl_flare.methods.state import (
    PLAIN,
    Assignment,
    Counts,
    Download,
    Plan,
    ServerState,
    Traits,
    Update,
)
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner


@dataclass(frozen=True, kw_only=True)
class CFLGP(Method):
    """Clusters from the leading singular directions of gradients, at each cluster's model in turn."""

    name: ClassVar[str] = "cfl-gp"
    paper: ClassVar[str] = "Kim et al. 2024"

    weighting: str = "uniform"
    k: int = setting(
        help="number of clusters K; each model starts from its own seed", ge=1, le=1000
    )
    every: int = setting(2, help="rounds P from one clustering to the next", ge=1)
    silhouette: bool = setting(
        False,
        help="take the number of clusters, 2 to k, of the best silhouette, each time",
    )
    clustering_rounds: int = setting(
        10, help="rounds after which the assignment is frozen", ge=1
    )

    @property
    def traits(self) -> Traits:
        joins = "smallest training loss"
        return replace(
            PLAIN,
            clusters=self.k,
            joins_by=joins,
            mergeable=True,
            archives=True,
            queries=None,
        )

    def start(
        self, initial: Callable[[int], Params], participants: Sequence[str] = ()
    ) -> ServerState:
        """K models from K seeds; the first is the first criterion."""
        models = {slot: initial(k) for k, slot in enumerate(self.slots)}
        bank = {**models, "criterion-0": models[cluster_slot(0)]}
        return ServerState(
            bank, extras={"clusterings": 0, "due": True, "gradients": {}}
        )

    def plan(self, state: ServerState) -> Plan:
        """Everyone in the rounds that cluster; each cluster needs a participant."""
        return (
            Plan(everyone=True, fewest=2 if self.silhouette else self.k)
            if state.extras["due"]
            else Plan()
        )

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Its cluster's model, and the criterion in a round that clusters; all models, if it missed that."""
        criteria = (self._criterion(state),) if state.extras["due"] else ()
        if participant in state.assignment:
            cluster = (cluster_slot(state.assignment[participant]),)
            return Download(cluster, to_train=criteria, returns=cluster + criteria)
        choices = {} if criteria else self.choices(state)
        return Download(criteria or tuple(choices.values()), choices=choices)

    def local_update(self, learner: Learner, download: Download) -> Update:
        """The gradient at the criterion on all training data, and its update of its cluster's model, if it has one."""
        if download.choices:
            chosen = of_least_loss(learner, download)
            return self.trained(
                learner, download, download.choices[chosen], cluster=chosen
            )
        gradients = {
            s: learner.gradient(download.model(s))
            for s in download.slots
            if s.startswith("criterion")
        }
        if len(gradients) == len(download.slots):
            return Update(learner.participant, learner.samples, gradients)
        update = super().local_update(learner, download)
        return replace(update, diffs={**update.diffs, **gradients})

    def serve(self, learner: Learner, download: Download) -> Params:
        return download.models[
            of_least_loss(learner, download) if download.choices else 0
        ]

    def vector(self, state: ServerState, update: Update) -> np.ndarray:
        """Its gradient; in a round that does not cluster, the model that it trained."""
        gradient = update.diffs.get(self._criterion(state))
        return (state.trained(update) if gradient is None else gradient).part("all")

    def _versions(
        self, state: ServerState, updates: Sequence[Update]
    ) -> dict[str, dict[str, list[int]]]:
        """By participant and criterion, the round of its mean gradient in the archive, and of how many that is."""
        old, q = state.extras["gradients"], str(state.extras["clusterings"] % self.k)
        times = {
            u.participant: old.get(u.participant, {}).get(q, [0, 0])[1] + 1
            for u in updates
        }
        return {
            **old,
            **{
                name: {**old.get(name, {}), q: [state.round, t]}
                for name, t in times.items()
            },
        }

    def _criterion(self, state: ServerState) -> str:
        """The slot of the model at which all take their gradient in the next clustering, which no round changes."""
        return f"criterion-{state.extras['clusterings']}"

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """K-means on the rows of Q S, of gradients G = P S Q'; clusters keep their labels by greatest overlap."""
        archive, old = state.archive, state.assignment
        if not state.extras["due"] or archive is None:
            return {
                u.participant: old[u.participant] if u.cluster is None else u.cluster
                for u in updates
            }
        versions, q = (
            self._versions(state, updates),
            str(state.extras["clusterings"] % self.k),
        )
        for update in updates:
            earlier = state.extras["gradients"].get(update.participant, {}).get(q)
            archive.put_mean(
                f"{update.participant}.{q}",
                state.round,
                self.vector(state, update),
                earlier,
            )
        names, products = (
            [u.participant for u in updates],
            np.zeros((len(updates), len(updates))),
        )
        for q in sorted(set.intersection(*({*versions[name]} for name in names))):
            products += inner_products(
                archive.get(f"{n}.{q}", versions[n][q][0]) for n in names
            )
        rows = before_gap(products) if self.silhouette else leading(products, self.k)
        k = (
            number_by_silhouette(rows, self.k, better=1.0)
            if self.silhouette
            else self.k
        )
        equal = np.ones(len(names))
        labels = first_kmeans(
            rows, k, equal, STARTS_ON_SHORT_ROWS, sizes=state.sizes(names, {})
        )
        before = np.array([old.get(name, -1) for name in names])
        return dict(zip(names, renamed(labels, before, self.k).tolist()))

    def counts_in(
        self, state: ServerState, update: Update, assignment: Assignment
    ) -> Counts:
        """A model counts in its participant's new cluster; a gradient counts in no mean."""
        return {
            s: of
            for s, of in self.by_cluster(update, assignment).items()
            if s != self._criterion(state)
        }

    def aggregate(
        self, state: ServerState, updates: Sequence[Update], assignment: Assignment
    ) -> ServerState:
        """The mean in each cluster. Before a round that clusters, the next cluster's model becomes the criterion."""
        number, clusterings = (
            state.round + 1,
            state.extras["clusterings"] + state.extras["due"],
        )
        due = number % self.every == 0 and number < self.clustering_rounds
        gradients = (
            self._versions(state, updates)
            if state.extras["due"]
            else state.extras["gradients"]
        )
        bank = self.centres(state, updates, assignment)
        if due:
            bank[f"criterion-{clusterings}"] = bank[cluster_slot(clusterings % self.k)]
        after = state.after(
            {}, assignment, due=due, clusterings=clusterings, gradients=gradients
        )
        return replace(after, bank=bank)

    def join(self, state: ServerState, update: Update) -> ServerState:
        """It chooses by its losses, even if the run ended before a round that clusters."""
        placed = state if update.cluster is None else super().join(state, update)
        return replace(
            placed, round=state.round + 1, extras={**state.extras, "due": False}
        )

    def models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        return {slot: Served((state.bank[slot],)) for slot in self.slots}
