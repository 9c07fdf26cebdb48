# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One participant at work: its data, its random streams and its memory, on the process's resident model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfl_flare.core.errors import AbortedError
from cfl_flare.core.params import Params
from cfl_flare.core.seeds import stream
from cfl_flare.training.bootstrap import Replicates, draw_of, drawn_rows, key_of, replicates
from cfl_flare.training.ensemble import Predictor, Served, combined
from cfl_flare.training.histograms import class_counts, score_counts
from cfl_flare.training.losses import Step, Term, balanced, raced
from cfl_flare.training.resident import ahead, descend
from cfl_flare.training.runtime import PRIVATE, Batches, MemoryView, Runtime, Split
from cfl_flare.training.settings import batch_bounds


class Learner:
    """A participant's view in one round.

    Args:
        memory: what it remembers between rounds; changed in place.
        stream: names its random streams; empty for its name.
        period: of data, whose samples it sees; None for all samples.

    Attributes:
        samples: number of training samples, n_i; of all periods, but in the view of some.
        tests: number of test samples; with none, nothing is measured.
        trained: the result of the participant's training in this round.
    """

    _part, _first = "", 0  # begins the names of its random streams; number of its first untrained model

    def __init__(
        self,
        runtime: Runtime,
        participant: str,
        train: Split,
        test: Split,
        memory: MutableMapping[str, Params],
        round_number: int = 0,
        stream: str = "",
        period: int | None = None,
    ):
        self._runtime, self._every = runtime, train if period is not None else replace(train, period=None)
        self._train, self._test = train.in_period(period), test.in_period(period)
        self._drawer = stream or participant
        self.participant, self.memory, self.round, self.period = participant, memory, round_number, period or 0
        self.samples, self.tests = len(train), len(self._test)
        self.trained: Params | Served | None = None
        self._beside: Params | None = None
        self._lr: float | None = None
        self._weights: Tensor | None = None
        self._compared: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # losses and choices, with the models

    @property
    def labels(self) -> np.ndarray:
        """The labels of its training samples, ``(n,)`` int64."""
        return self._train.y.cpu().numpy()

    @property
    def patients(self) -> int:
        """The number of training patients; of training samples where nothing says whose they are."""
        return self._train.patients

    @property
    def lr(self) -> float:
        """The run's learning rate in this round, unless `in_round` set another."""
        return self._runtime.settings.lr_at(self.round) if self._lr is None else self._lr

    def initial(self, index: int) -> Params:
        """The part that travels of the run's untrained model number ``index``: all of it if no layers are private."""
        return self._runtime.initial(self._first + index)

    def _view(self, **changes: Any) -> Learner:
        view = copy.copy(self)
        vars(view).update(changes)
        return view

    def beside(self, frozen: Params) -> Learner:
        """The same participant, all of whose models are added to a frozen one, in `train` and in `losses`.

        The outputs of the two are added (Fed-CAM Eq. 1). The frozen model is in evaluation mode. It comes with its
        private layers where they are those of another part of the participant.
        """
        return self._view(_beside=frozen)

    def part(self, name: str, first: int = 0) -> Learner:
        """The same participant with a memory and random streams of its own, for one of several models of a round.

        Its untrained models are counted from number ``first``.
        """
        memory = MemoryView(self.memory, f"{name}.")
        return self._view(_first=self._first + first, _part=f"{self._part}{name}.", memory=memory)

    def in_round(self, number: int, lr: float | None = None) -> Learner:
        """The same participant with the random streams of another round, and its learning rate or a given one."""
        return self._view(round=number, _lr=lr, _compared={})

    def of_periods(self, periods: Sequence[int]) -> Learner:
        """The same participant with the training samples of these periods of data alone; all, if it has no periods."""
        train = self._every.of_periods(periods)
        return self._view(_train=train, samples=len(train), _compared={}, _weights=None)

    def with_private(self, model: Params) -> Params:
        """A model, or a part of one, with the participant's private layers; as it is if it has them or there are none.

        They are those that it trained last, or else the run's initial ones.
        """
        division = self._runtime.division
        if division.private is None or {*division.private.shapes} <= model.arrays().keys():
            return model
        layers = self.memory.get(PRIVATE)
        if layers is None or layers.layout != division.private:  # others would replace what was sent, and leave
            layers = self._runtime.first_private
        return division.joined(model, layers)

    def complete(self, served: Params | Served) -> Params | Served:
        """The models with which the participant predicts, each with the private layers of its part."""
        if self._runtime.division.private is None:
            return served
        served = Served.of(served)
        views = [self.part(name) if name else self for name in served.of_parts]
        return replace(served, models=tuple(v.with_private(m) for v, m in zip(views, served.models)))

    def train(
        self,
        start: Params,
        terms: Sequence[Term] = (),
        purpose: str = "train",
        epochs: int | None = None,
        frozen: str | Sequence[str] = (),
        inner_lr: float | None = None,
    ) -> Params:
        """One round of local steps (thesis Alg. 1, line 7), or of first-order MAML (FedDSMIC Alg. 2).

        A model that comes without the participant's private layers is trained with them, and returned without them.

        Args:
            terms: added to the loss in each step.
            purpose: names the random stream; only ``"train"`` writes the optimizer's state and private layers back to
                the participant's memory.
            epochs: passes over the training data, in place of the run's steps.
            frozen: the parameters that do not change, as for `Layout.select`; their state is reset.
            inner_lr: eta of first-order MAML: each step uses the gradient at the point that a step of this length on a
                batch of its own leads to; see `cfl_flare.training.resident`. None for plain steps.
        """
        runtime, settings = self._runtime, self._runtime.settings
        settings = settings if epochs is None else replace(settings, local_epochs=epochs, local_steps=None)
        rng = self._stream(purpose)
        batches = self._batches(rng, settings.steps(len(self._train)))
        inner = [] if inner_lr is None else self._batches(self._stream(f"{purpose} ahead"), len(batches))
        data = self._drawn([*batches, *inner], purpose)
        drawn = any(term.training for term in terms)  # only there modules compute, and draw, in training mode
        with runtime.drawing_from(self._stream(f"{purpose} compared")) if drawn else nullcontext():
            fixed = self._fixed(data, terms)  # before the model is loaded: it may need the module
        complete = self.with_private(start)
        runtime.resident.load(complete)
        runtime.resident.module.train()
        runtime.optimizer.recall(self.memory if settings.keep_momentum else {})
        held = runtime.resident.layout.select(frozen) if frozen else []
        watching = runtime.resident.watching_head(any(term.compares for term in terms))
        with runtime.drawing_from(rng), watching as seen, runtime.resident.holding(frozen) as put_back:
            gradients = [
                partial(self._backward, data, i, terms, [None if f is None else f[i] for f in fixed], seen)
                for i in range(len(data))
            ]
            for i, outer in enumerate(gradients[: len(batches)]):
                maml = inner_lr is not None
                with ahead(runtime.resident, inner_lr or 0, gradients[len(batches) + i]) if maml else nullcontext():
                    outer()
                runtime.optimizer.step(self.lr, held)
                put_back()
        if purpose == "train" and settings.keep_momentum:
            runtime.optimizer.keep(self.memory, held)
        self.trained = trained = runtime.resident.read()
        if complete is start:
            return trained
        assert runtime.division.private is not None
        if purpose == "train":
            self.memory[PRIVATE] = trained.take(runtime.division.private)
        return trained.take(start.layout)

    def adapted(self, start: Params, steps: int, lr: float) -> Params:
        """A personal model to predict with (FedDSMIC Alg. 1, Eq. 8): ``start`` after a few plain gradient steps.

        The steps use the participant's training data, batches of the run's size, its transforms, and the loss of
        training with class weights and label smoothing, but no optimizer, weight decay or penalties. BatchNorm's
        running statistics change in each step. The model has private layers, and is not remembered.
        """
        if not steps:
            return start
        rng, resident = self._stream("adapt"), self._runtime.resident
        data = self._drawn(self._batches(rng, steps), "adapt")
        (beside,) = self._fixed(data, ())
        resident.load(self.with_private(start))
        resident.module.train()
        with self._runtime.drawing_from(rng):
            for i in range(len(data)):
                self._backward(data, i, (), [None if beside is None else beside[i]], ())
                descend(resident, lr)
        return resident.read()

    def gradient(self, model: Params) -> Params:
        """The gradient of the plain mean loss on all training data at a model, in evaluation mode; buffers are zero.

        It takes no class weights, no label smoothing and no transforms, and changes nothing.
        """
        return self._runtime.gradient(self.with_private(model), self._train).take(model.layout)

    @torch.no_grad()
    def losses(self, models: Sequence[Params], samples: int | None = None) -> np.ndarray:
        """Mean loss of each model on the participant's training data, ``(len(models),)`` float64.

        It is the plain loss, as when models are measured: without class weights and label smoothing. In each
        round, ``samples`` of them are drawn anew; None for all.
        """
        split = self._train if samples is None or samples >= len(self._train) else self._drawn_anew(samples)
        keys = [(id(model), id(self._beside), samples, self._part) for model in models]
        if any(key not in self._compared for key in keys):  # evaluation and training need the same ones in a round
            means = self._runtime.task.losses(self._with_beside(models, split.x), split.y).tolist()
            # The models are held with them: a new one could have the id of one that is gone.
            self._compared.update({key: (model, self._beside, loss) for key, model, loss in zip(keys, models, means)})
        return np.array([self._compared[key][-1] for key in keys])

    @torch.no_grad()
    def choice(self, models: Sequence[Params], samples: int | None = None, race: bool = False) -> int:
        """The index of the model with the smallest loss, the first of equal ones; NaN is never the smallest.

        ``samples`` is as in `losses`. With ``race``, the models race over these samples in a random order, see `raced`,
        unless the task's loss is no mean over samples.
        """
        if not race or not self._runtime.task.separable:
            return int(np.nan_to_num(self.losses(models, samples), nan=np.inf).argmin())
        key = (*map(id, models), id(self._beside), samples, self._part)
        if key not in self._compared:
            split = self._drawn_anew(samples)

            def losses(left: np.ndarray, rows: slice) -> np.ndarray:
                outputs = self._with_beside([models[k] for k in left], split.x[rows], passing=len(left) < len(models))
                return self._runtime.task.sample_losses(outputs, split.y[rows]).cpu().numpy()

            self._compared[key] = (*models, self._beside, raced(losses, len(models), len(split)))
        return int(self._compared[key][-1])

    def _drawn_anew(self, samples: int | None) -> Split:
        """So many training samples in a random order, the same for all models of a round; None for all of them."""
        drawn = torch.from_numpy(self._stream("assign").permutation(len(self._train))[:samples])
        return self._train.take(drawn.to(self._runtime.device))

    def _with_beside(self, models: Sequence[Params], x: Tensor, passing: bool = False) -> Tensor:
        """Outputs of each model, added to those of the frozen one if there is one."""
        outputs = self._predict(models, x, passing=passing)
        return outputs if self._beside is None else outputs + self._predict([self._beside], x)

    @torch.no_grad()
    def features(self, model: Params) -> np.ndarray:
        """What the last fully connected layer of a model is given for each training sample, ``(n, d)``."""
        return self._predict([model], self._train.x, features=True)[0].cpu().numpy()

    @torch.no_grad()
    def sample_losses(self, models: Sequence[Params]) -> np.ndarray:
        """The plain loss of each model on each of the participant's training samples, ``(len(models), n)`` float64."""
        return self._runtime.task.sample_losses(self._predict(models, self._train.x), self._train.y).cpu().numpy()

    @torch.no_grad()
    def outputs(self, model: Params | Served, x: Tensor) -> Tensor:
        """The outputs ``(n, classes, ...)`` of a model, or of an ensemble, for samples."""
        served = Served.of(self.complete(model))
        return combined(self._predict(served.models, x), served.vote, self._runtime.task.link)

    def tested(self, model: Params | Served) -> Tensor:
        """The same for the participant's test split."""
        return self.outputs(model, self._test.x)

    def measured(self, outputs: Tensor) -> dict[str, float]:
        """The task's measures of these outputs for the participant's test split."""
        return self._runtime.task.measured(outputs, self._test.y, self._runtime.settings.measures)

    def score_counts(self, outputs: Tensor) -> np.ndarray | None:
        """The histograms of the same outputs' scores; see `cfl_flare.training.histograms.score_counts`."""
        task, bins = self._runtime.task, self._runtime.settings.score_bins
        return score_counts(outputs, self._test.y, task.link, bins, getattr(task, "threshold", 0.5))

    def class_counts(self, outputs: Tensor) -> list[int] | None:
        """How many test samples are of each class, or have each finding; None where outputs score no classes."""
        return class_counts(self._test.y, outputs.shape[1]) if self._runtime.task.scored else None

    def evaluate(self, model: Params | Served) -> dict[str, float]:
        """The task's measures of a model, or of an ensemble, on the participant's test split."""
        return self.measured(self.tested(model)) if self.tests else {}

    def resampled(self, outputs: Tensor, names: Iterable[str], times: int) -> Replicates | None:
        """Measures of these outputs when the test split is drawn anew ``times`` times; None for no times."""
        if not times:
            return None
        runtime, test = self._runtime, self._test
        stream_key = (runtime.seed, self._drawer, key_of(test.x, test.y))
        rows = drawn_rows(*stream_key, len(test), times, test.patient)
        values = replicates(runtime.task, outputs, test.y, names, rows, runtime.should_stop)
        return Replicates(draw_of(*stream_key), values)

    def _stream(self, purpose: str) -> np.random.Generator:
        return stream(self._runtime.seed, self._drawer, self.round, self._part + purpose)

    @torch.no_grad()
    def _fixed(self, data: Batches, terms: Sequence[Term]) -> list[tuple[Tensor, ...] | None]:
        """The outputs for each batch of models that do not train: the frozen one's, then those each term compares.

        They are computed once, before the round's steps.
        """
        x = data.samples() if self._beside or any(t.compares for t in terms) else self._train.x[:0]
        sizes = data.sizes

        def compared(term: Term) -> tuple[Tensor, ...]:  # features (K, n, d) for each batch
            if term.training:  # where they depend on the whole batch, and on no other
                return tuple(
                    self._predict(term.compares, batch, features=True, training=True) for batch in x.split(sizes)
                )
            return self._predict(term.compares, x, features=True).split(sizes, 1)

        beside = None if self._beside is None else self._predict([self._beside], x)[0].split(sizes)
        return [beside, *(compared(term) if term.compares else None for term in terms)]

    def _backward(
        self, data: Batches, number: int, terms: Sequence[Term], fixed: list[Tensor | None], seen: Sequence[Tensor]
    ) -> None:
        """Computes the gradient of the loss on one of the batches into the resident model."""
        runtime = self._runtime
        if runtime.should_stop():
            raise AbortedError(f"aborted while {self.participant} was training")
        runtime.resident.gradient.zero_()
        batch, reduced = data[number], runtime.settings.precision == "bfloat16"
        evaluates = not runtime.ignores_mode and any(term.compares and not term.training for term in terms)
        with torch.autocast(torch.device(runtime.device).type, torch.bfloat16, enabled=reduced):
            # First, by the running statistics that the model has before this batch moves them.
            evaluated = runtime.resident.evaluated(batch.x).float() if evaluates else None
            outputs = runtime.resident.module(batch.x).float()
        trained = seen[0].float() if seen else None
        beside, *compared = fixed
        outputs = outputs if beside is None else outputs + beside
        weights, smoothing = self._class_weights(outputs.shape[1]), runtime.settings.label_smoothing
        loss = runtime.task.loss(outputs, batch.y, weights, smoothing)
        shared = runtime.shared_parameters if terms else runtime.resident.parameters
        for term, others in zip(terms, compared):
            features = trained if term.training or evaluated is None else evaluated
            loss = loss + term(Step(shared, features, others))
        loss.backward()

    def _class_weights(self, classes: int) -> Tensor | None:
        """The weight of each class in the loss of training; None where all count the same."""
        if self._runtime.settings.class_weights is None:
            return None
        if self._weights is None:
            self._weights = balanced(self._train.y.flatten(), max(2, classes))
        return self._weights

    def _batches(self, rng: np.random.Generator, steps: int) -> list[Tensor]:
        """Indices of the batches: passes over new permutations, cut off after this many steps."""
        batches, bounds = list[Tensor](), batch_bounds(len(self._train), self._runtime.settings.batch_size)
        while len(batches) < steps:
            order = torch.from_numpy(rng.permutation(len(self._train))).to(self._runtime.device)
            batches += [order[i:j] for i, j in bounds]
        return batches[:steps]

    def _drawn(self, indices: list[Tensor], purpose: str) -> Batches:
        """The batches of these samples; the run's transforms have a random stream of their own."""
        augment = self._runtime.augment
        seeds = () if augment is None else self._stream(f"{purpose} augment").integers(2**62, size=len(indices))
        return Batches(self._train, indices, augment, [int(seed) for seed in seeds])

    def _predict(self, models: Sequence[Params], x: Tensor, passing: bool = False, **kind: bool) -> Tensor:
        """Outputs ``(len(models), n, classes, ...)``, or features ``(len(models), n, d)``; ``passing`` caches none.

        ``kind`` is as in `Predictor`: ``features``, ``training``.
        """
        if self._runtime.should_stop():
            raise AbortedError(f"aborted while {self.participant} was evaluating")
        complete = [self.with_private(model) for model in models]
        if passing:
            return Predictor(self._runtime.resident, complete, **kind)(x)
        return self._runtime.predictor(complete, **kind)(x)
