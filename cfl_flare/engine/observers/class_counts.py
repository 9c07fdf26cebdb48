# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How many test samples of each class a participant's figures rest on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.text import shown
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.engine.task import MAX_SAMPLES, is_count

# Of a class with fewer samples a participant says that alone.
FEWEST = 10
MOST_CLASSES = 10_000


class ClassCounts(Observer):
    """The number of test samples by class, once, beside the intervals that depend on it.

    Args:
        wanted: whether the run asks for it.
    """

    key: ClassVar[str] = "test_classes"

    def __init__(self, wanted: bool = False):
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
