# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A setting is stated once: a field of a dataclass, with its type, default, bounds and one line of help.

Checks, keyword arguments, FLARE components' arguments, command-line options and tables are made from these fields. A
`ConfigError` names the setting, its value and what it should be.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from cfl_flare.core.config import from_dict, require
from cfl_flare.core.errors import ConfigError

T = TypeVar("T")
# The key of a dataclass field's metadata that holds what is stated of the setting.
SETTING = "setting"
LIMITS = {
    "ge": (">=", operator.ge),
    "gt": (">", operator.gt),
    "le": ("<=", operator.le),
    "lt": ("<", operator.lt),
}


@dataclass(frozen=True)
class Bounds:
    """The values that a setting may have, apart from None; ``text`` completes "should be ..."."""

    text: str
    hold: Callable[[Any], bool]


SEED = Bounds("in 0..2**32 - 1", lambda value: 0 <= value < 2**32)
SHARE_OR_COUNT = Bounds(
    "a share in (0.0, 1.0] or a count >= 1",
    lambda value: 0 < value <= 1 if isinstance(value, float) else value >= 1,
)


def each(text: str, hold: Callable[[Any], bool], fewest: int = 1) -> Bounds:
    """The bounds of a list of at least ``fewest`` values, of which each holds."""
    return Bounds(
        text,
        lambda values: (
            isinstance(values, (list, tuple))
            and len(values) >= fewest
            and all(map(hold, values))
        ),
    )


@dataclass(frozen=True)
class Setting:
    """The facts of a setting, see `setting`; ``field`` is its name in the dataclass."""

    name: str
    field: str
    type: Any
    default: Any
    help: str
    bounds: Bounds | None
    choices: tuple[Any, ...]
    per_site: bool


def setting(
    default: Any = MISSING,
    *,
    help: str,
    choices: tuple[Any, ...] = (),
    bounds: Bounds | None = None,
    name: str | None = None,
    per_site: bool = False,
    **limits: float,
) -> Any:
    """A dataclass field that is a setting.

    Args:
        default: its default; without one it has to be given.
        help: one line.
        choices: all values that it may have, where they are few.
        bounds: other bounds than ``choices`` or ``limits``.
        name: what users call it, where that is not the field's name.
        per_site: a site may have its own.
        **limits: of a finite number: ``ge``, ``gt``, ``le``, ``lt``.
    """
    if choices:
        texts = [repr(choice) for choice in choices]
        text = " or ".join(texts) if len(texts) == 2 else f"one of {', '.join(texts)}"
        bounds = Bounds(text, lambda value: value in choices)
    elif limits:
        bounds = _interval(limits)
    stated = {
        "help": help,
        "bounds": bounds,
        "choices": choices,
        "name": name,
        "per_site": per_site,
    }
    return dataclasses.field(default=default, metadata={SETTING: stated})


def _interval(limits: Mapping[str, float]) -> Bounds:
    """``>= 1``, or ``in [0, 1)`` where both ends are given, the lower one first."""
    tests = [(*LIMITS[kind], limit) for kind, limit in limits.items()]
    text = " and ".join(f"{sign} {limit}" for sign, _, limit in tests)
    if len(tests) == 2:
        text = f"in {'[' if 'ge' in limits else '('}{tests[0][2]}, {tests[1][2]}{']' if 'le' in limits else ')'}"
    return Bounds(
        text,
        lambda value: (
            math.isfinite(value) and all(test(value, limit) for _, test, limit in tests)
        ),
    )


def settings_of(*classes: type) -> dict[str, Setting]:
    """The settings of dataclasses by the name that users write; where several have one, the first describes it.

    A subclass that gives a setting another default, and nothing else, takes the rest from its parent.
    """
    settings: dict[str, Setting] = {}
    for cls in classes:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            parents = (
                parent.__dict__.get("__dataclass_fields__", {}).get(field.name)
                for parent in cls.__mro__
            )
            stated = next(
                (p.metadata[SETTING] for p in parents if p and SETTING in p.metadata),
                None,
            )
            if stated is not None:
                name = stated["name"] or field.name
                facts = {
                    **stated,
                    "name": name,
                    "field": field.name,
                    "type": hints[field.name],
                }
                settings.setdefault(name, Setting(**facts, default=field.default))
    return settings


