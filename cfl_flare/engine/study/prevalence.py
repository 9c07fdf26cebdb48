# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The least that a study's candidates have to beat: one prediction for everyone, by the prevalence alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from cfl_flare.core.params import Layout, Params
from cfl_flare.methods import Download, FedAvg, ServerState, Traits, Update
from cfl_flare.methods.slots import GLOBAL
from cfl_flare.results.study import PREVALENCE
from cfl_flare.training.learner import Learner
from cfl_flare.training.tasks import LearningTask

# The forms of labels that have a mean.
FORMS = ("class", "several", "number")
# No class is rarer for the logarithm.
RAREST = 1e-6


@dataclass(frozen=True, kw_only=True)
class Prevalence(FedAvg):
    """Predict how frequent each class is, or the mean outcome, among the training samples of all participants.

    No sample's features count: the last layer's weights are zero. Its bias holds the mean label while it travels.
    """

    name: ClassVar[str] = PREVALENCE
    paper: ClassVar[str] = "baseline"

    @property
    def traits(self) -> Traits:
        # The mean label travels without noise, so that differential privacy has no mechanism for it.
        return replace(super().traits, queries=None)

    def start(
        self, initial: Callable[[int], Params], participants: Sequence[str] = ()
    ) -> ServerState:
        """The untrained model with a last layer of zeros."""
        model = initial(0)
        arrays = {name: array.copy() for name, array in model.arrays().items()}
        for entry in model.layout.head.entries:
            arrays[entry.name][...] = 0
        return ServerState(bank={GLOBAL: model.layout.pack(arrays)})

    def local_update(self, learner: Learner, download: Download) -> Update:
        """The participant's mean label in place of the bias. Nothing is trained."""
        sent = download.models[0]
        outputs = len(get_bias(sent))
        own = set_bias(sent, average_labels(learner.labels, learner.task, outputs))
        return Update(
            learner.participant, learner.samples, {GLOBAL: own - sent}, main=GLOBAL
        )

    def serve(self, learner: Learner, download: Download) -> Params:
        """The model whose outputs predict the mean label."""
        model = download.models[0]
        return set_bias(model, invert_link(get_bias(model), learner.task))


def find_bias(layout: Layout) -> str | None:
    """The name of the last layer's bias; None if there is none."""
    names = [entry.name for entry in layout.head.entries if len(entry.shape) == 1]
    return names[0] if len(names) == 1 else None


def fits(module: nn.Module, task: LearningTask | None) -> bool:
    """Whether the mean label can be predicted with this network and task."""
    is_known = task is None or task.form in FORMS
    return is_known and find_bias(Layout.of(module)) is not None


def get_bias(model: Params) -> np.ndarray:
    """The last layer's bias, ``(outputs,)``."""
    return np.asarray(model.arrays()[str(find_bias(model.layout))])


def set_bias(model: Params, bias: np.ndarray) -> Params:
    """The model with another bias ``(outputs,)`` of its last layer."""
    arrays = {**model.arrays(), str(find_bias(model.layout)): bias.astype(np.float32)}
    return model.layout.pack(arrays)


def average_labels(labels: np.ndarray, task: LearningTask, outputs: int) -> np.ndarray:
    """The mean label ``(outputs,)``: of classes, how frequent each of them is.

    Args:
        labels: ``(n, ...)``, as the task's loss takes them.
        task: of the run.
        outputs: of the model.
    """
    if task.form == "class" and task.link == "softmax":
        return np.bincount(labels, minlength=outputs) / len(labels)
    return labels.reshape(len(labels), outputs).mean(axis=0)


def invert_link(means: np.ndarray, task: LearningTask) -> np.ndarray:
    """The outputs ``(outputs,)`` that predict these means."""
    if task.link == "identity":
        zero, one = task.unscale(torch.tensor([0.0, 1.0])).tolist()
        return (means - zero) / (one - zero)
    bounded = np.clip(means, RAREST, 1 - RAREST)
    if task.link == "softmax":
        return np.log(bounded)
    return np.log(bounded) - np.log1p(-bounded)
