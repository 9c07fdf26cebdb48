# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""IFCA and HypCluster: participants choose among K models the one that fits them best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from cfl_flare.config import require
from cfl_flare.methods.base import Assignment, Download, Method, ServerState, Update, cluster_slot
from cfl_flare.params import Params
from cfl_flare.training.learner import Learner


@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """Iterative federated clustering (HypCluster is the same algorithm): argmin over K models of the own loss.

    Attributes:
        k: number of clusters K; each model starts from its own seed.
        assignment_samples: how many of its training samples a participant reads to choose; None reads them all.
    """

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh et al. 2020; Mansour et al. 2020; thesis Eq. 3.1"
    assigns_on_site: ClassVar[bool] = True

    k: int
    assignment_samples: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.k >= 1, f"method ifca: k = {self.k} should be >= 1")
        samples = self.assignment_samples
        require(samples is None or samples >= 1, f"method ifca: assignment_samples = {samples} should be >= 1 or None")

    @property
    def clusters(self) -> int:
        """K."""
        return self.k

    def start(self, initial: Callable[[int], Params]) -> ServerState:
        """K models from K seeds."""
        return ServerState(bank={cluster_slot(k): initial(k) for k in range(self.k)})

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Everyone compares all K models."""
        return Download(tuple(cluster_slot(k) for k in range(self.k)))

    def choose(self, learner: Learner, download: Download) -> int:
        """c(i) = argmin_k loss(Theta_k, own training data), ties to the lowest k (thesis Eq. 3.1b)."""
        return int(learner.losses(download.models, self.assignment_samples).argmin())

    def moved_slots(self, slots: tuple[str, ...], cluster: int | None) -> tuple[str, ...]:
        """The chosen model alone."""
        return () if cluster is None else (slots[cluster],)

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Trains a copy of the chosen model."""
        chosen = self.choose(learner, download)
        centre = download.models[chosen]
        diff = learner.train(centre) - centre
        return Update(learner.participant, learner.samples, {cluster_slot(chosen): diff}, cluster=chosen)

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """The participants have chosen already."""
        return {u.participant: u.cluster for u in updates if u.cluster is not None}

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Averages inside each cluster with psi (thesis Eq. 3.1a); an empty cluster keeps its model."""
        return state.after(self.centres(state, updates, assignment), assignment)

    def serve(self, learner: Learner, download: Download) -> Params:
        """The model that fits best now."""
        return download.models[self.choose(learner, download)]
