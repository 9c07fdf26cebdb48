# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a network was built: its class and its arguments, read as FLARE reads them, and a proof that they are right.

FLARE takes an argument from the attribute of the same name, and the default where there is none. So the network that a
site would build may be another one. It is built once here, compared in its parts, and compared by its outputs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.core.config import MISSING, POSITIONAL, build, class_path, describe, made_by, one_line, plain_value
from cfl_flare.core.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

# A dictionary shows so many arguments that are not known; of more, those without a default.
MOST_NAMED = 6
PLAIN = (bool, int, float, str)
OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Sides of images, and of volumes, on which a network without a known input is tried.
SIDES = {1: (64,), 2: (28, 32, 64, 224), 3: (16, 32, 64)}


class _Unknown:
    """An argument that is not known; it shows as what to replace."""

    def __repr__(self) -> str:
        return "..."


def describe_network(network: Any, what: str = "model") -> dict[str, Any]:
    """The ``{"class_path", "args"}`` of a network.

    Args:
        network: the module, or already such a dictionary.
        what: what it is, for the error.

    Raises:
        ConfigError: its arguments are not known, or build another network; the message has the dictionary to pass.
    """
    from torch import nn

    if not isinstance(network, nn.Module):
        return describe(network, what)
    path, name = class_path(network, what), type(network).__name__
    args, unknown = _read(network)
    spec = {"class_path": path, "args": args}
    problem = _problem(network, spec, unknown)
    if problem is None:
        return spec
    raise ConfigError(
        f"{what}: {name} as a site would build it is not this one: {problem}. Keep each argument of its constructor as "
        f"an attribute of the same name, or pass {_way_out(type(network), spec, list(unknown))}"
    )


def _way_out(cls: type, spec: Mapping[str, Any], unknown: list[str]) -> str:
    """The dictionary to pass, with what is known, and what to write in it."""
    parameters = inspect.signature(cls).parameters
    required = [name for name in unknown if parameters[name].default is MISSING]
    named = unknown if len(unknown) <= MOST_NAMED else required
    args = {**spec["args"], **dict.fromkeys(named, _Unknown())}
    text = repr({**spec, "args": args}) if args else f"{{'class_path': {spec['class_path']!r}, 'args': {{...}}}}"
    left = [name for name in unknown if name not in named]
    text += " with a value for each '...'" if named else ""
    text += (
        f"; add those of {', '.join(left[:8])}{', ...' * (len(left) > 8)} that are not as by default" if left else ""
    )
    functions = inspect.getmembers(sys.modules[cls.__module__], inspect.isfunction)
    makers = [name for name, f in functions if f.__module__ == cls.__module__ and made_by(f) is cls and name[0] != "_"]
    if not (unknown and makers):
        return text
    example = {"class_path": f"{cls.__module__}.{makers[0]}", "args": {}}
    return f"{text}; or name the function that made it ({', '.join(makers[:8])}), such as {example}"


