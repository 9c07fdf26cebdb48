# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The plain in-process loop: the same server and site without FLARE, for tests, notebooks and benchmarks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfl_flare.core.config import build
from cfl_flare.core.errors import FileError
from cfl_flare.core.networks import describe_network
from cfl_flare.data import DataConfig, DataSource, ParticipantData
from cfl_flare.data.pixels import pixel_facts
from cfl_flare.engine.drive import Checkpoints, InProcess, drive
from cfl_flare.engine.indicator import logits_for
from cfl_flare.engine.initial_models import initial_models
from cfl_flare.engine.observers import Membership, Observer, Running, observers_of
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.server import Equipment, Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.extensions import PlannedRun, create_observers
from cfl_flare.methods import Participant, describe_method
from cfl_flare.results.ancestry import ANCESTRY, Ancestor, Ancestry, hash_split
from cfl_flare.results.curves import Scored
from cfl_flare.results.gate import read_facts
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.store import Checkpoint
from cfl_flare.training.ensemble import Served
from cfl_flare.training.runtime import Place
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import LearningTask

logger = logging.getLogger(__name__)


def model_factory(model: Any) -> Callable[[], torch.nn.Module]:
    """A function that builds the untrained model, from an instance or its ``{"class_path", "args"}``."""
    return partial(build, describe_network(model), torch.nn.Module, "model")


