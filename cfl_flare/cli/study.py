# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``cfl-flare study``: should these hospitals be clustered, into how many groups, and who gains?"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from cfl_flare.cli import options, specs
from cfl_flare.cli.options import CONFIG, SITE_DATA, Parser, add_settings, given, say
from cfl_flare.cli.simulate import Display
from cfl_flare.core.config import check_run_name, require
from cfl_flare.core.files import make_folder, read_json
from cfl_flare.data import DataConfig
from cfl_flare.data.summary import class_lines, clipped_line
from cfl_flare.engine.plan import CONCERNS, RunPlan
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.engine.study.candidates import (
    StudySettings,
    check_candidates,
    first_candidates,
)
from cfl_flare.engine.study.halving import VALIDATION, Study
from cfl_flare.engine.study.in_process import InProcess
from cfl_flare.engine.study.journal import Journal, as_json, attempt_in, finished
from cfl_flare.extensions import present_results
from cfl_flare.methods import Groups, Method
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.study import STUDY, load_study
from cfl_flare.results.study_tables import candidates_table, hospitals_table
from cfl_flare.results.tables import print_whole, printed
from cfl_flare.training.settings import TrainSettings

# Settings of a study's job that a study on this machine does not have; and of jobs, those that no study has. Its option
# is --job: FLARE takes --export off any command line that makes a recipe.
OF_STUDY_JOB = [CONCERNS[name] for name in ("job", "controller", "executor")]
STUDY_JOB: dict[str, Any] = {"name": "study", "min_clients": 2}
NOT_IN_STUDY_JOB = ("initial_ckpt", "exclude_vars", "private", "site_sums")

DESCRIPTION = """Trains each hospital alone, one model for all, and clusters. Drops what is
clearly worse on validation samples, and says by test samples what to train.
The same command goes on with an interrupted study."""


def add_study_options(command: Parser) -> None:
    options.explain(command, DESCRIPTION)
    what = command.add_argument_group("what is compared")
    options.add_method(what, "another candidate, or several")
    groups = "also compare given groups: by a column of the table, or data for a simulation's own; with --job, a JSON "
    what.add_argument(
        "--groups", metavar="COLUMN", help=groups + "file that gives each site's group"
    )
    options.add_data(what, None, shown="digits, or site with --job")
    without = ("seed", "indicator_samples", "unseen", "train_groups", "measured_on")
    add_settings(
        what, DataConfig, without=without, derived=options.SIMULATED_AS, validation=0.25
    )
    execution = command.add_argument_group("how it is run")
    execution.add_argument(
        "--out", metavar="DIR", help="where results go; default: cfl-studies/<time>"
    )
    add_settings(execution, StudySettings)
    unused = ("stop_cond", "patience", "cross_site_evaluation", "keep_features")
    add_settings(execution, ServerSettings, SiteSettings, without=unused, num_rounds=20)
    training = command.add_argument_group("local training")
    add_settings(training, TrainSettings, derived=options.TRAINED_AS, **options.TRAINED)
    options.add_extension_settings(training)
    job = command.add_argument_group(
        "as one job for real sites, which is written and not run"
    )
    job.add_argument(
        "--job",
        metavar="DIR",
        help="where the job's folder goes; the options below belong to it",
    )
    add_settings(
        job, *OF_STUDY_JOB, without=NOT_IN_STUDY_JOB, optional=True, **STUDY_JOB
    )


def study(arguments: argparse.Namespace) -> Path | None:
    """``cfl-flare study`` runs a study, or what is left of it, or writes it as a job.

    Returns:
        The folder of the study that was run; None for a job.
    """
    if arguments.job is not None:
        export_study(arguments)
        return None
    first = next(iter(given(arguments, *OF_STUDY_JOB)), "").replace("_", "-")
    require(
        not first,
        f"--{first} is of a job for real sites; give --job DIR with it, or leave it out",
    )
    arguments.data = arguments.data or "digits"
    out = Path(
        arguments.out or f"cfl-studies/{time.strftime('%Y%m%d-%H%M%S')}"
    ).absolute()
    with open(os.dup(sys.stdout.fileno()), "w") as terminal:
        result = run_study(arguments, out, Console(file=terminal))
    console = Console()
    print_study(console, result)
    say(console, f"results: {out}")
    return out


def print_study(console: Console, result: Mapping[str, Any]) -> None:
    """Prints what a study says so far, as its file holds it."""
    print_whole(console, printed("candidates", candidates_table(result)))
    if result["verdict"] is None:
        say(console, "no verdict yet: the study was interrupted")
    else:
        print_whole(
            console, printed("what it brings each hospital", hospitals_table(result))
        )
        say(console, *result["verdict"]["sentences"])
    rounds, everything, seconds = (
        result["cost"][name] for name in ("rounds", "everything", "seconds")
    )
    say(
        console,
        f"cost: {rounds} rounds, {everything} for all candidates to the end; {seconds:.0f} seconds",
    )


