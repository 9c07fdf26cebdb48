# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``run`` compares methods on simulated participants, ``partition`` deals them out, by ``onboard`` a newcomer joins."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cfl_flare.cli import options, specs
from cfl_flare.cli.options import Parser, add_settings, given, say
from cfl_flare.cli.simulate import Simulation, simulate
from cfl_flare.core.config import check_run_name, require
from cfl_flare.data import DataConfig, DataSource, SiteData
from cfl_flare.data.classes import describe_classes
from cfl_flare.data.columns import Columns
from cfl_flare.data.numbering import renumber
from cfl_flare.data.table import Table as PatientTable
from cfl_flare.engine.newcomers import Finished, Newcomer, describe_joining
from cfl_flare.engine.plan import CONCERNS, RunPlan
from cfl_flare.methods import METHODS, PENALTIES, Method
from cfl_flare.models import MODELS
from cfl_flare.report import page, write
from cfl_flare.report.table import partition_table, print_whole, printed, results_table
from cfl_flare.report.text import measure_name
from cfl_flare.results.metrics import of_training
from cfl_flare.results.served import columns_of
from cfl_flare.training.settings import TrainSettings

# Settings of a job that a simulation does not have.
NOT_IN_RUN = ("min_clients", "site_names", "name", "resume_from", "byoc")

EPILOG = """examples:
  cfl-flare run                                  FedAvg and WeCFL on digits
  cfl-flare run --method ifca:k=3 --rounds 40    another method
  cfl-flare run --data bloodmnist.npz --partition scanner --method wecfl:k=3
  cfl-flare run --data npz:path=skin.npz,key=clinic --penalty proximal:mu=1
  PYTHONPATH=. cfl-flare run --data my_module.MyData --model my_module.MyNet

'cfl-flare methods' lists methods, penalties, partitions, data and models, each
with its settings: write name:setting=value,setting=value, or package.Class.
"""

# Training alone is the first to compare with: what does not beat it is not worth a federation.
COMPARED = ("local", "fedavg", "wecfl:k=3")


def add_run_options(command: Parser) -> None:
    options.explain(command, epilog=EPILOG)
    what = command.add_argument_group("what is run")
    options.add_method(
        what, "several may be given (local, fedavg, wecfl:k=3)", default=COMPARED
    )
    options.add_data(what, "digits")
    add_settings(
        what,
        DataConfig,
        without=("seed", "indicator_samples"),
        derived=options.SIMULATED_AS,
    )
    execution = command.add_argument_group("how it is run")
    add_settings(execution, Simulation)
    execution.add_argument(
        "--out", metavar="DIR", help="where results go; default: cfl-runs/<time>"
    )
    add_settings(
        execution,
        *(CONCERNS[name] for name in options.OF_JOB),
        without=NOT_IN_RUN,
        num_rounds=20,
    )
    training = command.add_argument_group("local training")
    add_settings(training, TrainSettings, derived=options.TRAINED_AS, **options.TRAINED)


