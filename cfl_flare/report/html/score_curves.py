# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""ROC and reliability curves by cluster, of the last measurement, where the run kept some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cfl_flare.report.html import specs
from cfl_flare.report.html.curves import largest
from cfl_flare.report.html.section import Plot, Table
from cfl_flare.report.html.text import number
from cfl_flare.report.html.view import View, cluster_label
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
from cfl_flare.results.roc import FEWEST

# False positive rates at which the table has sensitivities.
RATES = (0.05, 0.1, 0.2, 0.3, 0.5)


def score_curves(view: View) -> tuple[list[Plot], list[str]]:
    """The plots, and what is said of curves that are missing."""
    kept = load_curves(view.run.folder)
    if kept is None:
        return [], []
    drawn = {ALL, *map(cluster_label, largest(view))}
    shown = {label: own for label, own in kept.curves.items() if label in drawn}
    notes = _missing(kept)
    if len(shown) < len(kept.curves):
        notes.append(f"Curves are drawn of the {len(shown)} largest of {len(kept.curves)}.")
    return ([_roc(kept, shown), _calibration(kept, shown)] if shown else []), notes


def _missing(kept: Curves) -> list[str]:
    """Why there are no curves of some."""
    reasons = {
        NO_SCORES: "no histogram of scores came from there: it was withheld, or there are too few test samples",
        FEW_SITES: f"fewer than {kept.sites} sites sent histograms of scores",
        FEW_SAMPLES: f"no class has {kept.samples} samples of {kept.sites} sites with it, and as many without it",
        DIFFERENCE: "less the clusters' curves, it would be one of few sites or samples",
    }
    found = []
    for code, why in reasons.items():
        if labels := [label for label, own in kept.left_out.items() if own == code]:
            found.append(f"No ROC or calibration curve of {_listed(labels)}: {why}.")
    return found


def _listed(labels: Sequence[str], most: int = 10) -> str:
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" if len(labels) > most else "")


def _facts(label: str, own: Curve) -> list[str]:
    return [label, str(own.participants), str(own.samples)]


def _square(title: str, x: str, y: str, rows: list[dict[str, Any]], labels: Sequence[str], points: bool) -> Any:
    """Lines from 0 to 1 both ways, beside the diagonal."""
    axes = {
        name: {"field": name, "type": "quantitative", "title": text, "scale": {"domain": [0, 1]}}
        | {"axis": {"values": [0, 0.2, 0.4, 0.6, 0.8, 1]}}
        for name, text in (("x", x), ("y", y))
    }
    diagonal = {
        "data": {"values": [{"x": 0, "y": 0}, {"x": 1, "y": 1}]},
        "mark": {"type": "line", "strokeDash": [4, 3], "color": "currentColor", "opacity": 0.5, "aria": False},
        "encoding": axes,
    }
    lines = {
        "data": {"values": rows},
        "params": [{"name": "chosen", "select": {"type": "point", "fields": ["c"]}, "bind": "legend"}],
        "mark": {"type": "line", "point": {"size": 40} if points else False, "strokeWidth": 1.8},
        "encoding": {
            **axes,
            "order": {"field": "i"},
            "color": specs.colour(labels),
            "opacity": {"condition": {"param": "chosen", "value": 1}, "value": 0.12},
            **({"tooltip": specs.tips(c="line", x=x, y=y, n="samples")} if points else {}),
        },
    }
    return {"height": 360, "description": title, "layer": [diagonal, lines]}


def _roc(kept: Curves, shown: dict[str, Curve]) -> Plot:
    """Sensitivity by false positive rate."""
    rows = [
        {"i": i, "x": x, "y": y, "c": label}
        for label, own in shown.items()
        for i, (x, y) in enumerate(own.roc)
    ]  # fmt: skip
    whose = "each class against the rest, the mean over the classes" if kept.of_classes > 1 else "the positive class"
    text = f"ROC curves of {whose}, of the served models after the last round on all test samples together. "
    text += "The dashed line is chance. " + _of(kept)
    table = [
        [*_facts(label, own), number(own.auroc), *(number(_sensitivity(own, rate)) for rate in RATES)]
        for label, own in shown.items()
    ]
    columns = ("line", "participants", "test samples", "AUROC", *(f"sensitivity at {rate:g}" for rate in RATES))
    title = "ROC curves"
    spec = _square(title, "false positive rate", "true positive rate", rows, [*shown], points=False)
    return Plot(title, text + " The table has sensitivities at false positive rates.", spec, Table.of(columns, table))


def _sensitivity(own: Curve, rate: float) -> float:
    """The highest true positive rate at a false positive rate."""
    x, y = np.array(own.roc).T
    at = np.nonzero(x == rate)[0]
    return float(y[at[-1]] if len(at) else np.interp(rate, x, y))


def _calibration(kept: Curves, shown: dict[str, Curve]) -> Plot:
    """Observed frequencies by predicted probabilities."""
    rows = [
        {"i": i, "x": predicted, "y": so, "c": label, "n": samples}
        for label, own in shown.items()
        for i, (predicted, so, samples) in enumerate(own.calibration)
    ]
    if kept.of_classes > 1:
        whose = "all classes, each against the rest, so that a sample counts once for each of them"
    else:
        whose = "the positive class"
    text = (
        "Of groups of samples with similar scores, the mean predicted probability and the observed frequency, of "
        f"{whose}. On the dashed line they are equal; below it, predictions are too high. Groups are of {FEWEST} "
        "samples or more, if there are so many; where they are few, some of the distance is chance."
    )
    table = [
        [label, number(predicted), number(so), str(samples)]
        for label, own in shown.items()
        for predicted, so, samples in own.calibration
    ]
    columns = ("line", "predicted probability", "observed frequency", "samples")
    title = "Calibration"
    spec = _square(title, "predicted probability", "observed frequency", rows, [*shown], points=True)
    return Plot(title, text, spec, Table.of(columns, table))


def _of(kept: Curves) -> str:
    """Of how many a curve is, if not of any number."""
    if (kept.sites, kept.samples) == (1, 1):
        return "Scores come as histograms, so scores in one bin are ties."
    return (
        f"A curve is of at least {kept.sites} sites, none of which counts for more than its share, and a point of at "
        f"least {kept.samples} samples."
    )
