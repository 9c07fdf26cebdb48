# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Values over rounds as a plot and a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cfl_flare.report.html import specs
from cfl_flare.report.html.section import Plot, Table
from cfl_flare.report.html.text import finite, number
from cfl_flare.report.html.view import CLUSTERS, View, cluster_label

# The line of all participants.
ALL = "all"
# By line: its values by round.
Series = dict[str, dict[int, float]]


def series(view: View, values: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Series:
    """The values of the rounds that are drawn; a line without any is left out.

    Args:
        view: the run.
        values: of a round's record, by line.
    """
    found: Series = {}
    for line in view.rounds:
        for label, value in values(line).items():
            own = found.setdefault(label, {})
            if (value := finite(value)) is not None:
                own[line["round"] + 1] = value
    return {label: own for label, own in found.items() if own}


def measure(view: View, name: str) -> Series:
    """A measure of a round's record: of all participants, and of the largest clusters."""
    return series(view, lambda line: {ALL: line.get(name), **of_clusters(view, line, name)})


def of_clusters(view: View, line: dict[str, Any], name: str) -> dict[str, Any]:
    """A measure of the largest clusters in a round's record, by their labels."""
    clusters = line.get("clusters")
    own = clusters if isinstance(clusters, dict) else {}
    labels = [cluster_label(k) for k in largest(view)]
    return {label: own[label].get(name) for label in labels if isinstance(own.get(label), dict)}


def largest(view: View) -> list[int]:
    """The largest clusters of the last round, in the order of their numbers."""
    sizes = view.run.rounds[-1]["cluster_sizes"] if view.run.rounds else []
    used = [k for k, size in enumerate(sizes) if size]
    return sorted(sorted(used, key=lambda k: -sizes[k])[:CLUSTERS])


def plot(title: str, text: str, found: Series, axis: str, **more: Any) -> Plot:
    """A line for each, and a table with a column for each.

    Args:
        title: the plot's.
        text: how to read it.
        found: the values.
        axis: the title of the axis of values: a fixed text.
        **more: for `specs.lines`.
    """
    points = [{"r": r, "v": v, "c": label} for label, own in found.items() for r, v in own.items()]
    rounds = sorted({r for own in found.values() for r in own})
    rows = [[str(r), *(number(own.get(r)) for own in found.values())] for r in rounds]
    return Plot(title, text, specs.lines(points, list(found), axis, **more), Table.of(("round", *found), rows))
