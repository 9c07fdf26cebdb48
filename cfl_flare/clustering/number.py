# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning the number of clusters (FedAC Alg. 3): too tight clusters are merged, too loose ones are split."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Change:
    """One change of the clusters.

    Attributes:
        cluster: the one that is split, or merged into another.
        into: the cluster that takes its members; None for a split.
    """

    cluster: int
    into: int | None = None


def dispersion(intra: Mapping[int, float], between: np.ndarray) -> dict[int, float]:
    """G_k = Dist_intra / Dist_inter of each cluster in use (FedAC Alg. 3).

    Args:
        intra: by cluster, the mean squared distance of its members to its centre.
        between: ``(K, K)`` squared distances of the centres of these clusters, in the same order.

    Returns:
        By cluster; infinity where all centres coincide, and for the only one.

    >>> dispersion({0: 1.0, 4: 3.0}, np.array([[0.0, 2.0], [2.0, 0.0]]))
    {0: 0.5, 4: 1.5}
    """
    found = {}
    for row, (cluster, inside) in enumerate(intra.items()):
        others = np.delete(between[row], row)
        apart = float(others.mean()) if len(others) else 0.0
        found[cluster] = inside / apart if apart > 0 else float("inf")
    return found


def changes(
    loose: Mapping[int, float],
    sizes: Mapping[int, int],
    between: np.ndarray,
    low: float,
    high: float,
    barred_merges: Collection[tuple[int, int]] = (),
    barred_splits: Collection[int] = (),
) -> list[Change]:
    """The changes of one tuning step: all G_k are computed first, then each cluster changes at most once.

    Args:
        loose: G_k by cluster.
        sizes: members by cluster.
        between: ``(K, K)`` squared distances of their centres, in the order of ``loose``.
        low: a; a cluster of two members or more below it is merged into the nearest one.
        high: b; a cluster of two members or more above it is split.
        barred_merges: pairs, the smaller number first, that were split recently.
        barred_splits: clusters that were merged recently.

    >>> apart = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]])
    >>> changes({0: 0.1, 1: 0.5, 2: 0.9}, {0: 2, 1: 2, 2: 2}, apart, 0.2, 0.8)
    [Change(cluster=0, into=1), Change(cluster=2, into=None)]
    """
    clusters, done = list(loose), set[int]()
    found: list[Change] = []
    for row, cluster in enumerate(clusters):
        if cluster in done or sizes[cluster] < 2:
            continue
        if loose[cluster] < low and len(clusters) > 1:
            nearest = clusters[int(np.argmin(np.where(np.arange(len(clusters)) == row, np.inf, between[row])))]
            pair = (min(cluster, nearest), max(cluster, nearest))
            if nearest not in done and pair not in barred_merges:
                found.append(Change(cluster, nearest))
                done |= {cluster, nearest}
        elif loose[cluster] > high and cluster not in barred_splits:
            found.append(Change(cluster))
            done.add(cluster)
    return found
