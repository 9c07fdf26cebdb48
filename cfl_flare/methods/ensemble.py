# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods that run side by side in one job and predict together: FedAvg+, FedProx+, FedAvg+IFCA, FedAvg+FeSEM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

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
    vote: str = setting(
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
        return (
            names[0] + "+" if len(names) == 1 else "+".join(names)
        ) + "-finetune" * self.finetune

    @property
    def _seeds(self) -> list[int]:
        """The first seed of each part; no two parts share a seed."""
        return list(
            accumulate((max(1, part.clusters) for part in self.parts[:-1]), initial=0)
        )

    def _clusters(self, i: int) -> bool:
        return i == self.lead and self.leader.clusters > 0

    # ---- The view of a part on the whole, and the whole made of parts ----

    def state_of(self, state: ServerState, i: int) -> ServerState:
        """The part's models, extras and arrays; the assignment, if it clusters."""
        return replace(
            state,
            bank=of_part(state.bank, i),
            assignment=state.assignment if self._clusters(i) else {},
            extras=dict(state.extras.get(str(i), {})),
            arrays=of_part(state.arrays, i),
            notes={},
        )

    def update_of(self, i: int, update: Update) -> Update:
        """The part's differences and arrays; the cluster, if it clusters."""
        main = (
            None
            if update.main is None
            else next(iter(of_part({update.main: None}, i)), None)
        )
        cluster = update.cluster if self._clusters(i) else None
        counts = update.counts_in
        if counts is not None:
            own = of_part(counts, i)
            counts = {
                slot: (mean.partition(".")[2], weight)
                for slot, (mean, weight) in own.items()
            }
        diffs, arrays = of_part(update.diffs, i), of_part(update.arrays, i)
        return replace(
            update,
            diffs=diffs,
            arrays=arrays,
            cluster=cluster,
            main=main,
            counts_in=counts,
        )

    def _download(self, sent: Download, i: int) -> Download:
        """The part of a download that belongs to part i, on the site."""
        mine = [
            j for j, slot in enumerate(sent.slots) if slot.startswith(f"{i}.")
        ]  # a slot may occur twice
        slots = tuple(sent.slots[j].partition(".")[2] for j in mine)
        choices = {
            k: slot
            for k, prefixed in sent.choices.items()
            for slot in of_part({prefixed: None}, i)
        }
        return Download(
            slots,
            tuple(sent.models[j] for j in mine),
            sent.scalars.get(str(i), {}),
            choices=choices,
        )

    def _joined(
        self, before: ServerState, states: Sequence[ServerState]
    ) -> ServerState:
        assignment = (
            states[self.lead].assignment if self.leader.clusters else before.assignment
        )
        extras = {str(i): dict(state.extras) for i, state in enumerate(states)}
        bank, arrays = (
            together([s.bank for s in states]),
            together([s.arrays for s in states]),
        )
        return ServerState(
            bank,
            assignment,
            states[0].round,
            extras,
            arrays,
            notes=states[self.lead].notes,
        )

    # ---- The steps ----

    def start(
        self, initial: Callable[[int], Params], participants: Sequence[str] = ()
    ) -> ServerState:
        def started(part: Method, first: int) -> ServerState:
            return part.start(lambda index: initial(first + index), participants)

        return self._joined(ServerState({}), [*map(started, self.parts, self._seeds)])

    def distribute(self, state: ServerState, participant: str) -> Download:
        """The parts' downloads in one; the models to return begin with those of the part that clusters."""
        sent = [
            part.distribute(self.state_of(state, i), participant)
            for i, part in enumerate(self.parts)
        ]
        order = sorted(range(len(sent)), key=lambda i: (i != self.lead, i))
        return Download(
            slots=tuple(f"{i}.{slot}" for i, d in enumerate(sent) for slot in d.slots),
            scalars={str(i): dict(d.scalars) for i, d in enumerate(sent)},
            to_train=tuple(
                f"{i}.{slot}" for i, d in enumerate(sent) for slot in d.to_train
            ),
            returns=tuple(f"{i}.{slot}" for i in order for slot in sent[i].returned),
            choices={
                k: f"{self.lead}.{slot}" for k, slot in sent[self.lead].choices.items()
            },
            trains_choice=sent[self.lead].trains_choice,
            arrays=together([d.arrays for d in sent]),
            joined={
                f"{i}.{a}": f"{i}.{b}"
                for i, d in enumerate(sent)
                for a, b in d.joined.items()
            },
        )

    def _view(self, learner: Learner, i: int) -> Learner:
        """The participant as part i sees it, with seeds and a memory of its own."""
        return learner.part(str(i), self._seeds[i])

    def local_update(self, learner: Learner, download: Download) -> Update:
        views = [self._view(learner, i) for i in range(len(self.parts))]
        updates = [
            p.local_update(v, self._download(download, i))
            for i, (p, v) in enumerate(zip(self.parts, views))
        ]
        trained = [
            model
            for view in views
            if view.trained is not None
            for model in Served.of(view.trained).models
        ]
        learner.trained = (
            Served(tuple(trained), self.vote)
            if len(trained) == len(self.parts)
            else None
        )
        diffs, arrays = (
            together([u.diffs for u in updates]),
            together([u.arrays for u in updates]),
        )
        cluster = updates[self.lead].cluster if self.leader.clusters else None
        return Update(learner.participant, learner.samples, diffs, cluster, arrays)

    def counts_in(
        self, state: ServerState, update: Update, assignment: Assignment
    ) -> Counts:
        """Each part's models as that part says, with that part's weights."""
        counts: dict[str, tuple[str, float]] = {}
        for i, part in enumerate(self.parts):
            clusters = assignment if self._clusters(i) else {}
            of_part = part.counts_in(
                self.state_of(state, i), self.update_of(i, update), clusters
            )
            counts |= {
                f"{i}.{slot}": (f"{i}.{mean}", weight)
                for slot, (mean, weight) in of_part.items()
            }
        return counts

    def aggregate(
        self, state: ServerState, updates: Sequence[Update], assignment: Assignment
    ) -> ServerState:
        states = []
        for i, part in enumerate(self.parts):
            clusters = assignment if self._clusters(i) else {}
            states.append(
                part.aggregate(
                    self.state_of(state, i), self.seen_by(i, updates), clusters
                )
            )
        return self._joined(state, states)

    def join(self, state: ServerState, update: Update) -> ServerState:
        parts = enumerate(self.parts)
        return self._joined(
            state,
            [
                p.join(self.state_of(state, i), self.update_of(i, update))
                for i, p in parts
            ],
        )

    def publish(self, state: ServerState) -> ServerState:
        published = [
            part.publish(self.state_of(state, i)) for i, part in enumerate(self.parts)
        ]
        return replace(
            state, arrays=together([of_part.arrays for of_part in published])
        )

    def serve(self, learner: Learner, download: Download) -> Params | Served:
        parts = enumerate(self.parts)
        return self._voting(
            [
                p.serve(self._view(learner, i), self._download(download, i))
                for i, p in parts
            ]
        )

    def _voting(self, served_by_parts: Sequence[Params | Served]) -> Served:
        parts = [Served.of(served) for served in served_by_parts]
        names = tuple(
            f"{i}.{name}".rstrip(".")
            for i, served in enumerate(parts)
            for name in served.of_parts
        )
        untrained = frozenset[str]().union(*(served.untrained for served in parts))
        return Served(
            tuple(model for served in parts for model in served.models),
            self.vote,
            names,
            untrained,
        )

    def finetuned(self, learner: Learner, served: Params | Served) -> Params | Served:
        """Each part's model after one more local round, with that part's memory and, unless set here, its epochs."""
        models, parts = Served.of(served).models, self.parts
        if self.finetune_epochs is not None:
            parts = tuple(
                replace(part, finetune=True, finetune_epochs=self.finetune_epochs)
                for part in parts
            )
        tuned = [
            part.finetuned(self._view(learner, i), m)
            for i, (part, m) in enumerate(zip(parts, models))
        ]
        return Served(
            tuple(model for served in tuned for model in Served.of(served).models),
            self.vote,
        )

    def models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """One ensemble, or one a cluster; none if a part's models are with its participants alone."""
        models = [
            part.models(self.state_of(state, i), layout)
            for i, part in enumerate(self.parts)
        ]
        if not all(models):
            return {}
        picked = {
            slot: [left.get(slot) or next(iter(left.values())) for left in models]
            for slot in models[self.lead]
        }
        return {slot: self._voting(served) for slot, served in picked.items()}


def of_part(prefixed: Mapping[str, Any], i: int) -> dict[str, Any]:
    """The entries of part i, without their prefix."""
    return {
        name.partition(".")[2]: value
        for name, value in prefixed.items()
        if name.startswith(f"{i}.")
    }


def together(named: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries of all parts, with their prefixes."""
    return {
        f"{i}.{name}": value
        for i, entries in enumerate(named)
        for name, value in entries.items()
    }
