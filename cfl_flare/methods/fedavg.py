# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One global model: FedAvg, FedProx, Finetune, Per-FedAvg; a model for each given group; and no federation at all."""

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
from cfl_flare.methods.state import PLAIN, Assignment, Counts, Download, ServerState, Traits, Update
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Pull, Term
from cfl_flare.training.privacy import Queries

# Characters of a group's label.
LONGEST = 200


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging: one model for all, the weighted mean of the participants' (thesis Eq. 2.6)."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al. 2017"

    @property
    def traits(self) -> Traits:
        return replace(PLAIN, averages_only=True)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Theta_g = sum psi_i theta_i (thesis Eq. 2.6)."""
        return state.after(self.means(state, updates))


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose participants are held near the global model by mu/2 ||theta - Theta_g||^2."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"

    mu: float = setting(0.001, help="strength of the proximal term; FedCUAU's experiments use 0.001", ge=0)

    @property
    def traits(self) -> Traits:
        """Its term is one that scripts of FLARE's know."""
        return replace(super().traits, proximal=self.mu)

    def terms(self, download: Download, slot: str) -> list[Term]:
        """mu/2 ||theta - Theta_g||^2, and any other penalty."""
        return [Pull.to(self.mu, download.model(slot)), *super().terms(download, slot)]


