# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of the participants' features (thesis Fig. 3.4 to 3.6), from the Gram matrices that a run keeps on request.

cfl-flare run --method wecfl:k=3 --loop --keep-features --out runs/kept
python benchmarks/features.py runs/kept
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import palette
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cfl_flare.core.errors import CFLError
from cfl_flare.results.run_dir import Features, Run, find_runs, read_features

# Thesis Fig. 3.5 shows the first four rounds.
FIRST = 4
FEWEST = 5
MARKERS = "os^DvP*X<>hp"


def embedding(gram: np.ndarray, seed: int = 0) -> np.ndarray:
    """Places in the plane ``(n, 2)`` for n vectors of which the inner products are known.

    t-SNE; the first two principal components where there are fewer than five vectors, or where all are the same.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    lengths = np.diag(gram)
    distances = np.sqrt(np.maximum(lengths[:, None] + lengths[None] - 2 * gram, 0))
    np.fill_diagonal(distances, 0)
    if len(gram) >= FEWEST and distances.max() > 0:
        tsne = TSNE(metric="precomputed", init="random", random_state=seed, perplexity=min(30, (len(gram) - 1) / 3))
        with threadpool_limits(1):  # more threads than free cores wait for each other
            return np.asarray(tsne.fit_transform(distances / distances.max()))
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    values, vectors = np.linalg.eigh(centred)
    places = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, :2]
    return np.pad(places, ((0, 0), (0, 2 - places.shape[1])))


def participants(run: Run, path: Path) -> Path:
    """The participants' features in the first four rounds and the last one, by t-SNE (thesis Fig. 3.5-3.6).

    A colour a cluster; a marker a true group, where it is known.
    """
    files = run.feature_files
    kept = [read_features(file) for file in dict.fromkeys([*files[:FIRST], files[-1]])]
    truth = {p["name"]: p["group"] for p in run.summary["participants"] if p["group"] is not None}
    columns = min(3, len(kept))
    rows = -(-len(kept) // columns)
    figure = Figure(figsize=(max(6, 3.6 * columns), 0.8 + 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    clusters = max(len(features.gram) - len(features.participants) for features in kept)
    for axes, features in zip(panels, kept):
        _scatter(axes, features, truth, palette(clusters))
    for axes in panels[len(kept) :]:
        axes.remove()
    used = sorted({k for features in kept for k in features.clusters})
    _legend(figure, used, palette(clusters), sorted(set(truth.values())))
    by = "t-SNE" if len(kept[0].participants) >= FEWEST else "principal components"
    figure.suptitle(f"{run.name}: the participants' models by {by}", fontsize=11)
    figure.savefig(path, dpi=120)
    return path


def _scatter(axes: Any, features: Features, truth: dict[str, int], colours: list[str]) -> None:
    n = len(features.participants)
    places = embedding(features.gram[:n, :n])
    for name, cluster, place in zip(features.participants, features.clusters, places):
        marker = MARKERS[truth.get(name, 0) % len(MARKERS)]
        axes.scatter(*place, marker=marker, color=colours[cluster], s=28, linewidths=0.4, edgecolors="black", alpha=0.8)
    axes.set_title(f"round {features.round + 1}", fontsize=10)
    axes.set(xticks=[], yticks=[])


def _legend(figure: Figure, clusters: list[int], colours: list[str], groups: list[int]) -> None:
    """Colours and markers; only those of which there are few enough to be told apart."""

    def entry(marker: str, colour: str, label: str) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker, color=colour, label=label, markersize=6)

    entries = [entry("o", colours[k], f"cluster-{k}") for k in clusters if len(clusters) <= 20]
    if 1 < len(groups) <= len(MARKERS):
        entries += [entry(MARKERS[g % len(MARKERS)], "0.6", f"group {g}") for g in groups]
    if entries:
        figure.legend(handles=entries, loc="outside right center", frameon=False, fontsize=8)


def cosines(run: Run, path: Path) -> Path:
    """Cosine similarity in the last round: of the centres in use, and of the participants (thesis Fig. 3.4).

    Participants are sorted by cluster, with lines between clusters.
    """
    features = read_features(run.feature_files[-1])
    n = len(features.participants)
    lengths = np.sqrt(np.diag(features.gram))
    similar = features.gram / np.maximum(np.outer(lengths, lengths), np.finfo(float).tiny)
    order = sorted(range(n), key=lambda i: features.clusters[i])
    clusters = [features.clusters[i] for i in order]
    present = sorted(set(clusters))
    lines = [line["cluster"] for line in run.assignments if line["round"] == features.round]
    used = sorted({k for k in lines if k is not None})  # also by those who did not train in this round
    figure = Figure(figsize=(12, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _heat(figure, left, similar[np.ix_([n + k for k in used], [n + k for k in used])], annotate=len(used) <= 12)
    left.set_xticks(range(len(used)), [str(k) for k in used])
    left.set_yticks(range(len(used)), [str(k) for k in used])
    left.set_title("centres of the clusters in use", fontsize=10)
    _heat(figure, right, similar[np.ix_(order, order)], annotate=False)
    starts = [clusters.index(k) for k in present] + [n]
    for border in starts[1:-1]:
        right.axhline(border - 0.5, color="white", linewidth=0.8)
        right.axvline(border - 0.5, color="white", linewidth=0.8)
    middles = [(a + b - 1) / 2 for a, b in pairwise(starts)]
    right.set_xticks(middles, [str(k) for k in present])
    right.set_yticks(middles, [str(k) for k in present])
    right.set_title("participants, sorted by cluster", fontsize=10)
    figure.suptitle(f"{run.name}: cosine similarity after round {features.round + 1}", fontsize=11)
    figure.savefig(path, dpi=120)
    return path


def _heat(figure: Figure, axes: Any, similar: np.ndarray, annotate: bool) -> None:
    image = axes.imshow(similar, cmap="viridis", vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set(xlabel="cluster", ylabel="cluster")
    if annotate:
        dark = similar.min() + 0.6 * (1 - similar.min())
        for (row, column), value in np.ndenumerate(similar):
            colour = "white" if value < dark else "black"
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour, fontsize=7)


def draw(folder: Path) -> list[Path]:
    """Draws ``participants.png`` and ``cosines.png`` into each run of a folder that kept its features.

    Raises:
        ConfigError: there are no runs.
        SystemExit: none of them kept its features.
    """
    runs = [run for run in find_runs(folder) if run.feature_files]
    if not runs:
        sys.exit(f"features.py: {folder}: no run kept its features; run it with --keep-features")
    return [
        figure
        for run in runs
        for figure in (participants(run, run.folder / "participants.png"), cosines(run, run.folder / "cosines.png"))
    ]


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("folder", type=Path, help="a run's, or one of several runs")
    try:
        print(*draw(options.parse_args().folder), sep="\n")
    except CFLError as error:
        sys.exit(f"features.py: {error}")


if __name__ == "__main__":
    main()
