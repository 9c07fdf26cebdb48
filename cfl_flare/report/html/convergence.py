# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The run's measure over rounds: the mean, the worst participant, and each cluster."""

from __future__ import annotations

from cfl_flare.report.html import curves
from cfl_flare.report.html.section import Section
from cfl_flare.report.html.view import View

WORST = "worst participant"


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
