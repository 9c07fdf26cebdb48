# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What was measured: the metric by round, every model everywhere, ranking, calibration, bytes and seconds."""

from __future__ import annotations

import csv
import io
from itertools import accumulate
from typing import Any

import numpy as np
from rich import filesize

from cfl_flare.core.files import read_text
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.clusters import PEOPLE
from cfl_flare.extensions.report.page import (
    Plot,
    Section,
    Table,
    View,
    cluster_label,
    line_plot,
    thinned,
)
from cfl_flare.results.curves import (
    ALL,
    DIFFERENCE,
    FEW_SAMPLES,
    FEW_SITES,
    NO_SCORES,
    Curve,
    Curves,
    load_curves,
)
from cfl_flare.results.metrics import POOLED, POOLED_F1, leading
from cfl_flare.results.pooled import FEWEST
from cfl_flare.results.remarks import listed
from cfl_flare.results.run_dir import CROSS_SITE, CROSS_SITE_KEYS
from cfl_flare.results.schema import number as is_number
from cfl_flare.results.wording import axis_title, finite, measure_name, number, unique

# Measures of calibration, by the names that tasks give them.
CALIBRATION = {"ece": "Calibration error (ECE)", "brier": "Brier score"}
# Models that are drawn, and the most cells whose values are written in them.
MODELS, WRITTEN = 20, 400
# False positive rates at which the table has sensitivities.
RATES = (0.05, 0.1, 0.2, 0.3, 0.5)


def convergence(view: View) -> Section | None:
    """Lines over rounds; None if no round was measured."""
    far = f"{view.run.metric.far_end} of a participant"
    series = {
        **view.measured(view.measure),
        **view.lines({far: f"served_worst_{view.run.metric.name}"}),
    }
    if not series:
        return None
    text = f"Means are weighted by {view.unit}; each participant measures its served model {view.measured_on}."
    notes = list(view.rounds_note)
    if len(view.largest) < sum(size > 0 for size in view.last_sizes):
        notes.append(f"Lines are of the {len(view.largest)} largest clusters.")
    plot = line_plot(
        f"{view.measure_name} by round",
        text,
        series,
        axis_title(view.measure),
        dashed=[far],
    )
    return Section("Convergence", plots=[plot], notes=notes)


def cross_site(view: View) -> Section | None:
    """A row for each participant, by cluster, and a column for each model; None where nothing was measured."""
    path = view.run.folder / CROSS_SITE
    lines = (
        list(csv.DictReader(io.StringIO(read_text(path), newline="")))
        if path.is_file()
        else []
    )
    metrics = [
        name for name in (lines[0] if lines else ()) if name not in CROSS_SITE_KEYS
    ]
    if not metrics:
        return None
    metric = leading([view.run.metric], metrics)
    cluster = {line["participant"]: line["cluster"] for line in lines}
    order = sorted(
        cluster, key=lambda name: (len(cluster[name]), cluster[name])
    )  # cluster 10 after cluster 9
    people, models = (
        unique(order),
        unique([*dict.fromkeys(line["model"] for line in lines)]),
    )
    values = {
        (x["participant"], x["model"]): finite(float(x[metric.name]))
        for x in lines
        if x[metric.name]
    }
    rows, columns = thinned(order, PEOPLE), thinned([*models], MODELS)
    cells: list[dict[str, Any]] = [
        {
            "i": i,
            "name": people[name],
            "m": models[model],
            "v": value,
            "served": model == f"cluster-{cluster[name]}",
        }
        for i, name in enumerate(rows)
        for model in columns
        if (value := values.get((name, model))) is not None
    ]
    labels = {"labelOverlap": True, "labelLimit": 110}
    scale = {"scheme": "viridis", "reverse": metric.mode == "min"}
    seen = [cell["v"] for cell in cells] or [0.0]
    light = (
        f"datum.v {'>' if metric.mode == 'max' else '<'} {(min(seen) + max(seen)) / 2}"
    )
    coloured = vega.quantity(
        "v", axis_title(metric.name), scale=scale, legend=vega.GRADIENT
    )
    framed = {**vega.CELL, "filled": False, "stroke": "red", "strokeWidth": 1.5}
    written = {
        "mark": {"type": "text", "fontSize": 9},
        "encoding": {
            "text": {"field": "v", "type": "quantitative", "format": ".2f"},
            "color": {"condition": {"test": light, "value": "black"}, "value": "white"},
        },
    }
    spec = {
        "height": max(80, 13 * len(rows)),
        "data": {"values": cells},
        "encoding": {
            "x": {
                "field": "m",
                "type": "nominal",
                "sort": None,
                "title": None,
                "axis": {**labels, "labelAngle": -50},
            },
            "y": vega.names(labels),
            "tooltip": vega.tips(name="participant", m="model", v="value"),
        },
        "layer": [
            {"mark": vega.CELL, "encoding": {"color": coloured}},
            {"transform": [{"filter": "datum.served"}], "mark": framed},
            *([written] if len(rows) * len(columns) <= WRITTEN else []),
        ],
    }
    numbers = [
        [people[name], *(number(values.get((name, model))) for model in columns)]
        for name in order
    ]
    table = Table(("participant", *(models[model] for model in columns)), numbers)
    some = f"{len(rows)} of {len(order)} participants and {len(columns)} of {len(models)} models are drawn."
    notes = [some] if len(rows) < len(order) or len(columns) < len(models) else []
    text = "On each participant's test split; framed is the model of its cluster."
    plot = Plot(f"{measure_name(metric.name)} of every model", text, spec, table)
    return Section("Every model everywhere", plots=[plot], notes=notes)


