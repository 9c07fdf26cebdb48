# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Who is with whom: by similarity, in a plane and a tree of the features, or by how often two shared a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cfl_flare.core.errors import PayloadError
from cfl_flare.report.html import specs
from cfl_flare.report.html.gram import cosines, plane, tree
from cfl_flare.report.html.moves import histories
from cfl_flare.report.html.section import Plot, Section, Table
from cfl_flare.report.html.text import finite, number
from cfl_flare.report.html.view import View, cluster_label, thinned
from cfl_flare.results.run_dir import read_features

# Participants in a matrix: with more, a cell is smaller than a finger.
CELLS = 60
# Those in the plane and the tree.
LEAVES = 200


def who(view: View) -> Section | None:
    """Who is with whom; None for a run without clusters."""
    return _of_features(view) if view.run.feature_files else _of_rounds(view)


def _of_features(view: View) -> Section:
    """From the Gram matrix of the last round that was kept."""
    features = read_features(view.run.feature_files[-1])
    names, n = list(features.participants), len(features.participants)
    gram = features.gram
    square = gram.ndim == 2 and gram.shape[0] == gram.shape[1] >= n and len(features.clusters) == n > 0
    if not square or not np.isfinite(gram).all():
        raise PayloadError(
            "damaged_file", f"{view.run.feature_files[-1]}: no finite square of inner products; copy it again"
        )
    similar = cosines(gram[:n, :n])
    groups = dict(zip(names, features.clusters))
    known = [i for i in range(n) if names[i] in view.shown and np.isfinite(similar[i, i])]
    known.sort(key=lambda i: groups[names[i]])
    cells, leaves = thinned(known, CELLS), thinned(known, LEAVES)
    notes = []
    if len(known) < n:
        notes.append(
            f"{n - len(known)} participants are left out: their features are zeros, or the summary lacks them."
        )
    if len(cells) < len(known):
        notes.append(f"The matrix has {len(cells)}, the plane and the tree {len(leaves)} of {len(known)} participants.")
    text = (
        f"Features are what the method clusters by; these are of round {features.round + 1}, the last one kept, "
        f"of the {n} participants that took part in it. Similarity is the cosine of two participants' features."
    )
    lowest = math.floor(10 * float(similar[np.ix_(cells, cells)].min(initial=0.9))) / 10
    scale = {"scheme": "viridis", "domain": [max(-1, lowest), 1]}
    plots = [
        _matrix(
            view,
            [names[i] for i in cells],
            groups,
            similar[np.ix_(cells, cells)],
            "cosine similarity",
            scale,
            _neighbours(view, names, known, groups, similar),
        )
    ]
    if len(leaves) > 2:
        plots += [_plane(view, leaves, names, groups, similar), _tree(view, leaves, names, groups, similar)]
    return Section("Who is with whom", text=[text], plots=plots, notes=notes)


def _of_rounds(view: View) -> Section | None:
    """How often two participants were in the same cluster, of the rounds in which both were in one."""
    history = histories(view)
    order = [name for name in view.by_cluster if name in history]
    if len(order) < 2:
        return None
    chosen = thinned(order, CELLS)
    rounds = {r: i for i, r in enumerate(thinned(sorted({r for own in history.values() for r in own}), 1000))}
    grid = np.full((len(order), len(rounds)), -1)
    for row, name in enumerate(order):
        for r, k in history[name].items():
            if r in rounds:
                grid[row, rounds[r]] = k
    together = np.array([_share_with(grid, row) for row in range(len(order))])
    place = {name: i for i, name in enumerate(order)}
    at = [place[name] for name in chosen]
    groups = {name: k for name, k in view.clusters.items() if k is not None}
    text = (
        "The share of rounds in which two participants were in the same cluster. A run with keep_features also has "
        "their similarity, a plane and a tree here."
    )
    table = _neighbours(view, order, list(range(len(order))), groups, together)
    scale = {"scheme": "viridis", "domain": [0, 1]}
    plot = _matrix(view, chosen, groups, together[np.ix_(at, at)], "share of rounds", scale, table)
    notes = [f"The matrix has {len(chosen)} of {len(order)} participants."] if len(chosen) < len(order) else []
    return Section("Who is with whom", text=[text], plots=[plot], notes=notes)


def _share_with(grid: np.ndarray, row: int) -> np.ndarray:
    """One participant's share of common rounds with everybody; NaN where there was no common round."""
    both = (grid >= 0) & (grid[row] >= 0)
    same = both & (grid == grid[row])
    found: np.ndarray = np.where(both.any(axis=1), same.sum(axis=1) / np.maximum(both.sum(axis=1), 1), np.nan)
    return found


def _matrix(
    view: View,
    names: Sequence[str],
    groups: dict[str, int],
    cells: np.ndarray,
    what: str,
    scale: dict[str, Any],
    table: Table,
) -> Plot:
    rows = [[finite(float(v), 3) for v in row] for row in cells]
    labels = [view.shown[name] for name in names]
    spec = specs.matrix(labels, [cluster_label(groups.get(name)) for name in names], rows, what, scale)
    text = f"A cell is the {what} of two participants; they are ordered by cluster, so that clusters are blocks."
    return Plot(f"Participants by participants: {what}", text, spec, table)


