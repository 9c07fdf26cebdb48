# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A site, independent of FLARE: it hosts participants, and carries out the server's tasks for them one by one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from cfl_flare.core.config import require
from cfl_flare.core.errors import (
    AbortedError,
    ConfigError,
    DataError,
    FitError,
    failure_of,
)
from cfl_flare.core.network_arrays import check_trainable
from cfl_flare.core.params import Params
from cfl_flare.core.private import Division
from cfl_flare.core.seeds import stream
from cfl_flare.data import ParticipantData, Samples
from cfl_flare.data.numbering import as_numbers
from cfl_flare.data.preparation import agreed_only
from cfl_flare.engine.indicator import check_task
from cfl_flare.engine.observers import ANSWERING, Probe, list_answering
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import Method, Update
from cfl_flare.methods.slots import join_parts, split_parts
from cfl_flare.training import privacy
from cfl_flare.training.dp_learner import DPLearner, check_training
from cfl_flare.training.ensemble import BATCH, Served
from cfl_flare.training.histograms import read_score_shape
from cfl_flare.training.learner import Learner
from cfl_flare.training.membership import NO_RULE, AttackRule
from cfl_flare.training.privacy import TEST, TRAIN, Account, Books, Randomness
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.sample_gradients import check_network
from cfl_flare.training.settings import TrainSettings, batch_bounds
from cfl_flare.training.tasks import LearningTask
from cfl_flare.training.trial import (
    draw_batches,
    try_evaluation,
    try_sample,
    try_training_step,
)


