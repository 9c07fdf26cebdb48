# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""CLoVE: participants are clustered by the losses that K models have on their data.

* Randeep Bhatia, Nikos Papadis, Murali Kodialam, T. V. Lakshman, Sayak Chakrabarty: CLoVE: Personalized Federated
  Learning through Clustering of Loss Vector Embeddings, ICML 2026, https://arxiv.org/abs/2506.22427.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import choose_by_silhouette
from cfl_flare.clustering.kmeans import (
    STARTS_ON_SHORT_ROWS,
    find_nearest,
    match_clusters,
    run_first_kmeans,
)
from cfl_flare.core.params import Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.seeded import SeededMethod
from cfl_flare.methods.slots import cluster_slot, sort_by_number
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
from cfl_flare.training.learner import Learner
from cfl_flare.training.privacy import Queries

# The array's name is that of the metric, so that a site's EgressFilter treats it so.
LOSSES = "loss"
# Names the mean of a cluster in results. No participant's name holds a slash.
MEAN = "mean/"


@dataclass(frozen=True, kw_only=True)
class CLoVE(SeededMethod):
    """K models from K seeds; k-means over the participants' vectors of losses says who trains which of them.

    A round of losses, in which nobody trains, comes before each round of training, until the clusters are stable.
    """

    name: ClassVar[str] = "clove"
    paper: ClassVar[str] = "Bhatia et al. 2026"

    k: int = setting(
        help="number of models K, each from its own seed; the most clusters",
        ge=1,
        le=1000,
    )
    silhouette: bool = setting(
        False,
        help="take the number of clusters, 2 to k, of the best silhouette of the losses",
    )
    stable: int | None = setting(
        3,
        help="clusterings in a row that give each participant the same cluster and are the last; None: never",
        ge=2,
    )

    @property
    def traits(self) -> Traits:
        named = replace(
            PLAIN,
            clusters=self.k,
            joins_by="nearest mean of the clusters' losses",
            by_metric=True,
        )
        return replace(named, averages_only=True, queries=Queries(losses=1))

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """K models from K seeds.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        return ServerState(self.build_models(initial), extras={"same": {}})

    def measures(self, state: ServerState) -> bool:
        """Whether the coming round is one of losses.

        Args:
            state: the server's state between two rounds.
        """
        return not (state.extras.get("trains") or state.extras.get("frozen"))

    def plan(self, state: ServerState) -> Plan:
        """After a round of losses those train that sent some; a clustering needs a participant for each cluster.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        if self.measures(state):
            return Plan(fewest=2 if self.silhouette else self.k)
        if state.extras.get("frozen"):
            return Plan()
        return Plan(draw=state.extras["measured"])

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """Its cluster's model, or all for a round of losses; who missed that sends losses of the same models later.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        cluster = state.assignment.get(participant)
        measures = self.measures(state)
        if participant in state.arrays and not measures:
            return Download((cluster_slot(state.assignment[participant]),))
        slots = self.slots if measures else self._list_measured(state)
        served = slots
        if cluster is not None and measures:
            served = (cluster_slot(cluster),)
        return Download(
            served,
            to_train=tuple(slot for slot in slots if slot not in served),
            returns=(),
            arrays={LOSSES: (self.k,)},
            scalars={LOSSES: len(served) == 1},
        )

    def _list_measured(self, state: ServerState) -> tuple[str, ...]:
        """The slots of the K models as they were in the last round of losses."""
        return tuple(f"measured-{state.extras['measured']}-{k}" for k in range(self.k))

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """L_ik, the mean loss of Theta_k on its training data; or it trains its cluster's model.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        if LOSSES not in download.scalars:
            return super().local_update(learner, download)
        models = [download.model(slot) for slot in sort_by_number(download.slots)]
        losses = learner.losses(models).astype(np.float32)
        return Update(learner.participant, learner.samples, arrays={LOSSES: losses})

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params:
        """Its cluster's model; that with the smallest loss, if it has no cluster.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        if download.scalars.get(LOSSES, True):
            return download.models[0]
        return download.models[learner.losses(download.models).argmin()]

    def compute_vector(
        self,
        state: ServerState,
        update: Update,
    ) -> np.ndarray:
        """The participant's losses, those of this round or the last that it sent.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            ``(d,)`` float32.
        """
        if update.arrays:
            return np.asarray(update.arrays[LOSSES])
        return np.asarray(state.arrays[update.participant])

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """K-means over the rows L_i, its clusters matched to the models; who is late goes to the nearest mean.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        measured = [update for update in updates if update.arrays]
        trained = [update.participant for update in updates if not update.arrays]
        before = {name: state.assignment[name] for name in trained}
        if not measured:
            return before
        names = [update.participant for update in measured]
        rows = np.stack([self.compute_vector(state, update) for update in measured])
        rows = rows.astype(np.float64)
        if not self.measures(state):
            return {**before, **self.place_latecomers(state, names, rows)}

        # K-means on the vectors of losses.
        k = choose_by_silhouette(rows, self.k) if self.silhouette else self.k
        labels = run_first_kmeans(
            rows,
            k,
            np.ones(len(rows)),
            STARTS_ON_SHORT_ROWS,
            sizes=state.sizes(names, {}),
        )

        # Each cluster takes the model whose losses are smallest: a bipartite matching.
        clusters = match_clusters(labels, rows)[labels]
        return dict(zip(names, clusters.tolist()))

    def place_latecomers(
        self,
        state: ServerState,
        names: Sequence[str],
        rows: np.ndarray,
    ) -> Assignment:
        """Place each latecomer in the cluster with the nearest mean of losses.

        Args:
            state: the state, with the losses of the last clustering.
            names: the latecomers.
            rows: their losses ``(m, K)``.

        Returns:
            The cluster of each latecomer.
        """
        means = self.mean_losses(state)
        clusters = sorted(means)
        centres = np.stack([means[cluster] for cluster in clusters])
        nearest = find_nearest(rows, centres)
        return {name: clusters[place] for name, place in zip(names, nearest)}

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """Where it was trained, which is its participant's cluster.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        return self.count_by_slot(update)

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """Theta_k, the weighted mean of the models trained in cluster k; after losses, they say who trains what.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        sent = {}
        for update in updates:
            if update.arrays:
                sent[update.participant] = np.asarray(update.arrays[LOSSES])
        if not self.measures(state):
            means = self.compute_means(state, updates)
            after = state.after(means, assignment, trains=False)
            return replace(after, arrays={**state.arrays, **sent})

        # The models stay, and are kept as they were measured, for who missed the round.
        same = self.count_repeats(state, assignment)
        after = state.after(
            {},
            assignment,
            trains=True,
            frozen=self.is_stable(same, assignment),
            measured=state.round,
            same=same,
        )
        bank = {slot: state.bank[slot] for slot in self.slots}
        measured = dict(zip(self._list_measured(after), bank.values()))
        return replace(after, bank={**bank, **measured}, arrays=sent)

    def is_stable(self, same: Mapping[str, int], assignment: Assignment) -> bool:
        """Whether each participant had the same cluster often enough to keep it.

        Args:
            same: how many clusterings in a row gave each participant its cluster.
            assignment: the clusters of the round's participants.

        Returns:
            Whether this clustering is the last one.
        """
        if self.stable is None:
            return False
        return all(same[name] >= self.stable for name in assignment)

    def count_repeats(
        self,
        state: ServerState,
        assignment: Assignment,
    ) -> dict[str, int]:
        """Count the clusterings in a row that gave each participant its cluster. Absent participants keep their count.

        Args:
            state: before this clustering, with the counts so far.
            assignment: the clusters of the round's participants.

        Returns:
            The counts of all participants that were ever in a round of losses.
        """
        same: dict[str, int] = dict(state.extras["same"])
        for name, cluster in assignment.items():
            if state.assignment.get(name) == cluster:
                same[name] = same.get(name, 0) + 1
            else:
                same[name] = 1
        return same

    def mean_losses(self, state: ServerState) -> dict[int, np.ndarray]:
        """The mean vector of losses ``(K,)`` of each cluster; of a published state the one that was published.

        Args:
            state: the server's state between two rounds.
        """
        published: dict[int, np.ndarray] = {}
        rows: dict[int, list[np.ndarray]] = {}
        for name, row in state.arrays.items():
            if name.startswith(MEAN):
                published[int(name.removeprefix(MEAN))] = row
            elif name in state.assignment:
                rows.setdefault(state.assignment[name], []).append(row)
        means = {k: np.mean(of_cluster, axis=0) for k, of_cluster in rows.items()}
        return {**means, **published}

    def publish(self, state: ServerState) -> ServerState:
        """A cluster's mean losses place a newcomer. A participant's own losses on its training samples stay behind.

        Args:
            state: the server's state between two rounds.

        Returns:
            The state as the results of a run hold it.
        """
        means = self.mean_losses(state).items()
        return replace(state, arrays={f"{MEAN}{k}": mean for k, mean in means})

    def join(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """By its losses of the models that were compared last, even if the run ended before a round of losses.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            The state in which the newcomer may be assigned.
        """
        if self.measures(state):
            extras = {**state.extras, "trains": True}
            return replace(state, round=state.round + 1, extras=extras)
        arrays = dict(state.arrays)
        if update.arrays:
            arrays[update.participant] = np.asarray(update.arrays[LOSSES])
        return replace(super().join(state, update), arrays=arrays)
