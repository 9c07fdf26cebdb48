# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The contract that every method fulfils: one pass of assign, aggregate, distribute and local update a round.

It is the thesis's unified view (Alg. 1, Eq. 3.3). The same method object, built from the same settings, works on the
server (``start``, ``distribute``, ``assign``, ``aggregate``) and on every site (``local_update``, ``serve``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import check_types, require
from cfl_flare.core.params import Layout, Params, WeightedMean, weighted_mean
from cfl_flare.methods.penalties import Penalty
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.methods.state import Assignment, Download, Indicator, ServerState, Update
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.penalties import Term


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One federated algorithm. Its fields are its settings; a subclass overrides the steps that it changes.

    Attributes:
        weighting: how participants count in averages: ``"samples"``, psi_i = n_i / n (thesis Eq. 2.3), or
            ``"uniform"``, psi_i = 1/m (Eq. 2.2).
        penalties: terms that are added to the loss in each local step; see `cfl_flare.methods.penalties`.
        finetune: each participant trains what it predicts with for one more local round before it does (thesis
            sec. 7.4.4).
        finetune_epochs: passes over its training data in that round; None for as long as any other.
        name: what the method is called in a job.
        paper: where it comes from.
        assigns_on_site: each participant picks its cluster itself.
        predicts_with_several: what it serves is several models, which others cannot take apart.
        no_penalties: why it takes none itself, and the way out; empty if it does.
        starts_on_site: participants begin with models that their sites build from the seed.
        archives: it keeps arrays on the server's disk.
        shares_centres: K is fixed, a participant may be sent all centres, and the common model is their mean: what
            penalties of clusters and CAM build on.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    assigns_on_site: ClassVar[bool] = False
    predicts_with_several: ClassVar[bool] = False
    no_penalties: ClassVar[str] = ""
    shares_centres: ClassVar[bool] = True
    archives: ClassVar[bool] = False
    starts_on_site: ClassVar[bool] = False

    weighting: str = "samples"
    penalties: tuple[Penalty, ...] = ()
    finetune: bool = False
    finetune_epochs: int | None = None

    def __post_init__(self) -> None:
        where, epochs = f"method {self.name}", self.finetune_epochs
        check_types(self, where)
        self._check_penalties()
        require(epochs is None or epochs >= 1, f"{where}: finetune_epochs = {epochs} should be >= 1 or None")
        used = self.finetune or epochs == type(self).finetune_epochs
        require(used, f"{where}: finetune_epochs = {epochs} does nothing without finetune = True; set that too")
        require(
            self.weighting in ("samples", "uniform"),
            f"{where}: weighting = {self.weighting!r} should be 'samples' or 'uniform'",
        )

    def _check_penalties(self) -> None:
        given = self.penalties
        fits = isinstance(given, (list, tuple)) and all(isinstance(p, Penalty) for p in given)
        require(fits, f"method {self.name}: penalties = {given!r} should be a list of penalties")
        refused = bool(given) and bool(self.no_penalties)
        require(not refused, f"method {self.name}: penalties = {[p.name for p in given]} {self.no_penalties}")
        object.__setattr__(self, "penalties", tuple(given))
        for penalty in self.penalties:
            penalty.check(self.clusters if self.shares_centres else 0)

    @property
    def label(self) -> str:
        """What the method is called in tables: its name and what was added to it, ``wecfl-con``."""
        return "-".join([self.name, *(p.short for p in self.penalties), *(["finetune"] * self.finetune)])

    @property
    def clusters(self) -> int:
        """Number of clusters K; 0 for a method that does not cluster; where K changes, what is known before a run."""
        return 0

    def clusters_in(self, state: ServerState) -> int:
        """Number of cluster ids given out so far: 0, 1, ... without a gap.

        An id stays with its cluster. A split keeps it for one half, and the other takes the next one; it is never used
        again.
        """
        return self.clusters

    def gone(self, state: ServerState) -> set[int]:
        """Ids whose cluster is no more: the others without members are empty clusters."""
        return set()

    @property
    def sums(self) -> bool:
        """Whether its M-step takes nothing but weighted means of the models, so that sites can add up their own."""
        return False

    @property
    def regroups(self) -> bool:
        """Whether its M-step takes any assignment of the round's participants, so that small clusters can be merged."""
        return False

    def asks_all(self, state: ServerState) -> bool:
        """Whether the coming round asks all participants to train, whatever the run's sampling."""
        return False

    def sampling_round(self, state: ServerState) -> int:
        """The round by which the coming one's participants are drawn: methods that compare share their seed's draws."""
        return state.round

    @property
    def joins_by(self) -> str:
        """By what a newcomer to a finished run gets its cluster, in a few words."""
        return "the method's own assignment" if self.clusters else ""

    def join(self, state: ServerState, update: Update) -> ServerState:
        """The state of a finished run once a newcomer has sent an update: it may be placed, nothing else changes.

        No model of the bank moves, and nobody else changes cluster.
        """
        placed = {**state.assignment, **self.assign(state, [update])}
        return replace(state, assignment=placed, round=state.round + 1)

    def placed(self, state: ServerState, participant: str) -> bool:
        """Whether a participant has the cluster in which it will stay for now; always, where there are none."""
        return not self.clusters_in(state) or participant in state.assignment

    @property
    def indicator(self) -> Indicator | None:
        """The samples on which the server compares what models predict; None for a method that needs none."""
        return None

    def needs(self, state: ServerState) -> int:
        """Fewest answers with which the coming round can be aggregated."""
        return 1

    def check_model(self, layout: Layout) -> None:
        """Whether the method can work with such a model.

        Raises:
            ConfigError: it lacks a part that the method needs.
        """
        layout.select("all")
        for penalty in self.penalties:
            penalty.check_model(layout)

    def check_rounds(self, rounds: int) -> None:
        """Whether so many rounds make sense.

        Raises:
            ConfigError: they do not.
        """
        require(rounds >= 1, f"method {self.name}: {rounds} rounds are none")

    def start(self, initial: Callable[[int], Params]) -> ServerState:
        """The state before round 0. ``initial(i)`` is the untrained model from the run's i-th seed."""
        return ServerState(bank={GLOBAL: initial(0)})

    def admit(self, state: ServerState, participants: Sequence[str]) -> ServerState:
        """The state once the participants are known, before a run's first round or when it goes on with others."""
        return state

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Distribution step: what this participant is sent, for training and for prediction alike."""
        return Download((GLOBAL,))

    def with_penalties(self, state: ServerState, slots: tuple[str, ...]) -> Download:
        """These models and, once there are centres, what penalties of clusters need: models and the clusters' weights.

        There are centres when `aggregate` has put ``weights`` into the state's extras; the round's number does not say
        it, as a round may fail, and CAM's warm-up makes none.
        """
        active = [p for p in self.penalties if p.of_clusters]
        if not active or "weights" not in state.extras or GLOBAL in slots:
            return Download(slots)
        needed = dict.fromkeys(slot for p in active for slot in p.slots(self.clusters))
        to_train = tuple(slot for slot in needed if slot not in slots)
        return Download(slots, facts={"weights": state.extras["weights"]}, to_train=to_train)

    def moved_slots(self, state: ServerState, slots: tuple[str, ...], cluster: int | None) -> tuple[str, ...]:
        """Of the slots that a participant was sent, those whose difference it must send back."""
        return slots[:1]

    def picks(self, state: ServerState, slots: tuple[str, ...]) -> bool:
        """Whether a participant that is sent these slots says which cluster it picked."""
        return self.assigns_on_site

    def terms(self, learner: Learner, download: Download, own: str) -> list[Term]:
        """What the penalties add to the loss of a participant that starts from the model ``own``."""
        ready = "weights" in download.facts  # a participant that starts from the common model is sent none either
        active = [p for p in self.penalties if ready or not p.of_clusters]
        return [term for p in active for term in p.terms(download, own, self.clusters)]

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Local update step, on the site."""
        return self.trained_update(learner, download, download.slots[0])

    def trained_update(self, learner: Learner, download: Download, own: str, cluster: int | None = None) -> Update:
        """The update of a participant that trains the model ``own``."""
        start = download.model(own)
        trained = learner.train(start, self.terms(learner, download, own))
        return Update(learner.participant, learner.samples, {own: trained - start}, cluster)

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """E-step: the cluster of each of the round's participants."""
        return {}

    @abstractmethod
    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """M-step: the new models."""

    def notes(self, state: ServerState) -> dict[str, Any]:
        """What a round's record says of the method's own, as JSON values; ``state`` is the one after the round."""
        return {}

    def compose(self, download: Download, layout: Layout) -> Download:
        """On the site: the whole models, where they travelled in parts."""
        return download

    def whole_models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """What a run leaves to predict with, by name."""
        return {slot: Served((model,)) for slot, model in state.bank.items()}

    def serve(self, learner: Learner, download: Download) -> Params | Served:
        """The model with which a participant predicts, on the site."""
        return download.models[0]

    def predictor(self, learner: Learner, download: Download) -> Params | Served:
        """What `serve` gives, fine-tuned first if that was asked for."""
        served = self.serve(learner, download)
        return self.finetuned(learner, served) if self.finetune else served

    def finetuned(self, learner: Learner, served: Params | Served) -> Params | Served:
        """The models after one more local round of ``finetune_epochs``, each by itself."""
        served = Served.of(served)
        models = tuple(learner.train(m, purpose="finetune", epochs=self.finetune_epochs) for m in served.models)
        return replace(served, models=models)

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
        if update.weight is not None:
            return update.weight
        return float(update.samples) if self.weighting == "samples" else 1.0

    def means(self, state: ServerState, updates: Iterable[Update]) -> dict[str, Params]:
        """Each slot's weighted mean over the participants that moved it (thesis Eq. 2.6); the others keep theirs."""
        means = {slot: WeightedMean(model.layout) for slot, model in state.bank.items()}
        for update in updates:
            for slot, diff in update.diffs.items():
                means[slot].add(state.bank[slot] + diff, self.weight(update))
        return {slot: mean.result(state.bank[slot]) for slot, mean in means.items()}

    def centres(self, state: ServerState, updates: Iterable[Update], assignment: Assignment) -> dict[str, Params]:
        """Weighted mean of the trained models inside each cluster; an empty cluster keeps its model.

        One pass over the updates: large ones lie on disk.
        """
        layout = next(iter(state.bank.values())).layout
        clusters = max([self.clusters_in(state), *(k + 1 for k in assignment.values())])
        means = [WeightedMean(layout) for _ in range(clusters)]
        for update in updates:
            means[assignment[update.participant]].add(state.trained(update), self.weight(update))
        slots = [cluster_slot(k) for k in range(clusters)]
        return {s: mean.result(state.bank.get(s) or state.bank[GLOBAL]) for s, mean in zip(slots, means)}

    def cluster_weights(self, updates: Iterable[Update], assignment: Assignment) -> list[float]:
        """Each cluster's share of the round's weight, w_k = sum of psi_i in it (thesis Eq. 5.5)."""
        weights = np.zeros(self.clusters)
        for update in updates:
            weights[assignment[update.participant]] += self.weight(update)
        return (weights / weights.sum()).tolist()

    def common(self, centres: Mapping[str, Params], weights: Sequence[float]) -> Params:
        """Theta_g, the weighted mean of the centres (thesis Eq. 5.6)."""
        models = [centres[cluster_slot(k)] for k in range(self.clusters)]
        return weighted_mean(((m, w) for m, w in zip(models, weights) if w), models[0])
