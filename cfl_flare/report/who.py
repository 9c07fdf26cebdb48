# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Who is with whom: by similarity, in a plane and a tree of the features, or by how often two shared a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cfl_flare.core.errors import PayloadError
from cfl_flare.report import vega
from cfl_flare.report.page import Plot, Section, Table, View, cluster_label, thinned
from cfl_flare.report.text import finite, number
from cfl_flare.results.run_dir import read_features

# Participants in a matrix: with more, a cell is smaller than a finger.
CELLS = 60
# Those in the plane and the tree.
LEAVES = 200
# The most rounds of which common clusters are counted.
ROUNDS = 1000

Clusters = Sequence[int | None]


def who(view: View) -> Section | None:
    """Who is with whom; None for a run without clusters."""
    return _of_features(view) if view.run.feature_files else _of_rounds(view)


def _of_features(view: View) -> Section:
    """From the Gram matrix of the last round that was kept."""
    file = view.run.feature_files[-1]
    features = read_features(file)
    gram, n = features.gram, len(features.participants)
    square = gram.ndim == 2 and gram.shape[0] == gram.shape[1] >= n and len(features.clusters) == n > 0
    if not square or not np.isfinite(gram).all():
        raise PayloadError("damaged_file", f"{file}: no finite square of inner products; copy it again")
    similar = cosines(gram[:n, :n])
    known = [i for i, name in enumerate(features.participants) if name in view.shown and np.isfinite(similar[i, i])]
    known.sort(key=lambda i: features.clusters[i])
    names = [view.shown[features.participants[i]] for i in known]
    clusters, similar = [features.clusters[i] for i in known], similar[np.ix_(known, known)]
    cells, leaves = (thinned(range(len(known)), most) for most in (CELLS, LEAVES))
    left_out = f"{n - len(known)} participants are left out: their features are zeros, or the summary lacks them."
    drawn = f"The matrix has {len(cells)}, the plane and the tree {len(leaves)} of {len(known)} participants."
    notes = [left_out] * (len(known) < n) + [drawn] * (len(cells) < len(known))
    text = (
        f"Features are what the method clusters by; these are of round {features.round + 1}, the last one kept, "
        f"of the {n} participants that took part in it. Similarity is the cosine of two participants' features."
    )
    lowest = math.floor(10 * float(similar[np.ix_(cells, cells)].min(initial=0.9))) / 10
    plots = [_matrix(names, clusters, similar, "cosine similarity", max(-1, lowest))]
    if len(leaves) > 2:
        labels, groups = [names[i] for i in leaves], [cluster_label(clusters[i]) for i in leaves]
        colour = vega.colour([cluster_label(k) for k in sorted({clusters[i] for i in leaves})])
        shown = similar[np.ix_(leaves, leaves)]
        plots += [_plane(labels, groups, shown, colour), _tree(labels, groups, shown, colour)]
    return Section("Who is with whom", text=[text], plots=plots, notes=notes)


def _of_rounds(view: View) -> Section | None:
    """How often two participants were in the same cluster, of the rounds in which both were in one."""
    order = [name for name in view.by_cluster if name in view.histories]
    if len(order) < 2:
        return None
    rounds = thinned(sorted({r for history in view.histories.values() for r in history}), ROUNDS)
    grid = np.array([[view.histories[name].get(r, -1) for r in rounds] for name in order])
    members = [(grid == k).astype(float) for k in np.unique(grid[grid >= 0])]
    present = (grid >= 0).astype(float)
    both, same = present @ present.T, sum(member @ member.T for member in members)
    together = np.where(both > 0, same / np.maximum(both, 1), np.nan)
    text = (
        "The share of rounds in which two participants were in the same cluster. A run with keep_features also has "
        "their similarity, a plane and a tree here."
    )
    clusters = [view.clusters[name] for name in order]
    plot = _matrix([view.shown[name] for name in order], clusters, together, "share of rounds", 0)
    notes = [f"The matrix has {CELLS} of {len(order)} participants."] if len(order) > CELLS else []
    return Section("Who is with whom", text=[text], plots=[plot], notes=notes)


