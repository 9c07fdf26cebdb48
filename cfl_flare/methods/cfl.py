# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""CFL: one cluster of all, split in two again and again where its members pull in different directions.

Felix Sattler, Klaus-Robert Müller, Wojciech Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization under Privacy Constraints, IEEE TNNLS 2020, https://arxiv.org/abs/1910.01991.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from cfl_flare.clustering.agglomerative import (
    compute_distances,
    compute_distances_to_means,
    join_nearest,
)
from cfl_flare.clustering.floor import Sizes
from cfl_flare.clustering.measures import compute_points
from cfl_flare.core.params import Layout, Params, WeightedMean
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method, cluster_slot
from cfl_flare.methods.slots import COMPARED, is_cluster
from cfl_flare.methods.state import (
    PLAIN,
    Assignment,
    Counts,
    Download,
    ServerState,
    Traits,
    Update,
)
from cfl_flare.training.ensemble import Served

SPLITS = "splits"
SETTLED = "settled"


def parent_slot(cluster: int) -> str:
    """Name of the model that the members of a cluster's parent were sent in the round that split it.

    Args:
        cluster: the number of a cluster.
    """
    return f"parent-{cluster}"


def half_slot(
    cluster: int,
    left: bool,
) -> str:
    """Name of the mean model of one half in that round: of those that left for the new cluster, or of the others.

    Args:
        cluster: the number of a cluster.
        left: the half that left for the new cluster, and not the one that stayed.
    """
    return f"{'left' if left else 'stayed'}-{cluster}"


