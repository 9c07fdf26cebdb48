# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLUX: participants are clustered once, by descriptors of their data; newcomers need no labels to be placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import by_density, distances_to_means
from cfl_flare.clustering.kmeans import nearest, numbered
from cfl_flare.clustering.measures import scaled
from cfl_flare.core.config import require
from cfl_flare.core.params import Layout
from cfl_flare.core.seeds import stream
from cfl_flare.core.settings import SEED, setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.slots import GLOBAL, cluster_slot, is_cluster
from cfl_flare.methods.state import PLAIN, Assignment, Counts, Download, Plan, ServerState, Traits, Update
from cfl_flare.training.learner import Learner

DESCRIPTOR, CLASSES, CENTROIDS = "descriptor", "classes", "centroids"


@dataclass(frozen=True, kw_only=True)
class FLUX(Method):
    """FedAvg, then one round of descriptors and no training, then FedAvg in each cluster. The data give their number.

    A descriptor has mean and standard deviation of projected features, of all samples and of those of each class.
    """

    name: ClassVar[str] = "flux"
    paper: ClassVar[str] = "Fenoglio et al. 2025"

    warmup: int = setting(3, help="rounds of FedAvg before the round of descriptors", ge=0)
    dimensions: int = setting(10, help="numbers l to which a sample's features are projected", ge=1, le=1000)
    fewest: int = setting(10, help="of a class of fewer training samples nothing is sent, nor of fewer in all", ge=2)
    seed: int = setting(0, help="seed of the random projection", bounds=SEED)

    @property
    def traits(self) -> Traits:
        return replace(
            PLAIN, clusters=1, joins_by="nearest mean of the clusters' descriptors", mergeable=True, queries=None
        )

    def check(self, layout: Layout, rounds: int | None = None) -> None:
        super().check(layout, rounds)
        refusal = "method flux: classes are the outputs of a last torch.nn.Linear layer, and none travels; take a model"
        require(bool(layout.head.entries), f"{refusal} with one, or leave it out of private")
        enough = rounds is None or rounds > self.warmup + 1
        require(enough, f"method flux: warmup = {self.warmup} leaves the clusters none of {rounds} rounds; lower it")

    def clusters_in(self, state: ServerState) -> int:
        return sum(map(is_cluster, state.bank))

    def describes(self, state: ServerState) -> bool:
        """Whether the coming round is that of descriptors."""
        return CENTROIDS not in state.arrays and state.round >= self.warmup

    def plan(self, state: ServerState) -> Plan:
        return Plan(everyone=True, fewest=2) if self.describes(state) else Plan()

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Its cluster's model; without one the common model, which is frozen then, to describe its data with it."""
        if participant in state.assignment:
            return Download((cluster_slot(state.assignment[participant]),))
        if CENTROIDS not in state.arrays and not self.describes(state):
            return Download((GLOBAL,))
        classes = max(2, state.bank[GLOBAL].layout.head.entries[0].shape[0])
        shape = (classes + 1, 1 + 2 * self.dimensions)
        return Download((GLOBAL,), returns=(), arrays={DESCRIPTOR: shape}, scalars={CLASSES: classes})

    def local_update(self, learner: Learner, download: Download) -> Update:
        if CLASSES not in download.scalars:
            return super().local_update(learner, download)
        rows = self.described(learner.features(download.models[0]), learner.labels, download.scalars[CLASSES])
        return Update(learner.participant, learner.samples, arrays={DESCRIPTOR: rows})

    def described(self, features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
        """Rows ``(1 + classes, 1 + 2l)``: 1, mean and deviation; of all, then of each class; zeros if there are few."""
        normal = stream(self.seed, "projection").standard_normal((features.shape[1], self.dimensions))
        projected = features @ (normal / np.sqrt(features.shape[1]))
        of_class = [labels == c for c in range(classes)] if labels.ndim == 1 and labels.dtype.kind in "iu" else []
        rows = np.zeros((1 + classes, 1 + 2 * self.dimensions), np.float32)
        for i, chosen in enumerate([np.ones(len(projected), bool), *of_class]):
            some = projected[chosen]
            if len(some) >= self.fewest:
                rows[i] = [1, *some.mean(axis=0), *some.std(axis=0)]
        return rows

    def vector(self, state: ServerState, update: Update) -> np.ndarray:
        """Its descriptor; in other rounds the model that it trained, or the common one."""
        if self.describes(state):
            return np.asarray(update.arrays[DESCRIPTOR]).ravel()
        return self.features(state.trained(update) if update.diffs else state.bank[GLOBAL])

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """DBSCAN on scaled descriptors, once; later the nearest mean, by what needs no labels."""
        before = {u.participant: state.assignment[u.participant] for u in updates if u.participant in state.assignment}
        sent = {u.participant: u.arrays[DESCRIPTOR] for u in updates if u.arrays and u.arrays[DESCRIPTOR][0, 0] == 1}
        if not sent:
            return before
        if not self.describes(state):
            rows = np.stack([(row[0, 1:] - state.arrays["low"]) / state.arrays["width"] for row in sent.values()])
            return {**before, **dict(zip(sent, nearest(rows, state.arrays[CENTROIDS]).tolist()))}
        rows = scaled(np.stack([*sent.values()]))[0]
        labels = numbered(by_density(rows))
        return state.placed([*sent], labels, lambda: distances_to_means(rows, labels, "euclidean"))

    def counts_in(self, state: ServerState, update: Update, assignment: Assignment) -> Counts:
        return self.by_slot(update)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """The mean of each model that was trained; after the descriptors each cluster begins with the common one."""
        after = state.after(self.means(state, updates), assignment)
        if not self.describes(state) or not assignment:
            return after
        names = [u.participant for u in updates if u.participant in assignment]
        described = {u.participant: u.arrays[DESCRIPTOR] for u in updates}
        _, low, width = scaled(np.stack([described[name] for name in names]))
        rows = np.stack([(described[name][0, 1:] - low) / width for name in names])
        labels = np.array([assignment[name] for name in names])
        ids = range(labels.max() + 1)
        means = np.stack([rows[labels == k].mean(axis=0) if (labels == k).any() else rows.mean(axis=0) for k in ids])
        models = dict.fromkeys(map(cluster_slot, ids), state.bank[GLOBAL])
        return replace(after, bank={**after.bank, **models}, arrays={CENTROIDS: means, "low": low, "width": width})
