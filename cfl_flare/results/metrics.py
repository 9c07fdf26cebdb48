# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of any name and scale, which of them tells how good a run is, and what a round's record makes of them."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cfl_flare.clustering.measures import measure_agreement, measure_size_entropy
from cfl_flare.core.shares import bounded_weights, reached
from cfl_flare.methods import Participant, ServerState
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.results.metric_names import best_end, words_of

ACCURACY = "accuracy"
# Of all participants' samples together, from counts of scores and decisions.
POOLED, POOLED_F1 = "pooled_auroc", "pooled_macro_f1"
# What a run's record adds to the name of a participants' metric.
ADDED = re.compile(r"^(cluster-\d+/)?(served_)?(worst_|bottom_)?|_unweighted$")
# FedDSMIC's bottom accuracy is the mean over this many of the worst participants (sec. 5.3).
BOTTOM = 5


def of_training(name: str) -> bool:
    """Whether a metric tells of training rather than of the model, by its name: a loss, or of the training data."""
    return any(word.endswith("loss") or word == "train" for word in words_of(name))


def is_share(name: str, low: float, high: float) -> bool:
    """Whether values in this range are shares, by the metric's name: of an accuracy in per cent they are not."""
    return 0 <= low <= high <= 1 and best_end(name) == "max"


@dataclass(frozen=True)
class Metric:
    """A number of a round's record, and which way is better.

    Attributes:
        name: as in the record; ``served_`` may be left out: ``accuracy``, ``cluster-0/accuracy``.
        mode: ``max`` or ``min``; None if neither the name nor the user says which end is best.
    """

    name: str
    mode: str | None = "max"

    @classmethod
    def of_name(cls, name: str, mode: str | None = None) -> Metric:
        return cls(name, mode or best_end(name))

    @property
    def of_participants(self) -> Metric:
        """The metric that participants report, of which this number is made.

        >>> Metric("cluster-0/worst_dice").of_participants.name
        'dice'
        """
        return Metric(ADDED.sub("", self.name), self.mode)

    @property
    def far_end(self) -> str:
        """What the worst value is: of many equal participants one has it by chance."""
        return "highest" if self.mode == "min" else "lowest"

    def name_in(self, scalars: Mapping[str, float]) -> str | None:
        """Its name among a round's numbers; None if it is not among them.

        >>> Metric("cluster-0/accuracy").name_in({"cluster-0/served_accuracy": 0.5})
        'cluster-0/served_accuracy'
        """
        served = re.sub(r"^(cluster-\d+/)?", r"\g<1>served_", self.name)
        return next((name for name in (self.name, served) if name in scalars), None)

    def of(self, scalars: Mapping[str, float]) -> float | None:
        name = self.name_in(scalars)
        return None if name is None else scalars[name]

    def worst_first(
        self, values: Iterable[tuple[str, float]]
    ) -> list[tuple[str, float]]:
        """Participants with their values, from the worst to the best."""
        return sorted(values, key=lambda pair: pair[1], reverse=self.mode == "min")

    def best(
        self,
        before: Mapping[str, Any] | None,
        number: int,
        scalars: Mapping[str, float],
    ) -> dict[str, Any] | None:
        """The best round so far, ``{"round", "value"}``: the earlier one or this one. The first of equals wins.

        There is none while nobody says which end of the metric is best.
        """
        if self.mode is None:
            return None
        value = self.of(scalars)
        better = operator.gt if self.mode == "max" else operator.lt
        if value is not None and (before is None or better(value, before["value"])):
            return {"round": number, "value": value}
        return None if before is None else dict(before)


def reported(participants: Iterable[Mapping[str, Any]], tested: int) -> list[str]:
    """The metrics of served models that more than half of the tested participants report; no single one decides.

    >>> reported([{"served_dice": 0.5}, {"served_dice": 0.5, "served_accuracy": 1.0}], 2)
    ['dice']
    """
    keys = (
        key for metrics in participants for key in metrics if key.startswith("served_")
    )
    counts = Counter(key.removeprefix("served_") for key in keys)
    return [name for name, count in counts.items() if 2 * count > tested]


def leading(wanted: Iterable[Metric], names: Collection[str]) -> Metric:
    """The metric that tells how good a run is, in its table, its figures, and of its worst participants.

    The first wanted one that participants report; else accuracy; else one whose largest value is best; else one whose
    smallest is, and which is no loss.
    """
    for metric in wanted:
        if metric.of_participants.name in names:
            return metric.of_participants

    def place(name: str) -> tuple[bool | int | str, ...]:
        end = ("max", "min", None).index(best_end(name))
        return name != ACCURACY, "train" in words_of(name), end, of_training(name), name

    return Metric.of_name(min(names, key=place, default=ACCURACY))


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
        flat = {
            k: float(v)
            for k, v in self.record.items()
            if isinstance(v, (int, float)) and not isinstance(v, bool)
        }
        for k, size in enumerate(self.record["cluster_sizes"]):
            flat[f"cluster-{k}/size"] = float(size)
        for k, b in enumerate(self.record.get("clusterability", ())):
            if b is not None:
                flat[f"cluster-{k}/clusterability"] = b
        del flat["round"]
        return flat | {
            name: float(value) for name, value in _flat(self.record["clusters"]).items()
        }

    def deciding(self) -> dict[str, float]:
        """The numbers by which a run chooses its best round and ends early."""
        return {**self.scalars(), **self.steady}


