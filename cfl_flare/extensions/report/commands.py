# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command ``report``, and what the extension adds to ``show`` and ``partition``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cfl_flare.cli.options import Parser, say
from cfl_flare.cli.specs import new_file
from cfl_flare.core.config import one_line
from cfl_flare.core.errors import CFLError, ConfigError, NoPlotsError
from cfl_flare.extensions.report.write import REPORT, write_reports
from cfl_flare.results.run_dir import Run

if TYPE_CHECKING:
    from cfl_flare.data import PartitionReport


def add_report_options(command: Parser) -> None:
    of_what = "folder of a study, of a run, or one with several runs below it"
    command.add_argument("run", help=of_what)
    first = "of several runs the folder of that with which the others are compared; default: the first by name"
    command.add_argument("--against", metavar="NAME", help=first)
    where = "the file; default: report.html in the folder, and for several runs in each and in the common folder"
    command.add_argument("--out", metavar="FILE", help=where)


def report(arguments: argparse.Namespace) -> None:
    out = new_file("--out", arguments.out, ".html", ".htm") if arguments.out else None
    say(Console(), *write_reports(Path(arguments.run), out, arguments.against))


def show_figures(
    show: Callable[[argparse.Namespace], list[Run]], arguments: argparse.Namespace
) -> None:
    """Show runs, then draw their figures.

    Args:
        show: prints the tables and returns the runs; none of a study.
        arguments: of the command ``show``.
    """
    runs = show(arguments)
    if runs:
        say(Console(), *draw_runs(Path(arguments.run), runs))


def name_report(
    study: Callable[[argparse.Namespace], Path | None], arguments: argparse.Namespace
) -> None:
    """Run a study, then name its report.

    Args:
        study: prints the verdict, and returns the study's folder, or None for a job.
        arguments: of the command ``study``.
    """
    folder = study(arguments)
    if folder is not None and (folder / REPORT).is_file():
        say(Console(), f"report: {folder / REPORT}")


def draw_runs(folder: Path, runs: list[Run]) -> list[Path]:
    """Draw the figures of runs below a folder.

    Args:
        folder: of a run, or one with several runs below it.
        runs: the runs.

    Returns:
        The files; none if no plots can be drawn here.

    Raises:
        ConfigError: nothing can be drawn of these files.
    """
    from cfl_flare.extensions.report.figures import draw, draw_comparison

    try:
        files = [path for run in runs for path in draw(run)]
        # A run's own figures have the names of a comparison's.
        if len(runs) > 1 and folder not in [run.folder for run in runs]:
            files += draw_comparison(runs, folder)
        return files
    except NoPlotsError as error:  # the table is there
        print(f"no figures: {error}", file=sys.stderr)
        return []
    except (CFLError, OSError, ImportError):
        raise
    except Exception as error:  # a foreign file's numbers and names can break a figure
        reason = f"no figures can be drawn of these files ({one_line(error)})"
        raise ConfigError(f"{folder}: {reason}") from error


def add_figure_option(command: Parser) -> None:
    """Add ``--figure`` to ``partition``."""
    text = "draw label counts by participant (thesis Fig. A.1-A.4)"
    command.add_argument("--figure", metavar="FILE", help=text)


def draw_partition(
    partition: Callable[[argparse.Namespace], PartitionReport],
    arguments: argparse.Namespace,
) -> None:
    """Deal data out, then draw who got what.

    Args:
        partition: prints what it dealt, and returns it.
        arguments: of the command ``partition``.
    """
    if arguments.figure is None:
        partition(arguments)
        return
    from cfl_flare.extensions.report import figures

    figure = new_file("--figure", arguments.figure, ".png", ".pdf", ".svg")
    say(Console(), figures.draw_partition(partition(arguments), figure))
