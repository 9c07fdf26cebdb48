# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One module that stays in memory; loading a model copies one vector into it. First-order MAML steps ahead with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

from cfl_flare.core.params import Layout, Params, live_state
from cfl_flare.core.seeds import derive


class ResidentModel:
    """A module whose parameters, gradients and float buffers are views of flat tensors.

    Loading or reading a model is one copy, and the optimizer updates one tensor, whatever the module.

    Args:
        module: any module; it is modified.
        device: where it computes.

    Attributes:
        layout: of the vectors.
        flat: ``(layout.size,)`` float32, the model that is loaded.
        parameters: its leading ``(layout.parameter_size,)``, as one trainable parameter.
    """

    def __init__(self, module: nn.Module, device: str = "cpu"):
        self.module = module.to(device=device, dtype=torch.float32)
        self.layout = Layout.of(module)
        self.flat = torch.zeros(self.layout.size, device=device)
        size = self.layout.parameter_size
        self.parameters = nn.Parameter(self.flat[:size])
        self.gradient = torch.zeros(size, device=device)
        self.parameters.grad = self.gradient
        self._counters: list[torch.Tensor] = []
        named = live_state(module)
        for entry in self.layout.entries:
            old = named[entry.name][1]
            if entry.kind == "counter":
                self._counters.append(old)
                continue
            view = entry.view(self.flat)
            view.copy_(old.detach())
            old.data = view
            if entry.kind == "parameter":
                old.grad = entry.view(self.gradient)

    def load(self, params: Params) -> None:
        """Loads a model."""
        with torch.no_grad():
            self.flat.copy_(torch.from_numpy(params.vector))
            offset = 0
            for counter in self._counters:
                values = params.counters[offset : offset + counter.numel()]
                counter.copy_(torch.from_numpy(values.reshape(tuple(counter.shape))))
                offset += counter.numel()

    @contextlib.contextmanager
    def watching_head(self, wanted: bool = True) -> Iterator[list[torch.Tensor]]:
        """Inside it, the list holds the last input of the head: the backbone's outputs ``(n, d)``."""
        seen: list[torch.Tensor] = []
        if not wanted:
            yield seen
            return
        name = next(e.name for e in self.layout.entries if e.head).rpartition(".")[0]
        hook = self.module.get_submodule(name).register_forward_pre_hook(
            lambda _, given: seen.__setitem__(slice(None), given)
        )
        try:
            yield seen
        finally:
            hook.remove()

    def evaluated(self, x: torch.Tensor) -> torch.Tensor:
        """The backbone's outputs ``(n, d)`` in evaluation mode, with gradient. The module is in training mode after it.

        It computes with copies of the buffers. The backward pass reads BatchNorm's statistics again, which the training
        pass has changed in place by then; torch does not warn of it.
        """
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        self.module.eval()
        with self.watching_head() as seen:
            torch.func.functional_call(self.module, buffers, (x,))
        self.module.train()
        return seen[0]

    @contextlib.contextmanager
    def holding(self, part: str | Sequence[str]) -> Iterator[Callable[[], None]]:
        """Inside it, a part of the loaded parameters gets no gradients. Yields a function that restores that part.

        It is to be called after each step: weight decay, momentum and penalties also change what has no gradient.

        Args:
            part: as for `Layout.select`; nothing if empty.
        """
        slices = self.layout.select(part) if part else []
        starts, named = {s.start for s in slices}, dict(self.module.named_parameters())
        entries = [e for e in self.layout.entries if e.kind == "parameter" and e.offset in starts]
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
        buffers = [self.flat[self.layout.parameter_size :], *self._counters]
        before = [tensor.clone() for tensor in buffers]
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, old in zip(buffers, before):
                    tensor.copy_(old)

    def read(self) -> Params:
        """A copy of the loaded model."""
        counters = [c.detach().cpu().numpy().reshape(-1) for c in self._counters]
        return Params(
            self.layout,
            self.flat.detach().cpu().numpy().copy(),
            np.concatenate(counters).astype(np.int64) if counters else np.zeros(0, np.int64),
        )


def untrained(make_model: Callable[[], nn.Module], seed: int, index: int) -> Params:
    """A run's untrained model number ``index``, the same on every machine."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial", index))
        return ResidentModel(make_model()).read()


def descend(resident: ResidentModel, lr: float) -> None:
    """One plain gradient step, w - lr * grad, with the gradient computed last."""
    with torch.no_grad():
        resident.parameters.sub_(resident.gradient, alpha=lr)


@contextlib.contextmanager
def ahead(resident: ResidentModel, lr: float, backward: Callable[[], None]) -> Iterator[None]:
    """The inner step of first-order MAML (FedDSMIC Alg. 2, Eq. 15-16; Fallah et al. 2020, Per-FedAvg (FO)).

    It trains a model to perform well after one more gradient step on a participant's own data. A step has two
    independent batches D and D'::

        w_hat = w - eta grad l(w; D)
        w     = w - eps grad l(w_hat; D')

    Inside the context the model is w_hat, and a gradient that is computed there is that of Eq. 16. After it the model
    is w again, from which the run's optimizer steps, with its learning rate eps, momentum and weight decay. Penalties
    are part of l in both. D' is the batch that plain SGD draws, so that eta = 0 is plain SGD; D has a random stream of
    its own. D' alone updates BatchNorm's running statistics.

    Args:
        resident: holds w.
        lr: eta.
        backward: computes grad l(w; D).
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
