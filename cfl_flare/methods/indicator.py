# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a method asks for that compares models by what they predict on samples of the server's (FedDSMIC sec. 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cfl_flare.params import Params

# Logits ``(len(models), samples, classes)`` of models on the server's indicator samples.
Predict = Callable[[Sequence[Params]], np.ndarray]


@dataclass(frozen=True)
class Indicator:
    """The samples that a method needs at the server.

    Attributes:
        per_class: how many of each class, N_c.
        file: from which file the server reads them; None where a simulation takes them out of the participants' data.
    """

    per_class: int
    file: str | None = None