def _flat(clusters: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {
        f"{cluster}/{name}": value
        for cluster, means in clusters.items()
        for name, value in means.items()
    }


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
    for name in sorted({key for values in metrics.values() for key in values}):
        having = bounded_weights(
            {p: weights[p] for p, values in metrics.items() if name in values},
            sites or {},
            share,
        )
        means[name] = float(
            np.average([metrics[p][name] for p in having], weights=[*having.values()])
        )
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
    for name in sorted({key for values in metrics.values() for key in values}):
        having = [p for p, reported in metrics.items() if name in reported]
        values = np.array([metrics[p][name] for p in having])
        if share is not None or not is_share(name, values.min(), values.max()):
            values = reached(values, values)
        for p, value in zip(having, values.tolist()):
            bounded[p][name] = value
    return average(bounded, weights, sites, share)


def not_by_all(
    metrics: Mapping[str, Mapping[str, float]], counts: Mapping[str, int]
) -> dict[str, int]:
    """Numbers of participants by measure, where they are fewer than all that were to be measured.

    A participant without test samples, whose metrics are empty, is one of them.

    >>> not_by_all({"a": {"served_loss": 1.0}, "b": {"served_loss": 2.0, "served_auroc": 1.0}}, {"served_auroc": 1})
    {'served_auroc': 1}
    """
    everyone = sum(
        not values or any(name.startswith("served_") for name in values)
        for values in metrics.values()
    )
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
        ranked: the metrics of which the worst participants are recorded, if their best end is known.
    """
    weights = {name: float(p.samples) for name, p in participants.items()}
    sites = {name: p.site for name, p in participants.items()}
    members: dict[int, list[str]] = {k: [] for k in range(clusters)}
    for name, cluster in state.assignment.items():
        members[cluster].append(name)

    def means(
        mean: Callable[..., dict[str, float]],
    ) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """Means over all participants, and over each cluster's."""
        alike = mean(metrics, dict.fromkeys(weights, 1.0), sites, share)
        of_all = mean(metrics, weights, sites, share) | {
            f"{name}_unweighted": v for name, v in alike.items()
        }
        parts = {
            k: {n: metrics[n] for n in names if n in metrics}
            for k, names in members.items()
        }
        return of_all, {
            f"cluster-{k}": mean(part, weights, sites, share)
            for k, part in parts.items()
        }

    of_all, of_clusters = means(average)
    record = {**record, **of_all}
    having = Counter(
        name
        for values in metrics.values()
        for name in values
        if name.startswith("served_")
    )
    if fewer := not_by_all(metrics, having):
        record["defined"] = dict(sorted(fewer.items()))
    for metric in ranked:
        if metric.mode is None:
            continue
        name = f"served_{metric.name}"
        having_it = {p: values[name] for p, values in metrics.items() if name in values}
        worst = metric.worst_first(having_it.items())[:BOTTOM]
        if worst:
            record[f"served_worst_{metric.name}"] = worst[0][1]
            record[f"served_bottom_{metric.name}"] = float(
                np.mean([value for _, value in worst])
            )
            record.setdefault("worst_participants", {})[metric.name] = dict(worst)
    sizes = [len(names) for names in members.values()]
    record |= {"cluster_sizes": sizes, "clusters": of_clusters}
    if clusters:
        with_model = {
            k for k in members if cluster_slot(k) in state.bank
        }  # others were merged away, or come later
        there = {
            k: size for k, size in enumerate(sizes) if k in with_model or not with_model
        }
        record["size_entropy"] = measure_size_entropy(list(there.values()))
        record["empty_clusters"] = [k for k, size in there.items() if not size]
        record["clusters_in_use"] = sum(size > 0 for size in sizes)
        record["largest_share"] = max(sizes) / max(1, sum(sizes))
    pairs = [(p.group, state.assignment.get(n)) for n, p in participants.items()]
    grouped = [
        (group, cluster)
        for group, cluster in pairs
        if group is not None and cluster is not None
    ]
    if clusters and grouped:
        record |= measure_agreement(
            [group for group, _ in grouped], [cluster for _, cluster in grouped]
        )
    steady, steady_of_clusters = means(steady_average)
    return RoundMetrics(record, metrics, steady | _flat(steady_of_clusters))
