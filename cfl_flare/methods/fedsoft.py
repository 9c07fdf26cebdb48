# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedSoft: a participant's data is a mix of several clusters', and its model is held near each by its share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.floor import Mixture, shares_of
from cfl_flare.core.params import Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.personal import PERSONAL
from cfl_flare.methods.state import PLAIN, Assignment, Counts, Download, ServerState, Traits, Update
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Pull

SHARES = "shares"
# In place of a share of 0, so that a cluster that nobody belongs to goes on (sec. 4).
SMALLEST = 1e-4


@dataclass(frozen=True, kw_only=True)
class FedSoft(Method):
    """Each participant has one model of its own, w_i, which it sends, and which counts in all clusters by its shares.

    Share u_ik is the part of its training samples for which Theta_k has the smallest loss of all clusters' models.
    """

    name: ClassVar[str] = "fedsoft"
    paper: ClassVar[str] = "Ruan and Joe-Wong 2022, Alg. 1"

    k: int = setting(help="number of clusters K; each model starts from its own seed", ge=1, le=1000)
    every: int = setting(2, help="rounds tau from one estimate of the shares to the next", ge=1)
    lam: float = setting(0.1, help="lambda of lambda/2 sum_k u_ik ||w_i - Theta_k||^2; 0.01 on CIFAR-10", ge=0)

    @property
    def traits(self) -> Traits:
        shared = replace(PLAIN, clusters=self.k, joins_by="shares of its samples that each model fits best", mixes=True)
        return replace(shared, assigns_on_site=True, mergeable=True, compares_samples=True, queries=None)

    def start(self, initial: Callable[[int], Params], participants: Sequence[str] = ()) -> ServerState:
        return ServerState({slot: initial(k) for k, slot in enumerate(self.slots)})

    def distribute(self, state: ServerState, participant: str) -> Download:
        """All K models, and its shares; every tau rounds, and of who has none, new ones must come back."""
        choices, known = self.choices(state), state.assignment.get(participant)
        sent = Download(tuple(choices.values()), choices=choices)
        if known is None or state.round % self.every == 0:
            return replace(sent, arrays={SHARES: (len(choices),)})
        return replace(sent, scalars={SHARES: {str(k): share for k, share in shares_of(known).items()}})

    def shares(self, learner: Learner, download: Download) -> np.ndarray:
        """u_i: those that the server has, or new ones by the losses of each training sample (Eq. 2)."""
        if SHARES in download.scalars:
            known = download.scalars[SHARES]
            return np.array([known.get(str(k), SMALLEST) for k in download.choices])
        best = learner.sample_losses([download.model(slot) for slot in download.choices.values()]).argmin(axis=0)
        return np.maximum(np.bincount(best, minlength=len(download.choices)) / learner.samples, SMALLEST)

    def local_update(self, learner: Learner, download: Download) -> Update:
        """w_i by a proximal step near all Theta_k (Eq. 4); it goes as a difference from that of the largest share."""
        shares, slots = self.shares(learner, download), list(download.choices.values())
        largest = int(shares.argmax())
        near = [Pull.to(self.lam * share, download.model(slot)) for slot, share in zip(slots, shares.tolist())]
        start = learner.memory.get(PERSONAL) or download.model(slots[largest])
        learner.memory[PERSONAL] = model = learner.train(start, [*near, *self.terms(download, slots[largest])])
        diffs = {slots[largest]: model - download.model(slots[largest])}
        arrays = {} if SHARES in download.scalars else {SHARES: np.float32(shares)}
        return Update(learner.participant, learner.samples, diffs, list(download.choices)[largest], arrays)

    def serve(self, learner: Learner, download: Download) -> Params:
        """w_i; before its first round the model of the largest share."""
        return learner.memory.get(PERSONAL) or download.models[int(self.shares(learner, download).argmax())]

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """The shares of each participant, new or as they were; what a site sent is brought into range."""
        ids = list(self.choices(state))
        new = {u.participant: np.clip(u.arrays[SHARES].astype(float), SMALLEST, 1) for u in updates if u.arrays}
        mixed = {name: Mixture(dict(zip(ids, shares.tolist()))) for name, shares in new.items()}
        return {**{u.participant: state.assignment[u.participant] for u in updates if not u.arrays}, **mixed}

    def counts_in(self, state: ServerState, update: Update, assignment: Assignment) -> Counts:
        """v_ik = u_ik n_i, of the sum of all (Eq. 3)."""
        return self.by_cluster(update, assignment)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Theta_k = sum_i v_ik w_i."""
        return state.after(self.centres(state, updates, assignment), assignment)
