# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command ``cfl-flare``."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cfl_flare.cli.options import SIMULATED, Simulation, parser
from cfl_flare.cli.report import report
from cfl_flare.cli.setting_options import given
from cfl_flare.cli.specs import (
    build_named,
    check_out,
    dealt_out,
    model_of_job,
    model_spec,
    read_source,
    shape_and_outputs,
    site_names,
    submit_line,
)
from cfl_flare.cli.watch import watch
from cfl_flare.core.config import check_run_name, one_line, require
from cfl_flare.core.errors import CFLError, ConfigError, NoPlotsError, RunFailedError, UnfitError
from cfl_flare.core.files import explained
from cfl_flare.core.text import plain
from cfl_flare.data import PARTITIONS, SOURCES, DataConfig, DataSource, SiteData
from cfl_flare.data.columns import Columns
from cfl_flare.data.table import Table as PatientTable
from cfl_flare.engine.indicator import samples_to_set_aside
from cfl_flare.engine.plan import CONCERNS, RunPlan
from cfl_flare.methods import COMBINATIONS, METHODS, PENALTIES
from cfl_flare.methods.combinations import Combination
from cfl_flare.models import MODELS
from cfl_flare.report.table import heading, partition_table, print_whole, results_table
from cfl_flare.results.attempt import unfinished
from cfl_flare.results.key_metric import of_training
from cfl_flare.results.preparations import columns_of
from cfl_flare.results.run_dir import find_runs
from cfl_flare.results.study import find_study, load_study
from cfl_flare.training.settings import TrainSettings