class Site:
    """Hosts participants: data loaded once, one resident model, a memory for each participant.

    Args:
        make_model: builds the untrained module.
        evaluate_trained: measure the locally trained model as well.
        should_stop: asked before each step whether the job was aborted.
        private: the layers that each participant has for itself; None for none.
        authorize: the site's component policy, which is asked about a task of the user's.
        fewest_scored: a participant with fewer test samples keeps the histograms of their scores, which nearly are
            the scores themselves.
        rule: the operator's, on membership attacks.
        books: where participants write what they spend of their privacy.
        secret: noise comes from the operating system, as nobody may draw it again; else from the run's seed.

    Raises:
        ConfigError: the method does not fit the model, the task, or these layers, or histograms not the model.

    Attributes:
        hosted: the participants' data, in order.
        memory: what each participant remembers between rounds.
        remarks: on the network, from the trial of its first samples.
        score_shape: of each participant's histograms of scores; None where none are asked for.
    """

    def __init__(
        self,
        method: Method,
        make_model: Callable[[], torch.nn.Module],
        settings: TrainSettings,
        seed: int,
        evaluate_trained: bool = False,
        device: str = "cpu",
        should_stop: Callable[[], bool] = lambda: False,
        private: str | None = None,
        authorize: Callable[[str], None] | None = None,
        fewest_scored: int = 1,
        rule: AttackRule = NO_RULE,
        books: Books | None = None,
        secret: bool = False,
    ):
        self.method = method
        self.runtime = Runtime(
            make_model, settings, seed, device, should_stop, private, authorize
        )
        check_trainable(self.runtime.resident.module)
        check_task(method, self.runtime.task)
        check_private(method, self.runtime.division, private, task=self.runtime.task)
        self._privacy, self._books, self._secret = (
            settings.privacy,
            books or Books(),
            secret,
        )
        if self._privacy is not None:
            check_dp(
                method,
                settings,
                self.runtime.task,
                self.runtime.resident.module,
                evaluate_trained,
            )
        self._accounts: dict[str, Account] = {}
        self.hosted: dict[str, ParticipantData] = {}
        self.memory: dict[str, dict[str, Params]] = {}
        self._splits: dict[str, tuple[Split, Split]] = {}
        self._evaluate_trained = evaluate_trained
        self.score_shape, self._fewest_scored = (
            read_score_shape(settings, self.runtime.division.layout),
            fewest_scored,
        )
        self._rule = rule
        self.remarks: list[str] = []
        self._tried: set[int] = set()
        self._evaluated: set[int] = set()

    def add(self, participants: Iterable[ParticipantData]) -> None:
        """Adds participants.

        A FitError, or a ConfigError of the run's transforms, says that samples or labels do not fit the model.
        """
        for data in map(self._with_task_labels, participants):
            if self._privacy is not None and data.preparation is not None:
                fitted = f"{data.name}: with dp, a table is filled up and scaled by agreed columns, not by its rows"
                require(
                    data.preparation.is_agreed,
                    f"{fitted}; read it inside `Site.preparing`",
                )
            self._check_fit(data)
            self._splits[data.name] = self._split(data.train), self._split(data.test)
            self.hosted[data.name] = data
            self.memory.setdefault(data.name, {})
            if self._privacy is not None:
                self._accounts[data.name] = self._account(data)

    def preparing(self) -> AbstractContextManager[None]:
        """Inside it, participants' tables are prepared as the run needs: with dp, by agreed columns and by no row."""
        return agreed_only(self._privacy is not None)

    def _with_task_labels(self, data: ParticipantData) -> ParticipantData:
        """The data with the numbers that classes are called by, if the task predicts numbers and not classes."""
        if (
            self.runtime.task.classes
            or not data.train.classes
            or data.train.y.ndim != 1
        ):
            return data
        return replace(
            data,
            train=as_numbers(data.train, data.name),
            test=as_numbers(data.test, data.name),
        )

    def _split(self, samples: Samples) -> Split:
        runtime = self.runtime
        return Split.of(
            samples.x, samples.y, runtime.device, runtime.task, samples.patient
        )

    def _account(self, data: ParticipantData) -> Account:
        settings, queries = self.runtime.settings, self.method.traits.queries
        assert queries is not None and self._privacy is not None
        train, test = self._splits[data.name]
        sizes = {
            split: part.patients
            for split, part in ((TRAIN, train), (TEST, test))
            if len(part)
        }
        randomness = self._randomness(data.name, 0)("noise of counts")
        plan = (settings.steps, settings.batch_size)
        return Account.open(
            data.name, self._privacy, queries, sizes, *plan, self._books, randomness
        )

    def _randomness(
        self, participant: str, round_number: int
    ) -> Callable[[str], Randomness]:
        if self._secret:
            return lambda purpose: privacy.SystemRandomness()
        drawer = self.hosted[participant].stream or participant
        # The same each time, and so no protection. Each purpose has one generator, whose draws go on from call to call.
        return cache(partial(stream, self.runtime.seed, drawer, round_number))

    def samples(self, participant: str) -> int:
        """The number of training samples that a participant says it has: with dp, a noisy one, of its patients."""
        account = self._accounts.get(participant)
        return (
            len(self.hosted[participant].train)
            if account is None
            else account.samples[TRAIN]
        )

    def tested_on(self, participants: Iterable[ParticipantData]) -> Site:
        """The same participants with other test samples; their training samples and their models are held once."""
        other = copy(self)
        other.hosted, other._splits, other.memory = {}, {}, dict(self.memory)
        for data in map(self._with_task_labels, participants):
            self._check_fit(data)
            train, _ = self._splits[data.name]
            other._splits[data.name] = train, self._split(data.test)
            other.hosted[data.name] = replace(data, train=self.hosted[data.name].train)
        return other

    def with_data_of(self, other: Site) -> Site:
        """This site with another one's participants: their samples, which are not copied, and its own models.

        What is done there changes none of this one's memories.
        """
        site = copy(self)
        site.hosted, site._splits = other.hosted, other._splits
        site.memory = {name: self.memory.get(name, {}) for name in other.hosted}
        if site._privacy is not None:  # each run pays for itself
            site._accounts = {
                name: site._account(data) for name, data in site.hosted.items()
            }
        return site

    def _check_fit(self, data: ParticipantData) -> None:
        try:
            self._check_model(data)
        except DataError as error:
            raise FitError(str(error)) from error

    def _check_model(self, data: ParticipantData) -> None:
        outputs = try_sample(self.runtime, self._take_samples(data, 1), data.name)
        module = self.runtime.resident.module
        if self.score_shape is not None and outputs.shape[-1] != self.score_shape[0]:
            raise DataError(
                f"{data.name}: the model {type(module).__name__} has {outputs.shape[-1]} outputs, and its last fully "
                f"connected layer has {self.score_shape[0]}, by which the server knows the classes; set score_bins to 0"
            )
        labels = (
            np.concatenate((data.train.y, data.test.y))
            if len(data.test)
            else data.train.y
        )
        if data.train.classes and labels.ndim == 1:
            labels = np.append(
                labels, len(data.train.classes) - 1
            )  # a class without a sample needs an output as well
        self.runtime.task.check(outputs, labels, data.name)
        if self.runtime.augment is not None:
            self.runtime.augment.check(
                data.train.x, self.runtime.task.targets(data.train.y[:1]), data.name
            )
        self._try_model(data, outputs)

    def _take_samples(self, data: ParticipantData, number: int) -> torch.Tensor:
        return Split.of(data.train.x[:number], np.zeros(number), self.runtime.device).x

    def _try_model(self, data: ParticipantData, outputs: torch.Tensor) -> None:
        """Tries evaluation and a training step, once for each size of batches.

        Raises:
            DataError: one of them would fail.
        """
        runtime = self.runtime
        where = f"{data.name}: the model {type(runtime.resident.module).__name__}"
        samples = data.train
        remarks: list[str] = []
        evaluated = min(len(samples), BATCH)
        if evaluated not in self._evaluated:
            remarks += try_evaluation(
                runtime, self._take_samples(data, evaluated).clone(), where
            )
            self._evaluated.add(evaluated)
        bounds = batch_bounds(len(samples), runtime.settings.batch_size)
        for size in sorted({end - begin for begin, end in bounds} - self._tried):
            drawn = draw_batches(len(samples), size)
            batches = (
                Split.of(samples.x[r], samples.y[r], runtime.device, runtime.task)
                for r in drawn
            )
            remarks += try_training_step(runtime, batches, outputs, where)
            self._tried.add(size)
        self.remarks = list(dict.fromkeys([*self.remarks, *remarks]))

    def sends_counts(self, participant: str) -> bool:
        """Whether a participant has enough test samples to send counts of them, by score or by class."""
        return self._splits[participant][1].patients >= self._fewest_scored

    def learner(
        self, participant: str, memory: MutableMapping[str, Params], round_number: int
    ) -> Learner:
        drawer = self.hosted[participant].stream if participant in self.hosted else ""
        view = (
            self.runtime,
            participant,
            *self._splits[participant],
            memory,
            round_number,
            drawer,
        )
        if self._privacy is None:
            return Learner(*view)
        account = privacy.RoundAccount(self._accounts[participant], round_number)
        return DPLearner(
            *view,
            account=account,
            randomness=self._randomness(participant, round_number),
        )

    def carry_out(
        self,
        participant: str,
        task: Task,
        models: Mapping[str, Params],
        round_number: int,
        on_served: Callable[[str, Served], None] | None = None,
    ) -> Result:
        """Carries out a task for one participant; a failure becomes its result's code and traceback.

        Args:
            models: the models that came with the round, by slot.
            on_served: called with the participant and what it predicts with, if that is measured.

        Raises:
            AbortedError: the job was aborted meanwhile.
        """
        memory = dict(self.memory[participant])
        learner = self.learner(participant, memory, round_number)
        answers: dict[str, Any] = {}
        update = None
        try:
            sent = task.download(models)
            download = join_parts(sent, self.runtime.division.public)
            if task.evaluate:
                served = Served.of(self.method.build_predictor(learner, download))
                answers |= self._answers(task, learner, served, models)
                if on_served is not None:
                    on_served(participant, served)
            if task.train:
                update = split_parts(self.method.local_update(learner, download), sent)
                check_public(update, self.runtime.division)
                if self._evaluate_trained and learner.trained is not None:
                    trained = learner.evaluate(learner.trained)
                    metrics = {
                        f"trained_{name}": value for name, value in trained.items()
                    }
                    answers["metrics"] = {**answers.get("metrics", {}), **metrics}
        except AbortedError:
            raise
        except (
            Exception
        ) as error:  # one failing participant must not stop the site's others
            code = self._books.report(failure_of(error, "training"))
            return Result(participant, error=code, traceback=traceback.format_exc())
        self.memory[participant] = memory
        return Result(participant, update, answers)

    def _answers(
        self, task: Task, learner: Learner, served: Served, models: Mapping[str, Params]
    ) -> dict[str, Any]:
        """The answers of a participant whose served model is measured, to each observer that has a question."""
        sends_counts = self.sends_counts(learner.participant)
        probe = Probe(
            learner, served, models, self.runtime.settings, sends_counts, self._rule
        )
        answers: dict[str, Any] = {}
        # With dp, no noise protects what an extension would answer.
        observers = list_answering() if self._privacy is None else ANSWERING
        for key, question in {"metrics": {}, "scores": {}, **task.questions}.items():
            observer = observers.get(key)
            if observer is None or not observer.is_in_job(self.runtime.settings):
                continue  # the server may ask for what the job does not
            if not (learner.tests or observer.asks_untested):
                continue
            answer = observer.answer(question, probe)
            if answer is not None:
                answers[key] = answer
        return answers


