# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The clusters by round: their sizes, and the quality of the clustering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from cfl_flare.report.html import curves, specs
from cfl_flare.report.html.section import Plot, Section
from cfl_flare.report.html.view import CLUSTERS, View, cluster_label

SMALLER = "smaller clusters"


def sizes(view: View) -> Section | None:
    """The participants in each cluster; None for a run without clusters."""
    plot = sizes_plot(view, "Participants in each cluster")
    notes = [view.rounds_note] if view.rounds_note else []
    return None if plot is None else Section("Sizes of the clusters", plots=[plot], notes=notes)


def sizes_plot(view: View, title: str) -> Plot | None:
    """Stacked bars over rounds (thesis Fig. 7.3-7.4); the clusters that were once the largest have a colour each."""
    largest: Counter[int] = Counter()
    for line in view.rounds:
        largest |= Counter(dict(enumerate(line["cluster_sizes"])))
    shown = sorted(k for k, _ in largest.most_common(CLUSTERS))
    if not shown:
        return None
    by_cluster = curves.series(view, lambda line: _sizes(line["cluster_sizes"], shown))
    labels = [label for label in (*map(cluster_label, shown), SMALLER) if label in by_cluster]
    ordered = {label: by_cluster[label] for label in labels}
    plot = curves.plot(title, "A bar is a round; its parts are the clusters.", ordered, "participants")
    encoding = plot.spec["encoding"]
    del encoding["strokeDash"]
    encoding["color"] = specs.colour(labels)
    encoding["x"] = specs.ROUNDS
    encoding["y"] |= {"scale": {"zero": True}, "axis": {"tickMinStep": 1, "format": "d"}}
    plot.spec["mark"] = {"type": "bar", "width": {"band": 1}}
    return plot


def _sizes(there: Sequence[int], shown: Collection[int]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for k, size in enumerate(there):
        sizes[cluster_label(k) if k in shown else SMALLER] += size
    return {label: size for label, size in sizes.items() if size}


def quality(view: View) -> Section | None:
    """How good the clusters are, by measures without true groups; None where no round was analysed."""
    objective = curves.series(view, lambda line: {"objective": line.get("objective")})
    if not objective:
        return None
    labels = {cluster_label(k): k for k in curves.largest(view)}
    clusterability = curves.series(
        view, lambda line: {label: b[k] for label, k in labels.items() if k < len(b := line.get("clusterability", ()))}
    )
    cosines = {"two participants of a cluster": "intra_cosine", "two centres": "inter_cosine"}
    shares = {"evenness of the sizes": "size_entropy", "in the largest cluster": "largest_share"}
    shares |= {"moved to another cluster": "moved_share"}
    parts = (
        ("Objective", "The squared distance to the cluster's centre (thesis Eq. 3.3b).", objective, "C"),
        ("Clusterability of each cluster", "0 where updates are equal (thesis Def. 3.4.7).", clusterability, "B"),
        ("Similarity", "Mean cosines of updates.", _of(view, cosines), "cosine similarity"),
        ("Spread", "Shares of the participants; evenness is the sizes' entropy.", _of(view, shares), "share"),
    )
    plots = [curves.plot(title, text, values, axis, height=180) for title, text, values, axis in parts if values]
    if all(value > 0 for value in objective["objective"].values()):
        plots[0].spec["encoding"]["y"]["scale"] = {"type": "log"}
    return Section("Quality of the clustering", plots=plots)


def _of(view: View, keys: dict[str, str]) -> curves.Series:
    return curves.series(view, lambda line: {label: line.get(key) for label, key in keys.items()})
