# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What models make of one participant's data: their losses, the choice among them, their outputs and measures."""

from __future__ import annotations

import copy
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cfl_flare.core.errors import AbortedError
from cfl_flare.core.params import Params
from cfl_flare.core.seeds import stream
from cfl_flare.training.bootstrap import (
    Replicates,
    draw_resample,
    draw_rows,
    hash_split_arrays,
    replicates,
)
from cfl_flare.training.ensemble import Predictor, Served, combine_outputs
from cfl_flare.training.histograms import count_classes, count_scores
from cfl_flare.training.race import race_models
from cfl_flare.training.runtime import PRIVATE, MemoryView, Runtime, Split

if TYPE_CHECKING:
    from typing_extensions import Self

    from cfl_flare.training.tasks import LearningTask


class Evaluator:
    """A participant's view in one round, for what predicts and measures: it changes no model and no memory.

    Args:
        memory: what it remembers between rounds.
        stream: names its random streams; empty for its name.

    Attributes:
        samples: number of training samples, n_i.
        tests: number of test samples; with none, nothing is measured.
    """

    # begins the names of its random streams; number of its first untrained model
    _part = ""
    _first = 0
    _beside: Params | None = None

    def __init__(
        self,
        runtime: Runtime,
        participant: str,
        train: Split,
        test: Split,
        memory: MutableMapping[str, Params],
        round_number: int = 0,
        stream: str = "",
    ):
        self._runtime = runtime
        self._train = train
        self._test = test
        self._drawer = stream or participant
        self.participant = participant
        self.memory = memory
        self.round = round_number
        self.samples = len(train)
        self.tests = len(test)
        self._compared: dict[
            tuple[Any, ...], tuple[Any, ...]
        ] = {}  # losses and choices, with the models

    @property
    def labels(self) -> np.ndarray:
        """The labels of its training samples, ``(n,)`` int64."""
        return self._train.y.cpu().numpy()

    @property
    def task(self) -> LearningTask:
        """The run's task."""
        return self._runtime.task

    @property
    def patients(self) -> int:
        """The number of training patients; of training samples where nothing says whose they are."""
        return self._train.patients

    def initial(self, index: int) -> Params:
        """The part that travels of the run's untrained model number ``index``: all of it if no layers are private.

        Args:
            index: the number of the seed.
        """
        return self._runtime.initial(self._first + index)

    def _view(self, **changes: Any) -> Self:
        view = copy.copy(self)
        vars(view).update(changes)
        return view

    def beside(self, frozen: Params) -> Self:
        """The same participant, all of whose models are added to a frozen one, in `train` and in `losses`.

        The outputs of the two are added (Fed-CAM Eq. 1). The frozen model is in evaluation mode. It comes with its
        private layers where they are those of another part of the participant.

        Args:
            frozen: the models whose outputs are added.
        """
        return self._view(_beside=frozen)

    def part(
        self,
        name: str,
        first: int = 0,
    ) -> Self:
        """The same participant with a memory and random streams of its own, for one of several models of a round.

        Its untrained models are counted from number ``first``.

        Args:
            name: the name of the part.
            first: the number of its first seed.
        """
        memory = MemoryView(self.memory, f"{name}.")
        return self._view(
            _first=self._first + first, _part=f"{self._part}{name}.", memory=memory
        )

    def with_private(self, model: Params) -> Params:
        """A model, or a part of one, with the participant's private layers; as it is if it has them or there are none.

        They are those that it trained last, or else the run's initial ones.

        Args:
            model: a model.
        """
        division = self._runtime.division
        if (
            division.private is None
            or {*division.private.shapes} <= model.arrays().keys()
        ):
            return model
        layers = self.memory.get(PRIVATE)
        if (
            layers is None or layers.layout != division.private
        ):  # others would replace what was sent, and leave
            layers = self._runtime.untrained(0).take(division.private)
        return division.joined(model, layers)

    def complete(self, served: Params | Served) -> Params | Served:
        """The models with which the participant predicts, each with the private layers of its part.

        Args:
            served: the models without private layers.
        """
        if self._runtime.division.private is None:
            return served
        served = Served.of(served)
        views = [self.part(name) if name else self for name in served.of_parts]
        return replace(
            served,
            models=tuple(v.with_private(m) for v, m in zip(views, served.models)),
        )

    @torch.no_grad()
    def losses(
        self,
        models: Sequence[Params],
        samples: int | None = None,
    ) -> np.ndarray:
        """Mean loss of each model on the participant's training data, ``(len(models),)`` float64.

        It is the plain loss, as when models are measured: without class weights and label smoothing. In each
        round, ``samples`` of them are drawn anew; None for all.

        Args:
            models: the models.
            samples: how many samples are read; None for all.
        """
        if samples is None or samples >= len(self._train):
            split = self._train
        else:
            split = self._drawn_anew(samples)
        keys = [(id(model), id(self._beside), samples, self._part) for model in models]
        if any(
            key not in self._compared for key in keys
        ):  # evaluation and training need the same ones in a round
            means = self._runtime.task.losses(
                self._with_beside(models, split.x), split.y
            ).tolist()
            # The models are held with them: a new one could have the id of one that is gone.
            self._compared.update(
                {
                    key: (model, self._beside, loss)
                    for key, model, loss in zip(keys, models, means)
                }
            )
        return np.array([self._compared[key][-1] for key in keys])

    @torch.no_grad()
    def choice(
        self,
        models: Sequence[Params],
        samples: int | None = None,
        race: bool = False,
    ) -> int:
        """The index of the model with the smallest loss, the first of equal ones; NaN is never the smallest.

        ``samples`` is as in `losses`. With ``race``, the models race over these samples in a random order, see
        `race_models`, unless the task's loss is no mean over samples or may be below 0.

        Args:
            models: the models.
            samples: how many samples are read; None for all.
            race: stop reading samples with a model that cannot be the best any more.
        """
        task = self._runtime.task
        if not (race and task.separable and task.nonnegative):
            return int(np.nan_to_num(self.losses(models, samples), nan=np.inf).argmin())
        key = (*map(id, models), id(self._beside), samples, self._part)
        if key not in self._compared:
            split = self._drawn_anew(samples)

            def losses(
                left: np.ndarray,
                rows: slice,
            ) -> np.ndarray:
                outputs = self._with_beside(
                    [models[k] for k in left],
                    split.x[rows],
                    passing=len(left) < len(models),
                )
                return task.sample_losses(outputs, split.y[rows]).cpu().numpy()

            self._compared[key] = (
                *models,
                self._beside,
                race_models(losses, len(models), len(split)),
            )
        return int(self._compared[key][-1])

    @torch.no_grad()
    def outputs(
        self,
        model: Params | Served,
        x: Tensor,
    ) -> Tensor:
        """The outputs ``(n, classes, ...)`` of a model, or of an ensemble, for samples.

        Args:
            model: a model.
            x: samples ``(n, *input_shape)`` float32.
        """
        served = Served.of(self.complete(model))
        return combine_outputs(
            self._predict(served.models, x), served.vote, self._runtime.task.link
        )

    def tested(self, model: Params | Served) -> Tensor:
        """The same for the participant's test split.

        Args:
            model: a model.
        """
        return self.outputs(model, self._test.x)

    def measured(self, outputs: Tensor) -> dict[str, float]:
        """The task's measures of these outputs for the participant's test split.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
        """
        return self._runtime.task.measured(
            outputs, self._test.y, self._runtime.settings.measures
        )

    def score_counts(self, outputs: Tensor) -> np.ndarray | None:
        """The histograms of the same outputs' scores; see `cfl_flare.training.histograms.count_scores`.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
        """
        task = self._runtime.task
        bins = self._runtime.settings.score_bins
        return count_scores(
            outputs, self._test.y, task.link, bins, getattr(task, "threshold", 0.5)
        )

    def class_counts(self, outputs: Tensor) -> list[int] | None:
        """How many test samples are of each class, or have each finding; None where outputs score no classes.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
        """
        if self._runtime.task.scored:
            return count_classes(self._test.y, outputs.shape[1])
        return None

    def evaluate(self, model: Params | Served) -> dict[str, float]:
        """The task's measures of a model, or of an ensemble, on the participant's test split.

        Args:
            model: a model.
        """
        return self.measured(self.tested(model)) if self.tests else {}

    def resampled(
        self,
        outputs: Tensor,
        names: Iterable[str],
        times: int,
    ) -> Replicates | None:
        """Measures of these outputs when the test split is drawn anew ``times`` times; None for no times.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
            names: the names of the measures.
            times: how many resamples.
        """
        if not times:
            return None
        runtime = self._runtime
        test = self._test
        stream_key = (runtime.seed, self._drawer, hash_split_arrays(test.x, test.y))
        rows = draw_rows(*stream_key, len(test), times, test.patient)
        values = replicates(
            runtime.task, outputs, test.y, names, rows, runtime.should_stop
        )
        return Replicates(draw_resample(*stream_key), values)

    def _drawn_anew(self, samples: int | None) -> Split:
        """So many training samples in a random order, the same for all models of a round; None for all of them."""
        drawn = torch.from_numpy(
            self._stream("assign").permutation(len(self._train))[:samples]
        )
        return self._train.take(drawn.to(self._runtime.device))

    def _with_beside(
        self,
        models: Sequence[Params],
        x: Tensor,
        passing: bool = False,
    ) -> Tensor:
        """Outputs of each model, added to those of the frozen one if there is one."""
        outputs = self._predict(models, x, passing=passing)
        if self._beside is None:
            return outputs
        return outputs + self._predict([self._beside], x)

    def _predict(
        self,
        models: Sequence[Params],
        x: Tensor,
        passing: bool = False,
        **kind: bool,
    ) -> Tensor:
        """Outputs ``(len(models), n, classes, ...)``, or features ``(len(models), n, d)``; ``passing`` caches none.

        ``kind`` is as in `Predictor`: ``features``, ``training``.
        """
        if self._runtime.should_stop():
            raise AbortedError(f"aborted while {self.participant} was evaluating")
        complete = [self.with_private(model) for model in models]
        if passing:
            return Predictor(self._runtime.resident, complete, **kind)(x)
        return self._runtime.predictor(complete, **kind)(x)

    def _stream(self, purpose: str) -> np.random.Generator:
        return stream(
            self._runtime.seed, self._drawer, self.round, self._part + purpose
        )
