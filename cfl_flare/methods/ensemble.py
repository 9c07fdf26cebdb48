# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods that run side by side in one job and predict together: FedAvg+, FedProx+, FedAvg+IFCA, FedAvg+FeSEM.

* Jie Ma: Clustered Federated Learning, PhD thesis, University of Technology Sydney, 2023, sec. 3.5.2 and 7.4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Literal

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.state import (
    Assignment,
    Counts,
    Download,
    ServerState,
    Traits,
    Update,
)
from cfl_flare.methods.wrapper import Wrapper
from cfl_flare.training.ensemble import VOTES, Served
from cfl_flare.training.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Ensemble(Wrapper):
    """Several methods side by side, independent of each other; their models predict together.

    What belongs to part i travels and is stored under names with a prefix: ``0.global``, ``1.cluster-2``.
    """

    name: ClassVar[str] = "ensemble"
    paper: ClassVar[str] = "thesis sec. 3.5.2, 7.4.4"

    parts: tuple[Method, ...] = setting(
        help="the methods; each starts from seeds of its own, and at most one of them clusters"
    )
    vote: Literal["probabilities", "logits"] = setting(
        "probabilities",
        help="probabilities, soft voting (FedAvg+, thesis sec. 3.5.2), or logits, added (thesis Eq. 7.36)",
        choices=VOTES,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        require(
            len(self.parts) >= 1, "method ensemble: parts = () should name a method"
        )
        require(
            all(isinstance(p, Method) for p in self.parts),
            "method ensemble: parts should be methods",
        )
        super().__post_init__()
        several = [
            part.label for part in self.parts if part.traits.lacking("serves_one")
        ]
        reason = f"parts = {several} predict with several models, or do not declare the trait serves_one"
        require(not several, f"method ensemble: {reason}; take methods with one")
        archived = [part.label for part in self.parts if part.traits.archives]
        require(
            not archived,
            f"method ensemble: parts = {archived} keep models on the server's disk; run them alone",
        )
        silent = [
            p.label
            for p in self.parts
            if type(p).assign is not Method.assign and not p.clusters
        ]
        require(
            not silent,
            f"method ensemble: parts = {silent} assign, but declare no clusters in their traits",
        )
        clustering = [part.label for part in self.parts if part.clusters]
        require(
            len(clustering) <= 1,
            f"method ensemble: parts = {clustering} all cluster; take one of them",
        )

    @property
    def inner(self) -> tuple[Method, ...]:
        return self.parts

    @property
    def traits(self) -> Traits:
        """Sites can add up models if all parts only average, with the same weights."""
        traits = super().traits
        alike = len({part.weighting for part in self.parts}) == 1
        return replace(traits, averages_only=traits.averages_only and alike)

    @property
    def label(self) -> str:
        names = list(dict.fromkeys(part.label for part in self.parts))
        label = f"{names[0]}+" if len(names) == 1 else "+".join(names)
        return f"{label}-finetune" if self.finetune else label

    @property
    def _seeds(self) -> list[int]:
        """The first seed of each part; no two parts share a seed."""
        widths = [max(1, part.clusters) for part in self.parts[:-1]]
        return list(accumulate(widths, initial=0))

    def _clusters(self, i: int) -> bool:
        return i == self.lead and self.leader.clusters > 0

    # ---- The view of a part on the whole, and the whole made of parts ----

    def view_state(
        self,
        state: ServerState,
        i: int,
    ) -> ServerState:
        """The part's models, extras and arrays; the assignment, if it clusters.

        Args:
            state: the server's state between two rounds.
            i: the number of the part.

        Returns:
            The state as the part sees it.
        """
        return replace(
            state,
            bank=take_part(state.bank, i),
            assignment=state.assignment if self._clusters(i) else {},
            extras=dict(state.extras.get(str(i), {})),
            arrays=take_part(state.arrays, i),
            notes={},
        )

    def view_update(
        self,
        i: int,
        update: Update,
    ) -> Update:
        """The part's differences and arrays; the cluster, if it clusters.

        Args:
            i: the number of the part.
            update: the update of one participant.

        Returns:
            The update as the part sees it.
        """
        main = None
        if update.main is not None:
            main = next(iter(take_part({update.main: None}, i)), None)
        counts = update.counts_in
        if counts is not None:
            counts = {}
            for slot, (mean, weight) in take_part(update.counts_in or {}, i).items():
                counts[slot] = (strip_prefix(mean), weight)
        return replace(
            update,
            diffs=take_part(update.diffs, i),
            arrays=take_part(update.arrays, i),
            cluster=update.cluster if self._clusters(i) else None,
            main=main,
            counts_in=counts,
        )

    def _download(
        self,
        sent: Download,
        i: int,
    ) -> Download:
        """The part of a download that belongs to part i, on the site."""
        # A slot may occur twice, so the models are not collected by name.
        slots = []
        models = []
        for slot, model in zip(sent.slots, sent.models):
            if slot.startswith(f"{i}."):
                slots.append(strip_prefix(slot))
                models.append(model)
        choices = {}
        for cluster, slot in sent.choices.items():
            if slot.startswith(f"{i}."):
                choices[cluster] = strip_prefix(slot)
        scalars = sent.scalars.get(str(i), {})
        return Download(tuple(slots), tuple(models), scalars, choices=choices)

    def _join_states(
        self,
        before: ServerState,
        states: Sequence[ServerState],
    ) -> ServerState:
        """The state of the whole, made of the states of the parts."""
        lead = states[self.lead]
        assignment = lead.assignment if self.leader.clusters else before.assignment
        return ServerState(
            add_prefixes([state.bank for state in states]),
            assignment,
            states[0].round,
            {str(i): dict(state.extras) for i, state in enumerate(states)},
            add_prefixes([state.arrays for state in states]),
            notes=lead.notes,
        )

    # ---- The steps ----

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """Each part starts from seeds of its own.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        states = []
        for part, first in zip(self.parts, self._seeds):
            states.append(
                part.start(partial(_shift_seed, initial, first), participants)
            )
        return self._join_states(ServerState({}), states)

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """The parts' downloads in one; the models to return begin with those of the part that clusters.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        # Each part sends what it would send alone.
        sent = []
        for i, part in enumerate(self.parts):
            sent.append(part.distribute(self.view_state(state, i), participant))
        lead = sent[self.lead]
        others = [i for i in range(len(sent)) if i != self.lead]
        slots: list[str] = []
        to_train: list[str] = []
        joined: dict[str, str] = {}
        for i, download in enumerate(sent):
            slots += [f"{i}.{slot}" for slot in download.slots]
            to_train += [f"{i}.{slot}" for slot in download.to_train]
            joined |= {f"{i}.{a}": f"{i}.{b}" for a, b in download.joined.items()}
        returns: list[str] = []
        for i in (self.lead, *others):
            returns += [f"{i}.{slot}" for slot in sent[i].returned]
        choices = {k: f"{self.lead}.{slot}" for k, slot in lead.choices.items()}
        return Download(
            slots=tuple(slots),
            scalars={str(i): dict(part.scalars) for i, part in enumerate(sent)},
            to_train=tuple(to_train),
            returns=tuple(returns),
            choices=choices,
            trains_choice=lead.trains_choice,
            arrays=add_prefixes([download.arrays for download in sent]),
            joined=joined,
        )

    def _view(
        self,
        learner: Learner,
        i: int,
    ) -> Learner:
        """The participant as part i sees it, with seeds and a memory of its own."""
        return learner.part(str(i), self._seeds[i])

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Each part's local update, one after the other.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        # Each part trains with random streams and a memory of its own.
        updates = []
        trained: list[Params] = []
        for i, part in enumerate(self.parts):
            view = self._view(learner, i)
            updates.append(part.local_update(view, self._download(download, i)))
            if view.trained is not None:
                trained += Served.of(view.trained).models
        learner.trained = None
        if len(trained) == len(self.parts):
            learner.trained = Served(tuple(trained), self.vote)
        return Update(
            learner.participant,
            learner.samples,
            add_prefixes([update.diffs for update in updates]),
            updates[self.lead].cluster if self.leader.clusters else None,
            add_prefixes([update.arrays for update in updates]),
        )

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """Each part's models as that part says, with that part's weights.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        counts: dict[str, tuple[str, float]] = {}
        for i, part in enumerate(self.parts):
            clusters = assignment if self._clusters(i) else {}
            before = self.view_state(state, i)
            own = part.counts_in(before, self.view_update(i, update), clusters)
            for slot, (mean, weight) in own.items():
                counts[f"{i}.{slot}"] = (f"{i}.{mean}", weight)
        return counts

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """Each part's M-step.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        states = []
        for i, part in enumerate(self.parts):
            clusters = assignment if self._clusters(i) else {}
            before = self.view_state(state, i)
            own = self.view_argument(i, updates)
            states.append(part.aggregate(before, own, clusters))
        return self._join_states(state, states)

    def join(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """Each part places the newcomer.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            The state in which the newcomer may be assigned.
        """
        states = []
        for i, part in enumerate(self.parts):
            own = self.view_update(i, update)
            states.append(part.join(self.view_state(state, i), own))
        return self._join_states(state, states)

    def publish(self, state: ServerState) -> ServerState:
        """Each part's state as results hold it.

        Args:
            state: the server's state between two rounds.

        Returns:
            The state as the results of a run hold it.
        """
        arrays = []
        for i, part in enumerate(self.parts):
            arrays.append(part.publish(self.view_state(state, i)).arrays)
        return replace(state, arrays=add_prefixes(arrays))

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params | Served:
        """The parts' models, which vote.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        served = []
        for i, part in enumerate(self.parts):
            own = self._download(download, i)
            served.append(part.serve(self._view(learner, i), own))
        return self._vote(served)

    def _vote(self, served_by_parts: Sequence[Params | Served]) -> Served:
        """One ensemble of what the parts serve."""
        models: list[Params] = []
        names: list[str] = []
        untrained: frozenset[str] = frozenset()
        for i, served_by_part in enumerate(served_by_parts):
            served = Served.of(served_by_part)
            models += served.models
            names += [f"{i}.{name}".rstrip(".") for name in served.of_parts]
            untrained |= served.untrained
        return Served(tuple(models), self.vote, tuple(names), untrained)

    def finetune_served(
        self,
        learner: Learner,
        served: Params | Served,
    ) -> Params | Served:
        """Each part's model after one more local round, with that part's memory and, unless set here, its epochs.

        Args:
            learner: the participant's data, random streams and memory.
            served: the models that the participant predicts with.

        Returns:
            The tuned models.
        """
        # Each part tunes its own model.
        models: list[Params] = []
        for i, model in enumerate(Served.of(served).models):
            part = self.parts[i]
            if self.finetune_epochs is not None:
                epochs = self.finetune_epochs
                part = replace(part, finetune=True, finetune_epochs=epochs)
            tuned = part.finetune_served(self._view(learner, i), model)
            models += Served.of(tuned).models
        return Served(tuple(models), self.vote)

    def list_models(
        self,
        state: ServerState,
        layout: Layout,
    ) -> dict[str, Served]:
        """One ensemble, or one a cluster; none if a part's models are with its participants alone.

        Args:
            state: the server's state between two rounds.
            layout: the names and shapes of a model's arrays.

        Returns:
            What predicts, by name.
        """
        models = []
        for i, part in enumerate(self.parts):
            models.append(part.list_models(self.view_state(state, i), layout))
        if not all(models):
            return {}
        ensembles = {}
        for slot in models[self.lead]:
            # A part that does not cluster has the same model for all clusters.
            picked = [left.get(slot) or next(iter(left.values())) for left in models]
            ensembles[slot] = self._vote(picked)
        return ensembles


def _shift_seed(
    initial: Callable[[int], Params],
    first: int,
    index: int,
) -> Params:
    """The untrained model of the seed with this index, counted from ``first``."""
    return initial(first + index)


def strip_prefix(name: str) -> str:
    """Remove the number of the part from a name.

    Args:
        name: such as ``1.cluster-2``.

    Returns:
        The name inside the part, ``cluster-2``.
    """
    return name.partition(".")[2]


def take_part(
    prefixed: Mapping[str, Any],
    i: int,
) -> dict[str, Any]:
    """Take the entries of a part.

    Args:
        prefixed: entries of all parts, by name with a prefix.
        i: the number of the part.

    Returns:
        The part's entries, without their prefix.
    """
    return {
        strip_prefix(name): value
        for name, value in prefixed.items()
        if name.startswith(f"{i}.")
    }


def add_prefixes(named: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the entries of all parts together.

    Args:
        named: the entries of each part, by name.

    Returns:
        All entries, with the number of their part as a prefix.
    """
    together = {}
    for i, entries in enumerate(named):
        for name, value in entries.items():
            together[f"{i}.{name}"] = value
    return together
