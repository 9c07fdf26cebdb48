# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments and results of a method's steps, and the traits that it declares."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from cfl_flare.clustering.floor import Census, Sizes
from cfl_flare.core.arrays import Archive
from cfl_flare.core.params import Params
from cfl_flare.training.privacy import Queries

# What a participant counts in averages: its samples, or as much as any other.
Weighting = Literal["samples", "uniform"]

# The cluster of each participant.
Assignment = Mapping[str, int]

# The mean in which each model that a participant trained counts, and its weight there: ``{slot: (mean, weight)}``.
Counts = Mapping[str, tuple[str, float]]

# Logits ``(len(models), samples, classes)`` of models on the server's indicator samples.
Predict = Callable[[Sequence[Params]], np.ndarray]


@dataclass(frozen=True)
class Indicator:
    """The indicator samples of a method that compares models by what they predict on the server (FedDSMIC sec. 4.2).

    Attributes:
        per_class: how many of each class, N_c.
        file: from which file the server reads them; None where a simulation takes them out of the participants' data.
    """

    per_class: int
    file: str | None = None


@dataclass(frozen=True)
class Participant:
    """The unit that is clustered.

    Attributes:
        site: the FLARE client that hosts it.
        samples: its training samples, n_i; where a training script says another weight, that.
        group: its true group, where the partition knows one; used only in metrics.
        tested: it has test samples; else it trains, and measures nothing.
        unit: what ``samples`` counts: samples, or a script's steps; empty where its script says nothing.
        clipped: how many numbers of its table were clipped, in a simulation; None if none ever is.
        label: the group that it named at check-in; None if it named none.
    """

    name: str
    site: str
    samples: float
    group: int | None = None
    tested: bool = True
    unit: str = "samples"
    clipped: int | None = None
    label: str | None = None

    def check_in(self) -> dict[str, Any]:
        """What it said of its data, as a run's summary has it."""
        facts: dict[str, Any] = {"name": self.name, "site": self.site}
        if self.unit:
            facts[self.unit] = self.samples
        facts["group"] = self.group
        if not self.tested:
            facts["tested"] = False
        if self.label is not None:
            facts["label"] = self.label
        if self.clipped is not None:
            facts["clipped"] = self.clipped
        return facts


@dataclass(frozen=True)
class Plan:
    """Who trains in a round.

    Attributes:
        everyone: all participants, whatever share of them the run samples.
        draw: the round that seeds the sampling, where it differs from the state's, so that two methods draw the same.
        fewest: the number of updates without which the round cannot be aggregated.
    """

    everyone: bool = False
    draw: int | None = None
    fewest: int = 1


@dataclass(frozen=True)
class Download:
    """The message to a participant, and the content of its answer.

    Attributes:
        slots: names of models in the server's bank, in the order in which the local step expects them;
            ``cluster-3:head`` is a part of a model.
        models: the models, in the same order; filled in on the site.
        scalars: small JSON values that the local step needs.
        to_train: names of further models, which come after the others and only to a participant that trains; on the
            site they are slots like the others.
        returns: names of the models whose difference must come back, the main one first; None is the first of
            ``slots``, or nothing but the chosen model where there are ``choices``.
        choices: the slot of each cluster among which the participant chooses; empty where it does not choose.
        trains_choice: the difference of the model that it chose must come back as well, as the main one. It names the
            cluster that it chose in any case.
        arrays: shape of each array that must come back; None for a length that the server does not know.
        trains: it may take part in the round; else it is served these models and not asked to train.
        joined: where models travel in parts, the slot of the part that each of them shares with others; on the site
            they are joined before the local step, and what it moved is split again.
    """

    slots: tuple[str, ...] = ()
    models: tuple[Params, ...] = ()
    scalars: Mapping[str, Any] = field(default_factory=dict)
    to_train: tuple[str, ...] = ()
    returns: tuple[str, ...] | None = None
    choices: Mapping[int, str] = field(default_factory=dict)
    trains_choice: bool = True
    arrays: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    joined: Mapping[str, str] = field(default_factory=dict)
    trains: bool = True

    def model(self, slot: str) -> Params:
        """Take the model of a slot.

        Args:
            slot: the name of a model in the bank.
        """
        return self.models[self.slots.index(slot)]

    @property
    def returned(self) -> tuple[str, ...]:
        if self.returns is not None:
            return self.returns
        return () if self.choices and self.trains_choice else self.slots[:1]

    def list_expected(self, cluster: int | None) -> tuple[str, ...]:
        """The slots whose differences a participant of this cluster must send, the main one first.

        Args:
            cluster: the number of a cluster.
        """
        if cluster is None or not self.trains_choice:
            return self.returned
        return (self.choices[cluster], *self.returned)


