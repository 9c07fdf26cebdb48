# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The arrays of a module that views of a flat vector stand for, and arrays by which the module replaces them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from cfl_flare.core.errors import DataError

# A module's own dictionary, ``_parameters`` or ``_buffers``, and a name in it.
Holder = tuple[dict[str, Tensor | None], str]


class BoundArray:
    """A parameter or a buffer of a module, which should stay the same object in the same memory.

    A module replaces it, for instance by ``self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`` in ``forward()``. The flat
    vector would then keep the old numbers, and the next participant would compute with those of the last one.

    Args:
        name: in models.
        tensor: of the module, which already is a view of the flat vector, or a counter.
        holders: the places of the module that have it; several for a tied weight.
        is_parameter: whether it is trained, and not a buffer.
    """

    def __init__(
        self,
        name: str,
        tensor: Tensor,
        holders: list[Holder],
        is_parameter: bool,
    ):
        self.name = name
        self.is_parameter = is_parameter
        self._tensor = tensor
        self._holders = holders
        self._memory = tensor.data_ptr()
        self._own = tensor.data

    @property
    def is_replaced(self) -> bool:
        """Whether the module has another array, or other memory, in its place."""
        if self._tensor.data_ptr() != self._memory:
            return True
        return any(held.get(key) is not self._tensor for held, key in self._holders)

    def put_back(self) -> None:
        """Gives the module its own array again, with the numbers that this array has."""
        self._tensor.data = self._own
        for held, key in self._holders:
            held[key] = self._tensor

    def take_over(self) -> None:
        """Copies the numbers of the array in its place, and gives the module its own array again.

        Raises:
            DataError: it is a parameter, or the other array has another shape or kind of number.
        """
        others = [held.get(key) for held, key in self._holders]
        other = next(
            (array for array in others if array is not self._tensor), self._tensor
        )
        values = None if other is None else other.detach().clone()
        self.put_back()
        if self.is_parameter:
            raise DataError(
                f"forward() replaces its parameter {self.name!r}, which no optimizer would follow; change it in place, "
                "by copy_() within torch.no_grad(), or use torch.nn.utils.parametrize"
            )
        if (
            values is None
            or values.shape != self._own.shape
            or values.dtype != self._own.dtype
        ):
            if values is None:
                new = "nothing"
            else:
                new = f"an array of shape {tuple(values.shape)} and type {values.dtype}"
            raise DataError(
                f"forward() puts {new} in the place of its buffer {self.name!r} of shape {tuple(self._own.shape)} and "
                f"type {self._own.dtype}, and models of different shapes have no mean; keep the shape, or register "
                "the buffer with persistent=False"
            )
        with torch.no_grad():
            self._tensor.copy_(values)


def find_holders(module: nn.Module) -> dict[int, list[Holder]]:
    """The places that have a module's arrays, by the identity of the array.

    Args:
        module: the network.
    """
    holders: dict[int, list[Holder]] = {}
    for held, key, tensor in _held_arrays(module):
        holders.setdefault(id(tensor), []).append((held, key))
    return holders


def find_new_parameters(
    module: nn.Module,
    known: set[int],
) -> list[str]:
    """The names of parameters that a module has got since it was built.

    Args:
        module: after it has computed.
        known: the identities of the parameters that it was built with.
    """
    return [
        name
        for name, parameter in module.named_parameters()
        if id(parameter) not in known
    ]


def _held_arrays(
    module: nn.Module,
) -> Iterator[tuple[dict[str, Tensor | None], str, Tensor]]:
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for key, tensor in held.items():
                if tensor is not None:
                    yield held, key, tensor  # type: ignore[misc]
