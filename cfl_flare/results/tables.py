# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The tables in the terminal: of runs, of a partition, and those of reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import filesize
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as TerminalTable

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.text import plain
from cfl_flare.extensions import collect_columns
from cfl_flare.results.bootstrap import paired_difference, tenth_of
from cfl_flare.results.metrics import ACCURACY, POOLED, POOLED_F1, of_training
from cfl_flare.results.remarks import IMPROVING, floor_in_run, missed_rounds
from cfl_flare.results.run_dir import Run
from cfl_flare.results.wording import cut, measure_name, number_text, signed

if TYPE_CHECKING:
    from cfl_flare.data import PartitionReport

# An accuracy is shown with that of naming one class, if that is right at least this often.
FREQUENT = 0.5
# Metrics that are shown next to those by which the runs are judged, and participants of a run that are named.
MOST, NAMED = 2, 10
# Columns of text beside the first one.
LARGEST = "training samples of the largest classes"
TEXTS = ("folder", "what became of it", LARGEST)

# Rows of a table; a table with more shows the first ones, and says how many are left out.
ROWS = 500


@dataclass(frozen=True)
class Table:
    """A table of text, of which the page shows ``most`` rows. A row's first cell is its heading."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    most: int = ROWS


def in_table(name: Any, limit: int = 200) -> str:
    r"""A name for a table of rich: one line, cut, and no markup.

    >>> in_table("[red]a\x1b")
    '\\[red]a\\x1b'
    """
    return escape(plain(str(name), limit))


def results_table(runs: Sequence[Run], folders: Sequence[str] = ()) -> TerminalTable:
    """The table of `runs_table` for the terminal; below it is who missed rounds and why, and what the floor changed."""
    where = (
        "as training scripts report"
        if all(run.script for run in runs)
        else "on the participants' own test splits"
    )
    table = printed(
        f"served models, {where}", runs_table(runs, [run.name for run in runs], folders)
    )
    table.caption = "\n".join([*floor_lines(runs), *missed_lines(runs)]) or None
    table.caption_justify = "left"
    return table


def printed(title: str, table: Table) -> TerminalTable:
    """A report's table for the terminal."""
    for_terminal = TerminalTable(
        title=title, title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    for column in table.columns:
        of_text = column in (table.columns[0], *TEXTS)
        for_terminal.add_column(
            in_table(column), justify="left" if of_text else "right", no_wrap=True
        )
    for row in table.rows:
        for_terminal.add_row(*(in_table(cell, 500) for cell in row))
    return for_terminal


def runs_table(
    runs: Sequence[Run], labels: Sequence[str], folders: Sequence[str] = ()
) -> Table:
    """One line per run: the results of its served models on the participants' own test splits after the last round.

    Metrics are means weighted by the participants' training samples, or a script's steps: those by which the runs are
    judged, and others that participants report. Where a mean is not of all that were measured, their number follows it.
    Majority is the accuracy of naming the most frequent class everywhere, where that is at least one half. Pooled
    AUROC and macro-F1 are those of all participants' samples together. The worst tenth of the participants has its mean
    and interval; without draws there is the lowest or highest value of the run's metric. Unseen is the mean of that
    metric over participants that were held back and joined afterwards. ARI compares the clusters with the true groups.
    Bytes are the models' arrays in both directions. Seconds are those of the rounds, without the start of the
    processes. An interval follows a mean of a run with bootstrap. "To the first" is by how much a line's mean is above
    the first line's, paired, or a dash where the two cannot be paired.
    """
    finals = [run.summary["final"] for run in runs]
    leading = list(dict.fromkeys(run.metric.name for run in runs))
    reported = dict.fromkeys(
        name for run in runs for name in run.reported if not of_training(name)
    )
    metrics = [
        *leading,
        *islice((name for name in reported if name not in leading), MOST),
    ]
    which = {name: measure_name(name) if len(leading) > 1 else "" for name in leading}
    columns: list[tuple[str, Iterable[str]]] = [
        ("rounds", [cut(run.summary["rounds"]) for run in runs])
    ]
    columns += [
        (measure_name(name), [_defined(run, f"served_{name}") for run in runs])
        for name in metrics
    ]
    majorities = [
        share if (share := run.summary.get("majority") or 0) >= FREQUENT else None
        for run in runs
    ]
    if any(majorities) and ACCURACY in metrics:
        columns.append(("majority", map(number_text, majorities)))
    for name in (POOLED, POOLED_F1):
        if any(name in final for final in finals):
            title = f"pooled {measure_name(name.removeprefix('pooled_'))}"
            columns.append((title, [_defined(run, name) for run in runs]))
    for name, metric in which.items():
        columns.append(_far_end(runs, name, metric))
    if any(run.newcomers for run in runs):
        for name, metric in which.items():
            values = [(run.newcomers or {}).get(f"served_{name}") for run in runs]
            columns.append((f"unseen {metric}", map(number_text, values)))
    if len(runs) > 1 and any(run.summary.get("intervals") for run in runs):
        for name, metric in which.items():
            columns.append(
                (
                    f"{metric} to the first",
                    [_difference(run, runs[0], name) for run in runs],
                )
            )
    columns += [
        ("clusters", map(_sizes, finals)),
        ("ARI", [number_text(final.get("ari")) for final in finals]),
        *_extension_columns(runs),
        (
            "bytes",
            [
                filesize.decimal(run.summary["bytes_down"] + run.summary["bytes_up"])
                for run in runs
            ],
        ),
        ("seconds", [f"{run.summary['seconds']:.1f}" for run in runs]),
    ]
    columns += [("folder", [cut(folder, 200) for folder in folders])] if folders else []
    rows = zip([cut(label, 200) for label in labels], *(cells for _, cells in columns))
    return Table(
        ("method", *(title.strip() for title, _ in columns)), [*map(list, rows)]
    )


def _extension_columns(runs: Sequence[Run]) -> list[tuple[str, Iterable[str]]]:
    """The columns of extensions, with a dash for a run that has no cell there."""
    cells = [collect_columns(run) for run in runs]
    titles = dict.fromkeys(title for of_run in cells for title in of_run)
    columns: list[tuple[str, Iterable[str]]] = []
    for title in titles:
        columns.append((cut(title), [cut(of_run.get(title, "-")) for of_run in cells]))
    return columns


def _defined(run: Run, name: str) -> str:
    """A number of the run's last record, its interval, and how many participants have it where that is not all."""
    value, ends = (
        run.summary["final"].get(name),
        run.summary.get("intervals", {}).get(name),
    )
    count, everyone = run.defined(name)
    some = "" if value is None or count == everyone else f" ({count} of {everyone})"
    return number_text(value) + (_ends(*ends) if ends else "") + some


def _far_end(runs: Sequence[Run], name: str, metric: str) -> tuple[str, list[str]]:
    """The worst tenth of the participants with its interval, or the lowest or highest value where there are none."""
    tenths = [tenth_of(run) if run.metric.name == name else None for run in runs]
    if any(tenths):
        return f"worst tenth {metric}", [
            "-" if t is None else number_text(t[0]) + _ends(*t[1]) for t in tenths
        ]
    far = next(run.metric.far_end for run in runs if run.metric.name == name)
    return f"{far} {metric}", [
        number_text(run.summary["final"].get(f"served_worst_{name}")) for run in runs
    ]


def _difference(run: Run, first: Run, metric: str) -> str:
    try:
        difference = None if run is first else paired_difference(run, first, metric)
    except ConfigError:  # they cannot be paired
        difference = None
    return (
        "-"
        if difference is None
        else signed(difference.mean) + _ends(difference.low, difference.high)
    )


def _ends(low: float, high: float) -> str:
    """An interval; an end next to zero is written as the other one."""
    fixed = 1e-3 <= max(abs(low), abs(high)) < 1e6
    return " [{}, {}]".format(
        *(f"{end:.3f}" if fixed else number_text(end) for end in (low, high))
    )


def _sizes(final: Mapping[str, Any]) -> str:
    """The clusters' sizes; of many clusters, how many are in use."""
    sizes = [
        int(value)
        for key, value in final.items()
        if key.startswith("cluster-") and key.endswith("/size")
    ]
    return (
        "/".join(map(str, sizes))
        if len(sizes) <= 5
        else f"{sum(v > 0 for v in sizes)} of {len(sizes)}"
    )


def print_whole(console: Console, table: TerminalTable) -> None:
    """Prints a table in full width: in a narrower terminal its lines wrap, and nothing is cut off."""
    table.width = Measurement.get(
        console, console.options.update(max_width=1000), table
    ).maximum
    console.print(table, soft_wrap=True)


def floor_lines(runs: Sequence[Run]) -> list[str]:
    """What the floor of a cluster's size changed, see `cfl_flare.results.remarks`; and which runs were too short."""
    several = len(runs) > 1
    return [
        in_table(f"{run.name}: {line}" if several else line, 500)
        for run in runs
        for line in (*floor_in_run(run.summary, run.rounds), run.summary.get(IMPROVING))
        if line is not None
    ]


def missed_lines(runs: Sequence[Run]) -> list[str]:
    """A sentence for each site that took no part and each participant that missed rounds."""
    lines: list[str] = []
    for run in runs:
        of = f"{run.name}: " if len(runs) > 1 else ""
        for site, reason in run.summary.get("sites_left_out", {}).items():
            lines.append(f"{of}{site} took no part: {reason}")
        missed = missed_rounds(run.rounds)
        lines += [
            f"{of}{name} missed {times}"
            for name, times in islice(missed.items(), NAMED)
        ]
        if len(missed) > NAMED:
            lines.append(
                f"{of}{len(missed) - NAMED} more missed rounds; summary.json has them"
            )
    return [in_table(line) for line in lines]


def partition_table(report: PartitionReport) -> TerminalTable:
    """One line per participant: its true group, its samples, and its classes with their training samples.

    The last lines are the totals and the samples of the source that stayed unused.
    """
    title = f"partition {report.rule}" + (
        "" if report.disjoint else ": samples were dealt twice"
    )
    rows = []
    for name, group, train, test in zip(
        report.names, report.truth, report.train, report.test
    ):
        count = np.count_nonzero(train)
        most = [c for c in np.argsort(-train, kind="stable")[:5] if train[c]]
        largest = ", ".join(f"{report.name_class(c)}: {train[c]}" for c in most)
        group_label = "-" if group is None else str(group)
        rows.append(
            [
                name,
                group_label,
                *map(str, (train.sum(), test.sum(), count)),
                largest + " ..." * bool(count > 5),
            ]
        )
    rows.append(["all", "", str(report.train.sum()), str(report.test.sum()), "", ""])
    rows.append(
        ["unused", "", str(report.train_unused), str(report.test_unused), "", ""]
    )
    return printed(
        title,
        Table(("participant", "group", "train", "test", "classes", LARGEST), rows),
    )
