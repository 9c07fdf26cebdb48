# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's controller for a study: sites check in once, and each candidate's rounds are those of a job of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel

from cfl_flare.core.config import from_dict, require, unmarked
from cfl_flare.core.errors import AbortedError, ConfigError, RunFailedError
from cfl_flare.core.seeds import derive
from cfl_flare.core.settings import extends
from cfl_flare.core.shares import bounded_weights
from cfl_flare.core.text import shown
from cfl_flare.engine.drive import Checkpoints, drive
from cfl_flare.engine.observers.bootstrap import Bootstrap
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.study.candidates import (
    Candidate,
    StudySettings,
    every_candidate,
    first_candidates,
    private_layers,
)
from cfl_flare.engine.study.halving import TEST, VALIDATION, Study
from cfl_flare.engine.study.journal import Journal, Search, as_json, finished
from cfl_flare.engine.task import MAX_SAMPLES, Result, is_count
from cfl_flare.flare.aggregator import Start
from cfl_flare.flare.compat import component_policy, simulated
from cfl_flare.flare.schema import malformed
from cfl_flare.flare.several import CANDIDATE, COUNTS, SPLIT, SPLITS, SeveralController
from cfl_flare.flare.study.folder import StudyFolder
from cfl_flare.flare.wire import content_of
from cfl_flare.methods import Participant, build_method
from cfl_flare.results.comparison import AtHospital, Measured
from cfl_flare.results.metrics import leading
from cfl_flare.results.store import Checkpoint


