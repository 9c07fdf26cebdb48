# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The clusters by round: who moved, their sizes, the quality of the clustering, and how their number was chosen."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from cfl_flare.clustering.gap import NUMBER, describe_note
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.page import (
    CLUSTERS,
    Plot,
    Section,
    Table,
    View,
    cluster_label,
    line_plot,
    thinned,
)
from cfl_flare.results.wording import cut, finite, interval, number

# Participants and rounds whose cells are drawn.
PEOPLE, COLUMNS = 80, 50
SMALLER = "smaller clusters"


def moves(view: View) -> Section | None:
    """A cell for each participant and round, coloured by cluster; None if nobody was ever in one."""
    histories = view.histories
    if not histories:
        return None
    rounds = sorted({r for history in histories.values() for r in history})
    order = [name for name in view.by_cluster if name in histories]
    people, columns = thinned(order, PEOPLE), thinned(rounds, COLUMNS)
    truth = {
        person["name"]: f"group {cut(g)}"
        for person in view.people
        if (g := person.get("group")) is not None
    }
    rows, moved = [], 0
    for name in order:
        path = sorted(histories[name].items())
        changes = [r for (_, before), (r, after) in pairwise(path) if after != before]
        moved += bool(changes)
        ends = [cluster_label(k) for _, k in (path[0], path[-1])]
        last = str(changes[-1] + 1) if changes else "-"
        rows.append(
            [
                view.shown[name],
                *ends,
                str(len(changes)),
                last,
                *([truth.get(name, "-")] if truth else []),
            ]
        )
    text = (
        f"{moved} of {len(order)} participants changed their cluster at least once. A row is a participant, in the "
        "order of the last clusters; where it has no cell, it had no cluster yet."
    )
    text += " Greys at the right are the true groups." if truth else ""
    headings = [
        "participant",
        "first cluster",
        "last cluster",
        "changes",
        "round of the last change",
    ]
    table = Table([*headings, *(["true group"] if truth else [])], rows)
    notes = []
    if len(people) < len(order) or len(columns) < len(rounds):
        notes.append(
            f"{len(people)} of {len(order)} participants and {len(columns)} of {len(rounds)} rounds are drawn, evenly "
            "spaced; the table counts all rounds."
        )
    plot = Plot("Clusters by round", text, _cells(view, people, columns, truth), table)
    return Section("How assignments moved", plots=[plot], notes=notes)


def _cells(
    view: View, people: list[str], columns: list[int], truth: dict[str, str]
) -> vega.Spec:
    """A row of cells for each participant; its name is in the data once."""
    rows = []
    for i, name in enumerate(people):
        history = view.histories[name]
        known = [r for r in columns if r in history]
        cells = {
            "r": [r + 1 for r in known],
            "c": [cluster_label(history[r]) for r in known],
        }
        rows.append({"i": i, "name": view.shown[name], "g": truth.get(name), **cells})
    used = sorted({k for history in view.histories.values() for k in history.values()})
    groups = sorted({*truth.values()})
    greys = {
        **vega.colour(groups),
        "field": "g",
        "scale": {"domain": groups, "scheme": "greys"},
    }
    scale = {"domain": [*(r + 1 for r in columns), *(["truth"] if truth else [])]}
    by_round = {
        "transform": [{"flatten": ["r", "c"]}],
        "mark": vega.CELL,
        "encoding": {
            "x": {**vega.ROUNDS, "scale": scale},
            "color": vega.colour([cluster_label(k) for k in used]),
        },
    }
    at_end = {
        "mark": {**vega.CELL, "width": {"band": 0.9}},
        "encoding": {"x": {"datum": "truth", "type": "ordinal"}, "color": greys},
    }
    group = {"g": "true group"} if truth else {}
    return {
        "height": max(160, min(440, 14 * len(people))),
        "data": {"values": rows},
        "encoding": {
            "y": vega.names({"labelLimit": 90} if len(people) <= vega.NAMED else None),
            "tooltip": vega.tips(name="participant", r="round", c="in", **group),
        },
        "layer": [by_round, *([at_end] if truth else [])],
        "resolve": {"scale": {"color": "independent"}},
    }


def sizes(view: View) -> Section | None:
    """The participants in each cluster; None for a run without clusters."""
    plot = sizes_plot(view, "Participants in each cluster")
    return (
        None
        if plot is None
        else Section("Sizes of the clusters", plots=[plot], notes=view.rounds_note)
    )


def sizes_plot(view: View, title: str) -> Plot | None:
    """Stacked bars over rounds (thesis Fig. 7.3-7.4); the clusters that were once the largest have a colour each."""
    largest: Counter[int] = Counter()
    for record in view.rounds:
        largest |= Counter(dict(enumerate(record["cluster_sizes"])))
    shown = sorted(k for k, _ in largest.most_common(CLUSTERS))
    if not shown:
        return None

    def by_label(record: dict[str, Any]) -> dict[str, int]:
        sizes: Counter[str] = Counter()
        for k, size in enumerate(record["cluster_sizes"]):
            sizes[cluster_label(k) if k in shown else SMALLER] += size
        return {label: size for label, size in sizes.items() if size}

    series = view.series(by_label)
    labels = [
        label for label in (*map(cluster_label, shown), SMALLER) if label in series
    ]
    ordered = {label: series[label] for label in labels}
    plot = line_plot(
        title, "A bar is a round; its parts are the clusters.", ordered, "participants"
    )
    encoding = plot.spec["encoding"]
    del encoding["strokeDash"]
    encoding |= {
        "x": vega.ROUNDS,
        "y": vega.quantity("v", "participants", axis=vega.WHOLE),
    }
    encoding["color"] = vega.colour(labels)
    plot.spec["mark"] = {"type": "bar", "width": {"band": 1}}
    return plot


