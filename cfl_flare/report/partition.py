# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A figure and a table of a partition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.table import Table

from cfl_flare.report.colours import palette
from cfl_flare.report.files import save
from cfl_flare.report.labels import in_figure, in_table

if TYPE_CHECKING:
    from cfl_flare.data import PartitionReport

# Area of the largest bubble, in points squared, for participants 0.12 inches apart.
LARGEST = 180.0
INCHES = 0.12


def draw_partition(report: PartitionReport, path: Path) -> Path:
    """Draws training samples by participant and class as bubbles whose area is their number (thesis Fig. A.1-A.4).

    Colours are the true groups; groups that are consecutive blocks are separated by lines. The path's ending determines
    the format.
    """
    participants, classes = report.train.shape
    figure = Figure(figsize=(min(30, max(7, 2 + INCHES * participants)), min(20, 2 + 0.3 * classes)))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    who, what = np.nonzero(report.train)
    counts = report.train[who, what]
    groups = sorted({group for group in report.truth if group is not None})
    tints = dict(zip(groups, palette(len(groups))))
    colours = [palette(1)[0] if (group := report.truth[i]) is None else tints[group] for i in who]
    axes.scatter(who, what, s=LARGEST * counts / counts.max(), c=colours, alpha=0.75, linewidths=0)
    changes = [i for i in range(1, participants) if report.truth[i] != report.truth[i - 1]]
    if len(changes) < len(groups):  # the groups are blocks
        for i in changes:
            axes.axvline(i - 0.5, color="0.6", linewidth=0.8)
    if 1 < len(groups) <= 12:
        for group in groups:
            axes.scatter([], [], s=40, color=tints[group], label=f"group {group}")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.set(xlabel="participant", ylabel="class", xlim=(-1, participants), ylim=(-0.7, classes - 0.3))
    axes.set_title(
        f"{in_figure(report.rule)}: {int(report.train.sum())} training samples (largest bubble {int(counts.max())})",
        fontsize=10,
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.2)
    return save(figure, path)


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
