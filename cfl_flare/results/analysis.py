# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Analysis of a round's clustering, as in the thesis: its objective, its clusterability, its cosine similarities.

A round's updates may lie on disk: they are read one at a time, twice, and only a few models per cluster are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from cfl_flare.clustering.measures import inner_products
from cfl_flare.core.params import Params, WeightedMean
from cfl_flare.methods import Assignment, Method, ServerState, Update
from cfl_flare.methods.state import heads
from cfl_flare.methods.wrapper import Clustering


class Cosines:
    """Mean cosine similarity of all pairs of some vectors, from the length of the sum of their unit vectors.

    A vector of zeros has no direction and is left out.

    >>> cosines = Cosines()
    >>> for vector in ([1.0, 0.0], [0.0, 2.0], [3.0, 0.0]):
    ...     cosines.add(np.array(vector))
    >>> round(cosines.mean(), 6)
    0.333333
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: np.ndarray = np.zeros(0)

    def add(self, vector: np.ndarray) -> None:
        wide = vector.astype(np.float64)
        length = np.linalg.norm(wide)
        if length > 0:
            wide /= length
            self._sum = np.add(self._sum, wide, out=self._sum) if self.count else wide
            self.count += 1

    def mean(self) -> float | None:
        """The mean; None without a pair. No vector can be added any more."""
        n = self.count
        if n < 2:
            return None
        total = np.square(self._sum, out=self._sum).sum()
        return float(np.clip((total - n) / (n * (n - 1)), -1, 1))


def analyse(
    method: Method, before: ServerState, after: ServerState, updates: Sequence[Update], assignment: Assignment
) -> dict[str, Any]:
    """What a round's record says of its clustering, as plain JSON values.

    Participants are compared by their vectors (`Method.vector`): a part of the trained model, or an array. ``before``
    is the state in which they were sent their models, ``after`` the state after the M-step.

    * ``objective``: C of thesis Eq. 3.3b after the M-step, the psi-weighted mean of the squared Euclidean distance
      between a participant's vector and that of its cluster's centre.
    * ``clusterability``: B of each cluster (thesis Def. 3.4.7, Eq. 3.18), with the updates in place of the gradients;
      None for a cluster without a participant in this round, or whose mean update is zero.
    * ``intra_cosine``: mean cosine similarity of two participants' vectors in the same cluster; clusters
      are weighted by their participants. None if no cluster has two.
    * ``inter_cosine``: that of two centres in use (thesis Fig. 3.4); None if there is only one.
    """
    clustering, clusters = Clustering.of(method, before), method.clusters_in(after)
    centres = _centres(clustering, clusters, after, updates, assignment)
    weights = {update.participant: clustering.weight(update) for update in heads(updates)}
    rows: dict[int, list[int]] = {k: [] for k in range(clusters)}
    for i, name in enumerate(weights):
        rows[assignment[name]].append(i)
    # A cluster at a time, so that the sums of one are in memory.
    seen = [_Cluster.of(clustering, (updates[i] for i in rows[k]), centres.get(k)) for k in range(clusters)]
    distances = {name: distance for cluster in seen for name, distance in cluster.distances.items()}
    total, weight = sum(weights[name] * distances[name] for name in weights), sum(weights.values())
    between = Cosines()
    for k in sorted(set(after.assignment.values()) & centres.keys()):
        between.add(centres[k])
    within = [(cluster.cosine, cluster.count) for cluster in seen if cluster.cosine is not None]
    compared = sum(count for _, count in within)
    spread = [
        None if cluster.mean is None else _clusterability(clustering, (updates[i] for i in rows[k]), cluster.mean)
        for k, cluster in enumerate(seen)
    ]
    return {
        "objective": _finite(total / weight) if weight else None,
        "clusterability": spread,
        "intra_cosine": _finite(sum(cosine * count for cosine, count in within) / compared) if compared else None,
        "inter_cosine": _finite(between.mean()),
    }


@dataclass(frozen=True)
class _Cluster:
    """What one pass over a cluster's updates tells.

    Attributes:
        distances: by participant, the squared distance of its vector from the centre's.
        cosine: mean cosine similarity of two of its vectors; None without two.
        count: its vectors that are not zero.
        mean: of its updates' models; None if nobody trained one.
    """

    distances: dict[str, float]
    cosine: float | None
    count: int
    mean: Params | None

    @classmethod
    def of(cls, clustering: Clustering, updates: Iterable[Update], centre: np.ndarray | None) -> _Cluster:
        cosines, mean, distances = Cosines(), None, dict[str, float]()
        for update in updates:
            vector = clustering.vector(update)
            if centre is not None:
                apart = np.subtract(vector, centre, dtype=np.float64)
                distances[update.participant] = float(np.square(apart, out=apart).sum())
                del apart
            cosines.add(vector)
            moved = clustering.moved(update)
            if moved is not None:
                mean = mean or WeightedMean(moved.layout)
                mean.add(moved, clustering.weight(update))
        cosine = cosines.mean()
        return cls(distances, cosine, cosines.count, None if mean is None else _result(mean))


def _result(mean: WeightedMean) -> Params:
    layout = mean.layout
    return mean.result(Params(layout, np.zeros(layout.size, np.float32), np.zeros(layout.counter_size, np.int64)))


def _centres(
    clustering: Clustering, clusters: int, after: ServerState, updates: Sequence[Update], assignment: Assignment
) -> dict[int, np.ndarray]:
    """The vectors of the clusters' centres.

    If participants are compared by arrays, no model gives a centre: it is the weighted mean of the round's members.
    """
    centres = {k: vector for k in range(clusters) if (vector := clustering.centre(after, k)) is not None}
    if centres:
        return centres
    sums, weights = dict[int, np.ndarray](), dict[int, float]()
    for update in updates:
        k, weight = assignment[update.participant], clustering.weight(update)
        sums[k] = sums.get(k, 0.0) + weight * clustering.vector(update).astype(np.float64)
        weights[k] = weights.get(k, 0.0) + weight
    return {k: total / weights[k] for k, total in sums.items()}


def _clusterability(clustering: Clustering, updates: Iterable[Update], mean: Params) -> float | None:
    moves = (moved for update in updates if (moved := clustering.moved(update)) is not None)
    farthest, length = max(_squared(mean, moved) for moved in moves), math.sqrt(_squared(mean))
    return _finite(math.sqrt(farthest) / length) if length else None


def _squared(mean: Params, moved: Params | None = None) -> float:
    """Squared length of a mean update's parameters, or of their difference from one update's.

    Parameters that a site's filter removed from that update are left out.
    """
    total = 0.0
    for i, entry in enumerate(mean.layout.entries):
        if entry.kind == "parameter" and (moved is None or moved.present is None or moved.present[i]):
            part = mean.vector[entry.slice].astype(np.float64)
            total += float(np.square(part if moved is None else part - moved.vector[entry.slice]).sum())
    return total


def gram(
    method: Method, before: ServerState, after: ServerState, updates: Sequence[Update], assignment: Assignment
) -> np.ndarray:
    """Inner products ``(n + K, n + K)`` of the vectors of the round's n participants and of the K centres after it.

    All that t-SNE, principal components and cosine heat maps need (thesis Fig. 3.4-3.6); the vectors themselves are
    many times larger. A cluster without a centre counts as zeros.
    """
    clustering, clusters = Clustering.of(method, before), method.clusters_in(after)
    centres = _centres(clustering, clusters, after, updates, assignment)
    people = (clustering.vector(update) for update in updates)
    size = len(next(iter(centres.values())))
    of_clusters = (centres.get(k, np.zeros(size)).astype(np.float32) for k in range(clusters))
    return inner_products(chain(people, of_clusters))


def _finite(value: float | None) -> float | None:
    """A number that JSON can hold, or None: models that diverge have distances beyond float64."""
    return value if value is not None and math.isfinite(value) else None
