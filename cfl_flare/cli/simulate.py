# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Runs methods one after the other on simulated participants, with a live display: what ``cfl-flare run`` does."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cfl_flare.core.config import require, require_whole
from cfl_flare.core.errors import ConfigError, RunFailedError
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.data.summary import DataSummary
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.newcomers import onboard_unseen
from cfl_flare.engine.partial_sums import check_sums
from cfl_flare.engine.preflight import check_data, check_job
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import Method
from cfl_flare.report.figures import draw
from cfl_flare.results.run_dir import ROUNDS, Run, load_run, read_lines
from cfl_flare.training.settings import TrainSettings


@dataclass(frozen=True)
class RunSettings:
    """What the methods of one comparison share; the fields are those of ``cfl-flare run``."""

    source: DataSource
    model: Mapping[str, Any]
    partition: Mapping[str, Any]
    participants: int
    sites: int
    rounds: int
    min_samples: int = 8
    indicator_samples: int = 0
    unseen: float | int = 0
    sample: float | int = 1.0
    min_answers: float | int = 1
    evaluate_every: int = 1
    evaluate_trained: bool = False
    site_sums: bool = False
    keep_features: bool = False
    min_sites_per_cluster: int = 1
    merge_small_clusters: bool = False
    task_timeout: int = 3600
    seed: int = 0
    training: TrainSettings = field(default_factory=TrainSettings)
    loop: bool = False

    def __post_init__(self) -> None:
        require_whole("run", task_timeout=self.task_timeout, sites=self.sites, participants=self.participants)
        require(
            self.sites <= len(self.data.names),
            f"run: sites = {self.sites} is more than {self.data.who_trains}; each site hosts at least one",
        )

        without = "nothing is sent with --loop, so that site_sums have no use; leave one of the two out"
        require(not (self.loop and self.site_sums), f"run: {without}")

    @property
    def data(self) -> DataConfig:
        """How the samples are dealt out."""
        return DataConfig(
            self.participants,
            dict(self.partition),
            self.seed,
            self.min_samples,
            self.indicator_samples,
            self.unseen,
        )

    @property
    def scheduled(self) -> ServerSettings:
        """What the server schedules."""
        return ServerSettings(
            self.rounds,
            self.seed,
            self.sample,
            self.min_answers,
            self.evaluate_every,
            keep_features=self.keep_features,
            min_sites_per_cluster=self.min_sites_per_cluster,
            merge_small_clusters=self.merge_small_clusters,
        )


def simulate(methods: Mapping[str, Method], settings: RunSettings, out: Path) -> list[Run]:
    """Runs each method and leaves its results in ``out/<name>``.

    Everything is checked for all methods before the first one starts, and before anything is written. Participants that
    were held back join each run when it is done.

    Raises:
        ConfigError: a setting is wrong.
        DataError: the samples cannot be read or dealt out, or do not fit the model.
        RunFailedError: FLARE ended a run before its time; the message names the reason and the log.
    """
    for method in methods.values():
        check_sums(settings.site_sums, method, settings.scheduled)
        check_job(method, settings.model, settings.data, settings.scheduled)
    # Data and model are the same for all methods.
    hosted = settings.data.host(settings.source, "local", 0, 1)
    check_data(next(iter(methods.values())), settings.model, hosted, settings.training, settings.seed)
    jobs = {name: _job(name, method, settings, out) for name, method in methods.items()}
    runs = []
    with open(os.dup(sys.stdout.fileno()), "w") as terminal:
        console = Console(file=terminal)
        if unscaled := DataSummary.of(hosted[0]).unscaled:
            console.print(f"look at the data: {unscaled}", style="yellow")
        for name, job in jobs.items():
            folder = out / name
            try:
                folder.mkdir(parents=True)
            except OSError as error:
                raise ConfigError(
                    f"--out = {str(out)!r} cannot be made ({error.strerror}); name another folder"
                ) from error
            with Display(console, name, settings.rounds) as display:
                job(folder, display)
            if settings.unseen:
                failed = onboard_unseen(folder, settings.source)["failed"]
                for reason in failed.values():
                    console.print(f"could not join: {reason}", style="yellow")
            runs.append(load_run(folder))
    return runs


