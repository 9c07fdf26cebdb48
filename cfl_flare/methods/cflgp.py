# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""CFL-GP: participants are clustered by the spectrum of their gradients, all taken at the same models.

* Heasung Kim, Hyeji Kim, Gustavo de Veciana: Clustered Federated Learning via Gradient-based Partitioning, ICML 2024,
  https://proceedings.mlr.press/v235/kim24p.html.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import choose_by_silhouette
from cfl_flare.clustering.kmeans import (
    STARTS_ON_SHORT_ROWS,
    rename_labels,
    run_first_kmeans,
)
from cfl_flare.clustering.measures import (
    compute_before_gap,
    compute_inner_products,
    compute_leading,
)
from cfl_flare.core.params import Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.ifca import choose_least_loss
from cfl_flare.methods.seeded import SeededMethod
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.methods.state import (
    PLAIN,
    Assignment,
    Counts,
    Download,
    Plan,
    ServerState,
    Traits,
    Update,
    Weighting,
)
from cfl_flare.training.learner import Learner


@dataclass(frozen=True, kw_only=True)
class CFLGP(SeededMethod):
    """Clusters from the leading singular directions of gradients, at each cluster's model in turn."""

    name: ClassVar[str] = "cfl-gp"
    paper: ClassVar[str] = "Kim et al. 2024"

    weighting: Weighting = "uniform"
    k: int = setting(
        help="number of clusters K; each model starts from its own seed", ge=1, le=1000
    )
    every: int = setting(2, help="rounds P from one clustering to the next", ge=1)
    silhouette: bool = setting(
        False,
        help="take the number of clusters, 2 to k, of the best silhouette, each time",
    )
    clustering_rounds: int = setting(
        10, help="rounds after which the assignment is frozen", ge=1
    )

    @property
    def traits(self) -> Traits:
        joins = "smallest training loss"
        return replace(
            PLAIN,
            clusters=self.k,
            joins_by=joins,
            mergeable=True,
            archives=True,
            queries=None,
        )

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """K models from K seeds; the first is the first criterion.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        models = self.build_models(initial)
        bank = {**models, "criterion-0": models[cluster_slot(0)]}
        return ServerState(
            bank, extras={"clusterings": 0, "due": True, "gradients": {}}
        )

    def plan(self, state: ServerState) -> Plan:
        """Everyone in the rounds that cluster; each cluster needs a participant.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        if not state.extras["due"]:
            return Plan()
        return Plan(everyone=True, fewest=2 if self.silhouette else self.k)

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """Its cluster's model, and the criterion in a round that clusters; all models, if it missed that.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        criteria = (self._criterion(state),) if state.extras["due"] else ()
        if participant in state.assignment:
            cluster = (cluster_slot(state.assignment[participant]),)
            return Download(cluster, to_train=criteria, returns=cluster + criteria)
        choices = {} if criteria else self.list_choices(state)
        return Download(criteria or tuple(choices.values()), choices=choices)

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """The gradient at the criterion on all training data, and its update of its cluster's model, if it has one.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        if download.choices:
            chosen = choose_least_loss(learner, download)
            return self.train_slot(
                learner, download, download.choices[chosen], cluster=chosen
            )
        gradients = {}
        for slot in download.slots:
            if slot.startswith("criterion"):
                gradients[slot] = learner.gradient(download.model(slot))
        if len(gradients) == len(download.slots):
            return Update(learner.participant, learner.samples, gradients)
        update = super().local_update(learner, download)
        return replace(update, diffs={**update.diffs, **gradients})

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params:
        """Choose what the participant predicts with.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        chosen = choose_least_loss(learner, download) if download.choices else 0
        return download.models[chosen]

    def compute_vector(
        self,
        state: ServerState,
        update: Update,
    ) -> np.ndarray:
        """Its gradient; in a round that does not cluster, the model that it trained.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            ``(d,)`` float32.
        """
        gradient = update.diffs.get(self._criterion(state))
        model = state.rebuild_model(update) if gradient is None else gradient
        return model.part("all")

    def _turn(self, state: ServerState) -> str:
        """The number of the cluster whose model is the criterion of this clustering."""
        return str(state.extras["clusterings"] % self.k)

    def _list_versions(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> dict[str, dict[str, list[int]]]:
        """By participant and criterion, the round of its mean gradient in the archive, and of how many that is."""
        turn = self._turn(state)
        versions = dict(state.extras["gradients"])
        for update in updates:
            own = versions.get(update.participant, {})
            _, times = own.get(turn, [0, 0])
            versions[update.participant] = {**own, turn: [state.round, times + 1]}
        return versions

    def _criterion(self, state: ServerState) -> str:
        """The slot of the model at which all take their gradient in the next clustering, which no round changes."""
        return f"criterion-{state.extras['clusterings']}"

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """K-means on the rows of Q S, of gradients G = P S Q'; clusters keep their labels by greatest overlap.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        archive = state.archive
        before = state.assignment
        if not state.extras["due"] or archive is None:
            assignment = {}
            for update in updates:
                chosen = update.cluster
                name = update.participant
                assignment[name] = before[name] if chosen is None else chosen
            return assignment

        # Each participant's gradients at one model are averaged over the clusterings.
        versions = self._list_versions(state, updates)
        turn = self._turn(state)
        for update in updates:
            name = update.participant
            earlier = state.extras["gradients"].get(name, {}).get(turn)
            gradient = self.compute_vector(state, update)
            archive.put_mean(f"{name}.{turn}", state.round, gradient, earlier)

        # The inner products of gradients, over all models at which everyone has one.
        names = [update.participant for update in updates]
        common = set.intersection(*({*versions[name]} for name in names))
        products = np.zeros((len(names), len(names)))
        for number in sorted(common):
            products += compute_inner_products(
                archive.get(f"{name}.{number}", versions[name][number][0])
                for name in names
            )

        # K-means on the leading singular directions; clusters keep their numbers.
        if self.silhouette:
            rows = compute_before_gap(products)
            k = choose_by_silhouette(rows, self.k, better=1.0)
        else:
            rows = compute_leading(products, self.k)
            k = self.k
        labels = run_first_kmeans(
            rows,
            k,
            np.ones(len(names)),
            STARTS_ON_SHORT_ROWS,
            sizes=state.sizes(names, {}),
        )
        earlier_labels = np.array([before.get(name, -1) for name in names])
        renamed = rename_labels(labels, earlier_labels, self.k)
        return dict(zip(names, renamed.tolist()))

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """A model counts in its participant's new cluster; a gradient counts in no mean.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        counts = dict(self.count_by_cluster(update, assignment))
        counts.pop(self._criterion(state), None)
        return counts

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """The mean in each cluster. Before a round that clusters, the next cluster's model becomes the criterion.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        extras = state.extras
        number = state.round + 1
        clusterings = extras["clusterings"] + extras["due"]
        due = number % self.every == 0 and number < self.clustering_rounds
        gradients = extras["gradients"]
        if extras["due"]:
            gradients = self._list_versions(state, updates)
        bank = self.compute_centres(state, updates, assignment)
        if due:
            bank[f"criterion-{clusterings}"] = bank[cluster_slot(clusterings % self.k)]
        after = state.after(
            {}, assignment, due=due, clusterings=clusterings, gradients=gradients
        )
        return replace(after, bank=bank)

    def join(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """It chooses by its losses, even if the run ended before a round that clusters.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            The state in which the newcomer may be assigned.
        """
        placed = state if update.cluster is None else super().join(state, update)
        extras = {**state.extras, "due": False}
        return replace(placed, round=state.round + 1, extras=extras)
