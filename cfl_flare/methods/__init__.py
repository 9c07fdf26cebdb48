# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The methods, one file a family. A new one is a subclass of `Method` and a line in `METHODS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cfl_flare.config import from_dict
from cfl_flare.errors import ConfigError
from cfl_flare.methods.base import (
    GLOBAL,
    Assignment,
    Download,
    Method,
    Participant,
    ServerState,
    Update,
    cluster_slot,
)
from cfl_flare.methods.fedavg import FedAvg, FedProx, Finetune, Local
from cfl_flare.methods.ifca import IFCA
from cfl_flare.methods.wecfl import FeSEM, WeCFL

METHODS: dict[str, type[Method]] = {cls.name: cls for cls in (FedAvg, FedProx, Finetune, Local, IFCA, FeSEM, WeCFL)}
METHODS["hypcluster"] = IFCA


def build_method(spec: Mapping[str, Any]) -> Method:
    """The method of a job: ``{"method": "wecfl", "k": 3, ...}``.

    Raises:
        ConfigError: an unknown method or setting, or a value out of its range.
    """
    settings = dict(spec)
    name = settings.pop("method", None)
    if name not in METHODS:
        raise ConfigError(f"method {name!r} is unknown; there are {', '.join(METHODS)}")
    return from_dict(METHODS[name], settings, f"method {name}")


def describe_method(method: Method) -> dict[str, Any]:
    """The dictionary from which `build_method` builds this method again."""
    import dataclasses

    values = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    return {"method": method.name, **plain}


__all__ = [
    "GLOBAL",
    "IFCA",
    "METHODS",
    "Assignment",
    "Download",
    "FeSEM",
    "FedAvg",
    "FedProx",
    "Finetune",
    "Local",
    "Method",
    "Participant",
    "ServerState",
    "Update",
    "WeCFL",
    "build_method",
    "cluster_slot",
    "describe_method",
]
