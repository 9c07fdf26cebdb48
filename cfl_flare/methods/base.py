# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The contract that every method fulfils: one pass of assign, aggregate, distribute and local update a round.

It is the thesis's unified view (Alg. 1, Eq. 3.3). The same method object, built from the same settings, works on the
server and on every site.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.params import ROLES, Layout, Params, WeightedMean, weighted_mean
from cfl_flare.core.settings import check_settings, setting
from cfl_flare.methods.penalties import Penalty
from cfl_flare.methods.slots import (
    CLUSTER_WEIGHTS,
    COMMON_WEIGHTS,
    GLOBAL,
    HAS_CENTRES,
    cluster_slot,
    require_part,
)
from cfl_flare.methods.state import (
    Assignment,
    Counts,
    Download,
    Plan,
    ServerState,
    Traits,
    Update,
    Weighting,
    read_heads,
)
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Term

# The contract, in the order of a run. A new method overrides a few of these; all else on `Method` is a helper for them.
STEPS = (
    *(
        "check",
        "start",
        "plan",
        "distribute",
        "list_terms",
        "local_update",
        "serve",
        "finetune_served",
    ),
    *(
        "compute_vector",
        "assign",
        "counts_in",
        "aggregate",
        "count_clusters",
        "list_models",
        "join",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One federated algorithm. Its fields are its settings; a subclass overrides the steps that it changes."""

    name: ClassVar[str]  # in a job
    paper: ClassVar[str]

    weighting: Weighting = setting(
        "samples",
        help="weights in averages: samples, psi_i = n_i / n (thesis Eq. 2.3), or uniform, psi_i = 1/m (Eq. 2.2)",
        choices=("samples", "uniform"),
    )
    penalties: tuple[Penalty, ...] = setting(
        (), help="terms that are added to the loss in each local step"
    )
    finetune: bool = setting(
        False,
        help="train for one more local round before predicting, each participant by itself (thesis sec. 7.4.4)",
    )
    finetune_epochs: int | None = setting(
        None,
        help="passes over the training data in that round; None for as long as any other round",
        ge=1,
        le=1000,
    )

    def __post_init__(self) -> None:
        where = self.where
        epochs = self.finetune_epochs
        way_out = 'write "wecfl:k=auto", or AutoK(base=WeCFL(k=10)) in Python'
        require(
            getattr(self, "k", None) != "auto",
            f"{where}: k = 'auto' stands alone: {way_out}",
        )
        check_settings(self, where)
        if (part := getattr(self, "cluster_on", None)) is not None:
            self._check_cluster_on(part)
        self._check_penalties()
        silent = (
            type(self).assign is not Method.assign
            and type(self).counts_in is Method.counts_in
        )
        require(
            not silent,
            f"{self.where}: it defines assign, but not counts_in, which says in which mean a model counts; return "
            "self.count_by_slot(update) there for the mean of the slot that was trained, or "
            "self.count_by_cluster(update, assignment) for that of the participant's cluster",
        )
        used = self.finetune or epochs == type(self).finetune_epochs
        require(
            used,
            f"{where}: finetune_epochs = {epochs} does nothing without finetune = True; set that too",
        )

    def _check_cluster_on(self, part: Any) -> None:
        """The setting should be a role, or names of parameters, which become a tuple."""
        wanted = f"{self.where}: cluster_on = {part!r} should be one of {ROLES}"
        if isinstance(part, str):
            require(part in ROLES, wanted)
            return
        names = isinstance(part, (list, tuple)) and all(
            isinstance(n, str) for n in part
        )
        require(names, f"{wanted} or a list of names")
        object.__setattr__(self, "cluster_on", tuple(part))

    def _check_penalties(self) -> None:
        given = self.penalties
        traits = self.traits
        undeclared = (
            "are for a method whose traits declare takes_penalties; this one's do not"
        )
        refusal = "" if traits.takes_penalties else traits.no_penalties or undeclared
        valid = isinstance(given, (list, tuple)) and all(
            isinstance(p, Penalty) for p in given
        )
        require(
            valid, f"{self.where}: penalties = {given!r} should be a list of penalties"
        )
        require(
            not (given and refusal),
            f"{self.where}: penalties = {[p.name for p in given]} {refusal}",
        )
        object.__setattr__(self, "penalties", tuple(given))
        for penalty in self.penalties:
            penalty.check(self.clusters if traits.shares_centres else 0)

    @property
    def traits(self) -> Traits:
        """The facts that the engine must know before a run."""
        return Traits()

    @property
    def label(self) -> str:
        """The method's name in tables, with what was added to it: ``wecfl-con``."""
        return "-".join(
            [
                self.name,
                *(p.short for p in self.penalties),
                *(["finetune"] * self.finetune),
            ]
        )

    @property
    def where(self) -> str:
        return f"method {self.name}"

    @property
    def clusters(self) -> int:
        return self.traits.clusters

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the K clusters' models."""
        return tuple(map(cluster_slot, range(self.clusters)))

    # ---- Steps on the server ----

    def check(self, layout: Layout, rounds: int | None = None) -> None:
        """Raises a ConfigError if the rounds are too few, or a model of this layout lacks a part that is needed.

        Args:
            layout: the names and shapes of a model's arrays.
            rounds: the number of rounds of the run, if it is known.
        """
        layout.select("all")
        require(
            rounds is None or rounds >= 1,
            f"{self.where}: num_rounds = {rounds} should be >= 1",
        )
        compared = layout.compared(self.traits.cluster_on)
        misfit = f"{self.where}: cluster_on = {compared!r} does not fit the model: {{}}; set cluster_on=all"
        require_part(layout, compared, misfit)
        for penalty in self.penalties:
            penalty.check_model(layout)

    def start(
        self, initial: Callable[[int], Params], participants: Sequence[str] = ()
    ) -> ServerState:
        """The state before round 0. ``initial(i)`` is the untrained model from the run's i-th seed.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        return ServerState(bank={GLOBAL: initial(0)})

    def plan(self, state: ServerState) -> Plan:
        """Who trains in the coming round, and how many updates the round needs.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        return Plan()

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Distribution step: what this participant is sent, for training and for prediction alike.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        return Download((GLOBAL,))

    def compute_vector(self, state: ServerState, update: Update) -> np.ndarray:
        """The vector by which a participant is compared, float32: part of its trained model, or an array it sent.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            ``(d,)`` float32.
        """
        return self.select_features(state.rebuild_model(update))

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """E-step: the cluster of each of the round's participants.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        return {}

    def counts_in(
        self, state: ServerState, update: Update, assignment: Assignment
    ) -> Counts:
        """The mean in which each model that a participant trained counts, and its weight: ``{slot: (mean, weight)}``.

        `compute_means`, `compute_centres`, robust statistics, weight caps, floors and records read only this.
        So the guards see what is averaged. It reads the names of the update's models, whose vectors may be empty. A
        model that is not named counts nowhere.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        return self.count_by_slot(update)

    @abstractmethod
    def aggregate(
        self, state: ServerState, updates: Sequence[Update], assignment: Assignment
    ) -> ServerState:
        """M-step: the new models.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """

    def count_clusters(self, state: ServerState) -> int:
        """The number of cluster ids given out so far: 0, 1, ... without a gap.

        An id stays with its cluster. When a cluster is split, one half keeps the id and the other gets the next one.
        Ids are never reused.

        Args:
            state: the server's state between two rounds.

        Returns:
            The number of ids: 0, 1, ... without a gap.
        """
        return self.clusters

    def list_models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """The models that a finished run leaves for prediction, by name.

        Args:
            state: the server's state between two rounds.
            layout: the names and shapes of a model's arrays.

        Returns:
            What predicts, by name.
        """
        return {slot: Served((model,)) for slot, model in state.bank.items()}

    def join(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """The state of a finished run after a newcomer's update: the newcomer may be assigned, nothing else changes.

        No model of the bank changes, and no other participant changes cluster.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            The state in which the newcomer may be assigned.
        """
        placed = {**state.assignment, **self.assign(state, [update])}
        return replace(state, assignment=placed, round=state.round + 1)

    def join_by_aggregate(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """Place a newcomer by `aggregate` and not by `assign`, for a method whose `join` says so.

        Args:
            state: the state of the finished run.
            update: the newcomer's update.

        Returns:
            The state in which the newcomer may be assigned. Its models are unchanged.
        """
        assignment = self.assign(state, [update])
        return replace(self.aggregate(state, [update], assignment), bank=state.bank)

    def publish(self, state: ServerState) -> ServerState:
        """The state as the results of a run hold it: what places a newcomer, and no participant's own numbers.

        Args:
            state: the server's state between two rounds.

        Returns:
            The state as the results of a run hold it.
        """
        return state

    # ---- Steps on the site ----

    def list_terms(
        self,
        download: Download,
        slot: str,
    ) -> list[Term]:
        """The terms added to the loss of a participant that starts from the model in ``slot``: the penalties'.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.

        Returns:
            The terms.
        """
        ready = (
            HAS_CENTRES in download.scalars
        )  # a participant that starts from the common model is sent no centres
        active = [p for p in self.penalties if ready or not p.of_clusters]
        return [
            term for p in active for term in p.list_terms(download, slot, self.clusters)
        ]

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Local update step: trains the model that it was sent first.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        return self.train_slot(learner, download, download.slots[0])

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params | Served:
        """The model with which a participant predicts.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        return download.models[0]

    def finetune_served(
        self,
        learner: Learner,
        served: Params | Served,
    ) -> Params | Served:
        """The served models after one more local round of ``finetune_epochs`` each.

        Args:
            learner: the participant's data, random streams and memory.
            served: the models that the participant predicts with.

        Returns:
            The tuned models.
        """
        served = Served.of(served)
        models = tuple(
            learner.train(m, purpose="finetune", epochs=self.finetune_epochs)
            for m in served.models
        )
        return replace(served, models=models)

    # ---- Tools for steps ----

    def list_choices(self, state: ServerState) -> dict[int, str]:
        """The clusters that participants choose from, with their slots: as many of the K as can be large enough.

        Args:
            state: the server's state between two rounds.

        Returns:
            The slot of each cluster.
        """
        return dict(enumerate(self.slots[: state.count_possible(self.clusters)]))

    def add_penalties(
        self,
        state: ServerState,
        sent: Download,
    ) -> Download:
        """Adds to a download the models and weights that penalties of clusters need, once there are centres.

        There are centres once `aggregate` has put ``has_centres`` into the state's extras. The round number does not
        tell, as a round may fail, and CAM's warm-up makes no centres.

        Args:
            state: the server's state between two rounds.
            sent: the download so far.

        Returns:
            The download with them, or unchanged.
        """
        active = [p for p in self.penalties if p.of_clusters]
        if not active or not state.extras.get(HAS_CENTRES) or GLOBAL in sent.slots:
            return sent
        needed = dict.fromkeys(slot for p in active for slot in p.slots(self.clusters))
        to_train = tuple(slot for slot in needed if slot not in sent.slots)
        scalars = {HAS_CENTRES: True, CLUSTER_WEIGHTS: state.extras[COMMON_WEIGHTS]}
        return replace(sent, scalars=scalars, to_train=to_train)

    def train_slot(
        self,
        learner: Learner,
        download: Download,
        slot: str,
        cluster: int | None = None,
        **settings: Any,
    ) -> Update:
        """Trains the model in ``slot``, and returns the update; ``settings`` are those of `Learner.train`.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.
            slot: the name of a model in the bank.
            cluster: the cluster that the participant chose, if it chooses.
            **settings: settings of `Learner.train`.

        Returns:
            The difference that training made, as an update.
        """
        start = download.model(slot)
        trained = learner.train(start, self.list_terms(download, slot), **settings)
        return Update(
            learner.participant,
            learner.samples,
            {slot: trained - start},
            cluster,
            main=slot,
        )

    def build_predictor(
        self,
        learner: Learner,
        download: Download,
    ) -> Params | Served:
        """The model that `serve` returns, with private layers, and fine-tuned if ``finetune`` is set.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        served = learner.complete(self.serve(learner, download))
        return self.finetune_served(learner, served) if self.finetune else served

    def select_features(self, model: Params) -> np.ndarray:
        """The part of a model by which participants are compared; float32.

        Args:
            model: a model.

        Returns:
            ``(d,)`` float32.
        """
        return model.part(model.layout.compared(self.traits.cluster_on))

    def weight(self, update: Update) -> float:
        """A participant's weight psi_i, up to a common factor.

        Args:
            update: the update of one participant.

        Returns:
            The weight psi_i, up to a common factor.
        """
        if update.weight is not None:
            return update.weight
        return float(update.samples) if self.weighting == "samples" else 1.0

    def count_by_slot(self, update: Update) -> Counts:
        """Each model counts in the mean of the slot that was trained: for `counts_in`.

        Args:
            update: the update of one participant.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        return {slot: (slot, self.weight(update)) for slot in update.diffs}

    def count_by_cluster(
        self,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """The main model counts in the mean of its participant's cluster, the others as in `count_by_slot`.

        Args:
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        counts = dict(self.count_by_slot(update))
        cluster = assignment.get(update.participant)
        if cluster is not None and counts:
            counts[update.main_slot] = (cluster_slot(cluster), self.weight(update))
        return counts

    def read_counts(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """Where an update counts: as the engine noted on it, which leaves out small means and caps weights.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        if update.counts_in is None:
            return self.counts_in(state, update, assignment)
        return update.counts_in

    def compute_means(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment = MappingProxyType({}),
    ) -> dict[str, Params]:
        """The bank, with the weighted mean of the models that count in each slot (thesis Eq. 2.6); other slots stay.

        One mean is added up after the other, and each update is read when it counts, as large ones are kept on disk.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            All models of the bank, by slot.
        """
        members_of: dict[str, list[tuple[int, str, float]]] = {}
        for place, update in enumerate(read_heads(updates)):
            counted = self.read_counts(state, update, assignment)
            for slot in update.diffs:
                if slot in counted:
                    name, weight = counted[slot]
                    members_of.setdefault(name, []).append((place, slot, weight))
        bank = dict(state.bank)
        for name, members in members_of.items():
            sent = state.bank[members[0][1]]
            mean = WeightedMean(sent.layout)
            for place, slot, weight in members:
                mean.add(updates[place].diffs[slot], weight, start=state.bank[slot])
            bank[name] = mean.result(bank.get(name, sent))
        return bank

    def compute_centres(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> dict[str, Params]:
        """The same for each cluster's model; an empty cluster keeps its model, or begins with the common one.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The model of each cluster, by slot.
        """
        means = self.compute_means(state, updates, assignment)
        clusters = max(
            [self.count_clusters(state), *(k + 1 for k in assignment.values())]
        )
        return {
            slot: means.get(slot) or state.bank[GLOBAL]
            for slot in map(cluster_slot, range(clusters))
        }

    def compute_cluster_weights(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> list[float]:
        """Each cluster's share of the weight of all models that count in one, w_k (thesis Eq. 5.5).

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            w_k of each cluster; they add up to 1, or are all 0.
        """
        weights = dict.fromkeys(self.slots, 0.0)
        for update in read_heads(updates):
            for name, weight in self.read_counts(state, update, assignment).values():
                if name in weights:
                    weights[name] += weight
        total = (
            sum(weights.values()) or 1.0
        )  # all shares are zero if nobody trained a cluster's model
        return [weight / total for weight in weights.values()]

    def update_common(
        self,
        state: ServerState,
        centres: Mapping[str, Params],
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """The state after a round, with these centres and their mean by `cluster_weights` as the common model.

        Args:
            state: the server's state between two rounds.
            centres: the new centre of each cluster, by slot.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        weights = self.compute_cluster_weights(state, updates, assignment)
        common = self.average_centres({**state.bank, **centres}, weights)
        said = {HAS_CENTRES: True, COMMON_WEIGHTS: weights}
        return state.after({**centres, GLOBAL: common}, assignment, **said)

    def average_centres(
        self,
        models: Mapping[str, Params],
        weights: Sequence[float],
    ) -> Params:
        """Theta_g, the weighted mean of the centres (thesis Eq. 5.6); it stays where all weights are zero.

        Args:
            models: the centres, by slot.
            weights: w_k of each cluster; they add up to 1, or are all 0.

        Returns:
            The common model.
        """
        centres = [models[slot] for slot in self.slots]
        return weighted_mean(
            ((m, w) for m, w in zip(centres, weights) if w),
            models.get(GLOBAL, centres[0]),
        )
