# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The server, independent of FLARE: it owns the method and its state, hands out tasks and checks results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from cfl_flare.core.arrays import Archive
from cfl_flare.core.config import require
from cfl_flare.core.errors import PayloadError, TooFewAnswersError
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.seeds import stream
from cfl_flare.engine.early_stopping import EarlyStopping
from cfl_flare.engine.means import Means
from cfl_flare.engine.min_cluster_size import ClusterFloor, check_floor, under_floor
from cfl_flare.engine.partial_sums import no_sums
from cfl_flare.engine.robust import Guard
from cfl_flare.engine.round import Round, cross_models
from cfl_flare.engine.server_optimizer import ServerOptimizer, check_server_optimizer, without_moments
from cfl_flare.engine.settings import ServerSettings, count_of
from cfl_flare.engine.site import Result, Task
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update
from cfl_flare.methods.state import Download, Predict, without
from cfl_flare.methods.wrapper import Clustering
from cfl_flare.results.analysis import analyse, gram
from cfl_flare.results.checkpoints import Progress
from cfl_flare.results.curves import Scored
from cfl_flare.results.key_metric import ACCURACY, Metric, leading, reported
from cfl_flare.results.metrics import RoundMetrics, measure_round
from cfl_flare.results.pooled import with_pooled
from cfl_flare.results.recorder import Recorder
from cfl_flare.training.ensemble import Served


