# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The candidates of a study: what they reached at each comparison, who was dropped and why, and what it cost."""

from __future__ import annotations

from typing import Any

from cfl_flare.report.html import specs
from cfl_flare.report.html.section import Plot, Section, Table
from cfl_flare.report.html.study.view import StudyView
from cfl_flare.report.html.text import cut, finite, number

VALIDATION, DROPPED, TEST = "validation", "validation, then dropped", "test"
SHAPES = {VALIDATION: "circle", DROPPED: "cross", TEST: "diamond"}
SEARCH = "looking for the number of clusters"


def candidates(view: StudyView) -> Section | None:
    """Each candidate at each comparison, and on test samples; None before the first one."""
    if not view.names:
        return None
    text = (
        "Candidates train side by side and are compared on validation samples. Those that are clearly worse than the "
        "best one are dropped; test samples are measured once, of those that are left."
    )
    return Section("The candidates", [text], [_rungs(view)])


def _rungs(view: StudyView) -> Plot:
    rungs, tested = view.study["rungs"], {} if view.verdict is None else view.verdict["tested"]
    rows = []
    for i, rung in enumerate(rungs):
        for name, mean in rung["means"].items():
            kind = DROPPED if name in rung["dropped"] else VALIDATION
            rows.append({"i": i, "x": f"{rung['rounds']} rounds", "v": finite(mean), "c": view.shown[name], "s": kind})
    rows += [
        {"i": len(rungs), "x": "test", "v": finite(mean), "c": view.shown[name], "s": TEST}
        for name, mean in tested.items()
        if name in view.shown
    ]
    table = [_line(view, name) for name in view.names]
    columns = ["candidate", *(f"validation, {rung['rounds']} rounds" for rung in rungs), "test", "what became of it"]
    text = (
        "Means over the hospitals, weighted by training samples. Circles are of validation samples, and crosses of "
        "those that were dropped by them; diamonds are of test samples."
    )
    return Plot(
        f"{view.measure_name} at each comparison", text, _spec(rows, [*view.shown.values()]), Table.of(columns, table)
    )


def _line(view: StudyView, name: str) -> list[str]:
    """A candidate's row of the table."""
    verdict, rungs = view.verdict, view.study["rungs"]
    means = [number(rung["means"].get(name)) for rung in rungs]
    why = next((f"dropped after {r['rounds']} rounds: {r['dropped'][name]}" for r in rungs if name in r["dropped"]), "")
    chosen = verdict is not None and verdict["chosen"]["name"] == name
    test = number(None if verdict is None else verdict["tested"].get(name))
    return [view.shown[name], *means, test, "chosen" if chosen else cut(why, 500) or "-"]


def _spec(rows: list[dict[str, Any]], labels: list[str]) -> dict[str, Any]:
    kinds = [kind for kind in SHAPES if any(row["s"] == kind for row in rows)]
    axis = {"labelAngle": 0, "labelOverlap": True}
    x = {"field": "x", "type": "ordinal", "sort": {"field": "i", "op": "min"}, "title": None, "axis": axis}
    y = {"field": "v", "type": "quantitative", "title": "mean", "scale": {"zero": False}}
    colour = {**specs.colour(labels), "legend": {"title": None, "columns": 1, "labelLimit": 300}}  # titles are long
    shared = {
        "x": x,
        "y": y,
        "color": colour,
        "opacity": {"condition": {"param": "chosen", "value": 1}, "value": 0.12},
    }
    shape = {"domain": kinds, "range": [SHAPES[kind] for kind in kinds]}
    return {
        "height": 300,
        "data": {"values": rows},
        "layer": [
            {
                "params": [{"name": "chosen", "select": {"type": "point", "fields": ["c"]}, "bind": "legend"}],
                "transform": [{"filter": f"datum.s != '{TEST}'"}],
                "mark": {"type": "line", "strokeWidth": 1.8, "aria": False},
                "encoding": shared,
            },
            {
                "mark": {"type": "point", "filled": True, "size": 80},
                "encoding": {
                    **shared,
                    "shape": {"field": "s", "type": "nominal", "scale": shape, "legend": None},
                    "tooltip": specs.tips(c="candidate", x="at", s="samples", v="mean"),
                },
            },
        ],
    }


def cost(view: StudyView) -> Section | None:
    """The rounds that the study took, beside training all candidates to the end."""
    spent, last = view.study["cost"], view.study["rounds"]
    trained = {view.shown[name]: min(rounds, last) for name, rounds in view.rounds.items()}
    share = f" ({spent['rounds'] / spent['everything']:.0%})" if spent["everything"] else ""
    text = (
        f"The study took {spent['rounds']} rounds, {spent['everything']} if all candidates had trained to the end"
        f"{share}, and {spent['seconds']:.0f} seconds."
    )
    if not trained:
        return Section("What it cost", [text])
    bars = [(SEARCH, view.study["searched"], 0), *((label, own, last - own) for label, own in trained.items())]
    rows = [
        {"i": i, "name": label, "v": rounds, "c": kind, "k": k}
        for i, (label, *parts) in enumerate(bars)
        for k, (kind, rounds) in enumerate(zip(("trained", "saved"), parts))
    ]
    colours = {"domain": ["trained", "saved"], "range": [specs.COLOURS[0], "#B8BEC6"]}
    names = {"title": None, "axis": {"labelLimit": 160}}
    spec = {
        "height": 20 * len(bars),
        "data": {"values": rows},
        "mark": "bar",
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": {"field": "i", "op": "min"}, **names},
            "x": {"field": "v", "type": "quantitative", "title": "rounds", "axis": {"tickMinStep": 1, "format": "d"}},
            "color": {"field": "c", "type": "nominal", "scale": colours, "legend": {"title": None}},
            "order": {"field": "k"},
            "tooltip": specs.tips(name="candidate", c="rounds", v="how many"),
        },
    }
    table = Table.of(("candidate", "rounds trained", "rounds saved"), [[str(part) for part in bar] for bar in bars])
    what = "Rounds that each candidate trained, and those that were saved because it was dropped or the study ended."
    return Section("What it cost", [text], [Plot("Rounds by candidate", what, spec, table)])
