# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A dossier's figures by class: hospitals' test samples, and how often each class is recognised, with intervals."""

from __future__ import annotations

from typing import Any

from cfl_flare.report.dossier_view import Dossier
from cfl_flare.report.page import Section, Table
from cfl_flare.report.text import cut, interval, number
from cfl_flare.results.curves import ALL, load_curves
from cfl_flare.results.schema import count as is_count

# Of a class with fewer test samples, a figure says little.
FEW = 10


def by_class(of: Dossier) -> Section:
    """Sensitivity and specificity of each class over the model's hospitals, and test samples by hospital and class."""
    title, tables, text = "Figures by class", [], []
    curves = load_curves(of.run.folder)
    curve = None if curves is None else curves.curves.get(ALL if of.slot == "global" else of.slot)
    if curve is not None and curve.by_class:
        text.append(
            "Sensitivity and specificity are of decisions on all test samples of the model's hospitals together, of "
            "classes with enough of them. Intervals (95 %, Wilson) take samples as independent."
        )
        rows = [
            [_name(of, rates.label), number(a), interval((low, high)), number(b), interval((least, most))]
            for rates in curve.by_class
            for (a, low, high), (b, least, most) in [(rates.sensitivity, rates.specificity)]
        ]
        headings = ("class", "sensitivity", "95 % interval", "specificity", "95 % interval")
        tables.append(("Decisions by class", Table(headings, rows)))
    else:
        text.append(
            "Decisions by class are not known: the run had no score_bins, or too few samples or sites. Where there are "
            "clusters, they are of each cluster."
        )
    counts = of.run.summary.get("test_classes")
    known = counts if isinstance(counts, dict) else {}
    people = [p["name"] for p in of.members if isinstance(known.get(p["name"]), list)]
    if not people:
        text.append("Test samples by class are not known: the run drew no intervals (bootstrap), or sites withheld it.")
        return Section(title, text, tables=tables)
    width = max(len(known[name]) for name in people)
    classes = [_name(of, i) for i in range(width)]
    rows = [[of.view.shown[name], *map(_few, known[name])] for name in people]
    text.append(f"Of a class with one to nine test samples, a hospital says that it has fewer than {FEW}.")
    return Section(title, text, tables=[*tables, ("Test samples", Table(("hospital", *classes), rows))])


def _name(of: Dossier, label: int) -> str:
    names = of.columns.classes if of.columns is not None else ()
    return cut(names[label]) if label < len(names) else f"class {label}"


def _few(count: Any) -> str:
    return str(count) if is_count(count) else f"fewer than {FEW}"
