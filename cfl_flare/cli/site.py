# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The commands for operators of sites: ``cfl-flare site``."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch.nn import Module

from cfl_flare.cli import site_check as check
from cfl_flare.cli.options import Parser, add_settings, given
from cfl_flare.cli.site_columns import add_site_columns, site_columns
from cfl_flare.cli.site_ledger import show_ledger
from cfl_flare.cli.specs import own_source, site_data
from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import build, from_dict, require
from cfl_flare.core.errors import UnfitError
from cfl_flare.core.text import plain
from cfl_flare.data import DataConfig
from cfl_flare.engine.settings import SiteSettings
from cfl_flare.engine.site import Site
from cfl_flare.flare import kit as startup
from cfl_flare.flare.allowed import CLASSES, Policy
from cfl_flare.methods import FedAvg
from cfl_flare.results.job_record import JobRecord, describe_rounds
from cfl_flare.results.model_file import model_of, read_model
from cfl_flare.results.served import find_model
from cfl_flare.training.ensemble import Ensemble, Served
from cfl_flare.training.membership import attacks
from cfl_flare.training.resident import ResidentModel
from cfl_flare.training.settings import SHADOW_MODELS, TrainSettings

DATA = "an .npz file in MedMNIST's layout, a folder of images by class, or a source as for 'cfl-flare run'"


def add_site_options(command: Parser) -> None:
    what = command.add_subparsers(dest="what", required=True)
    _add_kit_commands(what)
    _add_job_commands(what)
    _add_data_commands(what)
    add_site_columns(what)


def _add_kit_commands(what: Any) -> None:
    prepare = what.add_parser(
        "prepare", help="let jobs at a startup kit use the installed cfl_flare"
    )
    unprepare = what.add_parser(
        "unprepare", help="take back what 'prepare' changed; local/cfl.json stays"
    )
    clean = what.add_parser(
        "clean", help="delete what ended jobs left in a kit: FLARE deletes none of it"
    )
    kits = "startup kits of sites or of the server, or a simulator's workspace"
    for command in (prepare, unprepare, clean):
        command.add_argument("kits", nargs="+", metavar="KIT", help=kits)
        command.add_argument(
            "--dry-run",
            action="store_true",
            help="show what would be done, and do nothing",
        )
    text = "forbid that jobs stream a site's logs to the server, and that the admin console shows them"
    prepare.add_argument(
        "--keep-logs", action=argparse.BooleanOptionalAction, default=True, help=text
    )
    text = "also allow a class of your own: my_package.nets.WardNet; never a package: jobs could call its functions"
    prepare.add_argument(
        "--allow", action="append", default=[], metavar="CLASS", help=text
    )
    text = "also let jobs name files in this folder"
    prepare.add_argument(
        "--data-root", action="append", default=[], metavar="DIR", help=text
    )
    text = "name data with patients of its own, which then has a ledger and a record of its own"
    prepare.add_argument(
        "--data-set", action="append", default=[], metavar="NAME=PATH", help=text
    )
    add_settings(prepare, Policy, without=("data_roots", "data_sets"), optional=True)
    text = "a job stays for this number of days after its end (%(default)g)"
    clean.add_argument("--days", type=float, default=30.0, metavar="N", help=text)


def _add_job_commands(what: Any) -> None:
    runs = what.add_parser(
        "runs", help="the jobs in which this site took part, and those that it refused"
    )
    runs.add_argument("--json", action="store_true", help="a line of JSON for each")
    text = (
        "let a job run that this site refused, as its sites differ from earlier ones'"
    )
    allow = what.add_parser("allow", help=text)
    allow.add_argument(
        "job",
        metavar="JOB",
        help="its id, or how that begins, as its log and 'site runs' show it",
    )
    text = "what jobs have spent of the privacy of this site's data, and what is left of its budget"
    ledger = what.add_parser("ledger", help=text)
    ledger.add_argument(
        "--json", action="store_true", help="a line of JSON for each data set"
    )
    text = "trust the ledger as it is, after a job was refused with 'ledger'; what it says stays spent"
    ledger.add_argument("--accept", metavar="REASON", help=text)
    for command in (runs, allow, ledger):
        command.add_argument(
            "--kit",
            help="of this startup kit; default: $CFL_STATE_ROOT says where, else the folder",
        )


