# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The contract that every method fulfils: one pass of assign, aggregate, distribute and local update a round.

It is the thesis's unified view (Alg. 1, Eq. 3.3). The same method object, built from the same settings, works on the
server and on every site.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params, WeightedMean, weighted_mean
from cfl_flare.core.settings import check_settings, setting
from cfl_flare.methods.parts import check_part, known_part
from cfl_flare.methods.penalties import Penalty
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.methods.state import Assignment, Download, Plan, ServerState, Update
from cfl_flare.methods.traits import Traits
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.penalties import Term

# The contract, in the order of a run. A new method overrides a few of these; all else on `Method` is a helper for them.
STEPS = (
    *("check", "start", "plan", "distribute", "terms", "local_update", "serve", "finetuned"),
    *("vector", "assign", "aggregate", "clusters_in", "models", "join"),
)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One federated algorithm. Its fields are its settings; a subclass overrides the steps that it changes."""

    name: ClassVar[str]  # in a job
    paper: ClassVar[str]

    weighting: str = setting(
        "samples",
        help="weights in averages: samples, psi_i = n_i / n (thesis Eq. 2.3), or uniform, psi_i = 1/m (Eq. 2.2)",
        choices=("samples", "uniform"),
    )
    penalties: tuple[Penalty, ...] = setting((), help="terms that are added to the loss in each local step")
    finetune: bool = setting(
        False, help="train for one more local round before predicting, each participant by itself (thesis sec. 7.4.4)"
    )
    finetune_epochs: int | None = setting(
        None, help="passes over the training data in that round; None for as long as any other round", ge=1
    )

    def __post_init__(self) -> None:
        where, epochs = self.where, self.finetune_epochs
        known = getattr(self, "k", None) != "auto"
        require(
            known, f"{where}: k = 'auto' stands alone: write \"wecfl:k=auto\", or AutoK(base=WeCFL(k=10)) in Python"
        )
        check_settings(self, where)
        cluster_on = getattr(self, "cluster_on", None)
        if cluster_on is not None:
            object.__setattr__(self, "cluster_on", known_part(cluster_on, where))
        self._check_penalties()
        used = self.finetune or epochs == type(self).finetune_epochs
        require(used, f"{where}: finetune_epochs = {epochs} does nothing without finetune = True; set that too")

    def _check_penalties(self) -> None:
        given, refusal = self.penalties, self.traits.no_penalties
        fits = isinstance(given, (list, tuple)) and all(isinstance(p, Penalty) for p in given)
        require(fits, f"{self.where}: penalties = {given!r} should be a list of penalties")
        require(not (given and refusal), f"{self.where}: penalties = {[p.name for p in given]} {refusal}")
        object.__setattr__(self, "penalties", tuple(given))
        for penalty in self.penalties:
            penalty.check(self.clusters if self.traits.shares_centres else 0)

    @property
    def traits(self) -> Traits:
        """What the engine must know of the method before a run."""
        return Traits()

    @property
    def label(self) -> str:
        """The method's name in tables, with what was added to it: ``wecfl-con``."""
        return "-".join([self.name, *(p.short for p in self.penalties), *(["finetune"] * self.finetune)])

    @property
    def where(self) -> str:
        """The beginning of its error messages."""
        return f"method {self.name}"

    @property
    def clusters(self) -> int:
        """The number of clusters K."""
        return self.traits.clusters

    # ---- Steps on the server ----

    def check(self, layout: Layout, rounds: int | None = None) -> None:
        """Checks that the method works with a model of this layout, and with this many rounds if their number is known.

        Raises:
            ConfigError: the model lacks a part that the method needs, or the rounds are too few.
        """
        layout.select("all")
        require(rounds is None or rounds >= 1, f"{self.where}: num_rounds = {rounds} should be >= 1")
        check_part(layout.compared(self.traits.cluster_on), layout, self.where)
        for penalty in self.penalties:
            penalty.check_model(layout)

    def start(self, initial: Callable[[int], Params], participants: Sequence[str] = ()) -> ServerState:
        """The state before round 0. ``initial(i)`` is the untrained model from the run's i-th seed."""
        return ServerState(bank={GLOBAL: initial(0)})

    def plan(self, state: ServerState) -> Plan:
        """Who trains in the coming round, and how many updates the round needs."""
        return Plan()

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Distribution step: what this participant is sent, for training and for prediction alike."""
        return Download((GLOBAL,))

    def vector(self, state: ServerState, update: Update) -> np.ndarray:
        """The vector by which a participant is compared, float32: part of its trained model, or an array it sent."""
        return self.features(state.trained(update))

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """E-step: the cluster of each of the round's participants."""
        return {}

    @abstractmethod
    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """M-step: the new models."""

    def clusters_in(self, state: ServerState) -> int:
        """The number of cluster ids given out so far: 0, 1, ... without a gap.

        An id stays with its cluster. When a cluster is split, one half keeps the id and the other gets the next one.
        Ids are never reused.
        """
        return self.clusters

    def models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """The models that a finished run leaves for prediction, by name."""
        return {slot: Served((model,)) for slot, model in state.bank.items()}

    def join(self, state: ServerState, update: Update) -> ServerState:
        """The state of a finished run after a newcomer's update: the newcomer may be assigned, nothing else changes.

        No model of the bank changes, and no other participant changes cluster.
        """
        placed = {**state.assignment, **self.assign(state, [update])}
        return replace(state, assignment=placed, round=state.round + 1)

    # ---- Steps on the site ----

    def terms(self, download: Download, own: str) -> list[Term]:
        """The terms added to the loss of a participant that starts from the model ``own``: those of the penalties."""
        ready = "weights" in download.scalars  # a participant that starts from the common model is sent no weights
        active = [p for p in self.penalties if ready or not p.of_clusters]
        return [term for p in active for term in p.terms(download, own, self.clusters)]

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Local update step: trains the model that it was sent first."""
        return self.trained(learner, download, download.slots[0])

    def serve(self, learner: Learner, download: Download) -> Params | Served:
        """The model with which a participant predicts."""
        return download.models[0]

    def finetuned(self, learner: Learner, served: Params | Served) -> Params | Served:
        """The served models after one more local round of ``finetune_epochs`` each."""
        served = Served.of(served)
        models = tuple(learner.train(m, purpose="finetune", epochs=self.finetune_epochs) for m in served.models)
        return replace(served, models=models)

    # ---- Tools for steps ----

    def choices(self, state: ServerState) -> dict[int, str]:
        """The clusters that participants choose from, with their slots: all K but the closed ones."""
        return {k: cluster_slot(k) for k in range(self.clusters) if k not in state.closed}

    def with_penalties(self, state: ServerState, sent: Download) -> Download:
        """Adds to a download the models and weights that penalties of clusters need, once there are centres.

        There are centres once `aggregate` has put ``weights`` into the state's extras. The round number does not tell,
        as a round may fail, and CAM's warm-up makes no centres.
        """
        active = [p for p in self.penalties if p.of_clusters]
        if not active or "weights" not in state.extras or GLOBAL in sent.slots:
            return sent
        needed = dict.fromkeys(slot for p in active for slot in p.slots(self.clusters))
        to_train = tuple(slot for slot in needed if slot not in sent.slots)
        return replace(sent, scalars={"weights": state.extras["weights"]}, to_train=to_train)

    def trained(self, learner: Learner, download: Download, own: str, cluster: int | None = None, **how: Any) -> Update:
        """Trains the model ``own`` and returns the update; ``how`` is passed on to `Learner.train`."""
        start = download.model(own)
        trained = learner.train(start, self.terms(download, own), **how)
        return Update(learner.participant, learner.samples, {own: trained - start}, cluster, main=own)

    def predictor(self, learner: Learner, download: Download) -> Params | Served:
        """The model that `serve` returns, with private layers, and fine-tuned if ``finetune`` is set."""
        served = learner.complete(self.serve(learner, download))
        return self.finetuned(learner, served) if self.finetune else served

    def features(self, model: Params) -> np.ndarray:
        """The part of a model by which participants are compared; float32."""
        return model.part(model.layout.compared(self.traits.cluster_on))

    def weight(self, update: Update) -> float:
        """A participant's weight psi_i, up to a common factor."""
        if update.weight is not None:
            return update.weight
        return float(update.samples) if self.weighting == "samples" else 1.0

    def means(self, state: ServerState, updates: Iterable[Update]) -> dict[str, Params]:
        """Each slot's weighted mean over the participants that trained it (thesis Eq. 2.6); other slots stay."""
        means = {slot: WeightedMean(model.layout) for slot, model in state.bank.items()}
        for update in updates:
            for slot, diff in update.diffs.items():
                means[slot].add(state.bank[slot] + diff, self.weight(update))
        return {slot: mean.result(state.bank[slot]) for slot, mean in means.items()}

    def centres(self, state: ServerState, updates: Iterable[Update], assignment: Assignment) -> dict[str, Params]:
        """Weighted mean of the trained models inside each cluster; an empty cluster keeps its model.

        It takes one pass over the updates, as large ones are kept on disk.
        """
        layout = next(iter(state.bank.values())).layout
        clusters = max([self.clusters_in(state), *(k + 1 for k in assignment.values())])
        means = [WeightedMean(layout) for _ in range(clusters)]
        for update in updates:
            means[assignment[update.participant]].add(state.trained(update), self.weight(update))
        slots = [cluster_slot(k) for k in range(clusters)]
        return {s: mean.result(state.bank.get(s) or state.bank[GLOBAL]) for s, mean in zip(slots, means)}

    def cluster_weights(self, updates: Iterable[Update], assignment: Assignment) -> list[float]:
        """Each cluster's share of the weight of all participants that trained a model, w_k (thesis Eq. 5.5)."""
        weights = np.zeros(self.clusters)
        for update in updates:
            if update.diffs:
                weights[assignment[update.participant]] += self.weight(update)
        return (weights / (weights.sum() or 1.0)).tolist()  # all zero if nobody trained one

    def common(self, centres: Mapping[str, Params], weights: Sequence[float]) -> Params:
        """Theta_g, the weighted mean of the centres (thesis Eq. 5.6)."""
        models = [centres[cluster_slot(k)] for k in range(self.clusters)]
        return weighted_mean(((m, w) for m, w in zip(models, weights) if w), models[0])
