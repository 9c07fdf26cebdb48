# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedDSMIC and FedDS: the server clusters participants by their models' predictions on samples that it holds.

Xiaoying Li, Xiaojun Chen, Shaopu Wang, Yangyang Ding, Kaiyun Li: Multi-initial-Center Federated Learning with Data
Distribution Similarity-Aware Constraint, 2022. Lines and equations are those of its Algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.measures import compute_divergences
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Params
from cfl_flare.core.seeds import derive
from cfl_flare.core.settings import setting
from cfl_flare.methods.fedavg import Adapting
from cfl_flare.methods.seeded import SeededMethod
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.methods.state import (
    CLUSTERED,
    Assignment,
    Counts,
    Download,
    Indicator,
    ServerState,
    Traits,
    Update,
)

# The untrained model from which a newcomer trains until it has a cluster, and the clusters from which the others start.
NEWCOMER = "newcomer"
START = "start"


@dataclass(frozen=True, kw_only=True)
class FedDS(SeededMethod):
    """Clusters by predictions: a participant belongs to the centre that predicts most like its own trained model.

    It is FedDSMIC's clustering alone, with plain SGD, and each participant predicts with its cluster's centre.

    The predictions that are compared are those on indicator samples at the server, a few of each class. A simulation
    sets them aside before it distributes the data; at real sites the server's operator provides a file.
    """

    name: ClassVar[str] = "fedds"
    paper: ClassVar[str] = "Li et al. 2022 (FedDSMIC): Alg. 1, Eq. 6, 7, 17"

    k: int = setting(
        3,
        help="number of clusters C; each centre starts from its own seed",
        ge=1,
        le=1000,
    )
    indicator_samples: int = setting(
        10, help="indicator samples of each class, N_c", ge=1
    )
    indicator_file: str | None = setting(
        None,
        help="file on the server, in MedMNIST's layout, from which they are drawn; a relative path is also looked up "
        "in the server's $CFL_DATA_ROOT. None for a simulation",
    )
    seed: int = setting(
        0,
        help="seed by which participants are spread over the centres in their first round",
    )

    @property
    def traits(self) -> Traits:
        """The centres are means under any assignment; the server needs N_c indicator samples per class (sec. 4.2)."""
        samples = Indicator(self.indicator_samples, self.indicator_file)
        rule = "smallest KL divergence on the indicator samples"
        at_server = "the server compares what whole models predict, and it has no private layers"
        return replace(
            CLUSTERED,
            clusters=self.k,
            joins_by=rule,
            mergeable=True,
            indicator=samples,
            no_private=at_server,
        )

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """Start C centres from C seeds (Alg. 1, line 1), and an untrained model for newcomers.

        The participants are spread over the centres evenly, in an order that depends on their names and the seed alone.
        Participants that join the run later are newcomers.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        # Line 1: C centres.
        models = self.build_models(initial)
        order = sorted(
            participants, key=lambda name: (derive(self.seed, "start", name), name)
        )
        spread = {name: i % self.k for i, name in enumerate(order)}
        return ServerState(
            bank={**models, NEWCOMER: initial(self.k)}, extras={START: spread}
        )

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """Send the centre of the participant's cluster (Alg. 1, line 18).

        A newcomer has no cluster. It first trains an untrained model for a round.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        # Line 18: the centre of the own cluster.
        first = state.extras.get(START, {}).get(participant)
        cluster = state.assignment.get(participant, first)
        if cluster is None:
            return Download((NEWCOMER,))
        return self.add_penalties(state, Download((cluster_slot(cluster),)))

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """Assign c(i) = argmin_c KL(w_i^(t+1) || w~_c^t) on the indicator samples (Eq. 6, 7), ties to the lowest c.

        As in Alg. 1, line 11, the trained models are compared with the centres that were sent in this round, before
        they are averaged anew.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        predict = state.logits
        if predict is None:
            raise ConfigError(
                f"method {self.name}: the server has no indicator samples; provide some"
            )
        # Eq. 6: the predictions of each centre and of each trained model.
        slots = self.slots[: state.count_possible(self.k)]
        centres = predict([state.bank[slot] for slot in slots])
        rows = {}
        for update in updates:
            model = predict([state.rebuild_model(update)])
            rows[update.participant] = compute_divergences(model, centres)[0]
        distances = np.stack([*rows.values()])
        return state.place_participants(
            [*rows], distances.argmin(axis=1), lambda: distances
        )

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """Count a trained model in the cluster that predicts most like it (Eq. 17).

        A newcomer's model did not start from a centre. It decides the cluster and counts nowhere.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        if NEWCOMER in update.diffs:
            return {}
        return self.count_by_cluster(update, assignment)

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """Compute w~_c = sum n_i / n_c w_i inside each cluster (Eq. 17). An empty cluster keeps its centre.

        For penalties that need it, the mean of the centres is kept as well (thesis Eq. 5.6).

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        centres = self.compute_centres(state, updates, assignment)
        if self.penalties:
            return self.update_common(state, centres, updates, assignment)
        return state.after(centres, assignment)


@dataclass(frozen=True, kw_only=True)
class FedDSMIC(Adapting, FedDS):
    """FedDS whose centres are trained by first-order MAML; each participant adapts its centre by a gradient step.

    The paper's tau is the run's local steps or epochs, its epsilon the run's learning rate.
    """

    name: ClassVar[str] = "feddsmic"
    paper: ClassVar[str] = "Li et al. 2022: Alg. 1, 2"
