# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The server's indicator samples: those that a method needs, and the models' predictions on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import nn

from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import DataError
from cfl_flare.core.params import Params
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.data.samples import Samples
from cfl_flare.data.splits import read_indicator
from cfl_flare.methods import Method
from cfl_flare.methods.state import Predict
from cfl_flare.training.ensemble import Predictor
from cfl_flare.training.resident import ResidentModel
from cfl_flare.training.runtime import Split
from cfl_flare.training.tasks import LearningTask


def samples_to_set_aside(methods: Iterable[Method]) -> int:
    """How many samples of each class a simulation of these methods sets aside: the most that one of them needs.

    All methods that are compared train on the same remaining samples.
    """
    wanted = [method.traits.indicator for method in methods]
    return max(
        (w.per_class for w in wanted if w is not None and w.file is None), default=0
    )


def check_indicator(method: Method, data: DataConfig) -> None:
    """Raises a ConfigError if a run will not have the indicator samples that its method needs."""
    wanted = method.traits.indicator
    if wanted is None or wanted.file is not None:
        return
    where = f"method {method.label}: compares models on {wanted.per_class} indicator samples of each class"
    require(
        data.participants is not None,
        f"{where}, and the server has no file with them; name one in MedMNIST's layout: indicator_file=samples.npz",
    )
    require(
        data.indicator_samples >= wanted.per_class,
        f"{where}, but the data's indicator_samples = {data.indicator_samples}; set it to {wanted.per_class} there, or "
        "name a file: indicator_file=samples.npz",
    )


def check_task(method: Method, task: LearningTask) -> None:
    """Raises a ConfigError if a method compares models by the classes that they predict, and a task has none."""
    comparable = method.traits.indicator is None or (task.form, task.link) == (
        "class",
        "softmax",
    )
    require(
        comparable,
        f"method {method.label}: compares models by the class probabilities that they predict, and task "
        f"{task.name or type(task).__name__!r} has none; take task 'classification' or another method",
    )


def logits_for(
    method: Method,
    make_model: Callable[[], nn.Module],
    data: DataConfig,
    source: Callable[[], DataSource],
    seed: int,
) -> Predict | None:
    """Computes models' predictions on the indicator samples of a run; None for a method that needs none.

    The source is built only if a simulation sets the samples aside; the seed is for the draw from a file.

    Raises:
        ConfigError: there are no indicator samples, or too few.
        DataError: they cannot be read, or do not fit the model.
    """
    wanted = method.traits.indicator
    if wanted is None:
        return None
    check_indicator(method, data)
    if wanted.file is None:
        samples = data.indicator(source(), wanted.per_class)
    else:
        samples = read_indicator(wanted.file, wanted.per_class, seed)
    return Logits(make_model, samples)


class Logits:
    """Logits of models on the indicator samples, as models see them; a DataError if samples do not fit the model."""

    def __init__(self, make_model: Callable[[], nn.Module], samples: Samples):
        self._resident = ResidentModel(make_model())
        self._x = Split.of(samples.x, samples.y).x
        try:
            self([self._resident.read()])
        except Exception as error:  # the module may be the user's, and raise anything
            shape = list(samples.x.shape[1:])
            raise DataError(
                f"the indicator samples of shape {shape} do not fit the model ({one_line(error)}); give samples of the "
                "participants' shape, and set the model's input_shape to it"
            ) from error

    def __call__(self, models: Sequence[Params]) -> np.ndarray:
        """``(len(models), samples, classes)``."""
        return Predictor(self._resident, models)(self._x).numpy()
