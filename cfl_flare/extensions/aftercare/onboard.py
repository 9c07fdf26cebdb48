# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``onboard``: a participant that was not in training gets its cluster and its model."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table as TerminalTable

from cfl_flare.cli import specs
from cfl_flare.cli.options import Parser, say
from cfl_flare.core.config import check_run_name, require
from cfl_flare.data import DataConfig, DataSource, SiteData
from cfl_flare.data.columns import Columns
from cfl_flare.data.numbering import renumber
from cfl_flare.data.table import Table as PatientTable
from cfl_flare.engine.newcomers import Finished, Newcomer, describe_joining
from cfl_flare.methods import METHODS, PENALTIES
from cfl_flare.models import MODELS
from cfl_flare.results.metrics import of_training
from cfl_flare.results.served import columns_of
from cfl_flare.results.tables import (
    Table,
    print_whole,
    printed,
)
from cfl_flare.results.wording import measure_name


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


def newcomer_table(newcomer: Newcomer, rule: str) -> TerminalTable:
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
        title, Table(("name", "cluster", "joined by", "rounds", *measures), [row])
    )