if TYPE_CHECKING:
    from cfl_flare.engine.newcomers import Newcomer


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; bad input is one line on stderr and exit status 2."""
    commands = {"run": run, "export": export, "methods": methods, "partition": partition, "show": show}
    commands |= {"onboard": onboard, "study": study, "report": report, "watch": watch}
    commands |= {"site": operate, "columns": operate, "predict": operate, "templates": templates}
    try:
        arguments = parser().parse_args(argv)
        commands[arguments.subcommand](arguments)
    except CFLError as error:
        return failed(str(error), 1 if isinstance(error, (RunFailedError, UnfitError)) else 2)
    except OSError as error:
        return failed(explained(error), 2)
    except (MemoryError, RecursionError) as error:
        return failed(f"{one_line(error)}; what it was given is too large for this machine", 2)
    except KeyboardInterrupt:
        print("cfl-flare: interrupted", file=sys.stderr)
        return 130
    return 0


def failed(reason: str, status: int) -> int:
    """Prints why a command failed, in one line that a terminal cannot take for a command; returns its exit status."""
    print("cfl-flare:", plain(reason, 2000), file=sys.stderr)
    return status


def run(arguments: argparse.Namespace) -> None:
    """``cfl-flare run``."""
    from cfl_flare.cli.simulate import simulate

    wanted = arguments.method or [("fedavg", []), ("wecfl:k=3", [])]
    methods_to_run = [build_named(text, penalties) for text, penalties in wanted]
    labels = [m.label.replace("+", "-plus-").strip("-") for m in methods_to_run]
    names = [label + (f"-k{m.clusters}" if m.clusters > 1 else "") for label, m in zip(labels, methods_to_run)]
    names = [n if names.count(n) == 1 else f"{n}-{i}" for i, n in enumerate(names)]
    out = Path(arguments.out or f"cfl-runs/{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    check_out(out)
    simulation = Simulation(**given(arguments, Simulation))
    source, training = read_source(arguments.data), TrainSettings(**given(arguments, TrainSettings))
    settings = {
        **dealt_out(source, given(arguments, *CONCERNS.values()), SIMULATED),
        "model": model_spec(arguments.model, *shape_and_outputs(source, arguments.data, training)),
        "data": source,
        "training": training,
        "indicator_samples": samples_to_set_aside(methods_to_run),
        "min_clients": simulation.sites,
    }
    plans = {name: RunPlan.of(name=name, method=m, **settings) for name, m in zip(names, methods_to_run)}
    runs = simulate(plans, simulation, out)
    console = Console()
    print_whole(console, results_table(runs))
    if len(runs) > 1:
        from cfl_flare.report.write import try_to_write

        if (why := try_to_write(out, runs)) is not None:
            console.print(why, style="yellow", markup=False, soft_wrap=True)
    console.print(f"results: {out}", soft_wrap=True, markup=False)


def study(arguments: argparse.Namespace) -> None:
    """``cfl-flare study``."""
    from cfl_flare.cli.study import study as run_it

    run_it(arguments)


def templates(arguments: argparse.Namespace) -> None:
    """``cfl-flare templates``."""
    from cfl_flare.cli.templates import write_templates

    write_templates(arguments.out.absolute())


def export(arguments: argparse.Namespace) -> None:
    """``cfl-flare export``."""
    wanted = arguments.method or [("wecfl:k=3", [])]
    require(len(wanted) == 1, f"--method is given {len(wanted)} times; a job has one, export another job for another")
    (text, penalties), simulated = wanted[0], arguments.partition is not None or arguments.participants is not None
    method = build_named(text, penalties, here=simulated)
    check_run_name(arguments.name, "--name")
    folder = Path(arguments.out).absolute() / arguments.name
    check_out(folder)
    source = read_source(arguments.data, here=simulated)
    training = TrainSettings(**given(arguments, TrainSettings))
    settings: dict[str, Any] = {"model": model_of_job(arguments.model, source, arguments.data, training)}
    settings |= given(arguments, *CONCERNS.values())
    settings |= {"data": source, "training": given(arguments, TrainSettings)}
    if arguments.train_script is not None:  # it reads its data and trains: settings of both are refused
        default = parser().parse_args(["export"])
        settings["data"] = None if arguments.data == default.data else source
        settings["training"] = None if given(default, TrainSettings) == settings["training"] else settings["training"]
    from cfl_flare.flare import ClusteredRecipe
    from cfl_flare.flare.job.environment import check_floors

    recipe = ClusteredRecipe(method=method, **settings)
    sites = [] if arguments.sites is None else site_names(arguments.sites)
    if sites:
        recipe.set_per_site_config({site: {} for site in sites})
    if not simulated:
        check_floors(recipe.plan, sites)
    recipe.export(str(folder.parent))
    Console().print(submit_line(folder), soft_wrap=True, markup=False)


def partition(arguments: argparse.Namespace) -> None:
    """``cfl-flare partition``."""
    from cfl_flare.report.figures import draw_partition

    figure = Path(arguments.figure) if arguments.figure else None
    require(
        figure is None or (figure.parent.is_dir() and figure.suffix in (".png", ".pdf", ".svg")),
        f"--figure = {arguments.figure!r} should be a .png, .pdf or .svg file in an existing folder",
    )
    source = read_source(arguments.data)
    config = DataConfig(**dealt_out(source, given(arguments, DataConfig), SIMULATED))
    report, console = config.report(source), Console()
    for line in config.described(source):
        console.print(plain(line, 2000), soft_wrap=True, markup=False)
    sizes = report.train.sum(axis=1)
    console.print(
        f"{report.rule}: {len(report.names)} participants, {sizes.min()} to {sizes.max()} training samples; "
        f"{report.train_unused} training and {report.test_unused} test samples unused; "
        f"{'no sample is dealt twice' if report.disjoint else 'SAMPLES ARE DEALT TWICE'}",
        soft_wrap=True,
        markup=False,
    )
    if arguments.show:
        print_whole(console, partition_table(report))
    if figure is not None:
        console.print(str(draw_partition(report, figure)), soft_wrap=True, markup=False)


def onboard(arguments: argparse.Namespace) -> None:
    """``cfl-flare onboard``."""
    from cfl_flare.engine.newcomers import Finished, joining_rule

    name = arguments.name
    check_run_name(name, "--name")
    finished = Finished(arguments.run, partial(check_allowed, arguments.allow))
    out = Path(arguments.out) if arguments.out else finished.folder / "newcomers" / name
    there = not arguments.out and out.is_dir() and any(out.iterdir())
    require(
        not there, f"--name = {name!r}: a newcomer of that name has joined; its model is in {out}; take another name"
    )
    check_out(out)
    source = of_run(read_source(arguments.data), columns_of(finished.folder))
    (data,) = DataConfig(min_samples=1).host(source, name, 0, 1)
    newcomer = finished.join(data, finished.logits(arguments.indicator_file), arguments.rounds)
    path = finished.save(newcomer, out)
    console = Console()
    print_whole(console, newcomer_table(newcomer, joining_rule(finished.method)))
    console.print(f"model: {path}", soft_wrap=True, markup=False)


def of_run(source: DataSource, columns: Columns | None) -> DataSource:
    """A newcomer's table with what the run's columns mean, unless the user says that; other sources as they are."""
    if columns is None or not isinstance(source, (PatientTable, SiteData)) or source.columns is not None:
        return source
    return dataclasses.replace(source, columns=columns.to_dict())


def check_allowed(allowed: Sequence[str], path: str) -> None:
    """Raises a ConfigError if a class that a run names is neither the package's own nor allowed."""
    ours = [*METHODS.values(), *PENALTIES.values(), *MODELS.values()]
    known = path in allowed or path in [f"{cls.__module__}.{cls.__qualname__}" for cls in ours]
    name = path if len(path) <= 200 else path[:200] + "..."
    require(known, f"the run names {name}, which is not cfl_flare's own; if you trust it, add --allow {name}")


