# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods made of other methods: which steps of the contract the leading part carries out, and which all do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params
from cfl_flare.methods.base import Method
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.methods.state import (
    Download,
    Mapped,
    Plan,
    ServerState,
    Traits,
    Update,
    read_heads,
    sum_queries,
)
from cfl_flare.training.losses import Term


def as_the_leader(step: str) -> Any:
    """A step of the server as the leading part does it, on what it sees of the state and of the updates.

    Args:
        step: the name of the step.
    """

    def carried_out(
        self: Wrapper,
        state: ServerState,
        *arguments: Any,
    ) -> Any:
        seen = (self.view_argument(self.lead, argument) for argument in arguments)
        return getattr(self.leading(state), step)(
            self.view_state(state, self.lead), *seen
        )

    return carried_out


@dataclass(frozen=True, kw_only=True)
class Wrapper(Method):
    """A method made of others. One of them leads: the one that clusters, if any does.

    A subclass defines what each part sees of the whole, and the steps in which the parts interact, `INTERACTING`. It
    inherits none of these from `Method`. All other steps of the contract are here.
    """

    INTERACTING: ClassVar[tuple[str, ...]] = (
        *(
            "start",
            "distribute",
            "local_update",
            "serve",
            "finetune_served",
            "aggregate",
            "list_models",
            "join",
        ),
    )

    def __init_subclass__(cls) -> None:
        missing = [
            step
            for step in Wrapper.INTERACTING
            if getattr(cls, step) is getattr(Method, step)
        ]
        require(
            not missing,
            f"{cls.__name__}: a wrapper defines {', '.join(missing)} for its parts; it does not",
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.weighting == "samples",
            f"{self.where}: weighting belongs to the methods in it; give it there",
        )
        tuned = [part.label for part in self.inner if part.finetune]
        require(
            not tuned,
            f"{self.where}: finetune belongs to the whole; give it to {self.name}, not to {tuned}",
        )

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
        return self.inner[self.lead]

    def leading(self, state: ServerState) -> Method:
        """The leader, as it is in this state.

        Args:
            state: the server's state between two rounds.
        """
        return self.leader

    @abstractmethod
    def view_state(
        self,
        state: ServerState,
        i: int,
    ) -> ServerState:
        """The state as part i sees it.

        Args:
            state: the server's state between two rounds.
            i: the number of the part.

        Returns:
            The state as the part sees it.
        """

    @abstractmethod
    def view_update(
        self,
        i: int,
        update: Update,
    ) -> Update:
        """An update as part i sees it.

        Args:
            i: the number of the part.
            update: the update of one participant.

        Returns:
            The update as the part sees it.
        """

    def view_argument(
        self,
        i: int,
        argument: Any,
    ) -> Any:
        """An argument of a step as part i sees it: an update, or a sequence of them; another one stays as it is.

        Args:
            i: the number of the part.
            argument: an argument of a step.
        """
        if isinstance(argument, Update):
            return self.view_update(i, argument)
        updates = isinstance(argument, Sequence) and not isinstance(argument, str)
        return Mapped(argument, partial(self.view_update, i)) if updates else argument

    # ---- The contract ----

    compute_vector = as_the_leader("compute_vector")
    assign = as_the_leader("assign")
    counts_in = as_the_leader("counts_in")
    count_clusters = as_the_leader("count_clusters")

    @property
    def traits(self) -> Traits:
        """Those of the leading part, but for what one part brings in, or what all parts need."""
        parts = [part.traits for part in self.inner]
        return replace(
            self.leader.traits,
            averages_only=all(traits.averages_only for traits in parts),
            starts_on_site=any(traits.starts_on_site for traits in parts),
            archives=any(traits.archives for traits in parts),
            keeps_head=any(traits.keeps_head for traits in parts),
            named_groups=tuple(
                dict.fromkeys(
                    label for traits in parts for label in traits.named_groups
                )
            ),
            no_private=next(
                (traits.no_private for traits in parts if traits.no_private), ""
            ),
            no_penalties="belong to the methods inside it; give them there",
            takes_penalties=False,
            serves_one=False,
            by_metric=False,
            proximal=None,
            queries=sum_queries([traits.queries for traits in parts]),
        )

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
        for part in self.inner:
            part.check(layout, rounds)

    def plan(self, state: ServerState) -> Plan:
        """Everyone if a part needs all, sampled as for the leading part; as many updates as any part needs.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        plans = [
            part.plan(self.view_state(state, i)) for i, part in enumerate(self.inner)
        ]
        return Plan(
            any(p.everyone for p in plans),
            plans[self.lead].draw,
            max(p.fewest for p in plans),
        )

    def list_terms(
        self,
        download: Download,
        slot: str,
    ) -> list[Term]:
        """None: each part adds its own.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.

        Returns:
            The terms.
        """
        return []

    def weight(self, update: Update) -> float:
        """Weigh an update.

        Args:
            update: the update of one participant.

        Returns:
            The weight psi_i, up to a common factor.
        """
        return self.leader.weight(update)


@dataclass(frozen=True)
class Clustering:
    """The method that clusters, inside any wrappers, and what it sees: for analysis and for small clusters.

    Attributes:
        method: the method that clusters.
        before: its state when the round's participants were sent their models.
        wrappers: those around it, from the outside in.
    """

    method: Method
    before: ServerState
    wrappers: tuple[Wrapper, ...] = ()

    @classmethod
    def of(
        cls,
        method: Method,
        before: ServerState,
    ) -> Clustering:
        """Look for the method that clusters inside its wrappers.

        Args:
            method: the method.
            before: the state when the models were sent.
        """
        wrappers: list[Wrapper] = []
        while isinstance(method, Wrapper):
            wrappers.append(method)
            before = method.view_state(before, method.lead)
            method = method.leader
        return cls(method, before, tuple(wrappers))

    def seen(self, update: Update) -> Update:
        """An update as the method sees it.

        Args:
            update: the update of one participant.
        """
        return reduce(
            lambda inner, wrapper: wrapper.view_update(wrapper.lead, inner),
            self.wrappers,
            update,
        )

    def sees(self, updates: Sequence[Update]) -> bool:
        """Whether participants sent what they are compared by; not where a wrapper trained a model of its own alone.

        Args:
            updates: the updates of the round, in the participants' order.
        """
        return any(
            update.diffs or update.arrays
            for update in map(self.seen, read_heads(updates))
        )

    def compute_vector(self, update: Update) -> np.ndarray:
        """Compute the vector by which a participant is compared.

        Args:
            update: the update of one participant.

        Returns:
            ``(d,)`` float32.
        """
        return self.method.compute_vector(self.before, self.seen(update))

    def moved(self, update: Update) -> Params | None:
        """The difference that stands for a participant's gradient; None where it trained no model.

        Args:
            update: the update of one participant.
        """
        seen = self.seen(update)
        return seen.main_diff if seen.diffs else None

    def weight(self, update: Update) -> float:
        """Weigh an update.

        Args:
            update: the update of one participant.

        Returns:
            The weight psi_i, up to a common factor.
        """
        return self.method.weight(update)

    def centre(
        self,
        after: ServerState,
        cluster: int,
    ) -> np.ndarray | None:
        """The vector of a cluster's centre; None where participants are not compared by models.

        The common model stands in for a cluster that was merged into another, and so has no members.

        Args:
            after: the state after the round.
            cluster: the number of a cluster.
        """
        bank = reduce(
            lambda inner, wrapper: wrapper.view_state(inner, wrapper.lead),
            self.wrappers,
            after,
        ).bank
        model = bank.get(cluster_slot(cluster)) or bank.get(GLOBAL)
        if model is None or not self.method.traits.compares_models:
            return None
        return self.method.select_features(model)
