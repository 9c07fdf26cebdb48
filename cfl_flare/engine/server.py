# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The server at work, without FLARE: it owns the method and its state, gives orders and checks answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cfl_flare.core.archive import Archive
from cfl_flare.core.config import require
from cfl_flare.core.errors import CFLError, PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.seeds import stream
from cfl_flare.engine.min_cluster_size import regrouped, small_clusters
from cfl_flare.engine.partial_sums import Carried, no_sums, weighed
from cfl_flare.engine.settings import ServerSettings, count_of
from cfl_flare.engine.site import Answer, CrossModel, Order
from cfl_flare.engine.spool import Spool, Updates
from cfl_flare.methods import Assignment, Method, Participant, ServerState, Update
from cfl_flare.methods.slots import cluster_slot, travelling
from cfl_flare.methods.state import Mapped, Predict
from cfl_flare.results.analysis import analyse, gram
from cfl_flare.results.checkpoints import Progress
from cfl_flare.results.metrics import RoundMetrics, measure_round
from cfl_flare.results.run_dir import Recorder

MAX_SAMPLES = 10**9


class TooFewAnswersError(CFLError):
    """Rounds went by without enough good answers."""


class Server:
    """Runs a method over its participants, a round at a time. FLARE's aggregator and the in-process loop both use it.

    A round is: ``orders``, then ``accept`` or ``fail`` for each participant in any order, then ``finish_round``.

    Args:
        method: the method.
        layout: the model's layout.
        participants: all of them, in the order in which they are averaged.
        settings: what is scheduled.
        state: the state to start from.
        recorder: where results are written; None for none.
        progress: where an interrupted run was; None at a run's start.
        logits: what models predict on the server's indicator samples, for a method that needs it.
        archive: where a method that ``archives`` keeps its arrays; None is a temporary folder.

    Attributes:
        state: the server's state.
        progress: what it knows beside the state.
        rejected: how often answers were refused, by reason code.
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
    ):
        require(bool(participants), "run: there are no participants")
        self.method, self.layout, self.settings, self._logits = method, layout, settings, logits
        self.participants = {p.name: p for p in participants}
        self.state = method.admit(state, list(self.participants))
        require(len(self.participants) == len(participants), "run: two participants have the same name")
        asked = self._asked()
        require(
            asked >= method.needs(state),
            f"method {method.name}: k = {method.clusters} clusters need as many participants in the first round, but "
            f"only {asked} of {len(participants)} take part; lower k or raise sample",
        )
        method.check_model(layout)
        method.check_rounds(settings.num_rounds)
        require(
            method.regroups or not settings.merge_small_clusters,
            f"run: merge_small_clusters: method {method.label} has no step in which they could be; leave it out, and "
            "min_sites_per_cluster still reports them",
        )
        self.archive = (archive or Archive()) if method.archives else None
        if self.archive is not None:
            self.archive.rewind(state.round)
        self.progress = progress or Progress()
        self.rejected = self.progress.rejected
        self._recorder = recorder
        self._spool = Spool(0)
        self._whole: dict[str, Params] = {}
        self._bytes_up = 0
        self._bank_bytes: dict[str, int] = {}
        self._orders: dict[str, Order] = {}
        self._answers: dict[str, Answer] = {}
        self._failures: dict[str, str] = {}
        self._carried = Carried(no_sums(method, settings))
        self._started = time.monotonic()

    @property
    def finished(self) -> bool:
        """All rounds are done, or enough of them."""
        return self.state.round >= self.settings.num_rounds or self.progress.stopped is not None

    @property
    def bank(self) -> Mapping[str, Params]:
        """The models that orders name."""
        return {**self.state.bank, **self._whole}

    def _asked(self) -> int:
        """How many train in the coming round."""
        everyone = len(self.participants)
        return everyone if self.method.asks_all(self.state) else count_of(self.settings.sample, everyone)

    def sampled(self) -> set[str]:
        """Who trains in the coming round; beside the method's wish, it depends on the seed and the round alone."""
        names, count = list(self.participants), self._asked()
        rng = stream(self.settings.seed, "sample", self.method.sampling_round(self.state))
        return set(names) if count == len(names) else {names[i] for i in rng.permutation(len(names))[:count]}

    def orders(self) -> dict[str, Order]:
        """The coming round's orders: who trains, and whose served model is measured.

        The models that are sent in round r are those of the end of round r - 1: measuring them on arrival costs no
        traffic of its own. After the last round the orders are to measure only.
        """
        training = set() if self.finished else self.sampled()
        done = self.state.round
        evaluate = done > 0 and (self.finished or done % self.settings.evaluate_every == 0)
        self._started = time.monotonic()
        self._answers, self._failures, self._bytes_up = {}, {}, 0
        self._carried = Carried(no_sums(self.method, self.settings))
        self._orders = {
            name: self._order(name, name in training, evaluate)
            for name in self.participants
            if evaluate or name in training
        }
        if self.finished and self.settings.cross_site_evaluation:
            cross = self._cross()
            self._orders = {name: replace(order, cross=cross) for name, order in self._orders.items()}
        slots = {slot for order in self._orders.values() for slot in order.needed}
        self._bank_bytes = {
            slot: self._whole[slot].layout.nbytes if slot in self._whole else self.state.layout(slot).nbytes
            for slot in slots
        }
        self._spool.close()
        self._spool = Spool(self.layout.nbytes * sum(order.train for order in self._orders.values()))
        return self._orders

    def _cross(self) -> tuple[CrossModel, ...]:
        """The clusters' models, or what the run leaves where there are none; one that is put together travels whole."""
        found = []
        left = self.method.whole_models(self.state, self.layout)
        clusters = [cluster_slot(k) for k in range(self.method.clusters_in(self.state))]
        for name, served in {k: left[k] for k in clusters if k in left}.items() or left.items():
            slots = []
            for i, model in enumerate(served.models):
                slots.append(next((s for s, known in self.state.bank.items() if known is model), f"whole/{name}/{i}"))
                if slots[-1] not in self.state.bank:
                    self._whole[slots[-1]] = model
            found.append(CrossModel(name, tuple(slots), served.vote))
        return tuple(found)

    def _order(self, participant: str, train: bool, evaluate: bool) -> Order:
        return Order.of(self.method.distribute(self.state, participant), train, evaluate)

    def accept(self, answer: Answer, site: str) -> None:
        """Checks an answer wholly, then keeps it.

        Raises:
            PayloadError: it does not fit what was asked; nothing of it is kept.
        """
        name = answer.participant
        try:
            self._check(answer, site)
        except PayloadError as error:
            self.refuse(name, error)
        self._answers[name] = replace(answer, update=None)
        if answer.update is not None:
            self._bytes_up += sum(self.state.bank[slot].layout.nbytes for slot in answer.update.diffs)
            self._carried.add(answer.update, self.method.weight(answer.update))
            self._spool.put(answer.update)

    def refuse(self, participant: str, error: PayloadError) -> None:
        """Counts and notes a refused answer, and raises its reason."""
        self.rejected[error.code] += 1
        if participant in self._orders and participant not in self._answers:
            self._failures[participant] = f"{error.code}: {error}"
        raise error

    def fail(self, participants: Sequence[str], reason: str) -> None:
        """Notes that participants sent nothing that could be used."""
        self._failures.update({name: reason for name in participants if name in self._orders})

    def fail_sites(self, reasons: Mapping[str, str]) -> None:
        """The same for all participants of some sites, each with its reason."""
        for site, reason in reasons.items():
            self.fail([name for name, p in self.participants.items() if p.site == site], reason)

    def _check(self, answer: Answer, site: str) -> None:
        name, update = answer.participant, answer.update
        if name not in self.participants or self.participants[name].site != site:
            raise PayloadError("unknown_participant", f"{site} hosts no participant {name!r}")
        if name not in self._orders:
            raise PayloadError("not_asked", f"{name} was not asked in this round")
        if name in self._answers:
            raise PayloadError("twice", f"{name} answered twice")
        if answer.error is not None:
            raise PayloadError("participant_failed", f"{name} failed: {answer.error}")
        for found in (answer.metrics, *answer.cross.values()):
            for key, value in found.items():
                if not isinstance(value, (int, float)) or not np.isfinite(value):
                    raise PayloadError("metric", f"{name}: {key} = {value!r} is not a finite number")
        order = self._orders[name]
        strange = sorted(answer.cross.keys() - {model.name for model in order.cross})
        if strange:
            raise PayloadError("metric", f"{name} was not asked to measure {strange[0]!r}")
        if order.train != (update is not None):
            raise PayloadError("no_update", f"{name} was {'' if order.train else 'not '}asked to train")
        if update is not None:
            self._check_update(update, order)

    def _check_update(self, update: Update, order: Order) -> None:
        name, samples, cluster = update.participant, update.samples, update.cluster
        if not isinstance(samples, int) or isinstance(samples, bool) or not 1 <= samples <= MAX_SAMPLES:
            raise PayloadError("samples", f"{name}: samples = {samples!r} should be a whole number in 1..{MAX_SAMPLES}")
        if self.method.picks(self.state, order.slots):
            clusters = self.method.clusters_in(self.state)
            if not isinstance(cluster, int) or isinstance(cluster, bool) or not 0 <= cluster < clusters:
                raise PayloadError("cluster", f"{name}: cluster = {cluster!r} should be in 0..{clusters - 1}")
        elif cluster is not None:
            raise PayloadError(
                "cluster", f"{name}: sent cluster = {cluster!r}, but {self.method.label} assigns on the server"
            )
        expected = self.method.moved_slots(self.state, order.slots, cluster)
        if update.carrier is not None:
            self._carried.check(update, self.participants)
            expected = ()
        if set(update.diffs) != set(expected):
            raise PayloadError("slots", f"{name}: moved {sorted(update.diffs)}, should be {sorted(expected)}")
        for slot, diff in update.diffs.items():
            layout = self.state.bank[slot].layout
            if diff.vector.shape != (layout.size,) or diff.counters.shape != (layout.counter_size,):
                raise PayloadError("shape", f"{name}: {slot} has {diff.vector.shape}, not ({layout.size},)")
            if not np.isfinite(diff.vector).all():
                raise PayloadError("non_finite", f"{name}: {slot} holds NaN or infinity")

    def finish_round(self) -> RoundMetrics | None:
        """Assigns, averages, and records.

        Returns:
            What was measured of the round before, if this one measured it.

        Raises:
            TooFewAnswersError: the last rounds in a row had too few good answers.
        """
        for name in self._orders:
            if name not in self._answers:
                self._failures.setdefault(name, "no answer in time")
        done = self.finished
        measured = self._measure()
        enough = None if measured is None else self._judge(measured)
        if not done:
            self._advance()
            if not self.finished:
                self.progress.stopped = enough
        self._spool.close()
        return measured

    def _judge(self, measured: RoundMetrics) -> str | None:
        """Keeps the models of the best round so far. Returns why the run should end after this one; None if not.

        The measured round's models are those of the state as it is now, before the coming round moves it.
        """
        stopping, progress = self.settings.early_stopping, self.progress
        number, scalars = measured.record["round"], measured.scalars()
        best = None if stopping.key is None else stopping.key.best(progress.best, number, scalars)
        if best != progress.best:
            progress.best = best
            if self._recorder is not None:
                self._recorder.best(self.method.whole_models(self.state, self.layout), self.state.round)
        watched = stopping.watched
        progress.watched = None if watched is None else watched.best(progress.watched, number, scalars)
        return stopping.reached(progress.watched, number, scalars)

    def _measure(self) -> RoundMetrics | None:
        """Completes the last round's record with what the answers say of its models."""
        if self.progress.record is None:
            return None
        metrics = {n: self._answers[n].metrics for n in self.participants if n in self._answers}
        served = {n: m for n, m in metrics.items() if m}
        clusters, gone = self.method.clusters_in(self.state), self.method.gone(self.state)
        measured = measure_round(self.progress.record, served, self.participants, self.state, clusters, gone)
        if self.finished:
            self._count_bytes(measured.record)
        self.progress.record = None
        if self._recorder is not None:
            self._recorder.round(measured, self.state, self.participants)
        return measured

    def _advance(self) -> None:
        """One round of the method on the accepted updates, in the participants' order."""
        before = self.state
        weights, lost = self._carried.resolved()
        self._failures.update(lost)
        kept = self._spool.ordered([name for name in self.participants if name not in lost])
        updates: Sequence[Update] = Mapped(kept, partial(weighed, weights)) if weights else kept
        asked = sum(order.train for order in self._orders.values())
        enough = max(count_of(self.settings.min_answers, asked), self.method.needs(before))
        analysis: dict[str, Any] = {}
        if len(updates) >= enough:
            equipped = replace(before, logits=self._logits, archive=self.archive)
            assignment = self.method.assign(equipped, updates)
            if self.settings.merge_small_clusters:
                fewest = self.settings.min_sites_per_cluster
                assignment = regrouped(self.method, before, updates, assignment, self.participants, fewest)
            self.state = self.method.aggregate(equipped, updates, assignment)
            if assignment and not weights:  # it is of single models
                assignment = {name: self.state.assignment[name] for name in kept.names}
                analysis = analyse(self.method, before, self.state, updates, assignment)
                self._keep_features(before, kept, assignment)
            analysis |= self.method.notes(self.state)
            if self.settings.min_sites_per_cluster > 1:
                analysis["small_clusters"] = self.small_clusters
            self.progress.failed_rounds = 0
        else:
            self.state = replace(before, round=before.round + 1)
            self.progress.failed_rounds += 1
        most = min(self.settings.max_failed_rounds, self.settings.num_rounds)  # a run in which all failed is none
        if self.progress.failed_rounds >= most:
            raise TooFewAnswersError(
                f"{self.progress.failed_rounds} rounds in a row had fewer than {enough} good answers; "
                f"the last reasons: {dict(Counter(self._failures.values()))}"
            )
        old, new = before.assignment, self.state.assignment
        moved = sum(name in old and old[name] != cluster for name, cluster in new.items())
        if self.method.clusters_in(self.state):
            analysis["moved_share"] = moved / len(old) if old else None
        self.progress.record = {
            "round": before.round,
            "trained": list(kept.names),
            "failed": dict(self._failures),
            "aggregated": len(updates) >= enough,
            "moved": moved,
            **analysis,
            "bytes_down": 0,
            "bytes_up": 0,
            "seconds": 0.0,
        }
        self._count_bytes(self.progress.record)

    def _keep_features(self, before: ServerState, updates: Updates, assignment: Assignment) -> None:
        """Writes the round's Gram matrix, where it is asked for."""
        if self._recorder is not None and self.settings.keep_features:
            products = gram(self.method, before, self.state, updates)
            self._recorder.features(before.round, products, assignment)

    def _count_bytes(self, record: dict[str, Any]) -> None:
        """Adds this round's traffic: a model travels once to a site, however many of its participants need it."""
        wanted: dict[str, list[str]] = {}
        for name, order in self._orders.items():
            wanted.setdefault(self.participants[name].site, []).extend(order.needed)
        record["bytes_down"] += sum(self._bank_bytes[slot] for slots in wanted.values() for slot in travelling(slots))
        record["bytes_up"] += self._bytes_up
        record["seconds"] = round(record["seconds"] + time.monotonic() - self._started, 3)

    def forget(self, number: int) -> None:
        """No one will go back to a round before this one."""
        if self.archive is not None:
            self.archive.prune(number)

    @property
    def small_clusters(self) -> list[int]:
        """The clusters in use with fewer sites than the run asks for."""
        return small_clusters(self.state.assignment, self.participants, self.settings.min_sites_per_cluster)

    def close(self, extra: Mapping[str, Any]) -> None:
        """Writes the summary and the models."""
        if self._recorder is not None:
            facts = {**extra, "rejected": dict(self.rejected), "seed": self.settings.seed}
            facts["small_clusters"] = self.small_clusters
            key, best = self.settings.early_stopping.key, self.progress.best
            facts["best"] = None if key is None or best is None else {"metric": key.name, "mode": key.mode, **best}
            facts["stopped"] = self.progress.stopped
            if self.settings.cross_site_evaluation:
                cross = {name: self._answers[name].cross for name in self.participants if name in self._answers}
                self._recorder.cross_site(cross, self.participants, self.state)
            models = self.method.whole_models(self.state, self.layout)
            self._recorder.close(self.state, models, self.participants, self.method, facts)
