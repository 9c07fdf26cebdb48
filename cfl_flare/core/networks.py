# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a network was built, read from the network itself: its class or function, and the arguments.

FLARE reads an argument from the attribute of the same name. Many networks keep only some of theirs (torchvision's
ResNet none, MONAI's UNet all but one), so that the others are searched: among the defaults, the sizes that occur in
the network, and modules inside it. What is found must build the same network again.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any

from cfl_flare.core.config import POSITIONAL, build, class_path, describe, made_by
from cfl_flare.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

# Of several functions that may have built a network, those whose defaults come closest are looked into.
MOST_MAKERS = 3
TRAINED = re.compile("pretrain|weights|download|progress")
NUMBERS = (int, float)
PLAIN = (bool, int, float, str, type(None))
NO_DEFAULT = inspect.Parameter.empty
OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

Facts = frozenset[tuple[Any, ...]]


def describe_network(network: Any, what: str = "model") -> dict[str, Any]:
    """The ``{"class_path", "args"}`` of a network.

    Args:
        network: the module, or already such a dictionary.
        what: what it is, for the error.

    Raises:
        ConfigError: its arguments were not found; the message has the dictionary to pass.
    """
    from torch import nn

    if not isinstance(network, nn.Module):
        return describe(network, what)
    path = class_path(network, what)
    try:
        spec = describe(network, what)
        if _sizes(network) == _sizes(_rebuilt(spec)):
            return spec
        problem = "builds a network of other parameters from what it keeps of its arguments"
    except ConfigError as error:
        problem = str(error).partition(": ")[2].partition(";")[0]
    found = _search(network)
    if found is None:
        names = [name for name, p in inspect.signature(type(network)).parameters.items() if p.kind not in OPEN]
        wanted = ", ".join(f"{name!r}: ..." for name in names)
        raise ConfigError(
            f"{what}: {problem}; no arguments were found that build the same network again: pass "
            f"{{'class_path': '{path}', 'args': {{{wanted}}}}}"
        )
    logger.warning(
        "%s: taken as %s; its parameters are drawn anew: for trained ones give initial_ckpt", what, _shown(found)
    )
    return found


@dataclass(frozen=True)
class _Maker:
    """What may have built a network: its class, or a function; with its parameters."""

    path: str
    parameters: Mapping[str, inspect.Parameter]

    def spec(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The description, without arguments that are as by default."""
        given = {n: v for n, v in args.items() if n == POSITIONAL or not _equal(v, self.parameters[n].default)}
        return {"class_path": self.path, "args": given}

    def facts(self, args: Mapping[str, Any]) -> Facts:
        """The facts of the network that it builds; none if it builds none."""
        try:
            return _facts(_rebuilt(self.spec(args)))
        except ConfigError:
            return frozenset()

    def values(self, network: nn.Module) -> dict[str, list[Any]]:
        """What each argument may have been."""
        return {name: _values(network, name, p) for name, p in self.parameters.items() if p.kind not in OPEN}


def _search(network: nn.Module) -> dict[str, Any] | None:
    """A description that builds the same network again; None if none was found."""
    facts, candidates = _facts(network), []
    for maker in _makers(type(network)):
        values = maker.values(network)
        if all(values.values()):
            args = {name: 1 if known[0] in NUMBERS else known[0] for name, known in values.items()}
            args |= _children(network, maker.parameters)
            candidates.append((_distance(facts, maker.facts(args)), maker, args, values))
    for _, maker, args, values in sorted(candidates, key=lambda c: c[0])[:MOST_MAKERS]:
        args = _descend(facts, maker, args, values)
        if maker.facts(args) == facts:
            return maker.spec(args)
    return None


def _descend(facts: Facts, maker: _Maker, args: dict[str, Any], values: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The arguments, changed one at a time for as long as that brings the network that they build closer."""
    built, closer = maker.facts(args), True
    while closer and built != facts:
        closer = False
        for name, known in values.items():
            for value in _offered(known, facts - built):
                tried = maker.facts({**args, name: value})
                if _distance(facts, tried) < _distance(facts, built):
                    args, built, closer = {**args, name: value}, tried, True
                if built == facts:
                    return args
    return args


def _makers(cls: type) -> Iterator[_Maker]:
    """What may have built a network of a class: the class, then the functions beside it that return one."""
    own = dict(inspect.signature(cls).parameters)
    yield _Maker(f"{cls.__module__}.{cls.__qualname__}", own)
    for name, function in inspect.getmembers(sys.modules[cls.__module__], inspect.isfunction):
        if function.__module__ == cls.__module__ and made_by(function) is cls:
            parameters = dict(inspect.signature(function).parameters)
            if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
                parameters |= {n: p for n, p in own.items() if p.default is not NO_DEFAULT and n not in parameters}
            yield _Maker(f"{cls.__module__}.{name}", parameters)


def _values(network: nn.Module, name: str, parameter: inspect.Parameter) -> list[Any]:
    """What an argument may have been, the most likely first: alone what is kept of it, if it is.

    The class ``int`` or ``float`` stands for all numbers that occur in the network.
    """
    default, held = parameter.default, vars(network)
    kept = next((held[key] for key in (name, f"_{name}") if key in held), NO_DEFAULT)
    kept = kept.value if isinstance(kept, Enum) else kept
    if _is_plain(kept):
        return [kept]
    found = [] if default is NO_DEFAULT else [default]
    inside = network._modules.get(name)
    if inside is not None:
        with contextlib.suppress(ConfigError):
            found.append(_inner(inside))
    if TRAINED.search(name):  # such an argument may fetch a file
        return found
    asked = (type(default), parameter.annotation, str(parameter.annotation))
    typed = [kind for kind in (bool, *NUMBERS) if kind in asked or kind.__name__ in asked]
    if not found and parameter.annotation is NO_DEFAULT:
        typed = [int]
    return [*found, *([True, False] if typed == [bool] else typed)]


def _offered(known: list[Any], missing: Facts) -> list[Any]:
    """Values to try for an argument, where there are facts that were not met yet."""
    held = [v for fact in missing for v in (fact[-1] if isinstance(fact[-1], tuple) else fact[-1:])]
    return [v for one in known for v in (sorted({v for v in held if type(v) is one}) if one in NUMBERS else [one])]


def _children(network: nn.Module, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The positional arguments of a sequence of modules: the modules, or one dictionary if they have names."""
    from torch import nn

    starred = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.values())
    if not (starred and isinstance(network, nn.Sequential)):
        return {}
    described = {name: _inner(child) for name, child in network.named_children()}
    numbered = list(described) == [str(i) for i in range(len(described))]
    return {POSITIONAL: list(described.values()) if numbered else [described]}


def _inner(module: nn.Module) -> dict[str, Any]:
    """The description of a module inside a network."""
    found = _search(module)
    if found is None:
        raise ConfigError(f"model: no arguments were found for the {type(module).__name__} in it")
    return found


def _rebuilt(spec: Mapping[str, Any]) -> nn.Module:
    """The network that a description builds, without memory for its parameters where it can be built so."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return build(spec, nn.Module, "model")
        except ConfigError as error:
            if not isinstance(error.__cause__, (NotImplementedError, RuntimeError)):
                raise
            return build(spec, nn.Module, "model")  # its constructor looks at values


def _sizes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Name and shape of what its ``state_dict()`` holds; no shape where it is not known before the first input."""
    from torch.nn.parameter import is_lazy

    return {n: () if is_lazy(t) else tuple(getattr(t, "shape", ())) for n, t in network.state_dict().items()}


def _equal(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _distance(facts: Facts, built: Facts) -> float:
    """In how many facts two networks differ; infinitely many if one was not built."""
    return len(facts ^ built) if built else inf


def _facts(network: nn.Module) -> Facts:
    """Each module's class and plain attributes, each array's sizes, and which parameters are trained."""
    facts: set[tuple[Any, ...]] = {(name, "trained", p.requires_grad) for name, p in network.named_parameters()}
    for name, shape in _sizes(network).items():
        facts |= {(name, "axes", len(shape)), *((name, axis, size) for axis, size in enumerate(shape))}
    for name, module in network.named_modules():
        plain = {key: value for key, value in vars(module).items() if key != "training" and _is_plain(value)}
        facts |= {(name, "class", type(module)), (name, "modules", len(module._modules))}
        facts |= {(name, key, type(v), v) for key, v in ((key, _frozen(value)) for key, value in plain.items())}
    return frozenset(facts)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    return isinstance(value, PLAIN) or (isinstance(value, (list, tuple)) and all(map(_is_plain, value)))


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((key, _frozen(inner)) for key, inner in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _shown(spec: Any) -> str:
    """A description as the call that it stands for."""
    if isinstance(spec, Mapping) and "class_path" in spec:
        args = dict(spec["args"])
        given = [_shown(v) for v in args.pop(POSITIONAL, [])] + [f"{k}={_shown(v)}" for k, v in args.items()]
        return f"{spec['class_path']}({', '.join(given)})"
    return f"{{{', '.join(f'{k}: {_shown(v)}' for k, v in spec.items())}}}" if isinstance(spec, Mapping) else repr(spec)
