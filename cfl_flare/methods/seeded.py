# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods with K models that start from K seeds and are all that a run leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cfl_flare.core.params import Layout, Params
from cfl_flare.methods.base import Method
from cfl_flare.methods.slots import join_whole_models
from cfl_flare.methods.state import ServerState
from cfl_flare.training.ensemble import Served


@dataclass(frozen=True, kw_only=True)
class SeededMethod(Method):
    """A method whose K clusters have K models from K seeds. Other models of the bank are means to an end."""

    def build_models(self, initial: Callable[[int], Params]) -> dict[str, Params]:
        """Build the K untrained models.

        Args:
            initial: builds the untrained model of a seed's number.

        Returns:
            The model of each cluster's slot.
        """
        return {slot: initial(number) for number, slot in enumerate(self.slots)}

    def list_models(
        self,
        state: ServerState,
        layout: Layout,
    ) -> dict[str, Served]:
        """List the K clusters' models.

        Args:
            state: the state at the end of the run.
            layout: the arrays of a whole model.

        Returns:
            The model of each cluster's slot.
        """
        return join_whole_models(state, layout, self.slots)
