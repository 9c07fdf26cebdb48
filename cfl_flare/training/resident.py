# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One module that stays in memory; loading a model copies one vector into it. Optimizers step along its gradient."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from cfl_flare.core.network_arrays import check_arrays, find_head, live_state
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.seeds import derive
from cfl_flare.training.bound_arrays import BoundArray, find_holders
from cfl_flare.training.settings import TrainSettings


class ResidentModel:
    """A module whose parameters, gradients and float buffers are views of flat tensors.

    Loading or reading a model is one copy, and the optimizer updates one tensor, whatever the module, which it changes.

    Attributes:
        layout: of the vectors.
        flat: ``(layout.size,)`` float32, the model that is loaded.
        parameters: its leading ``(layout.parameter_size,)``, as one trainable parameter.
        built_with: the identities of the module's parameters.
        built_as: the types of the module's parameters before they became float32.
    """

    def __init__(
        self,
        module: nn.Module,
        device: str = "cpu",
    ):
        check_arrays(module)
        self.layout = Layout.of(module)
        self.built_as = {p.dtype for p in module.parameters() if p.is_floating_point()}
        self.module = cast_to_float32(module.to(device=device))
        self.flat = torch.zeros(self.layout.size, device=device)
        size = self.layout.parameter_size
        self.parameters = nn.Parameter(self.flat[:size])
        self.gradient = torch.zeros(size, device=device)
        self.parameters.grad = self.gradient
        self._counters: list[Tensor] = []
        self._frozen: list[slice] = []
        self._bound: list[BoundArray] = []
        self.built_with = {id(parameter) for parameter in module.parameters()}
        named = live_state(module)
        holders = find_holders(module)
        for entry in self.layout.entries:
            old = named[entry.name][1]
            if entry.kind == "counter":
                self._counters.append(old)
                self._bound.append(
                    BoundArray(entry.name, old, holders.get(id(old), []), False)
                )
                continue
            view = entry.view(self.flat)
            view.copy_(old.detach())
            old.data = view
            if entry.kind == "parameter":
                old.grad = entry.view(self.gradient)
            if entry.kind == "parameter" and not old.requires_grad:
                self._frozen.append(entry.slice)
            self._bound.append(
                BoundArray(
                    entry.name, old, holders.get(id(old), []), entry.kind == "parameter"
                )
            )

    def put_back_arrays(self) -> None:
        """Gives the module its own arrays again if it has replaced some while it computed."""
        for array in self._bound:
            if array.is_replaced:
                array.put_back()

    def take_over_arrays(self) -> None:
        """Copies the buffers that the module has replaced while it computed, and gives it its own arrays again.

        Raises:
            DataError: it has replaced a parameter, or a buffer by one of another shape.
        """
        for array in self._bound:
            if array.is_replaced:
                array.take_over()

    def load(self, params: Params) -> None:
        """Load a model's parameters into the module.

        Args:
            params: the model.
        """
        self.put_back_arrays()
        with torch.no_grad():
            self.flat.copy_(torch.from_numpy(params.vector))
            offset = 0
            for counter in self._counters:
                values = params.counters[offset : offset + counter.numel()]
                counter.copy_(torch.from_numpy(values.reshape(tuple(counter.shape))))
                offset += counter.numel()

    @contextlib.contextmanager
    def watching_head(self, wanted: bool = True) -> Iterator[list[Tensor]]:
        """Inside it, the list holds the last input of the head: the backbone's outputs ``(n, d)``.

        Args:
            wanted: note the head's input.
        """
        seen: list[Tensor] = []
        if not wanted:
            yield seen
            return
        name = find_head(self.module)
        assert name is not None
        head = self.module.get_submodule(name)
        with head.register_forward_pre_hook(
            lambda _, given: seen.__setitem__(slice(None), given)
        ):
            yield seen

    def evaluated(self, x: Tensor) -> Tensor:
        """The backbone's outputs ``(n, d)`` in evaluation mode, with gradient. The module is in training mode after it.

        It computes with copies of the buffers. The backward pass reads BatchNorm's statistics again, which the training
        pass has changed in place by then; torch does not warn of it.

        Args:
            x: samples ``(n, *input_shape)`` float32.
        """
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        self.module.eval()
        with self.watching_head() as seen:
            torch.func.functional_call(self.module, buffers, (x,))
        self.module.train()
        return seen[0]

    def select_held(self, part: str | Sequence[str]) -> list[slice]:
        """The slices of the vector that a step must not change.

        Args:
            part: as for `Layout.select`, or nothing if empty.

        Returns:
            Those of the part, and of parameters whose ``requires_grad`` is False.
        """
        slices = self.layout.select(part) if part else []
        return [*slices, *(place for place in self._frozen if place not in slices)]

    @contextlib.contextmanager
    def holding(self, part: str | Sequence[str]) -> Iterator[Callable[[], None]]:
        """Inside it, a part of the loaded parameters gets no gradients. Yields a function that restores that part.

        It is to be called after each step: weight decay, momentum and penalties also change what has no gradient. The
        part is as for `Layout.select`, or nothing if empty. Parameters that the network itself keeps from training are
        held as well.

        Args:
            part: names of parameters.
        """
        slices = self.select_held(part)
        starts = {s.start for s in slices}
        named = dict(self.module.named_parameters())
        entries = [
            e
            for e in self.layout.entries
            if e.kind == "parameter" and e.offset in starts
        ]
        held = [named[e.name] for e in entries if named[e.name].requires_grad]
        before = [self.flat[s].clone() for s in slices]

        def put_back() -> None:
            for s, values in zip(slices, before):
                self.flat[s] = values

        for parameter in held:
            parameter.requires_grad_(False)
        try:
            yield put_back
        finally:
            for parameter in held:
                parameter.requires_grad_(True)

    @contextlib.contextmanager
    def keeping_statistics(self) -> Iterator[None]:
        """Restores the buffers, such as BatchNorm's running statistics, at its end."""
        self.take_over_arrays()
        buffers = [self.flat[self.layout.parameter_size :], *self._counters]
        before = [tensor.clone() for tensor in buffers]
        try:
            yield
        finally:
            self.put_back_arrays()
            with torch.no_grad():
                for tensor, old in zip(buffers, before):
                    tensor.copy_(old)

    def read(self) -> Params:
        """A copy of the loaded model.

        Raises:
            DataError: the module has replaced a parameter while it computed.
        """
        self.take_over_arrays()
        counters = [
            np.zeros(0, np.int64),
            *(c.detach().cpu().numpy().reshape(-1) for c in self._counters),
        ]
        vector = self.flat.detach().cpu().numpy().copy()
        return Params(self.layout, vector, np.concatenate(counters).astype(np.int64))


