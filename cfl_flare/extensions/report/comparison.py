# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report of several runs: their measures, their curves, and what each participant gains over the first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cfl_flare.core.errors import CFLError
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.clusters import sizes_plot
from cfl_flare.extensions.report.page import (
    Plot,
    Section,
    Series,
    Table,
    View,
    line_plot,
    page,
    sections,
    thinned,
)
from cfl_flare.results.bootstrap import Difference, paired_difference
from cfl_flare.results.run_dir import Run
from cfl_flare.results.tables import ROWS, runs_table
from cfl_flare.results.wording import (
    axis_title,
    cut,
    finite,
    interval,
    measure_name,
    signed,
    told_apart,
    unique,
)

# Runs that are drawn, and those whose participants are compared with the first run's; the table has them all.
RUNS, GAINS = 10, 6


@dataclass(frozen=True)
class Runs:
    """At least two runs below a folder, to compare with the first of them."""

    runs: Sequence[Run]
    folder: Path

    @cached_property
    def labels(self) -> list[str]:
        """What each run is called, told apart by its folder where two have one name."""
        names = [run.name for run in self.runs]
        return told_apart(
            f"{run.name} in {run.folder.name}"
            if names.count(run.name) > 1
            else run.name
            for run in self.runs
        )

    @property
    def drawn(self) -> list[tuple[Run, str]]:
        """The runs that are drawn, with their labels."""
        return list(zip(self.runs, self.labels))[:RUNS]

    @property
    def metric(self) -> str:
        """By which the first run is judged."""
        return self.runs[0].metric.name

    @cached_property
    def differences(self) -> list[Difference | str]:
        """Of each run after the first one: what it gains, paired draw by draw, or why that cannot be said."""
        differences: list[Difference | str] = []
        for run in self.runs[1:]:
            try:
                differences.append(paired_difference(run, self.runs[0], self.metric))
            except CFLError as error:
                reason = str(error)
                for folder in (run.folder, self.runs[0].folder):
                    reason = reason.replace(str(folder), folder.name)
                differences.append(reason)
        return differences


def comparison_report(runs: Sequence[Run], folder: Path) -> str:
    """The report of several runs, as HTML."""
    compared = Runs(runs, folder)
    subtitle = f"{len(runs)} runs below {cut(folder.name)}, judged by {measure_name(compared.metric)}"
    makers = (result, methods, over_rounds, sizes_of_runs, gains)
    return page("Comparison of runs", subtitle, sections(compared, makers))


def result(compared: Runs) -> Section:
    """What can be said of each run against the first one, in a sentence each."""
    text, measure = [], measure_name(compared.metric)
    for label, difference in zip(compared.labels[1:], compared.differences):
        pair = f"{label} against {compared.labels[0]}"
        if isinstance(difference, str):
            text.append(
                f"{pair}: no paired interval, so no claim ({cut(difference, 300)})."
            )
            continue
        ends = difference.low, difference.high
        upwards = compared.runs[0].metric.mode == "max"
        verdict = "not told apart"
        if compared.runs[0].metric.mode is None:
            verdict = "nobody says which end is better"
        elif min(ends) > 0 or max(ends) < 0:
            verdict = "better" if (difference.low > 0) == upwards else "worse"
        gain = f"{measure} differs by {signed(difference.mean)} on average (paired 95 % interval {interval(ends)})"
        text.append(f"{pair}: {verdict}; {gain}.")
    text.append(
        "Intervals are of the test samples alone, on these participants and with this seed."
    )
    return Section("Result", text)


def methods(compared: Runs) -> Section:
    """A row for each run."""
    where = (
        "as training scripts report"
        if all(run.script for run in compared.runs)
        else "on their own test splits"
    )
    text = f"Of the served models after the last round, {where}, with 95 % intervals."
    folders = [str(run.folder.relative_to(compared.folder)) for run in compared.runs]
    return Section(
        "Methods",
        [text],
        tables=[("Runs", runs_table(compared.runs, compared.labels, folders))],
    )


def over_rounds(compared: Runs) -> Section | None:
    """Each metric by round, the mean and the worst value, with a line for each run that is judged by it."""
    plots = []
    for metric, far in dict.fromkeys(
        (run.metric.name, run.metric.far_end) for run, _ in compared.drawn
    ):
        for what, text, prefix in (
            (
                "",
                "The mean over participants, weighted by training samples.",
                "served_",
            ),
            (
                f"{far.capitalize()} ",
                f"The {far} value of one participant in each round.",
                "served_worst_",
            ),
        ):
            series: Series = {}
            for run, label in compared.drawn:
                if run.metric.name == metric:
                    series |= View(run).lines({label: prefix + metric})
            if series:
                plots.append(
                    line_plot(
                        f"{what}{measure_name(metric)} by round",
                        text,
                        series,
                        axis_title(metric),
                    )
                )
    count = len(compared.runs)
    notes = [f"The first {RUNS} of {count} runs are drawn."] if count > RUNS else []
    return Section("Convergence", plots=plots, notes=notes) if plots else None


def sizes_of_runs(compared: Runs) -> Section | None:
    """The clusters' sizes of each run; None if fewer than two of them cluster."""
    plots = [
        plot
        for run, label in compared.drawn
        if (plot := sizes_plot(View(run), label)) is not None
    ]
    return (
        Section("Participants in each cluster", plots=plots) if len(plots) > 1 else None
    )


def gains(compared: Runs) -> Section | None:
    """What each participant gains by each run over the first one."""
    count = len(compared.runs) - 1
    plots = [
        plot
        for i in range(1, min(count, GAINS) + 1)
        if (plot := _gains(compared, i)) is not None
    ]
    if not plots:
        return None
    notes = (
        [f"The first {GAINS} of {count} runs are compared."] if count > GAINS else []
    )
    return Section("What each participant gains", plots=plots, notes=notes)


def _gains(compared: Runs, i: int) -> Plot | None:
    """Those of one run; None if it has no participant in common with the first run that measured in both."""
    key, measure, paired = (
        f"served_{compared.metric}",
        measure_name(compared.metric),
        compared.differences[i - 1],
    )
    first, values = compared.runs[0].values(key), compared.runs[i].values(key)
    differences = {
        name: value - first[name] for name, value in values.items() if name in first
    }
    order = [name for name in differences if finite(differences[name]) is not None]
    if not order:
        return None
    ends = (
        {n: draws[1:] for n, draws in paired.by_participant.items()}
        if isinstance(paired, Difference)
        else {}
    )
    shown, label = unique(order), compared.labels[i]
    points = [
        (shown[name], differences[name], label, ends.get(name))
        for name in thinned(order, ROWS)
    ]
    higher = sum(differences[name] > 0 for name in order)
    text = f"{higher} of {len(order)} have a higher {measure} than with {compared.labels[0]}. "
    if ends:
        above, below = (
            sum(ends[name][0] > 0 for name in ends),
            sum(ends[name][1] < 0 for name in ends),
        )
        text += f"{above} intervals lie above 0 and {below} below; of equal models one in twenty would."
    else:
        text += "There are no paired draws, so which of these differences are chance is not known."
    rows = [[shown[n], signed(differences[n]), interval(ends.get(n))] for n in order]
    table = Table(
        ("participant", f"{measure}: difference", "paired 95 % interval"), rows
    )
    spec = vega.by_participant(
        points, [label], f"{axis_title(compared.metric)}: difference", zero=True
    )
    return Plot(f"{label} against {compared.labels[0]}", text, spec, table)
