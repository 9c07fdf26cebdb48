# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Settings as plain dictionaries, and back: what a job file holds, checked before it is used.

Whatever does not fit is a `ConfigError`, which names the place, the value and the way out.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import reprlib
import typing
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import numpy as np

from cfl_flare.core.errors import CFLError, ClassError, ConfigError
from cfl_flare.core.text import shown

T = TypeVar("T")

# FLARE builds at once every dictionary in a component's arguments that has a "path", "class_path" or "name". This mark
# leaves ours alone: `build` makes them later, after it has asked the site's policy.
MARK = {"config_type": "dict"}
# The key of a class's arguments without a name, such as the modules of a torch.nn.Sequential.
POSITIONAL = "*"
MISSING = inspect.Parameter.empty
# Parameters that take any number of arguments.
OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def marked(value: Any) -> Any:
    """The value, with FLARE's mark for plain data on every dictionary in it."""
    if isinstance(value, Mapping):
        return {**{str(k): marked(v) for k, v in value.items()}, **MARK}
    return [marked(v) for v in value] if isinstance(value, (list, tuple)) else value


def unmarked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: unmarked(v) for k, v in value.items() if k not in MARK}
    return [unmarked(v) for v in value] if isinstance(value, (list, tuple)) else value


def require(
    condition: bool, message: str, kind: Callable[[str], CFLError] = ConfigError
) -> None:
    """Raises a ConfigError, or an error of that kind, with the message unless the condition holds."""
    if not condition:
        raise kind(message)


def require_whole(where: str, most: int | None = None, /, **values: Any) -> None:
    """Raises a ConfigError for a value that is not a whole number of at least 1, and at most ``most``."""
    limits = ">= 1" if most is None else f"in [1, {most}]"
    for name, value in values.items():
        valid = (
            isinstance(value, int)
            and not isinstance(value, bool)
            and 1 <= value <= (most or value)
        )
        require(valid, f"{where}: {name} = {value!r} should be a whole number {limits}")


def one_line(error: BaseException) -> str:
    """An error of another package in one line: its type and the first line of its message."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def from_dict(cls: Callable[..., T], values: Mapping[str, Any], where: str) -> T:
    """Builds a settings class from a dictionary, with one clear error for a name it does not know."""
    try:
        parameters = inspect.signature(cls).parameters
    except (
        TypeError,
        ValueError,
    ) as error:  # more arguments without a name than there can be
        raise ConfigError(
            f"{where}: {one_line(error)}; correct its arguments"
        ) from error
    named = {name: p for name, p in parameters.items() if p.kind not in OPEN}
    unknown = [name for name in values if name not in named]
    if unknown and len(named) == len(parameters):
        raise ConfigError(
            f"{where}: unknown setting {shown(unknown[0])}; it has: {', '.join(named) or 'no settings'}"
        )
    missing = [
        name for name, p in named.items() if p.default is p.empty and name not in values
    ]
    if missing:
        raise ConfigError(
            f"{where}: setting {missing[0]!r} is missing and has no default"
        )
    try:
        return cls(**values)
    except CFLError:
        raise
    except (Exception, SystemExit) as error:  # a class of the user's may raise anything
        given = reprlib.repr(dict(values))
        raise ConfigError(
            f"{where}: {one_line(error)}; correct what it was given: {given}"
        ) from error


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Reads the command line's ``name:key=value,key=value``.

    Values are Python literals where they can be (``3``, ``0.1``, ``True``, ``None``, ``[10, 20]``), else text, or lists
    of it.

    >>> parse_spec("wecfl:k=3,cluster_on=fc")
    ('wecfl', {'k': 3, 'cluster_on': 'fc'})
    >>> parse_spec("table:leave=[id,note]")
    ('table', {'leave': ['id', 'note']})
    """
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    parts, depth = [""] if rest else [], 0
    for char in rest:
        depth += (char in "[({") - (char in "])}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"{text!r}: {part!r} is not key=value; write name:key=value,key=value"
            )
        require(
            key.strip() not in settings,
            f"{text!r}: {key.strip()} is set twice; leave one out",
        )
        try:
            settings[key.strip()] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError):
            listed = value.startswith("[") and value.endswith("]")
            settings[key.strip()] = (
                [item.strip() for item in value[1:-1].split(",")] if listed else value
            )
    return name.strip(), settings