def _add_data_commands(what: Any) -> None:
    check = what.add_parser(
        "check", help="report what would prevent this site from taking part in a job"
    )
    check.add_argument(
        "--data", metavar="D", help=f"{DATA}; default: what a job finds, by $CFL_DATA"
    )
    text = "the job's model, as for 'cfl-flare run'; default: one that suits the data"
    check.add_argument("--model", metavar="NET", help=text)
    check.add_argument(
        "--kit",
        help="check this startup kit as well; default: the current folder, if it is one",
    )
    add_settings(check, DataConfig, SiteSettings, only=("min_samples", "device"))
    text = "attack a model that this site keeps of a run with its own samples: how many training samples are told?"
    audit = what.add_parser("audit", help=text)
    audit.add_argument(
        "run",
        help="the site's folder of the run, below its state root, or a file in served/",
    )
    audit.add_argument(
        "--participant", metavar="NAME", help="whose model, if the folder has several"
    )
    audit.add_argument(
        "--data",
        metavar="D",
        help="the file or folder that the job read; default: $CFL_DATA",
    )
    audit.add_argument(
        "--shadow-models",
        type=int,
        default=16,
        metavar="N",
        help="to compare with (%(default)s)",
    )


def site(arguments: argparse.Namespace) -> None:
    commands = {
        "prepare": prepare_kits,
        "unprepare": unprepare,
        "clean": clean,
        "check": check_site,
        "columns": site_columns,
        "runs": show_runs,
        "allow": allow_job,
        "ledger": show_ledger,
        "audit": audit_model,
    }
    commands[arguments.what](arguments)


def prepare_kits(arguments: argparse.Namespace) -> None:
    """``cfl-flare site prepare``: looks at all kits before it writes to the first."""
    changes = [_changes(Path(kit), arguments) for kit in arguments.kits]
    shown: dict[tuple[str, ...], Path] = {}
    for kit, (resources, others) in zip(arguments.kits, changes):
        _prepare(Path(kit), resources, others, arguments.dry_run, shown)


def _changes(
    kit: Path, arguments: argparse.Namespace
) -> tuple[startup.Preparation, list[startup.Change]]:
    keeps_logs = arguments.keep_logs and check.is_site(kit)
    resources = startup.preparation(kit, [*CLASSES, *arguments.allow], keeps_logs)
    local = resources.file.parent
    policy = startup.policy_change(
        local, arguments.data_root, arguments.data_set, **given(arguments, Policy)
    )
    limits = (
        Policy.read(policy.file)
        if policy.after is None
        else Policy(**json.loads(policy.after))
    )
    changes = [policy, startup.console_change(local)] if keeps_logs else [policy]
    if limits.epsilon_budget is not None and check.is_site(kit):
        changes.append(startup.privacy_change(local))
    return resources, changes


def _prepare(
    kit: Path,
    resources: startup.Preparation,
    others: list[startup.Change],
    dry_run: bool,
    shown: dict[tuple[str, ...], Path],
) -> None:
    """Writes a kit's changes, and shows each of them that no earlier kit had; ``shown`` has theirs."""
    changes = (resources, *others)
    for change in changes:
        first = shown.setdefault(tuple(change.diff), change.file)
        if change.after is not None and first != change.file:
            print(f"{change.file}: as {first}")
            continue
        for line in change.diff:
            print(line)
    if all(change.after is None for change in changes):
        print(f"{kit}: nothing to change")
    for change in changes:
        if change.after is not None and dry_run:
            print(f"{change.file}: not written (--dry-run)")
        elif change.after is not None:
            backup = change.write()
            print(
                f"{change.file}: written"
                + (f"; the old file is {backup.name}" if backup else "")
            )
    if resources.streams_logs and check.is_site(kit):
        print(
            "note: jobs may stream this kit's logs to the server; --keep-logs forbids it"
        )


def unprepare(arguments: argparse.Namespace) -> None:
    for kit in arguments.kits:
        print(startup.undone(Path(kit), arguments.dry_run))


def clean(arguments: argparse.Namespace) -> None:
    for kit in arguments.kits:
        jobs = startup.old_jobs(Path(kit), arguments.days)
        for job in jobs:
            print(f"{job.folder}: {job.nbytes / 1e6:.1f} MB, {job.days:.0f} days old")
            if not arguments.dry_run:
                shutil.rmtree(job.folder)
        size, verb = (
            sum(job.nbytes for job in jobs) / 1e6,
            "would be deleted" if arguments.dry_run else "deleted",
        )
        print(f"{kit}: {len(jobs)} jobs {verb}, {size:.1f} MB")


def _records(arguments: argparse.Namespace) -> list[JobRecord]:
    root = check.default_state_root(check.kit_of(arguments.kit))
    records = JobRecord.all_below(root)
    require(
        bool(records),
        f"site: no job has left a record below {root}; {check.describe_way_to_state(arguments.kit)}",
    )
    return records


