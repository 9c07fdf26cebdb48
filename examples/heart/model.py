# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A logistic regression for a table of patients."""

import torch
from torch import nn


class HeartModel(nn.Module):
    """One weight for each feature; its output is the logit of heart disease.

    Args:
        features: columns of the table, as `client.read_hospital` prepares them.
    """

    def __init__(self, features: int = 27):
        super().__init__()
        self.features = features
        self.linear = nn.Linear(features, 1)

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        """Logits, one for each patient."""
        return self.linear(table).squeeze(1)
