# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A dossier's choices: what was compared and not chosen, and who is in which cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cfl_flare.report.clusters import moves
from cfl_flare.report.dossier_view import Dossier
from cfl_flare.report.page import Section, Table, View, cluster_label
from cfl_flare.report.text import cut, interval, named, number, signed

# The last rounds begin after this part of all.
LATE = 0.75


def not_chosen(of: Dossier) -> Section:
    study = of.study
    title = "What was compared and not chosen"
    if study is None or study["verdict"] is None:
        return Section(title, ["This run is of no study: nothing is known of other candidates."])
    tested, titles = study["verdict"]["tested"], study["titles"]
    dropped = {name: why for rung in study["rungs"] for name, why in rung["dropped"].items()}
    rows = [
        [cut(titles.get(name, name), 200), number(tested.get(name)), cut(dropped.get(name, "it was not"), 300)]
        for name in titles
    ]
    headings = ("candidate", f"{cut(study['verdict']['metric'])} on test samples", "why it was dropped")
    tables = [("Candidates", Table(headings, rows)), ("What was chosen, at each hospital", _at_hospitals(study))]
    return Section(title, [cut(s, 500) for s in study["verdict"]["sentences"]], tables=tables)


def _at_hospitals(study: Mapping[str, Any]) -> Table:
    """What was chosen at each hospital, and its gains with intervals."""
    rows = []
    for hospital in study["verdict"]["hospitals"]:
        gains = [hospital[key] or {} for key in ("to_one", "to_alone")]
        ends = [f"{signed(gain.get('gain'))} ({interval((gain.get('low'), gain.get('high')))})" for gain in gains]
        rows.append([cut(hospital["name"]), number(hospital["tested"]), number(hospital["value"]), *ends])
    headings = ("hospital", "test samples", cut(study["verdict"]["metric"]), "gain over one model", "gain over alone")
    return Table(headings, rows)


def clusters(of: Dossier) -> Section | None:
    view = View(of.run)
    part = moves(view)
    if part is None:
        return Section("Clusters", ["The run has no clusters."])
    late = [round(LATE * of.run.summary["rounds"]), 0]
    shares = {name: [_share_there(view, name, since) for since in late] for name in view.by_cluster}
    rows = [
        [
            view.shown[name],
            cluster_label(view.clusters[name]),
            *("-" if s is None else f"{s:.0%}" for s in shares[name]),
        ]
        for name in view.by_cluster
    ]
    unsure = [view.shown[name] for name, (share, _) in shares.items() if share is not None and share < 1]
    who = f"All hospitals but {named(unsure, 20)}" if unsure else "All hospitals"
    last = of.run.summary["rounds"] - late[0]
    text = f"{who} were in their cluster in each of the last {last} rounds in which they had one."
    table = ("Who is where", Table(("hospital", "cluster", "there in the last rounds", "in all rounds"), rows))
    return replace(part, title="Clusters", text=[*part.text, text], tables=[table])


def _share_there(view: View, name: str, since: int) -> float | None:
    """In which share of the rounds from one on a hospital was in its last cluster; None if it was in none then."""
    there = [k == view.clusters[name] for r, k in view.histories.get(name, {}).items() if r >= since]
    return sum(there) / len(there) if there else None