def cast_to_float32(module: nn.Module) -> nn.Module:
    """Makes a module's floating numbers float32, in place; ``module.to()`` would make complex constants real.

    Args:
        module: the network.

    Returns:
        The module itself.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.float()
    return module


def build_untrained(
    make_model: Callable[[], nn.Module],
    seed: int,
    index: int,
) -> Params:
    """A run's untrained model number ``index``, the same on every machine.

    Args:
        make_model: builds the untrained module.
        seed: the run's seed.
        index: the number of the seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial", index))
        return ResidentModel(make_model()).read()


def descend(
    resident: ResidentModel,
    lr: float,
) -> None:
    """One plain gradient step, w - lr * grad, with the gradient computed last.

    Args:
        resident: the model in memory, with its gradient.
        lr: the learning rate.
    """
    with torch.no_grad():
        resident.parameters.sub_(resident.gradient, alpha=lr)


@contextlib.contextmanager
def look_ahead(
    resident: ResidentModel,
    lr: float,
    backward: Callable[[], None],
) -> Iterator[None]:
    """The inner step of first-order MAML (FedDSMIC Alg. 2, Eq. 15-16; Fallah et al. 2020, Per-FedAvg (FO)).

    It trains a model to perform well after one more gradient step on a participant's own data. A step has two
    independent batches D and D'::

        w_hat = w - eta grad l(w; D)
        w     = w - eps grad l(w_hat; D')

    Inside the context the model is w_hat, and a gradient that is computed there is that of Eq. 16. After it the model
    is w again, from which the run's optimizer steps, with its learning rate eps, momentum and weight decay. Penalties
    are part of l in both. D' is the batch that plain SGD draws, so that eta = 0 is plain SGD; D has a random stream of
    its own. D' alone updates BatchNorm's running statistics. ``lr`` is eta, and ``backward`` computes grad l(w; D).

    Args:
        resident: the model in memory, with its gradient.
        lr: the learning rate.
        backward: computes the gradient at the loaded parameters.
    """
    before = resident.parameters.detach().clone()
    with resident.keeping_statistics():
        backward()
    descend(resident, lr)
    try:
        yield
    finally:
        with torch.no_grad():
            resident.parameters.copy_(before)