@dataclass(frozen=True, kw_only=True)
class Finetune(FedAvg):
    """FedAvg, and each participant trains the global model for one more local round before it predicts with it."""

    name: ClassVar[str] = "finetune"
    paper: ClassVar[str] = "Cheng et al. 2021; thesis sec. 7.4"

    finetune: bool = True

    @property
    def label(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """No federation: each participant trains alone, and its model never leaves it."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "baseline (Li et al. 2022, Table 2)"

    @property
    def traits(self) -> Traits:
        refusal = "need a common model, and there is none; leave them out"
        return Traits(given_groups=True, starts_on_site=True, serves_one=True, no_penalties=refusal, queries=Queries())

    def start(self, initial: Callable[[int], Params], participants: Sequence[str] = ()) -> ServerState:
        return ServerState(bank={})

    def distribute(self, state: ServerState, participant: str) -> Download:
        return Download()

    def local_update(self, learner: Learner, download: Download) -> Update:
        learner.memory["model"] = learner.train(self.serve(learner, download))
        return Update(learner.participant, learner.samples)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        return state.after({})

    def serve(self, learner: Learner, download: Download) -> Params:
        return learner.memory.get("model") or learner.initial(0)


@dataclass(frozen=True, kw_only=True)
class Adapting(Method):
    """First-order MAML in place of SGD, for a method whose participants train one model and are served one.

    A participant adapts the model that it is served by a few gradient steps on its own training data, and predicts
    with the result.
    """

    inner_lr: float | None = setting(
        None, help="eta, the learning rate of inner and personal steps; None for the run's learning rate", ge=0
    )
    personal_steps: int = setting(
        1, help="gradient steps from the served model to a participant's own; 0 serves it unchanged", ge=0
    )

    @property
    def traits(self) -> Traits:
        return replace(super().traits, queries=None)

    def eta(self, learner: Learner) -> float:
        return learner.lr if self.inner_lr is None else self.inner_lr

    def local_update(self, learner: Learner, download: Download) -> Update:
        """w <- w - eps grad l(w - eta grad l(w; D); D') (FedDSMIC Alg. 2, Eq. 15-16), tau = the run's local steps."""
        return self.trained(learner, download, download.slots[0], inner_lr=self.eta(learner))

    def serve(self, learner: Learner, download: Download) -> Params:
        """w - eta grad l(w; D), once or a few times (FedDSMIC Eq. 8)."""
        (model,) = Served.of(super().serve(learner, download)).models
        return learner.adapted(model, self.personal_steps, self.eta(learner))


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Adapting, FedAvg):
    """FedAvg of models trained by first-order MAML; each participant adapts the mean by a gradient step.

    It is Per-FedAvg (FO): the second-order term of the gradient is left out.
    """

    name: ClassVar[str] = "per-fedavg"
    paper: ClassVar[str] = "Fallah et al. 2020"


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
    warmup: int = setting(0, help="rounds w of FedAvg over all, before the groups begin", ge=0)
    pull: float = setting(
        0.0, help="lambda of lambda/2 ||theta - Theta_pan||^2, which holds a group's model near the common one", ge=0
    )

    def __post_init__(self) -> None:
        where, given = f"method {self.name}: groups", self.groups
        valid = isinstance(given, (Mapping, list, tuple))
        wanted = "should be a label for each name, {name: label}, or a list of labels"
        require(valid, f"{where} = {shown(given)} {wanted}")
        pairs = given.items() if isinstance(given, Mapping) else [(str(label), label) for label in given]
        labels = {name: str(label) if isinstance(label, int) else label for name, label in pairs}
        for name, label in labels.items():
            texts = (name, label)
            valid = all(isinstance(t, str) and 0 < len(t) <= LONGEST and t.isprintable() for t in texts)
            short = f"should be a name and a label of 1 to {LONGEST} printable characters"
            require(valid, f"{where}: {shown(name)}: {shown(label)} {short}")
        require(0 < len({*labels.values()}) <= 1000, f"{where} have {len({*labels.values()})} labels, not 1 to 1000")
        object.__setattr__(self, "groups", labels if isinstance(given, Mapping) else [*labels])
        super().__post_init__()

    @cached_property
    def labels(self) -> list[str]:
        """The labels in the order of their clusters."""
        given = self.groups.values() if isinstance(self.groups, Mapping) else self.groups
        return sorted({*given}, key=lambda label: (len(label), label))

    @property
    def traits(self) -> Traits:
        """Without a warm-up, no participant changes anything for another group."""
        given, rule = self.warmup == 0, "the group of its label; without one, the common model"
        named = () if isinstance(self.groups, Mapping) else tuple(self.labels)
        of_method = replace(PLAIN, clusters=len(self.labels), joins_by=rule, averages_only=True)
        return replace(of_method, given_groups=given, named_groups=named)

    def cluster_of(self, state: ServerState, participant: str) -> int | None:
        """By the run's label of it, else by the one that it named."""
        given = self.groups if isinstance(self.groups, Mapping) else {}
        label = given.get(participant, state.labels.get(participant))
        return self.labels.index(label) if label in self.labels else None

    def check(self, layout: Layout, rounds: int | None = None) -> None:
        super().check(layout, rounds)
        too_few = f"method groups: warmup = {self.warmup} leaves the groups none of {rounds} rounds; lower it"
        require(rounds is None or rounds > self.warmup, too_few)

    def start(self, initial: Callable[[int], Params], participants: Sequence[str] = ()) -> ServerState:
        """One common model; without a warm-up, the groups begin from it at once."""
        state = super().start(initial)
        return state if self.warmup else replace(state, bank=self._with_groups(state.bank))

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
        return Download((cluster_slot(cluster),), to_train=(GLOBAL,) if self.pull else ())

    def _grouped(self, state: ServerState) -> bool:
        return cluster_slot(0) in state.bank

    def terms(self, download: Download, slot: str) -> list[Term]:
        """lambda/2 ||theta - Theta_pan||^2, and any other penalty."""
        near = [Pull.to(self.pull, download.model(GLOBAL))] if slot != GLOBAL and self.pull else []
        return [*near, *super().terms(download, slot)]

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """As given, once the groups have begun."""
        given = {u.participant: self.cluster_of(state, u.participant) for u in updates if self._grouped(state)}
        return {name: cluster for name, cluster in given.items() if cluster is not None}

    def counts_in(self, state: ServerState, update: Update, assignment: Assignment) -> Counts:
        """Where it was trained; Theta_pan stays as it is once the groups have begun."""
        return {} if GLOBAL in update.diffs and self._grouped(state) else self.by_slot(update)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Theta_g = sum of n_i theta_i / sum of n_i over the group g, or over all; groups begin after the warm-up."""
        means = self.means(state, updates)
        begins = not self._grouped(state) and state.round + 1 >= self.warmup
        return state.after(self._with_groups(means) if begins else means, assignment)