def newcomer_table(newcomer: Newcomer, joins_by: str) -> Table:
    """A table with the newcomer's line."""
    title = "the newcomer, on its own test split" if newcomer.metrics else "the newcomer, which measured nothing"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    cluster = "no clusters" if newcomer.cluster is None else str(newcomer.cluster)
    found = {key.removeprefix("served_"): value for key, value in newcomer.metrics.items()}
    measures = {name: f"{value:.3f}" for name, value in found.items() if not of_training(name)}
    for column in ("name", "cluster", "joined by", "rounds", *map(heading, measures)):
        table.add_column(column)
    table.add_row(escape(newcomer.name), cluster, escape(joins_by) or "-", str(newcomer.rounds), *measures.values())
    return table


def methods(arguments: argparse.Namespace) -> None:
    """``cfl-flare methods``."""
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
            table.add_row(name, *(("", f"another name of {first}") if first != name else _described(entry)))
        console.print(table)


def _described(entry: Any) -> tuple[str, str]:
    """The settings of a class or a combination, with their defaults, and what it is."""
    if isinstance(entry, Combination):
        return _lines(entry.settings()), entry.summary
    parameters = inspect.signature(entry).parameters.items()
    settings = {name: p.default for name, p in parameters if name not in ("input_shape", "num_classes")}
    summary = (entry.__doc__ or "").strip().splitlines()[0].replace("``", "")
    paper = getattr(entry, "paper", None)
    return _lines(settings), summary + (f"\n[dim]{paper}[/dim]" if paper else "")


def _lines(settings: Mapping[str, Any]) -> str:
    lines = []
    for name, default in settings.items():
        needed = default in (inspect.Parameter.empty, dataclasses.MISSING)
        several = isinstance(default, tuple)
        shown = "needed" if needed else (", ".join(map(str, default)) or "none") if several else str(default)
        lines.append(escape(f"{name} ({shown})"))
    return "\n".join(lines)


def show(arguments: argparse.Namespace) -> None:
    """``cfl-flare show``."""
    from cfl_flare.report.figures import draw, draw_comparison

    console, of_study = Console(), find_study(arguments.run)
    if of_study is not None:
        from cfl_flare.cli.study import print_study

        return print_study(console, load_study(of_study))
    known = unfinished(arguments.run) if Path(arguments.run).is_dir() else []
    for line in known:
        console.print(line, soft_wrap=True, markup=False)
    try:
        runs = find_runs(arguments.run)
    except ConfigError as error:
        raise (RunFailedError(f"{error}; what is known is above") if known else error) from error
    folders = [str(one.folder.relative_to(arguments.run)) for one in runs] if len(runs) > 1 else []
    print_whole(console, results_table(runs, folders))
    files: list[Path] = []
    try:
        files = [path for one in runs for path in draw(one)]
        if len(runs) > 1 and Path(arguments.run) not in [
            one.folder for one in runs
        ]:  # its own figures have these names
            files += draw_comparison(runs, Path(arguments.run))
    except NoPlotsError as error:  # the table is there
        print(f"no figures: {error}", file=sys.stderr)
    except (CFLError, OSError, ImportError):
        raise
    except Exception as error:  # whatever a foreign file's numbers and names do to a figure
        raise ConfigError(f"{arguments.run}: no figures can be drawn of these files ({one_line(error)})") from error
    for path in files:
        console.print(str(path), soft_wrap=True, markup=False)


def operate(arguments: argparse.Namespace) -> None:
    """``cfl-flare site``, ``cfl-flare columns`` and ``cfl-flare predict``."""
    from cfl_flare.cli import site_commands as commands

    getattr(commands, arguments.subcommand)(arguments)


if __name__ == "__main__":
    sys.exit(main())
