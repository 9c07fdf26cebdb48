# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps a few hostile participants from moving the others' models: between a round's updates and its method.

No method knows of it. Updates are clipped, those far from all others are left out, weights are capped; and where a
cluster's mean should be a robust one, each of its updates is replaced by the one that leads to that: their weighted
mean, which the method then computes, is the robust statistic itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cfl_flare.clustering.robust import capped, coordinate_median, isolated, multi_krum, trimmed_mean
from cfl_flare.core.config import require
from cfl_flare.core.params import Params
from cfl_flare.engine.min_cluster_size import held_back
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update
from cfl_flare.methods.state import Mapped, heads, without
from cfl_flare.methods.wrapper import Clustering

# Which updates are averaged with each other: a cluster's id, or the name of a slot.
Group = int | str


def check_robust(method: Method, settings: ServerSettings) -> None:
    """Raises a ConfigError if the method's M-step is not made of means, and the run asks for another statistic."""
    averages = method.traits.averages_only or method.traits.mergeable
    require(
        settings.aggregation == "mean" or averages,
        f"run: aggregation = {settings.aggregation!r} replaces means inside clusters, but method {method.label} "
        "computes more than means; leave it out, and clip_norm and reject_outliers still work",
    )


class Norms:
    """How far a round's updates moved, and which of them moved too far."""

    def __init__(self) -> None:
        self._norms: dict[tuple[str, str], dict[str, float]] = {}

    def add(self, update: Update) -> None:
        """Notes an update's norms: of the parameters and of the buffers, of its main model and of each other one."""
        for slot, diff in update.diffs.items():
            for part, vector in _parts(diff):
                norm = float(np.linalg.norm(vector))  # no value is so large that its square is not finite
                self._norms.setdefault(_kind(update, slot, part), {})[update.participant] = norm

    def excess(self, bound: float) -> dict[tuple[str, str], dict[str, float]]:
        """How many times further than ``bound`` medians some participants moved; others are not in it.

        Of an even number the lower median is taken: among two, the honest one may be the one that moved less.
        """
        found: dict[tuple[str, str], dict[str, float]] = {}
        for kind, norms in self._norms.items():
            most = bound * sorted(norms.values())[(len(norms) - 1) // 2]
            far = {name: norm / most for name, norm in norms.items() if norm > most > 0}
            found |= {kind: far} if far else {}
        return found


def clipped(updates: Sequence[Update], excess: Mapping[tuple[str, str], Mapping[str, float]]) -> Sequence[Update]:
    """The updates, those that moved too far scaled down to the bound."""

    def seen(update: Update) -> Update:
        diffs = dict(update.diffs)
        for slot, diff in update.diffs.items():
            parts = []
            for part, vector in _parts(diff):
                times = excess.get(_kind(update, slot, part), {}).get(update.participant)
                parts.append(vector if times is None else vector / np.float32(times))
            diffs[slot] = replace(diff, vector=np.concatenate(parts))
        return replace(update, diffs=diffs)

    far = {name for names in excess.values() for name in names}
    return Mapped(updates, lambda u: seen(u) if u.participant in far else u) if far else updates


def _parts(diff: Params) -> tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]:
    """Parameters and float buffers, whose sizes have nothing to do with each other."""
    end = diff.layout.parameter_size
    return ("parameters", diff.vector[:end]), ("buffers", diff.vector[end:])


def _kind(update: Update, slot: str, part: str) -> tuple[str, str]:
    return ("main" if slot == update.main else slot, part)


