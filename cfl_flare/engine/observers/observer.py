# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What an observer is: it asks participants for something besides training, and makes something of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

from torch import Tensor

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.store import Progress
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.membership import NO_RULE, AttackRule
from cfl_flare.training.settings import TrainSettings


class Answers(Protocol):
    """What an observer sees of the current round; see `cfl_flare.engine.round.Round`."""

    @property
    def tested(self) -> int: ...

    def metrics(self) -> dict[str, Mapping[str, float]]: ...

    def answers(self, key: str) -> dict[str, Any]: ...


class Running(Protocol):
    """What rounds and observers see of the server; see `cfl_flare.engine.server.Server`."""

    method: Method
    layout: Layout
    settings: ServerSettings
    state: ServerState
    participants: dict[str, Participant]
    progress: Progress
    recorder: Recorder | None
    observers: Sequence[Observer]
    assembled: dict[str, Params]

    @property
    def bank(self) -> Mapping[str, Params]: ...

    @property
    def round(self) -> Answers: ...

    @property
    def finished(self) -> bool: ...

    def models(self) -> dict[str, Served]: ...

    def travelling_models(self) -> dict[str, Served]: ...


@dataclass(frozen=True)
class Asked:
    """What an answer is checked against: whose it is, what was asked, and all that the participant sent."""

    participant: Participant
    task: Task
    result: Result

    @property
    def name(self) -> str:
        return self.participant.name

    def require(self, holds: bool, words: str, code: str = "metric") -> None:
        """Raises a PayloadError of these words on the participant unless the condition holds."""
        if not holds:
            raise PayloadError(code, f"{self.name}: {words}")

    def require_tested(self) -> None:
        untested = "it measured something, and said before that it has no test samples"
        self.require(self.participant.tested, untested)


@dataclass(frozen=True)
class Probe:
    """A participant whose served model is measured, at its site.

    Attributes:
        learner: the participant.
        served: the model with which it predicts.
        models: all models that came with the round, by slot.
        settings: how participants train and what they measure.
        sends_counts: its test split is large enough for counts of its samples, by score or by class.
        rule: the site operator's, on membership attacks.
    """

    learner: Learner
    served: Served
    models: Mapping[str, Params]
    settings: TrainSettings
    sends_counts: bool = False
    rule: AttackRule = NO_RULE

    @cached_property
    def outputs(self) -> Tensor:
        """The served model's outputs on the participant's test split."""
        return self.learner.tested(self.served)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """What the task measures of them."""
        return self.learner.measured(self.outputs)


class Observer:
    """One concern of a run besides rounds, assignments and means. A subclass overrides the steps that it needs.

    Both sides are in one class. The server calls `begin`, `question`, `check`, `answered`, `aggregated`, `collect`,
    `done` and `close` of an object that has the run's settings; a site calls `answer` of the class.

    Attributes:
        key: of its question in a task, and of its answer in a result; empty if it asks nothing.
        setting: of the job's training, without which a site answers nothing; empty if it always answers.
        asks_untested: participants without test samples are asked as well.
        stop: why the run should end early; None if it should not.
    """

    key: ClassVar[str] = ""
    setting: ClassVar[str] = ""
    asks_untested: ClassVar[bool] = False
    stop: str | None = None

    def begin(self, server: Running) -> None:
        """Before a round's tasks are made."""

    def question(self, server: Running, participant: str) -> Any:
        """What a participant is asked whose served model is measured, as JSON values; None for nothing."""
        return None

    def slots(self, question: Any) -> Sequence[str]:
        """Names of the models that a participant needs to answer."""
        return ()

    @classmethod
    def is_in_job(cls, settings: TrainSettings) -> bool:
        """Whether the job asks for it: a site takes the job's word, and not the server's."""
        return not cls.setting or bool(getattr(settings, cls.setting))

    @staticmethod
    def answer(question: Any, probe: Probe) -> Any:
        """A participant's answer: JSON values, or an array; None for none."""
        return None

    def check(self, answer: Any, request: Asked) -> Any:
        """Checks an answer and returns it as it is kept.

        Raises:
            PayloadError: nobody asked for it, or it is not what was asked for.
        """
        return answer

    def answered(self, server: Running) -> None:
        """All answers of a round are in."""

    def aggregated(
        self,
        server: Running,
        before: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> Mapping[str, Any]:
        """What a round's record says of its clustering; called where updates are of single participants."""
        return {}

    def collect(self, server: Running, measured: RoundMetrics) -> RoundMetrics:
        """What this round's answers say of the models of the round before, added to that round's record."""
        return measured

    def done(self, server: Running, measured: RoundMetrics | None) -> None:
        """A round is over, and its checkpoint is written."""

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        """The run is over; facts for its summary are added in place."""
