# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Baselines: Finetune, the global model tuned before use, and Local, no federation at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from cfl_flare.core.params import Params
from cfl_flare.methods.base import Method
from cfl_flare.methods.fedavg import FedAvg
from cfl_flare.methods.state import Assignment, Download, ServerState, Update
from cfl_flare.methods.traits import Traits
from cfl_flare.training.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Finetune(FedAvg):
    """FedAvg, and each participant trains the global model for one more local round before it predicts with it."""

    name: ClassVar[str] = "finetune"
    paper: ClassVar[str] = "Cheng et al. 2021; thesis sec. 7.4"

    finetune: bool = True

    @property
    def label(self) -> str:
        """The name alone, which already says that it fine-tunes."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """No federation: each participant trains alone, and its model never leaves it."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "baseline of all five papers"

    @property
    def traits(self) -> Traits:
        """Nothing travels; participants start from models built on their sites."""
        refusal = "need a common model, and there is none; leave them out"
        return Traits(starts_on_site=True, serves_one=True, no_penalties=refusal)

    def start(self, initial: Callable[[int], Params], participants: Sequence[str] = ()) -> ServerState:
        """Nothing is kept on the server; every site builds the same untrained model from the run's seed."""
        return ServerState(bank={})

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Nothing is sent."""
        return Download()

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Trains the participant's own model further."""
        learner.memory["model"] = learner.train(self.serve(learner, download))
        return Update(learner.participant, learner.samples)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """There is nothing to average."""
        return state.after({})

    def serve(self, learner: Learner, download: Download) -> Params:
        """The participant's own model."""
        return learner.memory.get("model") or learner.initial(0)
