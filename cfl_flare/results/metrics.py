# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The measures of a round: means over participants, and the quality of the clustering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cfl_flare.clustering.measures import agreement, size_entropy
from cfl_flare.core.shares import bounded_weights, reached
from cfl_flare.methods import Participant, ServerState
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.results.key_metric import ACCURACY, Metric, is_share

# FedDSMIC's bottom accuracy is the mean over this many of the worst participants (sec. 5.3).
BOTTOM = 5


@dataclass(frozen=True)
class RoundMetrics:
    """A round's record and the metrics that it was computed from.

    Attributes:
        record: JSON values: ``round``, ``served_accuracy``, ``ari``, ``cluster_sizes``, ...
        participants: each participant's own metrics.
        steady: means of the record's that an outlier moved, as they are without it: by these a run decides.
    """

    record: dict[str, Any]
    participants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    steady: Mapping[str, float] = field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """The numbers alone, with one series per cluster: ``cluster-0/served_accuracy``."""
        flat = {k: float(v) for k, v in self.record.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        for k, size in enumerate(self.record["cluster_sizes"]):
            flat[f"cluster-{k}/size"] = float(size)
        for k, b in enumerate(self.record.get("clusterability", ())):
            if b is not None:
                flat[f"cluster-{k}/clusterability"] = b
        del flat["round"]
        return flat | {name: float(value) for name, value in _flat(self.record["clusters"]).items()}

    def deciding(self) -> dict[str, float]:
        """The numbers by which a run chooses its best round and ends early."""
        return {**self.scalars(), **self.steady}


def _flat(clusters: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {f"{cluster}/{name}": value for cluster, means in clusters.items() for name, value in means.items()}


def average(
    metrics: Mapping[str, Mapping[str, float]],
    weights: Mapping[str, float],
    sites: Mapping[str, str] | None = None,
    share: float | None = None,
) -> dict[str, float]:
    """Mean of each metric over participants, weighted; with a share, no site has more than that of the weight.

    >>> average({"a": {"acc": 1.0}, "b": {"acc": 0.0}}, {"a": 3.0, "b": 1.0})
    {'acc': 0.75}
    >>> average({"a": {"acc": 1.0}, "b": {"acc": 0.0}, "c": {"acc": 0.0}}, {"a": 1e9, "b": 1.0, "c": 1.0}, {}, 1 / 3)
    {'acc': 0.3333333333333333}
    """
    means = {}
    for name in sorted({key for own in metrics.values() for key in own}):
        having = bounded_weights({p: weights[p] for p, own in metrics.items() if name in own}, sites or {}, share)
        means[name] = float(np.average([metrics[p][name] for p in having], weights=[*having.values()]))
    return means


def steady_average(
    metrics: Mapping[str, Mapping[str, float]],
    weights: Mapping[str, float],
    sites: Mapping[str, str],
    share: float | None,
) -> dict[str, float]:
    """Mean of each metric over participants, weighted, that no single site decides.

    A site has no more than its share of the weight, and its values no more than their `reached` place among all. Shares
    are in 0..1 and are taken as they are, unless the weights are bounded, too.

    >>> metrics = {"a": {"loss": 1.0}, "b": {"loss": 1.2}, "c": {"loss": 1e9}}
    >>> round(steady_average(metrics, dict.fromkeys("abc", 1.0), {}, None)["loss"], 3)
    1.467
    """
    bounded: dict[str, dict[str, float]] = {p: {} for p in metrics}
    for name in sorted({key for own in metrics.values() for key in own}):
        having = [p for p, own in metrics.items() if name in own]
        values = np.array([metrics[p][name] for p in having])
        if share is not None or not is_share(name, values.min(), values.max()):
            values = reached(values, values)
        for p, value in zip(having, values.tolist()):
            bounded[p][name] = value
    return average(bounded, weights, sites, share)


def not_by_all(metrics: Mapping[str, Mapping[str, float]], counts: Mapping[str, int]) -> dict[str, int]:
    """Numbers of participants by measure, where they are fewer than all that were to be measured.

    A participant without test samples, whose metrics are empty, is one of them.

    >>> not_by_all({"a": {"served_loss": 1.0}, "b": {"served_loss": 2.0, "served_auroc": 1.0}}, {"served_auroc": 1})
    {'served_auroc': 1}
    """
    everyone = sum(not own or any(name.startswith("served_") for name in own) for own in metrics.values())
    return {name: count for name, count in counts.items() if count < everyone}


def measure_round(
    record: dict[str, Any],
    metrics: Mapping[str, Mapping[str, float]],
    participants: Mapping[str, Participant],
    state: ServerState,
    clusters: int,
    share: float | None = None,
    ranked: Iterable[Metric] = (Metric(ACCURACY),),
) -> RoundMetrics:
    """Completes a round's record.

    Means are weighted by n_i, as in the thesis's tables, within a site's share. In ``..._unweighted`` all participants
    count the same. A mean is of those for whom the measure is defined. Their number is in ``defined`` if some that were
    measured, or would have been if they had test samples, lack it.

    Args:
        record: what the server recorded during the round.
        metrics: each participant's own, of the models served after that round; empty if they were not measured. Those
            of a participant without test samples are empty.
        state: after the round.
        clusters: K, or 0.
        share: the largest share of one site's weight in a mean; None for no bound.
        ranked: the metrics of which the worst participants are recorded.
    """
    weights = {name: float(p.samples) for name, p in participants.items()}
    sites = {name: p.site for name, p in participants.items()}
    members: dict[int, list[str]] = {k: [] for k in range(clusters)}
    for name, cluster in state.assignment.items():
        members[cluster].append(name)

    def means(mean: Callable[..., dict[str, float]]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """Means over all participants, and over each cluster's."""
        alike = mean(metrics, dict.fromkeys(weights, 1.0), sites, share)
        of_all = mean(metrics, weights, sites, share) | {f"{name}_unweighted": v for name, v in alike.items()}
        parts = {k: {n: metrics[n] for n in names if n in metrics} for k, names in members.items()}
        return of_all, {f"cluster-{k}": mean(part, weights, sites, share) for k, part in parts.items()}

    of_all, of_clusters = means(average)
    record = {**record, **of_all}
    having = Counter(name for own in metrics.values() for name in own if name.startswith("served_"))
    if fewer := not_by_all(metrics, having):
        record["defined"] = dict(sorted(fewer.items()))
    for metric in ranked:
        name = f"served_{metric.name}"
        having_it = {p: own[name] for p, own in metrics.items() if name in own}
        worst = metric.worst_first(having_it.items())[:BOTTOM]
        if worst:
            record[f"served_worst_{metric.name}"] = worst[0][1]
            record[f"served_bottom_{metric.name}"] = float(np.mean([value for _, value in worst]))
            record.setdefault("worst_participants", {})[metric.name] = dict(worst)
    sizes = [len(names) for names in members.values()]
    record |= {"cluster_sizes": sizes, "clusters": of_clusters}
    if clusters:
        with_model = {k for k in members if cluster_slot(k) in state.bank}  # others were merged away, or come later
        there = {k: size for k, size in enumerate(sizes) if k in with_model or not with_model}
        record["size_entropy"] = size_entropy(list(there.values()))
        record["empty_clusters"] = [k for k, size in there.items() if not size]
        record["clusters_in_use"] = sum(size > 0 for size in sizes)
        record["largest_share"] = max(sizes) / max(1, sum(sizes))
    pairs = [(p.group, state.assignment.get(n)) for n, p in participants.items()]
    grouped = [(group, cluster) for group, cluster in pairs if group is not None and cluster is not None]
    if clusters and grouped:
        record |= agreement([group for group, _ in grouped], [cluster for _, cluster in grouped])
    steady, steady_of_clusters = means(steady_average)
    return RoundMetrics(record, metrics, steady | _flat(steady_of_clusters))
