# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's controller for a study: sites check in once, and each candidate's rounds are those of a job of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel
from torch import nn

from cfl_flare.core.arrays import Archive
from cfl_flare.core.config import build, from_dict, unmarked
from cfl_flare.core.errors import AbortedError, CFLError, RunFailedError
from cfl_flare.core.params import Layout
from cfl_flare.core.seeds import derive
from cfl_flare.core.settings import shows
from cfl_flare.engine.job_settings import ControllerSettings
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Result
from cfl_flare.engine.study.candidates import Candidate, StudySettings, every_candidate, first_candidates
from cfl_flare.engine.study.file import as_kept, finished, journal_of, save
from cfl_flare.engine.study.halving import VALIDATION, Journal, Study
from cfl_flare.flare.aggregator import ClusteringAggregator
from cfl_flare.flare.compat import component_policy, simulated
from cfl_flare.flare.controller import RESULTS, ClusteredController
from cfl_flare.flare.study.folder import StudyFolder
from cfl_flare.flare.study.messages import CANDIDATE, SPLIT, Counts, check_answer, take_counts
from cfl_flare.flare.study.trainer import AtSites
from cfl_flare.methods import Participant, build_method, describe_method
from cfl_flare.results.checkpoints import Checkpoint
from cfl_flare.results.key_metric import leading
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.store import ARCHIVE


