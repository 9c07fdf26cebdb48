# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters of too few sites: a model that one hospital alone has trained tells of that hospital's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cfl_flare.clustering.kmeans import nearest
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update


def small_clusters(assignment: Assignment, participants: Mapping[str, Participant], fewest: int) -> list[int]:
    """The clusters in use whose members are at fewer sites than that.

    >>> people = {n: Participant(n, site, 1) for n, site in (("a", "one"), ("b", "two"), ("c", "one"))}
    >>> small_clusters({"a": 0, "b": 0, "c": 4}, people, 2)
    [4]
    """
    sites: dict[int, set[str]] = {}
    for name, cluster in assignment.items():
        if name in participants:
            sites.setdefault(cluster, set()).add(participants[name].site)
    return sorted(cluster for cluster, there in sites.items() if len(there) < fewest)


def regrouped(
    method: Method,
    state: ServerState,
    updates: Sequence[Update],
    assignment: Assignment,
    participants: Mapping[str, Participant],
    fewest: int,
) -> Assignment:
    """The assignment with no small cluster: each of their members goes to the nearest of the others.

    Near is what `Method.features` of the trained models says, and an other cluster is where its members of this round
    are, on average. Where there is no other one, all stays as it is.

    Args:
        method: one whose M-step takes any assignment.
        state: before the round.
        updates: the round's; read twice.
        assignment: their clusters.
        participants: all of the run's.
        fewest: sites of a cluster.
    """
    small = set(small_clusters({**state.assignment, **assignment}, participants, fewest))
    if not assignment or not small:
        return assignment
    sums: dict[int, np.ndarray] = {}
    counts: dict[int, int] = {}
    for update in updates:
        cluster = assignment[update.participant]
        if cluster not in small:
            features = method.features(method.clustered(state, update)).astype(np.float64)
            sums[cluster] = sums.get(cluster, 0.0) + features
            counts[cluster] = counts.get(cluster, 0) + 1
    if not sums:
        return assignment
    others = sorted(sums)
    means = np.stack([sums[k] / counts[k] for k in others])
    moved = {
        u.participant: others[int(nearest(method.features(method.clustered(state, u))[None], means)[0])]
        for u in updates
        if assignment[u.participant] in small
    }
    return {**assignment, **moved}
