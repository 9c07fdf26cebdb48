# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAC's tuning of the number of clusters (Zhang et al. 2024, Alg. 3): merges and splits by their dispersion.

* Yuxin Zhang, Haoyu Chen, Zheng Lin, Zhe Chen, Jin Zhao: FedAC: An Adaptive Clustered Federated Learning Framework
  for Heterogeneous Data, 2024, https://arxiv.org/abs/2403.16460.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cfl_flare.core.arrays import LatestModels
from cfl_flare.core.params import Params, weighted_mean
from cfl_flare.methods.state import Weighting

# Splits the names of a cluster's members in two lists. The second list is empty if no split is possible.
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
    weighting: Weighting
    inside: dict[int, float] = field(default_factory=dict)

    @property
    def used(self) -> list[int]:
        """The ids of clusters with members."""
        return [k for k, names in self.members.items() if names]

    @property
    def assignment(self) -> dict[str, int]:
        """The members' clusters by name."""
        assignment: dict[str, int] = {}
        for cluster, names in self.members.items():
            assignment |= dict.fromkeys(names, cluster)
        return assignment

    def average(self, otherwise: Params) -> Params:
        """The mean of the centres, weighted by their members, or ``otherwise`` if there are none.

        Args:
            otherwise: the result if there is nothing to average.
        """
        weighted = (
            (self.centres[k], self.known.weight(self.members[k], self.weighting))
            for k in self.used
        )
        return weighted_mean(weighted, otherwise)

    def measure_dispersion(self) -> dict[int, float]:
        """G_k = Dist_intra / Dist_inter of each cluster with members, infinity if no other cluster is apart."""
        used = self.used
        dispersion = {}
        for row, (k, squares) in enumerate(zip(used, self.measure_distances(used))):
            if k not in self.inside:
                self.inside[k] = self.known.spread(self.members[k], self.centres[k])
            others = np.delete(squares, row)
            apart = float(others.mean()) if len(others) else 0.0
            dispersion[k] = self.inside[k] / apart if apart > 0 else float("inf")
        return dispersion

    def measure_distances(self, used: Sequence[int]) -> np.ndarray:
        """Squared distances ``(k, k)`` between these centres, computed after subtracting their mean.

        Args:
            used: the ids of clusters.
        """
        from sklearn.metrics.pairwise import euclidean_distances

        rows = np.stack([self.centres[k].part("all").astype(np.float64) for k in used])
        return np.asarray(euclidean_distances(rows - rows.mean(axis=0), squared=True))

    def merge(
        self,
        cluster: int,
        into: int,
    ) -> None:
        """Move a cluster's members to another cluster, and drop its id.

        Args:
            cluster: the number of a cluster.
            into: the cluster that stays.
        """
        members = self.members[into] + self.members.pop(cluster)
        self._set_members(into, members, self.centres.pop(cluster))

    def split(
        self,
        cluster: int,
        halves: tuple[list[str], list[str]],
    ) -> int:
        """Move the second half of a cluster's members to a new cluster, and return the new id.

        Args:
            cluster: the number of a cluster.
            halves: the two lists of members.
        """
        new = self.ids
        before = self.centres[cluster]
        self.ids += 1
        self._set_members(cluster, halves[0], before)
        self._set_members(new, halves[1], before)
        return new

    def copy(self) -> Clusters:
        """A copy on which changes can be tried."""
        return replace(
            self,
            members={**self.members},
            centres={**self.centres},
            inside={**self.inside},
        )

    def _set_members(
        self,
        cluster: int,
        names: list[str],
        otherwise: Params,
    ) -> None:
        self.members[cluster] = names
        self.centres[cluster] = self.known.mean(names, self.weighting, otherwise)
        self.inside.pop(cluster, None)


def tune(
    clusters: Clusters,
    halves: Halves,
    low: float,
    high: float,
    past: Sequence[dict[str, int]],
) -> list[dict[str, int]]:
    """Tune the number of clusters once (Alg. 3).

    G_k is computed for all clusters first. Then each cluster changes at most once. A cluster of two or more members
    with G_k below ``low`` is merged into the nearest one. A cluster with G_k above ``high`` is split by ``halves``.

    Args:
        clusters: changed in place.
        halves: splits a list of members, see `FedAC.halve_cluster`.
        low: a.
        high: b.
        past: earlier changes that may not be undone yet.

    Returns:
        ``{"cluster", "into"}`` for a merge, ``{"cluster", "new"}`` for a split.
    """
    dispersion = clusters.measure_dispersion()
    if len(dispersion) == 1:
        return _split_single(clusters, halves, low, high, past)
    ids = list(dispersion)
    between = clusters.measure_distances(ids)
    np.fill_diagonal(between, np.inf)
    were_split = {(change["cluster"], change.get("new")) for change in past}
    were_merged = {change.get("into") for change in past}

    changed: set[int] = set()
    changes = []
    for cluster, squares in zip(ids, between):
        members = clusters.members.get(cluster, [])
        if cluster in changed or len(members) < 2:
            continue
        nearest = ids[int(squares.argmin())]
        pair = (min(cluster, nearest), max(cluster, nearest))
        if (
            dispersion[cluster] < low
            and nearest not in changed
            and pair not in were_split
        ):
            clusters.merge(cluster, nearest)
            changes.append({"cluster": cluster, "into": nearest})
            changed |= {cluster, nearest}
        if dispersion[cluster] > high and cluster not in were_merged:
            changed.add(cluster)
            parts = halves(members)
            if all(parts):
                changes.append(
                    {"cluster": cluster, "new": clusters.split(cluster, parts)}
                )
    return changes


def _split_single(
    clusters: Clusters,
    halves: Halves,
    low: float,
    high: float,
    past: Sequence[dict[str, int]],
) -> list[dict[str, int]]:
    """Try to split the only cluster, which has no G, and keep the split if both halves end with a <= G <= b."""
    (cluster,) = clusters.used
    parts = halves(clusters.members[cluster])
    if not all(parts) or any(change.get("into") == cluster for change in past):
        return []
    tried = clusters.copy()
    new = tried.split(cluster, parts)
    if not all(low <= g <= high for g in tried.measure_dispersion().values()):
        return []
    clusters.split(cluster, parts)
    return [{"cluster": cluster, "new": new}]


def describe_dispersion(spread: dict[int, float]) -> dict[str, Any]:
    """G_k by cluster, None where it is infinite: a single cluster, or centres that coincide.

    Args:
        spread: G_k by cluster.
    """
    return {str(k): g if math.isfinite(g) else None for k, g in spread.items()}