@dataclass(frozen=True)
class Update:
    """The answer of a participant.

    Attributes:
        samples: its training samples, n_i; a script's may be any weight.
        diffs: for each slot that it moved, its model minus the one it was sent in that slot.
        cluster: the cluster that it chose, where participants choose.
        arrays: what it sends that is not a model: a histogram, losses.
        main: the slot that stands for what it learned, by which it is compared; None where it moved at most one.
        carrier: the participant of its site in whose differences its own are; see `cfl_flare.engine.partial_sums`.
        weight: on the server, that of all whose differences these are; None where they are its own alone.
        counts_in: on the server, what `Method.counts_in` said and the run's defences left of it; None before.
    """

    participant: str
    samples: float
    diffs: Mapping[str, Params] = field(default_factory=dict)
    cluster: int | None = None
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    main: str | None = None
    carrier: str | None = None
    weight: float | None = None
    counts_in: Counts | None = None

    @property
    def main_slot(self) -> str:
        """``main``, or the only slot that it moved."""
        if self.main is not None:
            return self.main
        (slot,) = self.diffs
        return slot

    @property
    def main_diff(self) -> Params:
        """The difference in that slot: what stands for the participant's gradient."""
        return self.diffs[self.main_slot]


class Mapped(Sequence[Update]):
    """Updates, or those at some places, seen through a function, one at a time, as large ones are kept on disk."""

    def __init__(
        self,
        updates: Sequence[Update],
        function: Callable[[Update], Update] = lambda update: update,
        places: Sequence[int] | None = None,
    ):
        self._updates = updates
        self._function = function
        self._places = range(len(updates)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        places = self._places[index]
        if isinstance(places, int):
            return self._function(self._updates[places])
        return type(self)(self._updates, self._function, places)

    def __iter__(self) -> Iterator[Update]:
        return (self._function(self._updates[place]) for place in self._places)

    def heads(self) -> Iterator[Update]:
        places = set(self._places)
        for place, update in enumerate(read_heads(self._updates)):
            if place in places:
                yield self._function(update)


def read_heads(updates: Sequence[Update]) -> Iterator[Update]:
    """The updates, with empty vectors where those are on disk: for what reads names and counts alone.

    Args:
        updates: the updates of the round, in the participants' order.
    """
    return updates.heads() if hasattr(updates, "heads") else iter(updates)


def leave_out(
    updates: Sequence[Update],
    names: Container[str],
) -> Sequence[Update]:
    """The updates of all but some participants.

    Args:
        updates: the updates of the round, in the participants' order.
        names: names of participants.
    """
    places = []
    for place, update in enumerate(read_heads(updates)):
        if update.participant not in names:
            places.append(place)
    if len(places) == len(updates):
        return updates
    return Mapped(updates, places=places)


@dataclass(frozen=True)
class ServerState:
    """The server's state between two rounds.

    Attributes:
        bank: the named models: ``global``, ``cluster-0``, ...
        assignment: cluster of each participant seen so far.
        round: rounds completed.
        extras: small JSON values that a method adds.
        arrays: arrays that a method adds and that are not models; they are stored, and never exported as a model.
        notes: what the record of the round that led here says of the method's own, as JSON values; not stored.
            `Method.assign` may add to those of its state, for `Method.aggregate` to pass on.
        logits: what models predict on the server's indicator samples. It is there in `Method.assign`, of a method whose
            traits name an ``indicator``; not stored.
        archive: the arrays on the server's disk. It is there in `Method.assign` and `Method.aggregate` of a method that
            ``archives``, and not stored: extras say which versions belong to the state.
        census: who is where, and what a cluster needs, for `sizes`. It is there in the steps of a run in which clusters
            may not be small; not stored.
        labels: the groups that participants named at check-in, of those that the method lists as ``named_groups``. The
            server sets it; stored.
    """

    bank: Mapping[str, Params]
    assignment: Assignment = field(default_factory=dict)
    round: int = 0
    extras: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict, compare=False)
    logits: Predict | None = field(default=None, compare=False, repr=False)
    archive: Archive | None = field(default=None, compare=False, repr=False)
    census: Census | None = field(default=None, compare=False, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)

    def sizes(
        self,
        names: Sequence[str],
        others: Assignment | None = None,
    ) -> Sizes | None:
        """What the clusters need that these participants are to be assigned to; None for nothing.

        Members that are not among them count where ``others`` has them; by default where they were.

        Args:
            names: names of participants.
            others: where the members that are not among the participants are; None for
                where they were.
        """
        if self.census is None:
            return None
        return self.census.of(names, self.assignment if others is None else others)

    def place_participants(
        self,
        names: Sequence[str],
        labels: np.ndarray,
        costs: Callable[[], np.ndarray],
    ) -> Assignment:
        """These clusters of participants, or the cheapest ones of which none is too small; see `Sizes.assigned`.

        Args:
            names: names of participants.
            labels: the cluster of each participant ``(m,)``.
            costs: computes the cost ``(m, K)`` of each participant in each cluster.
        """
        sizes = self.sizes(names) if names else None
        if sizes is not None:
            labels = sizes.assigned(labels, costs)
        return dict(zip(names, labels.tolist()))

    def count_possible(self, clusters: int) -> int:
        """How many of this number of clusters can be large enough.

        Args:
            clusters: the number of clusters.
        """
        if self.census is None:
            return clusters
        return min(clusters, self.census.clusters)

    def rebuild_model(self, update: Update) -> Params:
        """The model with which a participant ended its round, in its main slot.

        Args:
            update: the update of one participant.
        """
        return self.bank[update.main_slot] + update.main_diff

    def after(
        self,
        bank: Mapping[str, Params],
        assignment: Assignment | None = None,
        **extras: Any,
    ) -> ServerState:
        """The state after a round: some models replaced, some participants assigned, some extras set.

        Args:
            bank: the models that are replaced or added, by slot.
            assignment: the cluster of each of the round's participants.
            **extras: the extras that are set.
        """
        return ServerState(
            {**self.bank, **bank},
            {**self.assignment, **(assignment or {})},
            self.round + 1,
            {**self.extras, **extras},
            self.arrays,
            labels=self.labels,
        )


