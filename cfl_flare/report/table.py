# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The table that a run ends with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.measure import Measurement
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from cfl_flare.results.run_dir import Run


def human_bytes(count: float) -> str:
    """Bytes for people.

    >>> human_bytes(512), human_bytes(2_500_000)
    ('512 B', '2.5 MB')
    """
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, int(math.log(max(count, 1), 1000)))
    return f"{count / 1000**power:.{1 if power else 0}f} {units[power]}"


def results_table(runs: Sequence[Run], folders: Sequence[str] = ()) -> Table:
    """One line a run: what its served models reach on the participants' own test splits after the last round.

    Accuracy and macro-F1 are means weighted by the participants' training samples; worst is the least accurate
    participant; ARI compares the clusters with the true groups; bytes are the models' arrays both ways; seconds are
    those of the rounds, without the start of the processes. Unseen is the mean accuracy of participants that were
    held back and joined afterwards.
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
            run.name,
            str(s["rounds"]),
            _number(final.get("served_accuracy")),
            _number(final.get("served_macro_f1")),
            _number(final.get("served_worst_accuracy")),
            *([_number((run.newcomers or {}).get("served_accuracy"))] if joined else []),
            "/".join(map(str, sizes)) if len(sizes) <= 5 else f"{sum(v > 0 for v in sizes)} of {len(sizes)}",
            _number(final.get("ari")),
            human_bytes(s["bytes_down"] + s["bytes_up"]),
            f"{s['seconds']:.1f}",
            *([folders[i]] if folders else []),
        )
    return table


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}"


def print_whole(console: Console, table: Table) -> None:
    """Prints a table as wide as it is: where the terminal is narrower, its lines wrap, and no figure is cut."""
    table.width = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.print(table, soft_wrap=True)