def _matrix(names: Sequence[str], clusters: Clusters, similar: np.ndarray, what: str, lowest: float) -> Plot:
    """A square of cells, participants by participants, in the order given; names are in the data once."""
    chosen = thinned(range(len(names)), CELLS)
    people = [{"i": i, "name": names[p], "group": cluster_label(clusters[p])} for i, p in enumerate(chosen, 1)]
    cells = [[finite(float(value), 3) for value in row] for row in similar[np.ix_(chosen, chosen)]]
    shown = {"data": {"name": "names"}, "key": "i", "fields": ["name", "group"]}
    axis = {**vega.SLANTED, "title": None} if len(chosen) <= vega.NAMED else None
    upright = axis and {**axis, "labelAngle": 0}
    scale = {"scheme": "viridis", "domain": [lowest, 1]}
    spec = {
        "height": 420,
        "datasets": {"names": people},
        "data": {"values": [{"row": i, "v": row} for i, row in enumerate(cells, 1)]},
        "transform": [
            {"flatten": ["v"]},
            {"window": [{"op": "row_number", "as": "col"}], "groupby": ["row"]},
            *({"lookup": side, "from": shown, "as": [f"{side}_name", f"{side}_in"]} for side in ("row", "col")),
        ],
        "mark": vega.CELL,
        "encoding": {
            "x": {"field": "col_name", "type": "ordinal", "sort": {"field": "col"}, "axis": axis, "title": None},
            "y": {"field": "row_name", "type": "ordinal", "sort": {"field": "row"}, "title": None, "axis": upright},
            "color": {"field": "v", "type": "quantitative", "title": what, "scale": scale, "legend": vega.GRADIENT},
            "tooltip": vega.tips(row_name="participant", row_in="in", col_name="and", col_in="in", v="value"),
        },
    }
    text = f"A cell is the {what} of two participants; they are ordered by cluster, so that clusters are blocks."
    table = _neighbours(names, clusters, similar)
    return Plot(f"Participants by participants: {what}", text, spec, table)


def _neighbours(names: Sequence[str], clusters: Clusters, similar: np.ndarray) -> Table:
    """Of each participant: the mean over its cluster and over the others, and whom it is nearest to."""
    rows = []
    numbers = np.array([-1 if k is None else k for k in clusters])
    for i, name in enumerate(names):
        values = similar[i].astype(np.float64)
        values[i] = np.nan
        known = np.isfinite(values)
        inside = numbers == numbers[i]
        near = names[int(np.nanargmax(values))] if known.any() else "-"
        sides = (known & inside, known & ~inside)
        means = [number(float(values[side].mean())) if side.any() else "-" for side in sides]
        rows.append([name, cluster_label(clusters[i]), *means, near])
    return Table(("participant", "cluster", "mean in its cluster", "mean with others", "nearest"), rows)


def _plane(names: Sequence[str], groups: Sequence[str], similar: np.ndarray, colour: vega.Spec) -> Plot:
    points, shares = plane(similar)
    rows = [
        {"x": finite(float(x), 3), "y": finite(float(y), 3), "name": name, "c": group}
        for name, group, (x, y) in zip(names, groups, points)
    ]
    axes = {
        channel: vega.quantity(channel, f"axis {n} ({share:.0%} of the spread)", zero=False)
        for n, (channel, share) in enumerate(zip("xy", shares), 1)
    }
    spec = {
        "height": 340,
        "data": {"values": rows},
        "params": vega.CHOSEN,
        "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.85},
        "encoding": {
            **axes,
            "color": colour,
            "opacity": {"condition": {"param": "chosen", "value": 0.85}, "value": 0.1},
            "tooltip": vega.tips(name="participant", c="in"),
        },
    }
    text = (
        "Classical multidimensional scaling of the cosine similarities: participants that are near are alike, and the "
        f"two axes show {sum(shares):.0%} of how they differ; what the plane leaves out may separate them all the same."
    )
    table = [[name, group, number(row["x"]), number(row["y"])] for name, group, row in zip(names, groups, rows)]
    return Plot("Participants in a plane", text, spec, Table(("participant", "cluster", "axis 1", "axis 2"), table))


