# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAvg and FedProx: one global model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.penalties import Proximal
from cfl_flare.methods.state import Assignment, Download, ServerState, Update
from cfl_flare.methods.traits import PLAIN, Traits
from cfl_flare.training.penalties import Term


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging: one model for all, the weighted mean of the participants' (thesis Eq. 2.6)."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al. 2017"

    @property
    def traits(self) -> Traits:
        """One mean is all there is."""
        return replace(PLAIN, averages_only=True)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """Theta_g = sum psi_i theta_i (thesis Eq. 2.6)."""
        return state.after(self.means(state, updates))


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose participants are held near the global model by mu/2 ||theta - Theta_g||^2."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"

    mu: float = setting(0.001, help="strength of the proximal term; FedCUAU's experiments use 0.001", ge=0)

    @property
    def traits(self) -> Traits:
        """Its term is one that scripts of FLARE's know."""
        return replace(super().traits, proximal=self.mu)

    def terms(self, download: Download, own: str) -> list[Term]:
        """mu/2 ||theta - Theta_g||^2, beside any other penalty."""
        return Proximal(mu=self.mu).terms(download, own, 0) + super().terms(download, own)
