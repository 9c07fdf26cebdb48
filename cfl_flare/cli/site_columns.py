# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The meaning of columns: ``cfl-flare site columns`` of one site's table, and ``cfl-flare columns`` of all sites'."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from cfl_flare.cli.options import Parser, say
from cfl_flare.cli.specs import new_file, own_source
from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.files import atomic_write
from cfl_flare.data import SiteData
from cfl_flare.data.agreement import agreed, describe_near
from cfl_flare.data.columns import FEWEST_ROWS, Columns
from cfl_flare.data.table import Table

READ_IT = "Read it before you give it to others."


def add_site_columns(what: Any) -> None:
    """Adds the command ``columns`` to those of ``cfl-flare site``.

    Args:
        what: the subparsers of ``cfl-flare site``.
    """
    text = "write what the columns of this site's table are, for all sites to agree on"
    columns = what.add_parser("columns", help=text)
    columns.add_argument(
        "--data", metavar="D", help="a table, or table:path=...; default: $CFL_DATA"
    )
    least = "name no category of fewer rows, and no mean of fewer (%(default)s)"
    columns.add_argument(
        "--min-rows", type=int, default=FEWEST_ROWS, metavar="N", help=least
    )
    scale = (
        "say the mean and deviation of each number, too; scaling=federation needs them"
    )
    columns.add_argument("--scale", action="store_true", help=scale)
    columns.add_argument("--out", required=True, metavar="JSON", help="where it goes")


def site_columns(arguments: argparse.Namespace) -> None:
    """``cfl-flare site columns``: what this site's table has, without a row of it."""
    source = own_source(arguments.data)
    source = source.inner if isinstance(source, SiteData) else source
    if not isinstance(source, Table):
        way_out = "name a table's file, such as ward.csv, or table:path=..."
        raise ConfigError(f"--data = {arguments.data!r} is no table; {way_out}")
    out = new_file("--out", arguments.out, ".json")
    write(source.own_columns(arguments.min_rows, arguments.scale), out)
    say(
        Console(),
        *source.described(),
        f"{out}: {_describe_content(source, arguments)}",
        READ_IT,
    )


def _describe_content(source: Table, arguments: argparse.Namespace) -> str:
    """What is in a site's file of columns, and where it is from."""
    agreed_on = source.agreed_columns
    enough = f"that {arguments.min_rows} rows or more have"
    content = f"the columns, and categories and classes {enough}"
    if agreed_on is not None:
        content = "the columns and their categories, as the study's file names them"
        if not agreed_on.classes:
            content += f", and classes {enough}"
    if arguments.scale:
        content += ", and of each number how many training rows have one, their mean and deviation"
    return f"{content}."


def add_columns_options(command: Parser) -> None:
    command.add_argument(
        "files",
        nargs="+",
        metavar="JSON",
        help="what 'cfl-flare site columns' wrote at each site",
    )
    command.add_argument(
        "--out",
        required=True,
        metavar="JSON",
        help="where it goes: --data site:columns=JSON",
    )


def columns(arguments: argparse.Namespace) -> None:
    out = new_file("--out", arguments.out, ".json")
    sites = {path: Columns.read(Path(path)) for path in arguments.files}
    require(
        len(sites) == len(arguments.files),
        "columns: a file is named twice; each site has its own",
    )
    agreement = agreed(sites)
    write(agreement, out)
    summary = f"{len(agreement.features)} features of {len(sites)} sites: {out}"
    say(Console(), *agreement.lines, *describe_near(sites), summary)


def write(columns: Columns, out: Path) -> None:
    """Writes columns for a person to read: one line each."""
    content = columns.to_dict()
    lines = ",\n".join("  " + json.dumps(column) for column in content.pop("columns"))
    rest = "".join(
        f',\n "{name}": {json.dumps(value)}' for name, value in content.items()
    )
    atomic_write(out, f'{{"columns": [\n{lines}\n ]{rest}}}\n')
