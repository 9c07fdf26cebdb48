# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAC: personal models near their cluster's centre, a global embedding, an adaptive number of clusters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import distances_between
from cfl_flare.clustering.kmeans import closest, first_kmeans, numbered
from cfl_flare.clustering.measures import directions, mapped
from cfl_flare.core.arrays import LatestModels
from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params, weighted_mean
from cfl_flare.core.settings import SEED, setting
from cfl_flare.methods.personal import OwnModel
from cfl_flare.methods.slots import GLOBAL, cluster_slot, require_part
from cfl_flare.methods.state import PLAIN, Assignment, Counts, Download, Plan, ServerState, Traits, Update
from cfl_flare.training.ensemble import Served
from cfl_flare.training.losses import Pull, Term

PHI, MAP = "phi", "map"
# How mapped models are compared: by their cosine (Eq. 4), or by their distance (the paper's ablation).
METRICS = {"lrcos": "cosine", "l2": "euclidean"}
Halves = Callable[[Sequence[str]], tuple[list[str], list[str]]]


@dataclass(frozen=True, kw_only=True)
class FedAC(OwnModel):
    """Adaptive clustered FL: a participant keeps its own model omega_i = (phi_i, h_i) and predicts with it.

    The server keeps each participant's latest model on disk. It clusters all of them in each round, also those of
    participants that are not sampled in it. One that was never sampled has no cluster, and starts from the common mean.
    """

    name: ClassVar[str] = "fedac"
    paper: ClassVar[str] = "Zhang et al. 2024, Alg. 1-3"

    weighting: str = "uniform"
    k: int = setting(help="number of clusters to begin with", ge=1, le=1000)
    mu: float = setting(
        0.1, help="mu/2 ||omega_i - Omega_c(i)||^2 holds a model near its cluster's centre (Eq. 3)", ge=0
    )
    lam: float = setting(
        0.1, help="lambda/2 ||phi_i - Phi||^2 holds its backbone near the global embedding (Eq. 3)", ge=0
    )
    similarity: str = setting(
        "lrcos",
        help="lrcos, the cosine of models mapped to few dimensions (Alg. 2), or l2, their distance there (ablation)",
        choices=("lrcos", "l2"),
    )
    dimensions: int = setting(
        50, help="dimensions D of the map; at most one less than the participants of the round that fits it", ge=1
    )
    map_every: int = setting(100, help="rounds after which the map is fitted again", ge=1)
    tuning: bool = setting(True, help="let the number of clusters change (Alg. 3)")
    low: float = setting(0.2, help="a; a cluster whose dispersion G_k is below it is merged into the nearest one")
    high: float = setting(0.8, help="b; a cluster whose dispersion G_k is above it is split in two; above low")
    cooldown: int = setting(10, help="rounds in which a merge or a split is not undone", ge=0)
    starts: int = setting(10, help="k-means++ starts of the first E-step; the best is kept", ge=1, le=1000)
    seed: int = setting(0, help="seed of those starts, and of splits", bounds=SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = 0 <= self.low < self.high < float("inf")
        require(ordered, f"{self.where}: low = {self.low} and high = {self.high} should be 0 <= low < high")

    @property
    def traits(self) -> Traits:
        """K at first. Newcomers are placed as in `WeCFL.assign`, as the run's map and known models are gone."""
        rule = "centre closest in direction, from the common model"
        return replace(PLAIN, clusters=self.k, joins_by=rule, compares_models=True, archives=True)

    def clusters_in(self, state: ServerState) -> int:
        """Ids given out: each split takes a new one."""
        return int(state.extras["ids"])

    def plan(self, state: ServerState) -> Plan:
        """The first E-step needs a participant for each cluster, and the map two of them."""
        return Plan(fewest=1 if state.assignment else max(2, self.k))

    def check(self, layout: Layout, rounds: int | None = None) -> None:
        super().check(layout, rounds)
        require_part(layout, "backbone", "method fedac: the backbone is the embedding, but {}")

    def start(self, initial: Callable[[int], Params], participants: Sequence[str] = ()) -> ServerState:
        """One common model, and its embedding (Alg. 1, line 1)."""
        model = initial(0)
        bank = {GLOBAL: model, PHI: model.take(model.layout.backbone)}
        return ServerState(bank, extras={"ids": self.k, "known": {}, "map": None, "changes": []})

    def distribute(self, state: ServerState, participant: str) -> Download:
        """The centre of its cluster, or the common model; and the global embedding for training (line 5)."""
        cluster = state.assignment.get(participant)
        return Download((GLOBAL if cluster is None else cluster_slot(cluster),), to_train=(PHI,))

    def terms(self, download: Download, slot: str) -> list[Term]:
        """Both regularisers (Eq. 3); without a cluster there is no centre, and only the embedding's."""
        centre, phi = download.model(slot), download.model(PHI)
        near = [Pull.to(self.mu, centre)] if slot != GLOBAL else []
        alike = Pull(self.lam, phi.part("all"), centre.layout.select("backbone"))
        return [*near, alike, *super().terms(download, slot)]

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """E-step: each participant with a known model goes to the most similar centre (lines 10 and 11, Eq. 4).

        The first one is k-means++ on the mapped models.
        """
        if state.archive is None:
            return self._joining(state, updates)
        known = self._known(state, updates)
        for update in updates:
            known.keep(update.participant, state.trained(update))
        if self._map_of(state) == state.round:
            fitted = directions([known.parameters(u.participant) for u in updates], self.dimensions)
            state.archive.put(MAP, state.round, fitted)
        along = self._along(state)
        rows = mapped([known.parameters(name) for name in known.versions], along)
        if not state.assignment:
            names, even = [*known.versions], np.ones(len(rows))
            labels = first_kmeans(self._comparable(rows), self.k, even, self.starts, self.seed, state.sizes(names))
            return dict(zip(names, labels.tolist()))
        slots = self._slots(state)
        ids = list(slots)
        centres = mapped([state.bank[slot].part("all") for slot in slots.values()], along)
        apart = np.full((len(rows), ids[-1] + 1), np.inf)
        apart[:, ids] = distances_between(rows, centres, METRICS[self.similarity])
        return state.placed([*known.versions], apart.argmin(axis=1), lambda: apart)

    def _joining(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """The clusters of newcomers to a finished run, by their directions from the common model."""
        slots, common = self._slots(state), state.bank[GLOBAL]
        ids = list(slots)
        moves, centres = (
            np.stack([(model - common).part("all") for model in models])
            for models in ([state.trained(u) for u in updates], [state.bank[slot] for slot in slots.values()])
        )
        nearest = distances_between(moves, centres, "cosine").argmin(axis=1)
        return {u.participant: ids[i] for u, i in zip(updates, nearest)}

    def _comparable(self, rows: np.ndarray) -> np.ndarray:
        """Mapped models whose Euclidean distances order them as their similarity does."""
        from sklearn.preprocessing import normalize

        return np.asarray(normalize(rows) if self.similarity == "lrcos" else rows)

    def _slots(self, state: ServerState) -> dict[int, str]:
        """The existing clusters: slots by id."""
        return {k: cluster_slot(k) for k in range(self.clusters_in(state)) if cluster_slot(k) in state.bank}

    def _known(self, state: ServerState, updates: Sequence[Update]) -> LatestModels:
        assert state.archive is not None
        new = {u.participant: (state.round, u.samples) for u in updates}
        return LatestModels(state.archive, state.bank[GLOBAL].layout, {**state.extras["known"], **new})

    def _map_of(self, state: ServerState) -> int:
        """The round whose models the map of this round is fitted on: an earlier one, or this one."""
        fitted = state.extras["map"]
        return state.round if fitted is None or state.round - fitted >= self.map_every else int(fitted)

    def _along(self, state: ServerState) -> np.ndarray:
        assert state.archive is not None
        return state.archive.get(MAP, self._map_of(state))

    def counts_in(self, state: ServerState, update: Update, assignment: Assignment) -> Counts:
        """A round's embedding counts in Phi; the centres are means of all known models, those on the server's disk."""
        return {update.main_slot: (PHI, self.weight(update))}

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Phi (line 9), the M-step over all known models (line 12, Eq. 5), cluster-number tuning (line 13).

        Phi is the mean of the round's embeddings; the paper prints their sum.
        """
        phi, common, known = state.bank[PHI], state.bank[GLOBAL], self._known(state, updates)
        counted = ((u, self.counted(state, u, assignment)[u.main_slot]) for u in updates)
        embeddings = ((state.trained(u).take(phi.layout), weight) for u, (_, weight) in counted)
        slots = self._slots(state) or dict(enumerate(self.slots))
        members: dict[int, list[str]] = {k: [] for k in slots}
        for name in known.versions:
            members[assignment[name]].append(name)
        centres = {k: known.mean(members[k], self.weighting, state.bank.get(slot, common)) for k, slot in slots.items()}
        clusters = Clusters(members, centres, state.extras["ids"], known, self.weighting)
        past = [c for c in state.extras["changes"] if state.round - c["round"] <= self.cooldown]
        new: list[dict[str, int]] = []
        if self.tuning:
            changed = tune(clusters, partial(self._halves, state, known), self.low, self.high, past)
            new = [{"round": state.round, **change} for change in changed]
        bank = {cluster_slot(k): centre for k, centre in centres.items()}
        shares = ((centres[k], known.weight(names, self.weighting)) for k, names in members.items() if names)
        bank |= {PHI: weighted_mean(embeddings, phi), GLOBAL: weighted_mean(shares, common)}
        return ServerState(
            bank,
            {name: k for k, names in members.items() for name in names},
            state.round + 1,
            {"ids": clusters.ids, "known": known.versions, "map": self._map_of(state), "changes": [*past, *new]},
            notes={"dispersion": as_json(clusters.dispersion()), "changes": new},
        )

    def _halves(self, state: ServerState, known: LatestModels, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Splits a cluster's members between two new centres, which k-means++ picks from their models (sec. 4.5).

        The second half is empty where no two halves are large enough.
        One pass of re-clustering, as in the paper; the next rounds' E-steps go on from there.
        """
        from sklearn.cluster import kmeans_plusplus

        if len(names) < 2:
            return list(names), []
        rows = self._comparable(mapped([known.parameters(name) for name in names], self._along(state)))
        if (rows == rows[0]).all():
            return list(names), []
        first = kmeans_plusplus(rows, 2, random_state=self.seed)[0]
        sizes = state.sizes(names, {})
        labels = numbered(closest(rows, first, np.ones(len(rows)), sizes, needed=(0, 1)))
        if sizes is not None and not sizes.met(labels, needed=(0, 1)):
            return list(names), []
        first_half, second_half = ([name for name, label in zip(names, labels) if label == half] for half in (0, 1))
        return first_half, second_half

    def models(self, state: ServerState, layout: Layout) -> dict[str, Served]:
        """The centres and the common model; the participants' own models stay with them."""
        return {slot: Served((model,)) for slot, model in state.bank.items() if slot != PHI}


@dataclass
class Clusters:
    """A round's clusters after the M-step; tuning changes them in place.

    Attributes:
        members: names by cluster id; an empty cluster is left alone.
        ids: ids given out so far.
        known: the participants' models, which count in a centre by ``weighting``, as the method's setting.
        inside: cached spread of clusters, as computing it reads their members' models; a change of a cluster drops it.
    """

    members: dict[int, list[str]]
    centres: dict[int, Params]
    ids: int
    known: LatestModels
    weighting: str
    inside: dict[int, float] = field(default_factory=dict)

    def dispersion(self) -> dict[int, float]:
        """G_k = Dist_intra / Dist_inter of each cluster in use; infinity for one without any other apart."""
        spread = {}
        used = [k for k, names in self.members.items() if names]
        for row, (k, squares) in enumerate(zip(used, self.between(used))):
            if k not in self.inside:
                self.inside[k] = self.known.spread(self.members[k], self.centres[k])
            others = np.delete(squares, row)
            apart = float(others.mean()) if len(others) else 0.0
            spread[k] = self.inside[k] / apart if apart > 0 else float("inf")
        return spread

    def between(self, used: Sequence[int]) -> np.ndarray:
        """Squared distances between these centres, computed after subtracting their mean."""
        from sklearn.metrics.pairwise import euclidean_distances

        rows = np.stack([self.centres[k].part("all").astype(np.float64) for k in used])
        return np.asarray(euclidean_distances(rows - rows.mean(axis=0), squared=True))

    def merge(self, cluster: int, into: int) -> None:
        """Moves a cluster's members to another one, and drops its id."""
        members = self.members[into] + self.members.pop(cluster)
        self._set(into, members, self.centres.pop(cluster))

    def split(self, cluster: int, halves: tuple[list[str], list[str]]) -> int:
        """Moves the second half of a cluster's members to a new cluster, and returns its id."""
        new, before = self.ids, self.centres[cluster]
        self.ids += 1
        for k, names in zip((cluster, new), halves):
            self._set(k, names, before)
        return new

    def _set(self, cluster: int, names: list[str], otherwise: Params) -> None:
        self.members[cluster], self.centres[cluster] = names, self.known.mean(names, self.weighting, otherwise)
        self.inside.pop(cluster, None)


def tune(
    clusters: Clusters, halves: Halves, low: float, high: float, past: Sequence[dict[str, int]]
) -> list[dict[str, int]]:
    """One pass of the tuning: G_k is computed for all clusters first, then each cluster changes at most once.

    A cluster of two members or more with G_k below ``low`` is merged into the nearest one, with G_k above ``high`` it
    is split by ``halves``. ``past`` has such changes that may not be undone yet.

    Returns:
        ``{"cluster", "into"}`` for a merge, ``{"cluster", "new"}`` for a split. The clusters are changed in place.
    """
    spread = clusters.dispersion()
    if len(spread) == 1:
        return _first_split(clusters, halves, low, high, past)
    ids, between = list(spread), clusters.between(list(spread))
    np.fill_diagonal(between, np.inf)
    were_split, were_merged = {(c["cluster"], c.get("new")) for c in past}, {c.get("into") for c in past}
    changed: set[int] = set()
    changes = []
    for cluster, squares in zip(ids, between):
        if cluster in changed or len(clusters.members[cluster]) < 2:
            continue
        nearest = ids[int(squares.argmin())]
        if spread[cluster] < low:
            if nearest not in changed and (min(cluster, nearest), max(cluster, nearest)) not in were_split:
                clusters.merge(cluster, nearest)
                changes.append({"cluster": cluster, "into": nearest})
                changed |= {cluster, nearest}
        elif spread[cluster] > high and cluster not in were_merged:
            changed.add(cluster)
            if all(parts := halves(clusters.members[cluster])):
                changes.append({"cluster": cluster, "new": clusters.split(cluster, parts)})
    return changes


def _first_split(
    clusters: Clusters, halves: Halves, low: float, high: float, past: Sequence[dict[str, int]]
) -> list[dict[str, int]]:
    """A single cluster has no G: a split is tried, and kept if both halves end with a <= G <= b."""
    ((cluster, names),) = [(k, names) for k, names in clusters.members.items() if names]
    parts = halves(names)
    if not all(parts) or any(c.get("into") == cluster for c in past):
        return []
    tried = replace(clusters, members={**clusters.members}, centres={**clusters.centres}, inside={**clusters.inside})
    change = {"cluster": cluster, "new": tried.split(cluster, parts)}
    if not all(low <= g <= high for g in tried.dispersion().values()):
        return []
    clusters.split(cluster, parts)
    return [change]


def as_json(spread: dict[int, float]) -> dict[str, Any]:
    """G_k by cluster, None where it is infinite: a single cluster, or centres that coincide."""
    return {str(k): g if math.isfinite(g) else None for k, g in spread.items()}
