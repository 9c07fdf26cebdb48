# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning of the number of clusters (FedAC Alg. 3): too tight clusters are merged, too loose ones are split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cfl_flare.core.arrays import Archive
from cfl_flare.core.params import Layout, Params, weighted_mean

Halves = Callable[[Sequence[str]], tuple[list[str], list[str]]]


class LatestModels:
    """The latest known model of each participant, in an archive; one at a time is in memory.

    Its ``versions`` are, by participant, the round of its model and its number of samples.
    """

    def __init__(self, archive: Archive, layout: Layout, versions: Mapping[str, tuple[int, float]]):
        self._archive, self._layout, self.versions = archive, layout, versions

    def keep(self, name: str, model: Params) -> None:
        """Writes a participant's model, as of the round in ``versions``."""
        version, _ = self.versions[name]
        self._archive.put(f"model of {name}", version, model.vector)
        if len(model.counters):
            self._archive.put(f"counters of {name}", version, model.counters)

    def parameters(self, name: str) -> np.ndarray:
        """A model's parameters without buffers, ``(parameter_size,)``, memory-mapped."""
        return self.model(name).vector[: self._layout.parameter_size]

    def model(self, name: str) -> Params:
        """A model, memory-mapped."""
        version, _ = self.versions[name]
        vector = self._archive.get(f"model of {name}", version)
        if not self._layout.counter_size:
            return Params(self._layout, vector)
        return Params(self._layout, vector, self._archive.get(f"counters of {name}", version))

    def mean(self, names: Sequence[str], weighting: str, otherwise: Params) -> Params:
        """The mean of some models, weighted by ``"samples"`` or uniform; ``otherwise`` if there are none."""
        return weighted_mean(((self.model(name), self.weight([name], weighting)) for name in names), otherwise)

    def weight(self, names: Sequence[str], weighting: str) -> float:
        return float(sum(self.versions[name][1] for name in names) if weighting == "samples" else len(names))

    def spread(self, names: Sequence[str], centre: Params) -> float:
        """Mean squared distance from some participants' parameters to those of a centre."""
        middle = centre.part("all").astype(np.float64)
        return float(np.mean([np.square(self.parameters(name) - middle).sum() for name in names]))


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
