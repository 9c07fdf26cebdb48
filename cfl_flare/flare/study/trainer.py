# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Trains a study's candidates at the sites of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from cfl_flare.clustering.gap import NUMBER
from cfl_flare.core.errors import ConfigError, RunFailedError
from cfl_flare.core.shares import bounded_weights
from cfl_flare.engine.observers.bootstrap import Bootstrap
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.study.candidates import Candidate, private_layers, search_candidate, search_rounds
from cfl_flare.engine.task import Result
from cfl_flare.methods import Participant
from cfl_flare.results.comparison import AtHospital, Measured
from cfl_flare.results.metrics import leading
from cfl_flare.results.run_dir import ROUNDS, read_lines
from cfl_flare.training.tasks import LearningTask


class Rounds(Protocol):
    """What drives the rounds of one candidate at a time; see `cfl_flare.flare.study.controller.StudyController`.

    Attributes:
        everyone: the participants.
        counts: how many validation and test samples each has.
        schedule: of all candidates.
    """

    everyone: list[Participant]
    counts: dict[str, dict[str, int]]

    @property
    def schedule(self) -> ServerSettings:
        """The schedule of all candidates."""
        ...

    def check(self, candidate: Candidate) -> None:
        """Raises a ConfigError if a candidate cannot be trained with the participants."""
        ...

    def train(self, candidate: Candidate, rounds: int) -> None:
        """Trains a candidate until it has this many rounds, and measures it on validation samples."""
        ...

    def measure(self, candidate: Candidate, rounds: int, split: str) -> Mapping[str, Result]:
        """What each participant that answers measures of a candidate."""
        ...

    def warning(self, message: str) -> None:
        """Writes to the job's log."""
        ...


class AtSites:
    """A `cfl_flare.engine.study.halving.Trainer` over FLARE.

    Args:
        controller: drives the rounds.
        folder: the study's.
        module: the untrained model.
        task: what models predict.
        measures: the names of what participants measure beside what the task always does.
    """

    def __init__(
        self, controller: Rounds, folder: Path, module: nn.Module, task: LearningTask, measures: Iterable[str]
    ):
        self._controller, self._folder, self._module, self._task = controller, folder, module, task
        schedule = controller.schedule
        self.rounds = schedule.num_rounds
        self.metric = leading(schedule.early_stopping.named, [*task.ranges(measures)])
        self._draws: dict[tuple[str, str], tuple[int, int]] = {}

    @property
    def participants(self) -> int:
        """How many hospitals there are."""
        return len(self._controller.everyone)

    def check(self, candidates: Sequence[Candidate]) -> None:
        """Builds the candidates' servers, which check them against the participants, before any of them trains.

        Raises:
            ConfigError: one cannot be trained with them.
        """
        for candidate in candidates:
            self._controller.check(candidate)

    def search(self) -> tuple[Mapping[str, Any], int]:
        """Trains as ``wecfl:k=auto`` until it has found the number of clusters.

        Raises:
            RunFailedError: too few participants answered.
        """
        candidate, rounds = search_candidate(self.rounds), search_rounds(self.rounds)
        self.train(candidate, rounds)
        notes = [line[NUMBER] for line in read_lines(self._folder / candidate.name / ROUNDS) if NUMBER in line]
        if not notes:
            raise RunFailedError("study: too few participants answered to find the number of clusters; start it again")
        return notes[-1], rounds

    def private_layers(self, candidate: Candidate) -> str | None:
        """See `cfl_flare.engine.study.candidates.private_layers`."""
        return private_layers(self._module, candidate.method, self._task)

    def train(self, candidate: Candidate, rounds: int) -> None:
        """Trains a candidate until it has so many rounds, from its last checkpoint.

        Raises:
            RunFailedError: it cannot be trained with the participants that there are.
        """
        try:
            self._controller.train(candidate, rounds)
        except ConfigError as error:  # what the user asked for was checked before; this one was found by the study
            raise RunFailedError(str(error)) from error

    def measured(self, candidate: Candidate, rounds: int, split: str) -> Measured:
        """What every participant that answers measures of a candidate.

        One that measured other draws of its samples than before, or none, cannot be compared and is left out.

        Raises:
            RunFailedError: nobody answered, or the candidate has another number of rounds.
        """
        key, found, weights = f"served_{self.metric.name}", dict[str, AtHospital](), self._weights()
        results = self._controller.measure(candidate, rounds, split)
        for name in (p.name for p in self._controller.everyone if p.name in results):  # however they arrived
            result, drawn = results[name], results[name].answers.get(Bootstrap.key)
            if key not in result.metrics or drawn is None or key not in drawn.values:
                continue
            draws = drawn.draw, len(drawn.values[key])
            if self._draws.setdefault((name, split), draws) != draws:
                self._controller.warning(f"{candidate.name}: {name} is left out: it measured other draws than before")
                continue
            values, tested = np.array(drawn.values[key], np.float64), self._controller.counts[name][split]
            found[name] = AtHospital(weights[name], tested, drawn.draw, result.metrics[key], values)
        if not found:
            raise RunFailedError(f"study: no participant measured {self.metric.name} on {split} samples")
        return found

    def _weights(self) -> dict[str, float]:
        """Each participant's training samples; of a site's, no more than its share counts."""
        everyone, share = self._controller.everyone, self._controller.schedule.max_weight_share
        return bounded_weights({p.name: p.samples for p in everyone}, {p.name: p.site for p in everyone}, share)
