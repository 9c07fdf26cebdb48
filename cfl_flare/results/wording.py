# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names and numbers from a run's files, which may be anybody's, as tables and the report show them.

Names are cut to one line here. A page's template escapes them for HTML, and for a script's element.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from cfl_flare.core.text import plain
from cfl_flare.results.remarks import figure

LIMIT = 60
NAMES = {"macro_f1": "macro-F1", "supported_f1": "supported F1", "c_index": "C-index"}
NAMES |= {name: name.upper() for name in ("auroc", "auprc", "ece", "mae", "rmse", "r2")}
# What every object of JavaScript has under that name. Vega looks values up in objects: it does not draw a plot with
# such a name in it, and a site could call itself so.
OF_EVERY_OBJECT = {
    "constructor",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
    "toLocaleString",
}
OF_EVERY_OBJECT |= {
    "toString",
    "valueOf",
    "__proto__",
    "__defineGetter__",
    "__defineSetter__",
}
OF_EVERY_OBJECT |= {"__lookupGetter__", "__lookupSetter__"}


def cut(value: Any, limit: int = LIMIT) -> str:
    """Text of any kind in one line of that length at most."""
    return plain(str(value), limit)


def axis_title(measure: Any) -> str:
    """A measure's name as the title of an axis: one of plain letters, or a fixed text.

    >>> axis_title("served_auroc"), axis_title("val/dice"), axis_title("<b>")
    ('AUROC', 'val/dice', 'value')
    """
    name = measure_name(measure)
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _./%-]*", name) else "value"


def measure_name(measure: Any) -> str:
    """What a measure is called, with or without ``served_``.

    >>> measure_name("served_auroc"), measure_name("dice")
    ('AUROC', 'dice')
    """
    name = str(measure).removeprefix("served_")
    return NAMES.get(name, cut(name))


def number_text(value: Any) -> str:
    """Three digits after the point, unless they say nothing of such a small or large number."""
    return "-" if value is None else figure(value)


def is_finite(value: Any) -> bool:
    """Whether a value is a number, and neither infinite nor NaN."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def number(value: Any) -> str:
    """A number as a table shows it; a dash for anything else.

    >>> number(0.12345), number(3), number(float("nan")), number("<b>")
    ('0.123', '3', '-', '-')
    """
    if not is_finite(value):
        return "-"
    return (
        str(value)
        if isinstance(value, int) and abs(value) < 1e9
        else number_text(value)
    )


def signed(value: Any) -> str:
    """A difference, with its sign."""
    return ("+" if is_finite(value) and value > 0 else "") + number(value)


def interval(ends: Any) -> str:
    """An interval's ends; a dash where one is missing."""
    low, high = (number(ends[0]), number(ends[1])) if ends else ("-", "-")
    return "-" if "-" in (low, high) else f"{low} to {high}"


def finite(value: Any, digits: int = 4) -> float | None:
    """A number for a plot, of that many significant digits; None for anything else.

    >>> finite(0.123456), finite(float("inf")), finite(None)
    (0.1235, None, None)
    """
    if not is_finite(value):
        return None
    return (
        value
        if isinstance(value, int) and abs(value) < 1e9
        else float(f"{value:.{digits}g}")
    )


def told_apart(names: Iterable[str]) -> list[str]:
    r"""Names as they are shown; those that look alike once they are cut are numbered.

    >>> told_apart(["a", "b\n", "b", "constructor"])
    ['a', 'b', 'b #2', 'constructor #1']
    """
    shown: dict[str, None] = {}
    times: Counter[str] = Counter()
    for name in names:
        first = label = cut(name)
        while label in shown or label in OF_EVERY_OBJECT:
            times[first] += 1
            label = f"{first} #{times[first] + (first in shown)}"
        shown[label] = None
    return list(shown)


def unique(names: Sequence[str]) -> dict[str, str]:
    """Each of different names, as it is shown."""
    return dict(zip(names, told_apart(names)))
