# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Runs methods one after the other on simulated participants, with a live display: what ``cfl-flare run`` does."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from cfl_flare.cli.options import say
from cfl_flare.clustering.gap import NUMBER, describe_note
from cfl_flare.core.config import require
from cfl_flare.core.errors import RunFailedError
from cfl_flare.core.files import make_folder
from cfl_flare.core.settings import changed, check_settings, setting
from cfl_flare.data.summary import DataSummary, class_lines, clipped_line
from cfl_flare.engine.loop import class_facts, run_loop
from cfl_flare.engine.newcomers import onboard_unseen
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.engine.site import Site
from cfl_flare.extensions import present_results
from cfl_flare.results.metrics import Metric, RoundMetrics, leading
from cfl_flare.results.run_dir import ROUNDS, SERVED, SUMMARY, Run, load_run, read_lines
from cfl_flare.results.served import save_preparations


@dataclass(frozen=True)
class Simulation:
    """How a comparison is run on this machine."""

    sites: int = setting(2, help="FLARE clients that host the participants", ge=1)
    loop: bool = setting(False, help="without FLARE: the same numbers, sooner")

    def __post_init__(self) -> None:
        check_settings(self, "run")


def simulate(
    plans: Mapping[str, RunPlan],
    simulation: Simulation,
    out: Path,
    on_start: Callable[[], None],
) -> list[Run]:
    """Runs each plan and writes its results to ``out/<name>``. The plans share data, model and settings.

    Everything is checked for all methods before the first one starts, and before anything is written: then ``out`` is
    made, and ``on_start`` is called. Participants that were held back join each run when it is done.

    A RunFailedError says that FLARE ended a run early; its message names the reason and the log.
    """
    plan = next(iter(plans.values()))
    check_simulation(plan, simulation)
    check_plans(plans.values())
    assert plan.reader is not None and plan.training is not None
    of_run = (plan.method, plan.make_model, plan.training, plan.server.seed)
    site = Site(*of_run, device=plan.site.device, private=plan.job.private)
    with site.preparing():
        hosted = plan.data.host(plan.reader, "local", 0, 1)
    site.add(hosted)
    task = site.runtime.task
    judging = plan.server.judged(
        task, site.runtime.division.layout
    ).early_stopping.named
    metric = leading(judging, [*task.ranges(plan.training.measures)])
    facts = class_facts(plan.reader, task, hosted)
    plans = {
        name: replace(method_plan, facts=facts) for name, method_plan in plans.items()
    }
    run_all = (
        partial(in_process, plans, out)
        if simulation.loop
        else through_flare(plans, simulation, out)
    )
    make_folder(out)
    on_start()
    runs = []
    with open(os.dup(sys.stdout.fileno()), "w") as terminal:
        console = Console(file=terminal)
        say(
            console,
            *plan.data.described(plan.reader),
            *class_lines(hosted),
            *clipped_line(hosted),
        )
        if unscaled := DataSummary.of(hosted[0]).unscaled:
            say(console, f"look at the data: {unscaled}", style="yellow")
        say(
            console,
            *(f"look at the model: {remark}" for remark in site.remarks),
            style="yellow",
        )
        for name in plans:
            make_folder(out / name)
            save_preparations(out / name, hosted)
        with Display(console, list(plans), plan.server.num_rounds, metric) as display:
            run_all(display)
        for folder in (out / name for name in plans):
            if plan.data.holds_back:
                failures = onboard_unseen(folder, plan.reader)["failed"].values()
                say(
                    console,
                    *(f"could not join: {reason}" for reason in failures),
                    style="yellow",
                )
            reported = (
                not simulation.loop and not plan.data.holds_back
            )  # by the job itself, before newcomers join
            if not reported:
                say(console, *present_results(folder), style="yellow")
            runs.append(load_run(folder))
    return runs


def check_simulation(plan: RunPlan, simulation: Simulation) -> None:
    """Raises a ConfigError for more sites than participants, or for settings that have no use without FLARE."""
    sites = simulation.sites
    too_many = f"run: sites = {sites} is more than {plan.data.who_trains}; each site hosts at least one"
    require(sites <= len(plan.data.names), too_many)
    of_flare = [*changed(plan.controller), *changed(plan.executor), *changed(plan.job)]
    unused = [
        name
        for name in of_flare
        if name not in ("min_clients", "name", "initial_ckpt", "private")
    ]
    no_effect = (
        f"run: nothing is sent with --loop, so {', '.join(unused)} would have no effect"
    )
    require(not (simulation.loop and unused), f"{no_effect}; leave one of the two out")


def in_process(plans: Mapping[str, RunPlan], out: Path, display: Display) -> None:
    for name, plan in plans.items():
        run_loop(plan, out / name, partial(display.measured, name))


