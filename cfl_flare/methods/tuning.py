# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning of the number of clusters (FedAC Alg. 3): too tight clusters are merged, too loose ones are split; merges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cfl_flare.clustering.agglomerative import alike
from cfl_flare.core.arrays import LatestModels
from cfl_flare.core.params import Params, weighted_mean
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.methods.state import ServerState

# FedDrift's extras: the participants' clusters and samples by period, and the last period that began with merges.
SEEN, PERIOD = "seen", "period"
Halves = Callable[[Sequence[str]], tuple[list[str], list[str]]]


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
    centre, ids, inside = clusters.centres[cluster], clusters.ids, dict(clusters.inside)
    new = clusters.split(cluster, parts)
    if all(low <= g <= high for g in clusters.dispersion().values()):
        return [{"cluster": cluster, "new": new}]
    clusters.members[cluster], clusters.centres[cluster], clusters.ids, clusters.inside = names, centre, ids, inside
    del clusters.members[new], clusters.centres[new]
    return []


def merged(state: ServerState, losses: Mapping[str, np.ndarray], pool: Sequence[int], delta: float) -> ServerState:
    """The state in which clusters of a pool that are alike are the first of them, once a period, by losses in it.

    That one has the mean of their models. ``losses`` are those of participants, ``(periods, pool)`` each, as `alike`
    takes them with the threshold ``delta``.
    """
    if not losses or state.period <= state.extras[PERIOD]:
        return state
    seen = state.extras[SEEN]
    clusters, samples = (np.concatenate([seen[name][i] for name in losses]) for i in (0, 1))
    counts = samples[:, None] * (clusters[:, None] == pool)
    groups = [[pool[j] for j in group] for group in alike(np.concatenate([*losses.values()]), counts, delta)]
    bank, weights = dict(state.bank), dict(zip(pool, counts.sum(axis=0).tolist()))
    for group in groups:
        parts = [(bank.pop(cluster_slot(k)), weights[k]) for k in group]
        bank[cluster_slot(group[0])] = weighted_mean(parts, parts[0][0])
    into = {k: group[0] for group in groups for k in group}
    seen = {name: [[into.get(k, k) for k in history], *rest] for name, (history, *rest) in seen.items()}
    assignment = {name: into.get(k, k) for name, k in state.assignment.items()}
    extras, notes = {**state.extras, SEEN: seen, PERIOD: state.period}, {**state.notes, "merged": groups}
    return replace(state, bank=bank, assignment=assignment, extras=extras, notes=notes)


def as_json(spread: dict[int, float]) -> dict[str, Any]:
    """G_k by cluster, None where it is infinite: a single cluster, or centres that coincide."""
    return {str(k): g if math.isfinite(g) else None for k, g in spread.items()}
