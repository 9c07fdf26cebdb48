# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One training step before the first round: what would fail in training fails at check-in, with a reason and a hint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import DataError
from cfl_flare.core.network_arrays import Constant, live_state
from cfl_flare.training.runtime import Runtime, Split

# Words in which torch says that two arrays differ in their type.
OF_TYPES = re.compile(r"dtype|scalar type|input type|weight type", re.IGNORECASE)
OF_INDICES = re.compile(r"indices", re.IGNORECASE)


def explain_input(runtime: Runtime, error: Exception, shape: tuple[int, ...]) -> str:
    """What to do when the model does not take its samples.

    Args:
        runtime: it has the resident model.
        error: raised by the model's forward().
        shape: of one sample.

    Returns:
        The reason in brackets, and a hint.
    """
    reason = one_line(error)
    built_as = runtime.resident.built_as - {torch.float32}
    if OF_INDICES.search(reason):
        hint = "samples arrive as float32: cast them with x.long() in forward() for an embedding"
    elif built_as:
        names = ", ".join(sorted(map(str, built_as)))
        hint = (
            f"its constructor makes parameters of {names}, which are trained as float32: leave .half() and .double() "
            "out of the constructor and of forward(); precision='bfloat16' computes faster"
        )
    elif OF_TYPES.search(reason):
        hint = "parameters and samples are float32: cast to no other type in forward()"
    else:
        hint = f"set the model's input_shape to {list(shape)} before the run, or bring the samples to what it takes"
    return f"({reason}); {hint}"


def try_training_step(runtime: Runtime, data: Split, outputs: Tensor, where: str) -> None:
    """Computes the gradient of one batch as training does, and changes nothing.

    Args:
        runtime: with the resident model, the task and the settings.
        data: the samples of one batch.
        outputs: of one of them in evaluation mode, ``(1, ...)``.
        where: begins the message of an error: whose samples, and which model.

    Raises:
        DataError: the step fails, has no gradient, or changes a constant of the network.
    """
    module = runtime.resident.module
    with _restoring(runtime):
        trained = _compute_outputs(runtime, data, where)
        if trained.shape[1:] != outputs.shape[1:]:
            shapes = f"{tuple(trained.shape)} in training, where {(len(data), *outputs.shape[1:])} is expected"
            raise DataError(f"{where} returns outputs of shape {shapes}; return the same in training and in evaluation")
        _compute_gradient(runtime, data, trained, where)
        _check_constants(runtime, module, where)


@contextmanager
def _restoring(runtime: Runtime) -> Iterator[None]:
    """Restores buffers, gradients and random streams at its end."""
    module = runtime.resident.module
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    module.train()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # the same trial at each site and in each process
            yield
    finally:
        module.eval()
        with torch.no_grad():
            for buffer, values in before:
                buffer.copy_(values)
        runtime.resident.gradient.zero_()


def _compute_outputs(runtime: Runtime, data: Split, where: str) -> Tensor:
    """The model's outputs in training mode ``(n, ...)``, float32."""
    reduced = runtime.settings.precision == "bfloat16"
    try:
        with torch.autocast(torch.device(runtime.device).type, torch.bfloat16, enabled=reduced):
            outputs = runtime.resident.module(data.x)
    except Exception as error:  # the module may be the user's, and raise anything
        raise DataError(
            f"{where} fails in training ({one_line(error)}), though not in evaluation; its forward() should take "
            "samples alone, also where self.training holds"
        ) from error
    if not isinstance(outputs, Tensor):
        raise DataError(
            f"{where} returns a {type(outputs).__name__} in training; its forward() should return logits, one tensor "
            "(samples, classes), in training as in evaluation"
        )
    return outputs.float()


def _compute_gradient(runtime: Runtime, data: Split, outputs: Tensor, where: str) -> None:
    try:
        loss = runtime.task.loss(outputs, data.y)
        has_gradient = loss.requires_grad
        if has_gradient:
            loss.backward()
    except Exception as error:  # so may the task
        raise DataError(
            f"{where} gives no gradient ({one_line(error)}); compute in forward() by what torch can differentiate, and "
            "change no array in place that it needs again"
        ) from error
    if not has_gradient:
        raise DataError(
            f"{where} has outputs without a gradient, so that nothing would be trained; leave detach(), no_grad() and "
            "numpy out of forward()"
        )


def _check_constants(runtime: Runtime, module: nn.Module, where: str) -> None:
    """Raises a DataError if the step has changed an array that is in no model, as it began without finite numbers."""
    live = live_state(module)
    for constant in runtime.resident.layout.constants:
        if Constant.of(constant.name, live[constant.name][1]) != constant:
            raise DataError(
                f"{where} begins with {constant.name!r} at infinity or NaN, and training changes it, so that it can be "
                "neither averaged nor left alone; begin with a finite number, such as 1e30, or register it with "
                "persistent=False, as what each site has for itself"
            )
