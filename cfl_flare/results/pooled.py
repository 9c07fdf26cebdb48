# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The AUROC over all participants' test samples, from histograms of their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cfl_flare.clustering.robust import capped
from cfl_flare.methods import Participant
from cfl_flare.results.key_metric import POOLED
from cfl_flare.results.metrics import RoundMetrics, not_by_all


def auroc_of_counts(counts: np.ndarray) -> float | None:
    """The AUROC of scores that were counted by bins; scores in one bin are ties, each half right.

    >>> auroc_of_counts(np.array([[[3, 1, 0], [0, 1, 3]]]))
    0.96875

    Args:
        counts: ``(classes, 2, bins)``: of each class samples without it and with it, from the lowest score on.

    Returns:
        The mean over the classes that have both; None if none has.
    """
    without, having = counts.astype(np.float64).swapaxes(0, 1)
    pairs = without.sum(axis=1) * having.sum(axis=1)
    right = (having * (without.cumsum(axis=1) - without / 2)).sum(axis=1)
    return float((right[pairs > 0] / pairs[pairs > 0]).mean()) if (pairs > 0).any() else None


def bounded_sum(counts: Mapping[str, np.ndarray], sites: Mapping[str, str], share: float) -> np.ndarray:
    """The sum of participants' histograms, in which no site has more than its share of the samples.

    Args:
        counts: of at least one participant, all of one shape.
        sites: each participant's.
        share: the largest of one site; 1 for no bound.
    """
    of_site: dict[str, np.ndarray] = {}
    for name, own in counts.items():
        of_site[sites[name]] = of_site.get(sites[name], np.zeros(own.shape)) + own
    samples = {site: float(own[0].sum()) for site, own in of_site.items()}
    allowed = capped(samples, share)
    return np.sum([own * (allowed[site] / samples[site]) for site, own in of_site.items()], axis=0)


def with_pooled(
    measured: RoundMetrics,
    counts: Mapping[str, np.ndarray | None],
    participants: Mapping[str, Participant],
    assignment: Mapping[str, int],
    share: float | None = None,
) -> RoundMetrics:
    """Adds to a round what histograms of scores say, over all participants and in each cluster.

    Args:
        measured: the round; it is not changed.
        counts: participants' histograms; None of those that sent none.
        participants: all of them.
        assignment: the cluster of each that has one.
        share: the largest share of one site's samples in the value that decides; None for no bound.
    """
    sent = {name: own for name, own in counts.items() if own is not None}
    groups: dict[str, dict[str, np.ndarray]] = {"": sent}
    for name in (name for name in sent if name in assignment):
        groups.setdefault(f"cluster-{assignment[name]}", {})[name] = sent[name]
    sites = {name: p.site for name, p in participants.items()}
    record = {**measured.record, "clusters": {k: dict(own) for k, own in measured.record["clusters"].items()}}
    steady = dict(measured.steady)
    for where, own in groups.items():
        found = auroc_of_counts(bounded_sum(own, sites, 1.0)) if own else None
        decides = auroc_of_counts(bounded_sum(own, sites, share or 1.0)) if own else None
        if found is None or decides is None:
            continue
        if where:
            record["clusters"][where][POOLED] = found
            steady[f"{where}/{POOLED}"] = decides
        else:
            record[POOLED], steady[POOLED] = found, decides
    if POOLED in record:
        fewer = not_by_all(measured.participants, {POOLED: len(sent)})
        record |= {"defined": {**record.get("defined", {}), **fewer}} if fewer else {}
    return replace(measured, record=record, steady=steady)
