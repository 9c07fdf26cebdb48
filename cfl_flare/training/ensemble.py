# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Predictions from outputs; those of several models together: their outputs added, or their predictions averaged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfl_flare.core.config import require
from cfl_flare.core.params import Params

VOTES = ("logits", "probabilities")
# These make predictions of outputs: class probabilities, a probability of each output, numbers, rates.
LINKS = ("softmax", "sigmoid", "identity", "exp")


def combined(outputs: Tensor, vote: str, link: str = "softmax") -> Tensor:
    """Combines the outputs of several models.

    Args:
        outputs: ``(parts, n, classes)``, or ``(parts, n, classes, height, width)`` for masks.
        vote: ``"logits"`` adds them (Fed-CAM Eq. 1, thesis Eq. 7.36); ``"probabilities"`` is soft voting, the mean of
            the parts' predictions: of softmax outputs in FedAvg+ (thesis sec. 3.6.1).
        link: what makes predictions of outputs, one of `LINKS`.

    Returns:
        Outputs of one model, ``(n, classes, ...)``: through the link they are the sum's or the mean's predictions.
    """
    if vote == "logits":
        return outputs.sum(dim=0)
    if link == "identity":
        return outputs.mean(dim=0)
    if link == "exp":
        return _log_mean(outputs)
    if link == "sigmoid":
        return _log_mean(F.logsigmoid(outputs)) - _log_mean(F.logsigmoid(-outputs))
    return _log_mean(outputs.log_softmax(dim=2))


def _log_mean(logarithms: Tensor) -> Tensor:
    """The logarithm of the mean over the first dimension."""
    return logarithms.logsumexp(dim=0) - torch.tensor(float(len(logarithms))).log()


def predicted(outputs: Tensor, link: str) -> Tensor:
    """Predictions from outputs ``(n, classes, ...)``: probabilities that add up to 1, or of each output, or numbers."""
    if link == "softmax":
        return outputs.softmax(dim=1)
    return {"sigmoid": torch.sigmoid, "exp": torch.exp, "identity": lambda same: same}[link](outputs)


class Ensemble(nn.Module):
    """Modules that predict together, as one module.

    Args:
        parts: modules that take the same samples and return outputs of the same shape.
        vote: see `combined`.
        link: see `combined`.
    """

    def __init__(self, parts: Iterable[nn.Module], vote: str = "logits", link: str = "softmax"):
        super().__init__()
        require(vote in VOTES, f"ensemble: vote = {vote!r} should be one of {VOTES}")
        require(link in LINKS, f"ensemble: link = {link!r} should be one of {LINKS}")
        self.parts, self.vote, self.link = nn.ModuleList(parts), vote, link

    def forward(self, x: Tensor) -> Tensor:
        """Outputs ``(n, classes)`` of samples ``(n, *input_shape)``."""
        return combined(torch.stack([part(x) for part in self.parts]), self.vote, self.link)


@dataclass(frozen=True)
class Served:
    """The model, or the ensemble, with which a participant predicts.

    Attributes:
        models: of the ensemble, or the only one.
        vote: how an ensemble combines them; see `combined`.
        parts: for each, the part of the participant (see `Learner.part`) whose private layers it predicts with; empty
            where all have the participant's own.
        untrained: arrays, by their names in a model, that are as the run began with them: each participant has trained
            its own, without which this does not predict.
    """

    models: tuple[Params, ...]
    vote: str = "logits"
    parts: tuple[str, ...] = field(default=(), compare=False)
    untrained: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, model: Params | Served) -> Served:
        """Wraps a single model."""
        return model if isinstance(model, Served) else cls((model,))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name: of one model, or as in the `state_dict` of an `Ensemble`."""
        if len(self.models) == 1:
            return self.models[0].arrays()
        return {f"parts.{i}.{key}": a for i, part in enumerate(self.models) for key, a in part.arrays().items()}

    @property
    def of_parts(self) -> tuple[str, ...]:
        """``parts``, or its default."""
        return self.parts or ("",) * len(self.models)