def _accepts(value: Any, annotation: Any) -> bool:
    """Whether a value fits a field's annotation; sequences and nested types are left to the class itself."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_accepts(value, option) for option in typing.get_args(annotation))
    if origin is typing.Literal:
        return value in typing.get_args(annotation)
    if annotation in (None, type(None)):
        return value is None
    if annotation in (bool, str):
        return isinstance(value, annotation)
    if annotation in (int, float):
        return isinstance(value, (int, annotation)) and not isinstance(value, bool)
    return True


def check_types(instance: Any, where: str) -> None:
    hints = typing.get_type_hints(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        stated = field.metadata.get(SETTING, {})
        choices = stated.get("choices")
        if value is not None and choices:
            continue  # the setting's bounds name the choices
        if _accepts(value, hints[field.name]):
            continue
        name = stated.get("name") or field.name
        if choices:
            wanted = " or ".join(map(repr, choices))
        else:
            wanted = str(field.type).removeprefix("<class '").removesuffix("'>")
        raise ConfigError(
            f"{where}: {name} = {value!r} should be {wanted}, not {type(value).__name__}"
        )


def check_settings(instance: Any, where: str) -> None:
    check_types(instance, where)
    for name, stated in settings_of(type(instance)).items():
        value = getattr(instance, stated.field)
        if stated.bounds is not None and value is not None:
            wanted = stated.bounds.text + " or None" * (
                type(None) in typing.get_args(stated.type)
            )
            require(
                stated.bounds.hold(value),
                f"{where}: {name} = {value!r} should be {wanted}",
            )


def changed(instance: Any) -> list[str]:
    return [
        name
        for name, s in settings_of(type(instance)).items()
        if getattr(instance, s.field) != s.default
    ]


def check_known(given: Iterable[str], classes: Iterable[type], where: str) -> None:
    """Raises a ConfigError for a name that none of the dataclasses has, with those that are close to it."""
    known = {name for cls in classes for name in settings_of(cls)}
    for name in given:
        close = difflib.get_close_matches(name, known)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"there are {', '.join(sorted(known))}"
        )
        require(name in known, f"{where}: unknown setting {name!r}; {hint}")


def pick(cls: type[T], given: Mapping[str, Any], where: str) -> T:
    """A dataclass from those of the given settings that are its, by the names that users write."""
    fields = {name: known.field for name, known in settings_of(cls).items()}
    return from_dict(
        cls,
        {fields[name]: value for name, value in given.items() if name in fields},
        where,
    )


def keep(component: Any, given: Mapping[str, Any], *classes: type) -> list[str]:
    """Keeps the settings of dataclasses as attributes of a FLARE component, by the fields' names, for its export.

    Nothing is checked before `from_attributes`: a component that raises when it is built ends the job without a reason.
    Returns the names that no dataclass has.
    """
    rest = dict(given)
    for stated in (stated for cls in classes for stated in settings_of(cls).values()):
        if stated.field in rest or stated.default is not MISSING:
            setattr(component, stated.field, rest.pop(stated.field, stated.default))
    return sorted(rest)


def from_attributes(cls: type[T], component: Any, where: str) -> T:
    """A dataclass from the attributes that `keep` made."""
    fields = [stated.field for stated in settings_of(cls).values()]
    return from_dict(
        cls,
        {name: getattr(component, name) for name in fields if hasattr(component, name)},
        where,
    )


def shows(*classes: type, as_fields: bool = False) -> Callable[[T], T]:
    """Gives a function that takes ``**settings`` the signature that lists them: for help(), editors, and FLARE.

    FLARE exports those of a component's attributes that its constructor's signature names.

    Args:
        classes: the dataclasses whose settings it takes.
        as_fields: by the fields' names, as a component's, and not as users write them.
    """

    def decorate(function: T) -> T:
        signature = inspect.signature(function)  # type: ignore[arg-type]
        parameters = {
            p.name: p
            for p in signature.parameters.values()
            if p.kind is not p.VAR_KEYWORD
        }
        for stated in settings_of(*classes).values():
            name = stated.field if as_fields else stated.name
            default = (
                inspect.Parameter.empty if stated.default is MISSING else stated.default
            )
            parameter = inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=stated.type,
            )
            parameters.setdefault(name, parameter)
        function.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
        return function

    return decorate


def extends(base: Callable[..., None], *without: str) -> Callable[[T], T]:
    """Gives a constructor that passes ``**arguments`` to its base the signature that lists them; see `shows`.

    Args:
        base: the base class's constructor.
        without: the parameters of that one that this one does not take.
    """

    def decorate(function: T) -> T:
        signature = inspect.signature(function)  # type: ignore[arg-type]
        this, *added, _ = signature.parameters.values()
        passed = [
            p
            for name, p in inspect.signature(base).parameters.items()
            if name not in (this.name, *without)
        ]
        required = [
            p
            for p in passed
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
        ]
        optional = [p for p in passed if p not in required]
        parameters = [this, *required, *added, *optional]
        whole = signature.replace(parameters=parameters)
        function.__signature__ = whole  # type: ignore[attr-defined]
        return function

    return decorate