class Optimizer(ABC):
    """Steps of the resident model. Its state is that of the participant that trains, from `recall` to `keep`."""

    def __init__(
        self,
        settings: TrainSettings,
        resident: ResidentModel,
    ):
        self._settings = settings
        self._resident = resident

    @torch.no_grad()
    def step(
        self,
        lr: float,
        held: Sequence[slice] = (),
    ) -> None:
        """One step along the gradient, which is clipped first.

        The gradients of ``held`` parameters, which the caller puts back, do not count in the norm.

        Args:
            lr: the learning rate.
            held: the places of parameters that are held.
        """
        gradient = self._resident.gradient
        most = self._settings.clip_grad
        for part in held:
            gradient[part] = 0
        if most is not None:
            norm = torch.linalg.vector_norm(gradient)
            if norm > most:
                gradient.mul_(most / norm)
        self._move(lr)

    @abstractmethod
    def _move(self, lr: float) -> None: ...

    @abstractmethod
    def _state(self) -> dict[str, Tensor]:
        """Its state, by names of a participant's memory, each ``(layout.parameter_size,)``."""

    @torch.no_grad()
    def recall(self, memory: Mapping[str, Params]) -> None:
        """Goes on from what `keep` left in a participant's memory; afresh where it left nothing.

        Args:
            memory: the participant's memory.
        """
        state = self._state()
        remembered = state.keys() <= memory.keys()
        for name, tensor in state.items():
            if remembered:
                tensor.copy_(torch.from_numpy(memory[name].vector[: tensor.numel()]))
            else:
                tensor.zero_()

    def keep(
        self,
        memory: MutableMapping[str, Params],
        held: Sequence[slice],
    ) -> None:
        """Writes the state to a participant's memory; that of parameters that were held is reset.

        Args:
            memory: the participant's memory.
            held: the places of parameters that are held.
        """
        layout = self._resident.layout
        for name, tensor in self._state().items():
            vector = np.zeros(layout.size, np.float32)
            vector[: layout.parameter_size] = tensor.cpu().numpy()
            for part in held:
                vector[part] = 0
            memory[name] = Params(
                layout, vector, np.zeros(layout.counter_size, np.int64)
            )


class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    def __init__(
        self,
        settings: TrainSettings,
        resident: ResidentModel,
    ):
        super().__init__(settings, resident)
        self._momentum = (
            torch.zeros_like(resident.gradient) if settings.momentum else None
        )

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

    def __init__(
        self,
        settings: TrainSettings,
        resident: ResidentModel,
    ):
        super().__init__(settings, resident)
        self._mean, self._square, self._steps = (
            torch.zeros_like(resident.gradient) for _ in range(3)
        )
        self._counts = [(slice(0, len(self._steps)), 0)]

    def _move(self, lr: float) -> None:
        weights = self._resident.parameters
        gradient = self._resident.gradient
        decay = self._settings.weight_decay
        beta1 = self._settings.beta1
        beta2 = self._settings.beta2
        if self._settings.optimizer == "adamw":
            weights.mul_(1 - lr * decay)
        elif decay:
            gradient.add_(weights, alpha=decay)
        self._mean.lerp_(gradient, 1 - beta1)
        self._square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        self._counts = [(part, count + 1) for part, count in self._counts]
        for part, count in self._counts:
            root = (
                self._square[part]
                .sqrt()
                .div_(math.sqrt(1 - beta2**count))
                .add_(self._settings.adam_eps)
            )
            weights[part].addcdiv_(
                self._mean[part], root, value=-lr / (1 - beta1**count)
            )

    def _state(self) -> dict[str, Tensor]:
        for part, count in self._counts:
            self._steps[part] = count
        return {
            "adam_mean": self._mean,
            "adam_square": self._square,
            "adam_steps": self._steps,
        }

    def recall(self, memory: Mapping[str, Params]) -> None:
        """Go on from the state in a participant's memory.

        Args:
            memory: the participant's memory.
        """
        super().recall(memory)
        # Neighbours with the same number of steps are one slice: mostly there is one for all.
        counts, sizes = (
            tensor.tolist()
            for tensor in torch.unique_consecutive(self._steps, return_counts=True)
        )
        ends = np.cumsum(sizes).tolist()
        self._counts = [
            (slice(end - size, end), int(count))
            for end, size, count in zip(ends, sizes, counts)
        ]


def build_optimizer(
    settings: TrainSettings,
    resident: ResidentModel,
) -> Optimizer:
    """Build the optimizer of the settings.

    Args:
        settings: the settings of the training.
        resident: the model in memory, with its gradient.
    """
    if settings.optimizer == "sgd":
        return SGD(settings, resident)
    return Adam(settings, resident)
