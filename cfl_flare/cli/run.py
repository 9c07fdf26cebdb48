# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``run`` compares methods on simulated participants, and ``partition`` deals them out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from cfl_flare.cli import options, specs
from cfl_flare.cli.options import Parser, add_settings, given, say
from cfl_flare.cli.simulate import Simulation, simulate
from cfl_flare.data import DataConfig, PartitionReport
from cfl_flare.data.classes import describe_classes
from cfl_flare.engine.plan import CONCERNS, RunPlan
from cfl_flare.extensions import present_results
from cfl_flare.methods import Method
from cfl_flare.results.tables import (
    partition_table,
    print_whole,
    results_table,
)
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
    options.add_extension_settings(training)


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
    if len(runs) > 1:
        say(console, *present_results(out, runs), style="yellow")
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


def partition(arguments: argparse.Namespace) -> PartitionReport:
    """Deals a data set out, prints who gets what, and returns it."""
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
    return report
