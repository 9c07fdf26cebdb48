# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of any name and scale: which end of one is better, and which of those reported tells how good a run is."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Words in the names of metrics whose smallest value is best. Words that end in ``loss`` or ``error`` are of them.
SMALLER = {"err", "mae", "mse", "rmse", "rmsle", "mape", "nll", "ce", "bce", "brier", "deviance", "perplexity", "ppl"}
SMALLER |= {"hd", "hd95", "hausdorff", "asd", "assd", "wer", "cer", "fid", "ece"}
# Those whose largest value is best, and which are mostly shares; so is any metric whose name says nothing.
LARGER = {"accuracy", "acc", "auc", "auroc", "auprc", "ap", "map", "f1", "precision", "recall", "sensitivity"}
LARGER |= {"specificity", "kappa", "mcc", "dice", "iou", "miou", "jaccard", "psnr", "ssim"}
LARGER |= {"r2", "index", "cindex", "concordance", "score"}
ACCURACY = "accuracy"
# Of all participants' samples together, from counts of scores and decisions.
POOLED, POOLED_F1 = "pooled_auroc", "pooled_macro_f1"
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
# What a run's record adds to the name of a participants' metric.
ADDED = re.compile(r"^(cluster-\d+/)?(served_)?(worst_|bottom_)?|_unweighted$")


def words(name: str) -> set[str]:
    """The words of a metric's name.

    >>> sorted(words("val/meanAbsoluteError"))
    ['absolute', 'error', 'mean', 'meanabsoluteerror', 'val']
    """
    return {*re.split(r"[^a-z0-9]+", name.lower()), *(word.lower() for word in WORD.findall(name))}


def best_end(name: str) -> str | None:
    """Which end of a metric is best, ``max`` or ``min``; None if its name does not say.

    >>> best_end("val_loss"), best_end("c-index"), best_end("neg_mean_squared_error"), best_end("gain")
    ('min', 'max', 'max', None)
    """
    known = words(name)
    if "neg" in known:
        return "max"
    if known & SMALLER or any(word.endswith(("loss", "error")) for word in known):
        return "min"
    return "max" if known & LARGER else None


def of_training(name: str) -> bool:
    """Whether a metric tells of training rather than of the model, by its name: a loss, or of the training data."""
    return any(word.endswith("loss") or word == "train" for word in words(name))


def is_share(name: str, low: float, high: float) -> bool:
    """Whether values in this range are shares, by the metric's name: of an accuracy in per cent they are not."""
    return 0 <= low <= high <= 1 and best_end(name) == "max"


@dataclass(frozen=True)
class Metric:
    """A number of a round's record, and which way is better.

    Attributes:
        name: as in the record; ``served_`` may be left out: ``accuracy``, ``cluster-0/accuracy``.
        mode: ``max`` or ``min``.
    """

    name: str
    mode: str = "max"

    @classmethod
    def of_name(cls, name: str, mode: str | None = None) -> Metric:
        return cls(name, mode or best_end(name) or "max")

    @property
    def of_participants(self) -> Metric:
        """The metric that participants report, of which this number is made.

        >>> Metric("cluster-0/worst_dice").of_participants.name
        'dice'
        """
        return Metric(ADDED.sub("", self.name), self.mode)

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

    def worst_first(self, values: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
        """Participants with their values, from the worst to the best."""
        return sorted(values, key=lambda pair: pair[1], reverse=self.mode == "min")

    def best(
        self, before: Mapping[str, Any] | None, number: int, scalars: Mapping[str, float]
    ) -> dict[str, Any] | None:
        """The best round so far, ``{"round", "value"}``: the earlier one or this one. The first of equals wins."""
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
    keys = (key for metrics in participants for key in metrics if key.startswith("served_"))
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
        return name != ACCURACY, "train" in words(name), end, of_training(name), name

    return Metric.of_name(min(names, key=place, default=ACCURACY))
