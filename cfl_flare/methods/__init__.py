# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The methods, one file a family. A new one is a subclass of `Method` and a line in `METHODS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from cfl_flare.config import build, describe, from_dict
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


def build_method(spec: Mapping[str, Any], authorize: Callable[[str], None] | None = None) -> Method:
    """The method of a job: ``{"method": "wecfl", "k": 3, ...}``, or ``"package.Class"`` for one of your own.

    Args:
        spec: the method's name or class path, and its settings.
        authorize: the site's component policy, asked for a class path; see `cfl_flare.config.build`.

    Raises:
        ConfigError: an unknown method or setting, or a value out of its range.
    """
    settings = dict(spec)
    name = settings.pop("method", None)
    if name in METHODS:
        return from_dict(METHODS[name], settings, f"method {name}")
    if isinstance(name, str) and "." in name:
        return build({"class_path": name, "args": settings}, Method, "method", authorize)  # type: ignore[type-abstract]
    raise ConfigError(f"method {name!r} is unknown; there are {', '.join(METHODS)}, or package.Class")


def describe_method(method: Method) -> dict[str, Any]:
    """The dictionary from which `build_method` builds this method again."""
    cls = type(method)
    known = METHODS.get(method.name) is cls
    name = method.name if known else str(describe(method, "method")["class_path"])
    values = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    return {"method": name, **plain}


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
