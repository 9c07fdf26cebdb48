# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FL+HC and FedGroup: the participants' updates are clustered once, and each cluster goes on by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import (
    LINKAGES,
    METRICS,
    agglomerate,
    decomposed_cosines,
    distances_between,
)
from cfl_flare.clustering.kmeans import first_kmeans, stacked
from cfl_flare.core.config import require
from cfl_flare.core.params import Layout
from cfl_flare.methods.base import GLOBAL, Method, cluster_slot
from cfl_flare.methods.slots import is_cluster
from cfl_flare.methods.state import Assignment, Download, Plan, ServerState, Update
from cfl_flare.methods.traits import Traits
from cfl_flare.training.ensemble import Served


def first_slot(cluster: int) -> str:
    """Name of a cluster's model as it was when the cluster was found."""
    return f"first-{cluster}"


@dataclass(frozen=True, kw_only=True)
class OneShot(Method):
    """One round in which the updates to the common model are clustered; then FedAvg inside each cluster.

    The common model stays what it was in that round. A participant that was not in it is sent the common model at its
    first later appearance, and joins the cluster whose mean update in that round is the nearest to its own update;
    from its next appearance on it trains in its cluster.

    Attributes:
        cluster_on: the parameters whose updates are clustered: ``all``, ``fc`` (all fully connected layers), ``head``,
            ``backbone``, or a list of parameter names.
    """

    cluster_on: str | tuple[str, ...] = "all"

    @property
    @abstractmethod
    def found_clusters(self) -> int:
        """Number of clusters, as far as it is known before the round that clusters; at least one."""

    @property
    def traits(self) -> Traits:
        """Clusters can be merged in the round that clusters; newcomers join as those who were not in it."""
        closest = "closest in direction" if self.distance == "cosine" else "nearest"
        return Traits(
            clusters=self.found_clusters,
            joins_by=f"cluster whose mean update is {closest} to its own",
            cluster_on=self.cluster_on,
            mergeable=True,
            shares_centres=False,
        )

    @property
    @abstractmethod
    def distance(self) -> str:
        """By which a later participant's update is compared to the clusters' mean updates."""

    @abstractmethod
    def partition(self, features: np.ndarray) -> np.ndarray:
        """The clusters of these updates ``(m, d)``, numbered in the order in which they first occur."""

    def clusters_in(self, state: ServerState) -> int:
        """Those that were found."""
        return sum(map(is_cluster, state.bank))

    def found(self, state: ServerState) -> bool:
        """Whether the round that clusters is over."""
        return cluster_slot(0) in state.bank

    def clusters_now(self, state: ServerState) -> bool:
        """Whether the coming round is the one that clusters."""
        return not self.found(state)

    def plan(self, state: ServerState) -> Plan:
        """The round that clusters needs a participant for each cluster, where their number is given."""
        return Plan(fewest=self.clusters if self.clusters_now(state) else 1)

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Its cluster's model; to those that are in none, the common model."""
        known = state.assignment.get(participant)
        return Download((GLOBAL if known is None else cluster_slot(known),))

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """The clusters of the updates in the round that clusters; later of those that were not in it."""
        if self.clusters_now(state):
            features, _ = stacked(((self.features(u.main_diff), 1.0) for u in updates), len(updates))
            return {u.participant: int(c) for u, c in zip(updates, self.partition(features))}
        if not self.found(state):
            return {}
        new = (u for u in updates if u.participant not in state.assignment)
        joining = {u.participant: self._nearest(state, self.features(u.main_diff)) for u in new}
        return {u.participant: joining.get(u.participant, state.assignment.get(u.participant, 0)) for u in updates}

    def _nearest(self, state: ServerState, update: np.ndarray) -> int:
        """The cluster whose mean update is the nearest; ties to the lowest."""
        start = self.features(state.bank[GLOBAL])
        means = (self.features(state.bank[first_slot(k)]) - start for k in range(self.clusters_in(state)))
        return int(np.argmin([distances_between(update[None], mean[None], self.distance) for mean in means]))

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """The weighted mean of the models inside each cluster; before there are clusters, of all.

        A later participant's first update says where it belongs and counts in no mean: it starts from the common model
        as it was in the round that clusters.
        """
        if not assignment:
            return state.after(self.means(state, updates))
        if not self.found(state):
            centres = self.centres(state, updates, assignment)
            first = {first_slot(k): centres[cluster_slot(k)] for k in range(len(centres))}
            return state.after({**centres, **first}, assignment)
        means = self.means(
            replace(state, bank={slot: model for slot, model in state.bank.items() if is_cluster(slot)}),
            (u for u in updates if GLOBAL not in u.diffs),
        )
        return state.after(means, assignment)

    def models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """The clusters' models and the common one."""
        return {slot: Served((m,)) for slot, m in state.bank.items() if is_cluster(slot) or slot == GLOBAL}


