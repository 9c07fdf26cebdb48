# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAC: personal models near their cluster's centre, a global embedding, an adaptive number of clusters.

Yuxin Zhang, Haoyu Chen, Zheng Lin, Zhe Chen, Jin Zhao: FedAC: An Adaptive Clustered Federated Learning Framework for
Heterogeneous Data, 2024, https://arxiv.org/abs/2403.16460. Lines and equations are those of this paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from cfl_flare.clustering.agglomerative import compute_distances
from cfl_flare.clustering.floor import Sizes
from cfl_flare.clustering.kmeans import assign_closest, number_labels, run_first_kmeans
from cfl_flare.clustering.measures import fit_directions, map_models
from cfl_flare.core.arrays import LatestModels
from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params, weighted_mean
from cfl_flare.core.settings import SEED, setting
from cfl_flare.methods.fedac_tuning import Clusters, describe_dispersion, tune
from cfl_flare.methods.personal import OwnModel
from cfl_flare.methods.slots import GLOBAL, cluster_slot, require_part
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
from cfl_flare.training.ensemble import Served
from cfl_flare.training.losses import Pull, Term

# The global embedding's slot, and the map's name in the archive.
PHI = "phi"
MAP = "map"
# How mapped models are compared: by their cosine (Eq. 4), or by their distance (the paper's ablation).
METRICS = {"lrcos": "cosine", "l2": "euclidean"}


