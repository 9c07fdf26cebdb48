# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""CLoVE: participants are clustered by the losses that K models have on their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import number_by_silhouette
from cfl_flare.clustering.kmeans import (
    STARTS_ON_SHORT_ROWS,
    first_kmeans,
    matched,
    nearest,
)
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method, cluster_slot
from cfl_flare.methods.slots import by_number
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
from cfl_flare.training.privacy import Queries

# The array's name is that of the metric, so that a site's EgressFilter treats it so.
LOSSES = "loss"
# Names the mean of a cluster in results. No participant's name holds a slash.
MEAN = "mean/"


@dataclass(frozen=True, kw_only=True)
class CLoVE(Method):
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
        self, initial: Callable[[int], Params], participants: Sequence[str] = ()
    ) -> ServerState:
        return ServerState(
            {slot: initial(k) for k, slot in enumerate(self.slots)}, extras={"same": {}}
        )

    def measures(self, state: ServerState) -> bool:
        """Whether the coming round is one of losses."""
        return not (state.extras.get("trains") or state.extras.get("frozen"))

    def plan(self, state: ServerState) -> Plan:
        """After a round of losses those train that sent some; a clustering needs a participant for each cluster."""
        if self.measures(state):
            return Plan(fewest=2 if self.silhouette else self.k)
        return Plan(
            draw=None if state.extras.get("frozen") else state.extras["measured"]
        )

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Its cluster's model, or all for a round of losses; who missed that sends losses of the same models later."""
        cluster, trains = state.assignment.get(participant), participant in state.arrays
        if trains and not self.measures(state):
            return Download((cluster_slot(state.assignment[participant]),))
        slots = self.slots if self.measures(state) else self._measured(state)
        served = (
            (cluster_slot(cluster),)
            if cluster is not None and self.measures(state)
            else slots
        )
        others = tuple(slot for slot in slots if slot not in served)
        scalars = {LOSSES: len(served) == 1}
        return Download(
            served,
            to_train=others,
            returns=(),
            arrays={LOSSES: (self.k,)},
            scalars=scalars,
        )

    def _measured(self, state: ServerState) -> tuple[str, ...]:
        """The slots of the K models as they were in the last round of losses."""
        return tuple(f"measured-{state.extras['measured']}-{k}" for k in range(self.k))

    def local_update(self, learner: Learner, download: Download) -> Update:
        """L_ik, the mean loss of Theta_k on its training data; or it trains its cluster's model."""
        if LOSSES not in download.scalars:
            return super().local_update(learner, download)
        losses = learner.losses(
            [download.model(slot) for slot in by_number(download.slots)]
        )
        return Update(
            learner.participant,
            learner.samples,
            arrays={LOSSES: losses.astype(np.float32)},
        )

    def serve(self, learner: Learner, download: Download) -> Params:
        """Its cluster's model; that with the smallest loss, if it has no cluster."""
        return download.models[
            0
            if download.scalars.get(LOSSES, True)
            else learner.losses(download.models).argmin()
        ]

    def vector(self, state: ServerState, update: Update) -> np.ndarray:
        return np.asarray(
            update.arrays[LOSSES] if update.arrays else state.arrays[update.participant]
        )

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """K-means over the rows L_i, its clusters matched to the models; who is late goes to the nearest mean."""
        names = [u.participant for u in updates if u.arrays]
        before = {
            u.participant: state.assignment[u.participant]
            for u in updates
            if not u.arrays
        }
        if not names:
            return before
        rows = np.stack([self.vector(state, u) for u in updates if u.arrays]).astype(
            np.float64
        )
        if not self.measures(state):
            means = self.mean_losses(state)
            ids = sorted(means)
            centres = np.stack([means[k] for k in ids])
            return {
                **before,
                **{name: ids[i] for name, i in zip(names, nearest(rows, centres))},
            }
        k = number_by_silhouette(rows, self.k) if self.silhouette else self.k
        equal = np.ones(len(rows))
        labels = first_kmeans(
            rows, k, equal, STARTS_ON_SHORT_ROWS, sizes=state.sizes(names, {})
        )
        return dict(zip(names, matched(labels, rows)[labels].tolist()))

    def counts_in(
        self, state: ServerState, update: Update, assignment: Assignment
    ) -> Counts:
        """Where it was trained, which is its participant's cluster."""
        return self.by_slot(update)

    def aggregate(
        self, state: ServerState, updates: Sequence[Update], assignment: Assignment
    ) -> ServerState:
        """Theta_k, the weighted mean of the models trained in cluster k; after losses, they say who trains what."""
        sent = {
            u.participant: np.asarray(u.arrays[LOSSES]) for u in updates if u.arrays
        }
        if not self.measures(state):
            after = state.after(self.means(state, updates), assignment, trains=False)
            return replace(after, arrays={**state.arrays, **sent})
        same = self.count_repeats(state, assignment)
        frozen = self.stable is not None and all(
            same[name] >= self.stable for name in assignment
        )
        after = state.after(
            {}, assignment, trains=True, frozen=frozen, measured=state.round, same=same
        )
        bank = {slot: state.bank[slot] for slot in self.slots}
        return replace(
            after,
            bank={**bank, **dict(zip(self._measured(after), bank.values()))},
            arrays=sent,
        )

    def count_repeats(
        self, state: ServerState, assignment: Assignment
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
        """The mean vector of losses ``(K,)`` of each cluster; of a published state the one that was published."""
        published: dict[int, np.ndarray] = {}
        rows: dict[int, list[np.ndarray]] = {}
        for name, row in state.arrays.items():
            if name.startswith(MEAN):
                published[int(name.removeprefix(MEAN))] = row
            elif name in state.assignment:
                rows.setdefault(state.assignment[name], []).append(row)
        return {
            **{k: np.mean(of_cluster, axis=0) for k, of_cluster in rows.items()},
            **published,
        }

    def publish(self, state: ServerState) -> ServerState:
        """A cluster's mean losses place a newcomer. A participant's own losses on its training samples stay behind."""
        return replace(
            state,
            arrays={f"{MEAN}{k}": mean for k, mean in self.mean_losses(state).items()},
        )

    def join(self, state: ServerState, update: Update) -> ServerState:
        """By its losses of the models that were compared last, even if the run ended before a round of losses."""
        if self.measures(state):
            return replace(
                state, round=state.round + 1, extras={**state.extras, "trains": True}
            )
        rows = (
            {update.participant: np.asarray(update.arrays[LOSSES])}
            if update.arrays
            else {}
        )
        return replace(super().join(state, update), arrays={**state.arrays, **rows})

    def models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        return {slot: Served((state.bank[slot],)) for slot in self.slots}
