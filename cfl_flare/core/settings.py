# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A setting is stated once: a field of a dataclass, with its type, default, bounds and one line of help.

Checks, keyword arguments, FLARE components' arguments, command-line options and tables are made from these fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cfl_flare.core.config import SETTING, check_types, current_names, from_dict, require
from cfl_flare.core.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """Which values a setting may have; None, where its type allows it, always may.

    Attributes:
        text: completes "should be ...".
        hold: whether a value is one of them.
    """

    text: str
    hold: Callable[[Any], bool]


SHARE_OR_COUNT = Bounds(
    "a share in (0.0, 1.0] or a count >= 1", lambda value: 0 < value <= 1 if isinstance(value, float) else value >= 1
)


@dataclass(frozen=True)
class Setting:
    """What is stated of a setting.

    Attributes:
        name: what users call it.
        field: its name in the dataclass, where that is another.
        type: its type.
        default: its default; ``dataclasses.MISSING`` where it has to be given.
        help: one line.
        bounds: which values it may have.
        choices: all values that it may have, where they are few.
        per_site: a site may have its own.
    """

    name: str
    field: str
    type: Any
    default: Any
    help: str
    bounds: Bounds | None
    choices: tuple[Any, ...]
    per_site: bool

    @property
    def needed(self) -> bool:
        """It has no default."""
        return self.default is dataclasses.MISSING

    @property
    def kinds(self) -> set[Any]:
        """Its type, or the types of a union without None."""
        return set(typing.get_args(self.type) or (self.type,)) - {type(None)}


def setting(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[Any, ...] = (),
    bounds: Bounds | None = None,
    name: str | None = None,
    per_site: bool = False,
) -> Any:
    """A dataclass field that is a setting.

    Args:
        default: its default; without one it has to be given.
        help: one line.
        ge: the smallest value.
        gt: it is greater than this.
        le: the largest value.
        lt: it is less than this.
        choices: all values, where they are few.
        bounds: other bounds than these.
        name: what users call it, where that is not the field's name.
        per_site: a site may have its own.
    """
    if choices:
        bounds = Bounds(" or ".join(map(repr, choices)), lambda value: value in choices)
    elif bounds is None and (ge, gt, le, lt) != (None,) * 4:
        bounds = _interval(ge, gt, le, lt)
    stated = {"help": help, "bounds": bounds, "choices": choices, "name": name, "per_site": per_site}
    return dataclasses.field(default=default, metadata={SETTING: stated})


def _interval(ge: float | None, gt: float | None, le: float | None, lt: float | None) -> Bounds:
    """Finite numbers between two bounds, or on one side of one."""
    signs = ((">=", operator.ge, ge), (">", operator.gt, gt), ("<=", operator.le, le), ("<", operator.lt, lt))
    tests = [(sign, compare, bound) for sign, compare, bound in signs if bound is not None]
    text = " and ".join(f"{sign} {bound}" for sign, _, bound in tests)
    if len(tests) == 2:
        text = f"in {'(' if ge is None else '['}{tests[0][2]}, {tests[1][2]}{')' if le is None else ']'}"
    return Bounds(text, lambda value: math.isfinite(value) and all(test(value, bound) for _, test, bound in tests))


def settings_of(*classes: type) -> dict[str, Setting]:
    """The settings of dataclasses by the name that users write; where several have one, the first describes it."""
    found: dict[str, Setting] = {}
    for cls in classes:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if SETTING not in field.metadata:
                continue
            stated = dict(field.metadata[SETTING])
            name = stated.pop("name") or field.name
            found.setdefault(name, Setting(name, field.name, hints[field.name], field.default, **stated))
    return found


def check_settings(instance: Any, where: str) -> None:
    """Checks the types and bounds of a dataclass's fields.

    Raises:
        ConfigError: naming the setting, its value and what it should be.
    """
    check_types(instance, where)
    for known in settings_of(type(instance)).values():
        value = getattr(instance, known.field)
        if known.bounds is not None and value is not None:
            require(known.bounds.hold(value), f"{where}: {known.name} = {value!r} should be {known.bounds.text}")


def changed(instance: Any) -> list[str]:
    """The settings of a dataclass that differ from their defaults."""
    return [s.name for s in settings_of(type(instance)).values() if getattr(instance, s.field) != s.default]


def check_known(given: Iterable[str], classes: Iterable[type], where: str) -> None:
    """Raises a ConfigError for a name that none of the dataclasses has, with those that are close to it."""
    known = [name for cls in classes for name in (*settings_of(cls), *getattr(cls, "renamed", {}))]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(dict.fromkeys(known))}"
            raise ConfigError(f"{where}: unknown setting {name!r}; {hint}")


def pick(cls: type[T], given: Mapping[str, Any], where: str) -> T:
    """A dataclass from those of the given settings that are its, by the names that users write.

    Raises:
        ConfigError: one is missing, or wrong.
    """
    fields = {known.name: known.field for known in settings_of(cls).values()}
    fields |= {old: old for old in getattr(cls, "renamed", {})}
    return from_dict(cls, {fields[name]: value for name, value in given.items() if name in fields}, where)


def keep(component: Any, given: Mapping[str, Any], *classes: type) -> list[str]:
    """Keeps the settings of dataclasses as attributes of a FLARE component, by the fields' names, for its export.

    Nothing is checked: a component that raises when it is built ends the whole job without a reason. See `kept`.

    Returns:
        The names that no dataclass has.
    """
    rest = dict(given)
    for cls in classes:
        rest = current_names(cls, rest, "job")
        for known in settings_of(cls).values():
            if known.field in rest or not known.needed:
                setattr(component, known.field, rest.pop(known.field, known.default))
    return sorted(rest)


def kept(cls: type[T], component: Any, where: str) -> T:
    """A dataclass from the attributes that `keep` made.

    Raises:
        ConfigError: one is missing, or wrong.
    """
    fields = [known.field for known in settings_of(cls).values()]
    return from_dict(cls, {name: getattr(component, name) for name in fields if hasattr(component, name)}, where)


def shows(*classes: type, as_fields: bool = False) -> Callable[[T], T]:
    """Gives a function that takes ``**settings`` the signature that lists them: for help(), editors, and FLARE.

    FLARE exports those of a component's attributes that its constructor's signature names.

    Args:
        classes: the dataclasses whose settings it takes.
        as_fields: by the fields' names, as a component's, and not as users write them.
    """

    def decorate(function: T) -> T:
        own = inspect.signature(function)  # type: ignore[arg-type]
        first = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                known.field if as_fields else known.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if known.needed else known.default,
                annotation=known.type,
            )
            for known in settings_of(*classes).values()
        ]
        taken = {p.name for p in first}
        signature = own.replace(parameters=[*first, *(p for p in more if p.name not in taken)])
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


def settings_table(*classes: type) -> list[tuple[str, str, str, str]]:
    """The settings of dataclasses as rows of name, type with bounds, default, and help, for the documents."""
    rows = []
    for known in settings_of(*classes).values():
        kind = known.type.__name__ if isinstance(known.type, type) else str(known.type).replace("typing.", "")
        kind = kind.replace("collections.abc.", "")
        default = "needed" if known.needed else str(known.default)
        bounds = [] if known.bounds is None else [known.bounds.text]
        rows.append((known.name, ", ".join([kind, *bounds]), default, known.help))
    return rows
