# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the resident model along its gradient: SGD, Adam, AdamW, on flat vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim.sgd import sgd

from cfl_flare.core.params import Params
from cfl_flare.training.resident import ResidentModel
from cfl_flare.training.settings import TrainSettings


class Optimizer(ABC):
    """Steps of the resident model. Its state is that of the participant that trains, from `recall` to `keep`.

    Args:
        settings: how a participant trains.
        resident: the model.
    """

    def __init__(self, settings: TrainSettings, resident: ResidentModel):
        self._settings, self._resident = settings, resident

    @torch.no_grad()
    def step(self, lr: float, held: Sequence[slice] = ()) -> None:
        """One step along the gradient, which is clipped first.

        Args:
            lr: the learning rate.
            held: the parameters that the caller puts back; their gradients do not count in the norm.
        """
        gradient, most = self._resident.gradient, self._settings.clip_grad
        for part in held:
            gradient[part] = 0
        if most is not None:
            norm = torch.linalg.vector_norm(gradient)
            if norm > most:
                gradient.mul_(most / norm)
        self._move(lr)

    @abstractmethod
    def _move(self, lr: float) -> None:
        """One step."""

    @abstractmethod
    def _state(self) -> dict[str, Tensor]:
        """Its state, by names of a participant's memory, each ``(layout.parameter_size,)``."""

    @torch.no_grad()
    def recall(self, memory: Mapping[str, Params]) -> None:
        """Goes on from what `keep` left in a participant's memory; afresh where it left nothing."""
        state = self._state()
        remembered = state.keys() <= memory.keys()
        for name, tensor in state.items():
            if remembered:
                tensor.copy_(torch.from_numpy(memory[name].vector[: tensor.numel()]))
            else:
                tensor.zero_()

    def keep(self, memory: MutableMapping[str, Params], held: Sequence[slice]) -> None:
        """Writes the state to a participant's memory; that of parameters that were held is reset."""
        layout = self._resident.layout
        for name, tensor in self._state().items():
            vector = np.zeros(layout.size, np.float32)
            vector[: layout.parameter_size] = tensor.cpu().numpy()
            for part in held:
                vector[part] = 0
            memory[name] = Params(layout, vector, np.zeros(layout.counter_size, np.int64))


class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    def __init__(self, settings: TrainSettings, resident: ResidentModel):
        super().__init__(settings, resident)
        self._momentum = torch.zeros_like(resident.gradient) if settings.momentum else None

    def _move(self, lr: float) -> None:
        # Not torch.optim.SGD: it imports torch's compiler, which doubles the time in which a site's process starts.
        sgd(
            [self._resident.parameters],
            [self._resident.gradient],
            [self._momentum],
            fused=True,
            lr=lr,
            momentum=self._settings.momentum or 0.0,
            weight_decay=self._settings.weight_decay,
            dampening=0,
            nesterov=False,
            maximize=False,
        )

    def _state(self) -> dict[str, Tensor]:
        return {} if self._momentum is None else {"momentum": self._momentum}


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, Alg. 1), and AdamW, whose decay is apart from it (Loshchilov and Hutter 2019, Alg. 2).

    As in torch, each parameter counts its own steps: one that was held starts afresh, bias correction included.
    """

    def __init__(self, settings: TrainSettings, resident: ResidentModel):
        super().__init__(settings, resident)
        self._mean, self._square, self._steps = (torch.zeros_like(resident.gradient) for _ in range(3))
        self._counts = [(slice(0, len(self._steps)), 0)]

    def _move(self, lr: float) -> None:
        weights, gradient, decay = self._resident.parameters, self._resident.gradient, self._settings.weight_decay
        beta1, beta2 = self._settings.beta1, self._settings.beta2
        if self._settings.optimizer == "adamw":
            weights.mul_(1 - lr * decay)
        elif decay:
            gradient.add_(weights, alpha=decay)
        self._mean.lerp_(gradient, 1 - beta1)
        self._square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        self._counts = [(part, count + 1) for part, count in self._counts]
        for part, count in self._counts:
            root = self._square[part].sqrt().div_(math.sqrt(1 - beta2**count)).add_(self._settings.adam_eps)
            weights[part].addcdiv_(self._mean[part], root, value=-lr / (1 - beta1**count))

    def _state(self) -> dict[str, Tensor]:
        for part, count in self._counts:
            self._steps[part] = count
        return {"adam_mean": self._mean, "adam_square": self._square, "adam_steps": self._steps}

    def recall(self, memory: Mapping[str, Params]) -> None:
        super().recall(memory)
        # Neighbours with the same number of steps are one slice: mostly there is one for all.
        counts, sizes = (tensor.tolist() for tensor in torch.unique_consecutive(self._steps, return_counts=True))
        ends = np.cumsum(sizes).tolist()
        self._counts = [(slice(end - size, end), int(count)) for end, size, count in zip(ends, sizes, counts)]


def optimizer_of(settings: TrainSettings, resident: ResidentModel) -> Optimizer:
    """The optimizer that the settings name."""
    return SGD(settings, resident) if settings.optimizer == "sgd" else Adam(settings, resident)
