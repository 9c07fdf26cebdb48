# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Several runs beside each other: their measures, their curves, and what each participant gains over the first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from rich import filesize

from cfl_flare.core.errors import CFLError
from cfl_flare.report.html import curves, specs
from cfl_flare.report.html.clusters import sizes_plot
from cfl_flare.report.html.page import page
from cfl_flare.report.html.section import ROWS, Plot, Section, Table, attempt
from cfl_flare.report.html.text import cut, finite, interval, measure_name, number, signed, told_apart, unique
from cfl_flare.report.html.view import View, thinned
from cfl_flare.results.bootstrap import Difference, paired_difference
from cfl_flare.results.schema import number as is_number

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run

# Runs that are drawn; the table has them all.
RUNS = 10
# Runs whose participants are compared with the first run's.
GAINS = 6


@dataclass(frozen=True)
class Runs:
    """Runs to compare, the first of which is what the others are compared with.

    Attributes:
        runs: at least two.
        folder: that they are below.
    """

    runs: Sequence[Run]
    folder: Path

    @cached_property
    def labels(self) -> list[str]:
        """What each run is called, told apart by its folder where two have one name."""
        names = [run.name for run in self.runs]
        several = {name for name in names if names.count(name) > 1}
        where = [f"{run.name} in {run.folder.name}" if run.name in several else run.name for run in self.runs]
        return told_apart(where)

    @property
    def metric(self) -> str:
        """By which the first run is judged."""
        return self.runs[0].metric.name

    @cached_property
    def differences(self) -> list[Difference | str]:
        """Of each run after the first one: what it gains, paired draw by draw, or why that cannot be said."""
        return [_difference(run, self.runs[0], self.metric) for run in self.runs[1:]]


def comparison_report(runs: Sequence[Run], folder: Path) -> str:
    """The report of several runs, as HTML."""
    them = Runs(runs, folder)
    found = [
        attempt(make.__name__, partial(make, them)) for make in (result, methods, over_rounds, sizes_of_runs, gains)
    ]
    subtitle = f"{len(runs)} runs below {cut(folder.name)}, judged by {measure_name(them.metric)}"
    return page("Comparison of runs", subtitle, [one for one in found if one is not None])


def result(them: Runs) -> Section:
    """What can be said of each run against the first one, in a sentence each."""
    first, text = them.labels[0], []
    for label, found in zip(them.labels[1:], them.differences):
        if isinstance(found, str):
            text.append(f"{label} against {first}: no paired interval, so no claim ({cut(found, 300)}).")
            continue
        better = them.runs[0].metric.mode == "max"
        low, high = (found.low, found.high) if better else (-found.high, -found.low)
        verdict = "better" if low > 0 else "worse" if high < 0 else "not told apart"
        text.append(
            f"{label} against {first}: {verdict}; {measure_name(them.metric)} differs by {signed(found.mean)} on "
            f"average (paired 95 % interval {interval((found.low, found.high))})."
        )
    text.append("Intervals are of the test samples alone, on these participants and with this seed.")
    return Section("Result", text)


def methods(them: Runs) -> Section:
    """A row for each run."""
    metric, key, rows = them.metric, f"served_{them.metric}", []
    for i, (run, label) in enumerate(zip(them.runs, them.labels)):
        summary, final = run.summary, run.summary["final"]
        sizes = run.rounds[-1]["cluster_sizes"] if run.rounds else []
        rows.append(
            [
                label,
                str(summary["rounds"]),
                number(final.get(key)),
                interval(summary.get("intervals", {}).get(key)),
                number(final.get(f"served_worst_{metric}")),
                _apart(them.differences[i - 1]) if i else "-",
                str(sum(size > 0 for size in sizes)) if sizes else "-",
                number(final.get("ari")),
                filesize.decimal(int(summary["bytes_down"] + summary["bytes_up"])),
                f"{summary['seconds']:.1f}",
                cut(run.folder.relative_to(them.folder)),
            ]
        )
    columns = ("method", "rounds", measure_name(metric), "95 % interval", "worst", "to the first", "clusters", "ARI")
    table = Table.of((*columns, "bytes", "seconds", "folder"), rows)
    where = "as training scripts report" if all(r.script for r in them.runs) else "on the participants' own test splits"
    text = f"Of the served models after the last round, {where}."
    return Section("Methods", [text], tables=[("Runs", table)])


