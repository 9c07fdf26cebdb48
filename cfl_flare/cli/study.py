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
from pathlib import Path
from typing import Any

from rich.console import Console

from cfl_flare.cli.options import OF_STUDY_JOB, SIMULATED, SITE_DATA
from cfl_flare.cli.setting_options import given
from cfl_flare.cli.simulate import Display
from cfl_flare.cli.specs import (
    build_named,
    check_out,
    dealt_out,
    model_of_job,
    model_spec,
    read_source,
    shape_and_outputs,
    submit_line,
)
from cfl_flare.core.config import check_run_name, require
from cfl_flare.core.files import make_folder
from cfl_flare.core.text import plain
from cfl_flare.data import DataConfig
from cfl_flare.data.summary import clipped_line
from cfl_flare.engine.indicator import samples_to_set_aside
from cfl_flare.engine.plan import CONCERNS, RunPlan
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.engine.study.candidates import first_candidates
from cfl_flare.engine.study.file import as_kept, differing, finished, journal_of, save
from cfl_flare.engine.study.halving import VALIDATION, Study
from cfl_flare.engine.study.in_process import InProcess, described
from cfl_flare.engine.study.settings import StudySettings
from cfl_flare.report.table import candidates_table, hospitals_table, print_whole
from cfl_flare.report.write import REPORT, try_to_write
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.study import STUDY, load_study
from cfl_flare.training.settings import TrainSettings


def study(arguments: argparse.Namespace) -> None:
    """Runs a study, or what is left of it; or writes it as a job."""
    if arguments.job is not None:
        return export_study(arguments)
    of_job = given(arguments, *OF_STUDY_JOB)
    first = next(iter(of_job), "").replace("_", "-")
    require(not of_job, f"--{first} is of a job for real sites; give --job DIR with it, or leave it out")
    arguments.data = arguments.data or "digits"
    out = Path(arguments.out or f"cfl-studies/{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    with open(os.dup(sys.stdout.fileno()), "w") as terminal:
        found = run_study(arguments, out, Console(file=terminal))
    console = Console()
    print_study(console, found)
    console.print(f"results: {out}", soft_wrap=True, markup=False)
    if (out / REPORT).is_file():
        console.print(f"report: {out / REPORT}", soft_wrap=True, markup=False)


def print_study(console: Console, found: Mapping[str, Any]) -> None:
    """Prints what a study has found so far, as its file holds it."""
    print_whole(console, candidates_table(found))
    if found["verdict"] is None:
        console.print("no verdict yet: the study was interrupted", soft_wrap=True, markup=False)
    else:
        print_whole(console, hospitals_table(found))
        for sentence in found["verdict"]["sentences"]:
            console.print(plain(sentence, 5000), soft_wrap=True, markup=False, highlight=False)
    spent, everything = found["cost"]["rounds"], found["cost"]["everything"]
    console.print(
        f"cost: {spent} rounds, {everything} for all candidates to the end; {found['cost']['seconds']:.0f} seconds",
        soft_wrap=True,
        markup=False,
    )


def export_study(arguments: argparse.Namespace) -> None:
    """Writes a study as a job for real sites.

    Raises:
        ConfigError: a setting is wrong, or an option is of a study on this machine.
    """
    require(arguments.out is None, "--out is where a study on this machine goes; with --job, leave it out")
    own = given(arguments, *OF_STUDY_JOB)
    name, simulated = own.setdefault("name", "study"), arguments.partition is not None
    simulated = simulated or arguments.participants is not None
    check_run_name(name, "--name")
    own.setdefault("min_clients", 2)
    folder = Path(arguments.job).absolute() / name
    check_out(folder, "--job")
    data = arguments.data or SITE_DATA
    source, training = read_source(data, here=simulated), given(arguments, TrainSettings)
    from cfl_flare.flare import StudyRecipe

    settings = {**given(arguments, StudySettings, DataConfig, ServerSettings, SiteSettings), **own}
    recipe = StudyRecipe(
        model=model_of_job(arguments.model, source, data, TrainSettings(**training)),
        data=source,
        training=training,
        more=[build_named(text, penalties, here=simulated) for text, penalties in arguments.method or []],
        **settings,
    )
    recipe.export(str(folder.parent))
    Console().print(submit_line(folder), soft_wrap=True, markup=False)


def run_study(arguments: argparse.Namespace, out: Path, console: Console) -> dict[str, Any]:
    """What the study found, as its file holds it.

    Raises:
        ConfigError: a setting is wrong, or the folder holds something else.
    """
    own = StudySettings(**given(arguments, StudySettings))
    more = [build_named(text, penalties) for text, penalties in arguments.method or []]
    source, training = read_source(arguments.data), TrainSettings(**given(arguments, TrainSettings))
    plan = RunPlan.of(
        method="fedavg",
        model=model_spec(arguments.model, *shape_and_outputs(source, arguments.data, training)),
        data=source,
        training=training,
        min_clients=1,
        **{
            **dealt_out(source, given(arguments, *CONCERNS.values()), SIMULATED),
            "indicator_samples": samples_to_set_aside(more),
        },
    )
    seed = plan.server.seed

    @contextmanager
    def watch(name: str, rounds: int) -> Iterator[Callable[[RoundMetrics], None]]:
        with Display(console, name, rounds, trainer.metric.name) as display:
            yield lambda measured: display.update([measured.record])

    def say(line: str) -> None:
        console.print(plain(line, 2000), soft_wrap=True, markup=False, highlight=False)

    trainer = InProcess(plan, out, watch, say)
    candidates = first_candidates(trainer.module, more, trainer.training.built_task())
    trainer.check(candidates)
    compared = {key: value for key, value in asdict(own).items() if key != "minutes"}  # more of them go on with it
    facts = as_kept(described(trainer, candidates, compared))
    begun = earlier(out, facts)
    if begun is not None and finished(begun, trainer.rounds):
        return begun
    make_folder(out)
    for line in (*plan.data.described(trainer.reader), *clipped_line(trainer.hosted(VALIDATION))):
        console.print(plain(line, 2000), soft_wrap=True, markup=False)
    running = Study(
        trainer,
        candidates,
        own,
        journal_of(begun),
        lambda journal: save(out, running, journal, facts),
        say,
        seed,
    )
    with trainer.locked():
        save(out, running, running.journal, facts)
        running.run()
    if running.journal.rungs[-1].rounds == trainer.rounds:
        trainer.clean()
    if (why := try_to_write(out)) is not None:
        console.print(why, style="yellow", soft_wrap=True, markup=False)
    return load_study(out)


def earlier(out: Path, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an earlier attempt with the same settings left in the folder; None if the folder is new.

    Raises:
        ConfigError: the folder holds something else.
    """
    if not (out / STUDY).is_file():
        unused = not out.exists() or (out.is_dir() and not any(out.iterdir()))
        require(unused, f"--out = {str(out)!r} is not an empty folder, and holds no {STUDY}; name a new one")
        return None
    begun = load_study(out)
    what = differing(begun, facts)
    require(
        not what,
        f"--out = {str(out)!r} holds a study with other settings ({what}); give the same options, or name a new folder",
    )
    return begun
