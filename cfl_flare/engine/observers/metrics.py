# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What participants measure of the models that they are served, and of those that they trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from cfl_flare.core.errors import DivergedError
from cfl_flare.core.text import shown
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.engine.task import MAX_METRIC, MAX_METRICS, is_metric_name, is_number
from cfl_flare.results.metrics import (
    ACCURACY,
    Metric,
    RoundMetrics,
    leading,
    measure_round,
    reported,
)

# Of each measure, the range of its values; None where a script measures what it likes.
Ranges = Mapping[str, tuple[float, float]] | None


class Metrics(Observer):
    """Metrics of each participant; a round's record has their means, the worst ones, and those of each cluster.

    ``ranges`` are those of the measures that participants are asked for.
    """

    key: ClassVar[str] = "metrics"

    def __init__(self, ranges: Ranges):
        self._ranges = ranges

    @staticmethod
    def answer(question: Any, probe: Probe) -> dict[str, float]:
        return {f"served_{name}": value for name, value in probe.metrics.items()}

    def check(self, answer: Any, request: Asked) -> Any:
        """Metrics of the served model if it was to be measured, of the trained one if it was to be trained."""
        prefixes = ("served_",) * request.task.evaluate + (
            "trained_",
        ) * request.task.train
        check_metrics(answer, request, prefixes, self._ranges)
        return answer

    def collect(self, server: Running, measured: RoundMetrics) -> RoundMetrics:
        """Completes the record, and settles the metric by which the run is judged once some are reported."""
        served, named = server.round.metrics(), server.settings.early_stopping.named
        common, progress = (
            reported(served.values(), server.round.tested),
            server.progress,
        )
        if common and progress.metric is None:
            progress.metric = asdict(leading(named, common))
        ranked = {
            m.name: m
            for m in (
                Metric(ACCURACY),
                *(m.of_participants for m in named),
                progress.judged_by,
            )
        }
        clusters = server.method.count_clusters(server.state)
        of_round = (measured.record, served, server.participants, server.state)
        return measure_round(
            *of_round, clusters, server.settings.max_weight_share, ranked.values()
        )


def check_metrics(
    answer: Any, request: Asked, prefixes: Sequence[str], ranges: Ranges
) -> None:
    """Checks metrics that a participant sent: finite numbers in their ranges, under names that were asked for.

    Args:
        prefixes: of the names that were asked for.
        ranges: of the measures, without a prefix; None for any that have a metric's name.

    Raises:
        PayloadError: they are anything else.
    """
    request.require(
        isinstance(answer, Mapping), f"{shown(answer)} should be its metrics by name"
    )
    if answer:
        request.require_tested()
    request.require(
        len(answer) <= MAX_METRICS, f"{len(answer)} metrics are more than {MAX_METRICS}"
    )
    for key, value in answer.items():
        measure = next(
            (
                key.removeprefix(p)
                for p in prefixes
                if isinstance(key, str) and key.startswith(p)
            ),
            None,
        )
        wanted = is_metric_name(measure) and (ranges is None or measure in ranges)
        request.require(wanted, f"it was not asked to measure {shown(key)}")
        low, high = range_of(str(measure), ranges)
        limits = f"should be a number in [{low:g}, {high:g}]"
        code = DivergedError.failure if measure == "loss" else "metric"
        request.require(
            is_number(value, low, high), f"{key} = {shown(value)} {limits}", code
        )


def range_of(measure: str, ranges: Ranges) -> tuple[float, float]:
    """Within what a value of a measure has to be; finite, whatever its range is."""
    low, high = (ranges or {}).get(measure, (-MAX_METRIC, MAX_METRIC))
    return max(low, -MAX_METRIC), min(high, MAX_METRIC)