Part = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The facts of a method that the engine must know before a run. It assumes nothing that is not declared.

    Attributes:
        clusters: number of clusters K; 0 for a method that does not cluster; where K changes, its first value.
        joins_by: the rule by which a newcomer to a finished run is placed, in a few words.
        cluster_on: the part of a model by which participants are compared: a role, or names of parameters; None is the
            fully connected layers, or all parameters where there are none.
        compares_models: participants are compared by their trained models; else by arrays that they send, or not.
        assigns_on_site: each participant chooses its cluster itself.
        averages_only: the M-step takes weighted means of the models alone, each where it was trained. So sites can add
            up their own, and a server's optimizer can step towards the means.
        named_groups: the labels of groups, of which each participant may name one at check-in.
        mergeable: the M-step takes any assignment of the round's participants, so that small clusters can be filled up.
        shares_centres: K is fixed, a participant may be sent all centres, and the common model is their mean: what
            penalties of clusters and CAM build on.
        whole_models: the bank holds whole models, not parts.
        serves_one: a participant predicts with one model, or several that can be taken apart.
        starts_on_site: participants begin with models that their sites build from the seed.
        archives: it keeps arrays on the server's disk.
        takes_penalties: its participants train with its penalties' terms.
        no_penalties: where it takes none, why, and what to do instead.
        no_private: why its participants can have no private layers; empty if they can.
        keeps_head: the head does not travel.
        indicator: the samples on which the server compares what models predict; None where it needs none.
        by_metric: of several models a participant trains and predicts with the one that measures best, or it says how
            each measures, and its steps on the site do nothing else, so that a training script's metric serves.
        queries: what its step on the site asks of the training samples in a round; None where differential privacy has
            no mechanism for that, or nobody has said.
        proximal: the coefficient of the proximal term that it adds to the loss by itself, besides its penalties.
    """

    clusters: int = 0
    joins_by: str = ""
    cluster_on: Part | None = None
    compares_models: bool = False
    assigns_on_site: bool = False
    averages_only: bool = False
    named_groups: tuple[str, ...] = ()
    mergeable: bool = False
    shares_centres: bool = False
    whole_models: bool = False
    serves_one: bool = False
    takes_penalties: bool = False
    starts_on_site: bool = False
    archives: bool = False
    no_penalties: str = ""
    no_private: str = ""
    keeps_head: bool = False
    indicator: Indicator | None = None
    by_metric: bool = False
    proximal: float | None = None
    queries: Queries | None = None

    def lacking(self, *names: str) -> list[str]:
        """Those of these traits that are not declared.

        Args:
            *names: names of participants.
        """
        return [name for name in names if not getattr(self, name)]


def sum_queries(queries: Sequence[Queries | None]) -> Queries | None:
    """What several parts ask for together; None if one does not say it.

    Args:
        queries: the queries of each part; None if a part does not state them.
    """
    known = [query for query in queries if query is not None]
    if len(known) < len(queries):
        return None
    sums = {}
    for field_ in fields(Queries):
        sums[field_.name] = sum(getattr(query, field_.name) for query in known)
    return Queries(**sums)


# What most methods are: a participant trains one whole model, with penalties, and predicts with it.
PLAIN = Traits(
    whole_models=True, serves_one=True, takes_penalties=True, queries=Queries()
)
# A fixed number of clusters, whose models the server compares.
CLUSTERED = replace(PLAIN, compares_models=True, shares_centres=True)
