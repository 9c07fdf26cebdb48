# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A figure and a table of a partition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table

from cfl_flare.report.figures import save
from cfl_flare.report.html import specs
from cfl_flare.report.html.section import Plot
from cfl_flare.report.html.section import Table as Numbers
from cfl_flare.report.html.text import cut
from cfl_flare.report.table import in_table

if TYPE_CHECKING:
    from cfl_flare.data import PartitionReport


def draw_partition(report: PartitionReport, path: Path) -> Path:
    """Draws training samples by participant and class as bubbles whose area is their number (thesis Fig. A.1-A.4).

    Colours are the true groups; groups that are consecutive blocks are separated by lines. The path's ending determines
    the format.
    """
    participants, classes = report.train.shape
    groups = [*map(str, sorted({group for group in report.truth if group is not None}))]
    rows = [
        {"i": int(i), "y": int(y), "n": int(report.train[i, y]), "c": str(report.truth[i])}
        for i, y in zip(*np.nonzero(report.train))
    ]
    starts = [i - 0.5 for i in range(1, participants) if report.truth[i] != report.truth[i - 1]]
    apart = starts if len(starts) < len(groups) else []  # the groups are blocks
    axes = {
        name: {**specs.whole_axis(field, range(count), title), "scale": {"domain": [-0.7, count - 0.3], "nice": False}}
        for name, field, title, count in (("x", "i", "participant", participants), ("y", "y", "class", classes))
    }
    legend = {"title": "group"} if 1 < len(groups) <= 12 else None
    scale = {"domain": groups or ["None"], "range": specs.COLOURS}
    area = {"domain": [0, int(report.train.max())], "range": [0, 150]}
    size = {"field": "n", "type": "quantitative", "title": "samples", "scale": area}
    bubbles = {
        "mark": {"type": "point", "filled": True, "opacity": 0.8},
        "encoding": {
            **axes,
            "size": size,
            "color": {"field": "c", "type": "nominal", "scale": scale, "legend": legend},
        },
    }
    rules = {"data": {"values": [{"x": x} for x in apart]}, "mark": {"type": "rule", "opacity": 0.4}}
    rules["encoding"] = {"x": {**axes["x"], "field": "x"}}
    width, height = (max(least, min(1600, 12 * count)) for least, count in ((620, participants), (200, 2 * classes)))
    spec = {"width": width, "height": height, "data": {"values": rows}, "layer": [rules, bubbles]}
    total, most = int(report.train.sum()), int(report.train.max())
    plot = Plot(f"{total} training samples", f"The largest bubble is {most}.", spec, Numbers((), ()))
    return save(cut(report.rule), {path: [plot]})[0]


def partition_table(report: PartitionReport) -> Table:
    """One line per participant: its true group, its samples, and its classes with their training samples.

    The last lines are the totals and the samples of the source that stayed unused.
    """
    title = f"partition {report.rule}" + ("" if report.disjoint else ": samples were dealt twice")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("participant", no_wrap=True)
    for name in ("group", "train", "test", "classes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("training samples of the largest classes", no_wrap=True)
    for name, group, train, test in zip(report.names, report.truth, report.train, report.test):
        largest = [c for c in np.argsort(-train, kind="stable")[:5] if train[c]]
        table.add_row(
            in_table(name),
            "-" if group is None else str(group),
            str(train.sum()),
            str(test.sum()),
            str(np.count_nonzero(train)),
            "  ".join(f"{c}: {train[c]}" for c in largest) + ("  ..." if np.count_nonzero(train) > 5 else ""),
        )
    table.add_section()
    table.add_row("all", "", str(report.train.sum()), str(report.test.sum()), "", "")
    table.add_row("unused", "", str(report.train_unused), str(report.test_unused), "", "")
    return table
