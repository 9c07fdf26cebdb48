# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's controller for a study: sites check in once, and each candidate's rounds are those of a job of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel

from cfl_flare.core.config import from_dict, unmarked
from cfl_flare.core.errors import AbortedError, RunFailedError
from cfl_flare.core.seeds import derive
from cfl_flare.core.settings import shows
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.job_settings import ControllerSettings
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Result
from cfl_flare.engine.study.candidates import Candidate, StudySettings, every_candidate, first_candidates
from cfl_flare.engine.study.file import as_kept, finished, journal_of, save
from cfl_flare.engine.study.halving import TEST, VALIDATION, Journal, Study
from cfl_flare.flare.compat import component_policy, simulated
from cfl_flare.flare.rounds import Start
from cfl_flare.flare.several import CANDIDATE, SeveralController
from cfl_flare.flare.study.folder import StudyFolder
from cfl_flare.flare.study.messages import SPLIT, Counts, take_counts
from cfl_flare.flare.study.trainer import AtSites
from cfl_flare.methods import Participant, build_method
from cfl_flare.results.checkpoints import Checkpoint
from cfl_flare.results.metrics import leading


class StudyController(SeveralController):
    """Trains a study's candidates one after the other at the sites of a job, and says whether to cluster.

    It also takes the settings of `ServerSettings` and `ControllerSettings`. Each candidate has its own checkpoints and
    results; the floor of a cluster's sites and the largest weight of one site hold for each.

    Args:
        model: ``{"class_path", "args"}`` of the module that is trained.
        run_name: names the study's folder under the state root.
        more: the user's own candidates: ``[{"method": "ifca", "k": 3}]``.
        study: the settings of `cfl_flare.engine.study.candidates.StudySettings`.
        resume_from: name of the study to resume; None for a new one.
        facts: about the study; ``data`` and ``training`` must be as the sites' executors have them.
        made_by: the software that made the job; see `cfl_flare.flare.compatibility`.
    """

    @shows(ServerSettings, ControllerSettings, as_fields=True)
    def __init__(
        self,
        model: dict[str, Any],
        run_name: str,
        more: list[dict[str, Any]] | None = None,
        study: dict[str, Any] | None = None,
        resume_from: str | None = None,
        facts: dict[str, Any] | None = None,
        made_by: dict[str, str] | None = None,
        **settings: Any,
    ):
        super().__init__(model, run_name, facts=facts, made_by=made_by, **settings)
        self.more, self.study, self.resume_from = more, study, resume_from
        self.counts: dict[str, dict[str, int]] = {}
        self._measured: tuple[str, int, dict[str, Result]] = ("", 0, {})

    def _prepare(self) -> None:
        """Reads the job and, if it resumes a study, what that has found."""
        super()._prepare()
        policy = component_policy(self.fl_ctx)
        self._study_settings = from_dict(StudySettings, unmarked(self.study or {}), "study")
        methods = [build_method(method, policy) for method in unmarked(self.more or [])]
        every_candidate(self._module, self._schedule.num_rounds, methods)  # its names are folders
        self._candidates = first_candidates(self._module, methods, self._task)
        compared = {key: value for key, value in asdict(self._study_settings).items() if key != "minutes"}
        self._study_facts = as_kept(
            {
                **(self.facts or {}),
                "model": self.model,
                "run": asdict(self._schedule),
                "candidates": [candidate.described() for candidate in self._candidates],
                "study": compared,
            }
        )
        self._folder = StudyFolder.open(self.run_name, self.resume_from, self._study_facts, self.fl_ctx)

    def _run_all(self) -> None:
        """Runs the study, or what is left of it."""
        rounds, earlier = self._schedule.num_rounds, self._folder.begun
        if not finished(earlier, rounds):
            self.everyone = self._gathered()
            trainer = AtSites(self, self._folder.path, self._module, self._task, self._training.measures)

            def store(journal: Journal) -> None:
                save(self._folder.path, study, journal, self._study_facts)
                self._folder.publish(self.results)

            of_study = (trainer, self._candidates, self._study_settings, journal_of(earlier))
            study = Study(*of_study, store, self.info, seed=self._schedule.seed)
            trainer.check(self._candidates)
            store(study.journal)  # so that it can be resumed from the first round on
            verdict = study.run()
            for sentence in verdict.sentences():
                self.info(sentence)
            if verdict.rounds == rounds:
                self._folder.clean()
        self._folder.publish(self.results)
        self._finish()

    # ---- What `cfl_flare.flare.study.trainer.AtSites` asks for ----

    @property
    def schedule(self) -> ServerSettings:
        """The schedule of all candidates."""
        return self._schedule

    def check(self, candidate: Candidate) -> None:
        """Builds a candidate's server, which checks it against the participants.

        Raises:
            ConfigError: it cannot be trained with them.
        """
        self._open(candidate, self._tagged(candidate, TEST), self._start(candidate, TEST))

    def train(self, candidate: Candidate, rounds: int) -> None:
        """Trains a candidate until it has this many rounds, and measures it on validation samples.

        Raises:
            AbortedError: the job was aborted.
        """
        tag, start = self._tagged(candidate, VALIDATION), self._start(candidate, VALIDATION)
        server = self._drive(candidate, tag, start, rounds)
        self._measured = (candidate.name, rounds, self._results_of(server, candidate, rounds))

    def measure(self, candidate: Candidate, rounds: int, split: str) -> dict[str, Result]:
        """What each participant that answers measures of a candidate.

        Raises:
            RunFailedError: the candidate has another number of rounds.
            AbortedError: the job was aborted.
        """
        if split == VALIDATION:
            if self._measured[:2] != (candidate.name, rounds):
                self.train(candidate, rounds)
            return self._measured[2]
        server = self._open(candidate, self._tagged(candidate, split), self._start(candidate, split))
        server.progress.stopped = f"after {rounds} rounds, to be measured"
        if not self._transport(server).exchange(server, server.tasks()):
            raise AbortedError("the job was aborted")
        return self._results_of(server, candidate, rounds)

    @staticmethod
    def _results_of(server: Server, candidate: Candidate, rounds: int) -> dict[str, Result]:
        if server.state.round != rounds:
            raise RunFailedError(f"study: {candidate.name} has {server.state.round} rounds, not {rounds}")
        return dict(server.results)

    @staticmethod
    def _tagged(candidate: Candidate, split: str) -> dict[str, str]:
        return {CANDIDATE: candidate.name, SPLIT: split}

    def _start(self, candidate: Candidate, split: str) -> Start:
        """A candidate from its last checkpoint; what is measured on test samples is in no run's results."""
        store, task = self._folder.checkpoints(candidate.name), self._task
        checkpoint = Checkpoint.read(store, self._layout)[0] if store.versions() else None
        measures = self._training.measures
        judged = leading(self._schedule.early_stopping.named, [*task.ranges(measures)]).name
        return Start(
            [replace(p, tested=self.counts[p.name][split] > 0) for p in self.everyone],
            Checkpoints(store),
            checkpoint,
            self._folder.path / candidate.name if split == VALIDATION else None,
            0 if checkpoint is None else checkpoint.recorded,
            {"name": self.run_name},
            announces=False,
            drawn=(judged, *measures),
        )

    def _schedule_of(self, candidate: Candidate) -> ServerSettings:
        """The schedule of one candidate. At real sites each starts from models of its own.

        From one model, two candidates whose clusters differ by a hospital would give that hospital's update. Splits,
        batches and draws of the test splits are the sites', and stay the same for all.
        """
        seed, real = self._schedule.seed, not simulated(self.fl_ctx)
        return replace(self._schedule, seed=derive(seed, candidate.name)) if real else self._schedule

    # ---- What differs from a job of several runs ----

    def _hosted_by(self, result: FLModel, site: str, expected: Collection[str], most: int) -> list[Participant]:
        counts: Counts = take_counts(result, expected)
        hosted = super()._hosted_by(result, site, expected, most)
        self.counts |= {name: dict(of_splits) for name, of_splits in counts.items()}
        return hosted

    def _memory_of(self) -> str | None:
        return self.resume_from

    def _shared(self) -> dict[str, Any]:
        shared = {key: value for key, value in super()._shared().items() if key != "runs"}
        return {**shared, "more": unmarked(self.more), "num_rounds": self._schedule.num_rounds}
