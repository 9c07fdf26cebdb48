# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How the run was set up, with what it ran, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cfl_flare.report.html.section import Section, Table
from cfl_flare.report.html.text import cut
from cfl_flare.report.html.view import View
from cfl_flare.results.missed import missed_rounds

# The summary's parts that are settings.
PARTS = ("method", "model", "data", "training", "run", "private", "seed", "initial_ckpt", "resumed_at", "name")
# So much of a summary's setting is shown, and so many of them.
WIDTH, MOST = 200, 300


def failures(view: View) -> Section | None:
    """Refused answers, missed rounds, sites left out; None if there were none."""
    summary, tables = view.run.summary, []
    left_out = summary.get("sites_left_out", {})
    if left_out:
        rows = [[cut(site), cut(why, WIDTH)] for site, why in left_out.items()]
        tables.append(("Sites that took no part", Table.of(("site", "reason"), rows)))
    missed = sorted(missed_rounds(view.run.rounds).items(), key=lambda one: -one[1].rounds)
    if missed:
        rows = [
            [view.shown.get(name, cut(name)), f"{m.rounds} of {m.asked}", cut(m.reason, WIDTH)] for name, m in missed
        ]
        columns = ("participant", "rounds missed", "most frequent reason")
        tables.append(("Missed rounds", Table.of(columns, rows)))
    rejected = summary.get("rejected")
    if isinstance(rejected, Mapping) and rejected:
        rows = [[cut(code), cut(count)] for code, count in rejected.items()]
        tables.append(("Refused answers", Table.of(("reason", "answers"), rows)))
    if not tables:
        return Section("Failures", text=["No answer was refused, and no participant that was asked missed a round."])
    return Section("Failures", tables=tables)


def settings(view: View) -> Section:
    """The settings and the versions."""
    summary, tables = view.run.summary, []
    found = [line for part in PARTS if part in summary for line in flattened(part, summary[part])]
    rows = [[cut(name, 100), cut(value, WIDTH)] for name, value in found]
    tables.append(("Settings", Table.of(("setting", "value"), rows, MOST)))
    versions = summary.get("versions")
    if isinstance(versions, Mapping):
        tables.append(("Versions", Table.of(("software", "version"), [[cut(n), cut(v)] for n, v in versions.items()])))
    return Section("Settings and versions", tables=tables)


def flattened(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A setting's parts, three levels deep, without those that are not set.

    >>> list(flattened("run", {"a": 1, "b": {"c": None, "d": []}}))
    [('run.a', 1)]
    """
    if isinstance(value, Mapping) and value and name.count(".") < 3:
        for key, own in value.items():
            yield from flattened(f"{name}.{key}", own)
    elif value not in (None, [], {}, ""):
        yield name, value
