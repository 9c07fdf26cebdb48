# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What participants measure of the final models on draws of their test splits, and of how many samples these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.text import shown
from cfl_flare.engine.observers.metrics import Ranges
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.engine.task import MAX_SAMPLES, is_count, is_number
from cfl_flare.training.bootstrap import DRAWS, Replicates
from cfl_flare.training.settings import MOST_DRAWS

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

    def __init__(self, times: int, measures: Sequence[str], ranges: Ranges):
        self._times, self._measures, self._ranges = times, list(measures), ranges

    def question(self, server: Running, participant: str) -> dict[str, Any] | None:
        """After the last round, how often to draw, at most as the job's training says, and what to measure."""
        return {"times": self._times, "measures": self._measures} if self._times and server.finished else None

    @staticmethod
    def answer(question: Any, probe: Probe) -> dict[str, Any] | None:
        times = min(int(question["times"]), probe.settings.bootstrap)
        measures = [name for name in probe.metrics if name in (question["measures"] or probe.metrics)]
        drawn = probe.learner.resampled(probe.outputs, measures, times)
        if drawn is None:
            return None
        return {"draw": drawn.draw, "values": {f"served_{name}": list(own) for name, own in drawn.values.items()}}

    def check(self, answer: Any, asked: Asked) -> Replicates:
        """A number of each measure on each draw, in its range, or None."""
        name, question = asked.name, asked.task.questions.get(self.key)
        if question is None:
            raise PayloadError("metric", f"{name} was not asked to measure draws of its test split")
        drawn = isinstance(answer, Mapping) and answer.keys() == {"draw", "values"}
        if not drawn or not isinstance(answer["values"], Mapping):
            raise PayloadError("metric", f"{name}: {shown(answer)} should be its draw, and values by measure")
        draw, values = answer["draw"], answer["values"]
        if not is_count(draw, 0, DRAWS - 1):
            raise PayloadError("metric", f"{name}: draw = {shown(draw)} should be a whole number below {DRAWS}")
        for key, of_measure in values.items():
            self._check_values(name, key, of_measure, asked)
            if len(of_measure) != question["times"]:
                counts = f"{len(of_measure)} draws of {key}, not {question['times']}"
                raise PayloadError("metric", f"{name} sent {counts}, as the job asks with bootstrap")
        return Replicates(draw, {key: tuple(of_measure) for key, of_measure in values.items()})

    def _check_values(self, name: str, key: Any, values: Any, asked: Asked) -> None:
        known = None if self._ranges is None else {"served_" + measure: ends for measure, ends in self._ranges.items()}
        if known is not None and key not in known:
            raise PayloadError("metric", f"{name}: {shown(key)} should be one of {', '.join(known)}")
        if key not in asked.result.metrics or not key.startswith("served_"):
            raise PayloadError("metric", f"{name} has draws of {shown(key)}, which it does not report")
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) > MOST_DRAWS:
            count = f"{len(values)} values" if isinstance(values, Sequence) else shown(values)
            what = f"draws of {key} should be a list of at most {MOST_DRAWS}"
            raise PayloadError("metric", f"{name}: {what}, not {count}")
        for value in values:
            if value is None:
                continue
            if known is not None and not is_number(value, *known[key]):
                low, high = known[key]
                wanted = f"a number in [{low:g}, {high:g}] or None"
                raise PayloadError("metric", f"{name}: a draw of {key} is {shown(value)}, and should be {wanted}")
            if not is_number(value):
                raise PayloadError("metric", f"{name}: a draw of {key} is neither a finite number in range nor None")

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        if self._times and server.recorder is not None:
            drawn = {name: own for name, own in server.round.answers(self.key).items() if own is not None}
            server.recorder.bootstrap(drawn, server.participants, server.settings.max_weight_share)


class ClassCounts(Observer):
    """The number of test samples by class, once if it is ``wanted``, beside the intervals that depend on it."""

    key: ClassVar[str] = "test_classes"

    def __init__(self, wanted: bool):
        self._wanted = wanted

    def question(self, server: Running, participant: str) -> dict[str, Any] | None:
        return {} if self._wanted and server.finished else None

    @staticmethod
    def answer(question: Any, probe: Probe) -> list[int | None] | None:
        """The counts; None in place of 1 to 9. A small test split sends none, as it sends no histograms."""
        counts = probe.learner.class_counts(probe.outputs) if probe.sends_counts else None
        return None if counts is None else [count if count >= FEWEST or not count else None for count in counts]

    def check(self, answer: Any, asked: Asked) -> list[int | None]:
        name = asked.name
        if self.key not in asked.task.questions or not asked.participant.tested:
            raise PayloadError("metric", f"{name} was not asked for its test samples of each class")
        if not isinstance(answer, Sequence) or isinstance(answer, str) or not 1 <= len(answer) <= MOST_CLASSES:
            raise PayloadError("metric", f"{name}: {shown(answer)} should be its number of test samples by class")
        for count in answer:
            if not (count is None or count == 0 or is_count(count, FEWEST, MAX_SAMPLES)):
                wanted = f"0, None, or a whole number in {FEWEST}..{MAX_SAMPLES}"
                raise PayloadError("metric", f"{name}: {shown(count)} test samples of a class should be {wanted}")
        return list(answer)

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        if self._wanted:
            answers = server.round.answers(self.key)
            facts[self.key] = {name: counts for name, counts in answers.items() if counts is not None}