def through_flare(
    plans: Mapping[str, RunPlan], simulation: Simulation, out: Path
) -> Callable[[Display], None]:
    """Plans as one job for FLARE's simulator, which starts and ends once: a function of the display."""
    from cfl_flare.flare import ClusteredRecipe, simulator
    from cfl_flare.flare.job.several_recipe import SeveralRecipe
    from cfl_flare.flare.policy import STATE_ROOT

    several = len(plans) > 1
    recipe = (
        SeveralRecipe.of_plans(plans)
        if several
        else ClusteredRecipe.of(next(iter(plans.values())))
    )
    job_name = recipe.plan.job.name
    env = simulator(simulation.sites, out / "flare")
    recipe.check_env(env)
    results = Path(env.workspace_root) / job_name / "server" / "simulate_job"
    folders = {name: results / "cfl" / (name if several else "") for name in plans}

    def run_job(display: Display) -> None:
        log = out / ("" if several else next(iter(plans))) / "flare.log"
        failure = ""
        try:
            with display.watching(folders), output_to(log):
                recipe.execute(env)
        except RuntimeError as error:
            failure = reason_in(log) or str(error)
        state = (
            Path(os.environ.get(STATE_ROOT) or Path(env.workspace_root) / "cfl_state")
            / job_name
        )
        for name, folder in folders.items():
            if failure or not (folder / SUMMARY).is_file():
                raise RunFailedError(
                    f"{name}: {failure or f'no results; {reason_in(log)}'}; FLARE's log is {log}"
                )
            for (
                part
            ) in folder.iterdir():  # moved: the same run should not be found twice
                shutil.move(part, out / name / part.name)
            make_folder(out / name / SERVED, private=True)
            for served in state.glob(
                f"*/{f'{name}/' if several else ''}{SERVED}/*.safetensors"
            ):
                shutil.move(served, out / name / SERVED / served.name)
        if not several:
            shutil.move(results / "metrics", out / next(iter(plans)) / "metrics")

    return run_job


def reason_in(log: Path) -> str:
    """Why FLARE ended a run, from its log; empty if it does not say."""
    marks = r"(?:FATAL_SYSTEM_ERROR received: |is left out: |ERROR - )(.+)"
    reasons = re.findall(marks, log.read_text(errors="replace"))
    return reasons[-1] if reasons else ""


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Sends what this process and its children print to a file."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    saved = [os.dup(fd) for fd in (1, 2)]
    try:
        with path.open("w") as log:
            for fd in (1, 2):
                os.dup2(log.fileno(), fd)
            yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for fd, old in zip((1, 2), saved):
            os.dup2(old, fd)
            os.close(old)


class Display:
    """A bar with rounds for each run, and the last value of the metric by which runs are judged."""

    def __init__(
        self, console: Console, names: Sequence[str], rounds: int, metric: Metric
    ):
        columns = (
            TextColumn("{task.description:12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(
            *columns, TextColumn("{task.fields[note]}"), console=console
        )
        self._bars = {
            name: self._progress.add_task(name, False, rounds, note="waiting")
            for name in names
        }
        self._metric = metric
        self._start(names[0])

    def _start(self, name: str) -> None:
        bar = self._bars[name]
        if not self._progress.tasks[bar].started:
            self._progress.start_task(bar)
            self._progress.update(bar, note="starting")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def measured(self, name: str, metrics: RoundMetrics) -> None:
        self.update(name, [metrics.record])

    def update(self, name: str, records: list[dict[str, Any]]) -> None:
        """Shows rounds of a run that have been measured."""
        bar, metric = self._bars[name], self._metric
        for record in records:
            self._start(name)
            note = ""
            if f"served_{metric.name}" in record:
                worst = record[f"served_worst_{metric.name}"]
                note = f"{metric.name} {record[f'served_{metric.name}']:.3f}, {metric.far_end} {worst:.3f}"
            if record.get("ari") is not None:
                note += f", ARI {record['ari']:.2f}"
            if NUMBER in record:
                self._progress.console.print(
                    f"{name}: {describe_note(record[NUMBER])}", markup=False
                )
            self._progress.update(bar, completed=record["round"] + 1, note=note)
        if self._progress.tasks[bar].finished:
            self._progress.stop_task(bar)

    @contextlib.contextmanager
    def watching(self, folders: Mapping[str, Path]) -> Iterator[None]:
        """Shows the rounds that another process appends to files in the runs' folders."""
        done = threading.Event()

        def watch() -> None:
            shown, last = dict.fromkeys(folders, 0), False
            while not last:
                last = done.wait(0.3)
                for name, folder in folders.items():
                    records = read_lines(folder / ROUNDS)
                    self.update(name, records[shown[name] :])
                    shown[name] = len(records)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
