# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Analysis of a round's clustering, as in the thesis: its objective, its clusterability, its cosine similarities.

A round's updates may lie on disk: they are read one at a time, and only a few models are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from cfl_flare.clustering.measures import compute_inner_products
from cfl_flare.core.params import Params, WeightedMean, pieces
from cfl_flare.methods import Assignment, Method, ServerState, Update
from cfl_flare.methods.state import Mapped, read_heads
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
        length = math.sqrt(_squared(vector))
        if length > 0:
            self._sum = self._sum if self.count else np.zeros(len(vector))
            for place in pieces(len(vector)):
                self._sum[place] += np.divide(vector[place], length, dtype=np.float64)
            self.count += 1

    def mean(self) -> float | None:
        """The mean; None without a pair."""
        n = self.count
        return (
            float(np.clip((_squared(self._sum) - n) / (n * (n - 1)), -1, 1))
            if n > 1
            else None
        )


def _squared(vector: np.ndarray, other: np.ndarray | None = None) -> float:
    """Squared length of a vector, or of its difference from another one, in float64."""
    total = 0.0
    for place in pieces(len(vector)):
        part = vector[place].astype(np.float64)
        if other is not None:
            part -= other[place]
        total += float(part @ part)
    return total


def analyse(
    method: Method,
    before: ServerState,
    after: ServerState,
    updates: Sequence[Update],
    assignment: Assignment,
) -> dict[str, Any]:
    """What a round's record says of its clustering, as plain JSON values.

    Participants are compared by their vectors (`Method.compute_vector`): a part of the trained model, or an array.
    ``before`` is the state in which they were sent their models, ``after`` the state after the M-step.

    * ``objective``: C of thesis Eq. 3.3b after the M-step, the psi-weighted mean of the squared Euclidean distance
      between a participant's vector and that of its cluster's centre.
    * ``clusterability``: B of each cluster (thesis Def. 3.4.7, Eq. 3.18), with the updates in place of the gradients;
      None for a cluster without a participant in this round, or whose mean update is zero.
    * ``intra_cosine``: mean cosine similarity of two participants' vectors in the same cluster; clusters
      are weighted by their participants. None if no cluster has two.
    * ``inter_cosine``: that of two centres in use (thesis Fig. 3.4); None if there is only one.
    """
    clustering, clusters = Clustering.of(method, before), method.count_clusters(after)
    centres = _centres(clustering, clusters, after, updates, assignment)
    weights = {
        update.participant: clustering.weight(update) for update in read_heads(updates)
    }
    rows: dict[int, list[int]] = {k: [] for k in range(clusters)}
    for i, name in enumerate(weights):
        rows[assignment[name]].append(i)
    members_of = [Mapped(updates, places=rows[k]) for k in range(clusters)]
    compared = [
        _compared(clustering, members, centres.get(k))
        for k, members in enumerate(members_of)
    ]
    distances = {
        name: distance
        for of_cluster, _, _ in compared
        for name, distance in of_cluster.items()
    }
    total, weight = (
        sum(weights[name] * distances[name] for name in weights),
        sum(weights.values()),
    )
    between = Cosines()
    for k in sorted(set(after.assignment.values()) & centres.keys()):
        between.add(centres[k])
    within = [(cosine, count) for _, cosine, count in compared if cosine is not None]
    pairs = sum(count for _, count in within)
    return {
        "objective": _finite(total / weight) if weight else None,
        "clusterability": [
            _clusterability(clustering, members) for members in members_of
        ],
        "intra_cosine": _finite(sum(cosine * count for cosine, count in within) / pairs)
        if pairs
        else None,
        "inter_cosine": _finite(between.mean()),
    }


def _compared(
    clustering: Clustering, updates: Sequence[Update], centre: np.ndarray | None
) -> tuple[dict[str, float], float | None, int]:
    """Of a cluster's vectors: by participant, the squared distance from the centre's; the mean cosine; their count."""
    cosines, distances = Cosines(), dict[str, float]()
    for update in updates:
        vector = clustering.compute_vector(update)
        if centre is not None:
            distances[update.participant] = _squared(vector, centre)
        cosines.add(vector)
    return distances, cosines.mean(), cosines.count


def _clusterability(clustering: Clustering, updates: Sequence[Update]) -> float | None:
    """The farthest update's distance from their mean, in lengths of the mean; of the parameters alone.

    Parameters that a site's filter removed from an update are left out of its distance.
    """
    mean: WeightedMean | None = None
    for update in updates:
        moved = clustering.moved(update)
        if moved is not None:
            mean = mean or WeightedMean(moved.layout)
            mean.add(moved, clustering.weight(update))
    if mean is None:
        return None
    layout = mean.layout
    result = mean.result(
        Params(
            layout,
            np.zeros(layout.size, np.float32),
            np.zeros(layout.counter_size, np.int64),
        )
    )
    del mean
    parameters = [
        (i, entry.slice)
        for i, entry in enumerate(layout.entries)
        if entry.kind == "parameter"
    ]

    def distance(moved: Params) -> float:
        present = [
            place
            for i, place in parameters
            if moved.present is None or moved.present[i]
        ]
        return sum(
            _squared(result.vector[place], moved.vector[place]) for place in present
        )

    moves = (
        moved for update in updates if (moved := clustering.moved(update)) is not None
    )
    farthest = max(map(distance, moves))
    length = math.sqrt(_squared(result.vector[: layout.parameter_size]))
    return _finite(math.sqrt(farthest) / length) if length else None


def _centres(
    clustering: Clustering,
    clusters: int,
    after: ServerState,
    updates: Sequence[Update],
    assignment: Assignment,
) -> dict[int, np.ndarray]:
    """The vectors of the clusters' centres.

    If participants are compared by arrays, no model gives a centre: it is the weighted mean of the round's members.
    """
    centres = {
        k: vector
        for k in range(clusters)
        if (vector := clustering.centre(after, k)) is not None
    }
    if centres:
        return centres
    sums, weights = dict[int, np.ndarray](), dict[int, float]()
    for update in updates:
        k, weight = assignment[update.participant], clustering.weight(update)
        sums[k] = sums.get(k, 0.0) + weight * clustering.compute_vector(update).astype(
            np.float64
        )
        weights[k] = weights.get(k, 0.0) + weight
    return {k: total / weights[k] for k, total in sums.items()}


def gram(
    method: Method,
    before: ServerState,
    after: ServerState,
    updates: Sequence[Update],
    assignment: Assignment,
) -> np.ndarray:
    """Inner products ``(n + K, n + K)`` of the vectors of the round's n participants and of the K centres after it.

    All that t-SNE, principal components and cosine heat maps need (thesis Fig. 3.4-3.6); the vectors themselves are
    many times larger. A cluster without a centre counts as zeros.
    """
    clustering, clusters = Clustering.of(method, before), method.count_clusters(after)
    centres = _centres(clustering, clusters, after, updates, assignment)
    people = (clustering.compute_vector(update) for update in updates)
    size = len(next(iter(centres.values())))
    of_clusters = (
        centres.get(k, np.zeros(size)).astype(np.float32) for k in range(clusters)
    )
    return compute_inner_products(chain(people, of_clusters))


def _finite(value: float | None) -> float | None:
    """A number that JSON can hold, or None: models that diverge have distances beyond float64."""
    return value if value is not None and math.isfinite(value) else None
