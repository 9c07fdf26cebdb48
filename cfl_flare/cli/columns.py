# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How sites agree on the columns of their tables: each writes what its own has, and the files are put together."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from cfl_flare.cli.specs import own_source
from cfl_flare.core.config import require
from cfl_flare.core.files import atomic_write
from cfl_flare.core.text import plain
from cfl_flare.data import SiteData
from cfl_flare.data.columns import Columns, agreed
from cfl_flare.data.table import Table


def site_columns(arguments: argparse.Namespace) -> None:
    """``cfl-flare site columns``: what this site's table has, without a row of it."""
    source = own_source(arguments.data)
    source = source.inner if isinstance(source, SiteData) else source
    require(
        isinstance(source, Table),
        f"--data = {arguments.data!r} is no table; name a .csv, .csv.gz or .parquet file, or table:path=...",
    )
    assert isinstance(source, Table)
    out, own = new_file(arguments.out), source.own_columns(arguments.min_rows, arguments.scale)
    write(own, out)
    console = Console()
    measured = (
        ", and of each number how many training rows have one, their mean and deviation" if arguments.scale else ""
    )
    says = f"{out}: the columns, and categories and classes that {arguments.min_rows} rows or more have{measured}."
    for line in (*source.described(), says, "Read it before you give it to others."):
        console.print(plain(line, 2000), soft_wrap=True, markup=False)


def agree(arguments: argparse.Namespace) -> None:
    """``cfl-flare columns``: one file of all sites' files."""
    out = new_file(arguments.out)
    sites = {path: Columns.read(Path(path)) for path in arguments.files}
    require(len(sites) == len(arguments.files), "columns: a file is named twice; each site has its own")
    found = agreed(sites)
    write(found, out)
    console = Console()
    for line in (*found.lines, f"{len(found.features)} features of {len(sites)} sites: {out}"):
        console.print(plain(line, 2000), soft_wrap=True, markup=False)


def new_file(text: str) -> Path:
    """The path of ``--out``.

    Raises:
        ConfigError: its folder does not exist, or it has another ending, as a table that is named by mistake has.
    """
    out = Path(text)
    require(out.suffix == ".json", f"--out = {text!r} should end in .json")
    require(out.parent.is_dir(), f"--out = {text!r}: {str(out.parent)!r} is not a folder; make it first")
    return out


def write(columns: Columns, out: Path) -> None:
    """Writes columns for a person to read: one line each."""
    content = columns.to_dict()
    lines = ",\n".join("  " + json.dumps(one) for one in content.pop("columns"))
    rest = "".join(f',\n "{name}": {json.dumps(value)}' for name, value in content.items())
    atomic_write(out, f'{{"columns": [\n{lines}\n ]{rest}}}\n')
