# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The server, independent of FLARE: it owns the method and its state, hands out tasks and checks results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cfl_flare.core.arrays import Archive
from cfl_flare.core.config import require
from cfl_flare.core.errors import DivergedError, PayloadError, TooFewAnswersError
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.seeds import stream
from cfl_flare.core.text import shown
from cfl_flare.engine.earlier_means import Means
from cfl_flare.engine.min_cluster_size import ClusterFloor, check_floor, under_floor
from cfl_flare.engine.observers import Observer, observers_of
from cfl_flare.engine.robust import Guard
from cfl_flare.engine.round import Round
from cfl_flare.engine.server_optimizer import (
    ServerOptimizer,
    check_server_optimizer,
    without_moments,
)
from cfl_flare.engine.settings import ServerSettings, count_of
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update
from cfl_flare.methods.state import Download, Predict, leave_out
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.store import Progress
from cfl_flare.training.ensemble import Served

# Codes of failures, where the numbers of a model or its loss became too large.
DIVERGED_CODES = (DivergedError.failure, "non_finite")


def is_divergence(reason: str) -> bool:
    """Whether a participant's failure is that its training diverged."""
    return any(f"{code}: " in reason for code in DIVERGED_CODES)


@dataclass(frozen=True)
class Equipment:
    """What a server works with besides its method and its settings.

    Attributes:
        recorder: where results are written; None for none.
        progress: where an interrupted run was; empty at a run's start.
        logits: what models predict on the server's indicator samples, for a method that needs it.
        archive: where a method that ``archives`` keeps its arrays; None is a temporary folder.
        complete: makes a whole model of one that the run leaves, where private layers do not travel; None elsewhere.
        earlier_means: that were made before, against which those of each round are held; None in a simulation.
        observers: what the run does besides rounds, assignments and means; None for those of its settings.
    """

    recorder: Recorder | None = None
    progress: Progress = field(default_factory=Progress)
    logits: Predict | None = None
    archive: Archive | None = None
    complete: Callable[[Params], Params] | None = None
    earlier_means: Means | None = None
    observers: Sequence[Observer] | None = None


