# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAC: personal models held near their cluster's centre, a global embedding, low-rank cosine similarity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics.pairwise import euclidean_distances

from cfl_flare.archive import Archive
from cfl_flare.clustering.kmeans import first_kmeans
from cfl_flare.clustering.lowrank import directions, mapped, similarity
from cfl_flare.clustering.number import changes, looseness
from cfl_flare.config import require
from cfl_flare.methods.base import Assignment, Download, Method, ServerState, Update
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.params import Layout, Params, weighted_mean
from cfl_flare.training.learner import Learner
from cfl_flare.training.penalties import Pull, Term

PHI = "phi"


@dataclass(frozen=True, kw_only=True)
class FedAC(Method):
    """Adaptive clustered FL: a participant keeps its own model omega_i = (phi_i, h_i) and predicts with it.

    The server knows each participant's latest model, on disk, and clusters all of them in each round, also those that do
    not take part in it.

    Attributes:
        k: number of clusters to begin with.
        mu: mu/2 ||omega - Omega_c(i)||^2 holds a model near its cluster's centre.
        lam: lambda/2 ||phi - Phi||^2 holds its embedding near the global one.
        likeness: ``lrcos``, cosine of models mapped to few dimensions (Alg. 2); ``l2``, their distance (the ablation).
        dimensions: D of the map.
        map_every: rounds after which the map is fitted anew, on the round's models.
        tuning: let the number of clusters change (Alg. 3).
        low: a; a cluster with G_k below it is merged into the nearest one.
        high: b; a cluster with G_k above it is split.
        cooldown: rounds in which a change is not taken back.
        seed: of k-means++.
    """

    name: ClassVar[str] = "fedac"
    paper: ClassVar[str] = "Zhang et al. 2024, Alg. 1-3"

    k: int
    mu: float = 0.1
    lam: float = 0.1
    likeness: str = "lrcos"
    dimensions: int = 50
    map_every: int = 100
    tuning: bool = True
    low: float = 0.2
    high: float = 0.8
    cooldown: int = 10
    seed: int = 0

    def start(self, initial: Callable[[int], Params]) -> ServerState:
        """One common model, and its embedding."""
        model = initial(0)
        return ServerState(bank={GLOBAL: model, PHI: model.take(model.layout.backbone)})

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Its cluster's centre, or before it has one the common model, and the global embedding (Alg. 1, line 5)."""
        known = state.assignment.get(participant)
        return Download((GLOBAL if known is None else cluster_slot(known), PHI))

    def terms(self, learner: Learner, download: Download, own: str) -> list[Term]:
        """Both regularisers (Eq. 2), beside any other penalty; without a cluster there is no centre to be held near."""
        centre, phi = download.model(own), download.model(PHI)
        near = [Pull(self.mu, centre.part("all"), centre.layout.select("all"))] if own != GLOBAL else []
        alike = Pull(self.lam, phi.part("all"), centre.layout.select("backbone"))
        return [*near, alike, *super().terms(learner, download, own)]

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Goes on with its own model; one that was lost starts from the centre (Alg. 1, LocalUpdate)."""
        own, centre = download.slots[0], download.models[0]
        trained = learner.train(self.serve(learner, download), self.terms(learner, download, own))
        learner.memory["own"] = trained
        return Update(learner.participant, learner.samples, {own: trained - centre})

    def serve(self, learner: Learner, download: Download) -> Params:
        """Its own model."""
        return learner.memory.get("own") or download.models[0]