def _read(network: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
    """The arguments of a network that differ from the defaults; and those that are not known, with the reason."""
    args: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for name, parameter in inspect.signature(type(network)).parameters.items():
        if parameter.kind in OPEN:
            continue
        value = _kept(network, name, parameter)
        if value is MISSING:
            unknown[name] = f"it does not keep its argument {name!r}"
        elif value is not parameter.default:
            try:
                value = _written(value, name)
            except ConfigError as error:
                unknown[name] = str(error).partition(";")[0]
                continue
            if type(value) is not type(parameter.default) or value != parameter.default:
                args[name] = value
    return args | _children(network), unknown


def _kept(network: nn.Module, name: str, parameter: inspect.Parameter) -> Any:
    """What a network keeps of an argument; of ``bias`` and its like, whether there is such a parameter.

    A module of that name may be the argument, or made from it: ``layers`` may be a number.
    """
    from torch import nn

    lists = (nn.ModuleList, nn.ModuleDict)
    held: dict[str, Any] = {key: value is not None for key, value in network._parameters.items()}
    named = getattr(parameter.annotation, "__name__", str(parameter.annotation))
    other = isinstance(parameter.default, PLAIN) or named.startswith(("type", *(kind.__name__ for kind in PLAIN)))
    held |= {} if other else {k: m for k, m in network._modules.items() if not isinstance(m, lists)}
    held |= vars(network)
    return next((held[key] for key in (name, f"_{name}") if key in held), MISSING)


def _written(value: Any, name: str) -> Any:
    """An argument as a job holds it: modules in it by their class and arguments, as the network itself."""
    from torch import nn

    def module(inner: Any) -> Any:
        if not isinstance(inner, nn.Module):
            return MISSING
        args, unknown = _read(inner)
        required = [n for n in unknown if inspect.signature(type(inner)).parameters[n].default is MISSING]
        if required:
            raise ConfigError(f"its argument {name!r} is a {type(inner).__name__}, {unknown[required[0]][3:]}")
        return {"class_path": class_path(inner, "model"), "args": args}

    return plain_value(value, f"its argument {name!r}", module)


def _children(network: nn.Module) -> dict[str, Any]:
    """The positional arguments of a sequence of modules: the modules, or one dictionary if they have names."""
    from torch import nn

    starred = any(p.kind is OPEN[0] for p in inspect.signature(type(network)).parameters.values())
    if not (starred and isinstance(network, nn.Sequential)):
        return {}
    described = {name: _written(child, name) for name, child in network.named_children()}
    numbered = list(described) == [str(i) for i in range(len(described))]
    return {POSITIONAL: list(described.values()) if numbered else [described]}


def _problem(network: nn.Module, spec: Mapping[str, Any], unknown: Mapping[str, str]) -> str | None:
    """How the network that a description builds differs from the one that it should describe; None if not at all.

    It is built without memory first: wrong arguments may need more than there is.
    """
    import torch

    required = inspect.signature(type(network)).parameters
    for name, reason in unknown.items():
        if required[name].default is MISSING or "cannot be written" in reason:
            return reason
    blame = f" ({next(iter(unknown.values()))})" if unknown else ""
    try:
        with torch.device("meta"):
            different = _sizes(network, _built(spec))
        if different:
            return different + blame
    except ConfigError as error:
        values = isinstance(error.__cause__, (NotImplementedError, RuntimeError))
        if not values:
            return str(error)
        if unknown:  # a wrong one may need more memory than there is
            return f"{next(iter(unknown.values()))}, and its constructor computes, so that no size can be compared"
    try:
        twin = _built(spec)
    except ConfigError as error:
        return str(error)
    different = _parts(network, twin, set()) or _outputs(network, twin)
    return None if different is None else different + blame


def _built(spec: Mapping[str, Any]) -> nn.Module:
    """The network that a description builds; the random streams are left alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        return build(spec, torch.nn.Module, "model")


def _sizes(network: nn.Module, twin: nn.Module) -> str | None:
    """The first array of two networks that differs in name or shape."""
    from torch.nn.parameter import is_lazy

    def shapes(module: nn.Module) -> dict[str, Any]:
        held = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        return {name: "no shape yet" if is_lazy(array) else tuple(array.shape) for name, array in held}

    mine, its = shapes(network), shapes(twin)
    name = next((n for n in (*mine, *its) if mine.get(n) != its.get(n)), None)
    return None if name is None else f"{name} has {mine.get(name, 'no place')} here, {its.get(name, 'no place')} there"


def _parts(network: nn.Module, twin: nn.Module, seen: set[tuple[int, int]]) -> str | None:
    """The first module of two networks that differs: in its class, its settings, its functions, its constants."""
    from torch import nn

    internal = vars(nn.Module()).keys()
    seen.add((id(network), id(twin)))
    mine, its = (list(module.named_modules()) for module in (network, twin))
    if [(name, type(module)) for name, module in mine] != [(name, type(module)) for name, module in its]:
        odd = next((a for a, b in zip(mine, its, strict=False) if (a[0], type(a[1])) != (b[0], type(b[1]))), mine[-1])
        return f"its module {odd[0] or type(odd[1]).__name__!r} has no equal there"
    for (name, a), (_, b) in zip(mine, its, strict=True):
        place = f"{name}." if name else ""
        held, other = vars(a), vars(b)
        for key in sorted(held.keys() ^ other.keys()):
            return f"only one of the two has {place}{key}"
        for key in sorted(held.keys() - internal):
            if not _alike(held[key], other[key], seen):
                return f"{place}{key} is {_short(held[key])} here, {_short(other[key])} there"
        for key in internal:
            if key.endswith("hooks") and len(held[key]) != len(other[key]):
                return f"{place}{key} are {len(held[key])} here, {len(other[key])} there"
        for key, parameter in a._parameters.items():
            if parameter is not None and parameter.requires_grad != getattr(b, key).requires_grad:
                return f"{place}{key} is{'' if parameter.requires_grad else ' not'} trained here, unlike there"
        for key in a._non_persistent_buffers_set:
            if not _alike(a._buffers[key], b._buffers[key], seen):
                return f"the values of {place}{key} are others there"
    return None


def _alike(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
    """Whether two attributes hold the same: values, functions of the same code, objects that hold the same."""
    import torch
    from torch import nn

    if a is b:
        return True
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and bool(torch.allclose(a.detach().cpu(), b.detach().to("cpu", a.dtype)))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):  # a job's tuples are lists
        return len(a) == len(b) and all(_alike(x, y, seen) for x, y in zip(a, b, strict=True))
    if type(a) is not type(b):
        return bool(np.isscalar(a) and np.isscalar(b) and a == b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, Mapping):
        return list(map(str, a)) == list(map(str, b)) and _alike([*a.values()], [*b.values()], seen)
    if isinstance(a, FunctionType):
        inside = [[f.__defaults__, f.__kwdefaults__, [c.cell_contents for c in f.__closure__ or ()]] for f in (a, b)]
        return a.__code__ is b.__code__ and _alike(inside[0], inside[1], seen)
    if isinstance(a, MethodType):
        return _alike([a.__func__, a.__self__], [b.__func__, b.__self__], seen)
    if isinstance(a, partial):
        return _alike([a.func, a.args, a.keywords], [b.func, b.args, b.keywords], seen)
    if (id(a), id(b)) in seen:  # an object that holds itself
        return True
    if isinstance(a, nn.Module):
        return _sizes(a, b) is None and _parts(a, b, seen) is None
    seen.add((id(a), id(b)))
    return (type(a).__eq__ is not object.__eq__ and a == b) or (
        hasattr(a, "__dict__") and _alike(vars(a), vars(b), seen)
    )


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _outputs(network: nn.Module, twin: nn.Module) -> str | None:
    """How two networks of the same parameters answer one input; None if alike, or if no input is known."""
    import torch

    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for given in _inputs(network):
        with _measured(network), _measured(twin):
            try:
                expected = _seeded(network, given)
            except Exception:  # an input of another kind; a network says so in many ways
                continue
            try:
                answer = _seeded(partial(torch.func.functional_call, twin, state), given)
            except Exception as error:
                return f"its forward fails with {one_line(error)} there"
        alike = _alike(expected, answer, set())
        shape = tuple(given.shape)
        return None if alike else f"with the same parameters its outputs for an input of {shape} are others there"
    return None


def _seeded(network: Callable[..., Any], given: Any) -> Any:
    """A network's answer, whose random numbers begin at a seed."""
    import torch

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return network(given)


@contextmanager
def _measured(network: nn.Module) -> Iterator[None]:
    """Evaluation mode, and every module's own mode afterwards."""
    modes = {module: module.training for module in network.modules()}
    try:
        network.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _inputs(network: nn.Module) -> Iterator[torch.Tensor]:
    """Inputs that a network may take: one that it names, or those of the size that its first layer takes."""
    import torch
    from torch import nn

    drawn = torch.Generator().manual_seed(0)
    first = next(network.parameters(), torch.zeros(1))
    known = getattr(network, "input_shape", None)

    def samples(*shape: int) -> torch.Tensor:
        return torch.rand(2, *shape, generator=drawn).to(first.device, first.dtype)

    if isinstance(example := getattr(network, "example_input_array", None), torch.Tensor):  # Lightning's
        yield example
    if isinstance(known, (list, tuple)):
        yield samples(*known)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            yield samples(module.in_features)
        elif isinstance(module, nn.Embedding):
            yield torch.randint(module.num_embeddings, (2, 8), generator=drawn).to(first.device)
        elif isinstance(module, nn.RNNBase):
            yield samples(5, module.input_size)
        elif isinstance(module, nn.modules.conv._ConvNd):
            dims = len(module.kernel_size)
            yield from (samples(module.in_channels, *[side] * dims) for side in SIDES[dims])
        else:
            continue
        return
