# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters of too few sites or samples: a model that a single hospital has trained reveals something of its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from cfl_flare.clustering.kmeans import nearest
from cfl_flare.core.config import require
from cfl_flare.engine.settings import Floor, ServerSettings
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update
from cfl_flare.methods.state import Download, Mapped
from cfl_flare.methods.wrapper import Clustering

K = TypeVar("K")


class Sizes(Generic[K]):
    """The sites and samples of groups of participants.

    Args:
        members: the participants of each group.
        participants: all of the run's.
    """

    def __init__(self, members: Iterable[tuple[str, K]], participants: Mapping[str, Participant]):
        self.sites: dict[K, set[str]] = {}
        self.samples: dict[K, int] = {}
        for name, group in members:
            if name in participants:
                self.sites.setdefault(group, set()).add(participants[name].site)
                self.samples[group] = self.samples.get(group, 0) + participants[name].samples

    def below(self, floor: Floor) -> list[K]:
        """The groups that are too small."""
        return [g for g, there in self.sites.items() if len(there) < floor.sites or self.samples[g] < floor.samples]


def small_clusters(assignment: Assignment, participants: Mapping[str, Participant], floor: Floor) -> list[int]:
    """The clusters in use whose members are at too few sites, or have too few samples.

    >>> people = {n: Participant(n, site, 1) for n, site in (("a", "one"), ("b", "two"), ("c", "one"))}
    >>> small_clusters({"a": 0, "b": 0, "c": 4}, people, Floor(2, 1))
    [4]
    """
    return sorted(Sizes(assignment.items(), participants).below(floor))


def check_floor(
    method: Method, state: ServerState, settings: ServerSettings, participants: Sequence[Participant]
) -> None:
    """Checks that a run can go on with the size that it asks of its clusters; without models on the server, any can.

    Raises:
        ConfigError: the method cannot merge clusters, or all sites together are too few.
    """
    floor, sites, samples = settings.floor, len({p.site for p in participants}), sum(p.samples for p in participants)
    traits = method.traits
    require(
        traits.mergeable or not settings.merge_small_clusters,
        f"run: merge_small_clusters: method {method.label} cannot merge clusters; leave it out, and "
        "min_sites_per_cluster still reports small ones",
    )
    if not settings.hold_small_clusters or not state.bank:
        return
    require(
        traits.mergeable or traits.averages_only,
        f"run: min_sites_per_cluster = {floor.sites}: method {method.label} computes more than means of models, so "
        "that a model of fewer sites cannot be held back; take another method, or set min_sites_per_cluster and "
        "min_samples_per_cluster to 1 in the job if the hospitals agree that others may see models of one of them",
    )
    require(
        sites >= floor.sites and samples >= floor.samples,
        f"run: a model needs {floor.sites} sites (min_sites_per_cluster) and {floor.samples} training samples "
        f"(min_samples_per_cluster), but all that take part are {sites} sites with {samples}; wait for more, or lower "
        "the two in the job if the hospitals agree that others may see models of fewer",
    )


def merged(
    method: Method,
    before: ServerState,
    updates: Sequence[Update],
    assignment: Assignment,
    participants: Mapping[str, Participant],
    floor: Floor,
) -> Assignment:
    """The assignment without small clusters: each of their members moves to the nearest of the other clusters.

    Distances are between a participant's vector (`Method.vector`) and the mean vector of a cluster's members in this
    round. If all clusters are small, all their members move into the largest, if that is then large enough; else the
    assignment stays as it is.

    Args:
        method: one whose M-step accepts any assignment.
        before: the state before the round.
        updates: the round's; read twice.
        assignment: their clusters.
        participants: all of the run's.
        floor: what a cluster needs.
    """
    everyone = {**before.assignment, **assignment}
    small = set(small_clusters(everyone, participants, floor))
    if not assignment or not small:
        return assignment
    if small == set(everyone.values()):
        together = dict.fromkeys(everyone, min(small))
        if small_clusters(together, participants, floor):
            return assignment
        sizes = Sizes(everyone.items(), participants)
        largest = max(sorted(small), key=lambda k: (len(sizes.sites[k]), sizes.samples[k]))
        return dict.fromkeys(assignment, largest)
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


def held_back(
    updates: Iterable[Update], assignment: Assignment, participants: Mapping[str, Participant], floor: Floor
) -> set[str]:
    """The participants whose updates are kept out of a round, as too few sites trained what they trained.

    A mean over few sites is those sites' model, even in a cluster that has more: others may not take part in the round.
    It counts who trained the same model and is in the same cluster; a site's sums count for that site.
    """
    members: list[tuple[str, tuple[int | None, str]]] = []
    carried: dict[str, str] = {}
    for u in updates:
        members += [(u.participant, (assignment.get(u.participant), slot)) for slot in u.diffs]
        carried |= {} if u.carrier is None else {u.participant: u.carrier}
    samples = {name: p.samples for name, p in participants.items()}
    for name, carrier in carried.items():
        samples[carrier] += samples[name]
    counted = {name: replace(p, samples=samples[name]) for name, p in participants.items()}
    small = set(Sizes(members, counted).below(floor))
    found = {name for name, group in members if group in small}
    return found | {name for name, carrier in carried.items() if carrier in found}


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
