# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FeSEM and WeCFL: the server clusters the participants' trained models by k-means.

* Jie Ma, Guodong Long, Tianyi Zhou, Jing Jiang, Chengqi Zhang: On the Convergence of Clustered Federated Learning,
  2022, https://arxiv.org/abs/2202.06187 (WeCFL).
* Ming Xie, Guodong Long, Tao Shen, Tianyi Zhou, Xianzhi Wang, Jing Jiang, Chengqi Zhang: Multi-Center Federated
  Learning, 2021, https://arxiv.org/abs/2005.01026 (FeSEM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import compute_distances
from cfl_flare.clustering.floor import Sizes
from cfl_flare.clustering.kmeans import run_first_kmeans, run_lloyd
from cfl_flare.clustering.measures import compute_points
from cfl_flare.core.settings import SEED, setting
from cfl_flare.methods.base import GLOBAL, Method, cluster_slot
from cfl_flare.methods.slots import COMPARED
from cfl_flare.methods.state import (
    CLUSTERED,
    Assignment,
    Counts,
    Download,
    Plan,
    ServerState,
    Traits,
    Update,
    Weighting,
    read_heads,
)

# The label of a participant that has no cluster yet.
LATE = -1


@dataclass(frozen=True, kw_only=True)
class WeCFL(Method):
    """Weighted clustered FL: k-means over the trained models, participants weighted by psi in both steps."""

    name: ClassVar[str] = "wecfl"
    paper: ClassVar[str] = "Ma et al. 2022; thesis Alg. 1, Eq. 3.3"

    k: int = setting(help="number of clusters K", ge=1, le=1000)
    cluster_on: str | tuple[str, ...] = setting("fc", help=COMPARED.format("that are"))
    clustering_rounds: int | None = setting(
        None,
        help="rounds after which the assignment is frozen (few-shot clustering); None never freezes it",
        ge=1,
    )
    starts: int = setting(
        10, help="k-means++ starts of the first E-step; the best is kept", ge=1, le=1000
    )
    seed: int = setting(0, help="seed of those starts", bounds=SEED)

    @property
    def traits(self) -> Traits:
        rule = "centre closest in direction, from the common model"
        return replace(
            CLUSTERED,
            clusters=self.k,
            joins_by=rule,
            cluster_on=self.cluster_on,
            mergeable=True,
        )

    def has_clusters(self, state: ServerState) -> bool:
        """Whether an earlier round has made the K centres.

        Args:
            state: the server's state between two rounds.
        """
        return cluster_slot(0) in state.bank

    def is_frozen(self, state: ServerState) -> bool:
        """Whether the assignment stays as it is from now on (few-shot clustering).

        Args:
            state: the server's state between two rounds.
        """
        if self.clustering_rounds is None:
            return False
        return self.has_clusters(state) and state.round >= self.clustering_rounds

    def plan(self, state: ServerState) -> Plan:
        """Ask for K updates in the first E-step, so that each cluster has a participant.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        return Plan(fewest=1 if self.has_clusters(state) else self.k)

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """Send the centre of the participant's cluster, or the common model before its first assignment.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        cluster = state.assignment.get(participant)
        slot = GLOBAL if cluster is None else cluster_slot(cluster)
        return self.add_penalties(state, Download((slot,)))

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """Assign each participant to a cluster: the E-step (thesis Eq. 3.3b).

        In the papers all participants train in every round. Here a participant may join later.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        names = [update.participant for update in read_heads(updates)]
        labels = np.array([state.assignment.get(name, LATE) for name in names])
        is_late = labels == LATE
        if self.is_frozen(state) and not is_late.any():
            return dict(zip(names, labels.tolist()))

        # The first E-step is k-means++.
        weights = np.array([self.weight(update) for update in read_heads(updates)])
        features, centres = self.compute_features(state, updates)
        if not self.has_clusters(state):
            labels = run_first_kmeans(
                features, self.k, weights, self.starts, self.seed, state.sizes(names)
            )
            return dict(zip(names, labels.tolist()))

        # A participant without a cluster joins the one in whose direction it moved from the common model. In one round
        # a model does not move far. By distance, the centre closest to the common model would always win.
        if is_late.any():
            labels[is_late] = compute_distances(
                features[is_late], centres, "cosine"
            ).argmin(axis=1)

        # All others take k-means steps that begin at the centres. So clusters keep their labels, and a cluster without
        # a participant in this round keeps its centre.
        if not (is_late.all() or self.is_frozen(state)):
            known = ~is_late
            sizes = self.remaining_sizes(state, names, labels)
            labels[known] = run_lloyd(
                features[known], centres, weights[known], sizes=sizes
            )
        return dict(zip(names, labels.tolist()))

    def compute_features(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute the points that k-means sees, relative to the common model.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The trained models' points ``(m, d)`` and the centres' ``(k, d)``. There are no centres before the first
            E-step, and at most as many as can have the minimum size.
        """
        common = self.select_features(state.bank[GLOBAL])
        if self.has_clusters(state):
            slots = self.slots[: state.count_possible(self.k)]
        else:
            slots = ()
        models = (self.compute_vector(state, update) for update in updates)
        centres = (self.select_features(state.bank[slot]) for slot in slots)
        together = compute_points(vector - common for vector in chain(models, centres))
        features, centre_points = np.split(together, [len(updates)])
        return features, centre_points

    def remaining_sizes(
        self,
        state: ServerState,
        names: Sequence[str],
        labels: np.ndarray,
    ) -> Sizes | None:
        """The minimum sizes that those with a cluster have to meet, after latecomers were placed by ``labels``.

        Args:
            state: the server's state between two rounds.
            names: names of participants.
            labels: the cluster of each participant ``(m,)``.
        """
        known = [name for name in names if name in state.assignment]
        placed = {
            name: int(label)
            for name, label in zip(names, labels)
            if name not in state.assignment
        }
        return state.sizes(known, {**state.assignment, **placed})

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """Count a trained model in its participant's new cluster, wherever its training began.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        return self.count_by_cluster(update, assignment)

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """Compute the psi-weighted mean inside each cluster: the M-step (thesis Eq. 3.3a).

        The common model is for participants that have no cluster yet. It becomes the mean of the centres, weighted by
        their clusters' weights in this round (thesis Eq. 5.6).

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        centres = self.compute_centres(state, updates, assignment)
        return self.update_common(state, centres, updates, assignment)


@dataclass(frozen=True, kw_only=True)
class FeSEM(WeCFL):
    """Federated stochastic EM: as WeCFL, but every participant has the same weight in k-means and in the centres."""

    name: ClassVar[str] = "fesem"
    paper: ClassVar[str] = "Xie et al. 2021; thesis Eq. 3.2"

    weighting: Weighting = "uniform"
