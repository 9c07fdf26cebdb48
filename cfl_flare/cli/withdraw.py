# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``cfl-flare withdraw``: a hospital withdraws from a run: what it touched, and the run again without it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from cfl_flare.cli import options
from cfl_flare.cli.options import Parser, say, with_config
from cfl_flare.cli.run import run_names
from cfl_flare.cli.specs import build_named, check_out, groups_of
from cfl_flare.core.config import require
from cfl_flare.core.files import atomic_write, read_json
from cfl_flare.core.text import shown
from cfl_flare.results import schema
from cfl_flare.results.remarks import listed
from cfl_flare.results.run_dir import MODELS, Run, load_run, the_run
from cfl_flare.results.withdrawal import WITHDRAWAL, Withdrawal, at_real_sites, leaving, withdrawal

META: schema.Fields = {
    "name": schema.text,
    "deploy_map": schema.dict_of(schema.list_of(schema.text)),
    "min_clients": schema.count,
}
SERVER, EVERY = "server", "@ALL"


def add_withdraw_options(command: Parser) -> None:
    command.add_argument("run", help="folder of a finished run, or one with a single run below it")
    sites = "a site that withdraws, with all that it hosts; several may be given"
    command.add_argument("--site", action="append", default=[], metavar="S", help=sites)
    people = "a participant that withdraws; several may be given"
    command.add_argument("--participant", action="append", default=[], metavar="P", help=people)
    again = "run again without them, from the start: a simulation, by its run.toml"
    command.add_argument("--rerun", action="store_true", help=again)
    job = "of a run at real sites: its job's folder, of which one without them is written"
    command.add_argument("--job", metavar="DIR", help=job)
    command.add_argument("--out", metavar="DIR", help="where the new run, or the new job, goes")
    store = "the run's checkpoints: the server's folder of the run, below its state root"
    command.add_argument("--checkpoints", metavar="DIR", help=store)
    beside = "where later runs are looked for; default: the folder that the run is in"
    command.add_argument("--beside", metavar="DIR", help=beside)


def withdraw(arguments: argparse.Namespace) -> None:
    """``cfl-flare withdraw`` writes ``withdrawal.json`` into the run's folder, and runs again if asked to."""
    require(bool(arguments.site or arguments.participant), "withdraw: name who withdraws, by --site or --participant")
    run = load_run(the_run(arguments.run))
    names = leaving(run, arguments.site, arguments.participant)
    others = [person["name"] for person in run.summary["participants"] if person["name"] not in names]
    store = None if arguments.checkpoints is None else Path(arguments.checkpoints)
    report = withdrawal(run, names, Path(arguments.beside or run.folder.resolve().parent), store)
    new = arguments.rerun or arguments.job is not None
    require(new == (arguments.out is not None), "withdraw: --out is where --rerun or --job writes to; give both")
    real = at_real_sites(run)
    if new:
        way = "a run at real sites is repeated there: give its job's folder as --job, and submit what is written"
        require(arguments.rerun != real or arguments.job is not None, f"withdraw: --rerun: {way}")
        require(real or arguments.job is None, "withdraw: --job is of a run at real sites; repeat this by --rerun")
        require(bool(report.again), f"withdraw: nobody has to train again without {listed(names)}; delete their files")
        check_out(Path(arguments.out))
    written = dataclasses.asdict(report)
    if arguments.job is not None:
        written["job"] = str(job_without(Path(arguments.job), Path(arguments.out), names, others))
    elif arguments.rerun:
        written["rerun"] = str(run_without(run, report, Path(arguments.out)))
    atomic_write(run.folder / WITHDRAWAL, json.dumps(written, indent=1))
    say(Console(), *lines_of(run, report, written, real))


def lines_of(run: Run, report: Withdrawal, written: dict[str, Any], real: bool) -> list[str]:
    """What is said of a withdrawal."""
    who = listed(report.withdrawn)
    if report.first_round is None:
        figures = f"{len(report.files)} files are of figures to which they may have added"
        return [f"{who} trained in no round, and touched no model; {figures}", f"report: {run.folder / WITHDRAWAL}"]
    lines = [f"{who} trained from round {report.first_round} on", f"{len(report.files)} files are touched"]
    lines += [f"model {slot}: touched from round {number} on" for slot, number in report.models.items()]
    lines += [f"model {slot}: untouched" for slot in report.untouched]
    lines += [f"touched checkpoint: {path}" for path in report.checkpoints]
    lines += [f"started from a touched model: {folder}" for folder in report.later_runs]
    lines += [f"all clusters train again: {why}" for why in report.why_all if report.again]
    lines += [f"still in a run without them: {what}" for what in report.not_zero]
    if "rerun" in written:
        lines.append(f"run without them: {written['rerun']}")
    elif "job" in written:
        ask = "submit it; sites ask for 'cfl-flare site allow', as it differs by few"
        lines.append(f"job without them: {written['job']}; {ask}")
    elif report.again:
        option = "--job JOB --out DIR writes the job to submit" if real else "--rerun --out DIR runs again without them"
        lines.append(f"next: {option}")
    return [*lines, f"report: {run.folder / WITHDRAWAL}"]


