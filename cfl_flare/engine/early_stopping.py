# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which of a run's rounds is the best, and when the run ends early; names and meanings are FLARE's."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.results.metrics import ACCURACY, Metric

logger = logging.getLogger(__name__)

OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
MODES = {">=": "max", ">": "max", "<=": "min", "<": "min"}


@dataclass(frozen=True)
class Condition:
    """A condition on a round's numbers: ``accuracy >= 0.8``."""

    text: str
    metric: Metric
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parses a condition; raises a ConfigError if it is not ``<metric> <sign> <number>``."""
        try:
            name, sign, number = text.split()
            _ = OPERATORS[sign]
            return cls(text, Metric.of_name(name, MODES.get(sign)), sign, float(number))
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"run: stop_cond = {text!r} should be '<metric> <sign> <number>' with one of {' '.join(OPERATORS)}, "
                "such as 'accuracy >= 0.8'"
            ) from error

    def holds(self, scalars: Mapping[str, float]) -> bool:
        """Whether a round meets the condition; one that lacks the metric does not."""
        value = self.metric.of(scalars)
        return value is not None and bool(OPERATORS[self.sign](value, self.value))


@dataclass(frozen=True)
class EarlyStopping:
    """Which round of a run is the best, and when the run ends before its last round.

    Attributes:
        key: the metric that chooses the best round; None for no best round.
        stop: the run ends once a round meets it.
        patience: the run also ends after so many rounds without improvement of the metric in ``stop``, else of ``key``.
    """

    key: Metric | None = None
    stop: Condition | None = None
    patience: int | None = None

    @classmethod
    def of(
        cls,
        key_metric: str | None,
        mode: str | None,
        stop_cond: str | None,
        patience: int | None,
    ) -> EarlyStopping:
        """Builds it from a run's settings; a ConfigError for a condition that is none, or if they contradict."""
        key_metric = ACCURACY if key_metric is None else key_metric
        stop = None if stop_cond is None else Condition.parse(stop_cond)
        watched = None if stop is None else stop.metric.name.replace("served_", "")
        implied = (
            MODES.get(stop.sign)
            if stop is not None and watched == key_metric.replace("served_", "")
            else None
        )
        require(
            mode is None or implied in (None, mode),
            f"run: key_metric_mode = {mode!r} contradicts stop_cond = {stop_cond!r}, which wants the other end of "
            f"{key_metric!r}",
        )
        require(
            patience is None or stop is not None or bool(key_metric),
            f"run: patience = {patience} waits for a metric to improve; name it as key_metric, or in stop_cond",
        )
        key = Metric.of_name(key_metric, mode or implied) if key_metric else None
        if (
            stop is not None
            and key is not None
            and watched == key_metric.replace("served_", "")
        ):
            stop = replace(stop, metric=replace(stop.metric, mode=key.mode))
        stopping = cls(key, stop, patience)
        stopping.check_patience()
        return stopping

    def check_patience(self) -> None:
        """Raises a ConfigError if the run waits for a metric to improve, and nobody says which end of it is best."""
        metric = self.watched
        if self.patience is None or metric is None or metric.mode is not None:
            return
        way_out = "set key_metric_mode to 'max' or 'min'"
        if self.stop is not None:
            way_out = "write stop_cond with >= or <="
        raise ConfigError(
            f"run: patience = {self.patience} waits for {metric.name!r} to improve, and its name does not say which "
            f"end is best; {way_out}"
        )

    @property
    def unordered(self) -> str | None:
        """Why no round is kept as the best; None if one is, or if the settings want none."""
        if self.key is None or self.key.mode is not None:
            return None
        return (
            f"no round is kept as the best one: the name of the metric {self.key.name!r} does not say which end is "
            "best; set key_metric_mode to 'max' or 'min', or name another key_metric"
        )

    def check(self, tested: bool) -> None:
        """Warns if no participant has test samples; raises a ConfigError if the run would then wait for a metric."""
        if tested:
            return
        nobody = "no participant has test samples"
        require(
            self.stop is None and self.patience is None,
            f"run: {nobody}, and stop_cond or patience waits for a metric; keep some samples back for testing, or "
            "leave both out",
        )
        logger.warning(
            "run: %s: models are trained, and nothing says how good they are, nor which round was the best",
            nobody,
        )

    @property
    def named(self) -> list[Metric]:
        """The metrics that the settings name, the one that chooses the best round first."""
        return [
            metric
            for metric in (self.key, None if self.stop is None else self.stop.metric)
            if metric is not None
        ]

    def following(self, metric: Metric) -> EarlyStopping:
        """The same, with this metric in place of a default one, where participants do not report that."""
        if self.key is None or self.key.name not in (ACCURACY, "loss"):
            return self
        return replace(self, key=metric) if metric.name != self.key.name else self

    @property
    def watched(self) -> Metric | None:
        return self.key if self.stop is None else self.stop.metric

    def unknown(
        self, best: Mapping[str, Any] | None, watched: Mapping[str, Any] | None
    ) -> list[str]:
        """The metrics used here that no round has reported, given the best round so far by each."""
        pairs = ((self.key, best), (self.watched, watched))
        return list(
            dict.fromkeys(
                metric.name
                for metric, reported in pairs
                if metric is not None and reported is None
            )
        )

    def reached(
        self,
        watched: Mapping[str, Any] | None,
        number: int,
        scalars: Mapping[str, float],
    ) -> str | None:
        """Why a run should end after a round, in words; None if it should not. ``watched`` is the best round so far."""
        if self.stop is not None and self.stop.holds(scalars):
            return f"{self.stop.text} in round {number}"
        if self.patience is None or self.watched is None or watched is None:
            return None
        idle = number - watched["round"]
        if idle < self.patience:
            return None
        return f"no better {self.watched.name} than {watched['value']:.4g} of round {watched['round']} in {idle} rounds"
