# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Each participant's measure, from the worst to the best."""

from __future__ import annotations

from typing import Any

from cfl_flare.report.html import specs
from cfl_flare.report.html.section import ROWS, Plot, Section, Table
from cfl_flare.report.html.text import finite, interval, measure_name, number
from cfl_flare.report.html.view import View, cluster_label, thinned
from cfl_flare.results.key_metric import of_training
from cfl_flare.results.schema import number as is_number

# Other measures that get a column.
OTHERS = 4
NAMED = 20


def participants(view: View) -> Section | None:
    """A point for each participant with its interval, if the run has one; None if nobody was measured."""
    own = {one["name"]: one for one in view.people}
    having = [name for name in own if finite(own[name].get(view.measure)) is not None]
    lacking = [name for name in own if name not in set(having)]
    if not having:
        return None
    having.sort(key=lambda name: own[name][view.measure], reverse=view.metric.mode == "min")
    drawn = thinned(having, ROWS)
    labels = [cluster_label(k) for k in sorted({k for k in view.clusters.values() if k is not None})]
    labels += ["no cluster"] if None in view.clusters.values() else []
    rows = [_point(view, own[name]) for name in drawn]
    sure = any(one.get("intervals", {}).get(view.measure) for one in own.values())
    text = f"From the worst participant to the best, each measured {view.measured_on}, coloured by its cluster. "
    text += "The lines are 95 % intervals from draws of its test split." if sure else "The run measured no intervals."
    plot = Plot(
        f"{view.measure_name} of each participant",
        text,
        specs.ranked(rows, labels, "value"),
        Table.of(*_table(view, [own[name] for name in [*having, *lacking]], sure)),
    )
    notes = []
    if lacking:
        names = ", ".join(view.shown[name] for name in lacking[:NAMED])
        more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
        notes.append(
            f"Not defined or not measured for {len(lacking)} of {len(own)}: {names}{more}. "
            "A test split with one class has no AUROC, for example; an absent participant measures nothing."
        )
    if any("lo" in row and row["lo"] == row["hi"] for row in rows):
        notes.append(
            "An interval without width is no certainty: all draws of a small test split gave the same, as where "
            "no sample of it is wrong."
        )
    if len(drawn) < len(having):
        notes.append(f"{len(drawn)} of {len(having)} participants are drawn, evenly spaced in this order.")
    return Section("Participants", plots=[plot], notes=notes)


def _point(view: View, one: dict[str, Any]) -> dict[str, Any]:
    name = one["name"]
    point = {"name": view.shown[name], "v": finite(one[view.measure]), "c": cluster_label(view.clusters[name])}
    ends = one.get("intervals", {}).get(view.measure)
    return point if not ends else {**point, "lo": finite(ends[0]), "hi": finite(ends[1])}


def _table(view: View, people: list[dict[str, Any]], sure: bool) -> tuple[list[str], list[list[str]]]:
    """Headings and rows."""
    seen = dict.fromkeys(k for one in people for k, v in one.items() if k.startswith("served_") and is_number(v))
    others = [key for key in seen if key != view.measure and not of_training(key)][:OTHERS]
    columns = ["participant", "cluster", view.unit, view.measure_name, *(["95 % interval"] if sure else [])]
    rows = []
    for one in people:
        value = finite(one.get(view.measure))
        row = [view.shown[one["name"]], cluster_label(view.clusters[one["name"]]), number(view.weight(one))]
        row.append("not defined" if value is None else number(value))
        row += [interval(one.get("intervals", {}).get(view.measure))] if sure else []
        rows.append([*row, *(number(one.get(key)) for key in others)])
    return [*columns, *map(measure_name, others)], rows