def discrimination(view: View) -> Section | None:
    """The AUROC over all samples by round and cluster, curves, and calibration; None where nothing was measured."""
    plots, notes = list[Plot](), list[str]()
    for name, title in ((POOLED, "AUROC"), (POOLED_F1, "macro-F1")):
        if series := view.measured(name):
            of_whom = "all participants' test samples together, and of those of each cluster's participants"
            plots.append(
                line_plot(
                    f"{title} over all samples",
                    f"The {title} of {of_whom}.",
                    series,
                    title,
                )
            )
    if (curves := load_curves(view.run.folder)) is not None:
        drawn = {ALL, *map(cluster_label, view.largest)}
        shown = {
            label: curve for label, curve in curves.curves.items() if label in drawn
        }
        plots += [_roc(curves, shown), _calibration(curves, shown)] if shown else []
        notes += _missing(curves)
        if len(shown) < len(curves.curves):
            notes.append(
                f"Curves are drawn of the {len(shown)} largest of {len(curves.curves)}."
            )
    for name, title in CALIBRATION.items():
        series = view.measured(f"served_{name}")
        if (
            series and view.run.metric.name != name
        ):  # another section shows the metric of the run
            text = "The smaller, the better. Always to answer with the classes' shares is calibrated too, and useless."
            plots.append(line_plot(title, text, series, title, height=200))
    notes += view.rounds_note
    return (
        Section("Discrimination and calibration", plots=plots, notes=notes)
        if plots or notes
        else None
    )


def _missing(curves: Curves) -> list[str]:
    """Why there are no curves of some."""
    reasons = {
        NO_SCORES: "no histogram of scores came from there: it was withheld, or there are too few test samples",
        FEW_SITES: f"fewer than {curves.sites} sites sent histograms of scores",
        FEW_SAMPLES: f"no class has {curves.samples} samples of {curves.sites} sites with it, and as many without it",
        DIFFERENCE: "without the clusters' curves, it would be one of few sites or samples",
    }
    labels = {
        code: [label for label, reason in curves.left_out.items() if reason == code]
        for code in reasons
    }
    return [
        f"No ROC or calibration curve of {listed(of)}: {reasons[code]}."
        for code, of in labels.items()
        if of
    ]


def _square(
    x: str, y: str, points: bool, rows: list[dict[str, Any]], labels: list[str]
) -> vega.Spec:
    """Lines from 0 to 1 both ways, with the diagonal."""
    shape: vega.Spec = {
        "scale": {"domain": [0, 1]},
        "axis": {"values": [0, 0.2, 0.4, 0.6, 0.8, 1]},
    }
    axes = {"x": vega.quantity("x", x, **shape), "y": vega.quantity("y", y, **shape)}
    diagonal = {
        "data": {"values": [{"x": 0, "y": 0}, {"x": 1, "y": 1}]},
        "mark": {**vega.DASHED, "type": "line", "aria": False},
        "encoding": axes,
    }
    lines = {
        "data": {"values": rows},
        "params": vega.CHOSEN,
        "mark": {
            "type": "line",
            "point": {"size": 40} if points else False,
            "strokeWidth": 1.8,
        },
        "encoding": {
            **axes,
            "order": {"field": "i"},
            "color": vega.colour(labels),
            "opacity": vega.UNCHOSEN_FADES,
            **(
                {"tooltip": vega.tips(c="line", x=x, y=y, n="samples")}
                if points
                else {}
            ),
        },
    }
    return {"height": 360, "layer": [diagonal, lines]}


