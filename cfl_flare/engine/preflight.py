# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Checks before a run starts: settings that are valid by themselves must also fit together."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import CFLError, ConfigError, DataError
from cfl_flare.core.network_arrays import check_trainable, live_state
from cfl_flare.core.params import Layout
from cfl_flare.core.private import Division
from cfl_flare.data.columns import Columns
from cfl_flare.engine.early_stopping import EarlyStopping
from cfl_flare.engine.indicator import check_indicator, check_task
from cfl_flare.engine.initial_models import (
    check_initial,
    initial_models,
    read_checkpoint,
)
from cfl_flare.engine.partial_sums import check_sums
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.server import Server
from cfl_flare.engine.server_optimizer import check_server_optimizer
from cfl_flare.engine.settings import count_of
from cfl_flare.engine.site import check_dp, check_private
from cfl_flare.methods import Participant
from cfl_flare.results.gate import check_file
from cfl_flare.results.metrics import POOLED, POOLED_F1
from cfl_flare.training.histograms import read_score_shape
from cfl_flare.training.measures import RANGES
from cfl_flare.training.resident import ResidentModel
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import LearningTask

logger = logging.getLogger(__name__)


def check_plans(plans: Iterable[RunPlan]) -> None:
    """Checks runs before any of them starts, or raises a ConfigError; no data is read.

    Every method is checked against its model before the first one builds its initial models.
    """
    for plan, division in [(plan, _check_fit(plan)) for plan in plans]:
        _check_start(plan, division)


def _check_fit(plan: RunPlan) -> Division:
    """Checks the method against the model and the other settings; returns what of the model travels."""
    module = plan.make_model()
    names = {id(p): name for name, p in module.named_parameters()}
    scripted = plan.script.train_script is not None
    pattern = (
        None if scripted else plan.job.private
    )  # a script's are taken out of whole models
    _layout(module)
    method, division = plan.method, Division.of(module, pattern)
    training = plan.training or TrainSettings()
    task = None if scripted else training.built_task()
    check_private(method, division, pattern, plan.server.num_rounds, task)
    layout = division.public
    if method.traits.cluster_on == "fc" and layout.compared("fc") == "all":
        what = "the model" if division.private is None else "what travels of the model"
        logger.warning(
            "method %s: %s has no fully connected layer: cluster_on is 'all'",
            method.name,
            what,
        )
    check_indicator(method, plan.data)
    if (
        plan.data.participants is None
    ):  # else the server that `_check_start` builds says so
        check_server_optimizer(method, plan.server)
    check_sums(plan.executor.site_sums, method, plan.server, scripted)
    if not scripted:
        check_trainable(module)
        left = [
            name
            for i, name in names.items()
            if i not in {id(tensor) for _, tensor in live_state(module).values()}
        ]
        require(
            not left,
            f"model {type(module).__name__}: its state_dict() leaves out {len(left)} of its {len(names)} parameters, "
            f"such as {left[:1]}, which would differ between sites; name all of them there, or use a train_script",
        )
        assert task is not None
        check_task(method, task)
        if training.dp is not None:
            check_dp(method, training, task, module, plan.site.evaluate_trained)
            unpaid = "run: cross_site_evaluation measures more models than dp has a budget for; leave it out"
            require(not plan.server.cross_site_evaluation, unpaid)
        if plan.reader is not None and plan.reader.agreed_columns is not None:
            _check_columns(plan.reader.agreed_columns, module, task)
        training.built_augment(task)
        check_stop_cond(plan.server.early_stopping)
        check_key_metric(plan.server.early_stopping, task, training)
    if (remark := plan.server.early_stopping.unordered) is not None:
        logger.warning("run: %s", remark)
    if not scripted:
        read_score_shape(training, division.layout)
    path = plan.job.initial_ckpt
    if path is not None:
        both = "run: initial_ckpt and resume_from both say where to start; give one of them"
        require(plan.job.resume_from is None, both)
        check_initial(method, layout, "initial_ckpt", bool(division.names))
        if Path(path).is_file():
            check_file(Path(path))  # it goes to all sites of the job
            read_checkpoint(Path(path), layout)
    elif plan.arrays is not None:
        check_initial(method, layout, "model")
    if plan.data.participants is not None:
        _check_counts(plan)
    return division