class StudyController(SeveralController):
    """Trains a study's candidates one after the other at the sites of a job, and says whether to cluster.

    It is the study's `cfl_flare.engine.study.halving.Trainer`. Each candidate has its own checkpoints and results; the
    floor of a cluster's sites and the largest weight of one site hold for each. It also takes the arguments of
    `cfl_flare.flare.several.SeveralController`, without the runs.

    Args:
        more: the user's own candidates: ``[{"method": "ifca", "k": 3}]``.
        study: the settings of `cfl_flare.engine.study.candidates.StudySettings`.
        resume_from: name of the study to resume; None for a new one.
    """

    @extends(SeveralController.__init__, "runs", "initial_ckpt")
    def __init__(
        self,
        more: list[dict[str, Any]] | None = None,
        study: dict[str, Any] | None = None,
        resume_from: str | None = None,
        **arguments: Any,
    ):
        super().__init__(**arguments)
        self.more, self.study, self.resume_from = more, study, resume_from
        self._memory_of = resume_from
        self.counts: dict[str, dict[str, int]] = {}
        self._measured: tuple[str, int, dict[str, Result]] = ("", 0, {})
        self._draws: dict[tuple[str, str], tuple[int, int]] = {}

    def _prepare(self) -> None:
        """Reads the job and, if it resumes a study, what that has found."""
        super()._prepare()
        self.rounds = self._schedule.num_rounds
        measured = [*self._task.ranges(self._training.measures)]
        self.metric = leading(self._schedule.early_stopping.named, measured)
        policy = component_policy(self.fl_ctx)
        self._study_settings = from_dict(
            StudySettings, unmarked(self.study or {}), "study"
        )
        methods = [build_method(method, policy) for method in unmarked(self.more or [])]
        every_candidate(self._module, self.rounds, methods)  # its names are folders
        self._candidates = first_candidates(self._module, methods, self._task)
        facts = {
            **(self.facts or {}),
            "model": self.model,
            "run": asdict(self._schedule),
            "candidates": [candidate.described() for candidate in self._candidates],
            "study": {
                key: value
                for key, value in asdict(self._study_settings).items()
                if key != "minutes"
            },
        }
        self._study_facts = as_json(facts)
        self._folder = StudyFolder.open(
            self.run_name, self.resume_from, self._study_facts, self.fl_ctx
        )

    def _run_all(self) -> None:
        """Runs the study, or what is left of it."""
        earlier = self._folder.earlier
        if not finished(earlier, self.rounds):
            self._settle_classes(self._earlier_checkpoint())
            self.everyone = self._gathered()

            def store(journal: Journal) -> None:
                study.write(self._folder.path, self._study_facts)
                self._folder.publish(self.results)

            of_study = (
                self,
                self._candidates,
                self._study_settings,
                Journal.of(earlier),
            )
            study = Study(*of_study, store, self.info, seed=self._schedule.seed)
            for candidate in (
                self._candidates
            ):  # the servers check them against the participants, before any trains
                self._start(candidate, TEST)
            store(study.journal)  # so that it can be resumed from the first round on
            verdict = study.run()
            for sentence in verdict.sentences():
                self.info(sentence)
            if verdict.rounds == self.rounds:
                self._folder.clean()
        self._folder.publish(self.results)
        self._finish()

    def _earlier_checkpoint(self) -> Checkpoint | None:
        """A checkpoint of the study that is resumed: all candidates have the same classes."""
        stores = (
            self._folder.checkpoints(candidate.name) for candidate in self._candidates
        )
        store = next((store for store in stores if store.versions()), None)
        return None if store is None else Checkpoint.read(store, self._layout)[0]

    # ---- What a study asks of its trainer ----

    @property
    def names(self) -> list[str]:
        return [participant.name for participant in self.everyone]

    @property
    def most_clusters(self) -> int:
        """How many clusters can be as large as each has to be."""
        sites = [participant.site for participant in self.everyone]
        samples = sum(participant.samples for participant in self.everyone)
        return self._schedule.floor.clusters(sites, samples)

    def search(self) -> Search:
        return Search.made(self.train, self._folder.path, self.rounds)

    def private_layers(self, candidate: Candidate) -> str | None:
        return private_layers(self._module, candidate.method, self._task)

    def train(self, candidate: Candidate, rounds: int) -> None:
        """Trains a candidate until it has this many rounds, and measures it on validation samples.

        Raises:
            RunFailedError: it cannot be trained with the participants that there are.
            AbortedError: the job was aborted.
        """
        try:
            server, checkpoints = self._start(candidate, VALIDATION)
            if not drive(server, self, checkpoints, rounds):
                raise AbortedError("the job was aborted")
        except ConfigError as error:  # what the user asked for was checked before; this one was found by the study
            raise RunFailedError(str(error)) from error
        self._measured = (
            candidate.name,
            rounds,
            self._results_of(server, candidate, rounds),
        )

    def measured(self, candidate: Candidate, rounds: int, split: str) -> Measured:
        """What every participant that answers measures of a candidate.

        One that measured other draws of its samples than before, or none, cannot be compared and is left out.

        Raises:
            RunFailedError: nobody answered, or the candidate has another number of rounds.
            AbortedError: the job was aborted.
        """
        if split == TEST:
            results = self._tested(candidate, rounds)
        else:
            if self._measured[:2] != (candidate.name, rounds):
                self.train(candidate, rounds)
            results = self._measured[2]
        key, measured, weights = (
            f"served_{self.metric.name}",
            dict[str, AtHospital](),
            self._weights(),
        )
        for name in (
            p.name for p in self.everyone if p.name in results
        ):  # however they arrived
            result, drawn = results[name], results[name].answers.get(Bootstrap.key)
            if key not in result.metrics or drawn is None or key not in drawn.values:
                continue
            draws = drawn.draw, len(drawn.values[key])
            if self._draws.setdefault((name, split), draws) != draws:
                self.warning(
                    f"{candidate.name}: {name} is left out: it measured other draws than before"
                )
                continue
            values, tested = (
                np.array(drawn.values[key], np.float64),
                self.counts[name][split],
            )
            measured[name] = AtHospital(
                weights[name], tested, drawn.draw, result.metrics[key], values
            )
        if not measured:
            raise RunFailedError(
                f"study: no participant measured {self.metric.name} on {split} samples"
            )
        return measured

    def _tested(self, candidate: Candidate, rounds: int) -> dict[str, Result]:
        """What each participant that answers measures of a candidate on test samples."""
        server, _ = self._start(candidate, TEST)
        server.progress.stopped = f"after {rounds} rounds, to be measured"
        if not self.exchange(server, server.tasks()):
            raise AbortedError("the job was aborted")
        return self._results_of(server, candidate, rounds)

    @staticmethod
    def _results_of(
        server: Server, candidate: Candidate, rounds: int
    ) -> dict[str, Result]:
        if server.state.round != rounds:
            raise RunFailedError(
                f"study: {candidate.name} has {server.state.round} rounds, not {rounds}"
            )
        return dict(server.round.results)

    def _weights(self) -> dict[str, float]:
        """Each participant's training samples; of a site's, no more than its share counts."""
        samples, sites = (
            {p.name: p.samples for p in self.everyone},
            {p.name: p.site for p in self.everyone},
        )
        return bounded_weights(samples, sites, self._schedule.max_weight_share)

    def _start(self, candidate: Candidate, split: str) -> tuple[Server, Checkpoints]:
        """A candidate from its last checkpoint; what is measured on test samples is in no run's results."""
        store = self._folder.checkpoints(candidate.name)
        checkpoint = (
            Checkpoint.read(store, self._layout)[0] if store.versions() else None
        )
        start = Start(
            [replace(p, tested=self.counts[p.name][split] > 0) for p in self.everyone],
            Checkpoints(store),
            checkpoint,
            self._folder.path / candidate.name if split == VALIDATION else None,
            0 if checkpoint is None else checkpoint.recorded,
            {"name": self.run_name},
            announces=False,
            drawn=(self.metric.name, *self._training.measures),
        )
        return self._open(
            candidate, {CANDIDATE: candidate.name, SPLIT: split}, start
        ), start.checkpoints

    def _schedule_of(self, candidate: Candidate) -> ServerSettings:
        """The schedule of one candidate. At real sites each starts from models of its own.

        From one model, two candidates whose clusters differ by a hospital would give that hospital's update. Splits,
        batches and draws of the test splits are the sites', and stay the same for all.
        """
        seed, real = self._schedule.seed, not simulated(self.fl_ctx)
        return (
            replace(self._schedule, seed=derive(seed, candidate.name))
            if real
            else self._schedule
        )

    # ---- What differs from a job of several runs ----

    def _hosted_by(
        self, result: FLModel, site: str, expected: Collection[str], most: int
    ) -> list[Participant]:
        counts = take_counts(result, expected)
        hosted = super()._hosted_by(result, site, expected, most)
        self.counts |= counts
        return hosted

    def _of_runs(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "more": self.more,
            "num_rounds": self.rounds,
            "run_name": self.run_name,
        }


def take_counts(
    message: FLModel, expected: Collection[str]
) -> dict[str, dict[str, int]]:
    """Takes the numbers of validation and test samples of the ``expected`` participants out of a site's check-in.

    Raises:
        PayloadError: a number is missing, unexpected, or no number of samples.
    """
    content = content_of(message.meta)
    if "error" in content:
        return {}
    said = content.pop(COUNTS, None)
    wanted = f"{COUNTS} should have the numbers of samples of {len(expected)} participants, not {shown(said)}"
    require(isinstance(said, dict) and said.keys() == {*expected}, wanted, malformed)
    for name, counts in said.items():
        wanted = f"{name}: {shown(counts)} should be its numbers of {' and '.join(SPLITS)} samples"
        require(
            isinstance(counts, dict) and counts.keys() == {*SPLITS}, wanted, malformed
        )
        for split, count in counts.items():
            wanted = f"{name}: {split} = {shown(count)} should be a whole number in 0..{MAX_SAMPLES}"
            require(is_count(count, 0, MAX_SAMPLES), wanted, malformed)
    return {name: dict(counts) for name, counts in said.items()}
