# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A network's trial before the first round: it predicts for samples and trains on a batch, or is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import DataError
from cfl_flare.core.network_arrays import Constant, find_head, live_state
from cfl_flare.training.bound_arrays import find_new_parameters
from cfl_flare.training.network_end import (
    describe_dependence,
    describe_end,
    describe_head,
    tracing,
)
from cfl_flare.training.runtime import Runtime, Split

# Words in which torch says that two arrays differ in their type.
OF_TYPES = re.compile(r"dtype|scalar type|input type|weight type", re.IGNORECASE)
OF_INDICES = re.compile(r"indices", re.IGNORECASE)
OF_ARGUMENTS = re.compile(r"forward\(\) (missing|takes|got)|unexpected keyword")
OF_STATISTICS = re.compile(
    r"more than 1 value per channel|more than 1 spatial element", re.IGNORECASE
)
OF_GRADIENTS = re.compile(r"does not require grad|inference tensor", re.IGNORECASE)
# Batches on which a step is tried: a network that fails by chance, or on one batch, succeeds on another.
TRIALS = 3


def explain_input(
    runtime: Runtime,
    error: BaseException,
    shape: tuple[int, ...],
) -> str:
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
    elif OF_ARGUMENTS.search(reason):
        hint = "let its forward() take samples alone, as its only argument without a default"
    elif OF_STATISTICS.search(reason):
        hint = "its BatchNorm keeps no running statistics: set track_running_stats=True, or take GroupNorm"
    elif OF_TYPES.search(reason):
        hint = "parameters and samples are float32: cast to no other type in forward()"
    elif OF_GRADIENTS.search(reason):
        hint = "it is evaluated without gradients: compute those that forward() needs within torch.enable_grad()"
    elif isinstance(error, RecursionError):
        hint = "its forward() calls itself without an end: call a layer, or super().forward(), in its place"
    else:
        hint = f"set the model's input_shape to {list(shape)} before the run, or bring the samples to what it takes"
    return f"({reason}); {hint}"


def draw_batches(
    samples: int,
    size: int,
) -> Iterator[np.ndarray]:
    """The rows of the batches on which a step is tried: the first samples, then some by chance.

    Args:
        samples: how many there are.
        size: of a batch.
    """
    yield np.arange(size)
    for seed in range(1, TRIALS):
        yield np.random.default_rng(seed).permutation(samples)[:size]


def try_sample(
    runtime: Runtime,
    sample: Tensor,
    where: str,
) -> Tensor:
    """Computes the outputs of one sample in evaluation mode.

    Args:
        runtime: with the resident model.
        sample: ``(1, *input_shape)``; it stays as it is.
        where: begins the message of an error: whose samples.

    Returns:
        The outputs, ``(1, ...)``.

    Raises:
        DataError: the model does not take the sample, or returns something else than numbers with a gradient.
    """
    name = type(runtime.resident.module).__name__
    try:
        with _evaluating(runtime):
            outputs = runtime.resident.module(
                sample.clone()
            )  # it may change it in place, see `try_evaluation`
    except (
        Exception,
        SystemExit,
    ) as error:  # the module may be the user's, and raise anything
        shape = tuple(sample.shape[1:])
        explained = explain_input(runtime, error, shape)
        raise DataError(
            f"{where}: the model {name} does not take samples of shape {shape} {explained}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise DataError(
            f"{where}: the model {name} returns a {type(outputs).__name__}; its forward() should return logits, one "
            "tensor (samples, classes)"
        )
    if not outputs.is_floating_point():
        raise DataError(
            f"{where}: the model {name} returns numbers of {outputs.dtype}, and its forward() should return logits, "
            "which are real: leave argmax and comparisons out of it, and take abs() or .real of complex numbers"
        )
    if outputs.dim() == 0 or len(outputs) != 1:
        raise DataError(
            f"{where}: the model {name} returns shape {tuple(outputs.shape)} for one sample, and its first axis should "
            "be the samples: leave squeeze() and reductions over it out of forward()"
        )
    return outputs


def try_evaluation(
    runtime: Runtime,
    samples: Tensor,
    where: str,
) -> list[str]:
    """Computes the outputs of several samples in evaluation mode, and compares them with those of the first one.

    Args:
        runtime: with the resident model.
        samples: ``(n, *input_shape)``, a copy that the model may change.
        where: begins the message of an error: whose samples, and which model.

    Returns:
        Remarks on outputs that the loss does not expect, and on outputs that depend on chance or on other samples.

    Raises:
        DataError: the model does not take several samples, or returns one row too many or too few.
    """
    module = runtime.resident.module
    before = samples.clone()
    try:
        with _evaluating(runtime, seed=1):
            alone = module(samples[:1])
        with _evaluating(runtime, seed=2):
            again = module(samples[:1])
        with (
            _evaluating(runtime, seed=1),
            torch.enable_grad(),
            tracing(module) as trace,
        ):
            among = module(samples)
    except (
        Exception,
        SystemExit,
    ) as error:  # the module may be the user's, and raise anything
        raise DataError(
            f"{where} takes one sample, but not {len(samples)} at once ({one_line(error)}); the first axis of its "
            "inputs is the samples, of any number: let forward() take that from x.shape[0]"
        ) from error
    if not torch.equal(samples.nan_to_num(), before.nan_to_num()):
        raise DataError(
            f"{where} changes its samples in place, and would change the participant's data each time it computes; "
            "begin with x = x.clone() in forward(), or write x = x * 2 in place of x *= 2, and ReLU() in place of "
            "ReLU(inplace=True)"
        )
    expected = (len(samples), *alone.shape[1:])
    if tuple(among.shape) != expected:
        raise DataError(
            f"{where} returns outputs of shape {tuple(among.shape)} for {len(samples)} samples, where {expected} is "
            "expected; leave reductions over the first axis out of forward()"
        )
    end = describe_end(among, trace, runtime.task)
    dependence = describe_dependence(
        alone.float(), again.float(), among.detach().float()
    )
    return [remark for remark in (end, dependence) if remark]


