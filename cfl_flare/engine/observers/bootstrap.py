# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What participants measure of the final models on draws of their test splits, and of how many samples these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cfl_flare.core.text import shown
from cfl_flare.engine.observers.metrics import Ranges, range_of
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.engine.task import MAX_SAMPLES, is_count, is_number
from cfl_flare.training.bootstrap import DRAWS, Replicates

# Of a class with fewer samples a participant says that alone.
FEWEST = 10
MOST_CLASSES = 10_000


class Bootstrap(Observer):
    """Draws of each participant's test split, with replacement; the run's results have intervals of them.

    Args:
        times: how many draws; 0 for none.
        measures: what is computed on them; empty for all that participants measure.
    """

    key: ClassVar[str] = "bootstrap"
    setting: ClassVar[str] = "bootstrap"

    def __init__(self, times: int, measures: Sequence[str], ranges: Ranges):
        self._times, self._measures, self._ranges = times, list(measures), ranges

    def question(self, server: Running, participant: str) -> dict[str, Any] | None:
        """After the last round, how often to draw, at most as the job's training says, and what to measure."""
        return (
            {"times": self._times, "measures": self._measures}
            if self._times and server.finished
            else None
        )

    @staticmethod
    def answer(question: Any, probe: Probe) -> dict[str, Any] | None:
        times = min(int(question["times"]), probe.settings.bootstrap)
        measures = [
            name
            for name in probe.metrics
            if name in (question["measures"] or probe.metrics)
        ]
        drawn = probe.learner.resampled(probe.outputs, measures, times)
        if drawn is None:
            return None
        return {
            "draw": drawn.draw,
            "values": {
                f"served_{name}": list(of_measure)
                for name, of_measure in drawn.values.items()
            },
        }

    def check(self, answer: Any, request: Asked) -> Replicates:
        """A number of each measure on each draw, in its range, or None."""
        question: Any = request.task.questions.get(self.key)
        request.require(
            question is not None, "it was not asked to measure draws of its test split"
        )
        drawn = isinstance(answer, Mapping) and answer.keys() == {"draw", "values"}
        drawn = drawn and isinstance(answer["values"], Mapping)
        request.require(
            drawn, f"{shown(answer)} should be its draw, and values by measure"
        )
        draw, values = answer["draw"], answer["values"]
        request.require(
            is_count(draw, 0, DRAWS - 1),
            f"draw = {shown(draw)} should be a whole number below {DRAWS}",
        )
        for key, of_measure in values.items():
            self._check_values(key, of_measure, question["times"], request)
        return Replicates(
            draw, {key: tuple(of_measure) for key, of_measure in values.items()}
        )

    def _check_values(self, key: Any, values: Any, times: int, request: Asked) -> None:
        """Checks the draws of a measure, whose name `Metrics` has checked."""
        reported = key in request.result.metrics and key.startswith("served_")
        request.require(
            reported, f"it has draws of {shown(key)}, which it does not report"
        )
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        count = f"{len(values)} values" if listed else shown(values)
        wanted = (
            f"should be a list of {times}, as the job asks with bootstrap, not {count}"
        )
        request.require(listed and len(values) == times, f"draws of {key} {wanted}")
        low, high = range_of(key.removeprefix("served_"), self._ranges)
        wrong = next(
            (
                value
                for value in values
                if value is not None and not is_number(value, low, high)
            ),
            None,
        )
        limits = f"should be a number in [{low:g}, {high:g}] or None"
        request.require(
            wrong is None, f"a draw of {key} is {shown(wrong)}, and {limits}"
        )

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        if self._times and server.recorder is not None:
            drawn = {
                name: draws
                for name, draws in server.round.answers(self.key).items()
                if draws is not None
            }
            server.recorder.bootstrap(
                drawn, server.participants, server.settings.max_weight_share
            )


class ClassCounts(Observer):
    """The number of test samples by class, once if it is ``wanted``, beside the intervals that depend on it."""

    key: ClassVar[str] = "test_classes"
    setting: ClassVar[str] = "bootstrap"

    def __init__(self, wanted: bool):
        self._wanted = wanted

    def question(self, server: Running, participant: str) -> dict[str, Any] | None:
        return {} if self._wanted and server.finished else None

    @staticmethod
    def answer(question: Any, probe: Probe) -> list[int | None] | None:
        """The counts; None in place of 1 to 9. A small test split sends none, as it sends no histograms."""
        counts = (
            probe.learner.class_counts(probe.outputs) if probe.sends_counts else None
        )
        return (
            None
            if counts is None
            else [count if count >= FEWEST or not count else None for count in counts]
        )

    def check(self, answer: Any, request: Asked) -> list[int | None]:
        wanted = self.key in request.task.questions and request.participant.tested
        request.require(wanted, "it was not asked for its test samples of each class")
        listed = (
            isinstance(answer, Sequence)
            and not isinstance(answer, str)
            and 1 <= len(answer) <= MOST_CLASSES
        )
        request.require(
            listed, f"{shown(answer)} should be its number of test samples by class"
        )
        wrong = next(
            (
                n
                for n in answer
                if not (n is None or n == 0 or is_count(n, FEWEST, MAX_SAMPLES))
            ),
            None,
        )
        limits = f"0, None, or a whole number in {FEWEST}..{MAX_SAMPLES}"
        request.require(
            wrong is None, f"{shown(wrong)} test samples of a class should be {limits}"
        )
        return list(answer)

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        if self._wanted:
            answers = server.round.answers(self.key)
            facts[self.key] = {
                name: counts for name, counts in answers.items() if counts is not None
            }
