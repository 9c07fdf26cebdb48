# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each hospital gains by the chosen candidate, as forest plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cfl_flare.report.html import specs
from cfl_flare.report.html.section import Plot, Section, Table
from cfl_flare.report.html.study.view import StudyView
from cfl_flare.report.html.text import cut, finite, interval, number, signed, told_apart
from cfl_flare.report.html.view import thinned
from cfl_flare.results.comparison import CHANCE, GAINS, LOSES, UNKNOWN

# Hospitals in a plot.
ROWS = 80
# What is said of a hospital, by colour and by shape: who does not see one of them sees the other.
OTHER = "other"
KINDS = {
    GAINS: ("#009E73", "triangle-up"),
    LOSES: ("#D55E00", "triangle-down"),
    CHANCE: ("#0072B2", "circle"),
    UNKNOWN: ("#7F7F7F", "diamond"),
    OTHER: ("#CC79A7", "square"),
}
AGAINST = {"to_one": "over one model", "to_alone": "over training alone"}


def hospitals(view: StudyView) -> Section | None:
    """Each hospital's gain over one model and over training alone; None without a verdict."""
    if view.verdict is None or not view.verdict["hospitals"]:
        return None
    people = view.verdict["hospitals"]
    shown = dict(enumerate(told_apart(own["name"] for own in people)))
    plots, notes = list[Plot](), list[str]()
    for key, words in AGAINST.items():
        found = {i: own[key] for i, own in enumerate(people) if own[key] is not None}
        if found:
            plots.append(_forest(view, f"Gain {words}", people, shown, found))
            lacking = [shown[i] for i, gain in found.items() if finite(gain["gain"]) is None]
            if lacking:
                more = f" and {len(lacking) - 20} more" if len(lacking) > 20 else ""
                notes.append(f"No difference {words} could be measured at {', '.join(lacking[:20])}{more}.")
            if len(found) - len(lacking) > ROWS:
                notes.append(f"{ROWS} of {len(found) - len(lacking)} hospitals are drawn, evenly spaced.")
        else:
            notes.append(f"There is no gain {words}: that is what was chosen.")
    text = (
        f"What {cut(view.verdict['chosen']['title'], 200)} brings each hospital on its own test samples. Intervals are "
        "of its patients alone, and hold together for all hospitals with 95 %: they decide what is said beside them."
    )
    return Section("What each hospital gains", [text], plots, notes=notes)


def _forest(
    view: StudyView,
    title: str,
    people: Sequence[Mapping[str, Any]],
    shown: Mapping[int, str],
    found: Mapping[int, Mapping[str, Any]],
) -> Plot:
    """A row for each hospital, the largest gain first; those without a number only in the table."""
    order = sorted(found, key=lambda i: _descending(found[i]["gain"]))
    known = [i for i in order if finite(found[i]["gain"]) is not None]
    rows = [
        {"i": n, "name": shown[i], "v": finite(found[i]["gain"]), "c": _kind(found[i]), "n": people[i]["tested"]}
        | {"lo": finite(found[i]["low"]), "hi": finite(found[i]["high"])}
        for n, i in enumerate(thinned(known, ROWS))
    ]
    table = [
        [
            shown[i],
            number(people[i]["tested"]),
            number(people[i]["value"]),
            signed(found[i]["gain"]),
            interval(_ends(found[i])),
            cut(found[i]["says"]),
            number(found[i]["needed"]),
        ]
        for i in order
    ]
    columns = ("hospital", "test samples", view.measure_name, "gain", "95 % interval", "what can be said")
    text = (
        "A mark is a hospital's gain with its interval, the largest first; right of the dashed line it is better off. "
        "Colour and shape are what can be said: cannot tell means too few test samples."
    )
    return Plot(title, text, _spec(rows), Table.of((*columns, "samples needed to tell"), table))


def _descending(gain: Any) -> tuple[bool, float]:
    value = finite(gain, 12)
    return value is None, -(value or 0.0)


def _ends(gain: Mapping[str, Any]) -> tuple[Any, Any] | None:
    return None if finite(gain["low"]) is None or finite(gain["high"]) is None else (gain["low"], gain["high"])


def _kind(gain: Mapping[str, Any]) -> str:
    says: str = gain["says"]
    return says if says in KINDS else OTHER


def _spec(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kinds = [kind for kind in KINDS if any(row["c"] == kind for row in rows)]
    colours, shapes = ([KINDS[kind][part] for kind in kinds] for part in (0, 1))
    legend = {"title": None}
    y = {"field": "name", "type": "nominal", "sort": {"field": "i"}, "title": None, "axis": {"labelLimit": 110}}
    x = {"field": "v", "type": "quantitative", "title": "gain", "scale": {"zero": True}}
    colour = {"field": "c", "type": "nominal", "scale": {"domain": kinds, "range": colours}, "legend": legend}
    told = specs.tips(name="hospital", c="it", v="gain", lo="from", hi="to", n="test samples")
    shared = {"y": y, "color": colour, "tooltip": told}
    return {
        "height": max(60, 18 * len(rows)),
        "data": {"values": list(rows)},
        "layer": [
            {
                "data": {"values": [{}]},
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "currentColor", "opacity": 0.5},
                "encoding": {"x": {"datum": 0}},
            },
            {
                "transform": [{"filter": "isValid(datum.lo) && isValid(datum.hi)"}],
                "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.6},
                "encoding": {**shared, "x": {**x, "field": "lo"}, "x2": {"field": "hi"}},
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 1, "size": 70},
                "encoding": {
                    **shared,
                    "x": x,
                    "shape": {
                        "field": "c",
                        "type": "nominal",
                        "scale": {"domain": kinds, "range": shapes},
                        "legend": legend,
                    },
                },
            },
        ],
    }