def quality(view: View) -> Section | None:
    """How good the clusters are, by measures without true groups; None where no round was analysed."""
    objective = view.lines({"objective": "objective"})
    if not objective:
        return None
    labels = {cluster_label(k): k for k in view.largest}
    clusterability = view.series(
        lambda record: {
            label: values[k]
            for label, k in labels.items()
            if k < len(values := record.get("clusterability", ()))
        }
    )
    cosines = view.lines(
        {"two participants of a cluster": "intra_cosine", "two centres": "inter_cosine"}
    )
    shares = {
        "evenness of the sizes": "size_entropy",
        "in the largest cluster": "largest_share",
    }
    shares |= {"moved to another cluster": "moved_share"}
    parts = (
        (
            "Objective",
            "The squared distance to the cluster's centre (thesis Eq. 3.3b).",
            objective,
            "C",
        ),
        (
            "Clusterability of each cluster",
            "0 where updates are equal (thesis Def. 3.4.7).",
            clusterability,
            "B",
        ),
        ("Similarity", "Mean cosines of updates.", cosines, "cosine similarity"),
        (
            "Spread",
            "Shares of the participants; evenness is the sizes' entropy.",
            view.lines(shares),
            "share",
        ),
    )
    plots = [
        line_plot(title, text, series, axis, height=180)
        for title, text, series, axis in parts
        if series
    ]
    if all(value > 0 for value in objective["objective"].values()):
        plots[0].spec["encoding"]["y"]["scale"] = {"type": "log"}
    return Section("Quality of the clustering", plots=plots)


def number_of_clusters(view: View) -> Section | None:
    """The clusters in use by round, and the criterion's values; None where the method looks for no number."""
    plots = []
    if in_use := view.lines({"clusters": "clusters_in_use"}):
        plot = line_plot(
            "Clusters in use",
            "Clusters with at least one participant.",
            in_use,
            "clusters",
            height=160,
        )
        plot.spec["mark"]["interpolate"] = "step-after"
        plot.spec["encoding"]["y"] = vega.quantity("v", "clusters", axis=vega.WHOLE)
        plots.append(plot)
    if dispersion := view.series(_dispersion):
        method = view.run.summary["method"]
        text = "The mean distance inside a cluster, divided by that to the other centres (FedAC's G). "
        if method.get("tuning"):
            low, high = (number(method.get(key)) for key in ("low", "high"))
            text += f"A cluster below {low} is merged, one above {high} is split."
        plots.append(
            line_plot(
                "Inside by between", text, dispersion, "inside / between", height=200
            )
        )
    choice = next(
        (r[NUMBER] for r in view.run.rounds if isinstance(r.get(NUMBER), dict)), None
    )
    gaps = None if choice is None else _gaps(choice)
    plots += [] if gaps is None else [gaps]
    searched = (
        len(plots) > 1
        or len({record.get("clusters_in_use") for record in view.run.rounds}) > 1
    )
    return (
        Section("The number of clusters", plots=plots) if searched and plots else None
    )


def _dispersion(record: dict[str, Any]) -> dict[str, Any]:
    """FedAC's distance inside a cluster by its distance to the others, of a round, by cluster."""
    values: dict[str, Any] = record.get("dispersion") or {}
    return {
        cluster_label(k): values[str(k)] for k in range(CLUSTERS) if str(k) in values
    }


def _gaps(choice: dict[str, Any]) -> Plot | None:
    """The gap statistic by number of clusters, with a standard deviation either way; None if no gap is known."""
    points: list[dict[str, Any]] = []
    for k, criterion in enumerate(choice.get("by_k", {}).values(), 1):
        gap, deviations = finite(criterion["gap"]), finite(criterion["deviations"])
        if gap is not None:
            spread = abs(gap / deviations) if deviations else 0.0
            ends = {"lo": finite(gap - spread), "hi": finite(gap + spread)}
            points.append(
                {"k": k, "v": gap, **ends, "alike": finite(criterion["stability"])}
            )
    if not points:
        return None
    x = vega.whole_axis("k", (point["k"] for point in points), "number of clusters")
    y = vega.quantity("v", "gap")
    tooltip = vega.tips(k="clusters", v="gap", lo="from", hi="to")
    spec = {
        "height": 200,
        "data": {"values": points},
        "layer": [
            {"mark": vega.DASHED, "encoding": {"x": {"datum": choice["k"]}}},
            vega.intervals("y", y, {"x": x}, width=1, opacity=1),
            {
                "mark": {"type": "line", "point": True},
                "encoding": {"x": x, "y": y, "tooltip": tooltip},
            },
        ],
    }
    rows = [
        [str(p["k"]), number(p["v"]), interval((p["lo"], p["hi"])), number(p["alike"])]
        for p in points
    ]
    columns = (
        "clusters",
        "gap",
        "a standard deviation either way",
        "alike without a fifth of the participants",
    )
    text = (
        "How much tighter the participants are in that many clusters than data without clusters would be (the gap "
        f"statistic). The dashed line is the number that the run went on with: {describe_note(choice)}."
    )
    return Plot("The gap by number of clusters", text, spec, Table(columns, rows))