def check_dp(
    method: Method,
    settings: TrainSettings,
    task: LearningTask,
    module: torch.nn.Module,
    evaluate_trained: bool = False,
) -> None:
    """Raises a ConfigError for what would tell of single samples in spite of differential privacy."""
    check_training(settings, task)
    reason, leave = (
        "has no mechanism that protects single samples",
        "take fedavg, wecfl, ifca, ditto or the like",
    )
    traits, penalties = (
        method.traits,
        [p.name for p in method.penalties if getattr(p, "on", "") == "representations"],
    )
    require(
        traits.queries is not None,
        f"training: dp does not go with method {method.label}, which {reason}; {leave}",
    )
    for what, there in (
        ("fine-tuning", method.finetune),
        ("indicator samples", traits.indicator is not None),
        (f"penalties = {penalties} on representations", bool(penalties)),
        ("evaluate_trained", evaluate_trained),
    ):
        require(
            not there,
            f"training: dp does not go with {what}, which {reason}; leave that out",
        )
    check_network(module)


def check_private(
    method: Method,
    division: Division,
    pattern: str | None,
    rounds: int | None = None,
    task: LearningTask | None = None,
) -> None:
    """Checks a method against what travels of its model, given the setting ``private``.

    Rounds and task are checked where they are known.

    Raises:
        ConfigError: the setting does not fit the model, goes without private layers, or lacks a part that they hold;
            or they change nothing of what models predict.
    """
    if division.private is None:
        return method.check(division.public, rounds)
    method.check(division.layout, rounds)
    where, refusal = f"run: private = {pattern!r}", method.traits.no_private
    require(
        not refusal,
        f"{where} does not go with method {method.label}: {refusal}; leave it out",
    )
    private = {e.name for e in division.private.entries}
    last = {e.name for e in division.layout.head.entries if len(e.shape) == 1}
    require(
        task is None or not task.relative or not private <= last,
        f"{where} is the last layer's bias alone, which adds the same to all outputs of a participant. Task "
        f"{'' if task is None else task.name} only compares them with each other: leave it out, or name other layers",
    )
    require(
        not method.traits.keeps_head
        or any(e.head and e.name not in private for e in division.layout.entries),
        f"{where}: in method {method.label} the head stays at the participant anyway; leave it out or name others",
    )
    try:
        method.check(division.public, rounds)
    except ConfigError as error:
        raise ConfigError(
            f"{where} leaves too little that travels: {error}; or name fewer private layers"
        ) from error


def check_public(update: Update, division: Division) -> None:
    """Raises a ConfigError if a participant's answer holds a private layer, as one of a user's method may."""
    for slot, diff in update.diffs.items():
        leaked = sorted({*division.names}.intersection(diff.arrays()))
        require(
            not leaked,
            f"the update of {slot} holds the private {leaked[:1]}; a method sends what it was sent",
        )
