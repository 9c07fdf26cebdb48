# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study as tables: the candidates, and what the chosen one brings each hospital."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from cfl_flare.core.text import plain
from cfl_flare.report.table import heading, in_table, number_text


def candidates_table(study: Mapping[str, Any]) -> Table:
    """One line a candidate: its mean on validation samples at each comparison, on test samples, and why it was dropped.

    Args:
        study: what `cfl_flare.results.study.load_study` read.
    """
    verdict = study["verdict"]
    metric = "" if verdict is None else heading(verdict["metric"])
    table = Table(title="candidates", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("candidate", no_wrap=True)
    for rung in study["rungs"]:
        table.add_column(f"validation, {rung['rounds']} rounds", justify="right")
    table.add_column(f"test {metric}".strip(), justify="right")
    table.add_column("")
    names = dict.fromkeys(name for rung in study["rungs"] for name in (*rung["means"], *rung["dropped"]))
    for name in names:
        means = [rung["means"].get(name) for rung in study["rungs"]]
        tested = None if verdict is None else verdict["tested"].get(name)
        why = next((rung["dropped"][name] for rung in study["rungs"] if name in rung["dropped"]), "")
        note = "chosen" if verdict is not None and verdict["chosen"]["name"] == name else why and f"dropped: {why}"
        cells = [number_text(value) for value in (*means, tested)]
        table.add_row(in_table(study["titles"].get(name, name)), *cells, escape(plain(note, 500)))
    return table


def hospitals_table(study: Mapping[str, Any]) -> Table:
    """One line a hospital: the chosen candidate there, and what it gains over one model and over training alone.

    Intervals are of its own patients, and hold together for all hospitals of a column with 95 %.
    """
    table = Table(title="what it brings each hospital", title_justify="left", box=None, padding=(0, 1, 0, 0))
    for name in ("hospital", "test samples", heading(study["verdict"]["metric"]), "over one model", "over alone"):
        table.add_column(name, justify="left" if name == "hospital" else "right", no_wrap=True)
    for one in study["verdict"]["hospitals"]:
        gains = [_gain(one[key]) for key in ("to_one", "to_alone")]
        table.add_row(in_table(one["name"]), str(one["tested"]), number_text(one["value"]), *gains)
    return table


def _gain(found: Mapping[str, Any] | None) -> str:
    """``+0.050 [+0.020, +0.080] gains``."""
    if found is None:
        return "-"
    says = in_table(found["says"]) + (f", needs {found['needed']}" if found["needed"] is not None else "")
    low, gain, high = (
        None if (value := found[key]) is None else f"{'+' * (value > 0)}{number_text(value)}"
        for key in ("low", "gain", "high")
    )
    ends = "" if low is None else escape(f" [{low}, {high}]")
    return says if gain is None else f"{gain}{ends} {says}"