def _tree(names: Sequence[str], groups: Sequence[str], similar: np.ndarray, colour: vega.Spec) -> Plot:
    leaves, joints, heights = tree(similar)
    corners = [
        {"j": j, "n": k, "x": finite(x), "y": finite(y, 3)}
        for j, joint in enumerate(joints)
        for k, (x, y) in enumerate(zip(*joint))
    ]
    ends = [
        {"x": x, "y": 0, "name": names[leaf], "c": groups[leaf], "v": finite(height, 3)}
        for x, (leaf, height) in enumerate(zip(leaves, heights))
    ]
    axes = {
        "x": {"field": "x", "type": "quantitative", "axis": None, "scale": {"domain": [-0.5, len(ends) - 0.5]}},
        "y": vega.quantity("y", "1 - cosine similarity"),
    }
    branches = {
        "data": {"values": corners},
        "mark": {"type": "line", "color": "currentColor", "opacity": 0.6, "strokeWidth": 1.2, "aria": False},
        "encoding": {**axes, "detail": {"field": "j"}, "order": {"field": "n"}},
    }
    points = {
        "data": {"values": ends},
        "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
        "encoding": {**axes, "color": colour, "tooltip": vega.tips(name="participant", c="in", v="joined at")},
    }
    text = (
        "Average linkage: two branches join at the height of the mean distance between their participants. "
        "Groups that are real join far above the joints inside them."
    )
    table = [[names[leaf], groups[leaf], number(end["v"])] for leaf, end in zip(leaves, ends)]
    columns = ("participant, from left to right", "cluster", "distance at which it is joined")
    return Plot("A tree of the participants", text, {"height": 260, "layer": [branches, points]}, Table(columns, table))


def cosines(gram: np.ndarray) -> np.ndarray:
    """Cosine similarities ``(n, n)`` from inner products; NaN in the rows and columns of a vector of zeros.

    >>> cosines(np.array([[4.0, 2.0], [2.0, 1.0]]))
    array([[1., 1.],
           [1., 1.]])
    """
    squares = np.diag(gram).astype(np.float64)
    lengths = np.where(squares > 0, np.sqrt(np.maximum(squares, 0)), np.nan)
    similar: np.ndarray = np.clip(gram / lengths[:, None] / lengths[None, :], -1, 1)
    return similar


def plane(similar: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Classical multidimensional scaling: points in a plane whose inner products are nearest to the centred ones.

    Of finite inner products ``(n, n)``, n > 1: points ``(n, 2)``, each axis turned so that its largest coordinate is
    positive, and each axis' share.

    >>> points, shares = plane(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    >>> np.abs(points).round(3).tolist(), shares
    ([[1.0, 0.0], [1.0, 0.0]], [1.0, 0.0])
    """
    centring = np.eye(len(similar)) - 1 / len(similar)
    values, vectors = np.linalg.eigh(centring @ similar.astype(np.float64) @ centring)
    values = np.maximum(values, 0)
    axes, lengths = vectors[:, :-3:-1], values[:-3:-1]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    return axes * signs * np.sqrt(lengths), (lengths / (values.sum() or 1.0)).tolist()


def tree(similar: np.ndarray) -> tuple[list[int], list[tuple[list[float], list[float]]], list[float]]:
    """Average linkage of the distances 1 - cosine, from finite similarities ``(n, n)`` of at least two.

    The leaves from left to right; of each joint the four corners, leaves at 0, 1, ...; and of each leaf, in its order,
    the distance at which it is first joined.
    """
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    apart = np.maximum(1 - (similar + similar.T) / 2, 0)
    np.fill_diagonal(apart, 0)
    joints = linkage(squareform(apart, checks=False), "average")
    drawn = dendrogram(joints, no_plot=True)
    n = len(similar)
    first = {int(leaf): float(height) for a, b, height, _ in joints[::-1] for leaf in (a, b) if leaf < n}
    corners = [([(x - 5) / 10 for x in xs], list(ys)) for xs, ys in zip(drawn["icoord"], drawn["dcoord"])]
    return drawn["leaves"], corners, [first[leaf] for leaf in drawn["leaves"]]