class Server:
    """Runs a method over its participants, a round at a time. `cfl_flare.engine.drive.drive` calls it.

    A round is: `tasks`, then `accept` or `Round.fail` for each participant in any order, then `finish_round`.

    Args:
        layout: of what travels of the model.
        participants: all of them, in the order in which they are averaged.
        state: the state to start from.

    Attributes:
        progress: what it knows besides the state.
        floor: what a cluster needs, and what that changed.
        round: the current round.
        assembled: models of a task that are made of parts, by slot.
    """

    def __init__(
        self,
        method: Method,
        layout: Layout,
        participants: Sequence[Participant],
        settings: ServerSettings,
        state: ServerState,
        equipment: Equipment | None = None,
    ):
        require(bool(participants), "run: there are no participants")
        self._equipment = equipment = equipment or Equipment()
        self.method, self.layout, self.settings, self.state = (
            method,
            layout,
            settings,
            state,
        )
        self.recorder, self.progress = equipment.recorder, equipment.progress
        self.earlier_means = equipment.earlier_means
        self.observers = (
            observers_of() if equipment.observers is None else equipment.observers
        )
        self.participants = {p.name: p for p in participants}
        require(
            len(self.participants) == len(participants),
            "run: two participants have the same name",
        )
        count = self._sample_size()
        require(
            count >= method.plan(state).fewest,
            f"method {method.name}: k = {method.clusters} clusters need as many participants in the first round, but "
            f"only {count} of {len(participants)} take part; lower k or raise sample",
        )
        method.check(layout, settings.num_rounds)
        self._note_labels(participants)
        check_floor(method, state, settings, participants)
        settings.early_stopping.check(any(p.tested for p in participants))
        self.floor = ClusterFloor(method, settings, self.participants)
        self._guard = Guard(method, settings, self.participants)
        if state.bank:  # without models on the server, there is nothing to move
            check_server_optimizer(method, settings)
        self._optimizer = ServerOptimizer(settings)
        self.archive = (
            (equipment.archive or Archive()) if method.traits.archives else None
        )
        if self.archive is not None:
            self.archive.rewind(state.round)
        self.assembled: dict[str, Params] = {}
        self.round = Round(self, {}, {})

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or the run has ended early."""
        return (
            self.state.round >= self.settings.num_rounds
            or self.progress.stopped is not None
        )

    @property
    def bank(self) -> Mapping[str, Params]:
        """The models that tasks name."""
        return {**self.state.bank, **self.assembled}

    @property
    def rejected(self) -> Counter[str]:
        return self.progress.rejected

    def admit(self, participants: Sequence[Participant]) -> None:
        """Replaces the participants, between two rounds, by these, some of whom are new.

        A new one is treated like any that was not in the rounds before.
        """
        self.participants.clear()  # in place: others hold it
        self.participants.update({p.name: p for p in participants})
        self._note_labels(participants)

    def _note_labels(self, participants: Sequence[Participant]) -> None:
        """Keeps the first label of each participant; a ConfigError if the method lists groups that nobody named."""
        groups = self.method.traits.named_groups
        named = {
            p.name: p.label
            for p in participants
            if p.label is not None and p.label in groups
        }
        self.state = replace(self.state, labels={**named, **self.state.labels})
        nobody = f"nobody named one of the groups {shown(groups)}; set CFL_GROUP at the sites"
        require(
            not groups or bool(self.state.labels),
            f"method {self.method.label}: {nobody}",
        )

    def _sample_size(self) -> int:
        everyone = len(self.participants)
        return (
            everyone
            if self.method.plan(self.state).everyone
            else count_of(self.settings.sample, everyone)
        )

    def sampled(self) -> set[str]:
        """Who trains in the coming round; apart from the method's plan, it depends on the seed and the round alone."""
        names, count, drawn = (
            list(self.participants),
            self._sample_size(),
            self.method.plan(self.state).draw,
        )
        rng = stream(
            self.settings.seed, "sample", self.state.round if drawn is None else drawn
        )
        return (
            set(names)
            if count == len(names)
            else {names[i] for i in rng.permutation(len(names))[:count]}
        )

    def tasks(self, only_train: Collection[str] = ()) -> dict[str, Task]:
        """The coming round's tasks: who trains, and whose served model is measured.

        The models that are sent in round r are those of the end of round r - 1: measuring them on arrival costs no
        extra traffic. After the last round the tasks are to measure only.

        Args:
            only_train: participants that cannot measure a model without training it, and are not asked to.
        """
        for observer in self.observers:
            observer.begin(self)
        training, done = set() if self.finished else self.sampled(), self.state.round
        evaluate = done > 0 and (
            self.finished or done % self.settings.evaluate_every == 0
        )
        measuring = self.participants.keys() - {*only_train} if evaluate else set()
        self.floor.renew()
        state = self.floor.shown_to(self.state)
        names = [
            name for name in self.participants if name in training or name in measuring
        ]
        downloads = {name: self.method.distribute(state, name) for name in names}
        training -= {name for name, sent in downloads.items() if not sent.trains}
        downloads = {
            name: sent
            for name, sent in downloads.items()
            if name in training or name in measuring
        }
        tasks = {
            name: self._task(name, sent, name in training, evaluate)
            for name, sent in downloads.items()
        }
        self.round.close()
        self.round = Round(self, tasks, downloads)
        return tasks

    def _task(self, name: str, sent: Download, train: bool, evaluate: bool) -> Task:
        """A participant's task, with the observers' questions if its served model is measured."""
        task, questions, models = (
            Task.of(sent, train, evaluate),
            dict[str, Any](),
            list[str](),
        )
        for observer in self.observers if evaluate else ():
            question = observer.question(self, name)
            if question is not None:
                questions[observer.key] = question
                models += observer.slots(question)
        return replace(task, questions=questions, models=tuple(dict.fromkeys(models)))

    def models(self) -> dict[str, Served]:
        """The models that the run would leave if it ended now; private layers are as they were at its start."""
        left, complete = self.travelling_models(), self._equipment.complete
        if complete is None:
            return left
        models = {}
        for slot, served in left.items():
            whole_models = tuple(map(complete, served.models))
            private = whole_models[0].arrays().keys() - served.models[0].arrays().keys()
            models[slot] = replace(
                served, models=whole_models, untrained=served.untrained | private
            )
        return models

    def travelling_models(self) -> dict[str, Served]:
        """The same without private layers."""
        return self.method.list_models(self.floor.shown_to(self.state), self.layout)

    def accept(self, result: Result, site: str) -> None:
        """Checks all of a result, then keeps it; a PayloadError says why nothing of it is kept."""
        try:
            self.round.accept(result, site)
        except PayloadError as error:
            self.refuse(result.participant, error, site)

    def refuse(self, participant: str, error: PayloadError, site: str) -> None:
        """Counts a refused result, notes it if the participant is the site's own, and raises its reason."""
        self.rejected[error.code] += 1
        hosted = (
            participant in self.participants
            and self.participants[participant].site == site
        )
        if hosted and participant not in self.round.results:
            self.round.fail([participant], f"{error.code}: {error}")
        raise error

    def hosted_by(self, site: str) -> list[str]:
        return [name for name, p in self.participants.items() if p.site == site]

    def fail_sites(self, reasons: Mapping[str, str]) -> None:
        """Notes that the participants of some sites sent nothing that could be used, each site with its reason."""
        for site, reason in reasons.items():
            self.round.fail(self.hosted_by(site), reason)

    def finish_round(self) -> RoundMetrics | None:
        """Assigns, averages, and records.

        Returns:
            What was measured of the round before, if this one measured it.

        Raises:
            TooFewAnswersError: too many rounds in a row had too few valid results.
        """
        self.round.end()
        for observer in self.observers:
            observer.answered(self)
        last, measured = self.finished, self._measure()
        if not last:
            self._advance()
            if not self.finished and measured is not None:
                reasons = (
                    observer.stop
                    for observer in self.observers
                    if observer.stop is not None
                )
                self.progress.stopped = next(reasons, None)
        self.round.close()
        return measured

    def _too_few(self, enough: int) -> TooFewAnswersError:
        """The error of a run whose last rounds had fewer than ``enough`` valid results."""
        rounds, failures = (
            self.progress.failed_rounds,
            Counter(self.round.failures.values()),
        )
        diverged = sum(
            count for reason, count in failures.items() if is_divergence(reason)
        )
        if 2 * diverged > failures.total():
            return DivergedError(
                f"training diverges: {diverged} of {self.round.training} participants sent NaN or infinity in the last "
                f"of {rounds} rounds in a row without enough valid results\n"
                "hint: lower the learning rate lr, or look for outliers in numbers that are not scaled"
            )
        return TooFewAnswersError(
            f"{rounds} rounds in a row had fewer than {enough} valid results; "
            f"the last reasons: {dict(failures.most_common(5))}"
        )

    def _measure(self) -> RoundMetrics | None:
        """Completes the last round's record with the answers on its models."""
        if self.progress.record is None:
            return None
        if self.finished:
            self.round.count(self.progress.record)
        measured = RoundMetrics(self.progress.record)
        self.progress.record = None
        for observer in self.observers:
            measured = observer.collect(self, measured)
        return measured

    def _advance(self) -> None:
        """One round of the method on the accepted updates, in the participants' order."""
        before = self.state
        updates, trained, sums = self._trusted(before)
        enough = max(
            count_of(self.settings.min_answers, self.round.training),
            self.method.plan(before).fewest,
        )
        analysis: dict[str, Any] = {}
        assignment = self._step(before, updates) if len(updates) >= enough else None
        if assignment is not None:
            if assignment and not sums:  # it is of single models
                assignment = {name: self.state.assignment[name] for name in trained}
                for observer in self.observers:
                    analysis |= observer.aggregated(self, before, updates, assignment)
            analysis |= {**self.state.notes, **self._guard.notes}
            analysis |= self.floor.changes(self.state, self._guard.notes)
            self.progress.failed_rounds = 0
        else:
            self.state = replace(before, round=before.round + 1)
            self.progress.failed_rounds += 1
        most = min(
            self.settings.max_failed_rounds, self.settings.num_rounds
        )  # a run fails if all its rounds do
        if self.progress.failed_rounds >= most:
            raise self._too_few(enough)
        old, new = before.assignment, self.state.assignment
        moved = sum(
            name in old and old[name] != cluster for name, cluster in new.items()
        )
        if self.method.count_clusters(self.state):
            analysis["moved_share"] = moved / len(old) if old else None
        self.progress.record = {
            "round": before.round,
            "trained": trained,
            "failed": dict(self.round.failures),
            "aggregated": assignment is not None,
            "moved": moved,
            **({"clipped": self.round.clipped} if self.round.clipped else {}),
            **analysis,
            "bytes_down": 0,
            "bytes_up": 0,
            "seconds": 0.0,
        }
        self.round.count(self.progress.record)

    def _trusted(self, before: ServerState) -> tuple[Sequence[Update], list[str], bool]:
        """The updates with which the round goes on, whose they are, and whether some are means of several."""
        updates, trained, sums = self.round.updates()
        outliers = self._guard.outliers(before, updates)
        for name, why in outliers.items():
            self.rejected["outlier"] += 1
            self.round.fail([name], f"outlier: {why}")
        return (
            leave_out(updates, outliers),
            [name for name in trained if name not in outliers],
            sums,
        )

    def _step(
        self, before: ServerState, updates: Sequence[Update]
    ) -> Assignment | None:
        """E-step, under the floor of a cluster's size if there is one, and M-step; returns the assignment.

        The M-step's means say where the models of the bank go; a server's optimizer, if there is one, says how far. If
        with earlier ones they would give those of too few sites, none is made, and there is no assignment.
        """
        equipped = replace(
            without_moments(before),
            logits=self._equipment.logits,
            archive=self.archive,
            notes={},
        )
        equipped = self.floor.shown_to(equipped)
        assignment = self.method.assign(equipped, self._guard.weighed(updates))
        assignment = under_floor(self.method, equipped, updates, assignment)
        updates = self._guard.averaged(before, updates, assignment)
        if self.earlier_means is not None:
            why = self.earlier_means.make(
                before, updates, self.participants, self._equipment.complete
            )
            if why is not None:
                self.round.fail([*self.round.tasks], why)
                return None
        moved = (
            self.method.aggregate(equipped, updates, assignment)
            if len(updates)
            else before.after({}, assignment)
        )
        self.state = replace(self._optimizer.step(before, moved), labels=before.labels)
        return assignment

    def forget(self, number: int) -> None:
        """Deletes archived arrays that only rounds before this one need."""
        if self.archive is not None:
            self.archive.prune(number)

    def close(self) -> None:
        """Ends the run; with a recorder, its summary and its models are written."""
        facts = {"rejected": dict(self.rejected), **self.floor.facts(self.state)}
        facts |= {"seed": self.settings.seed, "stopped": self.progress.stopped}
        for observer in self.observers:
            observer.close(self, facts)
        if self.recorder is not None:
            of_run = (
                without_moments(self.state),
                self.models(),
                self.participants,
                self.method,
            )
            self.recorder.close(*of_run, facts)
