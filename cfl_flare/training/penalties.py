# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Penalty terms of the local loss. They are part of what torch differentiates, so their gradients are exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cfl_flare.core.params import Params


@dataclass(frozen=True)
class Step:
    """The input of a term in one local step.

    Attributes:
        parameters: the flat parameters ``(parameter_size,)`` that are being trained, without private layers.
        features: the backbone's outputs ``(n, d)`` for the batch, in the term's mode; None unless it compares them.
        compared: the outputs of the K models that the term compares them with, ``(K, n, d)``, in the same mode; these
            do not train.
    """

    parameters: Tensor
    features: Tensor | None = None
    compared: Tensor | None = None


class Term(Protocol):
    """A term that is added to the loss in each local step.

    Attributes:
        compares: the models whose features the term needs for each batch.
        training: whether these features, and those of the model that trains, are those of training mode.
    """

    compares: tuple[Params, ...] = ()
    training: bool = False

    def __call__(self, step: Step) -> Tensor:
        """The term's value, a scalar."""
        ...


class Pull(Term):
    """``strength/2 * ||theta - anchor||^2`` over some of the parameters, never over buffers.

    Args:
        strength: the coefficient.
        anchor: the parameters towards which it pulls, ``(d,)``.
        slices: which of the flat parameters these are.
    """

    def __init__(self, strength: float, anchor: np.ndarray, slices: Sequence[slice]):
        self._strength, self._anchor, self._slices = strength, torch.from_numpy(anchor), slices

    def __call__(self, step: Step) -> Tensor:
        here = torch.cat([step.parameters[s] for s in self._slices])
        return 0.5 * self._strength * (here - self._anchor.to(here.device)).square().sum()


class ParameterContrast(Term):
    """``mu * -log( exp(cos(theta, Theta_own)/tau) / sum_k exp(cos(theta, Theta_k)/tau) )`` (thesis Eq. 4.3).

    Args:
        mu: the coefficient.
        tau: the temperature.
        index: of the participant's own centre.
        centres: ``(K, d)``.
        slices: which of the flat parameters these are.
    """

    def __init__(self, mu: float, tau: float, index: int, centres: np.ndarray, slices: Sequence[slice]):
        self._mu, self._tau, self._index = mu, tau, index
        self._centres, self._slices = F.normalize(torch.from_numpy(centres), dim=1), slices

    def __call__(self, step: Step) -> Tensor:
        here = torch.cat([step.parameters[s] for s in self._slices])
        cosines = self._centres.to(here.device) @ F.normalize(here, dim=0)
        return -self._mu * (cosines / self._tau).log_softmax(dim=0)[self._index]


class RepresentationContrast(Term):
    """`ParameterContrast` with cosines of backbone outputs, per sample, averaged over the batch (thesis Eq. 4.4).

    Args:
        mu: the coefficient.
        tau: the temperature.
        index: of the participant's own centre.
        centres: the K models.
        training: compare what the models compute in training mode, not in evaluation mode.
    """

    def __init__(self, mu: float, tau: float, index: int, centres: Sequence[Params], training: bool = False):
        self._mu, self._tau, self._index = mu, tau, index
        self.compares, self.training = tuple(centres), training

    def __call__(self, step: Step) -> Tensor:
        assert step.features is not None and step.compared is not None
        cosines = F.cosine_similarity(step.features[None], step.compared, dim=2)
        return -self._mu * (cosines / self._tau).log_softmax(dim=0)[self._index].mean()
