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
        where = f"method {self.name}: groups"
        given = self.groups
        wanted = "should be a label for each name, {name: label}, or a list of labels"
        valid = isinstance(given, (Mapping, list, tuple))
        require(valid, f"{where} = {shown(given)} {wanted}")
        named = given
        if not isinstance(named, Mapping):
            named = {str(label): label for label in named}
        labels = {}
        for name, label in named.items():
            labels[name] = str(label) if isinstance(label, int) else label
        wanted = f"should be a name and a label of 1 to {LONGEST} printable characters"
        for name, label in labels.items():
            pair = f"{shown(name)}: {shown(label)}"
            require(_is_short(name) and _is_short(label), f"{where}: {pair} {wanted}")
        count = len({*labels.values()})
        require(0 < count <= 1000, f"{where} have {count} labels, not 1 to 1000")
        groups = labels if isinstance(given, Mapping) else [*labels]
        object.__setattr__(self, "groups", groups)
        super().__post_init__()

    @cached_property
    def labels(self) -> list[str]:
        """The labels in the order of their clusters."""
        given = self.groups
        labels = given.values() if isinstance(given, Mapping) else given
        return sorted({*labels}, key=lambda label: (len(label), label))

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

    def find_cluster(
        self,
        state: ServerState,
        participant: str,
    ) -> int | None:
        """By the run's label of it, else by the one that it named.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.
        """
        given = self.groups if isinstance(self.groups, Mapping) else {}
        label = given.get(participant, state.labels.get(participant))
        return self.labels.index(label) if label in self.labels else None

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
        super().check(layout, rounds)
        too_few = f"method groups: warmup = {self.warmup} leaves the groups none of {rounds} rounds; lower it"
        require(rounds is None or rounds > self.warmup, too_few)

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """One common model; without a warm-up, the groups begin from it at once.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        state = super().start(initial)
        if self.warmup:
            return state
        return replace(state, bank=self._add_groups(state.bank))

    def _add_groups(self, bank: Mapping[str, Params]) -> Mapping[str, Params]:
        """Theta_g = Theta_pan for each group g."""
        return {**bank, **dict.fromkeys(self.slots, bank[GLOBAL])}

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """Its group's model, with Theta_pan for the pull; Theta_pan alone in the warm-up, and without a label.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        # Without a label there is nothing to train after the warm-up.
        cluster = self.find_cluster(state, participant)
        if not self._has_groups(state):
            return Download((GLOBAL,))
        if cluster is None:
            return Download((GLOBAL,), trains=False)
        to_train = (GLOBAL,) if self.pull else ()
        return Download((cluster_slot(cluster),), to_train=to_train)

    def _has_groups(self, state: ServerState) -> bool:
        return cluster_slot(0) in state.bank

    def list_terms(
        self,
        download: Download,
        slot: str,
    ) -> list[Term]:
        """lambda/2 ||theta - Theta_pan||^2, and any other penalty.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.

        Returns:
            The terms.
        """
        terms = super().list_terms(download, slot)
        if slot == GLOBAL or not self.pull:
            return terms
        return [Pull.to(self.pull, download.model(GLOBAL)), *terms]

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """As given, once the groups have begun.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        assignment: dict[str, int] = {}
        if not self._has_groups(state):
            return assignment
        for update in updates:
            cluster = self.find_cluster(state, update.participant)
            if cluster is not None:
                assignment[update.participant] = cluster
        return assignment

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """Where it was trained; Theta_pan stays as it is once the groups have begun.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        if GLOBAL in update.diffs and self._has_groups(state):
            return {}
        return self.count_by_slot(update)

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """Theta_g = sum of n_i theta_i / sum of n_i over the group g, or over all; groups begin after the warm-up.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        # Theta_pan in the warm-up, and each group's mean after it.
        models: Mapping[str, Params] = self.compute_means(state, updates)
        if not self._has_groups(state) and state.round + 1 >= self.warmup:
            models = self._add_groups(models)
        return state.after(models, assignment)


def _is_short(text: object) -> bool:
    """Whether a value is printable text of at most `LONGEST` characters."""
    return isinstance(text, str) and 0 < len(text) <= LONGEST and text.isprintable()
