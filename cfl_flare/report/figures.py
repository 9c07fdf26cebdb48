# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of a run: accuracy over rounds, and the clusters of a method that clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cfl_flare.report.clusters import analysis, cluster_sizes, tuning
from cfl_flare.report.colours import palette
from cfl_flare.report.cross_site import cross_site
from cfl_flare.report.flows import flows
from cfl_flare.report.labels import in_figure

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run


def draw(run: Run) -> list[Path]:
    """Draws a run's figures into its folder.

    ``accuracy.png``; for a clustered method ``cluster_sizes.png``, ``analysis.png`` and ``flows.png``; for FedAC
    ``tuning.png``; where every model was measured on every participant, ``cross_site.png``.

    Returns:
        The files.
    """
    files = [compare([run], run.folder / "accuracy.png")]
    if clustered(run):
        files.append(cluster_sizes([run], run.folder / "cluster_sizes.png"))
        files.append(flows(run, run.folder / "flows.png"))
    if any("objective" in r for r in run.rounds):
        files.append(analysis(run, run.folder / "analysis.png"))
    if any({"dispersion", "looseness"} & r.keys() for r in run.rounds):
        files.append(tuning(run, run.folder / "tuning.png"))
    if (table := run.folder / "cross_site.csv").is_file():
        files += filter(None, [cross_site(run, table, run.folder / "cross_site.png")])
    return files


def draw_comparison(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draws runs for comparison: ``accuracy.png``, and ``cluster_sizes.png`` if at least two of them cluster.

    Returns:
        The files.
    """
    files = [compare(runs, folder / "accuracy.png")]
    if len(clustering := [run for run in runs if clustered(run)]) > 1:
        files.append(cluster_sizes(clustering, folder / "cluster_sizes.png"))
    return files


def clustered(run: Run) -> bool:
    """Whether the run has clusters to draw."""
    return bool(run.rounds and run.rounds[-1]["cluster_sizes"])


def compare(runs: Sequence[Run], path: Path) -> Path:
    """Served accuracy over rounds, mean and worst participant, one colour per run."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for colour, run in zip(palette(len(runs)), runs):
        measured = [r for r in run.rounds if "served_accuracy" in r]
        rounds = [r["round"] + 1 for r in measured]
        axes.plot(rounds, [r["served_accuracy"] for r in measured], color=colour, label=in_figure(run.name))
        axes.plot(rounds, [r["served_worst_accuracy"] for r in measured], color=colour, linestyle=":", linewidth=1)
    axes.set(xlabel="round", ylabel="accuracy on own test split", ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("mean of the participants (dotted: the worst one)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    return path
