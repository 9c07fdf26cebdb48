# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FeSEM and WeCFL: the server clusters the participants' trained models by k-means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import distances_between
from cfl_flare.clustering.kmeans import first_kmeans, lloyd
from cfl_flare.clustering.measures import points
from cfl_flare.core.settings import SEED, setting
from cfl_flare.methods.base import GLOBAL, Method, cluster_slot
from cfl_flare.methods.slots import COMPARED
from cfl_flare.methods.state import CLUSTERED, Assignment, Counts, Download, Plan, ServerState, Traits, Update, heads


@dataclass(frozen=True, kw_only=True)
class WeCFL(Method):
    """Weighted clustered FL: k-means over the trained models, participants weighted by psi in both steps."""

    name: ClassVar[str] = "wecfl"
    paper: ClassVar[str] = "Ma et al. 2022; thesis Alg. 1, Eq. 3.3"

    k: int = setting(help="number of clusters K", ge=1, le=1000)
    cluster_on: str | tuple[str, ...] = setting("fc", help=COMPARED.format("that are"))
    clustering_rounds: int | None = setting(
        None, help="rounds after which the assignment is frozen (few-shot clustering); None never freezes it", ge=1
    )
    starts: int = setting(10, help="k-means++ starts of the first E-step; the best is kept", ge=1, le=1000)
    seed: int = setting(0, help="seed of those starts", bounds=SEED)

    @property
    def traits(self) -> Traits:
        rule = "centre closest in direction, from the common model"
        return replace(CLUSTERED, clusters=self.k, joins_by=rule, cluster_on=self.cluster_on, mergeable=True)

    def plan(self, state: ServerState) -> Plan:
        """The first E-step needs a participant for each cluster."""
        return Plan(fewest=1 if cluster_slot(0) in state.bank else self.k)

    def distribute(self, state: ServerState, participant: str) -> Download:
        """The centre of its cluster, or the common model before its first assignment."""
        known = state.assignment.get(participant)
        return self.with_penalties(state, Download((GLOBAL if known is None else cluster_slot(known),)))

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """E-step (thesis Eq. 3.3b): k-means++ at first, then k-means warm-started at the centres.

        The warm start keeps the clusters' labels. Clusters without a participant in this round keep their centre.

        In the papers all participants train in every round. One that joins later goes to the cluster in whose direction
        it moved from the common model. In one round a model does not move far, so that by distance the centre closest
        to the common model would always win.
        """
        names, weights = [u.participant for u in heads(updates)], np.array([self.weight(u) for u in heads(updates)])
        labels = np.array([state.assignment.get(name, -1) for name in names])
        late, clustered = labels < 0, self.slots[0] in state.bank
        frozen = clustered and self.clustering_rounds is not None and state.round >= self.clustering_rounds
        if frozen and not late.any():
            return dict(zip(names, labels.tolist()))
        common = self.features(state.bank[GLOBAL])
        slots = self.slots[: state.possible(self.k)] if clustered else ()
        vectors = chain((self.vector(state, u) for u in updates), (self.features(state.bank[slot]) for slot in slots))
        features, centres = np.split(points(vector - common for vector in vectors), [len(names)])
        if not slots:
            labels = first_kmeans(features, self.k, weights, self.starts, self.seed, state.sizes(names))
            return dict(zip(names, labels.tolist()))
        if late.any():
            labels[late] = distances_between(features[late], centres, "cosine").argmin(axis=1)
        if not (late.all() or frozen):
            rest = {name: int(label) for name, label in zip(names, labels) if name not in state.assignment}
            sizes = state.sizes([name for name in names if name not in rest], {**state.assignment, **rest})
            labels[~late] = lloyd(features[~late], centres, weights[~late], sizes=sizes)
        return dict(zip(names, labels.tolist()))

    def counts_in(self, state: ServerState, update: Update, assignment: Assignment) -> Counts:
        """A trained model counts in its participant's new cluster, wherever its training began."""
        return self.by_cluster(update, assignment)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """M-step (thesis Eq. 3.3a): the psi-weighted mean inside each cluster.

        The common model is for participants that have no cluster yet. It becomes the mean of the centres, weighted by
        their clusters' weights in this round (thesis Eq. 5.6).
        """
        return self.with_common(state, self.centres(state, updates, assignment), updates, assignment)


@dataclass(frozen=True, kw_only=True)
class FeSEM(WeCFL):
    """Federated stochastic EM: as WeCFL, but every participant has the same weight in k-means and in the centres."""

    name: ClassVar[str] = "fesem"
    paper: ClassVar[str] = "Xie et al. 2021; thesis Eq. 3.2"

    weighting: str = "uniform"
