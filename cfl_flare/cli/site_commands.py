# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The commands for operators of sites."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfl_flare.cli import site_check as check
from cfl_flare.cli.columns import agree, site_columns
from cfl_flare.cli.predict import predict_file
from cfl_flare.cli.specs import own_source
from cfl_flare.core.config import require
from cfl_flare.core.errors import UnfitError
from cfl_flare.core.text import plain
from cfl_flare.data import DataConfig
from cfl_flare.results.job_record import JobRecord

if TYPE_CHECKING:
    from cfl_flare.flare.kit import Change, Preparation


def site(arguments: argparse.Namespace) -> None:
    """``cfl-flare site``."""
    commands = {"prepare": prepare_kits, "unprepare": unprepare, "clean": clean, "check": check_site}
    {**commands, "columns": site_columns, "runs": show_runs, "allow": allow_job}[arguments.what](arguments)


def columns(arguments: argparse.Namespace) -> None:
    """``cfl-flare columns``."""
    agree(arguments)


def prepare_kits(arguments: argparse.Namespace) -> None:
    """``cfl-flare site prepare``: looks at all kits before it writes to the first."""
    changes = [_changes(Path(kit), arguments) for kit in arguments.kits]
    for kit, (resources, others) in zip(arguments.kits, changes):
        _prepare(Path(kit), resources, others, arguments.dry_run)


def unprepare(arguments: argparse.Namespace) -> None:
    """``cfl-flare site unprepare``."""
    from cfl_flare.flare.kit import undone

    for kit in arguments.kits:
        print(undone(Path(kit), arguments.dry_run))


def clean(arguments: argparse.Namespace) -> None:
    """``cfl-flare site clean``."""
    from cfl_flare.flare.kit import old_jobs

    for kit in arguments.kits:
        jobs = old_jobs(Path(kit), arguments.days)
        for job in jobs:
            print(f"{job.folder}: {job.nbytes / 1e6:.1f} MB, {job.days:.0f} days old")
            if not arguments.dry_run:
                shutil.rmtree(job.folder)
        size, verb = sum(job.nbytes for job in jobs) / 1e6, "would be deleted" if arguments.dry_run else "deleted"
        print(f"{kit}: {len(jobs)} jobs {verb}, {size:.1f} MB")


def _changes(kit: Path, arguments: argparse.Namespace) -> tuple[Preparation, list[Change]]:
    from cfl_flare.flare.allowed import CLASSES
    from cfl_flare.flare.kit import console_change, policy_change, preparation

    inside = arguments.keep_logs and check.is_site(kit)
    resources = preparation(kit, [*CLASSES, *arguments.allow], inside)
    local = resources.file.parent
    names = ("min_sites_per_cluster", "min_samples_per_cluster", "max_weight_share", "max_participants")
    limits = {name: getattr(arguments, name) for name in names}
    policy = policy_change(local, arguments.data_root, **limits)
    return resources, [policy, console_change(local)] if inside else [policy]


def _prepare(kit: Path, resources: Preparation, others: Sequence[Change], dry_run: bool) -> None:
    changes = (resources, *others)
    for line in (line for change in changes for line in change.diff):
        print(line)
    if all(change.after is None for change in changes):
        print(f"{kit}: nothing to change")
    for change in changes:
        if change.after is not None and dry_run:
            print(f"{change.file}: not written (--dry-run)")
        elif change.after is not None:
            backup = change.write()
            print(f"{change.file}: written" + (f"; the old file is {backup.name}" if backup else ""))
    if resources.streams_logs and check.is_site(kit):
        print("note: jobs may stream this kit's logs to the server; --keep-logs forbids it")


def _records(arguments: argparse.Namespace) -> list[JobRecord]:
    root = check.default_state_root(check.kit_of(arguments.kit))
    records = JobRecord.all_below(root)
    require(bool(records), f"site: no job has left a record below {root}; name the site's kit by --kit")
    return records


def show_runs(arguments: argparse.Namespace) -> None:
    """``cfl-flare site runs``."""
    jobs = [job for record in _records(arguments) for job in record.jobs()]
    if arguments.json:
        for job in jobs:
            print(json.dumps(job))
        return
    table = Table("begun", "job", "name", "method", "sites", "samples", "rounds", "", box=None, padding=(0, 1, 0, 0))
    for job in jobs:
        samples = sum(job.get("participants", {}).values())
        rounds = f"{job['answered']} of {job.get('rounds', '?')}"
        cells = (job["time"], job["job"], job["name"], job.get("method", ""), ", ".join(job["sites"]), samples, rounds)
        table.add_row(*(escape(plain(str(cell))) for cell in (*cells, job["decision"])))
    Console().print(table)


def allow_job(arguments: argparse.Namespace) -> None:
    """``cfl-flare site allow``."""
    records = [record for record in _records(arguments) if record.allow(arguments.job)]
    require(bool(records), f"site: {arguments.job!r} is no job that was refused here; 'cfl-flare site runs' lists them")
    print(f"{arguments.job}: allowed: its sites may train together; its author submits it again, with another seed")


def check_site(arguments: argparse.Namespace) -> None:
    """``cfl-flare site check``.

    Raises:
        UnfitError: a finding would make a job fail.
    """
    findings = []
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    for finding in _findings(arguments):
        findings.append(finding)
        mark = "[red]fails[/red]" if finding.fatal else "[yellow]look[/yellow]" if finding.way_out else "ok"
        table.add_row(mark, finding.what, escape(finding.found))
        if finding.way_out:
            table.add_row("", "", f"[bold]{escape(finding.way_out)}[/bold]")
    Console().print(table)
    fatal = sum(f.fatal for f in findings)
    if fatal:
        raise UnfitError(f"{fatal} of {len(findings)} findings would make a job fail at this site")


def _findings(arguments: argparse.Namespace) -> Iterator[check.Finding]:
    yield from check.versions()
    kit = check.kit_of(arguments.kit)
    if kit is not None:
        yield from check.kit(kit)
    config, root = DataConfig(min_samples=arguments.min_samples), check.default_state_root(kit)
    if kit is not None and check.is_server(kit) and arguments.data is None:
        yield check.Finding("data", "none: the kit is a server's")
        yield from check.server_disks(kit, arguments.model, root)
    else:
        yield from check.data(own_source(arguments.data), arguments.model, config, arguments.device, root)
    yield from check.state(root, kit)
    yield check.memory()


def predict(arguments: argparse.Namespace) -> None:
    """``cfl-flare predict``."""
    out = Path(arguments.out)
    require(out.parent.is_dir(), f"--out = {arguments.out!r}: {str(out.parent)!r} is not a folder; make it first")
    run, data = Path(arguments.run), Path(arguments.data)
    whose = arguments.slot, arguments.participant
    rows = predict_file(run, *whose, data, arguments.array, arguments.model, out, arguments.id)
    print(f"{out}: {rows} predictions")
