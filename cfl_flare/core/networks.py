# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The description of a network: its class and arguments, read as FLARE reads them, and a proof that they are right.

FLARE takes an argument from the attribute of the same name, and the default where there is none. So the network that a
site would build may be another one. It is built once here, compared in its parts, and compared by its outputs.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from cfl_flare.core.config import (
    MISSING,
    OPEN,
    POSITIONAL,
    build,
    class_path,
    describe,
    made_by,
    one_line,
    plain_value,
)
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.network_arrays import check_arrays
from cfl_flare.core.text import shown

# A dictionary shows this many unknown arguments; of more, those without a default.
MOST_NAMED = 6
# Sides of images, and of volumes, on which a network without a known input is tried.
SIDES = {1: (64,), 2: (28, 32, 64, 224), 3: (16, 32, 64)}


def describe_network(network: Any) -> dict[str, Any]:
    """The ``{"class_path", "args"}`` of a network, a module or already such a dictionary.

    A ConfigError if its arguments are not known, or build another network. The message has the dictionary to pass.
    """
    if not isinstance(network, nn.Module):
        return describe(network, "model")
    if isinstance(network, torch.jit.ScriptModule) or hasattr(network, "_orig_mod"):
        raise ConfigError(
            f"model: a compiler has made this {type(network).__name__}, and sites build a network by its class; pass "
            "the network as it was before torch.compile or torch.jit"
        )
    check_arrays(network)
    path, name = class_path(network, "model"), type(network).__name__
    args, unknown = _read(network)
    spec = {"class_path": path, "args": args}
    problem = _problem(network, spec, unknown)
    if problem is None:
        return spec
    raise ConfigError(
        f"model: {name} as a site would build it is not this one: {problem}. Keep each argument of its constructor as "
        f"an attribute of the same name, or pass {_way_out(type(network), spec, list(unknown))}"
    )


def _way_out(cls: type, spec: Mapping[str, Any], unknown: list[str]) -> str:
    """The dictionary to pass, with what is known, and what to write in it."""
    parameters = inspect.signature(cls).parameters
    required = [name for name in unknown if parameters[name].default is MISSING]
    named = unknown if len(unknown) <= MOST_NAMED else required
    args = {**spec["args"], **dict.fromkeys(named, ...)} or {...}
    text = repr({**spec, "args": args}).replace("Ellipsis", "...")
    if named:
        text += " with a value for each '...'"
    unnamed = [name for name in unknown if name not in named]
    if unnamed:
        text += f"; add those of {', '.join(unnamed[:8])}{', ...' * (len(unnamed) > 8)} that are not as by default"
    functions = inspect.getmembers(sys.modules[cls.__module__], inspect.isfunction)
    makers = [
        name
        for name, f in functions
        if f.__module__ == cls.__module__ and made_by(f) is cls and name[0] != "_"
    ]
    if not (unknown and makers):
        return text
    example = {"class_path": f"{cls.__module__}.{makers[0]}", "args": {}}
    return f"{text}; or name the function that made it ({', '.join(makers[:8])}), such as {example}"