def _neighbours(
    view: View, names: Sequence[str], known: Sequence[int], groups: dict[str, int], similar: np.ndarray
) -> Table:
    """Of each participant: the mean over its cluster and over the others, and whom it is nearest to."""
    rows = []
    clusters = np.array([groups.get(names[i], -1) for i in known])
    for row, i in enumerate(known):
        own = similar[i, list(known)].astype(np.float64)
        own[row] = np.nan
        inside = clusters == clusters[row]
        near = names[known[int(np.nanargmax(own))]] if np.isfinite(own).any() else None
        means = [number(_mean(own[chosen])) for chosen in (inside, ~inside)]
        cluster = cluster_label(groups.get(names[i]))
        rows.append([view.shown[names[i]], cluster, *means, "-" if near is None else view.shown[near]])
    return Table.of(("participant", "cluster", "mean in its cluster", "mean with others", "nearest"), rows)


def _mean(values: np.ndarray) -> float:
    there = values[np.isfinite(values)]
    return float(there.mean()) if len(there) else float("nan")


def _clusters_of(names: Sequence[str], chosen: Sequence[int], groups: dict[str, int]) -> list[str]:
    return [cluster_label(k) for k in sorted({groups[names[i]] for i in chosen})]


def _plane(view: View, chosen: list[int], names: Sequence[str], groups: dict[str, int], similar: np.ndarray) -> Plot:
    points, shares = plane(similar[np.ix_(chosen, chosen)])
    rows = [
        {
            "x": finite(float(x), 3),
            "y": finite(float(y), 3),
            "name": view.shown[names[i]],
            "c": cluster_label(groups[names[i]]),
        }
        for i, (x, y) in zip(chosen, points)
    ]
    axes = [
        {"field": f, "type": "quantitative", "title": f"axis {n} ({share:.0%} of the spread)", "scale": {"zero": False}}
        for n, (f, share) in enumerate(zip("xy", shares), 1)
    ]
    spec = {
        "height": 340,
        "data": {"values": rows},
        "params": [{"name": "chosen", "select": {"type": "point", "fields": ["c"]}, "bind": "legend"}],
        "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.85},
        "encoding": {
            "x": axes[0],
            "y": axes[1],
            "color": specs.colour(_clusters_of(names, chosen, groups)),
            "opacity": {"condition": {"param": "chosen", "value": 0.85}, "value": 0.1},
            "tooltip": specs.tips(name="participant", c="in"),
        },
    }
    text = (
        "Classical multidimensional scaling of the cosine similarities: participants that are near are alike, and the "
        f"two axes show {sum(shares):.0%} of how they differ; what the plane leaves out may separate them all the same."
    )
    table = [[str(row["name"]), str(row["c"]), number(row["x"]), number(row["y"])] for row in rows]
    return Plot("Participants in a plane", text, spec, Table.of(("participant", "cluster", "axis 1", "axis 2"), table))


def _tree(view: View, chosen: list[int], names: Sequence[str], groups: dict[str, int], similar: np.ndarray) -> Plot:
    leaves, joints, heights = tree(similar[np.ix_(chosen, chosen)])
    people = [names[chosen[leaf]] for leaf in leaves]
    corners = [
        {"j": j, "n": k, "x": finite(x), "y": finite(y, 3)}
        for j, (xs, ys) in enumerate(joints)
        for k, (x, y) in enumerate(zip(xs, ys))
    ]
    ends = [
        {"x": x, "y": 0, "name": view.shown[name], "c": cluster_label(groups[name]), "v": finite(height, 3)}
        for x, (name, height) in enumerate(zip(people, heights))
    ]
    x = {"field": "x", "type": "quantitative", "axis": None, "scale": {"domain": [-0.5, len(ends) - 0.5]}}
    y = {"field": "y", "type": "quantitative", "title": "1 - cosine similarity"}
    spec = {
        "height": 260,
        "layer": [
            {
                "data": {"values": corners},
                "mark": {"type": "line", "color": "currentColor", "opacity": 0.6, "strokeWidth": 1.2, "aria": False},
                "encoding": {"x": x, "y": y, "detail": {"field": "j"}, "order": {"field": "n"}},
            },
            {
                "data": {"values": ends},
                "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": specs.colour(_clusters_of(names, chosen, groups)),
                    "tooltip": specs.tips(name="participant", c="in", v="joined at"),
                },
            },
        ],
    }
    text = (
        "Average linkage: two branches join at the height of the mean distance between their participants. "
        "Groups that are real join far above the joints inside them."
    )
    rows = [[str(end["name"]), str(end["c"]), number(end["v"])] for end in ends]
    columns = ("participant, from left to right", "cluster", "distance at which it is joined")
    return Plot("A tree of the participants", text, spec, Table.of(columns, rows))
