# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One participant at work: it trains on the process's resident model, with its random streams and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
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
from cfl_flare.training.losses import Step, Term, balanced
from cfl_flare.training.resident import ahead, descend
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
        return (
            self._runtime.settings.lr_at(self.round) if self._lr is None else self._lr
        )

    def in_round(self, number: int, lr: float | None = None) -> Self:
        """The same participant with the random streams of another round, and its learning rate or a given one."""
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
        runtime, settings = self._runtime, self._runtime.settings
        settings = (
            settings
            if epochs is None
            else replace(settings, local_epochs=epochs, local_steps=None)
        )
        rng = self._stream(purpose)
        batches = self._batches(rng, settings.steps(len(self._train)))
        inner = (
            []
            if inner_lr is None
            else self._batches(self._stream(f"{purpose} ahead"), len(batches))
        )
        data = self._drawn([*batches, *inner], purpose)
        drawn = any(
            term.training for term in terms
        )  # only there modules compute, and draw, in training mode
        with (
            runtime.drawing_from(self._stream(f"{purpose} compared"))
            if drawn
            else nullcontext()
        ):
            fixed = self._fixed(
                data, terms
            )  # before the model is loaded: it may need the module
        complete = self.with_private(start)
        runtime.resident.load(complete)
        runtime.resident.module.train()
        runtime.optimizer.recall(self.memory if settings.keep_momentum else {})
        held = runtime.resident.select_held(frozen)
        if (
            sum(place.stop - place.start for place in held)
            == runtime.resident.layout.parameter_size
        ):
            raise ConfigError(
                "method: it holds the only part of the model that requires_grad lets it train; take another method, or "
                "a model that trains more of its layers"
            )
        watching = runtime.resident.watching_head(any(term.compares for term in terms))
        with (
            runtime.drawing_from(rng),
            watching as seen,
            runtime.resident.holding(frozen) as put_back,
        ):
            gradients = [
                partial(
                    self._backward,
                    data,
                    i,
                    terms,
                    [None if f is None else f[i] for f in fixed],
                    seen,
                )
                for i in range(len(data))
            ]
            for i, outer in enumerate(gradients[: len(batches)]):
                maml = inner_lr is not None
                with (
                    ahead(runtime.resident, inner_lr or 0, gradients[len(batches) + i])
                    if maml
                    else nullcontext()
                ):
                    outer()
                runtime.optimizer.step(self.lr, held)
                put_back()
        self.trained = trained = runtime.resident.read()
        self._check_finite(trained)  # before anything is remembered
        if purpose == "train" and settings.keep_momentum:
            runtime.optimizer.keep(self.memory, held)
        if complete is start:
            return trained
        assert runtime.division.private is not None
        if purpose == "train":
            self.memory[PRIVATE] = trained.take(runtime.division.private)
        return trained.take(start.layout)

    def _check_finite(self, trained: Params) -> None:
        """Raise a DivergedError if a parameter is NaN or infinite; the participant then keeps its earlier models."""
        parameters = trained.vector[: trained.layout.parameter_size]
        if not np.isfinite(parameters).all():
            raise DivergedError(
                f"{self.participant}: training diverges: parameters are NaN or infinite after round {self.round}\n"
                f"hint: lower the learning rate lr = {self.lr:g}, or look for outliers in numbers that are not scaled"
            )

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
        runtime, data, resident = self._runtime, self._train, self._runtime.resident
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
    def _fixed(
        self, data: Batches, terms: Sequence[Term]
    ) -> list[tuple[Tensor, ...] | None]:
        """The outputs for each batch of models that do not train: the frozen one's, then those each term compares.

        They are computed once, before the round's steps.
        """
        x = (
            data.samples()
            if self._beside or any(t.compares for t in terms)
            else self._train.x[:0]
        )
        sizes = data.sizes

        def compared(
            term: Term,
        ) -> tuple[Tensor, ...]:  # features (K, n, d) for each batch
            if term.training:  # where they depend on the whole batch, and on no other
                return tuple(
                    self._predict(term.compares, batch, features=True, training=True)
                    for batch in x.split(sizes)
                )
            return self._predict(term.compares, x, features=True).split(sizes, 1)

        beside = (
            None
            if self._beside is None
            else self._predict([self._beside], x)[0].split(sizes)
        )
        return [beside, *(compared(term) if term.compares else None for term in terms)]

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
        batch, reduced = data[number], runtime.settings.precision == "bfloat16"
        evaluates = not runtime.ignores_mode and any(
            term.compares and not term.training for term in terms
        )
        with torch.autocast(
            torch.device(runtime.device).type, torch.bfloat16, enabled=reduced
        ):
            # First, by the running statistics that the model has before this batch moves them.
            evaluated = (
                runtime.resident.evaluated(batch.x).float() if evaluates else None
            )
            outputs = runtime.resident.module(batch.x).float()
        trained = seen[0].float() if seen else None
        beside, *compared = fixed
        outputs = outputs if beside is None else outputs + beside
        weights, smoothing = None, runtime.settings.label_smoothing
        if runtime.settings.class_weights is not None:
            weights = balanced(self._train.class_counts, max(2, outputs.shape[1]))
        loss = runtime.task.loss(outputs, batch.y, weights, smoothing)
        shared = runtime.shared_parameters if terms else runtime.resident.parameters
        for term, others in zip(terms, compared):
            features = trained if term.training or evaluated is None else evaluated
            loss = loss + term(Step(shared, features, others))
        loss.backward()

    def _batches(self, rng: np.random.Generator, steps: int) -> list[Tensor]:
        """Indices of the batches: passes over new permutations, cut off after this many steps."""
        batches, bounds = (
            list[Tensor](),
            batch_bounds(len(self._train), self._runtime.settings.batch_size),
        )
        while len(batches) < steps:
            order = torch.from_numpy(rng.permutation(len(self._train))).to(
                self._runtime.device
            )
            batches += [order[i:j] for i, j in bounds]
        return batches[:steps]

    def _drawn(self, indices: list[Tensor], purpose: str) -> Batches:
        """The batches of these samples; the run's transforms have a random stream of their own."""
        augment = self._runtime.augment
        seeds = (
            ()
            if augment is None
            else self._stream(f"{purpose} augment").integers(2**62, size=len(indices))
        )
        return Batches(self._train, indices, augment, [int(seed) for seed in seeds])
