# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``dossier``: the file that goes with each model that leaves a run, and the check of the run's lineage."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from cfl_flare.cli.options import Parser, say
from cfl_flare.core.config import require
from cfl_flare.core.errors import UnfitError
from cfl_flare.core.files import below
from cfl_flare.results.lineage import LINEAGE
from cfl_flare.results.lineage_check import check_lineage
from cfl_flare.results.run_dir import SUMMARY

# Of what is wrong, so many lines are printed.
MOST = 100


def add_dossier_options(command: Parser) -> None:
    command.add_argument("run", help="folder of a run or a study, or one with runs below it")
    what = "write nothing; compare the folder's files with the run's lineage, and name what was changed"
    command.add_argument("--verify", action="store_true", help=what)
    root = (
        "with --verify: the project's rootCA.pem, from a startup kit of your own; the signature is checked against it"
    )
    command.add_argument("--root", metavar="PEM", help=root)


def dossier(arguments: argparse.Namespace) -> None:
    require(arguments.verify or not arguments.root, "--root is for --verify; add it, or leave --root out")
    if arguments.verify:
        verify(arguments.run, Path(arguments.root) if arguments.root else None)


def verify(folder: str, root: Path | None) -> None:
    """Prints what is wrong in each run of a folder, and what the chain covers.

    Raises:
        UnfitError: something is.
    """
    from cfl_flare.flare.signature import check_signature

    console, count = Console(), 0
    folders = sorted({path.parent for path in below(Path(folder)) if path.name in (SUMMARY, LINEAGE)})
    require(bool(folders), f"{folder} holds no finished run: no {SUMMARY} in it or below it")
    for place in folders:
        lineage = check_lineage(place)
        problems, signed = check_signature(place, lineage, root)
        problems = [*lineage.problems, *problems]
        count += len(problems)
        left_out = f"; {len(problems) - MOST} more" if len(problems) > MOST else ""
        say(console, f"{place}: {len(problems) or 'no'} change{'s' * (len(problems) != 1)}{left_out}")
        say(console, *(f"- {problem}" for problem in problems[:MOST]), style="red")
        say(console, f"  {lineage.files} files and {lineage.rounds} rounds are covered; head {lineage.head}; {signed}")
        if lineage.later:
            say(console, f"  not covered, as they were made of the others: {', '.join(lineage.later)}")
    if count:
        raise UnfitError(f"{folder}: {count} changes; they are named above")
