# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Plots in Vega-Lite: what their specifications share, and what vl-convert makes of them, pictures and a page's script.

Names from outside are values in a plot's data and nowhere else: never a field, an expression or an address. Titles are
fixed texts or measures' names in plain letters, except those of a picture, which stands in no page.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import NoPlotsError
from cfl_flare.results.wording import finite

Spec = dict[str, Any]

# Okabe and Ito's colours without black and yellow, which one of a light and a dark page would swallow, and more.
COLOURS = (
    *(
        "#0072B2",
        "#E69F00",
        "#009E73",
        "#CC79A7",
        "#56B4E9",
        "#D55E00",
        "#8C6BB1",
        "#999933",
        "#A0522D",
        "#7F7F7F",
    ),
    *(
        "#8FBCE6",
        "#F7CF8A",
        "#7FD1B4",
        "#EBB8D3",
        "#2F4B9B",
        "#F4A582",
        "#CBB8E8",
        "#D3D37F",
        "#D9A98C",
        "#C4C4C4",
    ),
)
# What all plots share. Lines and letters have the page's colour, whatever the reader prefers.
CONFIG: Spec = {
    "background": None,
    "scale": {"round": True},  # cells end at whole pixels
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(
            ("labelColor", "titleColor", "domainColor", "tickColor", "gridColor"),
            "currentColor",
        ),
        **{
            "gridOpacity": 0.12,
            "domainOpacity": 0.4,
            "tickOpacity": 0.4,
            "titleFontWeight": "normal",
        },
        **{"labelFontSize": 11, "titleFontSize": 12, "labelLimit": 110},
    },
    "legend": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "orient": "bottom",
        "labelLimit": 150,
    },
    "range": {"category": list(COLOURS)},
    "mark": {"color": COLOURS[0]},
}
# Names are written along an axis for that many at most.
NAMED = 32
# Axes of whole numbers, of names along the bottom, and of rounds as the columns of a plot.
WHOLE = {"tickMinStep": 1, "format": "d"}
SLANTED = {"labelAngle": -50, "grid": False}
UPRIGHT = {"labelAngle": 0, "labelOverlap": True}
ROUNDS = {"field": "r", "type": "ordinal", "title": "round", "axis": UPRIGHT}
# A click on the legend leaves one label, field c, in full colour.
CHOSEN = [
    {"name": "chosen", "select": {"type": "point", "fields": ["c"]}, "bind": "legend"}
]
UNCHOSEN_FADES = {"condition": {"param": "chosen", "value": 1}, "value": 0.12}
# Marks: a line to compare with, and a cell of many, each of which a screen reader would name.
DASHED = {"type": "rule", "strokeDash": [4, 3], "color": "currentColor", "opacity": 0.5}
CELL = {"type": "rect", "aria": False}
GRADIENT = {"gradientLength": 160, "direction": "horizontal"}


def palette(labels: Sequence[str]) -> list[str]:
    """A colour for each label: a cluster's own wherever it is shown, the page's for what is of all participants.

    >>> palette(["all, mean", "cluster-1"]) == ["currentColor", COLOURS[1]]
    True
    """
    numbers = [re.fullmatch(r"cluster-(\d{1,6})", label) for label in labels]
    if not any(numbers):
        return [COLOURS[i % len(COLOURS)] for i in range(len(labels))]
    return [
        "currentColor" if match is None else COLOURS[int(match[1]) % len(COLOURS)]
        for match in numbers
    ]


def colour(labels: Sequence[str], **legend: Any) -> Spec:
    """A colour by label, field c; the legend names more than one label, and not too many."""
    scale = {"domain": list(labels), "range": palette(labels)}
    shown = {"title": None, **legend} if 1 < len(labels) <= 20 else None
    return {"field": "c", "type": "nominal", "scale": scale, "legend": shown}


def quantity(field: str, title: str, zero: bool = True, **settings: Any) -> Spec:
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": zero},
        **settings,
    }


def whole_axis(field: str, values: Iterable[int], title: str) -> Spec:
    """An axis of whole numbers; few of them are written one by one, so that no tick is between two."""
    ticks = sorted({*values})
    axis = {**WHOLE, "grid": False, **({"values": ticks} if len(ticks) <= 12 else {})}
    return quantity(field, title, axis=axis, scale={"zero": False, "nice": False})


def names(axis: Spec | None) -> Spec:
    """Names along an axis, in the order of field i."""
    return {
        "field": "name",
        "type": "nominal",
        "sort": {"field": "i", "op": "min"},
        "title": None,
        "axis": axis,
    }


def tips(**titles: str) -> list[dict[str, str]]:
    """What a pointer on a mark shows: fields, each with its title."""
    return [{"field": field, "title": title} for field, title in titles.items()]


def intervals(
    along: str, value: Spec, shared: Spec, width: float = 2, opacity: float = 0.6
) -> Spec:
    """A layer of lines from field lo to field hi along ``x`` or ``y``, where points have the encoding ``value``."""
    return {
        "transform": [{"filter": "isValid(datum.lo) && isValid(datum.hi)"}],
        "mark": {"type": "rule", "strokeWidth": width, "opacity": opacity},
        "encoding": {
            **shared,
            along: {**value, "field": "lo"},
            f"{along}2": {"field": "hi"},
        },
    }