def _roc(curves: Curves, shown: dict[str, Curve]) -> Plot:
    """Sensitivity by false positive rate."""
    points = [
        {"i": i, "x": x, "y": y, "c": label}
        for label, curve in shown.items()
        for i, (x, y) in enumerate(curve.roc)
    ]
    whose = (
        "each class against the rest, the mean over the classes"
        if curves.of_classes > 1
        else "the positive class"
    )
    least = "Scores come as histograms, so scores in one bin are ties."
    if (curves.sites, curves.samples) != (1, 1):
        least = (
            f"A curve is of at least {curves.sites} sites, none of which counts for more than its share, and a point "
            f"of at least {curves.samples} samples."
        )
    text = (
        f"ROC curves of {whose}, of the served models after the last round on all test samples together. "
        f"The dashed line is chance. {least} The table has sensitivities at false positive rates."
    )
    rows = [
        [label, str(curve.participants), str(curve.samples), number(curve.auroc)]
        + [number(_sensitivity(curve, rate)) for rate in RATES]
        for label, curve in shown.items()
    ]
    columns = (
        "line",
        "participants",
        "test samples",
        "AUROC",
        *(f"sensitivity at {rate:g}" for rate in RATES),
    )
    spec = _square("false positive rate", "true positive rate", False, points, [*shown])
    return Plot("ROC curves", text, spec, Table(columns, rows))


def _sensitivity(curve: Curve, rate: float) -> float:
    """The highest true positive rate at a false positive rate."""
    x, y = np.array(curve.roc).T
    exact = np.nonzero(x == rate)[0]
    return float(y[exact[-1]] if len(exact) else np.interp(rate, x, y))


def _calibration(curves: Curves, shown: dict[str, Curve]) -> Plot:
    """Observed frequencies by predicted probabilities."""
    points = [
        {"i": i, "x": predicted, "y": observed, "c": label, "n": samples}
        for label, curve in shown.items()
        for i, (predicted, observed, samples) in enumerate(curve.calibration)
    ]
    whose = "the positive class"
    if curves.of_classes > 1:
        whose = "all classes, each against the rest, so that a sample counts once for each of them"
    text = (
        "Of groups of samples with similar scores, the mean predicted probability and the observed frequency, of "
        f"{whose}. On the dashed line they are equal; below it, predictions are too high. Groups are of {FEWEST} "
        "samples or more, if there are that many; where they are few, some of the distance is chance."
    )
    rows = [
        [str(point["c"]), number(point["x"]), number(point["y"]), str(point["n"])]
        for point in points
    ]
    spec = _square(
        "predicted probability", "observed frequency", True, points, [*shown]
    )
    columns = ("line", "predicted probability", "observed frequency", "samples")
    return Plot("Calibration", text, spec, Table(columns, rows))


def traffic(view: View) -> Section | None:
    """Bytes so far and seconds by round; None if no round says them."""
    keys = ("bytes_down", "bytes_up", "seconds")
    records = [
        record
        for record in view.run.rounds
        if all(is_number(record.get(key)) for key in keys)
    ]
    if not records:
        return None
    down, up = (
        accumulate([record[key] for record in records])
        for key in ("bytes_down", "bytes_up")
    )
    ways = ("to the participants", "from the participants")
    sent = {
        record["round"]: dict(zip(ways, (d / 1e6, u / 1e6)))
        for record, d, u in zip(records, down, up)
    }
    summary = view.run.summary
    text = (
        f"{filesize.decimal(int(summary['bytes_down']))} to the participants and "
        f"{filesize.decimal(int(summary['bytes_up']))} from them, as the models' arrays; "
        f"{summary['seconds']:.1f} seconds in rounds, without the start of processes."
    )
    megabytes = view.series(lambda record: sent.get(record["round"], {}))
    seconds = view.lines({"seconds": "seconds"})
    first_to_last = "From a round's first task to its last model."
    plots = [
        line_plot(
            "Megabytes so far",
            "The models' arrays, added up over rounds.",
            megabytes,
            "MB",
            height=180,
        ),
        line_plot(
            "Seconds of each round", first_to_last, seconds, "seconds", height=180
        ),
    ]
    return Section("Traffic and time", [text], plots, notes=view.rounds_note)
