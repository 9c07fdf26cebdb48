# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The table of results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich import filesize
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.text import plain
from cfl_flare.results.bootstrap import paired_difference
from cfl_flare.results.convergence import IMPROVING
from cfl_flare.results.floor import of_run
from cfl_flare.results.key_metric import ACCURACY, POOLED, POOLED_F1, of_training
from cfl_flare.results.missed import missed_rounds

if TYPE_CHECKING:
    from rich.console import Console

    from cfl_flare.results.run_dir import Run

NAMES = {"macro_f1": "macro-F1", "c_index": "C-index"}
NAMES |= {name: name.upper() for name in ("auroc", "auprc", "ece", "mae", "rmse", "r2")}
# An accuracy is shown with that of naming one class, if that is right so often.
FREQUENT = 0.5
# Metrics that are shown beside those by which the runs are judged.
MOST = 2
# So many participants of a run are named.
NAMED = 10


def in_table(name: Any, limit: int = 200) -> str:
    r"""A name for a table of rich: one line, cut, and no markup.

    >>> in_table("[red]a\x1b")
    '\\[red]a\\x1b'
    """
    return escape(plain(str(name), limit))


def results_table(runs: Sequence[Run], folders: Sequence[str] = ()) -> Table:
    """One line per run: the results of its served models on the participants' own test splits after the last round.

    Metrics are means weighted by the participants' training samples, or a script's steps: those by which the runs are
    judged, and others that participants report; where a mean is not of all that were measured, their number is beside
    it. Majority is the accuracy of naming the most frequent class everywhere, where that is at least one half. Pooled
    AUROC and macro-F1 are those of all participants' samples together. Worst is the participant with the worst value of
    the run's metric; unseen is the mean of that metric over participants that were held back and joined afterwards; ARI
    compares the clusters with the true groups; bytes are the models' arrays in both directions; seconds are those of
    the rounds, without the start of the processes. Means of a run with bootstrap have their interval beside them, and
    "to the first" is by how much a line's mean is above the first line's, paired; a dash where the two cannot be
    paired. Below are the participants that missed rounds, with the reason.
    """
    measured = (
        "as training scripts report" if all(run.script for run in runs) else "on the participants' own test splits"
    )
    title = f"served models, {measured}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    joined = any(run.newcomers for run in runs)
    leading, shown = _metrics(runs)
    pooled = [name for name in (POOLED, POOLED_F1) if any(name in run.summary["final"] for run in runs)]
    majorities = {i: share for i, run in enumerate(runs) if (share := run.summary.get("majority") or 0) >= FREQUENT}
    naming = bool(majorities) and ACCURACY in shown
    measures = [
        "rounds",
        *map(heading, shown),
        *(["majority"] if naming else []),
        *(f"pooled {heading(name.removeprefix('pooled_'))}" for name in pooled),
    ]
    for what in ("worst", "unseen") if joined else ("worst",):
        measures += [what if len(leading) == 1 else f"{what} {heading(name)}" for name in leading]
    compared = leading if len(runs) > 1 and any(run.summary.get("intervals") for run in runs) else []
    measures += ["to the first" if len(leading) == 1 else f"{heading(name)} to the first" for name in compared]
    for name in (*measures, "clusters", "ARI", "bytes", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    if folders:
        table.add_column("folder", no_wrap=True)
    for i, run in enumerate(runs):
        final, s, newcomers = run.summary["final"], run.summary, run.newcomers or {}
        sizes = [int(v) for k, v in final.items() if k.startswith("cluster-") and k.endswith("/size")]
        table.add_row(
            in_table(run.name),
            in_table(s["rounds"]),
            *(_defined(run, f"served_{name}") for name in shown),
            *([number_text(majorities.get(i))] if naming else []),
            *(_defined(run, name) for name in pooled),
            *(number_text(final.get(f"served_worst_{name}")) for name in leading),
            *(number_text(newcomers.get(f"served_{name}")) for name in leading if joined),
            *(_difference(run, runs[0], name) for name in compared),
            "/".join(map(str, sizes)) if len(sizes) <= 5 else f"{sum(v > 0 for v in sizes)} of {len(sizes)}",
            number_text(final.get("ari")),
            filesize.decimal(s["bytes_down"] + s["bytes_up"]),
            f"{s['seconds']:.1f}",
            *([in_table(folders[i])] if folders else []),
        )
    table.caption = "\n".join([*floor_lines(runs), *missed_lines(runs)]) or None
    table.caption_justify = "left"
    return table


def _metrics(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """The metrics by which runs are judged, and those that are shown: these, and a few more that tell of the models."""
    leading = list(dict.fromkeys(run.metric.name for run in runs))
    others = dict.fromkeys(name for run in runs for name in run.reported if not of_training(name))
    return leading, [*leading, *islice((name for name in others if name not in leading), MOST)]


def heading(metric: str) -> str:
    """A metric's name over its column."""
    return NAMES.get(metric, in_table(metric))


def _defined(run: Run, name: str) -> str:
    """A number of the run's last record, its interval, and of how many participants it is where that is not all."""
    value, ends = run.summary["final"].get(name), run.summary.get("intervals", {}).get(name)
    count, everyone = run.defined(name)
    some = "" if value is None or count == everyone else f" ({count} of {everyone})"
    return number_text(value) + (_ends(*ends) if ends else "") + some


def number_text(value: Any) -> str:
    """Three digits after the point, unless they say nothing of so small or large a number."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def _difference(run: Run, first: Run, metric: str) -> str:
    """By how much a run's mean is above the first run's, with the interval; a dash where they cannot be paired."""
    if run is first:
        return "-"
    try:
        apart = paired_difference(run, first, metric)
    except ConfigError:
        return "-"
    return ("+" if apart.mean > 0 else "") + number_text(apart.mean) + _ends(apart.low, apart.high)


def _ends(low: float, high: float) -> str:
    return escape(f" [{number_text(low)}, {number_text(high)}]")


def print_whole(console: Console, table: Table) -> None:
    """Prints a table in full width: in a narrower terminal its lines wrap, and nothing is cut off."""
    table.width = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.print(table, soft_wrap=True)


def floor_lines(runs: Sequence[Run]) -> list[str]:
    """What the floor of a cluster's size changed, see `cfl_flare.results.floor`; and which runs were too short."""
    several = len(runs) > 1
    return [
        in_table(f"{run.name}: {line}" if several else line, 500)
        for run in runs
        for line in (*of_run(run.summary, run.rounds), run.summary.get(IMPROVING))
        if line is not None
    ]


def missed_lines(runs: Sequence[Run]) -> list[str]:
    """A sentence for each site that took no part and each participant that missed rounds, who missed most first."""
    lines: list[str] = []
    for run in runs:
        of = f"{run.name}: " if len(runs) > 1 else ""
        for site, reason in run.summary.get("sites_left_out", {}).items():
            lines.append(in_table(f"{of}{site} took no part: {reason}"))
        missed = sorted(missed_rounds(run.rounds).items(), key=lambda one: -one[1].rounds)
        for name, m in missed[:NAMED]:
            lines.append(in_table(f"{of}{name} missed {m.rounds} of {m.asked} rounds: {m.reason}"))
        if len(missed) > NAMED:
            lines.append(in_table(f"{of}{len(missed) - NAMED} more missed rounds; summary.json has them"))
    return lines
