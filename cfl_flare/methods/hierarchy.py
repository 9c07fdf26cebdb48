# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FL+HC and FedGroup: the participants' updates are clustered once, then each cluster trains by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from cfl_flare.clustering import agglomerative
from cfl_flare.clustering.agglomerative import (
    agglomerate,
    decomposed_cosines,
    distances_between,
    distances_to_means,
)
from cfl_flare.clustering.floor import Sizes
from cfl_flare.clustering.kmeans import first_kmeans
from cfl_flare.clustering.measures import points
from cfl_flare.core.config import require
from cfl_flare.core.params import Layout
from cfl_flare.core.settings import SEED, setting
from cfl_flare.methods.base import GLOBAL, Method, cluster_slot
from cfl_flare.methods.slots import COMPARED, is_cluster
from cfl_flare.methods.state import (
    PLAIN,
    Assignment,
    Counts,
    Download,
    Plan,
    ServerState,
    Traits,
    Update,
    heads,
)
from cfl_flare.training.ensemble import Served


def first_slot(cluster: int) -> str:
    """Name of a cluster's model as it was when the cluster was found."""
    return f"first-{cluster}"


@dataclass(frozen=True, kw_only=True)
class OneShot(Method):
    """One round in which the updates to the common model are clustered; then FedAvg inside each cluster.

    The common model stays as it was in that round. A participant that missed the round is first sent the common model.
    It joins the cluster whose mean update in that round is nearest to its own update. From then on it trains in its
    cluster.
    """

    k: int | None
    cluster_on: str | tuple[str, ...] = setting(
        "all", help=COMPARED.format("whose updates are")
    )

    @property
    def traits(self) -> Traits:
        """Clusters can be filled up in the round that clusters; newcomers join like those that missed it."""
        closest = "closest in direction" if self.distance == "cosine" else "nearest"
        return replace(
            PLAIN,
            compares_models=True,
            clusters=self.k or 1,
            joins_by=f"cluster whose mean update is {closest} to its own",
            cluster_on=self.cluster_on,
            mergeable=True,
        )

    @property
    @abstractmethod
    def distance(self) -> str:
        """The metric by which a later participant's update is compared with the clusters' mean updates."""

    @abstractmethod
    def partition(self, features: np.ndarray, sizes: Sizes | None) -> np.ndarray:
        """The clusters of these updates ``(m, d)``, numbered in the order in which they first occur.

        Those that are too small for ``sizes`` are filled up by `assign`.
        """

    def clusters_in(self, state: ServerState) -> int:
        return sum(map(is_cluster, state.bank))

    def has_clusters(self, state: ServerState) -> bool:
        return cluster_slot(0) in state.bank

    def clusters_now(self, state: ServerState) -> bool:
        return not self.has_clusters(state)

    def plan(self, state: ServerState) -> Plan:
        """The round that clusters needs a participant for each cluster, if their number is given."""
        return Plan(fewest=self.clusters if self.clusters_now(state) else 1)

    def distribute(self, state: ServerState, participant: str) -> Download:
        """The model of its cluster, or the common model if it has none."""
        known = state.assignment.get(participant)
        return Download((GLOBAL if known is None else cluster_slot(known),))

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """Clusters the updates in the round that does so; later, assigns participants that missed it."""
        if self.clusters_now(state):
            rows = (self.features(u.main_diff) for u in updates)
            features = (
                np.stack([*rows]) if self.distance == "manhattan" else points(rows)
            )
            names = [u.participant for u in heads(updates)]
            labels = self.partition(features, state.sizes(names))
            return state.placed(
                names,
                labels,
                partial(distances_to_means, features, labels, self.distance),
            )
        if not self.has_clusters(state):
            return {}
        new = (u for u in updates if u.participant not in state.assignment)
        joining = {
            u.participant: self._nearest(state, self.features(u.main_diff)) for u in new
        }
        return {
            u.participant: joining.get(
                u.participant, state.assignment.get(u.participant, 0)
            )
            for u in updates
        }

    def _nearest(self, state: ServerState, update: np.ndarray) -> int:
        """The cluster whose mean update is nearest; ties go to the lowest id."""
        start = self.features(state.bank[GLOBAL])
        means = (
            self.features(state.bank[first_slot(k)]) - start
            for k in range(self.clusters_in(state))
        )
        return int(
            np.argmin(
                [
                    distances_between(update[None], mean[None], self.distance)
                    for mean in means
                ]
            )
        )

    def counts_in(
        self, state: ServerState, update: Update, assignment: Assignment
    ) -> Counts:
        """A model counts in its new cluster in the round that clusters, and in the model that was trained in others.

        The first update of a participant that missed the round only assigns it, and counts in no mean, as it started
        from the common model.
        """
        if self.has_clusters(state):
            return {} if GLOBAL in update.diffs else self.by_slot(update)
        return self.by_cluster(update, assignment)

    def aggregate(
        self, state: ServerState, updates: Sequence[Update], assignment: Assignment
    ) -> ServerState:
        """The weighted mean of the models inside each cluster; before there are clusters, of all."""
        if assignment and not self.has_clusters(state):
            centres = self.centres(state, updates, assignment)
            first = {
                first_slot(k): centres[cluster_slot(k)] for k in range(len(centres))
            }
            return state.after({**centres, **first}, assignment)
        return state.after(self.means(state, updates, assignment), assignment)

    def models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        return {
            slot: Served((m,))
            for slot, m in state.bank.items()
            if is_cluster(slot) or slot == GLOBAL
        }


