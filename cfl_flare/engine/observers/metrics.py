# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What participants measure of the models that they are served, and of those that they trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.text import shown
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.engine.task import MAX_METRICS, is_metric_name, is_number
from cfl_flare.results.metrics import ACCURACY, Metric, RoundMetrics, leading, measure_round, reported

# Of each measure, the range of its values; None where a script measures what it likes.
Ranges = Mapping[str, tuple[float, float]] | None
PREFIXES = ("served_", "trained_")


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

    def check(self, answer: Any, asked: Asked) -> Mapping[str, float]:
        """Metrics of the served model if it was to be measured, of the trained one if it was to be trained."""
        prefixes = ("served_",) * asked.task.evaluate + ("trained_",) * asked.task.train
        check_metrics(answer, asked, prefixes, self._ranges)
        found: Mapping[str, float] = answer
        return found

    def collect(self, server: Running, measured: RoundMetrics) -> RoundMetrics:
        """Completes the record, and settles the metric by which the run is judged once some are reported."""
        served, named = server.round.metrics(), server.settings.early_stopping.named
        common, progress = reported(served.values(), server.round.tested), server.progress
        if common and progress.metric is None:
            progress.metric = asdict(leading(named, common))
        ranked = {m.name: m for m in (Metric(ACCURACY), *(m.of_participants for m in named), progress.judged_by)}
        clusters = server.method.clusters_in(server.state)
        of_round = (measured.record, served, server.participants, server.state)
        return measure_round(*of_round, clusters, server.settings.max_weight_share, ranked.values())


def check_metrics(
    answer: Any, asked: Asked, prefixes: Sequence[str], ranges: Ranges, every_prefix: Sequence[str] = PREFIXES
) -> None:
    """Checks metrics that a participant sent: finite numbers in their ranges, under names that were asked for.

    Args:
        prefixes: of the names that were asked for.
        ranges: of the measures, without a prefix; None for any that have a metric's name.
        every_prefix: of all names that there are.

    Raises:
        PayloadError: they are anything else.
    """
    name = asked.name
    if not isinstance(answer, Mapping):
        raise PayloadError("metric", f"{name}: {shown(answer)} should be its metrics by name")
    if answer and not asked.participant.tested:
        raise PayloadError("metric", f"{name} measured something, and said before that it has no test samples")
    known = ranges or {}
    allowed = {prefix + measure: ends for prefix in every_prefix for measure, ends in known.items()}
    for key, value in answer.items():
        if ranges is not None:
            _check_range(name, key, value, allowed)
        prefix = next((prefix for prefix in prefixes if isinstance(key, str) and key.startswith(prefix)), None)
        if prefix is None or not is_metric_name(key.removeprefix(prefix)):
            raise PayloadError("metric", f"{name} was not asked to measure {shown(key)}")
        if not is_number(value) or len(answer) > MAX_METRICS:
            raise PayloadError("metric", f"{name}: {shown(key)} = {shown(value)} is not a finite number in range")


def _check_range(name: str, key: Any, value: Any, allowed: Mapping[str, tuple[float, float]]) -> None:
    if not isinstance(key, str) or key not in allowed:
        raise PayloadError("metric", f"{name}: {shown(key)} should be one of {', '.join(allowed)}")
    low, high = allowed[key]
    if not is_number(value, low, high):
        raise PayloadError("metric", f"{name}: {key} = {shown(value)} should be a number in [{low:g}, {high:g}]")