class StudyController(ClusteredController):
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
        super().__init__(facts, made_by, aggregator_id="", persistor_id="", **settings)
        self.model, self.run_name, self.more, self.study = model, run_name, more, study
        self.resume_from = resume_from
        self.everyone: list[Participant] = []
        self.counts: dict[str, dict[str, int]] = {}
        self._running: tuple[str, str] | None = None

    def run(self) -> None:
        """The whole job: check in, candidates, verdict."""
        try:
            self._begin()
            self._study_all()
        except AbortedError as error:
            self.info(str(error))
        except CFLError as error:
            self.panic(str(error))

    def _begin(self) -> None:
        """Reads the job and, if it resumes a study, what that has found."""
        self._training, policy = self._check_job(), component_policy(self.fl_ctx)
        real = not simulated(self.fl_ctx)
        self._how = from_dict(StudySettings, unmarked(self.study or {}), "study")
        self._methods = [build_method(one, policy) for one in unmarked(self.more or [])]
        self._module = build(self.model, nn.Module, "model", policy)
        self._settings = self._settings.judged(self._training.built_task(policy), Layout.of(self._module))
        self._schedule = self._settings.at_real_sites() if real else self._settings.in_simulation()
        self._means = self._earlier_means()
        every_candidate(self._module, self._schedule.num_rounds, self._methods)  # its names are folders
        self._task = self._training.built_task(policy)
        self._candidates = first_candidates(self._module, self._methods, self._task)
        compared = {key: value for key, value in asdict(self._how).items() if key != "minutes"}
        self._kept = as_kept(
            {
                **(self.facts or {}),
                "model": self.model,
                "run": asdict(self._schedule),
                "candidates": [one.described() for one in self._candidates],
                "study": compared,
            }
        )
        self._folder = StudyFolder.open(self.run_name, self.resume_from, self._kept, self.fl_ctx)

    def _study_all(self) -> None:
        """Runs the study, or what is left of it."""
        results, rounds = Path(self.get_run_dir()) / RESULTS, self._schedule.num_rounds
        begun = self._folder.begun
        if not finished(begun, rounds):
            self.everyone = self._gathered()
            trainer = AtSites(self, self._folder.path, self._module, self._task, self._training.measures)

            def keep(journal: Journal) -> None:
                save(self._folder.path, running, journal, self._kept)
                self._folder.publish(results)

            running = Study(
                trainer, self._candidates, self._how, journal_of(begun), keep, self.info, seed=self._schedule.seed
            )
            trainer.check(self._candidates)
            keep(running.journal)  # so that it can be resumed from the first round on
            verdict = running.run()
            for sentence in verdict.sentences():
                self.info(sentence)
            if verdict.rounds == rounds:
                self._folder.clean()
        self._folder.publish(results)
        self._attempt.done()
        self._write_page(results)
        self.info(f"results: {results}")

    # ---- One candidate's rounds ----

    @property
    def schedule(self) -> ServerSettings:
        """The schedule of all candidates."""
        return self._schedule

    def open(self, candidate: Candidate, split: str = VALIDATION) -> None:
        """Makes a candidate the one whose rounds come next, from its last checkpoint.

        Args:
            candidate: the candidate.
            split: on which it is measured; what is measured on test samples is in no run's results.
        """
        self.aggregator = self._aggregator(candidate)
        schedule = self._schedule_of(candidate)
        division, store = self.aggregator.division(self.fl_ctx), self._folder.checkpoints(candidate.name)
        begun = Checkpoint.read(store, division.whole)[0] if store.versions() else None
        self._store, self._running = store, (candidate.name, split)
        recorder = None
        if split == VALIDATION:
            facts = {**self._facts(self.aggregator, schedule), "name": self.run_name, "sites_left_out": self.left_out}
            recorded = (0, None) if begun is None else (begun.recorded, begun.last)
            recorder = Recorder(self._folder.path / candidate.name, facts, self.aggregator.model, *recorded)
            self._recorder = recorder
        people = [replace(p, tested=self.counts[p.name][split] > 0) for p in self.everyone]
        state, progress = (None, None) if begun is None else (begun.state, begun.progress)
        more = (recorder, self.fl_ctx, state, Archive(store.folder / ARCHIVE), self._training, progress)
        self.aggregator.begin(people, schedule, *more)
        self.aggregator.running.means = self._means
        measures = self._training.measures
        judged = leading(schedule.early_stopping.named, [*self._task.ranges(measures)]).name
        self.aggregator.running.drawn = (judged, *measures)
        if recorder is not None:
            recorder.begin(candidate.method.label, schedule.num_rounds, schedule.early_stopping.named)

    def _schedule_of(self, candidate: Candidate) -> ServerSettings:
        """The schedule of one candidate. At real sites each starts from models of its own.

        From one model, two candidates whose clusters differ by a hospital would give that hospital's update. Splits,
        batches and draws of the test splits are the sites', and stay the same for all.
        """
        schedule = self._scheduled()
        real = not simulated(self.fl_ctx)
        return replace(schedule, seed=derive(schedule.seed, candidate.name)) if real else schedule

    def _aggregator(self, candidate: Candidate) -> ClusteringAggregator:
        facts: dict[str, Any] = self.facts or {}
        held: dict[str, Any] | None = None
        if candidate.method.traits.indicator is not None:
            held = {key: facts[key] for key in ("source", "data") if key in facts}
        method = describe_method(candidate.method)
        aggregator = ClusteringAggregator(method, self.model, held, private=candidate.private)
        aggregator.fl_ctx = self.fl_ctx  # as FLARE does for a component of the job's
        return aggregator

    def train(self, rounds: int) -> None:
        """Trains the open candidate until it has so many rounds.

        Raises:
            AbortedError: the job was aborted.
        """
        while self.aggregator.running.state.round < rounds:
            if not self._round():
                raise AbortedError("the study was aborted")

    def measure(self, candidate: Candidate, rounds: int, split: str) -> dict[str, Result]:
        """What each participant that answers measures of a candidate; on validation samples, this ends its run.

        Raises:
            RunFailedError: the candidate has another number of rounds.
            AbortedError: the job was aborted.
        """
        if self._running != (candidate.name, split):
            self.open(candidate, split)
        server = self.aggregator.running
        if server.state.round != rounds:
            raise RunFailedError(f"study: {candidate.name} has {server.state.round} rounds, not {rounds}")
        if not server.finished:
            server.progress.stopped = f"after {rounds} of {self._schedule.num_rounds} rounds, as asked"
        if split == VALIDATION:
            self._round()
        else:
            self._ask()
        self._running = None
        if self.abort_signal.triggered:
            raise AbortedError("the study was aborted")
        return dict(server.results)

    # ---- What differs from a job of one run ----

    def _hosted_by(self, result: FLModel, site: str, expected: Collection[str], most: int) -> list[Participant]:
        counts: Counts = take_counts(result, expected)
        hosted = super()._hosted_by(result, site, expected, most)
        self.counts |= {name: dict(own) for name, own in counts.items()}
        return hosted

    def _memory_of(self) -> str | None:
        return self.resume_from

    def _shared(self) -> dict[str, Any]:
        told = {key: value for key, value in (self.facts or {}).items() if key in ("data", "training")}
        own = {"model": self.model, "more": self.more, **told}
        job = {"seed": self._schedule.seed, "run_name": self.run_name, "num_rounds": self._schedule.num_rounds}
        return {**unmarked(own), **job}

    def _admit(self) -> None:
        super()._admit()
        self.everyone = list(self.aggregator.running.participants.values())

    def _told(self, site: str) -> dict[str, Any]:
        assert self._running is not None
        name, split = self._running
        return {**super()._told(site), CANDIDATE: name, SPLIT: split}

    def _accept(self, result: FLModel) -> bool:
        assert self._running is not None
        check_answer(result, *self._running)
        return super()._accept(result)

    def _announce(self, metrics: FLModel) -> None:
        """Nothing: FLARE's own metrics and experiment tracking know one run a job."""

    def _close(self, metrics: FLModel) -> None:
        self.aggregator.running.close({"sites_left_out": self.left_out})

    def save_state(self) -> None:
        """Writes a checkpoint of the open candidate. If it cannot be written, the study goes on."""
        server = self.aggregator.running
        why = Checkpoint(server.state, server.progress, {}, self._recorder.last).save(self._store, {})
        if why is not None:
            self.error(f"no checkpoint after round {server.state.round}: {why}")
        if kept := self._store.versions():
            server.forget(kept[0])
