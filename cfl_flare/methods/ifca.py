# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""IFCA and HypCluster: participants choose the one of K models that fits them best.

* Avishek Ghosh, Jichan Chung, Dong Yin, Kannan Ramchandran: An Efficient Framework for Clustered Federated Learning,
  NeurIPS 2020, https://arxiv.org/abs/2006.04088 (IFCA).
* Yishay Mansour, Mehryar Mohri, Jae Ro, Ananda Theertha Suresh: Three Approaches for Personalization with Applications
  to Federated Learning, 2020, https://arxiv.org/abs/2002.10619 (HypCluster).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.kmeans import run_first_kmeans
from cfl_flare.clustering.measures import compute_points
from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method, cluster_slot
from cfl_flare.methods.slots import add_backbone, join_whole_models, share_backbone
from cfl_flare.methods.state import (
    CLUSTERED,
    Assignment,
    Counts,
    Download,
    Plan,
    ServerState,
    Traits,
    Update,
    read_heads,
)
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.privacy import Queries


@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """Iterative federated clustering: each participant picks the one of K models that fits its training data best.

    HypCluster is the same algorithm.
    """

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh et al. 2020; Mansour et al. 2020; thesis Eq. 3.1"

    k: int = setting(
        help="number of clusters K; each model starts from its own seed", ge=1, le=1000
    )
    assignment_samples: int | None = setting(
        None,
        help="training samples that a participant reads to choose a model; None for all of them",
        ge=1,
    )
    race: bool = setting(
        True,
        help="participants stop reading samples with a model once it cannot be the best any more; the choice is the "
        "same as by all samples",
    )
    shared_backbone: bool = setting(
        False,
        help="weight sharing: the K models share all layers but the head, so that only heads travel K times",
    )
    warm_start: bool = setting(
        False,
        help="all train one model in the first round, and its k-means centres are the K models to choose from",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = f"penalties = {[p.name for p in self.penalties]} do not go with shared_backbone = True"
        why = "where no whole centres travel"
        require(
            not (self.shared_backbone and self.penalties),
            f"method ifca: {reason}, {why}; leave one of them out",
        )
        reason = "warm_start = True compares whole models, which shared_backbone = True has not"
        require(
            not (self.shared_backbone and self.warm_start),
            f"method ifca: {reason}; leave one out",
        )

    @property
    def traits(self) -> Traits:
        return replace(
            CLUSTERED,
            clusters=self.k,
            joins_by="smallest loss on its training data",
            assigns_on_site=True,
            averages_only=not self.warm_start,
            mergeable=True,
            whole_models=not self.shared_backbone,
            by_metric=not self.shared_backbone,
            queries=Queries(choices=1),
        )

    def check(
        self,
        layout: Layout,
        rounds: int | None = None,
    ) -> None:
        """Check that the method fits the model and the number of rounds.

        Args:
            layout: the names and shapes of a model's arrays.
            rounds: the number of rounds of the run, if it is known.
        """
        super().check(layout, rounds)
        if self.shared_backbone:
            layout.select("backbone")

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """Start K models from K seeds, or from one seed if the first round makes them.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        # The K initial models.
        models = {
            slot: initial(0 if self.warm_start else k)
            for k, slot in enumerate(self.slots)
        }
        if self.shared_backbone:
            models = share_backbone(models)
        return ServerState(bank=models)

    def is_warming(self, state: ServerState) -> bool:
        """Whether the K models are still to be made, from what all participants train of one.

        Args:
            state: the server's state between two rounds.
        """
        return self.warm_start and not state.assignment

    def plan(self, state: ServerState) -> Plan:
        """Ask for K updates in a warm start, so that each centre has a participant.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        return Plan(fewest=self.k if self.is_warming(state) else 1)

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """Send all K models. The participant reports which one it trained.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        if self.is_warming(state):
            return Download((cluster_slot(0),))
        # All K models are sent.
        choices = self.list_choices(state)
        sent = Download(tuple(choices.values()), choices=choices)
        if self.shared_backbone:
            return add_backbone(sent)
        return self.add_penalties(state, sent)

    def choose(
        self,
        learner: Learner,
        download: Download,
    ) -> int:
        """Choose c(i) = argmin_k loss(Theta_k, own training data), ties to the lowest k (thesis Eq. 3.1b).

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.
        """
        return choose_least_loss(learner, download, self.assignment_samples, self.race)

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Train a copy of the chosen model, or of the only one (option II, model averaging).

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        if not download.choices:
            return super().local_update(learner, download)
        chosen = self.choose(learner, download)
        return self.train_slot(learner, download, cluster_slot(chosen), cluster=chosen)

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params | Served:
        """Choose what the participant predicts with.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        if not download.choices:
            return super().serve(learner, download)
        return download.model(cluster_slot(self.choose(learner, download)))

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """Take the participants' own choices. A warm start clusters the directions of their updates by k-means.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        if not self.is_warming(state):
            return {
                update.participant: update.cluster
                for update in updates
                if update.cluster is not None
            }
        features = compute_points(
            measure_direction(update.main_diff) for update in updates
        )
        names = [update.participant for update in read_heads(updates)]
        weights = np.array([self.weight(update) for update in read_heads(updates)])
        labels = run_first_kmeans(features, self.k, weights, sizes=state.sizes(names))
        return dict(zip(names, labels.tolist()))

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """Count a model where it was trained, or after a warm start in its participant's cluster.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        if self.is_warming(state):
            return self.count_by_cluster(update, assignment)
        return self.count_by_slot(update)

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """Average each model over the participants that chose it, weighted by their samples (thesis Eq. 2.6).

        Thesis Eq. 3.1a has 1/m in place of the weights.
        An empty cluster keeps its model. With penalties, the mean of the K models is kept as well (thesis Eq. 5.6).

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        means = self.compute_means(state, updates, assignment)
        if self.penalties:
            return self.update_common(state, means, updates, assignment)
        return state.after(means, assignment)

    def list_models(
        self,
        state: ServerState,
        layout: Layout,
    ) -> dict[str, Served]:
        """List the models that the run leaves.

        Args:
            state: the server's state between two rounds.
            layout: the names and shapes of a model's arrays.

        Returns:
            What predicts, by name.
        """
        return join_whole_models(state, layout, self.list_choices(state).values())


def choose_least_loss(
    learner: Learner,
    download: Download,
    samples: int | None = None,
    race: bool = False,
) -> int:
    """The cluster whose model has the smallest loss on the training data or some of it; see `race_models`.

    Args:
        learner: the participant's data, random streams and memory.
        download: the models that the participant was sent.
        samples: how many samples are read; None for all.
        race: stop reading samples with a model that cannot be the best any more.
    """
    models = [download.model(slot) for slot in download.choices.values()]
    return list(download.choices)[learner.choice(models, samples, race)]


def measure_direction(difference: Params) -> np.ndarray:
    """An update as a vector of length 1, so that how far a participant moves says nothing.

    Args:
        difference: a trained model minus its start.
    """
    vector = difference.part("all")
    return np.asarray(vector / (np.linalg.norm(vector) or 1.0), np.float32)
