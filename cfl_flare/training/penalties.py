# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Penalties on the trained parameters. Torch differentiates them together with the loss: their gradients are true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cfl_flare.params import Params


class Penalty(Protocol):
    """What is added to the loss in each local step."""

    def __call__(self, parameters: Tensor) -> Tensor:
        """The penalty, a scalar, of the flat parameters ``(parameter_size,)`` that are being trained."""
        ...


@dataclass(frozen=True)
class Proximal:
    """FedProx's proximal term: ``mu/2 * ||theta - anchor||^2``, over parameters, never over buffers.

    Attributes:
        mu: its strength.
        anchor: the model that holds the parameters back.
    """

    mu: float
    anchor: Params

    def __call__(self, parameters: Tensor) -> Tensor:
        """The penalty at these parameters."""
        anchor = torch.from_numpy(self.anchor.vector[: parameters.numel()]).to(parameters.device)
        return 0.5 * self.mu * (parameters - anchor).square().sum()
