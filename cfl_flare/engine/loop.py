# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The plain in-process loop: the same server and site without FLARE, for tests, notebooks and benchmarks."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cfl_flare.core.arrays import Archive
from cfl_flare.core.config import build, from_dict
from cfl_flare.core.errors import FileError, PayloadError
from cfl_flare.core.networks import describe_network
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.engine.indicator import logits_for
from cfl_flare.engine.initial_models import initial_models
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.engine.site import Site
from cfl_flare.methods import Method, Participant, build_method, describe_method
from cfl_flare.methods.slots import with_parts
from cfl_flare.results.checkpoints import Checkpoint
from cfl_flare.results.curves import Scored
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.store import ARCHIVE, Store
from cfl_flare.training.ensemble import Served
from cfl_flare.training.runtime import Place
from cfl_flare.training.settings import TrainSettings

logger = logging.getLogger(__name__)


def model_factory(model: Any, authorize: Callable[[str], None] | None = None) -> Callable[[], torch.nn.Module]:
    """A function that builds the untrained model, from an instance or its ``{"class_path", "args"}``."""
    return partial(build, describe_network(model), torch.nn.Module, "model", authorize)


def run_loop(
    *,
    method: Method,
    model: Any,
    source: DataSource,
    data: DataConfig,
    settings: ServerSettings,
    training: TrainSettings,
    at_site: SiteSettings | None = None,
    folder: Path | None = None,
    on_round: Callable[[RoundMetrics], None] = lambda measured: None,
    checkpoints: Store | None = None,
    checkpoint_every: int = 10,
    initial_ckpt: Path | None = None,
    private: str | None = None,
    until: int | None = None,
    sites: int = 1,
    of_data: Mapping[str, Any] | None = None,
) -> Server:
    """Runs a method in this process, all participants in one `Site`.

    An interrupted run resumes from its last checkpoint, and ends as it would have without the interruption.

    Args:
        method: the method.
        model: the model, as an instance or ``{"class_path", "args"}``.
        source: where the samples come from.
        data: how they are dealt out.
        settings: the schedule.
        training: how participants train.
        at_site: settings of the one site.
        folder: where results are written; None for none.
        on_round: called with what was measured of each round.
        checkpoints: where checkpoints are kept, and where an earlier attempt's are resumed from; None for none.
        checkpoint_every: rounds between checkpoints.
        initial_ckpt: the file of a model from which to start; see `cfl_flare.engine.initial_models.read_checkpoint`.
        private: the layers that each participant has for itself; None for none.
        until: ends the run after so many rounds; with ``checkpoints``, a call with more goes on from there, as if it
            had not ended. None for all.
        sites: on so many sites the server believes the participants to be, for what counts sites: floors, shares.
        of_data: more facts for the summary.

    Returns:
        The server after the last round.

    Raises:
        StoreError: the checkpoints are of another run.
        ConfigError: the checkpoints' rounds are not in the folder, or the method lacks indicator samples.
    """
    own, training, data = at_site or SiteSettings(), training.over(settings.num_rounds), data.resolved(source)
    torch.set_num_threads(own.torch_threads)
    model = describe_network(model)  # once: it may be searched for
    make_model = model_factory(model)
    place = Place.of(own.device, own.gpu_memory)
    site = Site(method, make_model, training, settings.seed, own.evaluate_trained, place.device, private=private)
    place.limit()
    site.add(data.host(source, "local", 0, 1))
    logits = logits_for(method, make_model, data, lambda: source, settings.seed)
    names = {name: ((i + 1) * sites - 1) // len(site.hosted) for i, name in enumerate(site.hosted)}
    at = {name: "local" if sites == 1 else f"site-{index + 1}" for name, index in names.items()}
    participants = [
        Participant(n, at[n], len(d.train), d.group, len(d.test) > 0, clipped=d.clipped) for n, d in site.hosted.items()
    ]
    division = site.runtime.division
    settings = settings.judged(site.runtime.task, division.whole)
    facts = describe_run(data, settings, training, private)
    run = {
        "method": describe_method(method),
        "model": model,
        "participants": {p.name: p.samples for p in participants},
        "evaluate_trained": own.evaluate_trained,
        **facts,
        **({} if initial_ckpt is None else {"initial_ckpt": str(initial_ckpt)}),
    }
    begun = Checkpoint.latest(checkpoints, division.whole, run, as_written_now) if checkpoints is not None else None
    if begun is None:
        initial = initial_models(method, make_model, division.public, settings.seed, initial_ckpt)
        begun = Checkpoint(method.start(initial, [p.name for p in participants]))
    site.memory.update({name: dict(own) for name, own in begun.memory.items()})
    recorder = None
    if folder is not None:
        recorder = Recorder(folder, {**facts, **(of_data or {})}, run["model"], begun.recorded, begun.last)
        recorder.begin(method.label, settings.num_rounds, settings.early_stopping.named)
    archive = Archive(checkpoints.folder / ARCHIVE) if checkpoints is not None else None
    complete = division.complete(partial(site.runtime.untrained, 0))
    scored = Scored.of(site.score_shape, site.runtime.task.link, settings.floor.sites, real=False)
    more = (recorder, begun.progress, logits, archive, complete, scored, training.bootstrap)
    server = Server(method, division.public, participants, settings, begun.state, *more)
    while True:
        if until is not None and server.state.round >= until and not server.finished:
            server.progress.stopped = f"after {until} of {settings.num_rounds} rounds, as asked"
        number, last = server.state.round, server.finished
        tasks = server.tasks()
        models = with_parts(server.bank, [slot for task in tasks.values() for slot in task.needed])
        keep = None
        if last and recorder is not None and own.keep_served:
            keep = partial(_keep, recorder, site, number, server.models())
        for name, task in tasks.items():
            result = site.carry_out(name, task, models, number, keep)
            if result.error is not None:
                logger.warning("round %d: %s failed: %s, in full: %s", number, name, result.error, result.traceback)
            try:
                server.accept(result, at[name])
            except PayloadError as error:
                logger.warning("round %d: %s", number, error)
        measured = server.finish_round()
        if measured is not None:
            on_round(measured)
        if last:
            break
        if checkpoints is None:
            server.forget(server.state.round)
        elif server.state.round % checkpoint_every == 0 or server.state.round == until:
            measured = recorder.last if recorder is not None else None
            why = Checkpoint(server.state, server.progress, site.memory, measured).save(checkpoints, run)
            if why is not None:
                logger.error("no checkpoint after round %d: %s", server.state.round, why)
            server.forget(next(iter(checkpoints.versions()), 0))
    server.close({})
    return server


def _keep(
    recorder: Recorder, site: Site, rounds: int, beside: Mapping[str, Served], participant: str, served: Served
) -> None:
    """Saves what a participant predicts with beside the run's models."""
    try:
        recorder.served(participant, served, rounds, site.hosted[participant].preparation, beside)
    except FileError as error:  # the run has its results all the same
        logger.error("%s's model is not kept: %s", participant, error)


def describe_run(
    data: DataConfig,
    settings: ServerSettings,
    training: TrainSettings,
    private: str | None = None,
) -> dict[str, Any]:
    """The run's settings, for its summary."""
    return {
        **({} if private is None else {"private": private}),
        "data": dataclasses.asdict(data),
        "run": dataclasses.asdict(settings.in_simulation()),
        "training": dataclasses.asdict(training),
    }


def as_written_now(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings as this version writes them: missing ones have their defaults, renamed ones their new names.

    A user's own classes are not imported: a method of such a class stays as it is.

    Raises:
        ConfigError: this version does not know a setting.
    """
    method = run["method"]
    with contextlib.suppress(PermissionError):
        method = describe_method(build_method(method, _refuse))
    return {
        **run,
        "method": method,
        "data": dataclasses.asdict(from_dict(DataConfig, run["data"], "data")),
        "run": dataclasses.asdict(from_dict(ServerSettings, run["run"], "run").in_simulation()),
        "training": dataclasses.asdict(from_dict(TrainSettings, run["training"], "training")),
    }


def _refuse(class_path: str) -> None:
    raise PermissionError(class_path)