def _job(name: str, method: Method, settings: RunSettings, out: Path) -> Any:
    """A checked job: a function of its results' folder and the display."""
    if settings.loop:

        def in_process(folder: Path, display: Display) -> None:
            run_loop(
                method=method,
                model=settings.model,
                source=settings.source,
                data=settings.data,
                settings=settings.scheduled,
                training=settings.training,
                folder=folder,
                evaluate_trained=settings.evaluate_trained,
                on_round=lambda measured: display.update([measured.record]),
            )
            draw(load_run(folder))

        return in_process
    from cfl_flare.flare import ClusteredRecipe, simulator

    recipe = ClusteredRecipe(
        name=name,
        method=method,
        model=settings.model,
        data=settings.source,
        participants=settings.participants,
        partition=settings.partition,
        min_samples=settings.min_samples,
        indicator_samples=settings.indicator_samples,
        unseen=settings.unseen,
        num_rounds=settings.rounds,
        min_clients=settings.sites,
        training=settings.training,
        seed=settings.seed,
        sample=settings.sample,
        min_answers=settings.min_answers,
        evaluate_every=settings.evaluate_every,
        evaluate_trained=settings.evaluate_trained,
        site_sums=settings.site_sums,
        keep_features=settings.keep_features,
        min_sites_per_cluster=settings.min_sites_per_cluster,
        merge_small_clusters=settings.merge_small_clusters,
        task_timeout=settings.task_timeout,
    )

    env = simulator(settings.sites, out / "flare")
    recipe.check_env(env)

    def through_flare(folder: Path, display: Display) -> None:
        results = Path(env.workspace_root) / name / "server" / "simulate_job"
        log = folder / "flare.log"
        try:
            with interrupts() as interrupted, display.watching(results / "cfl" / ROUNDS), output_to(log):
                recipe.execute(env)
        except RuntimeError as error:
            if interrupted.is_set():
                raise KeyboardInterrupt from error
            raise RunFailedError(f"{name}: {reason_in(log) or error}; FLARE's log is {log}") from error
        if not (results / "cfl" / "summary.json").is_file():
            raise RunFailedError(f"{name}: no results; {reason_in(log)}; FLARE's log is {log}")
        for part in (results / "cfl").iterdir():  # moved: the same run should not be found twice
            shutil.move(part, folder / part.name)
        shutil.move(results / "metrics", folder / "metrics")

    return through_flare


def reason_in(log: Path) -> str:
    """Why FLARE ended a run, from its log; empty if it does not say."""
    found = re.findall(r"(?:FATAL_SYSTEM_ERROR received: |is left out: |ERROR - )(.+)", log.read_text(errors="replace"))
    return found[-1] if found else ""


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Whether the user has pressed Ctrl-C: FLARE catches it, stops its processes, and calls it a failed simulation."""
    seen, usual = threading.Event(), signal.getsignal(signal.SIGINT)
    noting = threading.current_thread() is threading.main_thread() and usual is signal.default_int_handler

    def note(number: int, frame: FrameType | None) -> None:
        seen.set()
        signal.default_int_handler(number, frame)

    if noting:
        signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        if noting:
            signal.signal(signal.SIGINT, usual)


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Sends what this process and its children print to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(fd) for fd in (1, 2)]
    try:
        with path.open("w") as log:
            for fd in (1, 2):
                os.dup2(log.fileno(), fd)
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, old in zip((1, 2), saved):
            os.dup2(old, fd)
            os.close(old)


class Display:
    """A bar with rounds, and the last measured accuracy."""

    def __init__(self, console: Console, name: str, rounds: int):
        columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[note]}"), console=console)
        self._task = self._progress.add_task(name, total=rounds, note="starting")
        self._seen = 0

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def update(self, records: list[dict[str, Any]]) -> None:
        """Shows rounds that have been measured."""
        for record in records:
            note = ""
            if "served_accuracy" in record:
                note = f"accuracy {record['served_accuracy']:.3f}, worst {record['served_worst_accuracy']:.3f}"
            if record.get("ari") is not None:
                note += f", ARI {record['ari']:.2f}"
            self._progress.update(self._task, completed=record["round"] + 1, note=note)

    @contextlib.contextmanager
    def watching(self, path: Path) -> Iterator[None]:
        """Shows the rounds that another process appends to a file."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.3):
                self.update(read_lines(path)[self._seen :])
                self._seen = len(read_lines(path))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.update(read_lines(path)[self._seen :])
