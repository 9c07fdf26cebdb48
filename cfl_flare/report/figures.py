# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of a run: its metric over rounds, and the clusters of a method that clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cfl_flare.clustering.gap import NUMBER
from cfl_flare.report.clusters import analysis, cluster_sizes, number_of_clusters, tuning
from cfl_flare.report.colours import palette
from cfl_flare.report.cross_site import cross_site
from cfl_flare.report.files import save
from cfl_flare.report.flows import flows
from cfl_flare.report.labels import in_figure
from cfl_flare.results.key_metric import ACCURACY, POOLED, POOLED_F1, is_share

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run

# A figure has so many panels at most.
PANELS = 12


def draw(run: Run) -> list[Path]:
    """Draws a run's figures into its folder.

    `compare`'s; for a clustered method ``cluster_sizes.png``, ``analysis.png`` and ``flows.png``; for FedAC
    ``tuning.png``; where a run found its number of clusters ``number_of_clusters.png``; where every model was measured
    on every participant, ``cross_site.png``.

    Returns:
        The files.
    """
    files = [compare([run], run.folder)]
    if clustered(run):
        files.append(cluster_sizes([run], run.folder / "cluster_sizes.png"))
        files.append(flows(run, run.folder / "flows.png"))
    if any("objective" in r for r in run.rounds):
        files.append(analysis(run, run.folder / "analysis.png"))
    if any({"dispersion", "looseness"} & r.keys() for r in run.rounds):
        files.append(tuning(run, run.folder / "tuning.png"))
    if any(NUMBER in r for r in run.rounds):
        files.append(number_of_clusters(run, run.folder / f"{NUMBER}.png"))
    if (table := run.folder / "cross_site.csv").is_file():
        files += filter(None, [cross_site(run, table, run.folder / "cross_site.png")])
    return files


def draw_comparison(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draws runs for comparison: `compare`'s figure, and ``cluster_sizes.png`` if at least two of them cluster.

    Returns:
        The files.
    """
    files = [compare(runs, folder)]
    if len(clustering := [run for run in runs if clustered(run)]) > 1:
        files.append(cluster_sizes(clustering, folder / "cluster_sizes.png"))
    return files


def clustered(run: Run) -> bool:
    """Whether the run has clusters to draw."""
    return bool(run.rounds and run.rounds[-1]["cluster_sizes"])


def compare(runs: Sequence[Run], folder: Path) -> Path:
    """The runs' metric over rounds, mean and worst participant, one colour per run and one panel per metric.

    The file is ``accuracy.png`` if it is accuracy, else ``key_metric.png``.
    """
    colours = dict(enumerate(palette(len(runs))))
    metrics = list(dict.fromkeys(run.metric.name for run in runs))[:PANELS]
    figure = Figure(figsize=(7, 4 * len(metrics)), layout="constrained")
    for axes, name in zip(figure.subplots(len(metrics), squeeze=False).ravel(), metrics):
        _over_rounds(axes, name, [(colours[i], run) for i, run in enumerate(runs) if run.metric.name == name])
    return save(figure, folder / ("accuracy.png" if metrics == [ACCURACY] else "key_metric.png"))


def _over_rounds(axes: Any, name: str, runs: Sequence[tuple[str, Run]]) -> None:
    """One metric; shares have an axis from 0 to 1."""
    mean, worst, seen = f"served_{name}", f"served_worst_{name}", list[float]()
    for colour, run in runs:
        measured = [r for r in run.rounds if mean in r]
        rounds = [r["round"] + 1 for r in measured]
        lowest = [r.get(worst, float("nan")) for r in measured]
        axes.plot(rounds, [r[mean] for r in measured], color=colour, label=in_figure(run.name))
        axes.plot(rounds, lowest, color=colour, linestyle=":", linewidth=1)
        together = {"auroc": POOLED, "macro_f1": POOLED_F1}.get(name, "")
        if any(together in r for r in measured):
            pooled = [r.get(together, float("nan")) for r in measured]
            label = f"{in_figure(run.name)}, all samples"
            axes.plot(rounds, pooled, color=colour, linestyle="--", linewidth=1, label=label)
        seen += [value for r in measured for value in (r[mean], r.get(worst, r[mean]))]
    label = in_figure(name)
    axes.set(xlabel="round", ylabel=f"{label} on own test split")
    if not seen or is_share(name, min(seen), max(seen)):
        axes.set_ylim(0, 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("mean of the participants (dotted: the worst one)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right" if runs[0][1].metric.mode == "max" else "upper right")
