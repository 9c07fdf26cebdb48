# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A network's own arrays: their names, those that are constants and never travel, and those that cannot be learned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.errors import ConfigError

if TYPE_CHECKING:
    import torch


# In a parameter's name: its layer computes its weight from it, as with torch's weight_norm and spectral_norm.
COMPUTED = ".parametrizations."
# Whole numbers beyond it are not exact as float64.
LARGEST_COUNT = 2**53


@dataclass(frozen=True)
class Constant:
    """An array of a network that cannot be averaged: it holds infinity or NaN, or complex numbers, and is not trained.

    An example is the mask of an attention layer. Each site has it from the network's constructor.

    Attributes:
        name: as in the module's ``state_dict``.
        values: its bytes, which two equal constants share, as NaN differs from itself.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: bytes = field(repr=False)

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Constant:
        """Reads the constant from a network.

        Args:
            name: as in the module's ``state_dict``.
            tensor: of any floating or complex dtype. Floating numbers are kept as float32.
        """
        floating = tensor.detach().cpu()
        if tensor.is_floating_point():
            floating = floating.float()
        array = floating.resolve_conj().numpy()
        return cls(name, array.shape, str(array.dtype), array.tobytes())

    @property
    def array(self) -> np.ndarray:
        """The constant as an array that nobody can write to."""
        return np.frombuffer(self.values, self.dtype).reshape(self.shape)

    def allows(self, array: np.ndarray) -> bool:
        """Whether an array that arrives under this name leaves the constant as it is.

        Args:
            array: the constant itself, or a difference of two models, which is zero, or NaN at infinity.
        """
        if array.shape != self.shape or array.dtype.kind not in "fciub":
            return False
        same = (array == self.array) | (array == 0) | np.isnan(array)
        return bool(same.all())


def is_constant(tensor: torch.Tensor) -> bool:
    """Whether an array of a network is kept out of all models: it has no gradient, and no finite real numbers.

    Args:
        tensor: a parameter or a buffer of an untrained network.
    """
    if tensor.requires_grad or tensor.is_meta:
        return False
    if tensor.is_complex():
        return True
    return tensor.is_floating_point() and not bool(tensor.isfinite().all())


def check_arrays(network: torch.nn.Module) -> None:
    """Refuses a network whose parameters cannot be learned together.

    Args:
        network: as its constructor leaves it.

    Raises:
        ConfigError: an array has no memory or no shape, or a parameter is not real, not floating, or not finite.
    """
    from torch.nn.parameter import is_lazy

    where = f"model {type(network).__name__}"
    arrays = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name, tensor in arrays.items():
        if is_lazy(tensor):
            raise ConfigError(
                f"{where}: {name!r} has no shape yet, as its layer takes it from the first input; name the sizes in "
                "the constructor, such as nn.Linear(64, 10) in place of nn.LazyLinear(10)"
            )
        if tensor.is_meta:
            raise ConfigError(
                f"{where}: {name!r} is on the meta device, where arrays have no numbers; build the network on the CPU: "
                "each site moves it to its own device"
            )
    for name, parameter in network.named_parameters():
        if not is_constant(parameter):
            _check_parameter(f"{where}: {name!r}", parameter)
    _check_memory(where, dict(network.named_parameters()))


def check_trainable(network: torch.nn.Module) -> None:
    """Raises a ConfigError for a network that keeps all of its parameters from training."""
    if any(parameter.requires_grad for parameter in network.parameters()):
        return
    raise ConfigError(
        f"model {type(network).__name__}: requires_grad is False for all of its parameters, so that nothing would be "
        "trained; let its constructor leave some of them to training"
    )


def _check_parameter(where: str, parameter: torch.nn.Parameter) -> None:
    """Raises a ConfigError for a parameter that is not of finite, real, floating numbers."""
    import torch

    if parameter.is_complex():
        raise ConfigError(
            f"{where} is of {parameter.dtype}, and models are averaged as float32; keep real and imaginary parts as "
            "the last axis of a float32 parameter, and use torch.view_as_complex in forward()"
        )
    if not parameter.is_floating_point():
        raise ConfigError(
            f"{where} is of {parameter.dtype}, which no gradient changes; keep it as a buffer, by register_buffer()"
        )
    if parameter.layout != torch.strided:
        raise ConfigError(
            f"{where} is of {parameter.layout}, and models are averaged as dense arrays; keep it dense"
        )
    if parameter.numel() and not math.isfinite(float(parameter.detach().abs().max())):
        raise ConfigError(
            f"{where} holds NaN or infinity before any training; initialise it in the constructor, or keep a constant "
            "as a buffer, by register_buffer()"
        )


def check_count(where: str, counter: torch.Tensor) -> None:
    """Raises a ConfigError for a buffer of whole numbers that are not exact in a message, such as a hash."""
    if not counter.is_meta and bool((counter.double().abs() > LARGEST_COUNT).any()):
        raise ConfigError(
            f"{where} holds a whole number beyond 2**53, which is not exact on its way to other sites; register the "
            "buffer with persistent=False"
        )


def _check_memory(where: str, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Raises a ConfigError if two parameters have numbers in common, which training would change apart."""
    occupied: list[
        tuple[int, int, str]
    ] = []  # first byte, byte behind the last one, name
    for name, parameter in parameters.items():
        if any(
            step == 0 and size > 1
            for step, size in zip(parameter.stride(), parameter.shape)
        ):
            raise ConfigError(
                f"{where}: {name!r} is an expanded array, several of whose numbers are one in memory; expand it in "
                "forward() instead"
            )
        if parameter.numel():
            last = sum(
                step * (size - 1)
                for step, size in zip(parameter.stride(), parameter.shape)
            )
            start = parameter.data_ptr()
            occupied.append(
                (start, start + (last + 1) * parameter.element_size(), name)
            )
    occupied.sort()
    for (_, end, name), (start, _, other) in itertools.pairwise(occupied):
        if start < end:
            raise ConfigError(
                f"{where}: the parameters {name!r} and {other!r} have numbers in common, and each would be trained for "
                "itself; give both modules the same nn.Parameter, or derive one from the other in forward()"
            )


