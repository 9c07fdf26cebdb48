# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters of too few sites: a model that a single hospital has trained reveals something of its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cfl_flare.clustering.kmeans import nearest
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update
from cfl_flare.methods.state import Download, Mapped
from cfl_flare.methods.wrapper import Clustering


def small_clusters(assignment: Assignment, participants: Mapping[str, Participant], fewest: int) -> list[int]:
    """The clusters in use whose members are at fewer than ``fewest`` sites.

    >>> people = {n: Participant(n, site, 1) for n, site in (("a", "one"), ("b", "two"), ("c", "one"))}
    >>> small_clusters({"a": 0, "b": 0, "c": 4}, people, 2)
    [4]
    """
    sites: dict[int, set[str]] = {}
    for name, cluster in assignment.items():
        if name in participants:
            sites.setdefault(cluster, set()).add(participants[name].site)
    return sorted(cluster for cluster, there in sites.items() if len(there) < fewest)


def merged(
    method: Method,
    before: ServerState,
    updates: Sequence[Update],
    assignment: Assignment,
    participants: Mapping[str, Participant],
    fewest: int,
) -> Assignment:
    """The assignment without small clusters: each of their members moves to the nearest of the other clusters.

    Distances are between a participant's vector (`Method.vector`) and the mean vector of a cluster's members in this
    round. If there is no other cluster, the assignment stays as it is.

    Args:
        method: one whose M-step accepts any assignment.
        before: the state before the round.
        updates: the round's; read twice.
        assignment: their clusters.
        participants: all of the run's.
        fewest: the number of sites that a cluster needs.
    """
    small = set(small_clusters({**before.assignment, **assignment}, participants, fewest))
    if not assignment or not small:
        return assignment
    clustering = Clustering.of(method, before)
    sums: dict[int, np.ndarray] = {}
    counts: dict[int, int] = {}
    for update in updates:
        cluster = assignment[update.participant]
        if cluster not in small:
            sums[cluster] = sums.get(cluster, 0.0) + clustering.vector(update).astype(np.float64)
            counts[cluster] = counts.get(cluster, 0) + 1
    if not sums:
        return assignment
    others = sorted(sums)
    means = np.stack([sums[k] / counts[k] for k in others])
    moved = {
        u.participant: others[int(nearest(clustering.vector(u)[None], means)[0])]
        for u in updates
        if assignment[u.participant] in small
    }
    return {**assignment, **moved}


def without_chosen(
    updates: Sequence[Update], assignment: Assignment, downloads: Mapping[str, Download]
) -> tuple[Sequence[Update], set[int]]:
    """Removes what participants trained of clusters that they chose themselves and that merging has closed.

    If participants choose on the site, a merged participant has trained the model of a cluster that it is no longer
    in: that difference is dropped, and nobody may choose the cluster again.

    Returns:
        The updates, and the clusters to close.
    """
    overruled = {u.participant: u.cluster for u in updates if u.cluster not in (None, assignment.get(u.participant))}
    if not overruled:
        return updates, set()

    def seen(update: Update) -> Update:
        if update.participant not in overruled:
            return update
        dropped = {update.main, downloads[update.participant].joined.get(str(update.main))}
        return replace(update, diffs={slot: d for slot, d in update.diffs.items() if slot not in dropped})

    return Mapped(updates, seen), {cluster for cluster in overruled.values() if cluster is not None}


def closing(state: ServerState, clusters: set[int]) -> ServerState:
    """The state in which nobody may choose these clusters again."""
    if not clusters:
        return state
    return replace(state, extras={**state.extras, "closed": sorted(state.closed | clusters)})
