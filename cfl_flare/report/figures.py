# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of a run: accuracy and cluster sizes over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from cfl_flare.results import Run

# Okabe and Ito's colours, distinguishable by colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def draw(run: Run) -> list[Path]:
    """Draws ``accuracy.png`` and, for a clustered method, ``cluster_sizes.png`` into the run's folder.

    Returns:
        The files.
    """
    files = [compare([run], run.folder / "accuracy.png")]
    if run.rounds and run.rounds[-1]["cluster_sizes"]:
        files.append(cluster_sizes(run, run.folder / "cluster_sizes.png"))
    return files


def compare(runs: Sequence[Run], path: Path) -> Path:
    """Served accuracy over rounds, mean and worst participant, a colour a run."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for i, run in enumerate(runs):
        colour = COLOURS[i % len(COLOURS)]
        measured = [r for r in run.rounds if "served_accuracy" in r]
        rounds = [r["round"] + 1 for r in measured]
        axes.plot(rounds, [r["served_accuracy"] for r in measured], color=colour, label=run.name)
        axes.plot(rounds, [r["served_worst_accuracy"] for r in measured], color=colour, linestyle=":", linewidth=1)
    axes.set(xlabel="round", ylabel="accuracy on own test split", ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("mean of the participants (dotted: the worst one)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    return path


def cluster_sizes(run: Run, path: Path) -> Path:
    """Participants in each cluster over rounds, stacked (thesis Fig. 7.3)."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    rounds = [r["round"] + 1 for r in run.rounds]
    sizes = list(zip(*[r["cluster_sizes"] for r in run.rounds]))
    bottom = [0] * len(rounds)
    for k, heights in enumerate(sizes):
        colour = COLOURS[k % len(COLOURS)]
        axes.bar(rounds, heights, bottom=bottom, width=1.0, color=colour, edgecolor="white", label=f"cluster-{k}")
        bottom = [b + h for b, h in zip(bottom, heights)]
    axes.set(xlabel="round", ylabel="participants", title=run.name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(sizes) <= 10:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)
    return path
