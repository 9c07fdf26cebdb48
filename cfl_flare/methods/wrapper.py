# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods made of other methods: the steps of the contract, passed on to the parts in one place."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cfl_flare.core.params import Layout, Params
from cfl_flare.methods.base import Method
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.methods.state import Assignment, Counts, Download, Mapped, Plan, ServerState, Update, heads
from cfl_flare.methods.traits import Traits
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.penalties import Term


@dataclass(frozen=True, kw_only=True)
class Wrapper(Method):
    """A method made of others, one of which leads: the one that clusters, if any does.

    Every step of the contract is defined here, so that none is forgotten. A subclass defines what each part sees of the
    whole, and overrides the steps in which the parts interact.
    """

    @property
    @abstractmethod
    def inner(self) -> tuple[Method, ...]:
        """The parts."""

    @property
    def lead(self) -> int:
        """Index of the part that clusters, or 0 if none does."""
        return next((i for i, part in enumerate(self.inner) if part.clusters), 0)

    @property
    def leader(self) -> Method:
        """The part that clusters."""
        return self.inner[self.lead]

    @abstractmethod
    def state_of(self, state: ServerState, i: int) -> ServerState:
        """The state as part i sees it."""

    @abstractmethod
    def update_of(self, i: int, update: Update) -> Update:
        """An update as part i sees it."""

    def updates_of(self, i: int, updates: Sequence[Update]) -> Sequence[Update]:
        """The updates as part i sees them."""
        return Mapped(updates, partial(self.update_of, i))

    # ---- The contract ----

    @property
    def traits(self) -> Traits:
        """Those of the leading part, or of all by each trait's rule."""
        refusal = "belong to the methods inside it; give them there"
        taken: dict[str, Any] = {"serves_one": False, "takes_penalties": False, "no_penalties": refusal}
        return Traits.of_parts([m.traits for m in self.inner], self.lead, **taken)

    def check(self, layout: Layout, rounds: int | None = None) -> None:
        """Checks all parts."""
        for part in self.inner:
            part.check(layout, rounds)

    @abstractmethod
    def start(self, initial: Callable[[int], Params], participants: Sequence[str] = ()) -> ServerState:
        """The parts' models, from different seeds."""

    def plan(self, state: ServerState) -> Plan:
        """Everyone if a part needs all, sampled as for the leading part; as many updates as any part needs."""
        plans = [part.plan(self.state_of(state, i)) for i, part in enumerate(self.inner)]
        return Plan(any(p.everyone for p in plans), plans[self.lead].draw, max(p.fewest for p in plans))

    @abstractmethod
    def distribute(self, state: ServerState, participant: str) -> Download:
        """The parts' downloads in one."""

    def terms(self, download: Download, own: str) -> list[Term]:
        """None: each part adds its own."""
        return []

    @abstractmethod
    def local_update(self, learner: Learner, download: Download) -> Update:
        """The parts' updates in one."""

    @abstractmethod
    def serve(self, learner: Learner, download: Download) -> Params | Served:
        """The parts' served models in one."""

    @abstractmethod
    def finetuned(self, learner: Learner, served: Params | Served) -> Params | Served:
        """Each part's model after one more local round."""

    def vector(self, state: ServerState, update: Update) -> np.ndarray:
        """As the leading part."""
        return self.leader.vector(self.state_of(state, self.lead), self.update_of(self.lead, update))

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """As the leading part."""
        return self.leader.assign(self.state_of(state, self.lead), self.updates_of(self.lead, updates))

    def counts_in(self, state: ServerState, update: Update, assignment: Assignment) -> Counts:
        """As the leading part."""
        return self.leader.counts_in(self.state_of(state, self.lead), self.update_of(self.lead, update), assignment)

    @abstractmethod
    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Each part's M-step."""

    def clusters_in(self, state: ServerState) -> int:
        """As the leading part."""
        return self.leader.clusters_in(self.state_of(state, self.lead))

    @abstractmethod
    def models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """The parts' models in one."""

    @abstractmethod
    def join(self, state: ServerState, update: Update) -> ServerState:
        """A newcomer joins the parts."""

    def weight(self, update: Update) -> float:
        """As the leading part."""
        return self.leader.weight(update)


@dataclass(frozen=True)
class Clustering:
    """The method that clusters, inside any wrappers, and what it sees: for analysis and for small clusters.

    Attributes:
        method: the method that clusters.
        before: its state when the round's participants were sent their models.
        seen: maps an update to the one that it sees.
        inside: maps a state of the whole to the one that it sees.
    """

    method: Method
    before: ServerState
    seen: Callable[[Update], Update]
    inside: Callable[[ServerState], ServerState]

    @classmethod
    def of(cls, method: Method, before: ServerState) -> Clustering:
        """Unwraps a method."""
        if not isinstance(method, Wrapper):
            return cls(method, before, lambda update: update, lambda state: state)
        wrapper, i = method, method.lead
        found = cls.of(method.leader, method.state_of(before, i))
        return cls(
            found.method,
            found.before,
            lambda update: found.seen(wrapper.update_of(i, update)),
            lambda state: found.inside(wrapper.state_of(state, i)),
        )

    def sees(self, updates: Sequence[Update]) -> bool:
        """Whether participants sent what they are compared by; not where a wrapper trained a model of its own alone."""
        return any(own.diffs or own.arrays for own in map(self.seen, heads(updates)))

    def vector(self, update: Update) -> np.ndarray:
        """The vector by which a participant is compared."""
        return self.method.vector(self.before, self.seen(update))

    def moved(self, update: Update) -> Params | None:
        """The difference that stands for a participant's gradient; None where it trained no model."""
        own = self.seen(update)
        return own.main_diff if own.diffs else None

    def weight(self, update: Update) -> float:
        """psi_i."""
        return self.method.weight(update)

    def centre(self, after: ServerState, cluster: int) -> np.ndarray | None:
        """The vector of a cluster's centre; None where participants are not compared by models.

        The common model stands in for a cluster that was merged into another, and so has no members.
        """
        bank = self.inside(after).bank
        model = bank.get(cluster_slot(cluster)) or bank.get(GLOBAL)
        return None if model is None or not self.method.traits.compares_models else self.method.features(model)
