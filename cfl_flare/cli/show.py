# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Commands that only show: ``show`` what runs left, and ``methods`` what there is to run."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfl_flare.cli.options import Parser, say
from cfl_flare.core.errors import ConfigError, RunFailedError
from cfl_flare.data import PARTITIONS, SOURCES
from cfl_flare.methods import COMBINATIONS, METHODS, PENALTIES, Combination
from cfl_flare.models import MODELS
from cfl_flare.results.gate import gate_lines
from cfl_flare.results.job_record import unfinished
from cfl_flare.results.run_dir import Run, find_runs
from cfl_flare.results.study import find_study, load_study
from cfl_flare.results.tables import print_whole, results_table


def add_show_options(command: Parser) -> None:
    command.add_argument(
        "run", help="folder of a run, or one with several runs below it"
    )


def show(arguments: argparse.Namespace) -> list[Run]:
    """Prints the tables of a folder's runs, which it returns, or of its study."""
    console, folder = Console(), Path(arguments.run)
    study = find_study(arguments.run)
    if study is not None:
        from cfl_flare.cli.study import print_study

        print_study(console, load_study(study))
        return []
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
    return runs


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