def show_runs(arguments: argparse.Namespace) -> None:
    jobs = [job for record in _records(arguments) for job in record.jobs()]
    if arguments.json:
        for job in jobs:
            print(json.dumps(job))
        return
    table = Table(
        "begun",
        "job",
        "name",
        "method",
        "sites",
        "samples",
        "rounds",
        "",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for job in jobs:
        samples = sum(job.get("participants", {}).values())
        sites = ", ".join(job["sites"])
        rounds = describe_rounds(job)
        cells = (
            job["time"],
            job["job"],
            job["name"],
            job.get("method", ""),
            sites,
            samples,
            rounds,
        )
        table.add_row(*(escape(plain(str(cell))) for cell in (*cells, job["decision"])))
    Console().print(table)


def allow_job(arguments: argparse.Namespace) -> None:
    records = [record for record in _records(arguments) if record.allow(arguments.job)]
    require(
        bool(records),
        f"site: {arguments.job!r} is no job that was refused here; 'cfl-flare site runs' lists them",
    )
    print(
        f"{arguments.job}: allowed: its sites may train together; its author submits it again, with another seed"
    )


def check_site(arguments: argparse.Namespace) -> None:
    """``cfl-flare site check``; an UnfitError says that a finding would make a job fail."""
    findings = []
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    for finding in _findings(arguments):
        findings.append(finding)
        mark = _mark_finding(finding)
        table.add_row(mark, finding.what, escape(finding.result))
        if finding.way_out:
            table.add_row("", "", f"[bold]{escape(finding.way_out)}[/bold]")
    Console().print(table)
    fatal = sum(f.fatal for f in findings)
    if fatal:
        raise UnfitError(
            f"{fatal} of {len(findings)} findings would make a job fail at this site"
        )


def _mark_finding(finding: check.Finding) -> str:
    if finding.fatal:
        return "[red]fails[/red]"
    if finding.way_out or finding.look:
        return "[yellow]look[/yellow]"
    return "ok"


def _findings(arguments: argparse.Namespace) -> Iterator[check.Finding]:
    yield from check.versions()
    kit = check.kit_of(arguments.kit)
    if kit is not None:
        yield from check.kit(kit)
    config, root = (
        DataConfig(min_samples=arguments.min_samples),
        check.default_state_root(kit),
    )
    if kit is not None and check.is_server(kit) and arguments.data is None:
        yield check.Finding("data", "none: the kit is a server's")
        yield from check.server_disks(kit, arguments.model, root)
    else:
        yield from check.data(
            own_source(arguments.data), arguments.model, config, arguments.device, root
        )
        if kit is not None:
            yield from check.privacy(kit, root)
    yield from check.state(root, kit)
    yield check.memory()


def audit_model(arguments: argparse.Namespace) -> None:
    """``cfl-flare site audit``: the attacks of ``membership`` on a model that this site keeps; nothing leaves."""
    path, shadow_models = (
        find_model(Path(arguments.run), None, arguments.participant),
        arguments.shadow_models,
    )
    valid = shadow_models > 0 and SHADOW_MODELS.hold(shadow_models)
    require(
        valid, f"--shadow-models = {shadow_models} should be an even number in 2..64"
    )
    meta = load_arrays(path)[1]
    data, made_with = site_data(path, meta, arguments.data)
    training = replace(
        from_dict(TrainSettings, made_with["training"], f"{path}: training"), dp=None
    )
    network, module = model_of(meta, path), read_model(path)
    site = Site(
        FedAvg(), partial(build, network, Module, "model"), training, made_with["seed"]
    )
    site.add([data])
    parts, vote = (
        (module.parts, module.vote)
        if isinstance(module, Ensemble)
        else ([module], "logits")
    )
    served = Served(tuple(ResidentModel(part).read() for part in parts), vote)
    counts = attacks(
        site.learner(path.stem, {}, meta["round"]), {path.stem: served}, shadow_models
    )[path.stem]
    headings = (
        "attack",
        "training samples told",
        "95 % interval",
        "of",
        "test samples",
    )
    table = Table(*headings, box=None, padding=(0, 1, 0, 0))
    for attack, of in counts.items():
        low, high = of.interval
        cells = (
            f"{of.rate:.1%}",
            f"{low:.1%} to {high:.1%}",
            str(of.members),
            f"{of.non_members}",
        )
        table.add_row(attack.replace("_", " "), *cells)
    Console().print(table)
    print(
        f"{path}: at most 1 % of the test samples are taken for training samples; nothing has left this site"
    )
