# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study's choice brings each hospital: plots of gains with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.page import Plot, Section, Table, thinned
from cfl_flare.results.comparison import CHANCE, GAINS, LOSES, UNKNOWN
from cfl_flare.results.remarks import listed
from cfl_flare.results.study_tables import AGAINST
from cfl_flare.results.wording import (
    cut,
    finite,
    interval,
    number,
    signed,
    told_apart,
)

# Hospitals in a plot and in a note.
ROWS, NAMED = 80, 20
# What is said of a hospital, by colour and by shape: who does not see one of them sees the other.
OTHER = "other"
KINDS = {
    GAINS: ("#009E73", "triangle-up"),
    LOSES: ("#D55E00", "triangle-down"),
    CHANCE: ("#0072B2", "circle"),
    UNKNOWN: ("#7F7F7F", "diamond"),
    OTHER: ("#CC79A7", "square"),
}


def show_gains(verdict: Mapping[str, Any], measure: str) -> Section | None:
    """Plot each hospital's gain over one model and over training alone.

    Args:
        verdict: a study's verdict as its file holds it.
        measure: the name of the measure on the page.

    Returns:
        The section, or None if no hospital was measured.
    """
    people = verdict["hospitals"]
    if not people:
        return None
    shown = told_apart(person["name"] for person in people)
    plots, notes = list[Plot](), list[str]()
    for key, words in AGAINST.items():
        gains = [
            (name, person, person[key])
            for name, person in zip(shown, people)
            if person[key] is not None
        ]
        unknown = [name for name, _, gain in gains if finite(gain["gain"]) is None]
        if gains:
            plots.append(_forest(f"Gain {words}", gains, measure))
        else:
            notes.append(f"There is no gain {words}: that is what was chosen.")
        if unknown:
            notes.append(
                f"No difference {words} could be measured at {listed(unknown, NAMED)}."
            )
        if len(gains) - len(unknown) > ROWS:
            notes.append(
                f"{ROWS} of {len(gains) - len(unknown)} hospitals are drawn, evenly spaced."
            )
    text = (
        f"What {cut(verdict['chosen']['title'], 200)} brings each hospital on its own test samples. Intervals are "
        "of its patients alone, and hold together for all hospitals with 95 %: they decide what is said of each."
    )
    return Section("What each hospital gains", [text], plots, notes=notes)


def _forest(
    title: str,
    gains: Sequence[tuple[str, dict[str, Any], dict[str, Any]]],
    measure: str,
) -> Plot:
    """A row for each hospital; those without a number only in the table."""
    known = [row for row in gains if finite(row[2]["gain"]) is not None]
    unknown = [row for row in gains if finite(row[2]["gain"]) is None]
    points = [
        {
            "i": i,
            "name": name,
            "v": finite(gain["gain"]),
            "lo": finite(gain["low"]),
            "hi": finite(gain["high"]),
        }
        | {"c": gain["says"] if gain["says"] in KINDS else OTHER, "n": person["tested"]}
        for i, (name, person, gain) in enumerate(thinned(known, ROWS))
    ]
    rows = []
    for name, person, gain in (*known, *unknown):
        difference = (
            signed(gain["gain"]),
            interval((gain["low"], gain["high"])),
            cut(gain["says"]),
        )
        rows.append(
            [
                name,
                number(person["tested"]),
                number(person["value"]),
                *difference,
                number(gain["needed"]),
            ]
        )
    columns = (
        "hospital",
        "test samples",
        measure,
        "gain",
        "95 % interval",
        "what can be said",
    )
    text = (
        "A mark is a hospital's gain with its interval, the largest first; right of the dashed line it is better off. "
        "Colour and shape are what can be said: cannot tell means too few test samples."
    )
    return Plot(
        title,
        text,
        _forest_spec(points),
        Table((*columns, "samples needed to tell"), rows),
    )


def _forest_spec(points: list[dict[str, Any]]) -> vega.Spec:
    kinds = [kind for kind in KINDS if any(point["c"] == kind for point in points)]
    colours, shapes = (
        {"domain": kinds, "range": [KINDS[kind][part] for kind in kinds]}
        for part in (0, 1)
    )
    by_kind: vega.Spec = {"field": "c", "type": "nominal", "legend": {"title": None}}
    gain = vega.quantity("v", "gain")
    shared: vega.Spec = {
        "y": vega.names({"labelLimit": 110}),
        "color": {**by_kind, "scale": colours},
        "tooltip": vega.tips(
            name="hospital", c="it", v="gain", lo="from", hi="to", n="test samples"
        ),
    }
    marks = {
        "mark": {"type": "point", "filled": True, "opacity": 1, "size": 70},
        "encoding": {**shared, "x": gain, "shape": {**by_kind, "scale": shapes}},
    }
    at_zero = {
        "data": {"values": [{}]},
        "mark": vega.DASHED,
        "encoding": {"x": {"datum": 0}},
    }
    return {
        "height": max(60, 18 * len(points)),
        "data": {"values": points},
        "layer": [at_zero, vega.intervals("x", gain, shared), marks],
    }
