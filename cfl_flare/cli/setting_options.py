# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Options of the command line that are made from settings, and the settings from them."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from cfl_flare.core.settings import Setting, settings_of

RENAMED = {"num_rounds": "--rounds"}


def add_settings(
    group: Any,
    *classes: type,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    found: Mapping[str, Any] | None = None,
    optional: bool = False,
    **defaults: Any,
) -> None:
    """Adds an option for each setting of dataclasses.

    Args:
        group: the parser's group that gets them.
        classes: the dataclasses.
        without: settings that get no option.
        only: if any, the only settings that get an option.
        found: defaults that the command finds later, once it knows the data, as the help names them.
        optional: options that are not given leave no value, so that the command can tell.
        **defaults: defaults that differ on the command line.
    """
    for name, known in settings_of(*classes).items():
        if name not in without and (name in only or not only):
            default = defaults.get(name, known.default)
            text = known.help + ("" if default is False or default in (None, "", ()) else " (%(default)s)")
            text += f" ({found[name]})" if found and name in found else ""
            option = RENAMED.get(name, "--" + name.replace("_", "-"))
            text = text.replace("(%(default)s)", f"({default})") if optional else text
            default = argparse.SUPPRESS if optional else default
            group.add_argument(option, dest=name, default=default, help=text, **_read(known))


def _read(known: Setting) -> dict[str, Any]:
    """How argparse reads a setting."""
    kinds = set(typing.get_args(known.type) or (known.type,)) - {type(None)}
    if known.choices:
        return {"choices": known.choices}
    if kinds == {bool}:
        return {"action": "store_true"}
    if kinds == {int, float}:
        return {"type": share_or_count, "metavar": "S"}
    several = {"nargs": "+"} if typing.get_origin(known.type) is tuple else {}
    if int in kinds:
        return {"type": int, "metavar": "N", **several}
    return {"type": float, "metavar": "X"} if kinds == {float} else {"metavar": "TEXT", **several}


def share_or_count(text: str) -> float | int:
    """``"0.25"`` is a share, ``"25"`` a count."""
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} should be a share like 0.25 or a count like 25") from error


def given(arguments: argparse.Namespace, *classes: type) -> dict[str, Any]:
    """The values of those dataclasses' settings that the command has options for."""
    return {name: getattr(arguments, name) for name in settings_of(*classes) if hasattr(arguments, name)}