def _check_columns(columns: Columns, module: nn.Module, task: LearningTask) -> None:
    """Raises a ConfigError if the model does not take the features that sites agreed on, or has too few outputs."""
    what = f"the columns that sites agreed on have {len(columns.features)} features"
    try:
        with torch.no_grad():
            outputs = module.eval()(torch.zeros(1, len(columns.features)))
    except Exception as error:  # the module may be the user's, and raise anything
        why = f"{what}, which model {type(module).__name__} does not take ({one_line(error)})"
        raise ConfigError(
            f"{why}; set its input_shape to [{len(columns.features)}]"
        ) from error
    if columns.labels is not None:
        try:
            task.check(outputs, columns.labels, "the columns that sites agreed on")
        except DataError as error:
            raise ConfigError(str(error)) from error


def _check_counts(plan: RunPlan) -> None:
    most, sample, answers = (
        len(plan.data.names),
        plan.server.sample,
        plan.server.min_answers,
    )
    sampled, above = count_of(sample, most), f"is more than {plan.data.who_trains}"
    for name, value, limit, reason in (
        (
            "run: min_clients",
            plan.job.min_clients,
            most,
            f"{above}; each site hosts at least one",
        ),
        (
            f"method {plan.method.name}: k",
            plan.method.clusters,
            most,
            f"{above}; lower k",
        ),
        ("run: sample", sample, most, f"{above}; 1.0 is all of them"),
        (
            "run: min_answers",
            answers,
            sampled,
            f"is more than the {sampled} asked in a round; 1.0 is all of them",
        ),
    ):
        require(
            isinstance(value, float) or value <= limit, f"{name} = {value} {reason}"
        )


def _check_start(plan: RunPlan, division: Division) -> None:
    """Builds the server, which makes its own checks, if the participants are known."""
    if plan.data.participants is None or plan.job.resume_from is not None:
        return
    enough = (
        plan.server.floor.samples
    )  # sites, samples and the groups that they name are not known yet
    label = next(iter(plan.method.traits.named_groups), None)
    participants = [
        Participant(name, name, enough, label=label) for name in plan.data.names
    ]
    initial = initial_models(
        plan.method, plan.make_model, division.public, plan.server.seed, None
    )
    Server(
        plan.method,
        division.public,
        participants,
        plan.server,
        plan.method.start(initial, plan.data.names),
    )


def check_stop_cond(stopping: EarlyStopping) -> None:
    """Raises a ConfigError if the stop condition compares a share in 0..1 with a larger number."""
    stop = stopping.stop
    if stop is None:
        return
    last = stop.metric.name.rpartition("/")[2].replace("served_", "")
    require(
        (last not in (POOLED, POOLED_F1) and RANGES.get(last) != (0, 1))
        or stop.value <= 1,
        f"run: stop_cond = {stop.text!r}: {last} is a share in 0..1 here; write {stop.value / 100:g} for "
        f"{stop.value:g} per cent",
    )


def check_key_metric(
    stopping: EarlyStopping, task: LearningTask, training: TrainSettings
) -> None:
    """Raises a ConfigError for a metric by which a run decides, and which its task could measure but will not."""
    for name in (metric.of_participants.name for metric in stopping.named):
        require(
            name not in (POOLED, POOLED_F1) or bool(training.score_bins),
            f"run: key_metric or stop_cond names {name}, which needs histograms of scores; set score_bins to 200",
        )
        require(
            name not in task.measures or name in (*task.always, *training.measures),
            f"run: key_metric or stop_cond names {name}, which task {task.name!r} measures on request alone; add it to "
            "measures",
        )


def _layout(module: nn.Module) -> Layout:
    try:
        return ResidentModel(module).layout
    except CFLError:
        raise
    except Exception as error:  # torch raises many kinds of errors for parameters that are not plain floats
        raise ConfigError(
            f"model {type(module).__name__}: its parameters cannot be held as one float32 vector ({one_line(error)}); "
            "they should exist, dense and real, once the model is built"
        ) from error
