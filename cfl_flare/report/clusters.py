# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of the clusters over rounds: their sizes, and the quality of the clustering."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cfl_flare.clustering.gap import NUMBER, in_words
from cfl_flare.report.colours import COLOURS, palette
from cfl_flare.report.files import save
from cfl_flare.report.labels import in_figure

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run

# With more clusters, a line or a legend entry for each would hide the others.
MOST = 10


def cluster_sizes(runs: Sequence[Run], path: Path) -> Path:
    """Participants in each cluster over rounds, stacked, one panel per run (thesis Fig. 7.3-7.4)."""
    columns = min(3, len(runs))
    rows = -(-len(runs) // columns)
    figure = Figure(figsize=(max(7, 4.5 * columns), 4 * rows if rows == 1 else 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    clusters = max(len(run.rounds[-1]["cluster_sizes"]) for run in runs)
    for axes, run in zip(panels, runs):
        _stack(axes, run, palette(clusters))
    for axes in panels[len(runs) :]:
        axes.remove()
    if clusters <= 2 * MOST:
        largest = next(axes for axes, run in zip(panels, runs) if len(run.rounds[-1]["cluster_sizes"]) == clusters)
        figure.legend(*largest.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    return save(figure, path)


def _stack(axes: Any, run: Run, colours: Sequence[str]) -> None:
    rounds = [r["round"] + 1 for r in run.rounds]
    bottom = [0] * len(rounds)
    lines = 0.5 if len(rounds) <= 60 else 0.0  # lines would hide very thin bars
    for k, heights in enumerate(zip_longest(*[r["cluster_sizes"] for r in run.rounds], fillvalue=0)):
        style = {"color": colours[k], "edgecolor": "white", "linewidth": lines, "label": f"cluster-{k}"}
        axes.bar(rounds, heights, bottom=bottom, width=1.0, **style)
        bottom = [b + h for b, h in zip(bottom, heights)]
    final = sorted(run.rounds[-1]["cluster_sizes"], reverse=True)
    shown = ", ".join(map(str, final[:MOST])) + (", ..." if len(final) > MOST else "")
    axes.set_title(f"{in_figure(run.name)}\nfinally {shown}", fontsize=10)
    axes.set(xlabel="round", ylabel="participants")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def analysis(run: Run, path: Path) -> Path:
    """The clustering's quality over rounds, four panels.

    They show the objective C (thesis Eq. 3.3b), each cluster's clusterability B (Def. 3.4.7), the mean cosine
    similarity inside the clusters and between their centres (Fig. 3.4), and the evenness and stability of the clusters.
    """
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    ((objective, clusterability), (cosines, spread)) = figure.subplots(2, 2, sharex=True)
    _lines(objective, run, {"objective": "C"})
    if all(r["objective"] > 0 for r in run.rounds if r.get("objective") is not None):
        objective.set_yscale("log")
    objective.set_title("objective C: squared distance to the cluster's centre", fontsize=10)
    _clusterability(clusterability, run)
    clusterability.set_title("clusterability B of each cluster (0: equal updates)", fontsize=10)
    _lines(cosines, run, {"intra_cosine": "two participants of one cluster", "inter_cosine": "two centres"})
    cosines.set_title("mean cosine similarity", fontsize=10)
    names = {"size_entropy": "evenness of the sizes (entropy)", "largest_share": "in the largest cluster"}
    _lines(spread, run, names | {"moved_share": "moved to another cluster"})
    spread.set_ylim(-0.05, 1.05)
    spread.set_title("shares of the participants", fontsize=10)
    for axes in (cosines, spread):
        axes.legend(fontsize=8, framealpha=0.7)
        axes.set_xlabel("round")
    for axes in (objective, clusterability, cosines, spread):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(in_figure(run.name), fontsize=11)
    return save(figure, path)


def _lines(axes: Any, run: Run, names: dict[str, str]) -> None:
    """One line per metric, with a gap where a round has none."""
    rounds = [r["round"] + 1 for r in run.rounds]
    for colour, (key, label) in zip(COLOURS, names.items()):
        _line(axes, rounds, [r.get(key) for r in run.rounds], colour, label)


def _line(axes: Any, rounds: Sequence[int], values: Sequence[float | None], colour: str, label: str) -> None:
    points = [float("nan") if v is None else v for v in values]
    axes.plot(rounds, points, color=colour, label=label, marker="." if len(rounds) <= 40 else None, markersize=5)


def _clusterability(axes: Any, run: Run) -> None:
    """One line per cluster; for many clusters, the mean and the range."""
    measured = [r for r in run.rounds if "clusterability" in r]
    rounds = [r["round"] + 1 for r in measured]
    series = list(zip_longest(*[r["clusterability"] for r in measured]))  # later rounds may have more clusters
    if len(series) <= MOST:
        for k, (colour, values) in enumerate(zip(palette(len(series)), series)):
            _line(axes, rounds, values, colour, f"cluster-{k}")
        axes.legend(fontsize=8, framealpha=0.7, ncols=1 + len(series) // 6)
        return
    known = [[b for b in r["clusterability"] if b is not None] or [float("nan")] for r in measured]
    axes.fill_between(
        rounds, [min(b) for b in known], [max(b) for b in known], color=COLOURS[0], alpha=0.2, linewidth=0
    )
    _line(axes, rounds, [sum(b) / len(b) for b in known], COLOURS[0], "mean (shaded: lowest to highest)")
    axes.legend(fontsize=8, framealpha=0.7)


def tuning(run: Run, path: Path) -> Path:
    """FedAC's number of clusters over rounds, and each cluster's G_k with the bounds a and b (FedAC Fig. 4)."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    number, loose = figure.subplots(2, 1, sharex=True)
    values = [(r, r.get("dispersion", r.get("looseness"))) for r in run.rounds]  # version 0.1 called it looseness
    measured = [r for r, found in values if found is not None]
    rounds = [r["round"] + 1 for r in measured]
    number.step(rounds, [r["clusters_in_use"] for r in measured], where="mid", color=COLOURS[0])
    number.set(ylabel="clusters K", ylim=(0, None))
    number.yaxis.set_major_locator(MaxNLocator(integer=True))
    points = [
        (n, g)
        for n, r in zip(rounds, measured)
        for g in (r.get("dispersion") or r.get("looseness", {})).values()
        if g is not None
    ]
    loose.plot(*zip(*points) if points else ([], []), ".", color=COLOURS[1], markersize=4, label="G_k")
    method = run.summary["method"]
    if method.get("tuning"):
        for key, style in (("low", ":"), ("high", "--")):
            loose.axhline(method[key], color="grey", linestyle=style, label=f"{key} = {method[key]}")
    loose.set(xlabel="round", ylabel="inside / between")
    if points and min(g for _, g in points) > 0:
        loose.set_yscale("log")
    loose.legend(fontsize=8, framealpha=0.7)
    for axes in (number, loose):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(in_figure(run.name), fontsize=11)
    return save(figure, path)


def number_of_clusters(run: Run, path: Path) -> Path:
    """The gap statistic by K, in the round that found the number of clusters, with a standard deviation either way."""
    (note,) = [r[NUMBER] for r in run.rounds if NUMBER in r][:1]
    values = list(note["by_k"].values())
    gaps = [v["gap"] for v in values]
    spread = [abs(v["gap"] / v["deviations"]) if v["deviations"] else 0.0 for v in values]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(range(1, len(gaps) + 1), gaps, spread, color=COLOURS[0], marker="o", capsize=3)
    axes.axhline(0, color="grey", linewidth=1)
    axes.axvline(note["k"], color="grey", linestyle="--", label=f"K = {note['k']}")
    axes.set(xlabel="clusters K", ylabel="gap: tighter than data without clusters")
    axes.set_title("\n".join(wrap(in_words(note), 80)), fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.suptitle(in_figure(run.name), fontsize=11)
    return save(figure, path)