def run_loop(
    plan: RunPlan,
    folder: Path | None = None,
    on_round: Callable[[RoundMetrics], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Server:
    """Runs a method in this process, all participants in one `Site`.

    An interrupted run resumes from its last checkpoint, and ends as it would have without the interruption.

    Args:
        folder: where results are written; None for none.
        on_round: called with what was measured of each round.
        checkpoints: where checkpoints are kept, and where an earlier attempt's are resumed from; None for none.

    Returns:
        The server after the last round.

    Raises:
        StoreError: the checkpoints are of another run.
        ConfigError: the checkpoints' rounds are not in the folder, or the method lacks indicator samples.
    """
    source = plan.reader
    assert source is not None
    torch.set_num_threads(plan.site.torch_threads)
    plan = replace(
        plan, model=describe_network(plan.model), data=plan.data.resolved(source)
    )
    checkpoints = checkpoints or Checkpoints()
    site, places = _host(plan)
    runtime, training = site.runtime, site.runtime.settings
    settings = plan.server.judged(runtime.task, runtime.division.layout)
    facts = describe_run(plan.data, settings, training, plan.job.private)
    label_of = (
        partial(plan.data.label_of, source)
        if plan.method.traits.named_groups
        else lambda data: None
    )
    participants = [
        Participant(
            n,
            places[n],
            site.samples(n),
            d.group,
            len(d.test) > 0,
            clipped=d.clipped,
            label=label_of(d),
        )
        for n, d in site.hosted.items()
    ]
    start = _start(plan, site, participants, checkpoints, facts)
    recorder = None
    if folder is not None:
        ancestry = {ANCESTRY: _trace_ancestry(plan, training).to_list(names=False)}
        recorder = Recorder(
            folder,
            {**facts, **plan.facts, **ancestry},
            plan.model,
            start.recorded,
            start.last,
        )
        recorder.begin(plan.method.label, settings.num_rounds)
    scored = Scored.of(
        site.score_shape, runtime.task.link, settings.floor.sites, real=False
    )
    observers = [
        *create_observers(PlannedRun(training, settings)),
        *observers_of(scored=scored, bootstrap=training.bootstrap),
        Membership(training.membership),
    ]
    if on_round is not None:
        observers.append(Watcher(on_round))
    equipment = Equipment(
        recorder,
        start.progress,
        logits_for(
            plan.method, plan.make_model, plan.data, lambda: source, plan.server.seed
        ),
        None if checkpoints.store is None else checkpoints.store.archive,
        runtime.division.complete(partial(runtime.untrained, 0)),
        observers=observers,
    )
    server = Server(
        plan.method,
        runtime.division.public,
        participants,
        settings,
        start.state,
        equipment,
    )
    keeper = (
        partial(_keeper, recorder, site)
        if recorder is not None and plan.site.keep_served
        else None
    )
    drive(server, InProcess(site, places, keeper), checkpoints, plan.until)
    return server


class Watcher(Observer):
    """Calls a function with what was measured of each round, before the checkpoint of the coming one."""

    def __init__(self, on_round: Callable[[RoundMetrics], None]):
        self._on_round = on_round

    def collect(self, server: Running, measured: RoundMetrics) -> RoundMetrics:
        self._on_round(measured)
        return measured


def _host(plan: RunPlan) -> tuple[Site, dict[str, str]]:
    """The site with all participants, and the site at which the server believes each of them to be."""
    assert plan.reader is not None
    training = (plan.training or TrainSettings()).over(
        plan.server.num_rounds, plan.server.evaluate_every
    )
    place = Place.of(plan.site.device, plan.site.gpu_memory)
    of_run = (
        plan.method,
        plan.make_model,
        training,
        plan.server.seed,
        plan.site.evaluate_trained,
    )
    site = Site(*of_run, place.device, private=plan.job.private)
    place.limit()
    with site.preparing():
        site.add(plan.data.host(plan.reader, "local", 0, 1))
    return site, place_participants([*site.hosted], plan.sites)


def place_participants(names: Sequence[str], sites: int) -> dict[str, str]:
    """The site at which the server believes each participant to be.

    Args:
        names: of the participants.
        sites: how many there are.
    """
    if sites == 1:
        return dict.fromkeys(names, "local")
    return {
        name: f"site-{((i + 1) * sites - 1) // len(names) + 1}"
        for i, name in enumerate(names)
    }


def _start(
    plan: RunPlan,
    site: Site,
    participants: Sequence[Participant],
    checkpoints: Checkpoints,
    facts: Mapping[str, Any],
) -> Checkpoint:
    """Where the run starts: at an earlier attempt's last checkpoint, or at untrained or given models."""
    division, initial_ckpt = site.runtime.division, plan.job.initial_ckpt
    checkpoints.run = {
        "method": describe_method(plan.method),
        "model": plan.model,
        "participants": {p.name: p.samples for p in participants},
        **(
            {"labels": labels}
            if (
                labels := {p.name: p.label for p in participants if p.label is not None}
            )
            else {}
        ),
        "evaluate_trained": plan.site.evaluate_trained,
        "classes": _name_classes(site),
        **facts,
        **({} if initial_ckpt is None else {"initial_ckpt": initial_ckpt}),
    }
    checkpoints.memory = site.memory
    start = None
    if checkpoints.store is not None:
        start = Checkpoint.latest(checkpoints.store, division.layout, checkpoints.run)
    if start is None:
        path = None if initial_ckpt is None else Path(initial_ckpt)
        initial = initial_models(
            plan.method, plan.make_model, division.public, plan.server.seed, path
        )
        start = Checkpoint(plan.method.start(initial, [p.name for p in participants]))
    site.memory.update({name: dict(memory) for name, memory in start.memory.items()})
    return start


def _trace_ancestry(plan: RunPlan, training: TrainSettings) -> Ancestry:
    """The runs in which the models will have been trained."""
    privacy, path = training.privacy, plan.job.initial_ckpt
    dp = (
        None
        if privacy is None
        else {"epsilon": privacy.epsilon, "delta": privacy.delta}
    )
    run = Ancestor(dp=dp, split=hash_split(plan.server.seed, asdict(plan.data)))
    if path is None:
        return Ancestry((run,))
    return Ancestry.of(read_facts(Path(path)).get(ANCESTRY)).add(run)


def _name_classes(site: Site) -> list[str]:
    """The names of the classes in the order of their numbers; none if they are called by these."""
    data = next(iter(site.hosted.values()), None)
    return [] if data is None else list(data.train.classes)


def _keeper(
    recorder: Recorder, site: Site, server: Server
) -> Callable[[str, Served], None]:
    """A function that saves what a participant predicts with, but for what the run's models have already."""
    rounds, models = server.state.round, server.models()

    def keep(participant: str, served: Served) -> None:
        try:
            recorder.served(
                participant,
                served,
                rounds,
                site.hosted[participant].preparation,
                models,
            )
        except FileError as error:  # the run has its results all the same
            logger.error("%s's model is not kept: %s", participant, error)

    return keep


def describe_run(
    data: DataConfig,
    settings: ServerSettings,
    training: TrainSettings,
    private: str | None,
) -> dict[str, Any]:
    return {
        **({} if private is None else {"private": private}),
        "data": asdict(data),
        "run": asdict(settings.in_simulation()),
        "training": asdict(training),
    }


def class_counts(
    task: LearningTask, hosted: Sequence[ParticipantData]
) -> Mapping[str, tuple[int, ...]]:
    """How many test samples each participant has of each class; none where the task has no classes."""
    labels = {data.name: data.test.y for data in hosted if task.form == "class"}
    most = max([2, *(1 + int(y.max()) for y in labels.values() if len(y))])
    return {
        name: tuple(np.bincount(y, minlength=most).tolist())
        for name, y in labels.items()
    }


def class_facts(
    source: DataSource, task: LearningTask, hosted: Sequence[ParticipantData]
) -> dict[str, Any]:
    """For a run's summary: the classes' names, what class 1 is, and the accuracy of naming one class everywhere."""
    from cfl_flare.results.comparison import (
        AtHospital,
        majority,
        mean_of,
    )  # with scipy, which no site needs

    positive = source.positive if task.form == "class" else None
    counts = class_counts(task, hosted)
    people = {
        data.name: AtHospital(
            len(data.train),
            len(data.test),
            0,
            0.0,
            np.zeros(0),
            counts.get(data.name, ()),
        )
        for data in hosted
        if len(data.test)
    }
    naming = majority(people)
    names = hosted[0].train.classes if hosted and task.classes else ()
    return {
        **({"classes": list(names)} if names else {}),
        **pixel_facts(source),
        **({} if positive is None else {"positive": positive}),
        **({} if naming is None else {"majority": mean_of(naming)}),
    }