class Server:
    """Runs a method over its participants, a round at a time. FLARE's aggregator and the in-process loop both use it.

    A round is: ``tasks``, then ``accept`` or ``fail`` for each participant in any order, then ``finish_round``.

    Args:
        method: the method.
        layout: of what travels of the model.
        participants: all of them, in the order in which they are averaged.
        settings: the schedule.
        state: the state to start from.
        recorder: where results are written; None for none.
        progress: where an interrupted run was; None at a run's start.
        logits: what models predict on the server's indicator samples, for a method that needs it.
        archive: where a method that ``archives`` keeps its arrays; None is a temporary folder.
        complete: makes a whole model of one that the run leaves, where private layers do not travel; None elsewhere.
        scored: what participants' histograms of scores are of; None where none are asked for.
        bootstrap: how often participants draw their test splits anew to measure the final models.

    Attributes:
        state: the server's state.
        progress: what it knows besides the state.
        floor: what a cluster needs, and what that changed.
        rejected: the number of refused results, by reason code.
        only_train: participants that cannot measure a model without training it, and are not asked to.
        drawn: which measures participants compute on draws of their test splits; none for all.
        means: that were made before, against which those of each round are held; None in a simulation.
    """

    def __init__(
        self,
        method: Method,
        layout: Layout,
        participants: Sequence[Participant],
        settings: ServerSettings,
        state: ServerState,
        recorder: Recorder | None = None,
        progress: Progress | None = None,
        logits: Predict | None = None,
        archive: Archive | None = None,
        complete: Callable[[Params], Params] | None = None,
        scored: Scored | None = None,
        bootstrap: int = 0,
    ):
        require(bool(participants), "run: there are no participants")
        self.method, self.layout, self.settings, self._logits = method, layout, settings, logits
        self._complete, self._scored, self._bootstrap, self._recorder = complete, scored, bootstrap, recorder
        self.participants, self.state, self.drawn = {p.name: p for p in participants}, state, tuple[str, ...]()
        require(len(self.participants) == len(participants), "run: two participants have the same name")
        asked = self._asked()
        require(
            asked >= method.plan(state).fewest,
            f"method {method.name}: k = {method.clusters} clusters need as many participants in the first round, but "
            f"only {asked} of {len(participants)} take part; lower k or raise sample",
        )
        method.check(layout, settings.num_rounds)
        check_floor(method, state, settings, participants)
        settings.early_stopping.check(any(p.tested for p in participants))
        self.floor = ClusterFloor(method, settings, self.participants)
        self._guard = Guard(method, settings, self.participants)
        if state.bank:  # without models on the server, there is nothing to move
            check_server_optimizer(method, settings)
        self._optimizer = ServerOptimizer(settings)
        self.archive = (archive or Archive()) if method.traits.archives else None
        if self.archive is not None:
            self.archive.rewind(state.round)
        self.progress = progress or Progress()
        self.rejected = self.progress.rejected
        self.only_train: set[str] = set()
        self.means: Means | None = None
        self._common: list[str] = []
        self._whole: dict[str, Params] = {}
        self._round = self._new_round({}, {})

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or the run has ended early."""
        return self.state.round >= self.settings.num_rounds or self.progress.stopped is not None

    @property
    def bank(self) -> Mapping[str, Params]:
        """The models that tasks name."""
        return {**self.state.bank, **self._whole}

    def admit(self, participants: Sequence[Participant]) -> None:
        """Replaces the participants, between two rounds, by these, some of whom are new.

        A new one is treated like any that was not in the rounds before.
        """
        self.participants.clear()  # in place: others hold it
        self.participants.update({p.name: p for p in participants})

    def _asked(self) -> int:
        """How many participants train in the coming round."""
        everyone = len(self.participants)
        return everyone if self.method.plan(self.state).everyone else count_of(self.settings.sample, everyone)

    def sampled(self) -> set[str]:
        """Who trains in the coming round; apart from the method's plan, it depends on the seed and the round alone."""
        names, count, drawn = list(self.participants), self._asked(), self.method.plan(self.state).draw
        rng = stream(self.settings.seed, "sample", self.state.round if drawn is None else drawn)
        return set(names) if count == len(names) else {names[i] for i in rng.permutation(len(names))[:count]}

    def tasks(self) -> dict[str, Task]:
        """The coming round's tasks: who trains, and whose served model is measured.

        The models that are sent in round r are those of the end of round r - 1: measuring them on arrival costs no
        extra traffic. After the last round the tasks are to measure only.
        """
        training, done = set() if self.finished else self.sampled(), self.state.round
        evaluate = done > 0 and (self.finished or done % self.settings.evaluate_every == 0)
        measuring = self.participants.keys() - self.only_train if evaluate else set()
        asked = [name for name in self.participants if name in training or name in measuring]
        self.floor.renew()
        state = self.floor.shown_to(self.state)
        downloads = {name: self.method.distribute(state, name) for name in asked}
        tasks = {name: Task.of(sent, name in training, evaluate) for name, sent in downloads.items()}
        if self.finished and self._bootstrap:
            tasks = {name: replace(task, bootstrap=self._bootstrap, drawn=self.drawn) for name, task in tasks.items()}
        if self.finished and self.settings.cross_site_evaluation:
            cross = cross_models(self._left(), self.method.clusters_in(self.state), self.state.bank, self._whole)
            tasks = {name: replace(task, cross=cross) for name, task in tasks.items()}
        self._round.close()
        self._round = self._new_round(tasks, downloads)
        return tasks

    def _new_round(self, tasks: Mapping[str, Task], downloads: Mapping[str, Download]) -> Round:
        of_run = (self.layout.nbytes, no_sums(self.method, self.settings), self.settings.clip_norm)
        return Round(self.participants, tasks, downloads, self.bank, *of_run, self._scored)

    def models(self) -> dict[str, Served]:
        """The models that the run would leave if it ended now; private layers are as they were at its start."""
        left, complete = self._left(), self._complete
        if complete is None:
            return left
        found = {}
        for slot, served in left.items():
            whole = tuple(map(complete, served.models))
            private = whole[0].arrays().keys() - served.models[0].arrays().keys()
            found[slot] = replace(served, models=whole, untrained=served.untrained | private)
        return found

    def _left(self) -> dict[str, Served]:
        """The same without private layers."""
        return self.method.models(self.floor.shown_to(self.state), self.layout)

    def accept(self, result: Result, site: str) -> None:
        """Checks all of a result, then keeps it.

        Raises:
            PayloadError: it does not fit what was asked; nothing of it is kept.
        """
        try:
            self._round.accept(result, site, self.method, self.state)
        except PayloadError as error:
            self.refuse(result.participant, error, site)

    def refuse(self, participant: str, error: PayloadError, site: str) -> None:
        """Counts a refused result, notes it if the participant is the site's own, and raises its reason."""
        self.rejected[error.code] += 1
        own = participant in self.participants and self.participants[participant].site == site
        if own and participant not in self._round.results:
            self._round.fail([participant], f"{error.code}: {error}")
        raise error

    def hosted_by(self, site: str) -> list[str]:
        """The names of a site's participants."""
        return [name for name, p in self.participants.items() if p.site == site]

    def fail(self, participants: Sequence[str], reason: str) -> None:
        """Notes that participants sent nothing that could be used."""
        self._round.fail(participants, reason)

    def fail_sites(self, reasons: Mapping[str, str]) -> None:
        """The same for all participants of some sites, each site with its reason."""
        for site, reason in reasons.items():
            self.fail(self.hosted_by(site), reason)

    @property
    def results(self) -> Mapping[str, Result]:
        """The current round's accepted results by participant, without their updates."""
        return self._round.results

    def finish_round(self) -> RoundMetrics | None:
        """Assigns, averages, and records.

        Returns:
            What was measured of the round before, if this one measured it.

        Raises:
            TooFewAnswersError: too many rounds in a row had too few valid results.
        """
        self._round.end()
        done, measured = self.finished, self._measure()
        enough = None if measured is None else self._check_stopping(measured)
        if not done:
            self._advance()
            if not self.finished:
                self.progress.stopped = enough
        self._round.close()
        return measured

    @property
    def metric(self) -> Metric:
        """The metric that tells how good the run is; of those that participants report, once they have."""
        return Metric(ACCURACY) if self.progress.metric is None else Metric(**self.progress.metric)

    def deciding(self, measured: RoundMetrics) -> dict[str, float]:
        """The numbers by which a run chooses its best round and ends: of participants' metrics, what most report."""
        of_most = {n: v for n, v in measured.deciding().items() if Metric(n).of_participants.name in self._common}
        return {**{n: v for n, v in measured.deciding().items() if "served_" not in n}, **of_most}

    @property
    def early_stopping(self) -> EarlyStopping:
        """Which round is the best, and when the run ends, by metrics that participants report."""
        return self.settings.early_stopping.following(self.metric)

    def _check_stopping(self, measured: RoundMetrics) -> str | None:
        """Keeps the models of the best round so far. Returns why the run should end early; None if not.

        The measured round's models are those of the state as it is now, before the coming round moves it.
        """
        stopping, progress = self.early_stopping, self.progress
        number, scalars = measured.record["round"], self.deciding(measured)
        best = None if stopping.key is None else stopping.key.best(progress.best, number, scalars)
        if best != progress.best:
            progress.best = best
            if self._recorder is not None:
                self._recorder.best(self.models(), self.state.round)
        watched = stopping.watched
        progress.watched = None if watched is None else watched.best(progress.watched, number, scalars)
        return stopping.reached(progress.watched, number, scalars)

    def _measure(self) -> RoundMetrics | None:
        """Completes the last round's record with the results' metrics of its models."""
        if self.progress.record is None:
            return None
        served = self._round.metrics()
        share = self.settings.max_weight_share
        self._common, named = reported(served.values(), self._round.tested), self.settings.early_stopping.named
        if self._common and self.progress.metric is None:
            self.progress.metric = asdict(leading(named, self._common))
        ranked = {m.name: m for m in (Metric(ACCURACY), *(m.of_participants for m in named), self.metric)}
        of_round = (self.progress.record, served, self.participants, self.state)
        measured = measure_round(*of_round, self.method.clusters_in(self.state), share, ranked.values())
        if self._scored is not None:
            measured = with_pooled(measured, self._round.scores(), self.participants, self.state.assignment, share)
        if self.finished:
            self._round.count(measured.record)
        self.progress.record = None
        if self._recorder is not None:
            self._recorder.round(measured, self.state, self.participants)
        return measured

    def _advance(self) -> None:
        """One round of the method on the accepted updates, in the participants' order."""
        before = self.state
        updates, trained, sums = self._trusted(before)
        enough = max(count_of(self.settings.min_answers, self._round.training), self.method.plan(before).fewest)
        analysis: dict[str, Any] = {}
        assignment = self._step(before, updates) if len(updates) >= enough else None
        if assignment is not None:
            if assignment and not sums:  # it is of single models
                assignment = {name: self.state.assignment[name] for name in trained}
                analysis = self._analyse(before, updates, assignment)
            analysis |= {**self.state.notes, **self._guard.notes}
            analysis |= self.floor.changes(self.state, self._guard.notes)
            self.progress.failed_rounds = 0
        else:
            self.state = replace(before, round=before.round + 1)
            self.progress.failed_rounds += 1
        most = min(self.settings.max_failed_rounds, self.settings.num_rounds)  # a run fails if all its rounds do
        if self.progress.failed_rounds >= most:
            raise TooFewAnswersError(
                f"{self.progress.failed_rounds} rounds in a row had fewer than {enough} valid results; "
                f"the last reasons: {dict(Counter(self._round.failures.values()).most_common(5))}"
            )
        old, new = before.assignment, self.state.assignment
        moved = sum(name in old and old[name] != cluster for name, cluster in new.items())
        if self.method.clusters_in(self.state):
            analysis["moved_share"] = moved / len(old) if old else None
        self.progress.record = {
            "round": before.round,
            "trained": trained,
            "failed": dict(self._round.failures),
            "aggregated": assignment is not None,
            "moved": moved,
            **({"clipped": self._round.clipped} if self._round.clipped else {}),
            **analysis,
            "bytes_down": 0,
            "bytes_up": 0,
            "seconds": 0.0,
        }
        self._round.count(self.progress.record)

    def _trusted(self, before: ServerState) -> tuple[Sequence[Update], list[str], bool]:
        """The updates with which the round goes on, whose they are, and whether some are means of several."""
        updates, trained, sums = self._round.updates()
        outliers = self._guard.outliers(before, updates)
        for name, why in outliers.items():
            self.rejected["outlier"] += 1
            self.fail([name], f"outlier: {why}")
        return without(updates, outliers), [name for name in trained if name not in outliers], sums

    def _step(self, before: ServerState, updates: Sequence[Update]) -> Assignment | None:
        """E-step, under the floor of a cluster's size if there is one, and M-step; returns the assignment.

        The M-step's means say where the models of the bank go; a server's optimizer, if there is one, says how far. If
        with earlier ones they would give those of too few sites, none is made, and there is no assignment.
        """
        equipped = replace(without_moments(before), logits=self._logits, archive=self.archive, notes={})
        equipped = self.floor.shown_to(equipped)
        assignment = self.method.assign(equipped, self._guard.weighed(updates))
        assignment = under_floor(self.method, equipped, updates, assignment)
        updates = self._guard.averaged(before, updates, assignment)
        if self.means is not None and (why := self.means.make(before, updates, self.participants)) is not None:
            self.fail([*self._round.tasks], why)
            return None
        moved = self.method.aggregate(equipped, updates, assignment) if len(updates) else before.after({}, assignment)
        self.state = self._optimizer.step(before, moved)
        return assignment

    def _analyse(self, before: ServerState, updates: Sequence[Update], assignment: Assignment) -> dict[str, Any]:
        """The analysis of the round's clustering, for its record; its Gram matrix is written if requested."""
        if not Clustering.of(self.method, before).sees(updates):
            return {}
        round_ = (self.method, before, self.state, updates, assignment)
        if self._recorder is not None and self.settings.keep_features:
            self._recorder.features(before.round, gram(*round_), assignment)
        return analyse(*round_)

    def forget(self, number: int) -> None:
        """Deletes archived arrays that only rounds before this one need."""
        if self.archive is not None:
            self.archive.prune(number)

    def close(self, extra: Mapping[str, Any]) -> None:
        """Writes the summary and the models."""
        if self._recorder is not None:
            facts = {**extra, "rejected": dict(self.rejected), **self.floor.facts(self.state)}
            key, best, stopped = self.early_stopping.key, self.progress.best, self.progress.stopped
            known = None if key is None or best is None else {"metric": key.name, "mode": key.mode, **best}
            facts |= {"seed": self.settings.seed, "metric": asdict(self.metric), "best": known, "stopped": stopped}
            if self._bootstrap:
                drawn = {name: result.bootstrap for name, result in self._round.results.items() if result.bootstrap}
                self._recorder.bootstrap(drawn, self.participants, self.settings.max_weight_share)
            if self._scored is not None:
                found = (self._round.scores(), self.participants, self.state.assignment, self.state.round - 1)
                self._recorder.curves(self._scored.curves(*found, self.settings.max_weight_share))
            if self.settings.cross_site_evaluation:
                results = self._round.results
                cross = {name: results[name].cross for name in self.participants if name in results}
                self._recorder.cross_site(cross, self.participants, self.state)
            self._recorder.close(without_moments(self.state), self.models(), self.participants, self.method, facts)
