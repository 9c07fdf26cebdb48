# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Writes reports: of a study, of a run, of several below one folder, and of what has just ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import FileError
from cfl_flare.core.files import atomic_write
from cfl_flare.extensions.report.clusters import (
    moves,
    number_of_clusters,
    quality,
    sizes,
)
from cfl_flare.extensions.report.comparison import comparison_report
from cfl_flare.extensions.report.facts import failures, head, participants, settings
from cfl_flare.extensions.report.figures import draw, draw_comparison
from cfl_flare.extensions.report.measures import (
    convergence,
    cross_site,
    discrimination,
    traffic,
)
from cfl_flare.extensions.report.page import Section, View, page, sections
from cfl_flare.extensions.report.study import study_report
from cfl_flare.extensions.report.who import who
from cfl_flare.results.run_dir import SUMMARY, Run, find_runs, load_run
from cfl_flare.results.study import STUDY
from cfl_flare.results.wording import cut

REPORT = "report.html"
LARGEST = 2_000_000
SECTIONS: Sequence[Callable[[View], Section | None]] = (
    *(head, participants, who, convergence, moves, sizes, quality),
    *(number_of_clusters, cross_site, discrimination, traffic, failures, settings),
)


def run_report(run: Run) -> str:
    """The report of one run, as HTML."""
    view = View(run)
    subtitle = f"{len(view.people)} participants, {run.summary['rounds']} rounds; folder {cut(run.folder.name)}"
    return page(cut(run.name, 120), subtitle, sections(view, SECTIONS))


def write_reports(
    folder: Path, out: Path | None = None, against: str | None = None
) -> list[Path]:
    """Writes the report of a study, a run, or several runs compared, and returns the files.

    Args:
        folder: a study's, a run's, or one with runs below it.
        out: the file for the study's or the run's report, or for the comparison alone; by default each run's stands
            next to its summary, and the others are in the folder.
        against: the folder, below the first one, of the run that the others are compared with; by default the first.

    Raises:
        ConfigError: there is no such run, or what draws the plots is not installed.
        FileError: a file cannot be read or written.
    """
    if (folder / STUDY).is_file():
        require(
            against is None,
            f"--against = {against!r} is for several runs, and {folder} is a study; leave it out",
        )
        return [write(study_report(folder), out or folder / REPORT)]
    runs = [load_run(folder)] if (folder / SUMMARY).is_file() else find_runs(folder)
    if against is not None:
        names = [str(run.folder.relative_to(folder)) for run in runs]
        require(
            against in names,
            f"--against = {against!r} is no run of {folder}; there are {', '.join(names)}",
        )
        runs.insert(0, runs.pop(names.index(against)))
    if len(runs) == 1:
        return [write(run_report(runs[0]), out or runs[0].folder / REPORT)]
    files = [] if out else [write(run_report(run), run.folder / REPORT) for run in runs]
    return [*files, write(comparison_report(runs, folder), out or folder / REPORT)]


def try_to_write(folder: Path, runs: Sequence[Run] = ()) -> str | None:
    """Writes the report of a study or run that has just ended, and draws its figures. No result depends on it.

    With runs to compare, the report is of these, else of the folder's own run or study. Returns why it cannot be
    written, with the way out; None if it was.
    """
    try:
        if runs:
            draw_comparison(runs, folder)
            write(comparison_report(runs, folder), folder / REPORT)
        elif (folder / STUDY).is_file():
            write(study_report(folder), folder / REPORT)
        else:
            write(run_report(run := load_run(folder)), folder / REPORT)
            draw(
                run
            )  # last: of a damaged file there is no picture, and the report shows the rest
    except Exception as error:
        way_out = "'cfl-flare report' writes it from the results, and 'cfl-flare show' figures"
        return f"no report: {one_line(error)}; {way_out}"
    return None


def write(html: str, path: Path) -> Path:
    """Writes a report; a `FileError` says that it cannot be written, or is larger than a page should be."""
    content = html.encode()
    if len(content) > LARGEST:
        reason = f"it would have {len(content):,} bytes, more than {LARGEST:,}"
        raise FileError(f"cannot write {path}: {reason}; report fewer runs")
    atomic_write(path, content)
    return path
