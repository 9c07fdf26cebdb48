# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How the participants' clusters changed over rounds."""

from __future__ import annotations

from cfl_flare.report.html import specs
from cfl_flare.report.html.section import Plot, Section, Table
from cfl_flare.report.html.text import cut
from cfl_flare.report.html.view import View, cluster_label, thinned

PEOPLE, COLUMNS = 80, 50

History = dict[str, dict[int, int]]


def moves(view: View) -> Section | None:
    """A cell for each participant and round, coloured by cluster; None if nobody was ever in one."""
    history = histories(view)
    if not history:
        return None
    rounds = sorted({r for own in history.values() for r in own})
    order = [name for name in view.by_cluster if name in history]
    who, when = thinned(order, PEOPLE), thinned(rounds, COLUMNS)
    used = sorted({k for own in history.values() for k in own.values()})
    truth = {person["name"]: f"group {cut(g)}" for person in view.people if (g := person.get("group")) is not None}
    rows_drawn = []
    for i, name in enumerate(who):  # a row a participant: its name is there once
        known = [r for r in when if r in history[name]]
        there = {"r": [r + 1 for r in known], "c": [cluster_label(history[name][r]) for r in known]}
        rows_drawn.append({"i": i, "name": view.shown[name], "g": truth.get(name), **there})
    groups = sorted({*truth.values()})
    greys = {**specs.colour(groups), "field": "g", "scale": {"domain": groups, "scheme": "greys"}}
    axis = {"labelLimit": 90} if len(who) <= specs.NAMED else None
    columns_drawn = [*(r + 1 for r in when), *(["truth"] if truth else [])]
    x = {**specs.ROUNDS, "scale": {"domain": columns_drawn}}
    cells = {"type": "rect", "aria": False}
    at_end = {
        "mark": {**cells, "width": {"band": 0.9}},
        "encoding": {"x": {"datum": "truth", "type": "ordinal"}, "color": greys},
    }
    spec = {
        "height": max(160, min(440, 14 * len(who))),
        "data": {"values": rows_drawn},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": {"field": "i"}, "title": None, "axis": axis},
            "tooltip": specs.tips(name="participant", r="round", c="in", **({"g": "true group"} if truth else {})),
        },
        "layer": [
            {
                "transform": [{"flatten": ["r", "c"]}],
                "mark": cells,
                "encoding": {"x": x, "color": specs.colour([cluster_label(k) for k in used])},
            },
            *([at_end] if truth else []),
        ],
        "resolve": {"scale": {"color": "independent"}},
    }
    rows, moved = [], 0
    for name in order:
        path = [k for _, k in sorted(history[name].items())]
        changes = [i for i in range(1, len(path)) if path[i] != path[i - 1]]
        moved += bool(changes)
        last = str(sorted(history[name])[changes[-1]] + 1) if changes else "-"
        rows.append([view.shown[name], cluster_label(path[0]), cluster_label(path[-1]), str(len(changes)), last])
        rows[-1] += [truth.get(name, "-")] if truth else []
    text = (
        f"{moved} of {len(order)} participants changed their cluster at least once. A row is a participant, in the "
        "order of the last clusters; where it has no cell, it had no cluster yet."
    )
    text += " Greys at the right are the true groups." if truth else ""
    columns = ["participant", "first cluster", "last cluster", "changes", "round of the last change"]
    columns += ["true group"] if truth else []
    notes = []
    if len(who) < len(order) or len(when) < len(rounds):
        notes.append(
            f"{len(who)} of {len(order)} participants and {len(when)} of {len(rounds)} rounds are drawn, evenly "
            "spaced; the table counts all rounds."
        )
    plot = Plot("Clusters by round", text, spec, Table.of(columns, rows))
    return Section("How assignments moved", plots=[plot], notes=notes)


def histories(view: View) -> History:
    """Each participant's cluster by round, where it had one."""
    history: History = {}
    for line in view.run.assignments:
        name, cluster = line["participant"], line["cluster"]
        if cluster is not None and name in view.shown:
            history.setdefault(name, {})[line["round"]] = cluster
    return history
