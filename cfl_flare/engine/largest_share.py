# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""No site has too large a share of a mean, whatever it says its samples are; a round's record says whose fell."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from cfl_flare.core.shares import bounded_weights, sums_by
from cfl_flare.engine.min_cluster_size import ROUNDED
from cfl_flare.engine.settings import FEWEST_RANKED, ServerSettings

# A participant, the slot that it trained, the mean in which that counts: by these, the weights of a round.
Counted = tuple[str, str, str]
# By participant: its share of a mean by its own weight, and the lower one that it has.
Lowered = dict[str, list[float]]


def bounded_means(
    weights: Mapping[Counted, float], sites: Mapping[str, str], settings: ServerSettings
) -> tuple[dict[Counted, float], Lowered]:
    """Weights in means, lowered until no site has more than ``max_weight_share`` of one, and whose share that lowered.

    In a median or trimmed mean, ``byzantine`` participants have less than half of the weight as well, whatever they
    claim: each has 1 / (2 * byzantine + 1) at most. Where means are held back, nobody has more of a median than one of
    `FEWEST_RANKED` equal participants: of its parameters, about as many are one participant's own.

    Args:
        weights: of participants' models in means.
        sites: each participant's.
        settings: the run's.
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


def _lowered(before: Mapping[Hashable, float], after: Mapping[Hashable, float]) -> Lowered:
    totals = [sum(of.values()) or 1.0 for of in (before, after)]
    shares = {str(name): [before[name] / totals[0], after[name] / totals[1]] for name in before}
    return {name: [round(share, 4) for share in pair] for name, pair in shares.items() if pair[1] < pair[0] - ROUNDED}