def as_spec(value: Mapping[str, Any] | str, key: str) -> dict[str, Any]:
    """The dictionary of what is written ``"name:setting=value"``, or is one already.

    >>> as_spec("dirichlet:alpha=0.1", "partition")
    {'partition': 'dirichlet', 'alpha': 0.1}
    """
    require(
        isinstance(value, (str, Mapping)),
        f"{key} = {value!r} should be text like 'name:setting=value' or {{'{key}': 'name', 'setting': value}}",
    )
    if isinstance(value, Mapping):
        return dict(value)
    name, settings = parse_spec(value)
    return {key: name, **settings}


def describe(obj: Any, what: str) -> dict[str, Any]:
    """The ``{"class_path", "args"}`` form of an object, read from its attributes.

    Args:
        obj: an object whose constructor's parameters are kept as attributes of the same name, or already such a
            dictionary.
        what: what it is ("model", "data"), for the error.
    """
    if isinstance(obj, Mapping):
        obj = unmarked(obj)
        unknown = set(obj) - {"class_path", "args"}
        if "class_path" not in obj or unknown:
            raise ConfigError(
                f"{what}: {dict(obj)!r} should be {{'class_path': 'package.Class', 'args': {{...}}}}"
            )
        return {"class_path": obj["class_path"], "args": dict(obj.get("args") or {})}
    path = class_path(obj, what)
    args: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(obj)).parameters.items():
        if parameter.kind in OPEN:
            continue
        if not hasattr(
            obj, name
        ):  # even with a default: this object may have been built with another value
            raise ConfigError(
                f"{what}: {path.rpartition('.')[2]} does not keep its argument {name!r} as an attribute, so it cannot "
                f"be written to a job; pass {{'class_path': '{path}', 'args': {{...}}}}"
            )
        value = plain_value(
            getattr(obj, name), f"{what}: {path.rpartition('.')[2]}.{name}"
        )
        if value != parameter.default:
            args[name] = value
    return {"class_path": path, "args": args}


def class_path(obj: Any, what: str) -> str:
    if isinstance(obj, (type, str)):
        name = f"{obj.__module__}.{obj.__qualname__}" if isinstance(obj, type) else obj
        raise ConfigError(
            f"{what}: {name!r} is only the name of a class; pass an instance, or {{'class_path': '{name}', 'args': "
            "{...}}"
        )
    cls = type(obj)
    if cls.__module__ == "__main__" or "." in cls.__qualname__:
        raise ConfigError(
            f"{what}: {cls.__qualname__} is defined in the script itself or inside another definition, where a site "
            "cannot import it; put it at the top of a module of its own"
        )
    return f"{cls.__module__}.{cls.__qualname__}"


def plain_value(
    value: Any, where: str, inner: Callable[[Any], Any] = lambda value: MISSING
) -> Any:
    """The value as JSON can hold it; an enumeration's by its value, a configuration by its class and arguments.

    ``inner`` describes further objects, and returns MISSING for those that it does not know.
    """
    value = (
        value.value
        if isinstance(value, Enum)
        else value.item()
        if isinstance(value, np.generic)
        else value
    )
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_value(v, where, inner) for v in value]
    if isinstance(value, Mapping):
        return {str(k): plain_value(v, where, inner) for k, v in value.items()}
    if holds_settings(type(value)):
        path = class_path(value, where)
        if hasattr(value, "to_diff_dict"):
            args = {
                k: v
                for k, v in value.to_diff_dict().items()
                if k not in ("model_type", "transformers_version")
            }
        else:
            args = {
                field.name: getattr(value, field.name)
                for field in dataclasses.fields(value)
                if field.init
            }
        return {
            "class_path": path,
            "args": plain_value(args, f"{where}: {path.rpartition('.')[2]}"),
        }
    described = inner(value)
    if described is not MISSING:
        return described
    raise ConfigError(
        f"{where} = {shown(value)} cannot be written to a job file; a constructor's arguments should be numbers, text, "
        "lists or dictionaries, and kept as attributes of the same names"
    )


def holds_settings(cls: Any) -> bool:
    """Whether a class holds settings alone, and may be an argument: a dataclass, or Hugging Face's configuration."""
    return dataclasses.is_dataclass(cls) or hasattr(cls, "to_diff_dict")


