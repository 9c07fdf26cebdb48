# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command ``cfl-flare report``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from cfl_flare.core.config import require


def add_report(commands: Any) -> None:
    """Its options."""
    report = commands.add_parser(
        "report", help="write the report of a study or a run, or a comparison of runs, as one HTML file"
    )
    report.add_argument(
        "run", help="folder of a study, of a run, one with several runs below it, or a site's own folder of a run"
    )
    first = "of several runs the folder of that with which the others are compared; default: the first by name"
    report.add_argument("--against", metavar="NAME", help=first)
    where = "the file; default: report.html in the folder, and for several runs in each and in the common folder"
    report.add_argument("--out", metavar="FILE", help=where)


def report(arguments: argparse.Namespace) -> None:
    """Writes the files and prints their names."""
    from cfl_flare.report.write import write_reports

    out = Path(arguments.out) if arguments.out else None
    require(
        out is None or (out.parent.is_dir() and out.suffix in (".html", ".htm")),
        f"--out = {arguments.out!r} should be a .html file in an existing folder; make the folder first",
    )
    console = Console()
    for path in write_reports(Path(arguments.run), out, arguments.against):
        console.print(str(path), soft_wrap=True, markup=False)