def run(arguments: argparse.Namespace) -> None:
    groups = partial(specs.groups_of, arguments)
    methods = [
        specs.build_named(text, penalties, groups=groups)
        for text, penalties in arguments.method
    ]
    out = Path(arguments.out or f"cfl-runs/{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    specs.check_out(out)
    simulation = Simulation(**given(arguments, Simulation))
    settings = {**specs.simulated(arguments, methods), "min_clients": simulation.sites}
    plans = {
        name: RunPlan.of(name=name, method=m, **settings)
        for name, m in zip(run_names(methods), methods)
    }
    runs = simulate(
        plans,
        simulation,
        out,
        on_start=partial(options.write_config, arguments, out / options.CONFIG),
    )
    console = Console()
    print_whole(console, results_table(runs))
    if len(runs) > 1 and (failure := write.try_to_write(out, runs)) is not None:
        say(console, failure, style="yellow")
    say(console, f"results: {out}")


def run_names(methods: Sequence[Method]) -> list[str]:
    """Names for the runs of methods. Those that would be equal get their place in the list."""
    labels = [method.label.replace("+", "-plus-").strip("-") for method in methods]
    names = [
        label + (f"-k{m.clusters}" if m.clusters > 1 else "")
        for label, m in zip(labels, methods)
    ]
    return [
        name if names.count(name) == 1 else f"{name}-{i}"
        for i, name in enumerate(names)
    ]


def add_partition_options(command: Parser) -> None:
    options.add_data(command, "digits")
    unused = (
        "indicator_samples",
        "unseen",
        "train_groups",
        "validation",
        "measured_on",
        "without",
    )
    add_settings(command, DataConfig, without=unused, derived=options.SIMULATED_AS)
    command.add_argument("--show", action="store_true", help="list every participant")
    command.add_argument(
        "--figure",
        metavar="FILE",
        help="draw label counts by participant (thesis Fig. A.1-A.4)",
    )


def partition(arguments: argparse.Namespace) -> None:
    from cfl_flare.report.figures import draw_partition

    figure = (
        specs.new_file("--figure", arguments.figure, ".png", ".pdf", ".svg")
        if arguments.figure
        else None
    )
    source = specs.read_source(arguments.data)
    config = DataConfig(**specs.dealt_out(source, given(arguments, DataConfig)))
    report, console = config.report(source), Console()
    sizes = report.train.sum(axis=1)
    summary = (
        f"{report.rule}: {len(report.names)} participants, {sizes.min()} to {sizes.max()} training samples; "
        f"{report.train_unused} training and {report.test_unused} test samples unused; "
        f"{'no sample is dealt twice' if report.disjoint else 'SAMPLES ARE DEALT TWICE'}"
    )
    class_lines = describe_classes(
        report.classes, (report.train_total + report.test_total).tolist()
    )
    say(console, *config.described(source), *class_lines, summary)
    if arguments.show:
        print_whole(console, partition_table(report))
    if figure is not None:
        say(console, draw_partition(report, figure))


def add_onboard_options(command: Parser) -> None:
    command.add_argument(
        "run", help="folder of a finished run, or one with a single run below it"
    )
    sources = "its samples: a name, a MedMNIST-layout .npz file, or package.Class"
    command.add_argument("--data", required=True, metavar="D", help=sources)
    command.add_argument(
        "--name",
        default="newcomer",
        metavar="N",
        help="what the newcomer is called (%(default)s)",
    )
    file = "the server's samples, for a method that compares models on some; default: the file that the run names"
    command.add_argument("--indicator-file", metavar="F", help=file)
    label = (
        "its group, after a run of method groups; default: none, with the common model"
    )
    command.add_argument("--group", metavar="LABEL", help=label)
    stay = "rounds in its cluster; more train its own parts (a head, a personal model) further (%(default)s)"
    command.add_argument("--rounds", type=int, default=1, metavar="N", help=stay)
    trust = "a class of the run's that is not cfl_flare's own and may be imported; several may be given"
    command.add_argument(
        "--allow", action="append", default=[], metavar="CLASS", help=trust
    )
    where = "where its model goes; default: newcomers/NAME in the run's folder"
    command.add_argument("--out", metavar="DIR", help=where)


def onboard(arguments: argparse.Namespace) -> None:
    name = arguments.name
    check_run_name(name, "--name")
    run = Finished(arguments.run, partial(check_allowed, arguments.allow))
    out = Path(arguments.out) if arguments.out else run.folder / "newcomers" / name
    joined = not arguments.out and out.is_dir() and any(out.iterdir())
    taken = f"--name = {name!r}: a newcomer of that name has joined; its model is in {out}; take another name"
    require(not joined, taken)
    specs.check_out(out)
    source = with_columns(specs.read_source(arguments.data), columns_of(run.folder))
    (data,) = DataConfig(min_samples=1).host(source, name, 0, 1)
    classes = tuple(run.summary.get("classes", ()))
    where = f"--data = {arguments.data!r}"
    train = renumber(data.train, classes, where)
    data = dataclasses.replace(
        data, train=train, test=renumber(data.test, classes, where)
    )
    newcomer = run.join(
        data, run.logits(arguments.indicator_file), arguments.rounds, arguments.group
    )
    path = run.save(newcomer, out)
    console = Console()
    print_whole(console, newcomer_table(newcomer, describe_joining(run.method)))
    say(console, f"model: {path}")


def with_columns(source: DataSource, columns: Columns | None) -> DataSource:
    """A newcomer's table with the meaning of the run's columns, unless the user gives one. Others stay as they are."""
    if (
        columns is None
        or not isinstance(source, (PatientTable, SiteData))
        or source.columns is not None
    ):
        return source
    return dataclasses.replace(source, columns=columns.to_dict())


def check_allowed(allowed: Sequence[str], path: str) -> None:
    """Raises a ConfigError if a class that a run names is neither the package's own nor allowed."""
    classes = [*METHODS.values(), *PENALTIES.values(), *MODELS.values()]
    known = path in allowed or path in [
        f"{cls.__module__}.{cls.__qualname__}" for cls in classes
    ]
    name = path if len(path) <= 200 else path[:200] + "..."
    require(
        known,
        f"the run names {name}, which is not cfl_flare's own; if you trust it, add --allow {name}",
    )


def newcomer_table(newcomer: Newcomer, rule: str) -> Table:
    title = (
        "the newcomer, on its own test split"
        if newcomer.metrics
        else "the newcomer, which measured nothing"
    )
    cluster = "no clusters" if newcomer.cluster is None else str(newcomer.cluster)
    measures = {
        measure_name(k): f"{v:.3f}"
        for k, v in newcomer.metrics.items()
        if not of_training(k)
    }
    row = (
        newcomer.name,
        cluster,
        rule or "-",
        str(newcomer.rounds),
        *measures.values(),
    )
    return printed(
        title, page.Table(("name", "cluster", "joined by", "rounds", *measures), [row])
    )
