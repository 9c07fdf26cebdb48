# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What was measured in each round: the run's metric, ranking and calibration, bytes and seconds."""

from __future__ import annotations

from itertools import accumulate

from rich import filesize

from cfl_flare.report.html import curves
from cfl_flare.report.html.score_curves import score_curves
from cfl_flare.report.html.section import Plot, Section
from cfl_flare.report.html.view import View
from cfl_flare.results.key_metric import POOLED, POOLED_F1
from cfl_flare.results.schema import number as is_number

WORST = "worst participant"
# Measures of calibration, by the names that tasks give them.
CALIBRATION = {"ece": "Calibration error (ECE)", "brier": "Brier score"}
DOWN, UP = "to the participants", "from the participants"


def convergence(view: View) -> Section | None:
    """Lines over rounds; None if no round was measured."""
    worst = curves.series(view, lambda line: {WORST: line.get(f"served_worst_{view.metric.name}")})
    found = {**curves.measure(view, view.measure), **worst}
    if not found:
        return None
    text = f"Means are weighted by {view.unit}; each participant measures its served model {view.measured_on}."
    notes = [view.rounds_note] if view.rounds_note else []
    if (drawn := len(curves.largest(view))) < sum(size > 0 for size in view.run.rounds[-1]["cluster_sizes"]):
        notes.append(f"Lines are of the {drawn} largest clusters.")
    plot = curves.plot(f"{view.measure_name} by round", text, found, "value", dashed=[WORST])
    return Section("Convergence", plots=[plot], notes=notes)


def discrimination(view: View) -> Section | None:
    """The AUROC over all samples by round and cluster, curves, and calibration; None where nothing was measured."""
    plots = list[Plot]()
    for name, title in ((POOLED, "AUROC"), (POOLED_F1, "macro-F1")):
        if found := curves.measure(view, name):
            what = (
                f"The {title} of all participants' test samples together, and of those of each cluster's participants."
            )
            plots.append(curves.plot(f"{title} over all samples", what, found, title))
    own, missing = score_curves(view)
    plots += own
    for name, title in CALIBRATION.items():
        found = curves.measure(view, f"served_{name}")
        if found and view.metric.name != name:  # what the run is judged by has a section of its own
            what = "The smaller, the better. Always to answer with the classes' shares is calibrated too, and useless."
            plots.append(curves.plot(title, what, found, title, height=200))
    notes = [*missing, *([view.rounds_note] if view.rounds_note else [])]
    return Section("Discrimination and calibration", plots=plots, notes=notes) if plots or notes else None


def traffic(view: View) -> Section | None:
    """Bytes so far and seconds by round; None if no round says them."""
    keys = {DOWN: "bytes_down", UP: "bytes_up", "seconds": "seconds"}
    lines = [line for line in view.run.rounds if all(is_number(line.get(key)) for key in keys.values())]
    if not lines:
        return None
    so_far = {label: [*accumulate(line[keys[label]] for line in lines)] for label in (DOWN, UP)}
    mega = {line["round"]: {label: own[i] / 1e6 for label, own in so_far.items()} for i, line in enumerate(lines)}
    summary = view.run.summary
    text = (
        f"{filesize.decimal(int(summary['bytes_down']))} to the participants and "
        f"{filesize.decimal(int(summary['bytes_up']))} from them, as the models' arrays; "
        f"{summary['seconds']:.1f} seconds in rounds, without the start of processes."
    )
    sent = curves.series(view, lambda line: mega.get(line["round"], {}))
    took = curves.series(view, lambda line: {"seconds": line.get("seconds")})
    plots = [
        curves.plot("Megabytes so far", "The models' arrays, added up over rounds.", sent, "MB", height=180),
        curves.plot(
            "Seconds of each round", "From a round's first task to its last model.", took, "seconds", height=180
        ),
    ]
    notes = [view.rounds_note] if view.rounds_note else []
    return Section("Traffic and time", [text], plots, notes=notes)
