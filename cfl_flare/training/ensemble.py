# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Several models that predict together: their logits added, or their votes averaged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from cfl_flare.core.config import require
from cfl_flare.core.params import Params

VOTES = ("logits", "probabilities")


def combined(logits: Tensor, vote: str) -> Tensor:
    """Combines the logits of several models.

    Args:
        logits: ``(parts, n, classes)``.
        vote: ``"logits"`` adds them (Fed-CAM Eq. 1, thesis Eq. 7.36); ``"probabilities"`` is soft voting, the mean of
            the parts' softmax outputs (FedAvg+, thesis sec. 3.6.1).

    Returns:
        Logits ``(n, classes)``; for soft voting the logarithm of the mean probabilities.
    """
    if vote == "logits":
        return logits.sum(dim=0)
    return logits.log_softmax(dim=-1).logsumexp(dim=0) - torch.tensor(float(len(logits))).log()


class Ensemble(nn.Module):
    """Modules that predict together, as one module.

    Args:
        parts: modules that take the same samples and return logits of the same shape.
        vote: see `combined`.
    """

    def __init__(self, parts: Iterable[nn.Module], vote: str = "logits"):
        super().__init__()
        require(vote in VOTES, f"ensemble: vote = {vote!r} should be one of {VOTES}")
        self.parts, self.vote = nn.ModuleList(parts), vote

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of samples ``(n, *input_shape)``."""
        return combined(torch.stack([part(x) for part in self.parts]), self.vote)


@dataclass(frozen=True)
class Served:
    """What a participant predicts with: one model or an ensemble.

    Attributes:
        models: of the ensemble, or the only one.
        vote: how an ensemble combines them; see `combined`.
        parts: for each, the part of the participant (see `Learner.part`) whose private layers it predicts with; empty
            where all have the participant's own.
    """

    models: tuple[Params, ...]
    vote: str = "logits"
    parts: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, model: Params | Served) -> Served:
        """Wraps a single model."""
        return model if isinstance(model, Served) else cls((model,))

    @property
    def of_parts(self) -> tuple[str, ...]:
        """``parts``, or its default."""
        return self.parts or ("",) * len(self.models)
