# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Analysis of a round's clustering, as in the thesis: its objective, its clusterability, its cosine similarities.

A round's updates may lie on disk: they are read one at a time, twice, and only a few models per cluster are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from cfl_flare.clustering.kmeans import stacked
from cfl_flare.clustering.measures import inner_products
from cfl_flare.core.params import Params, WeightedMean
from cfl_flare.methods import Assignment, Method, ServerState, Update
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
        self._sum: np.ndarray = np.zeros(1)

    def add(self, vector: np.ndarray) -> None:
        """Adds a vector."""
        length = np.linalg.norm(vector.astype(np.float64))
        if length > 0:
            self._sum = self._sum + vector / length
            self.count += 1

    def mean(self) -> float | None:
        """The mean of the pairs; None if there are none."""
        n = self.count
        return float(np.clip((np.square(self._sum).sum() - n) / (n * (n - 1)), -1, 1)) if n > 1 else None


def analyse(
    method: Method, before: ServerState, after: ServerState, updates: Sequence[Update], assignment: Assignment
) -> dict[str, Any]:
    """What a round's record says of its clustering, as plain JSON values.

    Participants are compared by their vectors (`Method.vector`): a part of the trained model, or an array.

    * ``objective``: C of thesis Eq. 3.3b after the M-step, the psi-weighted mean of the squared Euclidean distance
      between a participant's vector and that of its cluster's centre.
    * ``clusterability``: B of each cluster (thesis Def. 3.4.7, Eq. 3.18), with the updates in place of the gradients;
      None for a cluster without a participant in this round, or whose mean update is zero.
    * ``intra_cosine``: mean cosine similarity of two participants' vectors in the same cluster; clusters
      are weighted by their participants. None if no cluster has two.
    * ``inter_cosine``: that of two centres in use (thesis Fig. 3.4); None if there is only one.

    Args:
        method: one that clusters, or a wrapper of one that does.
        before: the state in which the round's participants were sent their models.
        after: the state after the M-step.
        updates: the round's; read twice.
        assignment: their clusters.
    """
    clustering, clusters = Clustering.of(method, before), method.clusters_in(after)
    centres = centre_vectors(clustering, clusters, after, updates, assignment)
    within, means = [Cosines() for _ in range(clusters)], dict[int, WeightedMean]()
    total = weights = 0.0
    for update in updates:
        k, weight = assignment[update.participant], clustering.weight(update)
        vector = clustering.vector(update)
        total += weight * float(np.square(vector - centres[k]).sum())
        weights += weight
        within[k].add(vector)
        moved = clustering.moved(update)
        if moved is not None:
            means.setdefault(k, WeightedMean(moved.layout)).add(moved, weight)
    between = Cosines()
    for k in sorted(set(after.assignment.values()) & centres.keys()):
        between.add(centres[k])
    crowds = [(cosine, c.count) for c in within if (cosine := c.mean()) is not None]
    members = sum(count for _, count in crowds)
    return {
        "objective": _finite(total / weights) if weights else None,
        "clusterability": _clusterability(clustering, clusters, means, updates, assignment),
        "intra_cosine": _finite(sum(cosine * count for cosine, count in crowds) / members) if members else None,
        "inter_cosine": _finite(between.mean()),
    }


def centre_vectors(
    clustering: Clustering, clusters: int, after: ServerState, updates: Sequence[Update], assignment: Assignment
) -> dict[int, np.ndarray]:
    """The vector of each cluster's centre, float64.

    If participants are compared by arrays, no model gives the centre: it is then the weighted mean of the round's
    members, and a cluster without members has none.
    """
    found = {k: vector for k in range(clusters) if (vector := clustering.centre(after, k)) is not None}
    if found:
        return {k: vector.astype(np.float64) for k, vector in found.items()}
    sums, weights = dict[int, np.ndarray](), dict[int, float]()
    for update in updates:
        k, weight = assignment[update.participant], clustering.weight(update)
        sums[k] = sums.get(k, 0.0) + weight * clustering.vector(update).astype(np.float64)
        weights[k] = weights.get(k, 0.0) + weight
    return {k: total / weights[k] for k, total in sums.items()}


def _clusterability(
    clustering: Clustering,
    clusters: int,
    means: dict[int, WeightedMean],
    updates: Sequence[Update],
    assignment: Assignment,
) -> list[float | None]:
    """B of each cluster, from the means of its updates."""
    mean: dict[int, Params] = {}
    farthest = [0.0] * clusters
    for update in updates:
        k, moved = assignment[update.participant], clustering.moved(update)
        if moved is None:
            continue
        if k not in mean:
            layout = moved.layout
            nothing = Params(layout, np.zeros(layout.size, np.float32), np.zeros(layout.counter_size, np.int64))
            mean[k] = means[k].result(nothing)
        farthest[k] = max(farthest[k], _squared(mean[k], moved))
    lengths = {k: math.sqrt(_squared(m)) for k, m in mean.items()}
    return [_finite(math.sqrt(farthest[k]) / lengths[k]) if lengths.get(k) else None for k in range(clusters)]


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
    centres = centre_vectors(clustering, clusters, after, updates, assignment)
    own = (clustering.vector(update) for update in updates)
    size = len(next(iter(centres.values())))
    others = (centres.get(k, np.zeros(size)).astype(np.float32) for k in range(clusters))
    vectors, _ = stacked(((vector, 1.0) for vector in chain(own, others)), len(updates) + clusters)
    return inner_products(vectors)


def _finite(value: float | None) -> float | None:
    """A number that JSON can hold, or None: models that diverge have distances beyond float64."""
    return value if value is not None and math.isfinite(value) else None
