# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods that run side by side in one job and predict together: FedAvg+, FedProx+, FedAvg+IFCA, FedAvg+FeSEM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params
from cfl_flare.methods.base import Method
from cfl_flare.methods.state import Assignment, Download, Indicator, Mapped, ServerState, Update
from cfl_flare.training.ensemble import VOTES, Served
from cfl_flare.training.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Together(Method):
    """Several methods side by side, none of which knows of the others; their models predict together.

    Attributes:
        parts: the methods; each starts from seeds of its own, and at most one of them clusters.
        vote: ``probabilities``, soft voting (FedAvg+, thesis sec. 3.6.1), or ``logits``, added (thesis Eq. 7.36).
    """

    name: ClassVar[str] = "together"
    paper: ClassVar[str] = "thesis sec. 3.6.1, 7.4.4"
    predicts_with_several: ClassVar[bool] = True

    no_penalties: ClassVar[str] = "belong to its parts; give them there"

    parts: tuple[Method, ...]
    vote: str = "probabilities"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", tuple(self.parts))
        require(len(self.parts) >= 1, "method together: parts = () should name a method")
        require(all(isinstance(p, Method) for p in self.parts), "method together: parts should be methods")
        several = [part.label for part in self.parts if part.predicts_with_several]
        require(not several, f"method together: parts = {several} predict with several models; name ones that have one")
        require(self.vote in VOTES, f"method together: vote = {self.vote!r} should be in {VOTES}")
        archived = [part.label for part in self.parts if part.archives]
        require(not archived, f"method together: parts = {archived} keep models on the server's disk; run them alone")
        clustering = [part.label for part in self.parts if part.clusters]
        require(len(clustering) <= 1, f"method together: parts = {clustering} all cluster; take one of them")
        require(self.weighting == "samples", "method together: weighting belongs to its parts; give it there")
        fits = not any(part.finetune for part in self.parts)
        require(fits, "method together: finetune belongs to the whole; give it to together, not to its parts")

    @property
    def label(self) -> str:
        """``fedavg+`` for one method from several seeds, ``fedavg+ifca`` for different ones."""
        names = list(dict.fromkeys(part.label for part in self.parts))
        return (names[0] + "+" if len(names) == 1 else "+".join(names)) + "-finetune" * self.finetune

    @property
    def _clustering(self) -> int | None:
        """Which part clusters."""
        return next((i for i, part in enumerate(self.parts) if part.clusters), None)

    @property
    def clusters(self) -> int:
        """Of the part that clusters."""
        return sum(part.clusters for part in self.parts)

    @property
    def joins_by(self) -> str:
        """Of the part that clusters."""
        return next((part.joins_by for part in self.parts if part.clusters), "")

    @property
    def sums(self) -> bool:
        """Where all parts do, with the same weights."""
        return all(part.sums for part in self.parts) and len({part.weighting for part in self.parts}) == 1

    @property
    def regroups(self) -> bool:
        """As the part that clusters."""
        return any(part.regroups for part in self.parts)

    def join(self, state: ServerState, update: Update) -> ServerState:
        """As all parts."""
        states = [
            part.join(self._state(state, i), _part_of(i, i == self._clustering, update))
            for i, part in enumerate(self.parts)
        ]
        return self._joined(state, states)

    def placed(self, state: ServerState, participant: str) -> bool:
        """In all parts."""
        return all(part.placed(self._state(state, i), participant) for i, part in enumerate(self.parts))

    def clusters_in(self, state: ServerState) -> int:
        """Of the part that clusters."""
        return sum(part.clusters_in(self._state(state, i)) for i, part in enumerate(self.parts))

    def asks_all(self, state: ServerState) -> bool:
        """Whether a part does."""
        return any(part.asks_all(self._state(state, i)) for i, part in enumerate(self.parts))

    @property
    def indicator(self) -> Indicator | None:
        """Of the part that clusters."""
        i = self._clustering
        return None if i is None else self.parts[i].indicator

    def needs(self, state: ServerState) -> int:
        """As the most demanding part."""
        return max(part.needs(self._state(state, i)) for i, part in enumerate(self.parts))

    def check_model(self, layout: Layout) -> None:
        """As all parts."""
        for part in self.parts:
            part.check_model(layout)

    def check_rounds(self, rounds: int) -> None:
        """As all parts."""
        for part in self.parts:
            part.check_rounds(rounds)

    def start(self, initial: Callable[[int], Params]) -> ServerState:
        """Each part's models, from seeds that no other part has."""
        states = [part.start(partial(_later, initial, first)) for part, first in zip(self.parts, self._seeds)]
        return self._joined(ServerState({}), states)

    def admit(self, state: ServerState, participants: Sequence[str]) -> ServerState:
        """As all parts."""
        states = [part.admit(self._state(state, i), participants) for i, part in enumerate(self.parts)]
        return self._joined(state, states)

    @property
    def _seeds(self) -> list[int]:
        """The first of each part's seeds."""
        return list(accumulate((max(1, part.clusters) for part in self.parts[:-1]), initial=0))

    def _state(self, state: ServerState, i: int) -> ServerState:
        """What part i knows."""
        bank = {slot.partition(".")[2]: m for slot, m in state.bank.items() if slot.startswith(f"{i}.")}
        assignment = state.assignment if i == self._clustering else {}
        return ServerState(bank, assignment, state.round, state.extras.get(str(i), {}), state.logits)

    def _joined(self, before: ServerState, states: Sequence[ServerState]) -> ServerState:
        """What all parts know."""
        bank = {f"{i}.{slot}": model for i, state in enumerate(states) for slot, model in state.bank.items()}
        assignment = before.assignment if self._clustering is None else states[self._clustering].assignment
        extras = {str(i): dict(state.extras) for i, state in enumerate(states)}
        return ServerState(bank, assignment, states[0].round, extras)

    def distribute(self, state: ServerState, participant: str) -> Download:
        """What each part sends."""
        sent = [part.distribute(self._state(state, i), participant) for i, part in enumerate(self.parts)]
        slots = tuple(f"{i}.{slot}" for i, download in enumerate(sent) for slot in download.slots)
        to_train = tuple(f"{i}.{slot}" for i, download in enumerate(sent) for slot in download.to_train)
        return Download(slots, facts={str(i): dict(d.facts) for i, d in enumerate(sent)}, to_train=to_train)

    def _download(self, download: Download, i: int) -> Download:
        """What part i was sent."""
        mine = [j for j, slot in enumerate(download.slots) if slot.startswith(f"{i}.")]
        slots = tuple(download.slots[j].partition(".")[2] for j in mine)
        models = tuple(download.models[j] for j in mine if download.models)
        return Download(slots, models, download.facts.get(str(i), {}))

    def moved_slots(self, state: ServerState, slots: tuple[str, ...], cluster: int | None) -> tuple[str, ...]:
        """Those of all parts."""
        moved: list[str] = []
        for i, part in enumerate(self.parts):
            own = part.moved_slots(self._state(state, i), self._download(Download(slots), i).slots, cluster)
            moved += [f"{i}.{slot}" for slot in own]
        return tuple(moved)

    def picks(self, state: ServerState, slots: tuple[str, ...]) -> bool:
        """As the part that clusters."""
        i = self._clustering
        if i is None:
            return False
        return self.parts[i].picks(self._state(state, i), self._download(Download(slots), i).slots)

    def _view(self, learner: Learner, i: int) -> Learner:
        """The participant as part i sees it, with seeds and a memory of its own."""
        return learner.part(str(i), self._seeds[i])

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Each part's, with a memory of its own."""
        update = Update(learner.participant, learner.samples)
        trained: list[Params] = []
        for i, part in enumerate(self.parts):
            view = self._view(learner, i)
            own = part.local_update(view, self._download(download, i))
            if view.trained is not None:
                trained += Served.of(view.trained).models
            diffs = {f"{i}.{slot}": diff for slot, diff in own.diffs.items()}
            cluster = own.cluster if i == self._clustering else update.cluster
            update = replace(update, diffs={**update.diffs, **diffs}, cluster=cluster)
        learner.trained = Served(tuple(trained), self.vote) if len(trained) == len(self.parts) else None
        return update

    def _updates(self, updates: Sequence[Update], i: int) -> Mapped:
        """What part i's participants sent."""
        return Mapped(updates, partial(_part_of, i, i == self._clustering))

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """As the part that clusters."""
        i = self._clustering
        return {} if i is None else self.parts[i].assign(self._state(state, i), self._updates(updates, i))

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Each part by itself."""
        states = []
        for i, part in enumerate(self.parts):
            own = assignment if i == self._clustering else {}
            states.append(part.aggregate(self._state(state, i), self._updates(updates, i), own))
        return self._joined(state, states)

    def compose(self, download: Download, layout: Layout) -> Download:
        """Each part's whole models."""
        own = [part.compose(self._download(download, i), layout) for i, part in enumerate(self.parts)]
        slots = tuple(f"{i}.{slot}" for i, d in enumerate(own) for slot in d.slots)
        return replace(download, slots=slots, models=tuple(m for d in own for m in d.models))

    def serve(self, learner: Learner, download: Download) -> Params | Served:
        """What all parts serve, together."""
        own = [part.serve(self._view(learner, i), self._download(download, i)) for i, part in enumerate(self.parts)]
        return Served(tuple(model for served in own for model in Served.of(served).models), self.vote)

    def finetuned(self, learner: Learner, served: Params | Served) -> Params | Served:
        """Each part's model after one more local round, with that part's memory; as long as the part's if not given."""
        models, parts = Served.of(served).models, self.parts
        if self.finetune_epochs is not None:
            parts = tuple(replace(part, finetune=True, finetune_epochs=self.finetune_epochs) for part in parts)
        own = [part.finetuned(self._view(learner, i), m) for i, (part, m) in enumerate(zip(parts, models))]
        return Served(tuple(model for tuned in own for model in Served.of(tuned).models), self.vote)

    def whole_models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """One ensemble, or one a cluster; none if a part's models are with its participants alone."""
        whole = [part.whole_models(self._state(state, i), layout) for i, part in enumerate(self.parts)]
        if not all(whole):
            return {}
        slots = whole[self._clustering or 0]
        picked = {slot: [own.get(slot) or next(iter(own.values())) for own in whole] for slot in slots}
        return {s: Served(tuple(m for served in all_ for m in served.models), self.vote) for s, all_ in picked.items()}

    def clustered(self, state: ServerState, update: Update) -> Params:
        """As the part that clusters."""
        i = self._clustering or 0
        return self.parts[i].clustered(self._state(state, i), _part_of(i, True, update))

    def centre(self, state: ServerState, cluster: int) -> Params:
        """As the part that clusters."""
        i = self._clustering or 0
        return self.parts[i].centre(self._state(state, i), cluster)

    def moved(self, update: Update) -> Params:
        """As the part that clusters."""
        i = self._clustering or 0
        return self.parts[i].moved(_part_of(i, True, update))

    def weight(self, update: Update) -> float:
        """As the part that clusters."""
        return self.parts[self._clustering or 0].weight(update)

    def features(self, model: Params) -> np.ndarray:
        """As the part that clusters."""
        return self.parts[self._clustering or 0].features(model)


def _later(initial: Callable[[int], Params], first: int, index: int) -> Params:
    return initial(first + index)


def _part_of(i: int, clustering: bool, update: Update) -> Update:
    diffs = {slot.partition(".")[2]: diff for slot, diff in update.diffs.items() if slot.startswith(f"{i}.")}
    return replace(update, diffs=diffs, cluster=update.cluster if clustering else None)
