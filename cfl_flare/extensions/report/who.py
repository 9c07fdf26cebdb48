# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Who is with whom: by the similarity of features, or by how often two participants shared a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cfl_flare.core.errors import PayloadError
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.page import (
    Plot,
    Section,
    Table,
    View,
    cluster_label,
    thinned,
)
from cfl_flare.results.run_dir import Features, read_features
from cfl_flare.results.wording import finite, number

# Participants in a matrix: with more, a cell is smaller than a finger.
CELLS = 60
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
    count = len(features.participants)
    similar = cosines(_read_gram(file, features))

    # Participants in the order of their clusters, so that clusters are blocks of the matrix.
    known = [
        i
        for i, name in enumerate(features.participants)
        if name in view.shown and np.isfinite(similar[i, i])
    ]
    known.sort(key=lambda i: features.clusters[i])
    names = [view.shown[features.participants[i]] for i in known]
    clusters = [features.clusters[i] for i in known]
    similar = similar[np.ix_(known, known)]

    notes = []
    if len(known) < count:
        left_out = count - len(known)
        notes.append(
            f"{left_out} participants are left out: their features are zeros, or the summary lacks them."
        )
    if len(known) > CELLS:
        notes.append(f"The matrix has {CELLS} of {len(known)} participants.")
    text = (
        f"Features are what the method clusters by; these are of round {features.round + 1}, the last one kept, "
        f"of the {count} participants that took part in it. Similarity is the cosine of two participants' features."
    )
    cells = thinned(range(len(known)), CELLS)
    # The scale's lower end is the lowest similarity, rounded down to a tenth.
    lowest = math.floor(10 * float(similar[np.ix_(cells, cells)].min(initial=0.9))) / 10
    plot = _matrix(names, clusters, similar, "cosine similarity", max(-1, lowest))
    return Section("Who is with whom", text=[text], plots=[plot], notes=notes)


def _read_gram(file: Path, features: Features) -> np.ndarray:
    """The participants' inner products ``(n, n)``; a PayloadError if the file holds something else."""
    gram = features.gram
    count = len(features.participants)
    is_square = gram.ndim == 2 and gram.shape[0] == gram.shape[1] >= count
    is_complete = is_square and len(features.clusters) == count > 0
    if not is_complete or not np.isfinite(gram).all():
        raise PayloadError(
            "damaged_file", f"{file}: no finite square of inner products; copy it again"
        )
    return gram[:count, :count]


def _of_rounds(view: View) -> Section | None:
    """How often two participants were in the same cluster, of the rounds in which both were in one."""
    order = [name for name in view.by_cluster if name in view.histories]
    if len(order) < 2:
        return None
    rounds = thinned(
        sorted({r for history in view.histories.values() for r in history}), ROUNDS
    )
    grid = np.array(
        [[view.histories[name].get(r, -1) for r in rounds] for name in order]
    )
    members = [(grid == k).astype(float) for k in np.unique(grid[grid >= 0])]
    present = (grid >= 0).astype(float)
    both, same = present @ present.T, sum(member @ member.T for member in members)
    together = np.where(both > 0, same / np.maximum(both, 1), np.nan)
    text = (
        "The share of rounds in which two participants were in the same cluster. A run with keep_features has their "
        "similarity here instead."
    )
    clusters = [view.clusters[name] for name in order]
    plot = _matrix(
        [view.shown[name] for name in order], clusters, together, "share of rounds", 0
    )
    notes = (
        [f"The matrix has {CELLS} of {len(order)} participants."]
        if len(order) > CELLS
        else []
    )
    return Section("Who is with whom", text=[text], plots=[plot], notes=notes)


def _matrix(
    names: Sequence[str],
    clusters: Clusters,
    similar: np.ndarray,
    what: str,
    lowest: float,
) -> Plot:
    """A square of cells, participants by participants, in the order given; names are in the data once."""
    chosen = thinned(range(len(names)), CELLS)
    people = [
        {"i": i, "name": names[p], "group": cluster_label(clusters[p])}
        for i, p in enumerate(chosen, 1)
    ]
    cells = [
        [finite(float(value), 3) for value in row]
        for row in similar[np.ix_(chosen, chosen)]
    ]
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
            *(
                {"lookup": side, "from": shown, "as": [f"{side}_name", f"{side}_in"]}
                for side in ("row", "col")
            ),
        ],
        "mark": vega.CELL,
        "encoding": {
            "x": {
                "field": "col_name",
                "type": "ordinal",
                "sort": {"field": "col"},
                "axis": axis,
                "title": None,
            },
            "y": {
                "field": "row_name",
                "type": "ordinal",
                "sort": {"field": "row"},
                "title": None,
                "axis": upright,
            },
            "color": {
                "field": "v",
                "type": "quantitative",
                "title": what,
                "scale": scale,
                "legend": vega.GRADIENT,
            },
            "tooltip": vega.tips(
                row_name="participant",
                row_in="in",
                col_name="and",
                col_in="in",
                v="value",
            ),
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
        means = [
            number(float(values[side].mean())) if side.any() else "-" for side in sides
        ]
        rows.append([name, cluster_label(clusters[i]), *means, near])
    return Table(
        (
            "participant",
            "cluster",
            "mean in its cluster",
            "mean with others",
            "nearest",
        ),
        rows,
    )


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
