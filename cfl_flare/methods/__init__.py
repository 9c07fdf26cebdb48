# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The methods, one file a family. A new one is a subclass of `Method` and a line in `METHODS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from cfl_flare.clustering.floor import Mixture
from cfl_flare.core.config import build, class_path, from_dict
from cfl_flare.core.errors import ConfigError
from cfl_flare.methods.auto_k import AUTO, AutoK, automatic
from cfl_flare.methods.base import Method
from cfl_flare.methods.cam import CAM
from cfl_flare.methods.cfl import CFL
from cfl_flare.methods.combinations import COMBINATIONS
from cfl_flare.methods.cuau import FedCUAU
from cfl_flare.methods.dsmic import FedDS, FedDSMIC
from cfl_flare.methods.ensemble import Ensemble
from cfl_flare.methods.fedac import FedAC
from cfl_flare.methods.fedavg import FedAvg, FedProx, Finetune, Local, PerFedAvg
from cfl_flare.methods.hierarchy import FLHC, FedGroup
from cfl_flare.methods.ifca import IFCA
from cfl_flare.methods.penalties import PENALTIES, Contrastive, KnowledgeSharing, Penalty, Proximal, build_penalty
from cfl_flare.methods.personal import CGPFL, Ditto, FedBABU, FedPer
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.methods.state import Assignment, Download, Participant, Plan, ServerState, Traits, Update
from cfl_flare.methods.wecfl import FeSEM, WeCFL

METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in (
        *(FedAvg, FedProx, Finetune, Local, FedPer, FedBABU, Ditto, PerFedAvg),
        *(IFCA, FeSEM, WeCFL, CGPFL, FedAC, FedDS, FedDSMIC, FedCUAU, CFL, FLHC, FedGroup),
        *(CAM, Ensemble, AutoK),
    )
}
METHODS["hypcluster"] = IFCA


def build_method(spec: Mapping[str, Any], authorize: Callable[[str], None] | None = None) -> Method:
    """The method of a job: ``{"method": "wecfl", "k": 3, ...}``, or ``"package.Class"`` for one of your own.

    Args:
        spec: the method's name or class path, and its settings; methods and penalties in them are such dictionaries
            too.
        authorize: the site's component policy, asked for a class path; see `cfl_flare.core.config.build`.

    Raises:
        ConfigError: an unknown method or setting, or a value out of its range.
    """
    settings = {key: _built(key, value, authorize) for key, value in spec.items()}
    name = settings.pop("method", None)
    if isinstance(name, str) and name in METHODS:
        if settings.get("k") == AUTO:
            return automatic(METHODS[name], settings, f"method {name}")
        return from_dict(METHODS[name], settings, f"method {name}")
    if isinstance(name, str) and name in COMBINATIONS:
        return COMBINATIONS[name].build(settings)
    if isinstance(name, str) and "." in name:
        return build({"class_path": name, "args": settings}, Method, "method", authorize)  # type: ignore[type-abstract]
    known = ", ".join((*METHODS, *COMBINATIONS))
    raise ConfigError(f"method {name!r} is unknown; there are {known}, or package.Class")


def _built(key: str, value: Any, authorize: Callable[[str], None] | None) -> Any:
    if isinstance(value, Mapping) and "method" in value:
        return build_method(value, authorize)
    if key == "penalties" and isinstance(value, (list, tuple)):
        return [build_penalty(v, authorize) for v in value]
    return [_built("", v, authorize) for v in value] if isinstance(value, (list, tuple)) else value


def describe_method(method: Method) -> dict[str, Any]:
    """The dictionary from which `build_method` builds this method again."""
    cls = type(method)
    known = METHODS.get(method.name) is cls
    name = method.name if known else class_path(method, "method")
    return {"method": name, **_fields(method)}


def _fields(obj: Any) -> dict[str, Any]:
    return {f.name: _described(getattr(obj, f.name)) for f in dataclasses.fields(obj)}


def _described(value: Any) -> Any:
    """A setting as JSON can hold it."""
    if isinstance(value, Method):
        return describe_method(value)
    if isinstance(value, Penalty):
        known = PENALTIES.get(value.name) is type(value)
        return {"penalty": value.name if known else class_path(value, "penalty"), **_fields(value)}
    return [_described(v) for v in value] if isinstance(value, tuple) else value
