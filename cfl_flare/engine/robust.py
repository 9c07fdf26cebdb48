# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps a few hostile participants from moving the others' models: between a round's updates and its method.

No method knows of it. Updates were clipped before (see `clipping`). Those far from all others, or opposed to them, are
left out, and weights are capped. Where a cluster's mean should be a robust one, each of its updates is replaced by the
one that leads to that: their weighted mean, which the method then computes, is the robust statistic itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cfl_flare.clustering.floor import LARGEST_SHARE, Floor
from cfl_flare.clustering.robust import (
    compute_median,
    compute_trimmed_mean,
    find_isolated,
    find_opposed,
    select_by_krum,
)
from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.shares import bounded_weights, sums_by
from cfl_flare.engine.clipping import list_layers
from cfl_flare.engine.min_cluster_size import ROUNDED, small_means
from cfl_flare.engine.settings import FEWEST_RANKED, ServerSettings
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update
from cfl_flare.methods.state import Counts, Mapped, leave_out, read_heads
from cfl_flare.methods.wrapper import Clustering
from cfl_flare.results.remarks import ARRAYS, CAPPED

# A participant, the slot that it trained, the mean in which that counts: by these, the weights of a round.
Counted = tuple[str, str, str]
# By participant: its share of a mean by its own weight, and the lower one that it has.
Lowered = dict[str, list[float]]
# A participant, its model's vector, its weight in a mean.
Member = tuple[str, np.ndarray, float]


def check_robust(
    method: Method,
    settings: ServerSettings,
) -> None:
    """Raises a ConfigError if the method's M-step is not made of means, and the run asks for another statistic.

    Args:
        method: the method.
        settings: the settings of the run.
    """
    averages = method.traits.averages_only or method.traits.mergeable
    require(
        settings.aggregation == "mean" or averages,
        f"run: aggregation = {settings.aggregation!r} replaces means inside clusters, but method {method.label} "
        "computes more than means, or declares neither averages_only nor mergeable in its traits; leave it out, and "
        "clip_norm and reject_outliers still work",
    )


