# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FL+HC and FedGroup: the participants' updates are clustered once, then each cluster trains by itself.

* Christopher Briggs, Zhong Fan, Peter Andras: Federated Learning with Hierarchical Clustering of Local Updates to
  Improve Training on Non-IID Data, IJCNN 2020, https://arxiv.org/abs/2004.11791 (FL+HC).
* M. Duan, D. Liu, X. Ji, R. Liu, L. Liang, X. Chen, Y. Tan: FedGroup: Efficient Federated Learning via Decomposed
  Similarity-Based Clustering, ISPA 2021, https://arxiv.org/abs/2010.06870 (FedGroup).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from cfl_flare.clustering import agglomerative
from cfl_flare.clustering.agglomerative import (
    compute_decomposed_cosines,
    compute_distances,
    compute_distances_to_means,
    join_nearest,
)
from cfl_flare.clustering.floor import Sizes
from cfl_flare.clustering.kmeans import run_first_kmeans
from cfl_flare.clustering.measures import compute_points
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
    read_heads,
)
from cfl_flare.training.ensemble import Served


def first_slot(cluster: int) -> str:
    """Name of a cluster's model as it was when the cluster was found.

    Args:
        cluster: the number of a cluster.
    """
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
    def partition(
        self,
        features: np.ndarray,
        sizes: Sizes | None,
    ) -> np.ndarray:
        """The clusters of these updates ``(m, d)``, numbered in the order in which they first occur.

        Those that are too small for ``sizes`` are filled up by `assign`.

        Args:
            features: the points that are compared ``(m, d)``.
            sizes: the minimum sizes of clusters; None for none.
        """

    def count_clusters(self, state: ServerState) -> int:
        """Count the cluster ids that were given out.

        Args:
            state: the server's state between two rounds.

        Returns:
            The number of ids: 0, 1, ... without a gap.
        """
        return sum(map(is_cluster, state.bank))

    def has_clusters(self, state: ServerState) -> bool:
        """Whether an earlier round has found the clusters.

        Args:
            state: the server's state between two rounds.
        """
        return cluster_slot(0) in state.bank

    def clusters_now(self, state: ServerState) -> bool:
        """Whether the coming round finds the clusters.

        Args:
            state: the server's state between two rounds.
        """
        return not self.has_clusters(state)

    def plan(self, state: ServerState) -> Plan:
        """The round that clusters needs a participant for each cluster, if their number is given.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        return Plan(fewest=self.clusters if self.clusters_now(state) else 1)

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """The model of its cluster, or the common model if it has none.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        known = state.assignment.get(participant)
        return Download((GLOBAL if known is None else cluster_slot(known),))

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """Clusters the updates in the round that does so; later, assigns participants that missed it.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        if self.clusters_now(state):
            return self.cluster_updates(state, updates)
        if not self.has_clusters(state):
            return {}
        assignment = {}
        for update in updates:
            cluster = state.assignment.get(update.participant)
            if cluster is None:
                cluster = self._find_nearest(
                    state, self.select_features(update.main_diff)
                )
            assignment[update.participant] = cluster
        return assignment

    def cluster_updates(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """Cluster all participants by their updates to the common model, once.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        rows = (self.select_features(update.main_diff) for update in updates)
        # Manhattan distances do not follow from inner products. So they need the whole rows.
        is_manhattan = self.distance == "manhattan"
        features = np.stack([*rows]) if is_manhattan else compute_points(rows)
        names = [update.participant for update in read_heads(updates)]
        labels = self.partition(features, state.sizes(names))
        costs = partial(compute_distances_to_means, features, labels, self.distance)
        return state.place_participants(names, labels, costs)

    def _find_nearest(
        self,
        state: ServerState,
        update: np.ndarray,
    ) -> int:
        """The cluster whose mean update is nearest; ties go to the lowest id."""
        start = self.select_features(state.bank[GLOBAL])
        distances = []
        for cluster in range(self.count_clusters(state)):
            # The cluster's first model, less the common one, is its members' mean update.
            mean = self.select_features(state.bank[first_slot(cluster)]) - start
            distance = compute_distances(update[None], mean[None], self.distance)
            distances.append(distance)
        return int(np.argmin(distances))

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """A model counts in its new cluster in the round that clusters, and in the model that was trained in others.

        The first update of a participant that missed the round only assigns it, and counts in no mean, as it started
        from the common model.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        if self.has_clusters(state):
            return {} if GLOBAL in update.diffs else self.count_by_slot(update)
        return self.count_by_cluster(update, assignment)

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """The weighted mean of the models inside each cluster; before there are clusters, of all.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        if assignment and not self.has_clusters(state):
            centres = self.compute_centres(state, updates, assignment)
            first = {
                first_slot(k): centres[cluster_slot(k)] for k in range(len(centres))
            }
            return state.after({**centres, **first}, assignment)
        return state.after(self.compute_means(state, updates, assignment), assignment)

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
    metric: Literal["euclidean", "cosine", "manhattan"] = setting(
        "euclidean",
        help="the distance between two updates",
        choices=agglomerative.METRICS,
    )
    linkage: Literal["ward", "complete", "average", "single"] = setting(
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
        enough = rounds is None or rounds > self.rounds_before
        require(
            enough,
            f"{self.where}: rounds_before = {self.rounds_before} leaves none of {rounds} rounds; lower it",
        )

    def clusters_now(self, state: ServerState) -> bool:
        """The first round after those of FedAvg, or the next one if it fails.

        Args:
            state: the server's state between two rounds.
        """
        return not self.has_clusters(state) and state.round >= self.rounds_before

    def plan(self, state: ServerState) -> Plan:
        """Everyone trains in the round that clusters (Alg. 1).

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        return replace(super().plan(state), everyone=self.clusters_now(state))

    def partition(
        self,
        features: np.ndarray,
        sizes: Sizes | None,
    ) -> np.ndarray:
        """Agglomerative clustering (Alg. 1).

        Args:
            features: the points that are compared ``(m, d)``.
            sizes: the minimum sizes of clusters; None for none.
        """
        return join_nearest(features, self.metric, self.linkage, self.threshold, self.k)


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

    def partition(
        self,
        features: np.ndarray,
        sizes: Sizes | None,
    ) -> np.ndarray:
        """K-means++ on the decomposed cosine similarities, whose Euclidean distance is EDC (up to a factor).

        Args:
            features: the points that are compared ``(m, d)``.
            sizes: the minimum sizes of clusters; None for none.
        """
        dimensions = max(1, min(self.dimensions or self.k, len(features) - 1))
        cosines = compute_decomposed_cosines(features, dimensions)
        return run_first_kmeans(
            cosines, self.k, np.ones(len(cosines)), self.starts, self.seed, sizes
        )