@dataclass(frozen=True, kw_only=True)
class CFL(Method):
    """Clustered federated learning: FedAvg in each cluster, which is split if it converged but its members did not.

    Participants are compared by their updates to the same model. Newcomers, and participants that were absent when
    their cluster was split, go down the tree of splits as the paper's new clients do, one split an appearance. They are
    sent the model that was split. They go to the half whose mean update in that round has the larger cosine with their
    own. That update counts in no mean. Until then their cluster is the half that kept the id, and they predict with the
    model that was split.
    """

    name: ClassVar[str] = "cfl"
    paper: ClassVar[str] = "Sattler et al. 2020"

    eps1: float = setting(
        help="a cluster may be split when the norm of its members' mean update is below this",
        ge=0,
    )
    eps2: float = setting(
        help="and the largest norm of a member's update is above this", ge=0
    )
    min_rounds: int = setting(0, help="rounds before the first split", ge=0)
    gamma_max: float | None = setting(
        None,
        help="split only if the largest cosine similarity between the halves is below sqrt((1 - gamma_max) / 2)",
        ge=0,
        lt=1,
    )
    linkage: Literal["complete", "single"] = setting(
        "complete",
        help="halves by cosine distance: complete, as in the authors' code, or single, which makes the largest "
        "similarity between the halves as small as possible (the paper's optimal bipartition)",
        choices=("complete", "single"),
    )
    cluster_on: str | tuple[str, ...] = setting(
        "all", help=COMPARED.format("whose updates are")
    )

    @property
    def traits(self) -> Traits:
        rule = "down the tree of splits, by cosine similarity"
        return replace(
            PLAIN,
            clusters=1,
            joins_by=rule,
            cluster_on=self.cluster_on,
            compares_models=True,
        )

    def count_clusters(self, state: ServerState) -> int:
        """Count the cluster ids that were given out.

        Args:
            state: the server's state between two rounds.

        Returns:
            The number of ids: 0, 1, ... without a gap.
        """
        return 1 + len(state.extras[SPLITS])

    def join(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """The newcomer goes one split further down; ``settled`` says how far. A single update splits no cluster.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            The state in which the newcomer may be assigned.
        """
        return self.join_by_aggregate(state, update)

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """One cluster of all. ``splits`` has the parent of cluster 1, 2, ...; ``settled`` how many a member knows.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        return ServerState(
            {cluster_slot(0): initial(0)}, extras={SPLITS: [], SETTLED: {}}
        )

    def open_split(
        self,
        state: ServerState,
        participant: str,
    ) -> int | None:
        """The new cluster of the first split of a participant's cluster at which it was absent.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.
        """
        parents = state.extras[SPLITS]
        cluster = state.assignment.get(participant, 0)
        known = state.extras[SETTLED].get(participant, 0)
        for i in range(known, len(parents)):
            if parents[i] == cluster:
                return i + 1
        return None

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """The model of the participant's cluster, or the one at whose split it was absent.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        # Who was absent at a split is sent what was split, to choose a half by its update.
        child = self.open_split(state, participant)
        slot = cluster_slot(state.assignment.get(participant, 0))
        return Download((slot if child is None else parent_slot(child),))

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """Assign absent participants to their half, and split the clusters that are due.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        assignment = {}
        for update in updates:
            cluster = state.assignment.get(update.participant, 0)
            child = self.open_split(state, update.participant)
            if child is not None:
                cluster = self._choose_half(state, update, cluster, child)
            assignment[update.participant] = cluster
        for parent in self._list_ripe(state, updates):
            slot = cluster_slot(parent)
            members = [update for update in updates if slot in update.diffs]
            names = [update.participant for update in members]
            features = compute_points(
                self.select_features(update.main_diff) for update in members
            )
            halves = self._halve_cluster(features, state.sizes(names, {}))
            if halves is None:
                continue
            new = max([self.count_clusters(state) - 1, *assignment.values()]) + 1
            for name, is_other_half in zip(names, halves):
                if is_other_half:
                    assignment[name] = new
        return assignment

    def _choose_half(
        self,
        state: ServerState,
        update: Update,
        parent: int,
        child: int,
    ) -> int:
        """The half whose mean update at the split is closer by cosine similarity; ties go to the parent's id."""
        # The halves' mean updates at the split, and the update of the participant to the same model.
        start = self.select_features(state.bank[parent_slot(child)])
        row = self.select_features(update.main_diff)[None]
        distances = []
        for left in (False, True):
            half = self.select_features(state.bank[half_slot(child, left)])
            distance = compute_distances(row, (half - start)[None], "cosine")
            distances.append(float(distance[0, 0]))
        stayed, left_distance = distances
        return child if left_distance < stayed else parent

    def _list_ripe(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> list[int]:
        """The clusters with ||sum psi_i u_i|| < eps1 and max ||u_i|| > eps2, and at least two present members."""
        if state.round < self.min_rounds:
            return []
        # The norm of each cluster's mean update, and its members' norms.
        sums: dict[str, np.ndarray] = {}
        weights: dict[str, float] = {}
        norms: dict[str, list[float]] = {}
        for update, slot in self._iterate_trained(updates):
            row = self.select_features(update.main_diff).astype(np.float64)
            weight = self.weight(update)
            sums[slot] = sums.get(slot, 0.0) + weight * row
            weights[slot] = weights.get(slot, 0.0) + weight
            norms.setdefault(slot, []).append(float(np.linalg.norm(row)))
        ripe = []
        for k in range(self.count_clusters(state)):
            slot = cluster_slot(k)
            if len(norms.get(slot, ())) < 2:
                continue
            # The members stand still together, although one of them still moves.
            is_still = np.linalg.norm(sums[slot]) < self.eps1 * weights[slot]
            if is_still and max(norms[slot]) > self.eps2:
                ripe.append(k)
        return ripe

    def _halve_cluster(
        self,
        features: np.ndarray,
        sizes: Sizes | None,
    ) -> np.ndarray | None:
        """0 or 1 for each member, by cosine similarity; None where gamma_max or the members' sizes forbid the split.

        Both halves need enough members in this round: what they moved is kept as two means.
        """
        # The bipartition by the cosine similarity of the updates.
        halves = join_nearest(features, "cosine", self.linkage, k=2)
        if sizes is not None:
            halves = sizes.assigned(
                halves,
                partial(compute_distances_to_means, features, halves, "cosine"),
                needed=(0, 1),
            )
            if not sizes.met(halves, needed=(0, 1)):
                return None
        if self.gamma_max is None:
            return halves
        halves_apart = compute_distances(
            features[halves == 0], features[halves == 1], "cosine"
        )
        largest_similarity = 1 - halves_apart.min()
        if largest_similarity < np.sqrt((1 - self.gamma_max) / 2):
            return halves
        return None

    @staticmethod
    def _iterate_trained(updates: Iterable[Update]) -> Iterator[tuple[Update, str]]:
        """The updates to clusters' models, with their slots, without those that only choose a half."""
        for update in updates:
            for slot in update.diffs:
                if is_cluster(slot):
                    yield update, slot

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """A model counts in the cluster that was trained, also where that is split; nowhere where it only chose.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        return {
            slot: means
            for slot, means in self.count_by_slot(update).items()
            if is_cluster(slot)
        }

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """The weighted mean in each cluster as it was before this round's splits; both halves start from it.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        bank = self.compute_means(state, updates, assignment)
        clusters = {cluster_slot(k): k for k in range(self.count_clusters(state))}
        parents = {}
        for update, slot in self._iterate_trained(updates):
            child = assignment[update.participant]
            if child != clusters[slot]:
                parents[child] = clusters[slot]

        # Both halves of a split cluster start from its mean. What was sent stays for who was absent.
        for child, parent in sorted(parents.items()):
            bank[cluster_slot(child)] = bank[cluster_slot(parent)]
            bank[parent_slot(child)] = state.bank[cluster_slot(parent)]
        bank.update(self._average_halves(state, updates, assignment, parents))
        splits = [*state.extras[SPLITS], *(parents[child] for child in sorted(parents))]
        settled = dict(state.extras[SETTLED])
        for name in assignment:
            settled[name] = self.open_split(state, name) or len(splits)
        return state.after(bank, assignment, splits=splits, settled=settled)

    def _average_halves(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
        parents: dict[int, int],
    ) -> dict[str, Params]:
        """The mean models of the halves of clusters that are split, for participants that return later."""
        # Only models that began at the model that is split.
        children = {cluster_slot(parent): child for child, parent in parents.items()}
        means: dict[str, WeightedMean] = {}
        for update, slot in self._iterate_trained(updates):
            if slot not in children:
                continue
            child = children[slot]
            half = half_slot(child, assignment[update.participant] == child)
            mean = means.setdefault(half, WeightedMean(state.bank[slot].layout))
            mean.add(state.rebuild_model(update), self.weight(update))
        models = {}
        for half, mean in means.items():
            child = int(half.rpartition("-")[2])
            models[half] = mean.result(state.bank[cluster_slot(parents[child])])
        return models

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
            slot: Served((model,))
            for slot, model in state.bank.items()
            if is_cluster(slot)
        }
