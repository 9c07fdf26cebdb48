# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names and numbers from a run's files, which may be anybody's, as the report shows them.

They are cut and in one line here. The page's template escapes them for HTML, and `as_json` for a script's element.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from cfl_flare.core.text import plain
from cfl_flare.report.table import NAMES, number_text

LIMIT = 60
# What every object of JavaScript has under that name. Vega looks values up in objects: a plot with such a name in it is
# not drawn, and a site could call itself so.
OF_EVERY_OBJECT = {"constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString"}
OF_EVERY_OBJECT |= {"toString", "valueOf", "__proto__", "__defineGetter__", "__defineSetter__"}
OF_EVERY_OBJECT |= {"__lookupGetter__", "__lookupSetter__"}


def cut(value: Any, limit: int = LIMIT) -> str:
    """Text of any kind in one line of that length at most."""
    return plain(str(value), limit)


def measure_name(measure: Any) -> str:
    """What a measure is called, with or without ``served_``.

    >>> measure_name("served_auroc"), measure_name("dice")
    ('AUROC', 'dice')
    """
    plain_name = str(measure).removeprefix("served_")
    return NAMES.get(plain_name, cut(plain_name))


def number(value: Any) -> str:
    """A number as a table shows it; a dash for what is none.

    >>> number(0.12345), number(3), number(float("nan")), number("<b>")
    ('0.123', '3', '-', '-')
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return "-"
    return str(value) if isinstance(value, int) and abs(value) < 1e9 else number_text(value)


def signed(value: Any) -> str:
    """A difference, with its sign."""
    return ("+" if isinstance(value, (int, float)) and value > 0 else "") + number(value)


def interval(ends: Any) -> str:
    """An interval's ends; a dash without them."""
    return f"{number(ends[0])} to {number(ends[1])}" if ends else "-"


def finite(value: Any, digits: int = 4) -> float | None:
    """A number for a plot, of so many significant digits; None for what is none.

    >>> finite(0.123456), finite(float("inf")), finite(None)
    (0.1235, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) < 1e9:
        return value
    return float(f"{value:.{digits}g}")


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


def as_json(value: Any) -> str:
    r"""JSON that may stand in a script's element: nothing in it ends the element or begins a comment.

    >>> as_json({"a": "</script><!--\u2028"})
    '{"a":"\\u003c/script\\u003e\\u003c!--\\u2028"}'
    """
    text = json.dumps(_sound(value), separators=(",", ":"), allow_nan=False)  # escapes all beyond ASCII
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sound(value: Any) -> Any:
    """Without numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _sound(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sound(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