@dataclass(frozen=True, kw_only=True)
class FLHC(OneShot):
    """FL+HC: some rounds of FedAvg, one round in which all train, hierarchical clustering of their updates.

    Attributes:
        rounds_before: rounds of FedAvg before the one that clusters.
        metric: the distance of two updates: ``euclidean``, ``cosine`` or ``manhattan``.
        linkage: the distance of two clusters: ``ward`` (euclidean alone), ``complete``, ``average`` or ``single``.
        threshold: the largest distance at which two clusters are still joined: the number of clusters comes out of the
            data; or
        k: the number of clusters. Exactly one of the two.
    """

    name: ClassVar[str] = "fl-hc"
    paper: ClassVar[str] = "Briggs et al. 2020"

    rounds_before: int = 3
    metric: str = "euclidean"
    linkage: str = "ward"
    threshold: float | None = None
    k: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        where, k, threshold = f"method {self.name}", self.k, self.threshold
        require(self.rounds_before >= 0, f"{where}: rounds_before = {self.rounds_before} should be >= 0")
        require(self.metric in METRICS, f"{where}: metric = {self.metric!r} should be one of {METRICS}")
        require(self.linkage in LINKAGES, f"{where}: linkage = {self.linkage!r} should be one of {LINKAGES}")
        fits = self.linkage != "ward" or self.metric == "euclidean"
        require(
            fits, f"{where}: linkage = 'ward' needs metric = 'euclidean', not {self.metric!r}; take another linkage"
        )
        one = (k is None) != (threshold is None)
        require(one, f"{where}: threshold = {threshold} and k = {k}: give exactly one of them")
        require(k is None or k >= 1, f"{where}: k = {k} should be >= 1")
        number = threshold is None or 0 < threshold < float("inf")
        require(number, f"{where}: threshold = {threshold} should be a number > 0")

    @property
    def found_clusters(self) -> int:
        """K, where it is given; at least one."""
        return self.k or 1

    @property
    def distance(self) -> str:
        """The same that clusters."""
        return self.metric

    def check(self, layout: Layout, rounds: int | None = None) -> None:
        """There is a round that clusters."""
        super().check(layout, rounds)
        fits = rounds is None or rounds > self.rounds_before
        require(
            fits, f"method {self.name}: rounds_before = {self.rounds_before} leaves none of {rounds} rounds; lower it"
        )

    def clusters_now(self, state: ServerState) -> bool:
        """The first round after those of FedAvg; the next one, if it fails."""
        return not self.found(state) and state.round >= self.rounds_before

    def plan(self, state: ServerState) -> Plan:
        """Everyone trains in the round that clusters (Alg. 1)."""
        return replace(super().plan(state), everyone=self.clusters_now(state))

    def partition(self, features: np.ndarray) -> np.ndarray:
        """Agglomerative clustering (Alg. 1)."""
        return agglomerate(features, self.metric, self.linkage, self.threshold, self.k)


@dataclass(frozen=True, kw_only=True)
class FedGroup(OneShot):
    """FedGroup: groups by the directions of the updates in a first round of training from the common model.

    The groups are static, and their first models are the means of the models that this pre-training gave.

    Attributes:
        k: number of groups.
        dimensions: singular directions of the updates by which they are compared; None takes as many as groups. At
            most one less than there are participants in the first round.
        starts: k-means++ starts; the best is kept.
        seed: of those starts.
    """

    name: ClassVar[str] = "fedgroup"
    paper: ClassVar[str] = "Duan et al. 2021"

    k: int
    dimensions: int | None = None
    starts: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        where, size = f"method {self.name}", self.dimensions
        require(self.k >= 1, f"{where}: k = {self.k} should be >= 1")
        require(size is None or size >= 1, f"{where}: dimensions = {size} should be >= 1 or None")
        require(self.starts >= 1, f"{where}: starts = {self.starts} should be >= 1")
        require(0 <= self.seed < 2**32, f"{where}: seed = {self.seed} should be in 0..2**32 - 1")

    @property
    def found_clusters(self) -> int:
        """K."""
        return self.k

    @property
    def distance(self) -> str:
        """A newcomer joins the group with the closest direction."""
        return "cosine"

    def partition(self, features: np.ndarray) -> np.ndarray:
        """K-means++ on the decomposed cosine similarities, whose Euclidean distance is EDC (up to a factor)."""
        dimensions = max(1, min(self.dimensions or self.k, len(features) - 1))
        cosines = decomposed_cosines(features, dimensions)
        return first_kmeans(cosines, self.k, np.ones(len(cosines)), starts=self.starts, seed=self.seed)
