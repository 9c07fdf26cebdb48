# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The AUROC and the macro-F1 over all participants' test samples, from counts of their scores and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cfl_flare.core.shares import capped
from cfl_flare.methods import Participant
from cfl_flare.results.key_metric import POOLED, POOLED_F1
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


def macro_f1_of_counts(counts: np.ndarray) -> float | None:
    """The macro-F1 of decisions, as scikit-learn has it: of the classes that occur among labels or decisions.

    >>> macro_f1_of_counts(np.array([[[2, 1], [1, 1]], [[1, 0], [2, 1]]]))  # labels 0, 1, 1, decisions 0, 0, 1
    0.6666666666666666

    Args:
        counts: see `cfl_flare.training.histograms.score_counts`. One class alone is a finding, and its absence another.

    Returns:
        The mean over the classes; None if there is no sample.
    """
    counts = counts.astype(np.float64)
    samples, decided = counts[..., :-1].sum(axis=2), counts[..., -1]
    if len(counts) == 1:
        decided = np.concatenate((decided, (samples - decided)[:, ::-1]))
        samples = np.concatenate((samples, samples[:, ::-1]))
    total = samples[:, 1] + decided.sum(axis=1)
    return float((2 * decided[:, 1][total > 0] / total[total > 0]).mean()) if (total > 0).any() else None


def bounded_sum(counts: Mapping[str, np.ndarray], sites: Mapping[str, str], share: float) -> np.ndarray:
    """The sum of participants' counts, in which no site has more than its share of the samples.

    Args:
        counts: of at least one participant, all of one shape; see `cfl_flare.training.histograms.score_counts`.
        sites: each participant's.
        share: the largest of one site; 1 for no bound.
    """
    of_site: dict[str, np.ndarray] = {}
    for name, own in counts.items():
        of_site[sites[name]] = of_site.get(sites[name], np.zeros(own.shape)) + own
    samples = {site: float(own[0, :, :-1].sum()) for site, own in of_site.items()}
    allowed = capped(samples, share)
    return np.sum([own * (allowed[site] / samples[site]) for site, own in of_site.items()], axis=0)


def with_pooled(
    measured: RoundMetrics,
    counts: Mapping[str, np.ndarray | None],
    participants: Mapping[str, Participant],
    assignment: Mapping[str, int],
    share: float | None = None,
) -> RoundMetrics:
    """Adds to a round what counts of scores and decisions say, over all participants and in each cluster.

    Args:
        measured: the round; it is not changed.
        counts: participants'; None of those that sent none.
        participants: all of them.
        assignment: the cluster of each that has one.
        share: the largest share of one site's samples; None for no bound.
    """
    sent = {name: own for name, own in counts.items() if own is not None}
    groups: dict[str, dict[str, np.ndarray]] = {"": sent}
    for name in (name for name in sent if name in assignment):
        groups.setdefault(f"cluster-{assignment[name]}", {})[name] = sent[name]
    sites = {name: p.site for name, p in participants.items()}
    record = {**measured.record, "clusters": {k: dict(own) for k, own in measured.record["clusters"].items()}}
    for where, own in groups.items():
        if not own:
            continue
        (record["clusters"][where] if where else record).update(_values(bounded_sum(own, sites, share or 1.0)))
    fewer = not_by_all(measured.participants, {name: len(sent) for name in (POOLED, POOLED_F1) if name in record})
    record |= {"defined": {**record.get("defined", {}), **fewer}} if fewer else {}
    return replace(measured, record=record)


def _values(counts: np.ndarray) -> dict[str, float]:
    """Those of sums that are defined."""
    values = {POOLED: auroc_of_counts(counts[..., :-1]), POOLED_F1: macro_f1_of_counts(counts)}
    return {name: value for name, value in values.items() if value is not None}
