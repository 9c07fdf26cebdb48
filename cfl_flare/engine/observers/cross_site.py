# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""In the end every model is measured on every participant's test split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

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
            slots.append(
                next(
                    (s for s, known in server.state.bank.items() if known is model),
                    f"whole/{name}/{i}",
                )
            )
            if slots[-1] not in server.state.bank:
                server.assembled[slots[-1]] = model
        named[name] = name, slots, served.vote, list(served.parts)
    return named


def slots_of(models: Sequence[Named]) -> list[str]:
    return [slot for _, slots, _, _ in models for slot in slots]


def models_of(models: Sequence[Named], probe: Probe) -> dict[str, Served]:
    """The models that a question names, at the participant that is asked."""
    return {
        name: Served(tuple(probe.models[slot] for slot in slots), vote, tuple(parts))
        for name, slots, vote, parts in models
    }


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
            clusters = [
                cluster_slot(k)
                for k in range(server.method.count_clusters(server.state))
            ]
            models = named_models(
                server, {k: left[k] for k in clusters if k in left} or left
            )
            self._models = [list(named) for named in models.values()]
        return self._models

    def slots(self, question: Any) -> Sequence[str]:
        return slots_of(question)

    @staticmethod
    def answer(question: Any, probe: Probe) -> dict[str, dict[str, float]]:
        return {
            name: probe.learner.evaluate(served)
            for name, served in models_of(question, probe).items()
        }

    def check(self, answer: Any, request: Asked) -> Any:
        """Metrics of models that were named."""
        by_model = isinstance(answer, Mapping) and all(
            isinstance(model, str) for model in answer
        )
        request.require(
            by_model,
            f"cross = {shown(answer)} should have metrics for each model",
            "malformed",
        )
        strange = sorted(
            answer.keys()
            - {name for name, *_ in request.task.questions.get(self.key) or ()}
        )
        request.require(
            not strange, f"it was not asked to measure the model {shown(strange[:1])}"
        )
        for metrics in answer.values():
            check_metrics(metrics, request, ("",), self._ranges)
        return answer

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        if server.settings.cross_site_evaluation and server.recorder is not None:
            answers = {
                name: answer or {}
                for name, answer in server.round.answers(self.key).items()
            }
            server.recorder.cross_site(answers, server.participants, server.state)