@dataclass(frozen=True, kw_only=True)
class FedAC(OwnModel):
    """Adaptive clustered FL: a participant keeps its own model omega_i = (phi_i, h_i) and predicts with it.

    The server keeps each participant's latest model on disk. It clusters all of them in each round, also those of
    participants that are not sampled in it. One that was never sampled has no cluster, and starts from the common mean.
    """

    name: ClassVar[str] = "fedac"
    paper: ClassVar[str] = "Zhang et al. 2024, Alg. 1-3"

    weighting: Weighting = "uniform"
    k: int = setting(help="number of clusters to begin with", ge=1, le=1000)
    mu: float = setting(
        0.1,
        help="mu/2 ||omega_i - Omega_c(i)||^2 holds a model near its cluster's centre (Eq. 3)",
        ge=0,
    )
    lam: float = setting(
        0.1,
        help="lambda/2 ||phi_i - Phi||^2 holds its backbone near the global embedding (Eq. 3)",
        ge=0,
    )
    similarity: Literal["lrcos", "l2"] = setting(
        "lrcos",
        help="lrcos, the cosine of models mapped to few dimensions (Alg. 2), or l2, their distance there (ablation)",
        choices=("lrcos", "l2"),
    )
    dimensions: int = setting(
        50,
        help="dimensions D of the map; at most one less than the participants of the round that fits it",
        ge=1,
    )
    map_every: int = setting(
        100, help="rounds after which the map is fitted again", ge=1
    )
    tuning: bool = setting(True, help="let the number of clusters change (Alg. 3)")
    low: float = setting(
        0.2,
        help="a; a cluster whose dispersion G_k is below it is merged into the nearest one",
    )
    high: float = setting(
        0.8,
        help="b; a cluster whose dispersion G_k is above it is split in two; above low",
    )
    cooldown: int = setting(
        10, help="rounds in which a merge or a split is not undone", ge=0
    )
    starts: int = setting(
        10, help="k-means++ starts of the first E-step; the best is kept", ge=1, le=1000
    )
    seed: int = setting(0, help="seed of those starts, and of splits", bounds=SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = 0 <= self.low < self.high < float("inf")
        require(
            ordered,
            f"{self.where}: low = {self.low} and high = {self.high} should be 0 <= low < high",
        )

    @property
    def traits(self) -> Traits:
        """K at first. Newcomers are placed as in `WeCFL.assign`, as the run's map and known models are gone."""
        rule = "centre closest in direction, from the common model"
        return replace(
            PLAIN, clusters=self.k, joins_by=rule, compares_models=True, archives=True
        )

    def count_clusters(self, state: ServerState) -> int:
        """Ids given out: each split takes a new one.

        Args:
            state: the server's state between two rounds.

        Returns:
            The number of ids: 0, 1, ... without a gap.
        """
        return int(state.extras["ids"])

    def plan(self, state: ServerState) -> Plan:
        """The first E-step needs a participant for each cluster, and the map two of them.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        return Plan(fewest=1 if state.assignment else max(2, self.k))

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
        require_part(
            layout, "backbone", "method fedac: the backbone is the embedding, but {}"
        )

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """One common model, and its embedding (Alg. 1, line 1).

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        model = initial(0)
        bank = {GLOBAL: model, PHI: model.take(model.layout.backbone)}
        return ServerState(
            bank, extras={"ids": self.k, "known": {}, "map": None, "changes": []}
        )

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """Send the centre of the participant's cluster, or the common model, and the global embedding (line 5).

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        cluster = state.assignment.get(participant)
        slot = GLOBAL if cluster is None else cluster_slot(cluster)
        return Download((slot,), to_train=(PHI,))

    def list_terms(
        self,
        download: Download,
        slot: str,
    ) -> list[Term]:
        """Add both regularisers of the local loss (Eq. 3).

        Without a cluster there is no centre, and only the embedding's regulariser applies.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.

        Returns:
            The terms.
        """
        start = download.model(slot)
        embedding = download.model(PHI).part("all")
        terms: list[Term] = []
        if slot != GLOBAL:
            terms.append(Pull.to(self.mu, start))
        terms.append(Pull(self.lam, embedding, start.layout.select("backbone")))
        return terms + super().list_terms(download, slot)

    # ---- E-step ----

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """Assign each participant with a known model to the most similar centre (lines 10 and 11, Eq. 4).

        The first E-step is k-means++ on the mapped models.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        if state.archive is None:
            return self.place_newcomers(state, updates)
        known = self.keep_models(state, updates)
        if self.map_round(state) == state.round:
            self.fit_map(state, updates, known)

        rows = map_models(
            [known.parameters(name) for name in known.versions], self.read_map(state)
        )
        if not state.assignment:
            return self.cluster_first_time(state, known, rows)
        return self.assign_to_centres(state, known, rows)

    def place_newcomers(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """Place newcomers to a finished run by their directions from the common model.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
        """
        common = state.bank[GLOBAL]
        slots = self.list_slots(state)
        moves = np.stack(
            [(state.rebuild_model(update) - common).part("all") for update in updates]
        )
        centres = np.stack(
            [(state.bank[slot] - common).part("all") for slot in slots.values()]
        )
        nearest = compute_distances(moves, centres, "cosine").argmin(axis=1)
        ids = list(slots)
        return {update.participant: ids[i] for update, i in zip(updates, nearest)}

    def keep_models(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> LatestModels:
        """Write the round's trained models to the archive, and return all known models.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
        """
        known = self.list_known(state, updates)
        for update in updates:
            known.keep(update.participant, state.rebuild_model(update))
        return known

    def list_known(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> LatestModels:
        """The latest model of each participant, those of this round included.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
        """
        assert state.archive is not None
        new = {update.participant: (state.round, update.samples) for update in updates}
        return LatestModels(
            state.archive, state.bank[GLOBAL].layout, {**state.extras["known"], **new}
        )

    def map_round(self, state: ServerState) -> int:
        """The round whose models the map of this round is fitted on: an earlier one, or this one.

        Args:
            state: the server's state between two rounds.
        """
        fitted = state.extras["map"]
        if fitted is None or state.round - fitted >= self.map_every:
            return state.round
        return int(fitted)

    def fit_map(
        self,
        state: ServerState,
        updates: Sequence[Update],
        known: LatestModels,
    ) -> None:
        """Fit the map to the leading principal directions of the round's models (Alg. 2), and write it.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            known: the latest known models of participants.
        """
        assert state.archive is not None
        models = [known.parameters(update.participant) for update in updates]
        state.archive.put(MAP, state.round, fit_directions(models, self.dimensions))

    def read_map(self, state: ServerState) -> np.ndarray:
        """The map ``(D, d)`` of this round.

        Args:
            state: the server's state between two rounds.
        """
        assert state.archive is not None
        return state.archive.get(MAP, self.map_round(state))

    def cluster_first_time(
        self,
        state: ServerState,
        known: LatestModels,
        rows: np.ndarray,
    ) -> Assignment:
        """Cluster the mapped models ``(m, D)`` by the best of some starts of k-means++.

        Args:
            state: the server's state between two rounds.
            known: the latest known models of participants.
            rows: one row for each participant ``(m, d)``.
        """
        names = [*known.versions]
        weights = np.ones(len(names))
        sizes = state.sizes(names)
        labels = run_first_kmeans(
            self.scale_rows(rows), self.k, weights, self.starts, self.seed, sizes
        )
        return dict(zip(names, labels.tolist()))

    def assign_to_centres(
        self,
        state: ServerState,
        known: LatestModels,
        rows: np.ndarray,
    ) -> Assignment:
        """Assign each mapped model ``(m, D)`` to the most similar mapped centre (Eq. 4).

        Args:
            state: the server's state between two rounds.
            known: the latest known models of participants.
            rows: one row for each participant ``(m, d)``.
        """
        slots = self.list_slots(state)
        ids = list(slots)
        centres = map_models(
            [state.bank[slot].part("all") for slot in slots.values()],
            self.read_map(state),
        )
        # An id without a cluster is infinitely far away.
        distances = np.full((len(rows), ids[-1] + 1), np.inf)
        distances[:, ids] = compute_distances(rows, centres, METRICS[self.similarity])
        return state.place_participants(
            [*known.versions], distances.argmin(axis=1), lambda: distances
        )

    def scale_rows(self, rows: np.ndarray) -> np.ndarray:
        """Mapped models ``(m, D)`` whose Euclidean distances order them as their similarity does.

        Args:
            rows: one row for each participant ``(m, d)``.
        """
        from sklearn.preprocessing import normalize

        if self.similarity != "lrcos":
            return rows
        return np.asarray(normalize(rows))

    def list_slots(self, state: ServerState) -> dict[int, str]:
        """The slots of the existing clusters by id.

        Args:
            state: the server's state between two rounds.
        """
        slots = {k: cluster_slot(k) for k in range(self.count_clusters(state))}
        return {k: slot for k, slot in slots.items() if slot in state.bank}

    # ---- M-step ----

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """Count a round's embedding in Phi. The centres are means of all known models on the server's disk.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        return {update.main_slot: (PHI, self.weight(update))}

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """Compute Phi (line 9), all centres (the M-step, line 12, Eq. 5), and tune their number (line 13).

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        known = self.list_known(state, updates)
        clusters = self.gather_clusters(state, known, assignment)
        past = [
            change
            for change in state.extras["changes"]
            if state.round - change["round"] <= self.cooldown
        ]
        new = self.tune_number(state, clusters, past) if self.tuning else []

        bank = {cluster_slot(k): centre for k, centre in clusters.centres.items()}
        bank[PHI] = self.average_embeddings(state, updates, assignment)
        bank[GLOBAL] = clusters.average(state.bank[GLOBAL])
        extras = {
            "ids": clusters.ids,
            "known": known.versions,
            "map": self.map_round(state),
            "changes": [*past, *new],
        }
        notes = {
            "dispersion": describe_dispersion(clusters.measure_dispersion()),
            "changes": new,
        }
        return ServerState(
            bank, clusters.assignment, state.round + 1, extras, notes=notes
        )

    def average_embeddings(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> Params:
        """Phi, the mean of the round's embeddings (line 9). The paper prints their sum.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.
        """
        phi = state.bank[PHI]

        def list_embeddings() -> Iterator[tuple[Params, float]]:
            for update in updates:
                _, weight = self.read_counts(state, update, assignment)[
                    update.main_slot
                ]
                yield state.rebuild_model(update).take(phi.layout), weight

        return weighted_mean(list_embeddings(), phi)

    def gather_clusters(
        self,
        state: ServerState,
        known: LatestModels,
        assignment: Assignment,
    ) -> Clusters:
        """Each cluster's centre is the mean of its members' latest models (Eq. 5).

        Args:
            state: the server's state between two rounds.
            known: the latest known models of participants.
            assignment: the cluster of each of the round's participants.
        """
        slots = self.list_slots(state) or dict(enumerate(self.slots))
        members: dict[int, list[str]] = {k: [] for k in slots}
        for name in known.versions:
            members[assignment[name]].append(name)
        centres = {}
        for k, slot in slots.items():
            before = state.bank.get(slot, state.bank[GLOBAL])
            centres[k] = known.mean(members[k], self.weighting, before)
        return Clusters(members, centres, state.extras["ids"], known, self.weighting)

    def tune_number(
        self,
        state: ServerState,
        clusters: Clusters,
        past: Sequence[dict[str, int]],
    ) -> list[dict[str, int]]:
        """Merge and split clusters (Alg. 3), and return these changes with their round.

        Args:
            state: the server's state between two rounds.
            clusters: the number of clusters.
            past: earlier changes that may not be undone yet.
        """
        halves = partial(self.halve_cluster, state, clusters.known)
        changes = tune(clusters, halves, self.low, self.high, past)
        return [{"round": state.round, **change} for change in changes]

    def halve_cluster(
        self,
        state: ServerState,
        known: LatestModels,
        names: Sequence[str],
    ) -> tuple[list[str], list[str]]:
        """Split a cluster's members between two new centres, which k-means++ picks from their models (sec. 4.5).

        As in the paper there is one pass of re-clustering. The next rounds' E-steps go on from there.

        Args:
            state: the server's state between two rounds.
            known: the latest known models of participants.
            names: names of participants.

        Returns:
            The names of both halves. The second half is empty if no two halves are large enough.
        """
        whole: tuple[list[str], list[str]] = (list(names), [])
        if len(names) < 2:
            return whole
        rows = self.scale_rows(
            map_models([known.parameters(name) for name in names], self.read_map(state))
        )
        if (rows == rows[0]).all():
            return whole
        labels = self.cluster_in_two(rows, state.sizes(names, {}))
        if labels is None:
            return whole
        first = [name for name, label in zip(names, labels) if label == 0]
        second = [name for name, label in zip(names, labels) if label == 1]
        return first, second

    def cluster_in_two(
        self,
        rows: np.ndarray,
        sizes: Sizes | None,
    ) -> np.ndarray | None:
        """Labels ``(m,)`` of mapped models ``(m, D)``, 0 or 1, or None if no two halves are large enough.

        Args:
            rows: one row for each participant ``(m, d)``.
            sizes: the minimum sizes of clusters; None for none.
        """
        from sklearn.cluster import kmeans_plusplus

        both = (0, 1)
        centres = kmeans_plusplus(rows, 2, random_state=self.seed)[0]
        labels = number_labels(
            assign_closest(rows, centres, np.ones(len(rows)), sizes, needed=both)
        )
        if sizes is not None and not sizes.met(labels, needed=both):
            return None
        return labels

    def list_models(
        self,
        state: ServerState,
        layout: Layout,
    ) -> dict[str, Served]:
        """The centres and the common model; the participants' own models stay with them.

        Args:
            state: the server's state between two rounds.
            layout: the names and shapes of a model's arrays.

        Returns:
            What predicts, by name.
        """
        return {
            slot: Served((model,)) for slot, model in state.bank.items() if slot != PHI
        }