def live_state(module: torch.nn.Module) -> dict[str, tuple[str, torch.Tensor]]:
    """The tensors of a module's ``state_dict()``, by its names: the name in the module and the live tensor.

    A module may override ``state_dict()``, name only some of its parameters (adapters), and name them differently. A
    tensor that is none of the module's stays as it is.
    """
    tensors: dict[str, torch.Tensor] = dict(
        module.named_parameters(remove_duplicate=False)
    )
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    state = {
        name: value
        for name, value in module.state_dict().items()
        if hasattr(value, "is_floating_point")
    }
    if state.keys() <= tensors.keys():
        return {name: (name, tensors[name]) for name in state}
    places = {
        (tensor.data_ptr(), tensor.shape): name
        for name, tensor in reversed(tensors.items())
        if tensor.numel()
    }
    names = {
        name: places.get((value.data_ptr(), value.shape), name)
        for name, value in state.items()
    }
    return {
        name: (in_module, tensors.get(in_module, state[name]))
        for name, in_module in names.items()
    }


def find_head(module: torch.nn.Module) -> str | None:
    """The name of a module's last fully connected layer, in order of registration; None if it has no such layer."""
    from torch import nn

    linear = [
        name for name, part in module.named_modules() if isinstance(part, nn.Linear)
    ]
    return linear[-1] if linear else None


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to, also if the layer computes its weight from others.

    >>> layer_of("head.weight"), layer_of("head.parametrizations.weight.original0")
    ('head', 'head')
    """
    layer, computed, _ = name.partition(COMPUTED)
    return layer if computed else name.rpartition(".")[0]
