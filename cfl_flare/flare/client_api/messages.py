# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The content of a message to a training script: the model's parameters, and the needs of the method's loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from nvflare.app_common.app_constant import AlgorithmConstants

from cfl_flare.engine.plan import AssignSettings
from cfl_flare.engine.server import Server
from cfl_flare.engine.site import Task
from cfl_flare.methods import describe_method
from cfl_flare.methods.slots import HAS_CENTRES, add_parts, list_travelling

PENALTY_META = "cfl_penalty"


def to_params(arrays: Mapping[str, np.ndarray], tensors: bool) -> dict[str, Any]:
    """Copies a model's arrays for a message.

    Args:
        arrays: by name.
        tensors: whether the script reads PyTorch tensors, and not NumPy arrays.
    """
    if not tensors:
        return dict(arrays)
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def describe_loss(
    server: Server, assign: AssignSettings, trained: str, task: Task
) -> dict[str, Any]:
    """Describes what a script needs to add to its loss.

    Args:
        server: the run, with its method and models.
        assign: whether FLARE's own metadata says the weight of FedProx, or cfl_flare's say all penalties.
        trained: the slot of the model that is sent to train.
        task: the participant's task.

    Returns:
        Metadata of the message; empty if the method adds nothing.
    """
    if assign.fedprox_mu is not None:
        return {AlgorithmConstants.FEDPROX_MU: assign.fedprox_mu}
    if not assign.penalties:
        return {}
    method = server.method
    has_centres = HAS_CENTRES in task.scalars
    needed: list[str] = []
    for penalty in method.penalties:
        if has_centres or not penalty.of_clusters:
            needed += penalty.slots(method.clusters)
    travel = list_travelling([trained, *dict.fromkeys(needed)])
    others = [slot for slot in travel if slot != trained]
    models = add_parts(server.state.bank, others)
    content = {
        "own": trained,
        "slots": [slot for slot in dict.fromkeys(needed) if slot != trained],
        "scalars": dict(task.scalars),
        "models": {
            slot: to_params(model.arrays(), assign.tensors)
            for slot, model in models.items()
        },
        "method": describe_method(method),
    }
    return {PENALTY_META: content}
