# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a network ends: which layer computes its outputs, and whether they are what the loss of the task takes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cfl_flare.training.tasks import TASKS, LearningTask, Regression

# Steps of torch's record of gradients that only arrange numbers, or change their type.
ARRANGING = {
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Squeeze",
    "Unsqueeze",
    "T",
    "Transpose",
    "Permute",
    "Alias",
}
ARRANGING |= {"Clone", "ToCopy", "Slice", "Select"}
# Steps that end a network, and the range to which each one bends numbers.
PROBABILITIES = {"Softmax", "Sigmoid", "Hardsigmoid"}
LOGARITHMS = {"LogSoftmax", "LogSigmoid"}
POSITIVE = {"Relu", "Softplus", "Exp", "Abs"}
BOUNDED = {"Tanh", "Hardtanh"}
# By the link of a task, the outputs that its loss takes.
TAKEN = {
    "softmax": "logits, of which it makes probabilities itself",
    "sigmoid": "logits, of which it makes probabilities itself",
    "identity": "any number, because outcomes are scaled to a mean of 0",
    "exp": "the logarithm of a risk, which is any number",
}
# The outputs of a row of a softmax add up to 1 but for rounding.
ROUNDING = 1e-4
# Outputs of one sample, alone and among others, differ at most by this part.
UNLIKE = 1e-3


@dataclass
class Trace:
    """The modules that have computed, in their order.

    Attributes:
        outputs: of each module without parts, by its name; the last ones if it has computed twice.
        linear: the names of the fully connected layers that have computed; the last one at the end.
    """

    outputs: dict[str, Any] = field(default_factory=dict)
    linear: list[str] = field(default_factory=list)


@contextlib.contextmanager
def tracing(module: nn.Module) -> Iterator[Trace]:
    """Inside it, the modules of a network are noted when they have computed.

    Args:
        module: the network.
    """
    trace = Trace()

    def note(
        name: str,
        part: nn.Module,
        outputs: Any,
    ) -> None:
        trace.outputs[name] = outputs
        if isinstance(part, nn.Linear):
            trace.linear.append(name)

    hooks = []
    for name, part in module.named_modules():
        if not any(True for _ in part.children()) or isinstance(part, nn.Linear):
            hooks.append(
                part.register_forward_hook(
                    lambda p, _, outputs, name=name: note(name, p, outputs)
                )
            )
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()


def describe_end(
    outputs: Tensor,
    trace: Trace,
    task: LearningTask,
) -> str:
    """A remark on outputs that the loss of a task does not expect.

    Args:
        outputs: of the network, ``(n, classes, ...)``, with their gradient.
        trace: of the network while it computed them.
        task: of the run. A user's own task may take any outputs.

    Returns:
        The remark with a hint; empty if the outputs are as expected.
    """
    if TASKS.get(task.name) is not type(task):
        return ""
    step = find_last_step(outputs)
    unwanted = PROBABILITIES | POSITIVE | BOUNDED
    if task.link != "softmax":  # a second log_softmax changes nothing
        unwanted = unwanted | LOGARITHMS
    if isinstance(task, Regression) and not task.is_scaled:
        unwanted = unwanted - POSITIVE
    if step not in unwanted and task.link == "softmax" and _are_probabilities(outputs):
        step = "probabilities"
    elif step not in unwanted:
        return ""
    name = next((name for name, made in trace.outputs.items() if made is outputs), None)
    where = f"in its layer {name!r}" if name else "in forward()"
    return (
        f"the network ends with {step} {where}, and task {task.name!r} takes {TAKEN[task.link]}; leave {step} out of "
        "the network"
    )


def describe_head(
    head: str | None,
    trace: Trace,
) -> str:
    """A remark if the head by registration is not the fully connected layer that computes last; else empty.

    Args:
        head: the name of its layer; None if there is none.
        trace: of the network while it computed.
    """
    if head is None or not trace.linear or trace.linear[-1] == head:
        return ""
    place = "before other layers" if head in trace.linear else "in no output"
    return (
        f"its last fully connected layer by registration, {head!r}, computes {place}, and forward() ends with "
        f"{trace.linear[-1]!r}: methods that treat the head apart, such as fedper, would take {head!r}; let the "
        f"constructor make {trace.linear[-1]!r} last"
    )


def describe_dependence(
    alone: Tensor,
    again: Tensor,
    among: Tensor,
) -> str:
    """A remark if a sample's outputs in evaluation depend on chance or on other samples; else empty.

    Args:
        alone: the outputs of one sample, ``(1, ...)``.
        again: the same, computed a second time.
        among: the outputs of a batch that begins with this sample, ``(n, ...)``.
    """
    if _differ(alone[0], again[0]):
        return (
            "its outputs are random in evaluation as well; give functions such as F.dropout training=self.training, "
            "and draw random numbers only if self.training holds"
        )
    if _differ(alone[0], among[0]):
        return (
            "its outputs for a sample depend on the other samples of a batch in evaluation as well; look for functions "
            "over the first axis, such as softmax(dim=0), and for BatchNorm without running statistics"
        )
    return ""


def find_last_step(outputs: Tensor) -> str:
    """The last step that computed outputs, as torch records it, such as ``Softmax``; empty if none is recorded.

    Args:
        outputs: the outputs of a network.
    """
    step: Any = outputs.grad_fn
    while step is not None:
        name = re.sub(r"Backward\d*$", "", step.name().lstrip("_"))
        if name not in ARRANGING or not step.next_functions:
            return name
        step = step.next_functions[0][0]
    return ""


def _are_probabilities(outputs: Tensor) -> bool:
    """Whether the outputs of each sample are above 0 and add up to 1."""
    if outputs.dim() < 2 or outputs.shape[1] < 2:
        return False
    sums = outputs.detach().sum(dim=1)
    return bool((outputs >= 0).all()) and bool(((sums - 1).abs() < ROUNDING).all())


def _differ(
    a: Tensor,
    b: Tensor,
) -> bool:
    finite = a.isfinite() & b.isfinite()
    apart = (a - b).abs()[finite]
    reach = a.abs()[finite].max() if finite.any() else torch.tensor(0.0)
    return bool((apart > UNLIKE * (reach + UNLIKE)).any())