def run_without(run: Run, report: Withdrawal, out: Path) -> Path:
    """Runs again without those who withdraw, and copies the models that they did not touch; the new run's folder."""
    from cfl_flare.cli import parser

    places = [folder / options.CONFIG for folder in (run.folder, run.folder.resolve().parent)]
    config = next((path for path in places if path.is_file()), None)
    require(config is not None, f"withdraw: {run.folder} has no {options.CONFIG} in it or above it; copy it there")
    words = ["run", "--config", str(config)]
    original = with_config(parser(), words)
    groups = partial(groups_of, original)
    methods = [build_named(text, penalties, groups=groups) for text, penalties in original.method]
    chosen = dict(zip(run_names(methods), original.method))
    name = run.folder.resolve().name
    require(name in chosen, f"withdraw: {config} has no run {shown(name)}; it has {listed(chosen)}")
    absent = [person["name"] for person in run.summary["participants"] if person["name"] not in report.again]
    method, penalties = chosen[name]
    words += ["--out", str(out), "--method", method, *(word for p in penalties for word in ("--penalty", p))]
    words += ["--sites", str(min(original.sites, len(report.again)))]
    arguments = with_config(parser(), [*words, "--without", *original.without, *absent])
    arguments.execute(arguments)
    new = the_run(out)
    for slot in report.untouched:
        shutil.copyfile(run.folder / MODELS / f"{slot}.safetensors", new / MODELS / f"{slot}.safetensors")
    return new


def job_without(job: Path, out: Path, names: list[str], others: list[str]) -> Path:
    """Writes a job without some sites, with another seed: from the same start, two jobs' models would give theirs."""
    where = job / "meta.json"
    meta = schema.checked(read_json(where), str(where), META)
    deployed: dict[str, list[str]] = {}
    folders = {path.name for path in job.iterdir() if path.is_dir()}
    for app, targets in meta["deploy_map"].items():
        named = [SERVER, *others] if EVERY in targets else targets
        left = [target for target in named if target not in names]
        require(app in folders, f"{where}: deploy_map has {shown(app)}, which is no folder of the job")
        deployed |= {app: left} if left else {}
    require(any(SERVER in targets for targets in deployed.values()), f"{where}: no app is for the server; name a job")
    links = [path for path in job.rglob("*") if path.is_symlink()]
    require(not links, f"{links[0] if links else job}: is a link, which may lead out of the job; copy what it means")
    shutil.copytree(job, out, dirs_exist_ok=True)
    for app in meta["deploy_map"].keys() - deployed:
        shutil.rmtree(out / app, ignore_errors=True)
    new = {**meta, "deploy_map": deployed, "min_clients": min(meta["min_clients"], len(others))}
    atomic_write(out / "meta.json", json.dumps(new, indent=4))
    for path in sorted(out.glob("*/config/config_fed_*.json")):
        config = read_json(path)
        reseed(config)
        atomic_write(path, json.dumps(config, indent=2))
    return out


def reseed(config: Any) -> None:
    """Gives cfl_flare's controller and executor, anywhere in a config, the seed after theirs."""
    of: dict[str, Any] = config if isinstance(config, dict) else {}
    path, args = of.get("path"), of.get("args") or {}
    if isinstance(path, str) and path.startswith("cfl_flare.flare.") and path.endswith(("Controller", "Executor")):
        require(isinstance(args, dict), f"withdraw: {shown(path)} of the job has no arguments; export it again")
        seed = args.get("seed", 0)
        where = f"withdraw: {shown(path)} of the job"
        require(schema.count(seed), f"{where}: seed = {shown(seed)} is none; export it again")
        of["args"] = {**args, "seed": (seed + 1) % 2**32}
    for part in of.values() if of else config if isinstance(config, list) else ():
        reseed(part)
