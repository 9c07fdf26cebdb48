# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One participant at work: it trains on the process's resident model, with its random streams and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cfl_flare.core.errors import AbortedError, ConfigError, DivergedError
from cfl_flare.core.params import Params
from cfl_flare.training.ensemble import Served
from cfl_flare.training.evaluator import Evaluator
from cfl_flare.training.losses import Step, Term, balance_classes
from cfl_flare.training.resident import descend, look_ahead
from cfl_flare.training.runtime import PRIVATE, Batches
from cfl_flare.training.settings import batch_bounds

if TYPE_CHECKING:
    from typing_extensions import Self


class Learner(Evaluator):
    """A participant's view in one round, which trains; its memory is changed in place.

    Attributes:
        trained: the result of the participant's training in this round.
    """

    trained: Params | Served | None = None
    _lr: float | None = None

    @property
    def lr(self) -> float:
        """The run's learning rate in this round, unless `in_round` set another."""
        if self._lr is None:
            return self._runtime.settings.lr_at(self.round)
        return self._lr

    def in_round(
        self,
        number: int,
        lr: float | None = None,
    ) -> Self:
        """The same participant with the random streams of another round, and its learning rate or a given one.

        Args:
            number: the round, from 0.
            lr: the learning rate; None for the round's.
        """
        return self._view(round=number, _lr=lr, _compared={})

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
        runtime = self._runtime
        resident = runtime.resident
        settings = runtime.settings
        if epochs is not None:
            settings = replace(settings, local_epochs=epochs, local_steps=None)

        # The batches of the steps, and with MAML those of the points that steps look ahead to.
        rng = self._stream(purpose)
        batches = self._batches(rng, settings.steps(len(self._train)))
        ahead: list[Tensor] = []
        if inner_lr is not None:
            ahead = self._batches(self._stream(f"{purpose} ahead"), len(batches))
        data = self._drawn([*batches, *ahead], purpose)

        # Outputs of models that do not train come before the model is loaded: they may need the module. Modules draw
        # only in training mode.
        draws: AbstractContextManager[None] = nullcontext()
        if any(term.training for term in terms):
            draws = runtime.drawing_from(self._stream(f"{purpose} compared"))
        with draws:
            fixed = self._compute_fixed(data, terms)

        complete = self.with_private(start)
        resident.load(complete)
        resident.module.train()
        runtime.optimizer.recall(self.memory if settings.keep_momentum else {})
        held = resident.select_held(frozen)
        self._check_trainable(held)
        watching = resident.watching_head(any(term.compares for term in terms))
        with (
            runtime.drawing_from(rng),
            watching as seen,
            resident.holding(frozen) as put_back,
        ):

            def compute_gradient(number: int) -> None:
                others = [None if f is None else f[number] for f in fixed]
                self._backward(data, number, terms, others, seen)

            for number in range(len(batches)):
                step: AbstractContextManager[None] = nullcontext()
                if inner_lr is not None:
                    inner = partial(compute_gradient, len(batches) + number)
                    step = look_ahead(resident, inner_lr, inner)
                with step:
                    compute_gradient(number)
                runtime.optimizer.step(self.lr, held)
                put_back()

        # Nothing is remembered of training that diverged.
        self.trained = trained = resident.read()
        self._check_finite(trained)
        if purpose == "train" and settings.keep_momentum:
            runtime.optimizer.keep(self.memory, held)
        if complete is start:
            return trained
        assert runtime.division.private is not None
        if purpose == "train":
            self.memory[PRIVATE] = trained.take(runtime.division.private)
        return trained.take(start.layout)

    def _check_trainable(self, held: Sequence[slice]) -> None:
        """Raise a ConfigError if all parameters are held."""
        size = sum(place.stop - place.start for place in held)
        if size == self._runtime.resident.layout.parameter_size:
            raise ConfigError(
                "method: it holds the only part of the model that requires_grad lets it train; take another method, or "
                "a model that trains more of its layers"
            )

    def _check_finite(self, trained: Params) -> None:
        """Raise a DivergedError if a parameter is NaN or infinite; the participant then keeps its earlier models."""
        parameters = trained.vector[: trained.layout.parameter_size]
        if not np.isfinite(parameters).all():
            raise DivergedError(
                f"{self.participant}: training diverges: parameters are NaN or infinite after round {self.round}\n"
                f"hint: lower the learning rate lr = {self.lr:g}, or look for outliers in numbers that are not scaled"
            )

    def adapt_model(
        self,
        start: Params,
        steps: int,
        lr: float,
    ) -> Params:
        """A personal model to predict with (FedDSMIC Alg. 1, Eq. 8): ``start`` after a few plain gradient steps.

        The steps use the participant's training data, batches of the run's size, its transforms, and the loss of
        training with class weights and label smoothing, but no optimizer, weight decay or penalties. BatchNorm's
        running statistics change in each step. The model has private layers, and is not remembered.

        Args:
            start: the model to start from.
            steps: the number of gradient steps.
            lr: the learning rate.
        """
        if not steps:
            return start
        rng = self._stream("adapt")
        resident = self._runtime.resident
        data = self._drawn(self._batches(rng, steps), "adapt")
        (beside,) = self._compute_fixed(data, ())
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

        Args:
            model: a model.
        """
        runtime = self._runtime
        data = self._train
        resident = self._runtime.resident
        resident.load(self.with_private(model))
        resident.module.eval()
        total = torch.zeros_like(resident.gradient)
        for rows in torch.arange(len(data)).split(runtime.settings.batch_size):
            if runtime.should_stop():
                raise AbortedError(
                    f"aborted while {self.participant} computed a gradient"
                )
            resident.gradient.zero_()
            runtime.task.loss(
                resident.module(data.x[rows]).float(), data.y[rows]
            ).backward()
            total += resident.gradient * (len(rows) / len(data))
        vector = np.zeros(resident.layout.size, np.float32)
        vector[: len(total)] = total.cpu().numpy()
        counters = np.zeros(resident.layout.counter_size, np.int64)
        return Params(resident.layout, vector, counters).take(model.layout)

    @torch.no_grad()
    def _compute_fixed(
        self,
        data: Batches,
        terms: Sequence[Term],
    ) -> list[tuple[Tensor, ...] | None]:
        """The outputs for each batch of models that do not train: the frozen one's, then those each term compares.

        They are computed once, before the round's steps.
        """
        needs_samples = self._beside is not None or any(t.compares for t in terms)
        x = data.samples() if needs_samples else self._train.x[:0]
        fixed: list[tuple[Tensor, ...] | None] = [None]
        if self._beside is not None:
            fixed = [self._predict([self._beside], x)[0].split(data.sizes)]
        for term in terms:
            outputs = (
                self._compare_models(term, x, data.sizes) if term.compares else None
            )
            fixed.append(outputs)
        return fixed

    def _compare_models(
        self,
        term: Term,
        x: Tensor,
        sizes: list[int],
    ) -> tuple[Tensor, ...]:
        """The features ``(K, n, d)`` of the models that a term compares, for each batch."""
        if not term.training:
            return self._predict(term.compares, x, features=True).split(sizes, 1)
        # In training mode they depend on the whole batch, and on no other.
        return tuple(
            self._predict(term.compares, batch, features=True, training=True)
            for batch in x.split(sizes)
        )

    def _backward(
        self,
        data: Batches,
        number: int,
        terms: Sequence[Term],
        fixed: list[Tensor | None],
        seen: Sequence[Tensor],
    ) -> None:
        """Computes the gradient of the loss on one of the batches into the resident model."""
        runtime = self._runtime
        if runtime.should_stop():
            raise AbortedError(f"aborted while {self.participant} was training")
        runtime.resident.gradient.zero_()
        batch = data[number]
        evaluates = not runtime.ignores_mode and any(
            term.compares and not term.training for term in terms
        )
        device = torch.device(runtime.device).type
        is_reduced = runtime.settings.precision == "bfloat16"
        evaluated = None
        with torch.autocast(device, torch.bfloat16, enabled=is_reduced):
            # First, by the running statistics that the model has before this batch moves them.
            if evaluates:
                evaluated = runtime.resident.evaluated(batch.x).float()
            outputs = runtime.resident.module(batch.x).float()
        trained = seen[0].float() if seen else None
        beside, *compared = fixed
        if beside is not None:
            outputs = outputs + beside

        # The loss of the batch, and the terms of the method and its penalties.
        weights = None
        if runtime.settings.class_weights is not None:
            classes = max(2, outputs.shape[1])
            weights = balance_classes(self._train.class_counts, classes)
        smoothing = runtime.settings.label_smoothing
        loss = runtime.task.loss(outputs, batch.y, weights, smoothing)
        shared = runtime.shared_parameters if terms else runtime.resident.parameters
        for term, others in zip(terms, compared):
            features = trained if term.training or evaluated is None else evaluated
            loss = loss + term(Step(shared, features, others))
        loss.backward()

    def _batches(
        self,
        rng: np.random.Generator,
        steps: int,
    ) -> list[Tensor]:
        """Indices of the batches: passes over new permutations, cut off after this many steps."""
        batches = list[Tensor]()
        bounds = batch_bounds(len(self._train), self._runtime.settings.batch_size)
        while len(batches) < steps:
            order = torch.from_numpy(rng.permutation(len(self._train))).to(
                self._runtime.device
            )
            batches += [order[i:j] for i, j in bounds]
        return batches[:steps]

    def _drawn(
        self,
        indices: list[Tensor],
        purpose: str,
    ) -> Batches:
        """The batches of these samples; the run's transforms have a random stream of their own."""
        augment = self._runtime.augment
        if augment is None:
            return Batches(self._train, indices)
        stream = self._stream(f"{purpose} augment")
        seeds = stream.integers(2**62, size=len(indices))
        return Batches(self._train, indices, augment, [int(seed) for seed in seeds])