class Guard:
    """The defences of a run between a round's updates and its method.

    Attributes:
        notes: for the round's record: participants whose models were held back in a small cluster, or were left out of
            its robust statistic, and those whose share of a mean was lowered.
    """

    def __init__(
        self,
        method: Method,
        settings: ServerSettings,
        participants: Mapping[str, Participant],
    ):
        check_robust(method, settings)
        self.notes: dict[str, Any] = {}
        self._method = method
        self._settings = settings
        self._participants = participants

    def outliers(
        self,
        before: ServerState,
        updates: Sequence[Update],
    ) -> dict[str, str]:
        """Up to ``byzantine`` participants to leave out, and why.

        First those that are isolated: by what the method compares, or in any layer of what they learned. Then those
        opposed to the others that trained the same model. The rows are in memory; the cost is linear in their length.

        Args:
            before: the server's state when the models were sent.
            updates: the updates of the round.
        """
        if not self._settings.reject_outliers:
            return {}
        far = self._isolated(before, updates)
        reasons = {
            name: f"its model is {far[name]:.3g} times as far from all others as is usual"
            for name in far
        }
        trained: dict[str, list[tuple[str, Params]]] = {}
        for update in updates:
            if update.diffs and update.participant not in far:
                trained.setdefault(update.main_slot, []).append(
                    (update.participant, update.main_diff)
                )
        cosines: dict[str, float] = {}
        for members in trained.values():
            layout = members[0][1].layout
            layers = [
                place
                for place in list_layers(layout).values()
                if place.stop <= layout.parameter_size
            ]
            against = find_opposed(
                [diff.vector for _, diff in members], self._settings.byzantine, layers
            )
            cosines |= {members[i][0]: cosine for i, cosine in against.items()}
        for name, cosine in sorted(cosines.items(), key=lambda item: item[1]):
            reasons[name] = (
                f"its update is opposed to the others of its cluster (cosine {cosine:.2f})"
            )
        return dict(list(reasons.items())[: self._settings.byzantine])

    def _isolated(
        self,
        before: ServerState,
        updates: Sequence[Update],
    ) -> dict[str, float]:
        """Participants far from all others, and how many times too far, the furthest first; see `find_isolated`."""
        clustering = Clustering.of(self._method, before)
        traits = self._method.traits
        server_compares = bool(self._method.clusters) and not traits.assigns_on_site
        if server_compares and traits.compares_models:  # but not in CAM's warm-up
            server_compares = all(
                clustering.seen(u).diffs for u in read_heads(updates) if u.diffs
            )
        rows: dict[Layout | None, dict[str, np.ndarray]] = {}
        for update in updates:
            if server_compares and (
                update.diffs if traits.compares_models else update.arrays
            ):
                rows.setdefault(None, {})[update.participant] = (
                    clustering.compute_vector(update)
                )
            if update.diffs:
                rows.setdefault(update.main_diff.layout, {})[update.participant] = (
                    update.main_diff.vector
                )
        far: dict[str, float] = {}
        for layout, of in rows.items():
            layers = None if layout is None else list(list_layers(layout).values())
            isolation = find_isolated(
                list(of.values()), self._settings.byzantine, layers
            )
            for i, times in isolation.items():
                name = list(of)[i]
                far[name] = max(times, far.get(name, times))
        return dict(
            sorted(far.items(), key=lambda item: -item[1])[: self._settings.byzantine]
        )

    def weighed(self, updates: Sequence[Update]) -> Sequence[Update]:
        """The updates as the E-step takes them; no site has too large a share of their weights.

        Args:
            updates: the updates of the round.
        """
        if self._settings.max_weight_share is None:
            return updates
        weights = {u.participant: self._method.weight(u) for u in read_heads(updates)}
        bounded = bounded_weights(weights, self._sites, self._settings.max_weight_share)
        return Mapped(
            updates, lambda update: replace(update, weight=bounded[update.participant])
        )

    def averaged(
        self,
        before: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> Sequence[Update]:
        """The updates as the M-step takes them, with the means in which they count.

        ``notes`` then say whose models are not in the round's means.

        Args:
            before: the server's state when the models were sent.
            updates: the updates of the round.
            assignment: the cluster of each participant.
        """
        self.notes = {}
        weights: dict[Counted, float] = {}
        for update in read_heads(updates):
            weights |= self._weights(before, update, assignment)
        if self._settings.hold_small_clusters:
            updates, weights = self._held_back(updates, weights)
        weights, lowered = bound_means(weights, self._sites, self._settings)
        self.notes |= {CAPPED: lowered} if lowered else {}
        if self._settings.hold_small_clusters:
            updates = self._arrays_held_back(updates, weights)
        counts: dict[str, dict[str, tuple[str, float]]] = {}
        for (name, slot, mean), weight in weights.items():
            counts.setdefault(name, {})[slot] = (mean, weight)
        return self._robust(
            before, Mapped(updates, lambda update: _counting(update, counts))
        )

    def _weights(
        self,
        before: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> dict[Counted, float]:
        """The weights that the method gives an update.

        Raises a ConfigError if one is not of this update, or moves a site's sum, which is of models of one slot.
        """
        counts = self._method.counts_in(before, update, assignment)
        name = update.participant
        where = f"method {self._method.label}: counts_in"
        unknown = sorted(counts.keys() - update.diffs.keys())
        require(not unknown, f"{where} names {unknown}, which {name} did not train")
        for slot, (mean, weight) in counts.items():
            valid = 0 <= weight < float("inf")
            require(
                valid,
                f"{where} gives {name}'s {slot} the weight {weight} in {mean}; it should be >= 0",
            )
            stays = update.weight is None or mean == slot
            require(
                stays,
                f"{where} moves sums of a site from {slot} to {mean}; set site_sums = False",
            )
        return {
            (name, slot, mean): weight
            for slot, (mean, weight) in counts.items()
            if weight
        }

    def _held_back(
        self,
        updates: Sequence[Update],
        weights: Mapping[Counted, float],
    ) -> tuple[Sequence[Update], dict[Counted, float]]:
        """Leaves out the means that too few sites make, and the participants whose models count nowhere then."""
        members: dict[str, dict[str, float]] = {}
        for (name, _, mean), weight in weights.items():
            members.setdefault(mean, {})[name] = weight
        counted = ((name, mean, weight) for (name, _, mean), weight in weights.items())
        small = small_means(
            read_heads(updates), counted, self._participants, self._settings.floor
        )
        held = {name for mean in small for name in members[mean]}
        held |= {u.participant for u in read_heads(updates) if u.carrier in held}
        self.notes |= {"held_back": sorted(held)} if held else {}
        left = {
            counted: weight
            for counted, weight in weights.items()
            if counted[2] not in small
        }
        return leave_out(updates, held - {name for name, _, _ in left}), left

    def _arrays_held_back(
        self,
        updates: Sequence[Update],
        weights: Mapping[Counted, float],
    ) -> Sequence[Update]:
        """Takes out arrays that sites' filters have left to too few sites, or mostly to one."""
        diffs = {
            (u.participant, slot): diff
            for u in read_heads(updates)
            for slot, diff in u.diffs.items()
        }
        if all(diff.present is None for diff in diffs.values()):
            return updates
        counted: list[
            tuple[str, tuple[str, str], float]
        ] = []  # participant, array of a mean, weight
        for (name, slot, mean), weight in weights.items():
            diff = diffs[name, slot]
            for i, entry in enumerate(diff.layout.entries):
                if diff.present is None or diff.present[i]:
                    counted.append((name, (mean, entry.name), weight))
        small = small_means(
            read_heads(updates),
            counted,
            self._participants,
            self._settings.floor,
            self._largest_share,
        )
        if not small:
            return updates
        self.notes[ARRAYS] = sorted({array for _, array in small})
        means = {(name, slot): mean for name, slot, mean in weights}

        def seen(update: Update) -> Update:
            left = {}
            for slot, diff in update.diffs.items():
                mean = means.get((update.participant, slot))
                left[slot] = diff.without({array for of, array in small if of == mean})
            return replace(update, diffs=left)

        return Mapped(updates, seen)

    @property
    def _largest_share(self) -> float:
        """The largest share of a site in the weight of an array, or of the models that a robust statistic uses."""
        share = self._settings.max_weight_share
        bounded = (self._settings.min_sites_per_cluster or 1) > 1
        return max(share, LARGEST_SHARE) if bounded and share is not None else 1.0

    @property
    def _sites(self) -> dict[str, str]:
        return {
            name: participant.site for name, participant in self._participants.items()
        }

    def _robust(
        self,
        before: ServerState,
        updates: Sequence[Update],
    ) -> Sequence[Update]:
        """Replaces each model by the one that leads to the robust statistic of the mean in which it counts.

        All models of the round are held in memory.
        """
        if self._settings.aggregation == "mean":
            return updates
        members: dict[str, list[Member]] = {}
        layers: dict[str, list[slice]] = {}
        for update in updates:
            for slot, (mean, weight) in (update.counts_in or {}).items():
                model = (before.bank[slot] + update.diffs[slot]).vector
                members.setdefault(mean, []).append((update.participant, model, weight))
                layers[mean] = list(list_layers(before.bank[slot].layout).values())
        left_out: set[str] = set()
        used = {
            mean: self._used(of, layers[mean], left_out) for mean, of in members.items()
        }
        if self._settings.hold_small_clusters:
            held = self._too_few(updates, used)
        else:
            held = set()
        models = {
            mean: self._statistic(of) for mean, of in used.items() if mean not in held
        }
        self.notes |= {"left_out": sorted(left_out)} if left_out else {}
        if held:
            names = {name for mean in held for name, _, _ in members[mean]}.union(
                self.notes.get("held_back", ())
            )
            self.notes |= {"held_back": sorted(names)}

        def seen(update: Update) -> Update:
            diffs = dict(update.diffs)
            for slot, (mean, _) in (update.counts_in or {}).items():
                stays = before.bank.get(mean, before.bank[slot]).vector
                vector = models.get(mean, stays) - before.bank[slot].vector
                diffs[slot] = replace(diffs[slot], vector=vector, present=None)
            return replace(update, diffs=diffs)

        return Mapped(updates, seen)

    def _too_few(
        self,
        updates: Sequence[Update],
        used: Mapping[str, Sequence[Member]],
    ) -> set[str]:
        """The means whose robust statistic uses too few sites, or mostly one."""
        floor = Floor(
            self._settings.min_sites_per_cluster or 1, self._settings.floor.samples
        )
        counted = (
            (name, mean, weight)
            for mean, members in used.items()
            for name, _, weight in members
        )
        return small_means(
            read_heads(updates), counted, self._participants, floor, self._largest_share
        )

    def _used(
        self,
        members: Sequence[Member],
        layers: Sequence[slice],
        left_out: set[str],
    ) -> Sequence[Member]:
        if self._settings.aggregation != "krum":
            return members
        selected = select_by_krum(
            [row for _, row, _ in members], self._settings.byzantine, layers
        )
        left_out.update(
            name for i, (name, _, _) in enumerate(members) if i not in selected
        )
        return [members[i] for i in selected]

    def _statistic(self, members: Sequence[Member]) -> np.ndarray:
        rows = [row for _, row, _ in members]
        weights = [weight for _, _, weight in members]
        if self._settings.aggregation == "median":
            return compute_median(rows, weights)
        if self._settings.aggregation == "trimmed_mean":
            return compute_trimmed_mean(rows, self._settings.byzantine, weights)
        return np.average(rows, axis=0, weights=np.array(weights)).astype(np.float32)


def _counting(
    update: Update,
    counts: Mapping[str, Counts],
) -> Update:
    """An update with the models that count, the means in which they do, and its weight in that of its main model."""
    counts_in = counts.get(update.participant, {})
    diffs = {slot: diff for slot, diff in update.diffs.items() if slot in counts_in}
    weight = update.weight
    if update.diffs and update.main_slot in counts_in:
        _, weight = counts_in[update.main_slot]
    return replace(update, diffs=diffs, counts_in=counts_in, weight=weight)


def bound_means(
    weights: Mapping[Counted, float],
    sites: Mapping[str, str],
    settings: ServerSettings,
) -> tuple[dict[Counted, float], Lowered]:
    """Weights in means, lowered until no site has more than ``max_weight_share`` of one, and whose share that lowered.

    In a median or trimmed mean, ``byzantine`` participants have less than half of the weight as well, whatever they
    claim: each has 1 / (2 * byzantine + 1) at most. Where means are held back, nobody has more of a median than one of
    `FEWEST_RANKED` equal participants: of its parameters, about as many are one participant's own.

    Args:
        weights: the weight of each model in each mean.
        sites: the site of each participant.
        settings: the settings of the run.
    """
    fewest = 2 * settings.byzantine + 1
    if settings.aggregation == "median" and settings.hold_small_clusters:
        fewest = max(fewest, FEWEST_RANKED)
    most = 1 / fewest if settings.aggregation in ("median", "trimmed_mean") else None
    means: dict[str, dict[Counted, float]] = {}
    for counted, weight in weights.items():
        means.setdefault(counted[2], {})[counted] = weight
    bounded: dict[Counted, float] = {}
    lowered: Lowered = {}
    for of in means.values():
        places = {counted: sites[counted[0]] for counted in of}
        new = bounded_weights(of, places, settings.max_weight_share)
        names = {counted: counted[0] for counted in of}
        new = bounded_weights(new, names, most)
        bounded |= new
        lowered |= _lowered(sums_by(of, names), sums_by(new, names))
    return bounded, lowered


def _lowered(
    before: Mapping[Hashable, float],
    after: Mapping[Hashable, float],
) -> Lowered:
    totals = [sum(of.values()) or 1.0 for of in (before, after)]
    shares = {
        str(name): [before[name] / totals[0], after[name] / totals[1]]
        for name in before
    }
    return {
        name: [round(share, 4) for share in pair]
        for name, pair in shares.items()
        if pair[1] < pair[0] - ROUNDED
    }
