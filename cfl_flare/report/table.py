# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The table of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import filesize
from rich.measure import Measurement
from rich.table import Table

from cfl_flare.report.labels import in_table
from cfl_flare.report.missed import missed_lines

if TYPE_CHECKING:
    from rich.console import Console

    from cfl_flare.results.run_dir import Run


def results_table(runs: Sequence[Run], folders: Sequence[str] = ()) -> Table:
    """One line per run: the results of its served models on the participants' own test splits after the last round.

    Accuracy and macro-F1 are means weighted by the participants' training samples; worst is the least accurate
    participant; unseen is the mean accuracy of participants that were held back and joined afterwards; ARI compares the
    clusters with the true groups; bytes are the models' arrays in both directions; seconds are those of the rounds,
    without the start of the processes. Below are the participants that missed rounds, with the reason.
    """
    title = "served models, on the participants' own test splits"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    joined = any(run.newcomers for run in runs)
    measures = ("rounds", "accuracy", "macro-F1", "worst", *(["unseen"] if joined else []))
    for name in (*measures, "clusters", "ARI", "bytes", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    if folders:
        table.add_column("folder", no_wrap=True)
    for i, run in enumerate(runs):
        final, s = run.summary["final"], run.summary
        sizes = [int(v) for k, v in final.items() if k.startswith("cluster-") and k.endswith("/size")]
        table.add_row(
            in_table(run.name),
            in_table(s["rounds"]),
            _number(final.get("served_accuracy")),
            _number(final.get("served_macro_f1")),
            _number(final.get("served_worst_accuracy")),
            *([_number((run.newcomers or {}).get("served_accuracy"))] if joined else []),
            "/".join(map(str, sizes)) if len(sizes) <= 5 else f"{sum(v > 0 for v in sizes)} of {len(sizes)}",
            _number(final.get("ari")),
            filesize.decimal(s["bytes_down"] + s["bytes_up"]),
            f"{s['seconds']:.1f}",
            *([in_table(folders[i])] if folders else []),
        )
    table.caption = "\n".join(missed_lines(runs)) or None
    table.caption_justify = "left"
    return table


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}"


def print_whole(console: Console, table: Table) -> None:
    """Prints a table in full width: in a narrower terminal its lines wrap, and nothing is cut off."""
    table.width = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.print(table, soft_wrap=True)
