# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What can be checked of a run before it starts: settings that are right by themselves must also fit together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from cfl_flare.core.config import build, one_line, require
from cfl_flare.core.errors import CFLError, ConfigError
from cfl_flare.core.params import Layout
from cfl_flare.data import DataConfig, ParticipantData
from cfl_flare.engine.indicator import check_indicator
from cfl_flare.engine.initial_models import check_initial, read_checkpoint
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.settings import count_of
from cfl_flare.engine.site import Site
from cfl_flare.methods import Method, Participant
from cfl_flare.training.resident import ResidentModel, untrained
from cfl_flare.training.settings import TrainSettings


def check_job(
    method: Method,
    model: Mapping[str, Any],
    data: DataConfig,
    settings: ServerSettings,
    resumed: bool = False,
    initial_ckpt: str | None = None,
) -> None:
    """Checks all that a job's author can get wrong; no data is read.

    Args:
        method: the method.
        model: ``{"class_path", "args"}`` of the module that is trained.
        data: how the samples are dealt out; it knows how many participants there are only in a simulation.
        settings: what is scheduled.
        resumed: the run goes on from an earlier one, whose clusters are there already.
        initial_ckpt: the file of the model from which the run starts; it is read if it is here.

    Raises:
        ConfigError: naming the setting, its value and the way out.
    """
    make_model = partial(build, model, nn.Module, "model")
    layout = _layout(make_model())
    method.check(layout, settings.num_rounds)
    check_indicator(method, data)
    if initial_ckpt is not None:
        require(not resumed, "run: initial_ckpt and resume_from both say where to start; give one of them")
        check_initial(method, layout)
        if Path(initial_ckpt).is_file():
            read_checkpoint(Path(initial_ckpt), layout)
    if data.participants is None:
        return
    most = len(data.names)
    more = f"is more than {data.who_trains}"
    require(method.clusters <= most, f"method {method.name}: k = {method.clusters} {more}; lower k")
    sample, answers = settings.sample, settings.min_answers
    fits = isinstance(sample, float) or sample <= most
    require(fits, f"run: sample = {sample} {more}; 1.0 is all of them")
    asked = count_of(sample, most)
    fits = isinstance(answers, float) or answers <= asked
    require(fits, f"run: min_answers = {answers} is more than the {asked} asked in a round; 1.0 is all of them")
    if not resumed:  # the server itself says whether it could start
        participants = [Participant(name, "site", 1) for name in data.names]
        state = method.start(partial(untrained, make_model, settings.seed), data.names)
        Server(method, layout, participants, settings, state)


def check_data(
    method: Method,
    model: Mapping[str, Any],
    hosted: Iterable[ParticipantData],
    training: TrainSettings,
    seed: int = 0,
    device: str = "cpu",
) -> Site:
    """Checks what a site checks in a job's first task, where the site's data is at hand.

    Returns:
        The site, ready to train.

    Raises:
        CFLError: the samples do not fit the model.
    """
    site = Site(method, partial(build, model, nn.Module, "model"), training, seed, device=device)
    site.add(hosted)
    return site


def _layout(module: nn.Module) -> Layout:
    try:
        return ResidentModel(module).layout
    except CFLError:
        raise
    except Exception as error:  # torch has many ways to say that a module has no plain float parameters
        raise ConfigError(
            f"model {type(module).__name__}: its parameters cannot be held as one float32 vector ({one_line(error)}); "
            "they should be there, dense and real, when the model is built"
        ) from error