class Guard:
    """The defences of a run between a round's updates and its method.

    Args:
        method: the run's.
        settings: which defences.
        participants: all of the run's.

    Attributes:
        notes: for the round's record: participants whose models were held back in a small cluster, or were left out of
            its robust statistic.
    """

    def __init__(self, method: Method, settings: ServerSettings, participants: Mapping[str, Participant]):
        check_robust(method, settings)
        self.notes: dict[str, list[str]] = {}
        self._method, self._settings, self._participants = method, settings, participants

    def outliers(self, before: ServerState, updates: Sequence[Update]) -> dict[str, float]:
        """Participants whose model is far from all others, and how many times too far; see `isolated`."""
        if not self._settings.reject_outliers:
            return {}
        clustering, traits = Clustering.of(self._method, before), self._method.traits
        server_compares = bool(self._method.clusters) and not traits.assigns_on_site
        if server_compares and traits.compares_models:  # but not in CAM's warm-up
            server_compares = all(clustering.seen(u).diffs for u in heads(updates) if u.diffs)
        names, rows = [], []
        for update in updates:
            if update.diffs or update.arrays:
                names.append(update.participant)
                rows.append(clustering.vector(update) if server_compares else _parts(update.main_diff)[0][1])
        return {names[i]: times for i, times in isolated(rows, self._settings.byzantine).items()}

    def weighed(self, updates: Sequence[Update], assignment: Assignment | None = None) -> Sequence[Update]:
        """The updates with weights of which no site's is too large a share of its cluster's, or of all."""
        share = self._settings.max_weight_share
        if share is None:
            return updates
        weights: dict[int | None, dict[str, dict[str, float]]] = {}
        for update in heads(updates):
            cluster = None if assignment is None else assignment.get(update.participant)
            site = self._participants[update.participant].site
            weights.setdefault(cluster, {}).setdefault(site, {})[update.participant] = self._method.weight(update)
        new: dict[str, float] = {}
        for sites in weights.values():
            totals = {site: sum(own.values()) for site, own in sites.items()}
            allowed = capped(totals, share)
            for site, own in sites.items():
                factor = allowed[site] / totals[site] if totals[site] else 1.0
                new |= {name: weight * factor for name, weight in own.items()}
        return Mapped(updates, lambda update: replace(update, weight=new[update.participant]))

    def averaged(self, before: ServerState, updates: Sequence[Update], assignment: Assignment) -> Sequence[Update]:
        """The updates as the M-step takes them; ``notes`` then say whose are not in its models."""
        self.notes = {}
        if self._settings.hold_small_clusters:
            held = held_back(heads(updates), assignment, self._participants, self._settings.floor)
            updates = without(updates, held)
            self.notes |= {"held_back": sorted(held)} if held else {}
        return self._robust(before, self.weighed(updates, assignment), assignment)

    def _robust(self, before: ServerState, updates: Sequence[Update], assignment: Assignment) -> Sequence[Update]:
        """Replaces each update by the one that leads its model to the robust statistic of its cluster.

        All models of the round are held in memory.
        """
        if self._settings.aggregation == "mean":
            return updates
        members: dict[Group, list[tuple[str, np.ndarray, float]]] = {}
        for update in updates:
            for slot, diff in update.diffs.items():
                model = (before.bank[slot] + diff).vector
                group = members.setdefault(_group(update, slot, assignment), [])
                group.append((update.participant, model, self._method.weight(update)))
        left_out: set[str] = set()
        models = {group: self._statistic(own, left_out) for group, own in members.items()}
        self.notes |= {"left_out": sorted(left_out)} if left_out else {}

        def seen(update: Update) -> Update:
            diffs = {}
            for slot, diff in update.diffs.items():
                vector = models[_group(update, slot, assignment)] - before.bank[slot].vector
                diffs[slot] = replace(diff, vector=vector, present=None)
            return replace(update, diffs=diffs)

        return Mapped(updates, seen)

    def _statistic(self, members: Sequence[tuple[str, np.ndarray, float]], left_out: set[str]) -> np.ndarray:
        rows, hostile = [row for _, row, _ in members], self._settings.byzantine
        if self._settings.aggregation == "median":
            return coordinate_median(rows)
        if self._settings.aggregation == "trimmed_mean":
            return trimmed_mean(rows, hostile)
        kept = multi_krum(rows, hostile)
        left_out.update(name for i, (name, _, _) in enumerate(members) if i not in kept)
        weights = np.array([members[i][2] for i in kept])
        return np.average([rows[i] for i in kept], axis=0, weights=weights).astype(np.float32)


def _group(update: Update, slot: str, assignment: Assignment) -> Group:
    """With which other updates this one's model is averaged: its cluster's, or those of the same slot."""
    return assignment.get(update.participant, slot) if slot == update.main else slot