def by_participant(
    points: Sequence[tuple[str, Any, str, Any]],
    labels: Sequence[str],
    title: str,
    zero: bool = False,
) -> Spec:
    """A point for each participant, with its interval, in the order given, coloured by label; with a line at 0.

    Points are names, values, labels, and the ends of intervals or None. The title of the axis is a fixed text.
    """
    few = len(points) <= NAMED
    numbered = {
        "field": "i",
        "type": "quantitative",
        "title": "participant",
        "scale": {"nice": False},
    }
    x = names(SLANTED) if few else {**numbered, "axis": {"grid": False, **WHOLE}}
    y = quantity("v", title, zero)
    known = any(ends for *_, ends in points)
    ends = {"lo": "from", "hi": "to"} if known else {}
    shared = {
        "x": x,
        "color": colour(labels),
        "tooltip": tips(name="participant", c="in", v="value", **ends),
    }
    at_zero = {"mark": DASHED, "encoding": {"y": {"datum": 0}}}
    marks = {
        "mark": {
            "type": "point",
            "filled": True,
            "opacity": 1,
            "size": 50 if few else 22,
        },
        "encoding": {**shared, "y": y},
    }
    lines = intervals("y", y, shared, width=2 if few else 1, opacity=0.55)
    values = [
        {"i": i, "name": name, "v": finite(value), "c": label}
        | ({"lo": finite(interval[0]), "hi": finite(interval[1])} if interval else {})
        for i, (name, value, label, interval) in enumerate(points, 1)
    ]
    layer = [*([at_zero] if zero else []), *([lines] if known else []), marks]
    return {"height": 280, "data": {"values": values}, "layer": layer}


def as_json(value: Any) -> str:
    r"""JSON that may stand in a script's element: nothing in it ends the element or begins a comment.

    >>> as_json({"a": "</script><!--\u2028"})
    '{"a":"\\u003c/script\\u003e\\u003c!--\\u2028"}'
    """
    text = json.dumps(
        _without_nan(value), separators=(",", ":"), allow_nan=False
    )  # escapes all beyond ASCII
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _without_nan(value: Any) -> Any:
    """The value with null for the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# In a process of its own: vl-convert holds an engine for JavaScript, which takes 120 MB and could end the run.
MAKE = """
import base64, io, json, resource, sys, vl_convert

# The engine reserves more address space than it uses, so that a soft limit on it is lifted as far as one may.
most = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (most, most))

def picture(ending, spec):
    if ending == "png":
        from PIL import Image  # with a palette, the file is a fifth as large

        image = Image.open(io.BytesIO(vl_convert.vegalite_to_png(spec, scale=2, allowed_base_urls=[])))
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(written := io.BytesIO(), "png")
        return written.getvalue()
    content = getattr(vl_convert, "vegalite_to_" + ending)(spec, allowed_base_urls=[])
    return content.encode() if isinstance(content, str) else content

wanted = json.load(sys.stdin)
if wanted is None:
    made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
else:
    made = [base64.b64encode(picture(*parts)).decode() for parts in wanted]
json.dump(made, sys.stdout)
"""
SECONDS = 120


@cache
def script() -> str:
    """The script with Vega, Vega-Lite and Vega-Embed, which defines ``vegaEmbed``.

    It takes seconds to make, and is the same for each report: the user's cache folder keeps it.
    """
    with suppress(
        OSError, ValueError, RuntimeError, ImportError
    ):  # it is not there, or damaged, or there is no home
        return cached_script().read_text("utf-8")
    made: str = _made(None)
    with suppress(OSError, RuntimeError):
        cached_script().parent.mkdir(0o700, parents=True, exist_ok=True)
        file, temporary = mkstemp(
            dir=cached_script().parent
        )  # others may write it at the same time
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(made)
        os.replace(temporary, cached_script())
    return made


def cached_script() -> Path:
    """Where the script is kept; only the user can write there."""
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache_folder / "cfl_flare" / f"vega-{version('vl-convert-python')}.js"


def pictures(specs: Sequence[tuple[str, Spec]]) -> list[bytes]:
    """The contents of picture files, each given by its ending, ``png``, ``svg`` or ``pdf``, and its specification."""
    return [b64decode(content) for content in _made(specs)] if specs else []


def _made(wanted: Sequence[tuple[str, Spec]] | None) -> Any:
    """What `MAKE` prints; a `NoPlotsError` says that vl-convert is not installed, or does not run here."""
    command = [sys.executable, "-c", MAKE]
    try:
        done = subprocess.run(
            command,
            input=as_json(wanted).encode(),
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        lines = (
            (getattr(error, "stderr", None) or b"")
            .decode(errors="replace")
            .strip()
            .splitlines()
        )
        reason = lines[-1] if lines else one_line(error)
        raise NoPlotsError(
            f"the report's plots cannot be made: {reason}; pip install vl-convert-python"
        ) from error
