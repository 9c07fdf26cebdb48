# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Models as flat vectors: what is averaged, compared, clustered, sent and stored.

A model is one float32 vector (its parameters, then its float buffers such as BatchNorm's running statistics) and one
short int64 vector (its integer buffers, such as BatchNorm's ``num_batches_tracked``). A `Layout` describes both.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.network_arrays import (
    LARGEST_COUNT,
    Constant,
    check_count,
    find_head,
    is_constant,
    layer_of,
    live_state,
)
from cfl_flare.core.text import shown

if TYPE_CHECKING:
    import torch

Array = np.ndarray
T = TypeVar("T")

# Values that are added at a time.
PIECE = 2**16
ROLES = ("all", "fc", "head", "backbone")


@dataclass(frozen=True)
class Entry:
    """One named array of a model.

    Attributes:
        name: as in the module's ``state_dict``.
        kind: ``"parameter"``, ``"buffer"`` (float) or ``"counter"`` (integer buffer).
        head: whether it belongs to the last fully connected layer.
        fc: whether it belongs to a fully connected layer.
        offset: where it starts in the float vector or, for a counter, in the integer vector.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    head: bool
    fc: bool
    offset: int = 0

    def is_of(self, role: str) -> bool:
        """Whether it belongs to a part of the model, one of `ROLES`."""
        return {
            "all": True,
            "fc": self.fc,
            "head": self.head,
            "backbone": not self.head,
        }[role]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def slice(self) -> slice:
        return slice(self.offset, self.offset + self.size)

    def view(self, vector: Any) -> Any:
        """The array as a view of a numpy or torch vector, in its own shape.

        A convolution's weights are stored channels-last, the order in which a CPU computes fastest with them.
        """
        part = vector[self.slice]
        if len(self.shape) != 4:
            return part.reshape(self.shape)
        out, channels, height, width = self.shape
        part = part.reshape(out, height, width, channels)
        return (
            part.transpose(0, 3, 1, 2)
            if isinstance(part, np.ndarray)
            else part.permute(0, 3, 1, 2)
        )


@dataclass(frozen=True)
class Layout:
    """The place of each array in a model's vectors: parameters first, then float buffers; counters in their own vector.

    Attributes:
        entries: the arrays, in the order of the vectors.
        tied: further names of some of them, with the name of the entry: two names of a module's ``state_dict()`` for
            one tied weight. They are added to named arrays that leave, and accepted in those that arrive.
        constants: arrays that are in no vector: they are not trained, and cannot be averaged.
    """

    entries: tuple[Entry, ...]
    tied: tuple[tuple[str, str], ...] = ()
    constants: tuple[Constant, ...] = ()

    @classmethod
    def of(cls, module: torch.nn.Module) -> Layout:
        """Reads the layout of what a module's ``state_dict()`` holds, which may be less than its parameters.

        The head is its last ``torch.nn.Linear``, in order of registration.
        """
        from torch import nn

        linear = {
            name for name, part in module.named_modules() if isinstance(part, nn.Linear)
        }
        head = find_head(module)
        buffers = {name for name, _ in module.named_buffers()}
        entries: list[Entry] = []
        tied: list[tuple[str, str]] = []
        constants: list[Constant] = []
        first: dict[Any, str] = {}
        for name, (name_in_module, tensor) in live_state(module).items():
            place = _place(tensor)
            if first.setdefault(place, name) != name:
                tied.append((name, first[place]))
                continue
            if is_constant(tensor):
                constants.append(Constant.of(name, tensor))
                continue
            kind = "buffer" if name_in_module in buffers else "parameter"
            layer = layer_of(name_in_module)
            if not tensor.is_floating_point() and not isinstance(tensor, nn.Parameter):
                kind = "counter"
                check_count(f"model {type(module).__name__}: buffer {name!r}", tensor)
            entries.append(
                Entry(name, tuple(tensor.shape), kind, layer == head, layer in linear)
            )
        if not any(e.kind == "parameter" for e in entries):
            raise ConfigError(
                f"model {type(module).__name__} has no parameters to train; give it a layer with weights, such as "
                "nn.Linear, or keep arrays as nn.Parameter in place of buffers"
            )
        order = ("parameter", "buffer", "counter")
        return cls._packed(
            sorted(entries, key=lambda e: order.index(e.kind)), tied, constants
        )

    @classmethod
    def _packed(
        cls,
        entries: Iterable[Entry],
        tied: Iterable[tuple[str, str]] = (),
        constants: Iterable[Constant] = (),
    ) -> Layout:
        """These arrays one after the other, each kind of vector filled from its start."""
        placed, ends = [], {"float": 0, "counter": 0}
        for entry in entries:
            vector = "counter" if entry.kind == "counter" else "float"
            placed.append(replace(entry, offset=ends[vector]))
            ends[vector] += entry.size
        return cls(tuple(placed), tuple(tied), tuple(constants))

    def untied(self, arrays: Mapping[str, T]) -> dict[str, T]:
        """Named values without constants, and with each tied weight once, under the name of its entry."""
        other = dict(self.tied)
        constants = {constant.name for constant in self.constants}
        learned = {
            name: value for name, value in arrays.items() if name not in constants
        }
        return {
            other.get(name, name): value
            for name, value in learned.items()
            if other.get(name) not in arrays
        }

    def check_constants(self, arrays: Mapping[str, Any]) -> None:
        """Raises a PayloadError if named arrays that arrive would change a constant."""
        for constant in self.constants:
            if constant.name in arrays and not constant.allows(
                np.asarray(arrays[constant.name])
            ):
                raise PayloadError(
                    "constant",
                    f"{constant.name!r} is a constant of the network, and training has changed it; keep what training "
                    "changes as finite numbers, such as 1e30 in place of infinity, or with persistent=False",
                )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all named arrays, tied ones under each of their names."""
        shapes = {e.name: e.shape for e in self.entries}
        return {**shapes, **{name: shapes[entry] for name, entry in self.tied}}

    @cached_property
    def size(self) -> int:
        """Length of the float vector."""
        return sum(e.size for e in self.entries if e.kind != "counter")

    @cached_property
    def parameter_size(self) -> int:
        """Length of the leading part of the float vector that holds the trainable parameters."""
        return sum(e.size for e in self.entries if e.kind == "parameter")

    @cached_property
    def counter_size(self) -> int:
        """Length of the counter vector."""
        return sum(e.size for e in self.entries if e.kind == "counter")

    @property
    def nbytes(self) -> int:
        """Bytes of one model on the wire."""
        return 4 * self.size + 8 * self.counter_size

    def restricted(self, names: Collection[str]) -> Layout:
        """The layout of a part of the model: these arrays alone, in the same order. A PayloadError for other names."""
        names = self.untied(dict.fromkeys(names))
        unknown = sorted(names.keys() - {e.name for e in self.entries})
        if unknown:
            known = ", ".join(e.name for e in self.entries)
            raise PayloadError(
                "extra_parameter",
                f"unknown parameter {shown(unknown[0])}; the model has {known}",
            )
        if len(names) == len(self.entries):
            return self
        return self._packed(
            (e for e in self.entries if e.name in names),
            (t for t in self.tied if t[1] in names),
        )

    @cached_property
    def head(self) -> Layout:
        """The layout of the last fully connected layer alone."""
        return self.of_part("head")

    @cached_property
    def backbone(self) -> Layout:
        """The layout of everything else, buffers included."""
        return self.of_part("backbone")

    def of_part(self, role: str) -> Layout:
        """The layout of ``"all"``, ``"fc"``, ``"head"`` or ``"backbone"``."""
        return self.restricted([e.name for e in self.entries if e.is_of(role)])

    def join(self, *parts: Params) -> Params:
        """A whole model from parts that together have each of its arrays once."""
        return self.pack(
            {name: array for part in parts for name, array in part.arrays().items()}
        )

    def select(self, role: str | Sequence[str]) -> list[slice]:
        """The slices of the vector that hold some of the parameters (never buffers).

        The role is ``"all"``, ``"fc"`` (all fully connected layers), ``"head"`` (the last of them), ``"backbone"`` (all
        but the head), or names of parameters. A ConfigError for another one, or a model without such a part.
        """
        parameters = [e for e in self.entries if e.kind == "parameter"]
        if isinstance(role, str):
            if role not in ROLES:
                raise ConfigError(
                    f"part of the model {role!r} should be one of {', '.join(ROLES)} or a list of names"
                )
            chosen = [e for e in parameters if e.is_of(role)]
            if not chosen or (role == "backbone" and len(chosen) == len(parameters)):
                raise ConfigError(
                    f"the model has no {role!r} part: it needs a torch.nn.Linear layer and others"
                )
        else:
            names = {e.name: e for e in parameters}
            unknown = [name for name in role if name not in names]
            if unknown or not role:
                raise ConfigError(
                    f"the model has no parameter {unknown[:1]}; it has {', '.join(names)}"
                )
            chosen = [names[name] for name in role]
        return [e.slice for e in chosen]

    def compared(self, role: str | tuple[str, ...] | None) -> str | tuple[str, ...]:
        """The part by which models are compared: this one, but ``"all"`` for ``"fc"`` where there is no such layer."""
        part = role or "fc"
        return part if part != "fc" or any(e.fc for e in self.entries) else "all"

    def pack(self, arrays: Mapping[str, Any], allow_missing: bool = False) -> Params:
        """Validates named arrays of any real dtype and packs them into vectors.

        With ``allow_missing``, missing names are zero and marked, as a site's filter removed them. A PayloadError for a
        missing or unknown name, or an array of the wrong shape, not real or not finite.
        """
        self.check_constants(arrays)
        names = [e.name for e in self.entries]
        arrays = self.untied(arrays)
        self.restricted(arrays.keys())
        missing = [name for name in names if name not in arrays]
        if missing and not allow_missing:
            raise PayloadError(
                "missing_parameter",
                f"parameter {missing[0]!r} is missing ({len(missing)} in all)",
            )
        vector = np.zeros(self.size, np.float32)
        counters = np.zeros(self.counter_size, np.int64)
        for entry in (e for e in self.entries if e.name in arrays):
            array = np.asarray(arrays[entry.name])
            if array.dtype.kind not in "fiub":
                raise PayloadError(
                    "dtype",
                    f"parameter {entry.name!r} has dtype {array.dtype}, not a real number type",
                )
            if array.shape != entry.shape:
                raise PayloadError(
                    "shape",
                    f"parameter {entry.name!r} has shape {array.shape}, not {entry.shape}",
                )
            target = counters if entry.kind == "counter" else vector
            if (
                entry.kind == "counter"
                and (np.abs(array.astype(np.float64)) > LARGEST_COUNT).any()
            ):
                raise PayloadError(
                    "counter", f"parameter {entry.name!r} holds a count beyond 2**53"
                )
            with np.errstate(over="ignore", invalid="ignore"):
                entry.view(target)[...] = array
            if (
                not np.isfinite(target[entry.slice]).all()
                or not np.isfinite(array).all()
            ):
                raise PayloadError(
                    "non_finite", f"parameter {entry.name!r} holds NaN or infinity"
                )
        present = np.array([name in arrays for name in names]) if missing else None
        return Params(self, vector, counters, present)


@dataclass(frozen=True)
class Params:
    """One model, or a difference of two.

    Attributes:
        layout: of the vectors.
        vector: ``(layout.size,)`` float32.
        counters: ``(layout.counter_size,)`` int64.
        present: one bool for each entry of the layout, False where a site's filter removed it; None if none is missing.
    """

    layout: Layout
    vector: Array
    counters: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    present: Array | None = None

    def __sub__(self, other: Params) -> Params:
        return Params(
            self.layout,
            self.vector - other.vector,
            self.counters - other.counters,
            self.present,
        )

    def __add__(self, other: Params) -> Params:
        present = other.present if self.present is None else self.present
        return Params(
            self.layout,
            self.vector + other.vector,
            self.counters + other.counters,
            present,
        )

    def without(self, names: Collection[str]) -> Params:
        """Of a difference: these arrays zero and missing, as if a filter had removed them."""
        vector, counters = self.vector.copy(), self.counters.copy()
        gone = np.array([e.name in names for e in self.layout.entries])
        for entry in (e for e in self.layout.entries if e.name in names):
            if entry.kind == "counter" or len(
                vector
            ):  # which is empty while the update is on disk
                entry.view(counters if entry.kind == "counter" else vector)[...] = 0
        present = ~gone if self.present is None else self.present & ~gone
        return Params(self.layout, vector, counters, present)

    def arrays(self) -> dict[str, Array]:
        """The named arrays, views into the vectors."""
        arrays = {
            e.name: e.view(self.counters if e.kind == "counter" else self.vector)
            for e in self.layout.entries
        }
        return {**arrays, **{name: arrays[entry] for name, entry in self.layout.tied}}

    def state(self) -> dict[str, Array]:
        """The named arrays and the network's constants, as a module's ``load_state_dict()`` wants them."""
        return {
            **self.arrays(),
            **{constant.name: constant.array for constant in self.layout.constants},
        }

    def take(self, layout: Layout) -> Params:
        """A part of the model, with that part's layout; the model itself where the part is all of it."""
        if layout == self.layout:
            return self
        arrays = self.arrays()
        return layout.pack({e.name: arrays[e.name] for e in layout.entries})

    def part(self, role: str | Sequence[str]) -> Array:
        """Some of the parameters as one vector, float32, a view where they lie together; see `Layout.select`."""
        places = self.layout.select(role)
        together = all(
            before.stop == after.start for before, after in itertools.pairwise(places)
        )
        if together:
            return self.vector[places[0].start : places[-1].stop]
        return np.concatenate([self.vector[s] for s in places])


def _place(tensor: torch.Tensor) -> Any:
    """Equal for tensors that are one and the same weight: the same object, or the same memory seen the same way."""
    pointer = tensor.data_ptr() if tensor.numel() and not tensor.is_meta else 0
    return (
        (pointer, tensor.shape, tensor.stride(), tensor.dtype)
        if pointer
        else id(tensor)
    )


def pieces(size: int, start: int = 0) -> Iterator[slice]:
    """The places of so many values from a first one on, few at a time: what is made of them fits into a cache."""
    return (
        slice(at, min(at + PIECE, start + size))
        for at in range(start, start + size, PIECE)
    )


class WeightedMean:
    """A running weighted mean of models in float64, in the order in which they are added; it holds one model.

    Float buffers are averaged like parameters; of counters, the maximum is taken. An entry that a site's filter removed
    counts neither in the sum nor in that entry's weight.
    """

    def __init__(self, layout: Layout):
        self.layout = layout
        self._sum = np.zeros(layout.size, np.float64)
        self._counters = np.zeros(layout.counter_size, np.int64)
        self._weights = np.zeros(len(layout.entries), np.float64)

    def add(self, params: Params, weight: float, start: Params | None = None) -> None:
        """Adds a model, or the sum of a model ``start`` and a difference."""
        present = params.present
        for i, place in self._places():
            if present is None or present[i]:
                values = (
                    params.vector[place]
                    if start is None
                    else start.vector[place] + params.vector[place]
                )
                self._sum[place] += np.multiply(values, weight, dtype=np.float64)
        self._weights += weight if present is None else weight * present
        counters = (
            params.counters if start is None else start.counters + params.counters
        )
        self._counters = np.maximum(self._counters, counters)

    def _places(self) -> Iterator[tuple[int, slice]]:
        """Short pieces of the float vector with the index of their entry: no copy of a whole model is made."""
        for i, entry in enumerate(self.layout.entries):
            if entry.kind != "counter":
                yield from ((i, place) for place in pieces(entry.size, entry.offset))

    def result(self, otherwise: Params) -> Params:
        """The mean; ``otherwise`` where no positive weight was added."""
        if not self._weights.any():
            return otherwise
        vector = np.empty(self.layout.size, np.float32)
        for i, place in self._places():
            weight = self._weights[i]
            vector[place] = (
                self._sum[place] / weight if weight > 0 else otherwise.vector[place]
            )
        for entry in self.layout.entries:
            if entry.kind == "buffer" and entry.name.endswith(
                "running_var"
            ):  # a privacy filter may add noise to it
                vector[entry.slice] = np.maximum(vector[entry.slice], 0)
        return Params(
            self.layout, vector, np.maximum(self._counters, otherwise.counters)
        )


def weighted_mean(models: Iterable[tuple[Params, float]], otherwise: Params) -> Params:
    """The weighted mean of models (thesis Eq. 2.6), or ``otherwise`` if there are none; see `WeightedMean`."""
    mean = WeightedMean(otherwise.layout)
    for params, weight in models:
        mean.add(params, weight)
    return mean.result(otherwise)
