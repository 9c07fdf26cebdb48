# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Participants that train and are measured outside a run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from cfl_flare.core.config import build
from cfl_flare.data import ParticipantData
from cfl_flare.training.learner import Learner
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.settings import TrainSettings


def runtime_of(model: Mapping[str, Any], training: TrainSettings, seed: int) -> Runtime:
    """Where they train a model, which is named as in a job."""
    return Runtime(partial(build, model, nn.Module, "model"), training, seed)


def learner_of(runtime: Runtime, data: ParticipantData, round_number: int = 0) -> Learner:
    """A participant with its own samples, in a round."""
    train, test = (Split.of(samples.x, samples.y) for samples in (data.train, data.test))
    return Learner(runtime, data.name, train, test, {}, round_number)
