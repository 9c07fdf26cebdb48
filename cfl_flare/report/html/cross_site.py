# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How good every model is on every participant's test split, by the run's metric."""

from __future__ import annotations

import csv
import io
from typing import Any

from cfl_flare.core.files import read_text
from cfl_flare.report.html import specs
from cfl_flare.report.html.moves import PEOPLE
from cfl_flare.report.html.section import Plot, Section, Table
from cfl_flare.report.html.text import finite, measure_name, number, unique
from cfl_flare.report.html.view import View, thinned
from cfl_flare.results.key_metric import leading
from cfl_flare.results.run_dir import CROSS_SITE

MODELS = 20
# Up to this number of cells, the values are written in them.
WRITTEN = 400
# The columns of the file that are not metrics.
KEYS = ("participant", "site", "group", "cluster", "model")


def cross_site(view: View) -> Section | None:
    """A row for each participant, by cluster, and a column for each model; None where nothing was measured."""
    path = view.run.folder / CROSS_SITE
    lines = list(csv.DictReader(io.StringIO(read_text(path), newline=""))) if path.is_file() else []
    metrics = [name for name in (lines[0] if lines else ()) if name not in KEYS]
    if not metrics:
        return None
    metric = leading([view.run.metric], metrics)
    cluster = {line["participant"]: line["cluster"] for line in lines}
    order = sorted(cluster, key=lambda name: (len(cluster[name]), cluster[name]))  # cluster 10 after cluster 9
    people, models = unique(order), unique([*dict.fromkeys(line["model"] for line in lines)])
    values = {(x["participant"], x["model"]): finite(float(x[metric.name])) for x in lines if x[metric.name]}
    who, what = thinned(order, PEOPLE), thinned([*models], MODELS)
    cells: list[dict[str, Any]] = [
        {"i": i, "name": people[name], "m": models[model], "v": value, "served": model == f"cluster-{cluster[name]}"}
        for i, name in enumerate(who)
        for model in what
        if (value := values.get((name, model))) is not None
    ]
    name = measure_name(metric.name)
    labels = {"labelOverlap": True, "labelLimit": 110}
    x = {"field": "m", "type": "nominal", "sort": None, "title": None, "axis": {**labels, "labelAngle": -50}}
    y = {"field": "name", "type": "nominal", "sort": {"field": "i"}, "title": None, "axis": labels}
    seen = [cell["v"] for cell in cells] or [0.0]
    middle = (min(seen) + max(seen)) / 2
    light = f"datum.v {'>' if metric.mode == 'max' else '<'} {middle}"
    scale = {"scheme": "viridis", "reverse": metric.mode == "min"}
    legend = {"gradientLength": 160, "direction": "horizontal"}
    colour = {"field": "v", "type": "quantitative", "title": "value", "scale": scale, "legend": legend}
    written = {
        "mark": {"type": "text", "fontSize": 9},
        "encoding": {
            "text": {"field": "v", "type": "quantitative", "format": ".2f"},
            "color": {"condition": {"test": light, "value": "black"}, "value": "white"},
        },
    }
    spec = {
        "height": max(80, 13 * len(who)),
        "data": {"values": cells},
        "encoding": {"x": x, "y": y, "tooltip": specs.tips(name="participant", m="model", v="value")},
        "layer": [
            {"mark": {"type": "rect", "aria": False}, "encoding": {"color": colour}},
            {
                "transform": [{"filter": "datum.served"}],
                "mark": {"type": "rect", "filled": False, "stroke": "red", "strokeWidth": 1.5, "aria": False},
            },
            *([written] if len(who) * len(what) <= WRITTEN else []),
        ],
    }
    rows = [[people[name], *(number(values.get((name, model))) for model in what)] for name in order]
    table = Table.of(("participant", *(models[model] for model in what)), rows)
    notes = []
    if len(who) < len(order) or len(what) < len(models):
        notes.append(f"{len(who)} of {len(order)} participants and {len(what)} of {len(models)} models are drawn.")
    text = "On each participant's test split; framed is the model of its cluster."
    return Section("Every model everywhere", plots=[Plot(f"{name} of every model", text, spec, table)], notes=notes)
