# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""In the end every model is measured on every participant's test split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.text import shown
from cfl_flare.engine.observers.metrics import Ranges, check_metrics
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.training.ensemble import Served

# A model in a question: its name, the slots of its parts, and their vote and names; see `Served`.
Named = tuple[str, list[str], str, list[str]]


def named_models(server: Running, models: Mapping[str, Served]) -> dict[str, Named]:
    """Models with the slots in which they travel; one that is made of parts gets a slot of its own."""
    named: dict[str, Named] = {}
    for name, served in models.items():
        slots = []
        for i, model in enumerate(served.models):
            slots.append(next((s for s, known in server.state.bank.items() if known is model), f"whole/{name}/{i}"))
            if slots[-1] not in server.state.bank:
                server.assembled[slots[-1]] = model
        named[name] = name, slots, served.vote, list(served.parts)
    return named


class CrossSite(Observer):
    """Metrics of all clusters' models, or of the run's other ones if it has no clusters, at each participant.

    A question is a list of models, see `Named`; ``ranges`` are those of the measures.
    """

    key: ClassVar[str] = "cross"

    def __init__(self, ranges: Ranges):
        self._ranges = ranges
        self._models: list[list[Any]] | None = None

    def question(self, server: Running, participant: str) -> list[list[Any]] | None:
        if not server.settings.cross_site_evaluation or not server.finished:
            return None
        if self._models is None:
            left = server.travelling_models()
            clusters = [cluster_slot(k) for k in range(server.method.clusters_in(server.state))]
            models = named_models(server, {k: left[k] for k in clusters if k in left} or left)
            self._models = [list(named) for named in models.values()]
        return self._models

    def slots(self, question: Any) -> Sequence[str]:
        return [slot for _, slots, _, _ in question for slot in slots]

    @staticmethod
    def answer(question: Any, probe: Probe) -> dict[str, dict[str, float]]:
        return {
            name: probe.learner.evaluate(Served(tuple(probe.models[slot] for slot in slots), vote, tuple(parts)))
            for name, slots, vote, parts in question
        }

    def check(self, answer: Any, asked: Asked) -> Mapping[str, Mapping[str, float]]:
        """Metrics of models that were named."""
        if not isinstance(answer, Mapping) or not all(isinstance(model, str) for model in answer):
            raise PayloadError("malformed", f"{asked.name}: cross = {shown(answer)} should have metrics for each model")
        known = {name for name, *_ in asked.task.questions.get(self.key) or ()}
        strange = sorted(answer.keys() - known)
        if strange:
            raise PayloadError("metric", f"{asked.name} was not asked to measure the model {shown(strange[0])}")
        for metrics in answer.values():
            check_metrics(metrics, asked, ("",), self._ranges, ("",))
        return answer

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        if server.settings.cross_site_evaluation and server.recorder is not None:
            answers = {name: answer or {} for name, answer in server.round.answers(self.key).items()}
            server.recorder.cross_site(answers, server.participants, server.state)
