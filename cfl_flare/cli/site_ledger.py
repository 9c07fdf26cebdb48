# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``cfl-flare site ledger``: the privacy that jobs have spent of a site's data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfl_flare.cli import site_check as check
from cfl_flare.cli.options import say
from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.text import plain
from cfl_flare.results.ledger import COUNTERS, FOLDER


def show_ledger(arguments: argparse.Namespace) -> None:
    """``cfl-flare site ledger``: what has been spent of each data set; or the operator trusts it as it is."""
    kit = check.kit_of(arguments.kit)
    if kit is None:
        raise ConfigError(
            "site: the ledger's counters are in the site's startup kit; name it by --kit"
        )
    root = check.default_state_root(kit)
    whole = check.ledger_of(kit, root)
    if not whole.is_begun:
        return _show_no_ledger(arguments, kit, root)
    if arguments.accept is not None:
        whole.accept(plain(arguments.accept))
    for ledger in whole.by_data_set():
        spent = ledger.summary()
        print(json.dumps(spent)) if arguments.json else _show_spent(spent)


def _show_no_ledger(arguments: argparse.Namespace, kit: Path, root: Path) -> None:
    """Says that nothing was spent; a ConfigError if the operator accepts what is not there."""
    nothing = f"no job with dp has spent anything here, by {root / FOLDER} and {kit / COUNTERS}"
    way_out = f"leave --accept out, or {check.describe_way_to_state(arguments.kit)}"
    require(arguments.accept is None, f"site: {nothing}; {way_out}")
    if not arguments.json:
        say(Console(), nothing, check.describe_way_to_state(arguments.kit))


def _show_spent(spent: dict[str, Any]) -> None:
    budget, left = spent["budget"], spent["left"]
    of_budget = (
        "no budget is set"
        if budget is None
        else f"of {budget:g}; {left:.3g} are left for a job"
    )
    where = spent["data"] or "all data"
    by = spent["patients"][0] if len(spent["patients"]) == 1 else ""
    unit = f"of each patient, by {by!r}" if by else "of each sample"
    table = Table(
        "job", "run", "epsilon", "participants", box=None, padding=(0, 1, 0, 0)
    )
    for job, cost in spent["jobs"].items():
        cells = (
            job,
            cost["run"],
            f"{cost['epsilon']:.3g}",
            ", ".join(cost["participants"]),
        )
        table.add_row(*(escape(plain(cell)) for cell in cells))
    accepted = [
        f"accepted {line['time']}: {line['reason']}" for line in spent["accepted"]
    ]
    if spent["refusals"]:
        accepted.append(
            f"refusals by data: {spent['refusals']} of at most {spent['max_refusals']}"
        )
    console = Console()
    say(
        console,
        f"{where}: epsilon {spent['epsilon']:.3g} {unit}, at delta {spent['delta']:g}, {of_budget}",
        *accepted,
    )
    console.print(table)