@dataclass(frozen=True, kw_only=True)
class FLHC(OneShot):
    """FL+HC: some rounds of FedAvg, one round in which all train, hierarchical clustering of their updates."""

    name: ClassVar[str] = "fl-hc"
    paper: ClassVar[str] = "Briggs et al. 2020"

    rounds_before: int = setting(
        3, help="rounds of FedAvg before the one that clusters", ge=0
    )
    metric: str = setting(
        "euclidean",
        help="the distance between two updates",
        choices=agglomerative.METRICS,
    )
    linkage: str = setting(
        "ward",
        help="the distance between two clusters; ward takes the euclidean metric alone",
        choices=agglomerative.LINKAGES,
    )
    threshold: float | None = setting(
        None,
        help="largest distance at which two clusters are joined; the data then gives the number of clusters. Give "
        "either this or k",
        gt=0,
    )
    k: int | None = setting(
        None, help="number of clusters; give either this or threshold", ge=1, le=1000
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        possible = self.linkage != "ward" or self.metric == "euclidean"
        needs = f"linkage = 'ward' needs metric = 'euclidean', not {self.metric!r}; take another linkage"
        require(possible, f"{self.where}: {needs}")
        exclusive = (self.k is None) != (self.threshold is None)
        require(
            exclusive,
            f"{self.where}: threshold = {self.threshold} and k = {self.k}: give exactly one of them",
        )

    @property
    def distance(self) -> str:
        return self.metric

    def check(self, layout: Layout, rounds: int | None = None) -> None:
        super().check(layout, rounds)
        enough = rounds is None or rounds > self.rounds_before
        require(
            enough,
            f"{self.where}: rounds_before = {self.rounds_before} leaves none of {rounds} rounds; lower it",
        )

    def clusters_now(self, state: ServerState) -> bool:
        """The first round after those of FedAvg, or the next one if it fails."""
        return not self.has_clusters(state) and state.round >= self.rounds_before

    def plan(self, state: ServerState) -> Plan:
        """Everyone trains in the round that clusters (Alg. 1)."""
        return replace(super().plan(state), everyone=self.clusters_now(state))

    def partition(self, features: np.ndarray, sizes: Sizes | None) -> np.ndarray:
        """Agglomerative clustering (Alg. 1)."""
        return agglomerate(features, self.metric, self.linkage, self.threshold, self.k)


@dataclass(frozen=True, kw_only=True)
class FedGroup(OneShot):
    """FedGroup: groups by the directions of the updates in a first round of training from the common model.

    The groups are static, and start from the means of their members' pre-trained models.
    """

    name: ClassVar[str] = "fedgroup"
    paper: ClassVar[str] = "Duan et al. 2021"

    k: int = setting(help="number of groups", ge=1, le=1000)
    dimensions: int | None = setting(
        None,
        help="singular directions of the updates by which they are compared, at most one less than the participants "
        "of the first round; None for as many as groups",
        ge=1,
    )
    starts: int = setting(10, help="k-means++ starts; the best is kept", ge=1, le=1000)
    seed: int = setting(0, help="seed of those starts", bounds=SEED)

    distance = "cosine"

    def partition(self, features: np.ndarray, sizes: Sizes | None) -> np.ndarray:
        """K-means++ on the decomposed cosine similarities, whose Euclidean distance is EDC (up to a factor)."""
        dimensions = max(1, min(self.dimensions or self.k, len(features) - 1))
        cosines = decomposed_cosines(features, dimensions)
        return first_kmeans(
            cosines, self.k, np.ones(len(cosines)), self.starts, self.seed, sizes
        )
