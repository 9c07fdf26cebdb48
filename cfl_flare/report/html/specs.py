# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Vega-Lite specifications of the kinds of plots in the report.

Names from outside are values in a plot's data and nowhere else: never a field, an expression or an address. Titles are
fixed texts, but for a picture's, which stands in no page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

# Okabe and Ito's colours without black and yellow, which one of a light and a dark page would swallow, and more.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#999933", "#A0522D", "#7F7F7F"),
    *("#8FBCE6", "#F7CF8A", "#7FD1B4", "#EBB8D3", "#2F4B9B", "#F4A582", "#CBB8E8", "#D3D37F", "#D9A98C", "#C4C4C4"),
)
# What all plots share. Lines and letters have the page's colour, whatever the reader prefers.
CONFIG: dict[str, Any] = {
    "background": None,
    "scale": {"round": True},  # cells end at whole pixels
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor", "gridColor"), "currentColor"),
        **{"gridOpacity": 0.12, "domainOpacity": 0.4, "tickOpacity": 0.4, "titleFontWeight": "normal"},
        **{"labelFontSize": 11, "titleFontSize": 12, "labelLimit": 110},
    },
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "orient": "bottom", "labelLimit": 150},
    "range": {"category": list(COLOURS)},
    "mark": {"color": COLOURS[0]},
}
# Rounds as the columns of a plot.
ROUNDS = {"field": "r", "type": "ordinal", "title": "round", "axis": {"labelAngle": 0, "labelOverlap": True}}
# Names are written along an axis for so many at most.
NAMED = 32


def palette(labels: Sequence[str]) -> list[str]:
    """A colour for each label: a cluster's own wherever it is shown, the page's for what is of all participants.

    >>> palette(["all, mean", "cluster-1"]) == ["currentColor", COLOURS[1]]
    True
    """
    numbers = [re.fullmatch(r"cluster-(\d{1,6})", label) for label in labels]
    if not any(numbers):
        return [COLOURS[i % len(COLOURS)] for i in range(len(labels))]
    return ["currentColor" if found is None else COLOURS[int(found[1]) % len(COLOURS)] for found in numbers]


def colour(labels: Sequence[str]) -> dict[str, Any]:
    """A colour by label, field c."""
    scale = {"domain": list(labels), "range": palette(labels)}
    return {"field": "c", "type": "nominal", "scale": scale, "legend": _legend(labels)}


def tips(**titles: str) -> list[dict[str, str]]:
    """What a pointer on a mark shows: fields, each with its title."""
    return [{"field": field, "title": title} for field, title in titles.items()]


def _legend(labels: Sequence[str]) -> dict[str, Any] | None:
    return {"title": None} if 1 < len(labels) <= 20 else None


def whole_axis(field: str, values: Iterable[int], title: str) -> dict[str, Any]:
    """An axis of whole numbers; few of them are written one by one, so that no tick is between two."""
    there = sorted({*values})
    axis: dict[str, Any] = {"tickMinStep": 1, "format": "d", "grid": False}
    axis |= {"values": there} if len(there) <= 12 else {}
    scale = {"zero": False, "nice": False}
    return {"field": field, "type": "quantitative", "title": title, "axis": axis, "scale": scale}


def lines(
    points: Sequence[dict[str, Any]], labels: Sequence[str], title: str, dashed: Sequence[str] = (), height: int = 260
) -> dict[str, Any]:
    """Lines over rounds; a click on the legend leaves one of them in full colour.

    Args:
        points: ``{"r": round, "v": value, "c": label}``.
        labels: the lines.
        title: of the axis of values: a fixed text.
        dashed: the labels of dashed lines.
        height: in pixels.
    """
    dots = len({point["r"] for point in points}) <= 40
    legend = None if _legend(labels) is None else {"title": None, "symbolType": "stroke"}
    return {
        "height": height,
        "data": {"values": list(points)},
        "params": [{"name": "chosen", "select": {"type": "point", "fields": ["c"]}, "bind": "legend"}],
        "mark": {"type": "line", "point": {"size": 22} if dots else {"size": 60, "opacity": 0}, "strokeWidth": 1.8},
        "encoding": {
            "x": whole_axis("r", (point["r"] for point in points), "round"),
            "y": {"field": "v", "type": "quantitative", "title": title, "scale": {"zero": False}},
            "color": {**colour(labels), "legend": legend},
            "strokeDash": {
                "field": "c",
                "type": "nominal",
                "legend": legend,
                "scale": {"domain": list(labels), "range": [[5, 4] if own in dashed else [1, 0] for own in labels]},
            },
            "opacity": {"condition": {"param": "chosen", "value": 1}, "value": 0.12},
            "tooltip": tips(c="line", r="round", v="value"),
        },
    }


