# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One participant at work: its data, its random stream and its memory, on the process's resident model."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import AbortedError, ConfigError
from cfl_flare.core.params import Params
from cfl_flare.core.seeds import stream
from cfl_flare.training.batched_predict import Predictor
from cfl_flare.training.ensemble import Served, combined
from cfl_flare.training.maml import ahead, descend
from cfl_flare.training.measures import accuracy, macro_f1
from cfl_flare.training.memory import Drawer
from cfl_flare.training.penalties import Step, Term
from cfl_flare.training.resident import ResidentModel, untrained
from cfl_flare.training.settings import TrainSettings, batch_bounds

# Stacked models kept for the next participant: the candidates, the frozen part of a sum, and what is being measured.
PREDICTORS = 3
# Untrained models kept for the next participant.
UNTRAINED = 4


@dataclass(frozen=True)
class Split:
    """Samples and labels as tensors: ``x (n, *input_shape)`` float32, ``y (n,)`` int64."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, device: str = "cpu") -> Split:
        """Converts arrays; images are laid out channels-last, in which a CPU convolves fastest."""
        tensor = torch.from_numpy(np.ascontiguousarray(x, np.float32)).to(device)
        if tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return cls(tensor, torch.from_numpy(np.ascontiguousarray(y, np.int64)).to(device))

    def __len__(self) -> int:
        return len(self.y)


class Workshop:
    """What all participants of a process share: the resident model, the optimizer, the settings.

    Args:
        make_model: builds the untrained module.
        settings: how a participant trains.
        seed: the run's seed.
        device: where to compute.
        should_stop: asked before each step whether the job was aborted.

    Attributes:
        initial: the run's untrained model of a number.
    """

    def __init__(
        self,
        make_model: Callable[[], torch.nn.Module],
        settings: TrainSettings,
        seed: int,
        device: str = "cpu",
        should_stop: Callable[[], bool] = lambda: False,
    ):
        try:
            torch.zeros(1, device=device)
        except Exception as error:  # torch has many ways to say that there is no such device
            raise ConfigError(
                f"device = {device!r} cannot be used here ({one_line(error)}); name another, such as 'cpu'"
            ) from error
        self.settings, self.seed, self.device, self.should_stop = settings, seed, device, should_stop
        self.initial = lru_cache(UNTRAINED)(partial(untrained, make_model, seed))
        self.resident = ResidentModel(make_model(), device)
        self.optimizer = torch.optim.SGD(
            [self.resident.parameters],
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._predictors: OrderedDict[tuple[int | bool, ...], tuple[list[Params], Predictor]] = OrderedDict()

    def predictor(self, models: Sequence[Params], features: bool = False) -> Predictor:
        """Predicts with these models; the last ones are kept, as the participants of a site compare the same models."""
        key = (features, *map(id, models))
        if key not in self._predictors:
            self._predictors[key] = (list(models), Predictor(self.resident, models, features))
        self._predictors.move_to_end(key)
        while len(self._predictors) > PREDICTORS:
            self._predictors.popitem(last=False)
        return self._predictors[key][1]


class Learner:
    """A participant's view in one round.

    Args:
        workshop: shared by the participants of a process.
        participant: its name.
        train: its training split.
        test: its test split.
        memory: what it remembers between rounds; changed in place.
        round_number: counted from 0.

    Attributes:
        samples: number of training samples, n_i.
        trained: what the participant's training of the round ended with.
    """

    def __init__(
        self,
        workshop: Workshop,
        participant: str,
        train: Split,
        test: Split,
        memory: MutableMapping[str, Params],
        round_number: int = 0,
    ):
        self._workshop, self._train, self._test = workshop, train, test
        self.participant, self.memory, self.round = participant, memory, round_number
        self.samples = len(train)
        self.trained: Params | Served | None = None
        self._beside: Params | None = None
        self._first = 0
        self._lr: float | None = None
        self._losses: dict[tuple[int, int, int | None], tuple[Params, float]] = {}

    def beside(self, frozen: Params) -> Learner:
        """The same participant, all of whose models are added to a frozen one: in `train` and in `losses`.

        The sum's logits are those of both (Fed-CAM Eq. 1). The frozen model is in evaluation mode.
        """
        view = copy.copy(self)
        view._beside = frozen
        return view

    def part(self, name: str, first: int = 0) -> Learner:
        """The same participant with a memory of its own, for a method that trains several models a round.

        Its untrained models are counted from number ``first``.
        """
        view = copy.copy(self)
        view._first = self._first + first
        view.memory = Drawer(self.memory, f"{name}.")
        return view

    def initial(self, index: int) -> Params:
        """The run's untrained model number ``index``."""
        return self._workshop.initial(self._first + index)

    def in_round(self, number: int, lr: float | None = None) -> Learner:
        """The same participant with the random streams and the learning rate of another round, or a given one."""
        view = copy.copy(self)
        view.round, view._lr, view._losses = number, lr, {}
        return view

    @property
    def lr(self) -> float:
        """The run's learning rate in this round, unless `in_round` set another."""
        return self._workshop.settings.lr_at(self.round) if self._lr is None else self._lr

    def train(
        self,
        start: Params,
        terms: Sequence[Term] = (),
        purpose: str = "train",
        epochs: int | None = None,
        frozen: str | Sequence[str] = (),
        inner_lr: float | None = None,
    ) -> Params:
        """One round of local SGD steps (thesis Alg. 1, line 7), or of first-order MAML (FedDSMIC Alg. 2).

        Args:
            start: the model to start from.
            terms: added to the cross-entropy in each step.
            purpose: names the random stream; only ``"train"`` writes the participant's momentum back to its memory.
            epochs: passes over the training data, in place of the run's steps.
            frozen: the parameters that stay as they are, momentum included; as for `Layout.select`.
            inner_lr: eta of first-order MAML: each step takes its gradient where a step of this length on a batch of
                its own would lead; see `cfl_flare.training.maml`. None for plain SGD.

        Returns:
            The trained model.
        """
        work, settings = self._workshop, self._workshop.settings
        settings = settings if epochs is None else replace(settings, local_epochs=epochs, local_steps=None)
        rng = self._stream(purpose)
        batches = self._batches(rng, settings.steps(self.samples))
        inner = [] if inner_lr is None else self._batches(self._stream(f"{purpose} ahead"), len(batches))
        fixed = self._fixed([*batches, *inner], terms)  # before the model is loaded: it may need the resident module
        self._load(start)
        work.optimizer.param_groups[0]["lr"] = self.lr
        self._start_momentum()
        watching = work.resident.watching_head(any(term.compares for term in terms))
        with self._dropout(rng), watching as seen, work.resident.holding(frozen) as put_back:
            gradients = [
                partial(self._backward, batch, terms, [None if f is None else f[i] for f in fixed], seen)
                for i, batch in enumerate([*batches, *inner])
            ]
            for i, outer in enumerate(gradients[: len(batches)]):
                looks = inner_lr is not None
                with ahead(work.resident, inner_lr or 0, gradients[len(batches) + i]) if looks else nullcontext():
                    outer()
                work.optimizer.step()
                put_back()
        if purpose == "train":
            self._keep_momentum(frozen)
        self.trained = work.resident.read()
        return self.trained

    def adapted(self, start: Params, steps: int, lr: float) -> Params:
        """A model after a few plain gradient steps on own training data: no momentum, weight decay or penalties.

        It is a personal model to predict with (FedDSMIC Alg. 1, Eq. 8): nothing of it is remembered. The batches have
        the run's size, and BatchNorm's running statistics move in each step as they do in training.

        Args:
            start: the model to start from.
            steps: how many.
            lr: the length of each.
        """
        if not steps:
            return start
        rng = self._stream("adapt")
        batches = self._batches(rng, steps)
        (beside,) = self._fixed(batches, ())
        self._load(start)
        with self._dropout(rng):
            for i, batch in enumerate(batches):
                self._backward(batch, (), [None if beside is None else beside[i]], ())
                descend(self._workshop.resident, lr)
        return self._workshop.resident.read()

    def _stream(self, purpose: str) -> np.random.Generator:
        return stream(self._workshop.seed, self.participant, self.round, purpose)

    def _load(self, start: Params) -> None:
        self._workshop.resident.load(start)
        self._workshop.resident.module.train()

    @contextmanager
    def _dropout(self, rng: np.random.Generator) -> Iterator[None]:
        """Within it, what modules draw themselves comes from a stream, too."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            yield

    @torch.no_grad()
    def _fixed(self, batches: list[Tensor], terms: Sequence[Term]) -> list[tuple[Tensor, ...] | None]:
        """What models that do not train say of each batch: first the one beside, then those that each term compares.

        It is computed for the whole round at once, and each of it once.
        """
        x = self._train.x[torch.cat(batches)] if self._beside or any(t.compares for t in terms) else self._train.x[:0]
        sizes = [len(batch) for batch in batches]
        beside = None if self._beside is None else self._predict([self._beside], x)[0].split(sizes)
        compared = [self._predict(t.compares, x, features=True).split(sizes, 1) if t.compares else None for t in terms]
        return [beside, *compared]

    def _backward(
        self, batch: Tensor, terms: Sequence[Term], fixed: list[Tensor | None], seen: Sequence[Tensor]
    ) -> None:
        """Makes the resident gradient that of the loss on one batch."""
        work = self._workshop
        if work.should_stop():
            raise AbortedError(f"aborted while {self.participant} was training")
        work.resident.gradient.zero_()
        reduced = work.settings.precision == "bfloat16"
        with torch.autocast(torch.device(work.device).type, torch.bfloat16, enabled=reduced):
            logits = work.resident.module(self._train.x[batch]).float()
        beside, *compared = fixed
        loss = F.cross_entropy(logits if beside is None else logits + beside, self._train.y[batch])
        for term, others in zip(terms, compared):
            loss = loss + term(Step(work.resident.parameters, seen[0].float() if seen else None, others))
        loss.backward()

    def _batches(self, rng: np.random.Generator, steps: int) -> list[Tensor]:
        """Indices of the batches: passes over fresh permutations, cut off after so many steps."""
        batches: list[Tensor] = []
        bounds = batch_bounds(self.samples, self._workshop.settings.batch_size)
        while len(batches) < steps:
            order = torch.from_numpy(rng.permutation(self.samples)).to(self._workshop.device)
            batches += [order[i:j] for i, j in bounds]
        return batches[:steps]

    def _momentum_buffer(self) -> Tensor:
        state = self._workshop.optimizer.state[self._workshop.resident.parameters]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(self._workshop.resident.gradient)
        return state["momentum_buffer"]

    def _start_momentum(self) -> None:
        if not self._workshop.settings.momentum:
            return
        buffer = self._momentum_buffer()
        kept = self.memory.get("momentum") if self._workshop.settings.keep_momentum else None
        if kept is None:
            buffer.zero_()
        else:
            buffer.copy_(torch.from_numpy(kept.vector[: buffer.numel()]))

    def _keep_momentum(self, frozen: str | Sequence[str]) -> None:
        if self._workshop.settings.keep_momentum and self._workshop.settings.momentum:
            layout = self._workshop.resident.layout
            vector = np.zeros(layout.size, np.float32)
            vector[: layout.parameter_size] = self._momentum_buffer().cpu().numpy()
            for place in layout.select(frozen) if frozen else ():
                vector[place] = 0
            self.memory["momentum"] = Params(layout, vector, np.zeros(layout.counter_size, np.int64))

    @torch.no_grad()
    def losses(self, models: Sequence[Params], samples: int | None = None) -> np.ndarray:
        """Mean cross-entropy of each model on this participant's own training data, ``(len(models),)`` float64.

        Args:
            models: the models to compare.
            samples: how many samples to read, drawn anew each round; None reads them all.
        """
        split = self._train
        if samples is not None and samples < self.samples:
            rng = stream(self._workshop.seed, self.participant, self.round, "assign")
            chosen = torch.from_numpy(rng.permutation(self.samples)[:samples]).to(self._workshop.device)
            split = Split(split.x[chosen], split.y[chosen])
        keys = [(id(model), id(self._beside), samples) for model in models]
        if any(key not in self._losses for key in keys):  # serving and training ask for the same ones in a round
            logits = self._predict(models, split.x)
            if self._beside is not None:
                logits = logits + self._predict([self._beside], split.x)
            every = F.cross_entropy(logits.flatten(0, 1), split.y.repeat(len(models)), reduction="none")
            means = every.view(len(models), -1).double().mean(dim=1).tolist()
            self._losses.update({key: (model, loss) for key, model, loss in zip(keys, models, means)})
        return np.array([self._losses[key][1] for key in keys])

    def _predict(self, models: Sequence[Params], x: Tensor, features: bool = False) -> Tensor:
        """Logits ``(len(models), n, classes)``, or features ``(len(models), n, d)``."""
        if self._workshop.should_stop():
            raise AbortedError(f"aborted while {self.participant} was evaluating")
        return self._workshop.predictor(models, features)(x)

    @torch.no_grad()
    def evaluate(self, model: Params | Served) -> dict[str, float]:
        """Accuracy, macro-F1 and loss of a model, or of several together, on this participant's own test split."""
        served = Served.of(model)
        logits = combined(self._predict(served.models, self._test.x), served.vote)
        labels, predicted = self._test.y.cpu().numpy(), logits.argmax(1).cpu().numpy()
        return {
            "accuracy": accuracy(labels, predicted),
            "macro_f1": macro_f1(labels, predicted),
            "loss": float(F.cross_entropy(logits, self._test.y)),
        }
