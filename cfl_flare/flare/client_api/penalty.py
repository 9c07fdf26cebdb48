# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A job's penalties in training scripts of FLARE's Client API, which import them as ``cfl_flare.client.penalty``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel

from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.network_arrays import live_state
from cfl_flare.core.params import Layout
from cfl_flare.flare.client_api.messages import PENALTY_META
from cfl_flare.methods import Download, build_method
from cfl_flare.methods.slots import add_parts
from cfl_flare.training.losses import Step, Term


@dataclass(frozen=True)
class _Round:
    """The penalties that came with the model received last."""

    received: FLModel
    layout: Layout
    terms: list[Term]


_now: _Round | None = None


def penalty(model: torch.nn.Module) -> torch.Tensor:
    """The job's penalties for the model as it is now, to be added to the loss.

    Args:
        model: the module that trains; its parameters have the names of the job's model.

    Returns:
        A scalar; zero if the job has none, or if they have not begun.

    Raises:
        ConfigError: the module's parameters are not those of the job's model.
    """
    global _now
    received = flare.receive()  # the same one again, until the script sends its result
    content = (received.meta or {}).get(PENALTY_META) if received is not None else None
    if received is None or not content:
        return next(model.parameters()).new_zeros(())
    if _now is None or _now.received is not received:
        _now = _begin(received, content, model)
    parameters = live_state(model)
    step = Step(
        torch.cat(
            [
                _flat(parameters[e.name][1])
                for e in _now.layout.entries
                if e.kind == "parameter"
            ]
        )
    )
    total = step.parameters.new_zeros(())
    for term in _now.terms:
        total = total + term(step)
    return total


def _begin(
    received: FLModel, content: dict[str, Any], model: torch.nn.Module
) -> _Round:
    layout = Layout.of(model)

    def packed(arrays: dict[str, Any]) -> Any:
        plain = {
            name: a.detach().cpu().numpy() if isinstance(a, torch.Tensor) else a
            for name, a in arrays.items()
        }
        return layout.restricted(plain.keys()).pack(plain)

    try:
        models = {content["own"]: packed(received.params)}
        models |= {slot: packed(arrays) for slot, arrays in content["models"].items()}
    except PayloadError as error:
        raise ConfigError(
            f"penalty: the module {type(model).__name__} is not the job's model: {error}; give the module whose "
            "state_dict() the script sends"
        ) from error
    slots = (content["own"], *content["slots"])
    models = add_parts(models, slots)
    download = Download(
        slots, tuple(models[slot] for slot in slots), content["scalars"]
    )
    method = build_method(content["method"])
    return _Round(received, layout, method.list_terms(download, content["own"]))


def _flat(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter in the vector's layout; see `cfl_flare.core.params.Entry.view`."""
    return (
        parameter.permute(0, 2, 3, 1) if parameter.dim() == 4 else parameter
    ).reshape(-1)
