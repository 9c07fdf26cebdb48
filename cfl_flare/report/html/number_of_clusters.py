# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How many clusters there were, and by which criterion, where the method looks for their number."""

from __future__ import annotations

from typing import Any

from cfl_flare.clustering.gap import NUMBER, in_words
from cfl_flare.report.html import curves, specs
from cfl_flare.report.html.section import Plot, Section, Table
from cfl_flare.report.html.text import finite, interval, number
from cfl_flare.report.html.view import CLUSTERS, View, cluster_label

# FedAC's G_k; version 0.1 called it looseness.
DISPERSION = ("dispersion", "looseness")


def number_of_clusters(view: View) -> Section | None:
    """The clusters in use by round, and the criterion's values; None where the method looks for no number."""
    plots = [plot for plot in (_in_use(view), _dispersion(view), _by_number(view)) if plot is not None]
    searched = len(plots) > 1 or len({line.get("clusters_in_use") for line in view.run.rounds}) > 1
    return Section("The number of clusters", plots=plots) if searched and plots else None


def _in_use(view: View) -> Plot | None:
    found = curves.series(view, lambda line: {"clusters": line.get("clusters_in_use")})
    if not found:
        return None
    plot = curves.plot("Clusters in use", "Clusters with at least one participant.", found, "clusters", height=160)
    plot.spec["mark"]["interpolate"] = "step-after"
    plot.spec["encoding"]["y"] |= {"scale": {"zero": True}, "axis": {"tickMinStep": 1, "format": "d"}}
    return plot


def _dispersion(view: View) -> Plot | None:
    """FedAC's distance inside a cluster by its distance to the others."""
    found = curves.series(view, _by_cluster)
    if not found:
        return None
    method = view.run.summary["method"]
    bounds = [number(method.get(key)) for key in ("low", "high")]
    text = "The mean distance inside a cluster, divided by that to the other centres (FedAC's G). "
    if method.get("tuning"):
        text += f"A cluster below {bounds[0]} is merged, one above {bounds[1]} is split."
    return curves.plot("Inside by between", text, found, "inside / between", height=200)


def _by_cluster(line: dict[str, Any]) -> dict[str, Any]:
    """A round's G_k by cluster."""
    values: dict[str, Any] = next((line[key] for key in DISPERSION if line.get(key)), {})
    return {cluster_label(k): values[str(k)] for k in range(CLUSTERS) if str(k) in values}


def _by_number(view: View) -> Plot | None:
    """The gap statistic by number of clusters, with a standard deviation either way."""
    note: dict[str, Any] = next((line[NUMBER] for line in view.run.rounds if isinstance(line.get(NUMBER), dict)), {})
    points: list[dict[str, Any]] = []
    for k, own in enumerate(note.get("by_k", {}).values(), 1):
        gap, times = finite(own["gap"]), finite(own["deviations"])
        if gap is not None:
            spread = abs(gap / times) if times else 0.0
            ends = {"lo": finite(gap - spread), "hi": finite(gap + spread)}
            points.append({"k": k, "v": gap, **ends, "alike": finite(own.get("stability"))})
    if not points:
        return None
    x = specs.whole_axis("k", (point["k"] for point in points), "number of clusters")
    y = {"field": "v", "type": "quantitative", "title": "gap"}
    told = specs.tips(k="clusters", v="gap", lo="from", hi="to")
    found = {"mark": {"type": "rule", "strokeDash": [4, 3], "color": "currentColor", "opacity": 0.5}}
    spec = {
        "height": 200,
        "data": {"values": points},
        "layer": [
            {**found, "encoding": {"x": {"datum": note["k"]}}},
            {"mark": "rule", "encoding": {"x": x, "y": {**y, "field": "lo"}, "y2": {"field": "hi"}}},
            {"mark": {"type": "line", "point": True}, "encoding": {"x": x, "y": y, "tooltip": told}},
        ],
    }
    rows = [[str(p["k"]), number(p["v"]), interval((p["lo"], p["hi"])), number(p["alike"])] for p in points]
    columns = ("clusters", "gap", "a standard deviation either way", "alike without a fifth of the participants")
    text = (
        "How much tighter the participants are in so many clusters than data without clusters would be (the gap "
        f"statistic). The dashed line is the number that the run went on with: {in_words(note)}."
    )
    return Plot("The gap by number of clusters", text, spec, Table.of(columns, rows))