def build(
    spec: Mapping[str, Any],
    base: type[T],
    what: str,
    authorize: Callable[[str], None] | None = None,
    inside: bool = False,
) -> T:
    """The one way in which a class that a job names becomes an object.

    It asks the site's component policy first. Then it imports the class, checks that it is a ``base``, and calls it. A
    function may be named instead, if it is annotated to return such a class of its own module. Arguments that are such
    dictionaries are built first, in the same way. They may also be configurations (`holds_settings`).

    Args:
        spec: ``{"class_path": "package.Class", "args": {...}}``.
        base: the class that it must be.
        what: what it is ("model", "data"), for the errors.
        authorize: called with the class path before the import; raises to refuse it. None where there is no policy.
        inside: whether it is an argument of another class.
    """
    try:
        spec = unmarked(spec)
        class_paths(spec)
    except RecursionError as error:
        raise ConfigError(
            f"{what}: its arguments are nested too deeply; write them flat"
        ) from error
    path = spec.get("class_path")
    if not isinstance(path, str) or not re.fullmatch(r"\w+(\.\w+)+", path):
        raise ConfigError(
            f"{what}: class_path = {path!r} should be 'package.module.Class'"
        )
    if authorize is not None:
        authorize(path)
    module, _, name = path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (
        Exception,
        SystemExit,
    ) as error:  # a module runs when it is imported, and may raise anything
        raise ClassError(
            f"{what}: {path!r} cannot be imported here ({one_line(error)}); install its package, or let the job carry "
            "it"
        ) from error
    made = made_by(cls)
    if not (
        isinstance(made, type)
        and (issubclass(made, base) or (inside and holds_settings(made)))
    ):
        way_out = "name a subclass of that"
        if inspect.isfunction(cls):
            way_out = "annotate the function to return such a class of its own module, or name the class"
        raise ConfigError(
            f"{what}: {path!r} is not a {base.__module__}.{base.__qualname__}; {way_out}"
        )
    args = spec.get("args") or {}
    valid = isinstance(args, Mapping) and isinstance(
        args.get(POSITIONAL, []), (list, tuple)
    )
    require(
        valid,
        f"{what} {name}: args = {reprlib.repr(args)} should be a dictionary of its arguments by name",
    )
    args = {key: _built(value, base, what, authorize) for key, value in args.items()}
    first = args.pop(POSITIONAL, ())
    cls = partial(cls, *first) if first else cls
    return from_dict(cls, args, f"{what} {name}")


def build_named(
    spec: Mapping[str, Any] | str,
    key: str,
    known: Mapping[str, Any],
    base: type[T],
    authorize: Callable[[str], None] | None = None,
) -> T:
    """What a job names, with its settings: one of the ``known`` classes, or ``"package.Class"``, which is a ``base``.

    Args:
        spec: ``{key: name, setting: value, ...}``, or ``"name:setting=value"``.
        authorize: as for `build`.
    """
    settings = as_spec(spec, key)
    name = settings.pop(key, None)
    if isinstance(name, str) and name in known:
        return from_dict(known[name], settings, f"{key} {name}")
    if isinstance(name, str) and "." in name:
        return build({"class_path": name, "args": settings}, base, key, authorize)
    raise ConfigError(
        f"{key} {name!r} is unknown; there are {', '.join(known)}, or package.Class"
    )


def name_of(obj: Any, key: str, known: Mapping[str, Any]) -> str:
    """The name by which `build_named` finds the class of an object."""
    name: str = obj.name
    return name if known.get(name) is type(obj) else class_path(obj, key)


def made_by(named: Any) -> Any:
    """The class itself, or the one of its own module that a function is annotated to return; None if there is none."""
    if not inspect.isfunction(named):
        return named
    try:
        made = typing.get_type_hints(named).get("return")
    except Exception:  # an annotation may be any text
        return None
    return made if getattr(made, "__module__", None) == named.__module__ else None


def class_paths(spec: Any) -> list[str]:
    """All classes and functions that a description names, those in its arguments too."""
    inside = (
        list(spec.values())
        if isinstance(spec, Mapping)
        else spec
        if isinstance(spec, (list, tuple))
        else []
    )
    paths = (
        [spec["class_path"]]
        if isinstance(spec, Mapping) and isinstance(spec.get("class_path"), str)
        else []
    )
    return list(
        dict.fromkeys(
            [*paths, *(path for value in inside for path in class_paths(value))]
        )
    )


def _built(
    value: Any, base: type, what: str, authorize: Callable[[str], None] | None
) -> Any:
    if not class_paths(value):
        return value
    if not isinstance(value, Mapping):
        return [_built(inner, base, what, authorize) for inner in value]
    if value.keys() == {"class_path", "args"}:
        return build(value, base, what, authorize, inside=True)
    return OrderedDict(
        (key, _built(inner, base, what, authorize)) for key, inner in value.items()
    )


def check_run_name(name: str, what: str = "name") -> None:
    """A run's name becomes a folder under the operator's state root, and nothing else; ``what`` is the setting."""
    is_name = (
        isinstance(name, str)
        and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None
    )
    wanted = "letters, digits, '.', '_' and '-', beginning with a letter or a digit"
    require(is_name, f"run: {what} = {name!r} should be {wanted}")
