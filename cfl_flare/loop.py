# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The plain in-process loop: the same server and site without FLARE, for tests, notebooks and benchmarks."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cfl_flare.config import build, describe
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.errors import PayloadError
from cfl_flare.methods import Method, Participant
from cfl_flare.methods.slots import with_parts
from cfl_flare.results import Recorder
from cfl_flare.server import Server, ServerSettings
from cfl_flare.site import Site
from cfl_flare.summary import RoundMetrics
from cfl_flare.training.resident import untrained
from cfl_flare.training.settings import TrainSettings

logger = logging.getLogger(__name__)


def model_factory(model: Any, authorize: Callable[[str], None] | None = None) -> Callable[[], torch.nn.Module]:
    """A function that builds the untrained model, from an instance or its ``{"class_path", "args"}``."""
    return partial(build, describe(model, "model"), torch.nn.Module, "model", authorize)


def run_loop(
    *,
    method: Method,
    model: Any,
    source: DataSource,
    data: DataConfig,
    settings: ServerSettings,
    training: TrainSettings,
    folder: Path | None = None,
    evaluate_trained: bool = False,
    on_round: Callable[[RoundMetrics], None] = lambda measured: None,
) -> Server:
    """Runs a method in this process, all participants on one site.

    Args:
        method: the method.
        model: the model, as an instance or ``{"class_path", "args"}``.
        source: where the samples come from.
        data: how they are dealt out.
        settings: what is scheduled.
        training: how participants train.
        folder: where results are written; None for none.
        evaluate_trained: measure the locally trained models as well.
        on_round: called with what was measured of each round.

    Returns:
        The server after the last round.
    """
    torch.set_num_threads(1)
    make_model = model_factory(model)
    site = Site(method, make_model, training, settings.seed, evaluate_trained)
    site.add(data.host(source, "local", 0, 1))
    participants = [Participant(d.name, "local", len(d.train), d.group) for d in site.hosted.values()]
    recorder = None
    if folder is not None:
        recorder = Recorder(folder, describe_run(data, settings, training), describe(model, "model"))
    state = method.start(partial(untrained, make_model, settings.seed))
    server = Server(method, site.workshop.resident.layout, participants, settings, state, recorder)
    while True:
        number, last = server.state.round, server.finished
        orders = server.orders()
        models = with_parts(server.state.bank, [slot for order in orders.values() for slot in order.slots])
        for name, order in orders.items():
            try:
                server.accept(site.answer(name, order, models, number), "local")
            except PayloadError as error:
                logger.warning("round %d: %s", number, error)
        measured = server.finish_round()
        if measured is not None:
            on_round(measured)
        if last:
            break
    server.close({})
    return server


def describe_run(data: DataConfig, settings: ServerSettings, training: TrainSettings) -> dict[str, Any]:
    """The run's settings, for its summary."""
    return {
        "data": dataclasses.asdict(data),
        "run": dataclasses.asdict(settings),
        "training": dataclasses.asdict(training),
    }