def _read(network: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
    """The arguments of a network that differ from the defaults; and those that are not known, with the reason.

    An argument is the attribute of its name, or of its name after an underscore. For a parameter, such as ``bias``, it
    is whether the network has one. The modules of a sequence are its arguments without a name.
    """
    lists = (nn.ModuleList, nn.ModuleDict)
    attributes: dict[str, Any] = {
        name: value is not None for name, value in network._parameters.items()
    }
    attributes |= {
        name: module
        for name, module in network._modules.items()
        if not isinstance(module, lists)
    }
    attributes |= vars(network)
    args: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    parameters = inspect.signature(type(network)).parameters
    for name, parameter in parameters.items():
        value = attributes.get(name, attributes.get(f"_{name}", MISSING))
        if isinstance(value, nn.Module) and "type" in str(parameter.annotation).lower():
            value = MISSING  # it takes the class of its module
        if parameter.kind in OPEN or value is parameter.default is not MISSING:
            continue
        if value is MISSING:
            unknown[name] = f"it does not keep its argument {name!r}"
            continue
        try:
            value = _written(value, name)
        except ConfigError as error:
            unknown[name] = str(error).partition(";")[0]
            continue
        if type(value) is not type(parameter.default) or value != parameter.default:
            args[name] = value
    if isinstance(network, nn.Sequential) and any(
        p.kind is p.VAR_POSITIONAL for p in parameters.values()
    ):
        children = {
            name: _written(child, name) for name, child in network.named_children()
        }
        numbered = list(children) == [str(index) for index in range(len(children))]
        args[POSITIONAL] = list(children.values()) if numbered else [children]
    return args, unknown


def _written(value: Any, name: str) -> Any:
    """An argument as a job holds it: modules in it by their class and arguments, as the network itself."""

    def module(inner: Any) -> Any:
        if not isinstance(inner, nn.Module):
            return MISSING
        args, unknown = _read(inner)
        required = [
            n
            for n in unknown
            if inspect.signature(type(inner)).parameters[n].default is MISSING
        ]
        if required:
            raise ConfigError(
                f"its argument {name!r} is a {type(inner).__name__}, {unknown[required[0]][3:]}"
            )
        return {"class_path": class_path(inner, "model"), "args": args}

    return plain_value(value, f"its argument {name!r}", module)


def _problem(
    network: nn.Module, spec: Mapping[str, Any], unknown: Mapping[str, str]
) -> str | None:
    """The first difference between a network and the one that its description builds; None if they are alike.

    It is built without memory first: wrong arguments may need more than there is.
    """
    parameters = inspect.signature(type(network)).parameters
    for name, reason in unknown.items():
        if parameters[name].default is MISSING or "cannot be written" in reason:
            return reason
    blame = f" ({next(iter(unknown.values()))})" if unknown else ""
    try:
        with torch.device("meta"):
            difference = _sizes(network, _built(spec))
        if difference:
            return difference + blame
    except ConfigError as error:
        if not isinstance(error.__cause__, (NotImplementedError, RuntimeError)):
            return str(error)
        if unknown:  # a wrong one may need more memory than there is
            return f"{next(iter(unknown.values()))}, and its constructor computes, so that no size can be compared"
    try:
        twin = _built(spec)
    except ConfigError as error:
        return str(error)
    difference = (
        _sizes(network, twin)
        or _difference(network, twin, "", set())
        or _outputs(network, twin)
    )
    return None if difference is None else difference + blame


def _built(spec: Mapping[str, Any]) -> nn.Module:
    """The network that a description builds; the random streams are left alone."""
    with torch.random.fork_rng(devices=[]):
        return build(spec, nn.Module, "model")


def _sizes(network: nn.Module, twin: nn.Module) -> str | None:
    """The first array of two networks that differs in name or shape."""

    def shapes(module: nn.Module) -> dict[str, Any]:
        arrays = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        return {
            name: "no shape yet" if is_lazy(array) else tuple(array.shape)
            for name, array in arrays
        }

    here, there = shapes(network), shapes(twin)
    name = next((n for n in (*here, *there) if here.get(n) != there.get(n)), None)
    if name is None:
        return None
    return f"{name} has {here.get(name, 'no place')} here, {there.get(name, 'no place')} there"


def _difference(a: Any, b: Any, place: str, seen: set[tuple[int, int]]) -> str | None:
    """The first place where parts of two networks differ: a module's class, a setting, a function, a constant.

    Functions are alike that have the same code and hold the same, and so are objects of one class that hold the same.
    """
    if a is b or (id(a), id(b)) in seen:  # an object may hold itself
        return None
    text = f"{place or 'it'} is {shown(a)} here, {shown(b)} there"
    if isinstance(a, weakref.ref) and isinstance(b, weakref.ref):
        return _difference(a(), b(), place, seen)
    if isinstance(a, nn.Parameter) and isinstance(b, nn.Parameter):
        return (
            None if a.shape == b.shape else text
        )  # a list of the layer's own parameters, as of an LSTM
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        alike = a.shape == b.shape and torch.allclose(
            a.detach().cpu(), b.detach().to("cpu", a.dtype), equal_nan=True
        )
        return None if alike else text
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return None if np.array_equal(a, b) else text
    listed = isinstance(a, (list, tuple)) and isinstance(
        b, (list, tuple)
    )  # a job's tuples are lists
    if _class_of(a) is not _class_of(b) and not listed:
        return None if np.isscalar(a) and np.isscalar(b) and a == b else text
    here, there = _inside(a), _inside(b)
    if not here and not there:
        return (
            None if hasattr(a, "__dict__") or a == b else text
        )  # objects of one class without attributes are alike
    if hasattr(
        a, "__dict__"
    ):  # other values may be made for this comparison alone, and give their id away
        if (
            type(a).__eq__ is not object.__eq__
            and not isinstance(a, Mapping)
            and a == b
        ):
            return None
        seen.add((id(a), id(b)))
    for key in {**here, **there}:
        inner = f"{place}.{key}" if place else key
        difference = _difference(
            here.get(key, "missing"), there.get(key, "missing"), inner, seen
        )
        if difference is not None:
            return difference if isinstance(a, nn.Module) else text
    return None


def _class_of(value: Any) -> type:
    """The class of a value, as it was before torch gave the layer one of its own, for instance for spectral_norm."""
    return (
        parametrize.type_before_parametrizations(value)
        if isinstance(value, nn.Module)
        else type(value)
    )


def _inside(value: Any) -> dict[str, Any]:
    """The contents of a value that decide how a network computes; none for a plain value."""
    if isinstance(value, nn.Module):
        internal = vars(nn.Module()).keys()
        computed = _computed_weights(value)
        parts = {
            name: item
            for name, item in vars(value).items()
            if name not in internal | computed
        }
        parts |= {
            name: len(vars(value)[name]) for name in internal if name.endswith("hooks")
        }
        trained = {
            f"{name}.requires_grad": p.requires_grad
            for name, p in value._parameters.items()
            if p is not None
        }
        constants = {
            name: value._buffers[name] for name in value._non_persistent_buffers_set
        }
        return dict(sorted({**parts, **trained, **constants}.items())) | {
            **value._modules,
            "order of modules": [*value._modules],
        }
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return {
            "code": value.__code__,
            "defaults": [value.__defaults__, value.__kwdefaults__],
            "cells": cells,
        }
    if isinstance(value, MethodType):
        return {"function": value.__func__, "self": value.__self__}
    if isinstance(value, partial):
        return {"function": value.func, "arguments": [value.args, value.keywords]}
    if isinstance(value, Mapping):
        return {"keys": [*map(str, value)], "values": [*value.values()]}
    if isinstance(value, (list, tuple)):
        return {str(index): item for index, item in enumerate(value)}
    return dict(getattr(value, "__dict__", {}))


def _computed_weights(module: nn.Module) -> set[str]:
    """The attributes that a layer computes from its parameters before each use, for instance when it is pruned."""
    ends = (
        "_orig",
        "_v",
    )  # of torch's pruning and its spectral_norm, and of its weight_norm
    return {
        name.removesuffix(end)
        for name in module._parameters
        for end in ends
        if name.endswith(end)
    }


def _outputs(network: nn.Module, twin: nn.Module) -> str | None:
    """The difference between the answers of two networks to one input; None if alike, or if no input is known.

    Both compute with the parameters of the first one.
    """
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for given in _inputs(network):
        try:
            expected = _answer(network, state, given)
        except Exception:  # an input of another kind; a network says so in many ways
            continue
        try:
            answer = _answer(twin, state, given)
        except Exception as error:
            return f"its forward fails with {one_line(error)} there"
        if _difference(expected, answer, "", set()) is not None:
            return f"with the same parameters its outputs for an input of {tuple(given.shape)} are others there"
        return None
    return None


def _answer(network: nn.Module, state: dict[str, Any], given: torch.Tensor) -> Any:
    """The answer of a network with these arrays in evaluation mode; random numbers come from a fixed seed."""
    modes = {module: module.training for module in network.modules()}
    try:
        network.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return torch.func.functional_call(network, state, (given.clone(),))
    finally:
        for module, mode in modes.items():
            module.training = mode


def _inputs(network: nn.Module) -> Iterator[torch.Tensor]:
    """Inputs that a network may take: one that it names, or those of the size that its first layer takes."""
    drawn = torch.Generator().manual_seed(0)
    first = next(network.parameters(), torch.zeros(1))
    known = getattr(network, "input_shape", None)

    def samples(*shape: int) -> torch.Tensor:
        return torch.rand(2, *shape, generator=drawn).to(first.device, first.dtype)

    if isinstance(
        example := getattr(network, "example_input_array", None), torch.Tensor
    ):  # Lightning's
        yield example
    if isinstance(known, (list, tuple)):
        yield samples(*known)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            yield samples(module.in_features)
        elif isinstance(module, nn.Embedding):
            yield torch.randint(module.num_embeddings, (2, 8), generator=drawn).to(
                first.device
            )
        elif isinstance(module, nn.RNNBase):
            yield samples(5, module.input_size)
        elif isinstance(module, nn.modules.conv._ConvNd):
            dims = len(module.kernel_size)
            yield from (
                samples(module.in_channels, *[side] * dims) for side in SIDES[dims]
            )
        else:
            continue
        return