def ranked(rows: Sequence[dict[str, Any]], labels: Sequence[str], title: str, zero: bool = False) -> dict[str, Any]:
    """A point for each participant, with its interval, in the order of the rows.

    Args:
        rows: ``{"name", "v", "c"}`` and, where there is an interval, ``"lo"`` and ``"hi"``.
        labels: by which they are coloured.
        title: of the axis of values: a fixed text.
        zero: whether a line is drawn at 0.
    """
    named = len(rows) <= NAMED
    values = [{"i": i, **row} for i, row in enumerate(rows, 1)]
    x: dict[str, Any] = {"field": "i", "type": "quantitative", "title": "rank", "scale": {"nice": False}}
    x["axis"] = {"grid": False, "tickMinStep": 1, "format": "d"}
    if named:
        axis = {"labelAngle": -50, "grid": False}
        x = {"field": "name", "type": "nominal", "title": None, "sort": {"field": "i"}, "axis": axis}
    sure = any("lo" in row for row in rows)
    ends = {"lo": "from", "hi": "to"} if sure else {}
    y = {"field": "v", "type": "quantitative", "title": title, "scale": {"zero": zero}}
    shared = {"x": x, "color": colour(labels), "tooltip": tips(name="participant", c="in", v="value", **ends)}
    rule: dict[str, Any] = {
        "transform": [{"filter": "isValid(datum.lo)"}],
        "mark": {"type": "rule", "strokeWidth": 2 if named else 1, "opacity": 0.55},
        "encoding": {**shared, "y": {**y, "field": "lo"}, "y2": {"field": "hi"}},
    }
    point: dict[str, Any] = {
        "mark": {"type": "point", "filled": True, "opacity": 1, "size": 50 if named else 22},
        "encoding": {**shared, "y": y},
    }
    at_zero: dict[str, Any] = {
        "mark": {"type": "rule", "strokeDash": [4, 3], "color": "currentColor", "opacity": 0.5},
        "encoding": {"y": {"datum": 0}},
    }
    layer = [*([at_zero] if zero else []), *([rule] if sure else []), point]
    return {"height": 280, "data": {"values": values}, "layer": layer}


def matrix(
    names: Sequence[str],
    groups: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    title: str,
    scale: dict[str, Any],
) -> dict[str, Any]:
    """A square of cells: participants by participants, in the order given.

    Args:
        names: the participants, each once.
        groups: the cluster of each.
        cells: by row.
        title: of the values: a fixed text.
        scale: of their colours.
    """
    axis = None if len(names) > NAMED else {"labelAngle": -50, "grid": False, "title": None}
    data = {"name": "names"}
    looked_up = [
        {
            "lookup": of,
            "from": {"data": data, "key": "i", "fields": ["name", "group"]},
            "as": [f"{of}_name", f"{of}_in"],
        }
        for of in ("row", "col")
    ]
    return {
        "height": 420,
        "datasets": {"names": [{"i": i, "name": n, "group": g} for i, (n, g) in enumerate(zip(names, groups), 1)]},
        "data": {"values": [{"row": i, "v": list(row)} for i, row in enumerate(cells, 1)]},
        "transform": [
            {"flatten": ["v"]},
            {"window": [{"op": "row_number", "as": "col"}], "groupby": ["row"]},
            *looked_up,
        ],
        "mark": {"type": "rect", "aria": False},
        "encoding": {
            "x": {"field": "col_name", "type": "ordinal", "sort": {"field": "col"}, "axis": axis, "title": None},
            "y": {
                "field": "row_name",
                "type": "ordinal",
                "sort": {"field": "row"},
                "title": None,
                "axis": None if axis is None else {**axis, "labelAngle": 0},
            },
            "color": {
                "field": "v",
                "type": "quantitative",
                "title": title,
                "scale": scale,
                "legend": {"gradientLength": 160, "direction": "horizontal"},
            },
            "tooltip": tips(row_name="participant", row_in="in", col_name="and", col_in="in", v="value"),
        },
    }
