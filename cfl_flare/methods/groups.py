# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Groups: a model for each group of participants that was given before the run, begun from a common model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.settings import setting
from cfl_flare.core.text import shown
from cfl_flare.methods.base import Method
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.methods.state import (
    PLAIN,
    Assignment,
    Counts,
    Download,
    ServerState,
    Traits,
    Update,
)
from cfl_flare.training.losses import Pull, Term

LONGEST = 200


@dataclass(frozen=True, kw_only=True)
class Groups(Method):
    """FedAvg over all for some rounds, then FedAvg inside each given group, from the common model Theta_pan.

    The run says each participant's label, or lists the labels, and each participant names its own at check-in.
    A participant without a label is served Theta_pan, which stays as it is once the groups have begun. Clusters are
    numbered by their labels: short ones first, then by alphabet.
    """

    name: ClassVar[str] = "groups"
    paper: ClassVar[str] = "a consortium's own regions; baseline of found clusters"

    groups: Mapping[str, str] | Sequence[str] = setting(
        help="label of each participant, by its name; who is not there has none. Or a list of labels: each participant "
        "names its own at check-in, in CFL_GROUP or by its table's column `group`"
    )
    warmup: int = setting(
        0, help="rounds w of FedAvg over all, before the groups begin", ge=0
    )
    pull: float = setting(
        0.0,
        help="lambda of lambda/2 ||theta - Theta_pan||^2, which holds a group's model near the common one",
        ge=0,
    )

    def __post_init__(self) -> None:
        where, given = f"method {self.name}: groups", self.groups
        valid = isinstance(given, (Mapping, list, tuple))
        wanted = "should be a label for each name, {name: label}, or a list of labels"
        require(valid, f"{where} = {shown(given)} {wanted}")
        pairs = (
            given.items()
            if isinstance(given, Mapping)
            else [(str(label), label) for label in given]
        )
        labels = {
            name: str(label) if isinstance(label, int) else label
            for name, label in pairs
        }
        for name, label in labels.items():
            texts = (name, label)
            valid = all(
                isinstance(t, str) and 0 < len(t) <= LONGEST and t.isprintable()
                for t in texts
            )
            short = (
                f"should be a name and a label of 1 to {LONGEST} printable characters"
            )
            require(valid, f"{where}: {shown(name)}: {shown(label)} {short}")
        require(
            0 < len({*labels.values()}) <= 1000,
            f"{where} have {len({*labels.values()})} labels, not 1 to 1000",
        )
        object.__setattr__(
            self, "groups", labels if isinstance(given, Mapping) else [*labels]
        )
        super().__post_init__()

    @cached_property
    def labels(self) -> list[str]:
        """The labels in the order of their clusters."""
        given = (
            self.groups.values() if isinstance(self.groups, Mapping) else self.groups
        )
        return sorted({*given}, key=lambda label: (len(label), label))

    @property
    def traits(self) -> Traits:
        rule = "the group of its label; without one, the common model"
        # A mapping names the participants. Without one, they name their groups at check-in.
        named = () if isinstance(self.groups, Mapping) else tuple(self.labels)
        return replace(
            PLAIN,
            clusters=len(self.labels),
            joins_by=rule,
            averages_only=True,
            named_groups=named,
        )

    def cluster_of(self, state: ServerState, participant: str) -> int | None:
        """By the run's label of it, else by the one that it named."""
        given = self.groups if isinstance(self.groups, Mapping) else {}
        label = given.get(participant, state.labels.get(participant))
        return self.labels.index(label) if label in self.labels else None

    def check(self, layout: Layout, rounds: int | None = None) -> None:
        super().check(layout, rounds)
        too_few = f"method groups: warmup = {self.warmup} leaves the groups none of {rounds} rounds; lower it"
        require(rounds is None or rounds > self.warmup, too_few)

    def start(
        self, initial: Callable[[int], Params], participants: Sequence[str] = ()
    ) -> ServerState:
        """One common model; without a warm-up, the groups begin from it at once."""
        state = super().start(initial)
        return (
            state if self.warmup else replace(state, bank=self._with_groups(state.bank))
        )

    def _with_groups(self, bank: Mapping[str, Params]) -> Mapping[str, Params]:
        """Theta_g = Theta_pan for each group g."""
        return {**bank, **dict.fromkeys(self.slots, bank[GLOBAL])}

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Its group's model, with Theta_pan for the pull; Theta_pan alone in the warm-up, and without a label."""
        cluster = self.cluster_of(state, participant)
        if not self._grouped(state):
            return Download((GLOBAL,))
        if cluster is None:
            return Download((GLOBAL,), trains=False)
        return Download(
            (cluster_slot(cluster),), to_train=(GLOBAL,) if self.pull else ()
        )

    def _grouped(self, state: ServerState) -> bool:
        return cluster_slot(0) in state.bank

    def terms(self, download: Download, slot: str) -> list[Term]:
        """lambda/2 ||theta - Theta_pan||^2, and any other penalty."""
        near = (
            [Pull.to(self.pull, download.model(GLOBAL))]
            if slot != GLOBAL and self.pull
            else []
        )
        return [*near, *super().terms(download, slot)]

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """As given, once the groups have begun."""
        given = {
            u.participant: self.cluster_of(state, u.participant)
            for u in updates
            if self._grouped(state)
        }
        return {name: cluster for name, cluster in given.items() if cluster is not None}

    def counts_in(
        self, state: ServerState, update: Update, assignment: Assignment
    ) -> Counts:
        """Where it was trained; Theta_pan stays as it is once the groups have begun."""
        return (
            {}
            if GLOBAL in update.diffs and self._grouped(state)
            else self.by_slot(update)
        )

    def aggregate(
        self, state: ServerState, updates: Sequence[Update], assignment: Assignment
    ) -> ServerState:
        """Theta_g = sum of n_i theta_i / sum of n_i over the group g, or over all; groups begin after the warm-up."""
        means = self.means(state, updates)
        begins = not self._grouped(state) and state.round + 1 >= self.warmup
        return state.after(self._with_groups(means) if begins else means, assignment)
