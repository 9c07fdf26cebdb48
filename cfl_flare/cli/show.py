# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Commands that only show: ``show`` and ``report`` what runs left, and ``methods`` what there is to run."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfl_flare.cli.options import Parser, say
from cfl_flare.cli.specs import new_file
from cfl_flare.core.config import one_line
from cfl_flare.core.errors import CFLError, ConfigError, NoPlotsError, RunFailedError
from cfl_flare.data import PARTITIONS, SOURCES
from cfl_flare.methods import COMBINATIONS, METHODS, PENALTIES, Combination
from cfl_flare.models import MODELS
from cfl_flare.report.table import print_whole, results_table
from cfl_flare.results.gate import gate_lines
from cfl_flare.results.job_record import unfinished
from cfl_flare.results.run_dir import Run, find_runs
from cfl_flare.results.study import find_study, load_study


def add_show_options(command: Parser) -> None:
    command.add_argument(
        "run", help="folder of a run, or one with several runs below it"
    )


def show(arguments: argparse.Namespace) -> None:
    console, folder = Console(), Path(arguments.run)
    study = find_study(arguments.run)
    if study is not None:
        from cfl_flare.cli.study import print_study

        return print_study(console, load_study(study))
    attempts = unfinished(folder) if folder.is_dir() else []
    say(console, *attempts)
    try:
        runs = find_runs(arguments.run)
    except ConfigError as error:
        raise (
            RunFailedError(f"{error}; what is known is above") if attempts else error
        ) from error
    names = (
        [str(run.folder.relative_to(arguments.run)) for run in runs]
        if len(runs) > 1
        else []
    )
    print_whole(console, results_table(runs, names))
    for run in runs:
        say(console, *gate_lines(run.summary))
    say(console, *_figures(folder, runs))


def _figures(folder: Path, runs: list[Run]) -> list[Path]:
    from cfl_flare.report.figures import draw, draw_comparison

    try:
        files = [path for run in runs for path in draw(run)]
        if len(runs) > 1 and folder not in [
            run.folder for run in runs
        ]:  # a run's own figures have these names
            files += draw_comparison(runs, folder)
        return files
    except NoPlotsError as error:  # the table is there
        print(f"no figures: {error}", file=sys.stderr)
        return []
    except (CFLError, OSError, ImportError):
        raise
    except (
        Exception
    ) as error:  # whatever a foreign file's numbers and names do to a figure
        raise ConfigError(
            f"{folder}: no figures can be drawn of these files ({one_line(error)})"
        ) from error


def add_report_options(command: Parser) -> None:
    of_what = "folder of a study, of a run, or one with several runs below it"
    command.add_argument("run", help=of_what)
    first = "of several runs the folder of that with which the others are compared; default: the first by name"
    command.add_argument("--against", metavar="NAME", help=first)
    where = "the file; default: report.html in the folder, and for several runs in each and in the common folder"
    command.add_argument("--out", metavar="FILE", help=where)


def report(arguments: argparse.Namespace) -> None:
    from cfl_flare.report.write import write_reports

    out = new_file("--out", arguments.out, ".html", ".htm") if arguments.out else None
    say(Console(), *write_reports(Path(arguments.run), out, arguments.against))


def add_methods_options(command: Parser) -> None:
    """It has none."""


def methods(arguments: argparse.Namespace) -> None:
    registries: dict[str, Mapping[str, Any]] = {
        "methods": {**METHODS, **COMBINATIONS},
        "penalties, of --penalty": PENALTIES,
        "partitions": PARTITIONS,
        "data": SOURCES,
        "models": MODELS,
    }
    console = Console()
    for title, registry in registries.items():
        table = Table(title=title, title_justify="left", show_lines=True)
        table.add_column("name", no_wrap=True)
        table.add_column("settings (default)", no_wrap=True)
        table.add_column("what it is")
        for name, entry in registry.items():
            first = next(other for other, known in registry.items() if known is entry)
            table.add_row(
                name,
                *(
                    ("", f"another name of {first}")
                    if first != name
                    else _described(entry)
                ),
            )
        console.print(table)


def _described(entry: Any) -> tuple[str, str]:
    """The settings of a class or a combination, with their defaults, and what it is."""
    if isinstance(entry, Combination):
        settings, summary, paper = entry.settings(), entry.summary, None
    else:
        parameters = inspect.signature(entry).parameters.items()
        settings = {
            name: p.default
            for name, p in parameters
            if name not in ("input_shape", "num_classes")
        }
        summary = (entry.__doc__ or "").strip().splitlines()[0].replace("``", "")
        paper = getattr(entry, "paper", None)
    lines = [
        escape(f"{name} ({_default(default)})") for name, default in settings.items()
    ]
    return "\n".join(lines), summary + (f"\n[dim]{paper}[/dim]" if paper else "")


def _default(value: Any) -> str:
    if value in (inspect.Parameter.empty, dataclasses.MISSING):
        return "needed"
    return (
        ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
    )
