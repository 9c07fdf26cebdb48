# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The contract that every method fulfils: one pass of assign, aggregate, distribute and local update a round.

It is the thesis's unified view (Alg. 1, Eq. 3.3). The same method object, built from the same settings, works on the
server (``start``, ``distribute``, ``assign``, ``aggregate``) and on every site (``local_update``, ``serve``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from cfl_flare.config import check_types, require
from cfl_flare.params import Layout, Params, WeightedMean
from cfl_flare.training.learner import Learner

Assignment = Mapping[str, int]

GLOBAL = "global"


def cluster_slot(cluster: int) -> str:
    """Name of a cluster's model in the bank."""
    return f"cluster-{cluster}"


@dataclass(frozen=True)
class Participant:
    """The unit that is clustered.

    Attributes:
        name: unique in the run.
        site: the FLARE client that hosts it.
        samples: its training samples, n_i.
        group: its true group, where the partition knows one; used in measures alone.
    """

    name: str
    site: str
    samples: int
    group: int | None = None


@dataclass(frozen=True)
class Download:
    """What a participant is sent: names of models in the server's bank; on the site, the models themselves.

    Attributes:
        slots: names in the bank, in the order in which the method's local step expects them.
        models: the models, in the same order; filled in on the site.
    """

    slots: tuple[str, ...] = ()
    models: tuple[Params, ...] = ()


@dataclass(frozen=True)
class Update:
    """What a participant sends back.

    Attributes:
        participant: its name.
        samples: its training samples, n_i.
        diffs: for each slot that it moved, its model minus the one it was sent in that slot.
        cluster: the cluster that it picked itself, for methods that assign on the site.
    """

    participant: str
    samples: int
    diffs: Mapping[str, Params] = field(default_factory=dict)
    cluster: int | None = None


@dataclass(frozen=True)
class ServerState:
    """All that the server knows between two rounds.

    Attributes:
        bank: the named models: ``global``, ``cluster-0``, ...
        assignment: cluster of each participant seen so far.
        round: rounds completed.
        extras: small JSON values that a method adds.
    """

    bank: Mapping[str, Params]
    assignment: Assignment = field(default_factory=dict)
    round: int = 0
    extras: Mapping[str, Any] = field(default_factory=dict)

    def trained(self, update: Update) -> Params:
        """The model that a participant ended its round with, where its update moved a single slot."""
        ((slot, diff),) = update.diffs.items()
        return self.bank[slot] + diff

    def after(self, bank: Mapping[str, Params], assignment: Assignment | None = None) -> ServerState:
        """The state after a round: some models replaced, some participants assigned."""
        return replace(
            self,
            bank={**self.bank, **bank},
            assignment={**self.assignment, **(assignment or {})},
            round=self.round + 1,
        )


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One federated algorithm. Its fields are its settings; a subclass overrides the steps that it changes.

    Attributes:
        weighting: how participants count in averages: ``"samples"``, psi_i = n_i / n (thesis Eq. 2.3), or
            ``"uniform"``, psi_i = 1/m (Eq. 2.2).
        name: what the method is called in a job.
        paper: where it comes from.
        assigns_on_site: each participant picks its cluster itself.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    assigns_on_site: ClassVar[bool] = False

    weighting: str = "samples"

    def __post_init__(self) -> None:
        check_types(self, f"method {self.name}")
        require(
            self.weighting in ("samples", "uniform"),
            f"method {self.name}: weighting = {self.weighting!r} should be 'samples' or 'uniform'",
        )

    @property
    def clusters(self) -> int:
        """Number of clusters K; 0 for a method that does not cluster."""
        return 0

    def needs(self, state: ServerState) -> int:
        """Fewest answers with which the coming round can be aggregated."""
        return 1

    def check_model(self, layout: Layout) -> None:
        """Whether the method can work with such a model.

        Raises:
            ConfigError: it lacks a part that the method needs.
        """
        layout.select("all")

    def start(self, initial: Callable[[int], Params]) -> ServerState:
        """The state before round 0. ``initial(i)`` is the untrained model from the run's i-th seed."""
        return ServerState(bank={GLOBAL: initial(0)})

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Distribution step: what this participant is sent, for training and for prediction alike."""
        return Download((GLOBAL,))

    def moved_slots(self, slots: tuple[str, ...], cluster: int | None) -> tuple[str, ...]:
        """Of the slots that a participant was sent, those whose difference it must send back."""
        return slots

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Local update step, on the site."""
        (slot,), (start,) = download.slots, download.models
        return Update(learner.participant, learner.samples, {slot: learner.train(start) - start})

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """E-step: the cluster of each of the round's participants."""
        return {}

    @abstractmethod
    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """M-step: the new models."""

    def compose(self, download: Download, layout: Layout) -> Download:
        """On the site: the whole models, where they travelled in parts."""
        return download

    def whole_models(self, state: ServerState, layout: Layout) -> dict[str, Params]:
        """The models that a run leaves, each of them whole."""
        return dict(state.bank)

    def serve(self, learner: Learner, download: Download) -> Params:
        """The model with which a participant predicts, on the site."""
        return download.models[0]

    def clustered(self, state: ServerState, update: Update) -> Params:
        """The trained model of an update that belongs to its cluster."""
        return state.trained(update)

    def features(self, model: Params) -> np.ndarray:
        """By what a clustering of such models is judged: the FC parameters, or all where there are none; float32."""
        return model.part("fc" if any(e.fc for e in model.layout.entries) else "all")

    def centre(self, state: ServerState, cluster: int) -> Params:
        """The model to which the models of a cluster's participants are compared."""
        return state.bank[cluster_slot(cluster)]

    def moved(self, update: Update) -> Params:
        """The difference that stands for an update's gradient, where its participant moved a single slot."""
        (diff,) = update.diffs.values()
        return diff

    def weight(self, update: Update) -> float:
        """A participant's weight psi_i, up to a common factor."""
        return float(update.samples) if self.weighting == "samples" else 1.0

    def means(self, state: ServerState, updates: Iterable[Update]) -> dict[str, Params]:
        """Each slot's weighted mean over the participants that moved it (thesis Eq. 2.6); the others keep theirs."""
        means = {slot: WeightedMean(model.layout) for slot, model in state.bank.items()}
        for update in updates:
            for slot, diff in update.diffs.items():
                means[slot].add(state.bank[slot] + diff, self.weight(update))
        return {slot: mean.result(state.bank[slot]) for slot, mean in means.items()}

    def centres(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> dict[str, Params]:
        """Weighted mean of the trained models inside each cluster; an empty cluster keeps its model.

        One pass over the updates: large ones lie on disk.
        """
        layout = next(iter(state.bank.values())).layout
        means = [WeightedMean(layout) for _ in range(self.clusters)]
        for update in updates:
            means[assignment[update.participant]].add(state.trained(update), self.weight(update))
        slots = [cluster_slot(k) for k in range(self.clusters)]
        return {s: mean.result(state.bank.get(s) or state.bank[GLOBAL]) for s, mean in zip(slots, means)}
