# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters and means of too few sites or samples: the model of a single hospital reveals something of its data."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from cfl_flare.clustering.floor import Census, Floor
from cfl_flare.clustering.kmeans import compute_squared_distances
from cfl_flare.clustering.measures import compute_points
from cfl_flare.core.config import require
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update
from cfl_flare.methods.state import read_heads
from cfl_flare.methods.wrapper import Clustering
from cfl_flare.results.remarks import (
    MOVED,
    POSSIBLE,
    SMALL,
    fewer_clusters,
    floor_in_round,
)

logger = logging.getLogger(__name__)
# A search's assignment that may cost so much more than the cheapest one, as a part of that, is as good as that.
SMALLEST_GAP = 0.001
K = TypeVar("K")
ROUNDED = 1e-6  # a share that is capped is not larger than its cap


def census_of(participants: Iterable[Participant], floor: Floor) -> Census:
    """Who is where, and what a cluster needs; a script's weight, which may be a share, counts as one sample or more."""
    everyone = {p.name: p for p in participants}
    samples = {name: math.ceil(p.samples) for name, p in everyone.items()}
    return Census(floor, {name: p.site for name, p in everyone.items()}, samples)


class ClusterFloor:
    """The floor of a run's clusters: what it asks, and what it changes in a round; participants join in place."""

    def __init__(
        self,
        method: Method,
        settings: ServerSettings,
        participants: Mapping[str, Participant],
    ):
        self._method, self._settings, self._participants = (
            method,
            settings,
            participants,
        )
        self._logged = ""
        self.renew()
        if self.possible < method.clusters:
            logger.warning(
                "%s",
                fewer_clusters(self.possible, method.clusters, settings.floor.words),
            )

    def renew(self) -> None:
        """Counts who takes part in the coming round."""
        floor, merges = (
            self._settings.floor,
            self._settings.merge_small_clusters is not False,
        )
        fills_up = merges and floor != Floor(1, 1)
        self._census = (
            census_of(self._participants.values(), floor) if fills_up else None
        )

    @property
    def possible(self) -> int:
        return self.shown_to(ServerState({})).count_possible(self._method.clusters)

    def shown_to(self, state: ServerState) -> ServerState:
        """A state from which a method can ask what its clusters need."""
        return replace(state, census=self._census)

    def _small(self, state: ServerState) -> list[int]:
        census = census_of(self._participants.values(), self._settings.floor)
        return sorted(census.small(state.assignment.items()))

    def changes(self, after: ServerState, notes: Mapping[str, Any]) -> dict[str, Any]:
        """The changes by the floor in the round that led to a state, for its record with ``notes``; one is logged."""
        floor = self._settings.floor
        if floor == Floor(1, 1):
            return {}
        moved = {} if self._census is None else self._census.moved
        changed = {SMALL: self._small(after), **({MOVED: dict(moved)} if moved else {})}
        words = floor_in_round({**changed, **notes})
        gap = (
            self._census.gaps[-1]
            if self._census is not None and self._census.gaps
            else 0.0
        )
        if words and gap > SMALLEST_GAP:
            words = f"{words}; the assignment costs at most {gap:.1%} more than the cheapest one"
        if (
            words and words != self._logged
        ):  # a site that stays away holds the same models back in each round
            logger.info(
                "round %d, at least %s a cluster: %s",
                after.round - 1,
                floor.words,
                words,
            )
        self._logged = words
        return changed

    def facts(self, state: ServerState) -> dict[str, Any]:
        few = {POSSIBLE: self.possible} if self.possible < self._method.clusters else {}
        return {SMALL: self._small(state), **few}


