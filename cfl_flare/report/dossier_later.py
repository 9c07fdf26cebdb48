# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What became of a dossier's model after its run: who withdrew, and in which other formats it was written."""

from __future__ import annotations

from typing import Any

from cfl_flare.report.dossier_view import Dossier
from cfl_flare.report.page import Section, Table
from cfl_flare.report.text import cut, named

# Names that are listed.
NAMED = 20


def withdrawn(of: Dossier) -> Section:
    """Who withdrew, what of them is in the model, and what a run without them would still have of them."""
    report = of.withdrawal
    if report is None:
        return Section("Withdrawals", ["The run's folder has no record of a withdrawal."])
    since, first = report["models"].get(of.slot), report["first_round"]
    text = [f"{named([*map(cut, report['withdrawn'])], NAMED)} withdrew after the run."]
    if first is None:
        text.append("They trained in no round, and touched no model. Figures of theirs may be in the run.")
    else:
        text.append(f"They are in this model from round {since} on." if since is not None else "They never touched it.")
    text += [f"All clusters have to train again: {cut(why, 300)}." for why in report["why_all"] if report["again"]]
    text += [f"A run without them still has of them: {cut(what, 300)}." for what in report["not_zero"]]
    rows = [
        ("the first round in which they trained", "none" if first is None else first),
        ("models that they touched", ", ".join(sorted(report["models"])) or "none"),
        ("models that they did not touch", ", ".join(report["untouched"]) or "none"),
        *((f"{name} that they touched", len(report[name])) for name in ("files", "checkpoints")),
        ("later runs that started from a touched file", len(report["later_runs"])),
        ("hospitals that have to train again", len(report["again"])),
        ("run again without them", "yes" if "rerun" in report else "a job was written" if "job" in report else "no"),
    ]
    return Section("Withdrawals", text, tables=[("What was touched", _table(rows))])


def other_formats(of: Dossier) -> Section:
    """What a reader of the model's other formats has to know: the description that lies beside them."""
    if of.formats is None:
        return Section("Other formats", ["The model was written in no other format; see --formats."])
    given = of.formats["input"]
    rows = [("input", _tensor(given)), ("values of the input", given["values"]), ("in the graph", given["in_graph"])]
    for output in of.formats["outputs"]:
        rows += [(f"output {output['name']}", _tensor(output)), (f"values of {output['name']}", output["values"])]
    rows += [("classes", ", ".join(of.formats["classes"]))] if of.formats["classes"] else []
    text = f"{of.slot}.json beside this file has the same for programs."
    return Section("Other formats", [text], tables=[("Inputs and outputs", _table(rows))])


def _tensor(described: dict[str, Any]) -> str:
    return f"{described['name']}, {described['dtype']}, ({', '.join(map(str, described['shape']))})"


def _table(rows: list[tuple[str, Any]]) -> Table:
    return Table(("what", "value"), [(name, cut(value, 300)) for name, value in rows])
