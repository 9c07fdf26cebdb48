# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning of the number of clusters (FedAC Alg. 3): too tight clusters are merged, too loose ones are split; merges."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cfl_flare.core.arrays import LatestModels
from cfl_flare.core.params import Params, weighted_mean
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.methods.state import ServerState

Halves = Callable[[Sequence[str]], tuple[list[str], list[str]]]


def dispersion(intra: Mapping[int, float], between: np.ndarray) -> dict[int, float]:
    """G_k = Dist_intra / Dist_inter of each cluster in use (FedAC Alg. 3); infinity for one without any other apart.

    Args:
        intra: by cluster, the mean squared distance of its members to its centre.
        between: ``(K, K)`` squared distances of the centres of these clusters, in the same order.

    >>> dispersion({0: 1.0, 4: 3.0}, np.array([[0.0, 2.0], [2.0, 0.0]]))
    {0: 0.5, 4: 1.5}
    """
    spread = {}
    for row, (cluster, inside) in enumerate(intra.items()):
        others = np.delete(between[row], row)
        apart = float(others.mean()) if len(others) else 0.0
        spread[cluster] = inside / apart if apart > 0 else float("inf")
    return spread


def changes(
    loose: Mapping[int, float],
    sizes: Mapping[int, int],
    between: np.ndarray,
    low: float,
    high: float,
    barred_merges: Collection[tuple[int, int]] = (),
    barred_splits: Collection[int] = (),
) -> list[tuple[int, int | None]]:
    """The changes of one tuning step: all G_k are computed first, then each cluster changes at most once.

    Args:
        loose: G_k by cluster.
        sizes: members by cluster.
        between: ``(K, K)`` squared distances of their centres, in the order of ``loose``.
        low: a; a cluster of two members or more below it is merged into the nearest one.
        high: b; a cluster of two members or more above it is split.
        barred_merges: pairs, the smaller number first, that were split recently.
        barred_splits: clusters that were merged recently.

    Returns:
        The clusters that change, each with the one that takes its members; None for a split.

    >>> apart = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]])
    >>> changes({0: 0.1, 1: 0.5, 2: 0.9}, {0: 2, 1: 2, 2: 2}, apart, 0.2, 0.8)
    [(0, 1), (2, None)]
    """
    clusters, done = list(loose), set[int]()
    steps: list[tuple[int, int | None]] = []
    for row, cluster in enumerate(clusters):
        if cluster in done or sizes[cluster] < 2:
            continue
        if loose[cluster] < low and len(clusters) > 1:
            nearest = clusters[int(np.argmin(np.where(np.arange(len(clusters)) == row, np.inf, between[row])))]
            pair = (min(cluster, nearest), max(cluster, nearest))
            if nearest not in done and pair not in barred_merges:
                steps.append((cluster, nearest))
                done |= {cluster, nearest}
        elif loose[cluster] > high and cluster not in barred_splits:
            steps.append((cluster, None))
            done.add(cluster)
    return steps


@dataclass
class Clusters:
    """A round's clusters after the M-step; tuning changes them in place.

    Attributes:
        members: names by cluster id; an empty cluster is left alone.
        centres: by the same ids.
        ids: ids given out so far.
        known: the participants' models.
        mean: the centre of some participants.
        inside: cached spread of clusters, as computing it reads their members' models; a change of a cluster drops it.
    """

    members: dict[int, list[str]]
    centres: dict[int, Params]
    ids: int
    known: LatestModels
    mean: Callable[[Sequence[str], Params], Params]
    inside: dict[int, float] = field(default_factory=dict)

    def dispersion(self) -> dict[int, float]:
        used = [k for k, names in self.members.items() if names]
        for k in used:
            if k not in self.inside:
                self.inside[k] = self.known.spread(self.members[k], self.centres[k])
        return dispersion({k: self.inside[k] for k in used}, self.between(used))

    def between(self, used: Sequence[int]) -> np.ndarray:
        """Squared distances between these centres, computed after subtracting their mean."""
        from sklearn.metrics.pairwise import euclidean_distances

        rows = np.stack([self.centres[k].part("all").astype(np.float64) for k in used])
        return np.asarray(euclidean_distances(rows - rows.mean(axis=0), squared=True))

    def merge(self, cluster: int, into: int) -> None:
        """Moves a cluster's members to another one, and drops its id."""
        self.members[into] += self.members.pop(cluster)
        self.centres[into] = self.mean(self.members[into], self.centres.pop(cluster))
        self.inside.pop(into, None)

    def split(self, cluster: int, halves: tuple[list[str], list[str]]) -> int:
        """Moves the second half of a cluster's members to a new cluster, and returns its id."""
        new, before = self.ids, self.centres[cluster]
        self.ids += 1
        for k, names in zip((cluster, new), halves):
            self.members[k], self.centres[k] = names, self.mean(names, before)
            self.inside.pop(k, None)
        return new


def tune(
    clusters: Clusters, halves: Halves, low: float, high: float, past: Sequence[dict[str, int]]
) -> list[dict[str, int]]:
    """One pass of the tuning: G_k is computed for all clusters first, then each cluster changes at most once.

    It changes the clusters in place, and returns ``{"cluster", "into"}`` for a merge, ``{"cluster", "new"}`` for a
    split. ``past`` has such changes that may not be undone yet. ``halves`` splits a cluster's members.
    """
    spread = clusters.dispersion()
    if len(spread) == 1:
        return _first_split(clusters, halves, low, high, past)
    done = []
    sizes = {k: len(clusters.members[k]) for k in spread}
    barred = {(c["cluster"], c["new"]) for c in past if "new" in c}, {c["into"] for c in past if "into" in c}
    for cluster, into in changes(spread, sizes, clusters.between(list(spread)), low, high, *barred):
        if into is not None:
            clusters.merge(cluster, into)
            done.append({"cluster": cluster, "into": into})
        elif all(parts := halves(clusters.members[cluster])):
            done.append({"cluster": cluster, "new": clusters.split(cluster, parts)})
    return done


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


def merged(state: ServerState, groups: Sequence[Sequence[int]], weights: Mapping[int, float]) -> ServerState:
    """The state in which the clusters of each group are the first one of it, with the weighted mean of their models."""
    bank, into = dict(state.bank), {k: group[0] for group in groups for k in group}
    for group in groups:
        parts = [(bank.pop(cluster_slot(k)), weights[k]) for k in group]
        bank[cluster_slot(group[0])] = weighted_mean(parts, parts[0][0])
    return replace(state, bank=bank, assignment={name: into.get(k, k) for name, k in state.assignment.items()})


def as_json(spread: dict[int, float]) -> dict[str, Any]:
    """G_k by cluster, None where it is infinite: a single cluster, or centres that coincide."""
    return {str(k): g if math.isfinite(g) else None for k, g in spread.items()}