def try_training_step(
    runtime: Runtime,
    batches: Iterable[Split],
    outputs: Tensor,
    where: str,
) -> list[str]:
    """Computes the gradient of a batch as training does, and changes nothing.

    If the step fails, it is tried on the further batches. One that succeeds is enough.

    Args:
        runtime: with the resident model, the task and the settings.
        batches: each of the same size.
        outputs: of one sample in evaluation mode, ``(1, ...)``.
        where: begins the message of an error: whose samples, and which model.

    Returns:
        Remarks on the network.

    Raises:
        DataError: the step fails, has no gradient, or changes a constant of the network.
    """
    first: DataError | None = None
    for number, data in enumerate(batches):
        try:
            with _restoring(runtime, number):
                return _try_step(runtime, data, outputs, where)
        except DataError as error:
            first = first or error
    assert first is not None
    raise first


def _try_step(
    runtime: Runtime,
    data: Split,
    outputs: Tensor,
    where: str,
) -> list[str]:
    resident = runtime.resident
    with tracing(resident.module) as trace:
        trained = _compute_outputs(runtime, data, where)
    expected = (len(data), *outputs.shape[1:])
    if tuple(trained.shape) != expected:
        shapes = f"{tuple(trained.shape)} in training, where {expected} is expected"
        raise DataError(
            f"{where} returns outputs of shape {shapes}; return the same in training and in evaluation"
        )
    not_finite = _compute_gradient(runtime, data, trained, where)
    _check_constants(runtime, resident.module, where)
    if new := find_new_parameters(resident.module, resident.built_with):
        raise DataError(
            f"{where} makes a parameter {new[0]!r} when it computes, which nobody would average; make it in the "
            "constructor"
        )
    try:
        resident.take_over_arrays()
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    end = describe_end(trained, trace, runtime.task)
    remarks = (not_finite, end, describe_head(find_head(resident.module), trace))
    return [remark for remark in remarks if remark]


@contextmanager
def _evaluating(
    runtime: Runtime,
    seed: int = 0,
) -> Iterator[None]:
    """Inside it, the model is in evaluation mode, without gradients, and draws from a stream of its own."""
    runtime.resident.module.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def _restoring(
    runtime: Runtime,
    seed: int,
) -> Iterator[None]:
    """Restores buffers, gradients and random streams at its end."""
    module = runtime.resident.module
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    module.train()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(
                seed
            )  # the same trial at each site and in each process
            yield
    finally:
        module.eval()
        runtime.resident.put_back_arrays()
        with torch.no_grad():
            for buffer, values in before:
                buffer.copy_(values)
        runtime.resident.gradient.zero_()


def _compute_outputs(
    runtime: Runtime,
    data: Split,
    where: str,
) -> Tensor:
    """The model's outputs in training mode ``(n, ...)``, float32."""
    reduced = runtime.settings.precision == "bfloat16"
    try:
        with torch.autocast(
            torch.device(runtime.device).type, torch.bfloat16, enabled=reduced
        ):
            outputs = runtime.resident.module(data.x)
    except (
        Exception,
        SystemExit,
    ) as error:  # the module may be the user's, and raise anything
        if len(data) == 1:
            raise DataError(
                f"{where} does not train on one sample alone ({one_line(error)}), as batches of this participant have; "
                "give it two samples or more (min_samples), set batch_size to 2 or more, or take a model without "
                "BatchNorm"
            ) from error
        raise DataError(
            f"{where} fails in training on {len(data)} samples ({one_line(error)}), though not in evaluation; its "
            "forward() should take samples alone, of any number, also where self.training holds"
        ) from error
    if not isinstance(outputs, Tensor):
        raise DataError(
            f"{where} returns a {type(outputs).__name__} in training; its forward() should return logits, one tensor "
            "(samples, classes), in training as in evaluation"
        )
    return outputs.float()


def _compute_gradient(
    runtime: Runtime,
    data: Split,
    outputs: Tensor,
    where: str,
) -> str:
    """Computes the gradient of a batch; returns a remark if it is not finite, else an empty text."""
    try:
        loss = runtime.task.loss(outputs, data.y)
        has_gradient = loss.requires_grad
        if has_gradient:
            loss.backward()
    except (Exception, SystemExit) as error:  # so may the task
        raise DataError(
            f"{where} gives no gradient ({one_line(error)}); compute in forward() by what torch can differentiate, and "
            "change no array in place that it needs again"
        ) from error
    if not has_gradient:
        raise DataError(
            f"{where} has outputs without a gradient, so that nothing would be trained; leave detach(), no_grad() and "
            "numpy out of forward()"
        )
    if bool(loss.isfinite()) and bool(runtime.resident.gradient.isfinite().all()):
        return ""
    return (
        "its first step has a loss or a gradient that is not finite before any training; look in forward() for a "
        "division by 0, and for the root or the logarithm of 0, and in the samples for numbers that are not scaled"
    )


def _check_constants(
    runtime: Runtime,
    module: nn.Module,
    where: str,
) -> None:
    """Raises a DataError if the step has changed an array that is in no model, as it began without finite numbers."""
    live = live_state(module)
    for constant in runtime.resident.layout.constants:
        if Constant.of(constant.name, live[constant.name][1]) != constant:
            raise DataError(
                f"{where} begins with {constant.name!r} at infinity or NaN, and training changes it, so that it can be "
                "neither averaged nor left alone; begin with a finite number, such as 1e30, or register it with "
                "persistent=False, as what each site has for itself"
            )
