# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How well models rank and how well they are calibrated, where the run measured it."""

from __future__ import annotations

from cfl_flare.report.html import curves
from cfl_flare.report.html.score_curves import score_curves
from cfl_flare.report.html.section import Plot, Section
from cfl_flare.report.html.view import View
from cfl_flare.results.key_metric import POOLED, POOLED_F1

# Measures of calibration, by the names that tasks give them.
CALIBRATION = {"ece": "Calibration error (ECE)", "brier": "Brier score"}


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
