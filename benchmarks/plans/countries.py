# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Groups that everyone knows beforehand: a model for each country."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from cfl_flare.core.params import Params
from cfl_flare.methods import IFCA, Download, ServerState, cluster_slot
from cfl_flare.training.learner import Learner


@cache
def countries() -> dict[str, int]:
    """Of each participant of the plan ``stroke`` its country, as a number from 0 among those that take part."""
    from plans import PLANS  # which has this module's rows

    plan = PLANS["stroke"]
    people = plan.data("natural", 0).host(plan.source_of(0), "local", 0, 1)
    numbers = sorted({one.group for one in people if one.group is not None})
    return {one.name: numbers.index(one.group) for one in people if one.group is not None}


@dataclass(frozen=True, kw_only=True)
class ByCountry(IFCA):
    """FedAvg in each country of the stroke trial: a hospital trains its country's model, and chooses nothing."""

    name: ClassVar[str] = "by-country"

    k: int = 31

    def start(self, initial: Callable[[int], Params], participants: Sequence[str] = ()) -> ServerState:
        """All begin with the same model."""
        return ServerState(bank={cluster_slot(k): initial(0) for k in range(self.k)})

    def choose(self, learner: Learner, download: Download) -> int:
        """The country's."""
        return countries()[learner.participant]