def export_study(arguments: argparse.Namespace) -> None:
    """Writes a study as a job for real sites."""
    require(
        arguments.out is None,
        "--out is where a study on this machine goes; with --job, leave it out",
    )
    of_job = {**STUDY_JOB, **given(arguments, *OF_STUDY_JOB)}
    here = (arguments.partition, arguments.participants) != (None, None)
    check_run_name(of_job["name"], "--name")
    folder = Path(arguments.job).absolute() / of_job["name"]
    specs.check_out(folder, "--job")
    data = arguments.data or SITE_DATA
    source, training = (
        specs.read_source(data, here=here),
        {"bootstrap": 200, **specs.training_of(arguments)},
    )
    from cfl_flare.flare import StudyRecipe

    recipe = StudyRecipe(
        model=specs.model_of_job(
            arguments.model, source, data, TrainSettings(**training)
        ),
        data=source,
        training=training,
        more=candidates_of_user(arguments, here),
        **{
            **given(arguments, StudySettings, DataConfig, ServerSettings, SiteSettings),
            **of_job,
        },
    )
    specs.write_job(recipe, folder, arguments)


def candidates_of_user(
    arguments: argparse.Namespace, here: bool = True
) -> list[Method]:
    """The candidates that ``--method`` and ``--groups`` name."""
    methods = [
        specs.build_named(text, penalties, here=here)
        for text, penalties in arguments.method or []
    ]
    if arguments.groups is None:
        return methods
    if arguments.job is not None:
        return [*methods, Groups(groups=read_json(Path(arguments.groups)), warmup=1)]
    groups = specs.groups_of(arguments)
    require(
        bool(groups),
        f"--groups = {arguments.groups!r}: the data's participants have no groups; leave it out",
    )
    return [*methods, Groups(groups=groups, warmup=1)]


def run_study(
    arguments: argparse.Namespace, out: Path, console: Console
) -> dict[str, Any]:
    """What the study says, as its file holds it."""
    settings = StudySettings(**given(arguments, StudySettings))
    if arguments.groups not in (None, specs.BY_DATA):
        arguments.data += (
            f"{',' if ':' in arguments.data else ':'}group={arguments.groups}"
        )
        arguments.groups = (
            specs.BY_DATA
        )  # so that the options that are kept for --config name the column once
    methods = candidates_of_user(arguments)
    plan = RunPlan.of(
        method="fedavg", min_clients=1, **specs.simulated(arguments, methods)
    )

    @contextmanager
    def watch(name: str, rounds: int) -> Iterator[Callable[[RoundMetrics], None]]:
        with Display(console, [name], rounds, trainer.metric) as display:
            yield partial(display.measured, name)

    trainer = InProcess(plan, out, watch, partial(say, console))
    candidates = first_candidates(
        trainer.module, methods, trainer.training.built_task()
    )
    check_candidates(trainer.plan, candidates)
    compared = {
        key: value for key, value in asdict(settings).items() if key != "minutes"
    }  # more minutes go on with it
    facts = as_json(trainer.described(candidates, compared))
    attempt = earlier(out, facts)
    if attempt is not None and finished(attempt, trainer.rounds):
        return attempt
    make_folder(out)
    hosted = trainer.hosted(VALIDATION)
    say(
        console,
        *plan.data.described(trainer.reader),
        *class_lines(hosted),
        *clipped_line(hosted),
    )
    say(
        console,
        *(f"look at the model: {remark}" for remark in trainer.remarks),
        style="yellow",
    )
    journal, report, seed = Journal.of(attempt), partial(say, console), plan.server.seed
    running = Study(
        trainer,
        candidates,
        settings,
        journal,
        lambda _: running.write(out, facts),
        report,
        seed,
    )
    with trainer.locked():
        options.write_config(arguments, out / CONFIG)
        running.write(out, facts)
        running.run()
    if running.journal.rungs[-1].rounds == trainer.rounds:
        trainer.clean()
    say(console, *present_results(out), style="yellow")
    return load_study(out)


def earlier(out: Path, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an earlier attempt with the same settings left in the folder; None if the folder is new."""
    if not (out / STUDY).is_file():
        reason = f"--out = {str(out)!r} is not an empty folder, and holds no {STUDY}"
        require(specs.is_unused(out), f"{reason}; name a new one")
        return None
    return attempt_in(out, facts, f"--out = {str(out)!r}")
