# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning of the number of clusters in one round (FedAC Alg. 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cfl_flare.clustering.number import changes, dispersion
from cfl_flare.core.arrays import LatestModels
from cfl_flare.core.params import Params

Halves = Callable[[Sequence[str]], tuple[list[str], list[str]]]


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
        """G_k of each cluster that has members."""
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
        """Moves the second half of a cluster's members to a new cluster.

        Returns:
            The new id.
        """
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

    Args:
        clusters: changed in place.
        halves: splits a cluster's members between two new centres.
        low: a.
        high: b.
        past: changes that may not be undone yet, in the returned form.

    Returns:
        The changes: ``{"cluster", "into"}`` of a merge, ``{"cluster", "new"}`` of a split.
    """
    spread = clusters.dispersion()
    if len(spread) == 1:
        return _first_split(clusters, halves, low, high, past)
    done = []
    for change in changes(
        spread,
        {k: len(clusters.members[k]) for k in spread},
        clusters.between(list(spread)),
        low,
        high,
        {(c["cluster"], c["new"]) for c in past if "new" in c},
        {c["into"] for c in past if "into" in c},
    ):
        if change.into is not None:
            clusters.merge(change.cluster, change.into)
            done.append({"cluster": change.cluster, "into": change.into})
            continue
        parts = halves(clusters.members[change.cluster])
        if all(parts):
            done.append({"cluster": change.cluster, "new": clusters.split(change.cluster, parts)})
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


def as_json(spread: dict[int, float]) -> dict[str, Any]:
    """G_k by cluster, None where it is infinite: a single cluster, or centres that coincide."""
    return {str(k): g if math.isfinite(g) else None for k, g in spread.items()}