def over_rounds(them: Runs) -> Section | None:
    """Each metric by round, the mean and the worst participant, with a line for each run that is judged by it."""
    drawn, plots = list(zip(them.runs, them.labels))[:RUNS], []
    parts = (
        ("", "The mean over participants, weighted by training samples.", "served_"),
        ("Worst ", "The participant with the worst value in that round.", "served_worst_"),
    )
    for metric, (what, text, prefix) in product(dict.fromkeys(run.metric.name for run, _ in drawn), parts):
        key, lines = prefix + metric, {}
        for run, label in drawn:
            values = {line["round"] + 1: v for line in View(run).rounds if (v := finite(line.get(key))) is not None}
            if run.metric.name == metric and values:
                lines[label] = values
        if lines:
            plots.append(curves.plot(f"{what}{measure_name(metric)} by round", text, lines, "value"))
    notes = [f"The first {RUNS} of {len(them.runs)} runs are drawn."] if len(them.runs) > RUNS else []
    return Section("Convergence", plots=plots, notes=notes) if plots else None


def sizes_of_runs(them: Runs) -> Section | None:
    """The clusters' sizes of each run; None if fewer than two of them cluster."""
    plots = [sizes_plot(View(run), label) for run, label in list(zip(them.runs, them.labels))[:RUNS]]
    shown = [plot for plot in plots if plot is not None]
    return Section("Participants in each cluster", plots=shown) if len(shown) > 1 else None


def gains(them: Runs) -> Section | None:
    """What each participant gains by each run over the first one."""
    plots = [_gains(them, i) for i in range(1, min(len(them.runs), GAINS + 1))]
    found = [plot for plot in plots if plot is not None]
    if not found:
        return None
    notes = [f"The first {GAINS} of {len(them.runs) - 1} runs are compared."] if len(them.runs) > GAINS + 1 else []
    return Section("What each participant gains", plots=found, notes=notes)


def _gains(them: Runs, i: int) -> Plot | None:
    """One run's; None if the two have no participant in common that measured."""
    key, run, paired = f"served_{them.metric}", them.runs[i], them.differences[i - 1]
    base = {p["name"]: p[key] for p in them.runs[0].summary["participants"] if is_number(p.get(key))}
    mine = {
        p["name"]: p[key] - base[p["name"]]
        for p in run.summary["participants"]
        if is_number(p.get(key)) and p["name"] in base
    }
    ends = {name: own[1:] for name, own in paired.by_participant.items()} if isinstance(paired, Difference) else {}
    order = sorted((name for name in mine if finite(mine[name]) is not None), key=lambda name: mine[name])
    if not order:
        return None
    shown, label = unique(order), them.labels[i]
    rows = [
        {"name": shown[n], "v": finite(mine[n]), "c": label}
        | ({"lo": finite(ends[n][0]), "hi": finite(ends[n][1])} if n in ends else {})
        for n in thinned(order, ROWS)
    ]
    up = sum(mine[name] > 0 for name in order)
    higher = f"{up} of {len(order)} have a higher {measure_name(them.metric)} than with {them.labels[0]}. "
    if ends:
        clear = sum(ends[name][0] > 0 for name in ends), sum(ends[name][1] < 0 for name in ends)
        higher += f"{clear[0]} intervals lie above 0 and {clear[1]} below; of equal models one in twenty would."
    else:
        higher += "There are no paired draws, so which of these differences are chance is not known."
    table = [[shown[n], signed(mine[n]), interval(ends.get(n))] for n in order]
    columns = ("participant", f"{measure_name(them.metric)}: difference", "paired 95 % interval")
    title = f"{label} against {them.labels[0]}"
    return Plot(title, higher, specs.ranked(rows, [label], "difference", zero=True), Table.of(columns, table))


def _apart(found: Difference | str) -> str:
    """A difference with its interval; a dash where there is none."""
    return "-" if isinstance(found, str) else f"{signed(found.mean)} ({interval((found.low, found.high))})"


def _difference(run: Run, first: Run, metric: str) -> Difference | str:
    try:
        return paired_difference(run, first, metric)
    except CFLError as error:
        return str(error).replace(str(run.folder), run.folder.name).replace(str(first.folder), first.folder.name)