def check_floor(
    method: Method,
    state: ServerState,
    settings: ServerSettings,
    participants: Sequence[Participant],
) -> None:
    """Raises a ConfigError if a model cannot be held back, or all sites together are fewer than one needs.

    Without models on the server, any run can go on.
    """
    floor, sites, samples = (
        settings.floor,
        len({p.site for p in participants}),
        sum(p.samples for p in participants),
    )
    traits = method.traits
    if not settings.hold_small_clusters or not state.bank:
        return
    require(
        traits.mergeable or traits.averages_only,
        f"run: min_sites_per_cluster = {floor.sites}: method {method.label} computes more than means of models, so "
        "that a model of fewer sites cannot be held back; take another method, or set min_sites_per_cluster and "
        "min_samples_per_cluster to 1 in the job if the hospitals agree that others may see models of one of them",
    )
    raised = floor.sites != settings.min_sites_per_cluster
    robust = (
        f" and what aggregation = {settings.aggregation!r} leaves out" if raised else ""
    )
    require(
        sites >= floor.sites and samples >= floor.samples,
        f"run: a model needs {floor.sites} sites (min_sites_per_cluster{robust}) and {floor.samples} training samples "
        f"(min_samples_per_cluster), but all that take part are {sites} sites with {samples}; wait for more, or lower "
        "the two in the job if the hospitals agree that others may see models of fewer",
    )


def under_floor(
    method: Method,
    before: ServerState,
    updates: Sequence[Update],
    assignment: Assignment,
) -> Assignment:
    """The assignment of a method that left a cluster too small: the cheapest one without small clusters.

    Methods of this package ask `ServerState.sizes` while they assign, and leave nothing to do but where a participant
    joins late. Costs are squared distances of a participant's vector (`Method.compute_vector`) to a cluster: to the
    mean vector of its members in this round, or to its centre if all are absent. Where participants choose
    themselves, or the M-step takes no other assignment, it stays as it is.
    """
    census = before.census
    if census is None or not assignment or not method.traits.mergeable:
        return assignment
    everyone = {**before.assignment, **assignment}
    chosen = any(u.cluster is not None for u in read_heads(updates))
    if chosen or not census.small(everyone.items()):
        return assignment
    clustering, names = (
        Clustering.of(method, before),
        [u.participant for u in read_heads(updates)],
    )
    labels = np.array([assignment[name] for name in names])

    def costs() -> np.ndarray:
        clusters = sorted(set(everyone.values()))
        absent = {k: clustering.centre(before, k) for k in clusters if k not in labels}
        centres = {k: centre for k, centre in absent.items() if centre is not None}
        at = compute_points(
            chain(map(clustering.compute_vector, updates), centres.values())
        )
        means = dict(zip(centres, at[len(names) :]))
        means |= {
            k: at[: len(names)][labels == k].mean(axis=0, dtype=np.float64)
            for k in clusters
            if k in labels
        }
        distances = np.full((len(names), clusters[-1] + 1), np.inf)
        for k, mean in means.items():
            distances[:, k] = compute_squared_distances(
                at[: len(names)], mean[None], np.ones(len(names))
            )[:, 0]
        return distances

    placed = census.of(names, before.assignment).assigned(labels, costs)
    return {**assignment, **dict(zip(names, placed.tolist()))}


def small_means(
    updates: Iterable[Update],
    counted: Iterable[tuple[str, K, float]],
    participants: Mapping[str, Participant],
    floor: Floor,
    largest_share: float = 1.0,
) -> set[K]:
    """The names of a round's means that too few sites make, or of too few samples, or in which one site counts most.

    A mean over few sites is those sites' model, even of a cluster that has more: others may not take part in the round.
    A site's sums count for that site.

    Args:
        counted: participants, a mean in which a model of theirs counts, and its weight there.
        largest_share: what a site may have of a mean's weight.
    """
    sites: dict[K, dict[str, float]] = {}
    members: set[tuple[str, K]] = set()
    for name, mean, weight in counted:
        site = participants[name].site
        weights = sites.setdefault(mean, {})
        weights[site] = weights.get(site, 0.0) + weight
        members.add((name, mean))
    most = {
        k
        for k, of in sites.items()
        if max(of.values()) > largest_share * sum(of.values()) * (1 + ROUNDED)
    }
    samples = {name: p.samples for name, p in participants.items()}
    for update in updates:
        if update.carrier is not None:
            samples[update.carrier] += samples[update.participant]
    everyone = [replace(p, samples=samples[name]) for name, p in participants.items()]
    return most | census_of(everyone, floor).small(members)
