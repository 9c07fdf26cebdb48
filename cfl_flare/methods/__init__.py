# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The methods, one file a family. A new one is a subclass of `Method` and a line in `METHODS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cfl_flare.core.config import (
    build_named,
    from_dict,
    name_of,
    require,
    require_whole,
)
from cfl_flare.methods.auto_k import AUTO, AutoK, build_automatic
from cfl_flare.methods.base import Method
from cfl_flare.methods.cam import CAM
from cfl_flare.methods.cfl import CFL
from cfl_flare.methods.cflgp import CFLGP
from cfl_flare.methods.clove import CLoVE
from cfl_flare.methods.cuau import FedCUAU
from cfl_flare.methods.dsmic import FedDS, FedDSMIC
from cfl_flare.methods.ensemble import Ensemble
from cfl_flare.methods.fedac import FedAC
from cfl_flare.methods.fedavg import FedAvg, FedProx, Finetune, Local, PerFedAvg
from cfl_flare.methods.groups import Groups
from cfl_flare.methods.hierarchy import FLHC, FedGroup
from cfl_flare.methods.ifca import IFCA
from cfl_flare.methods.penalties import (
    PENALTIES,
    Contrastive,
    KnowledgeSharing,
    Penalty,
    Proximal,
    build_penalty,
)
from cfl_flare.methods.personal import CGPFL, Ditto, FedBABU, FedPer
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.methods.state import (
    Assignment,
    Download,
    Participant,
    Plan,
    ServerState,
    Traits,
    Update,
)
from cfl_flare.methods.wecfl import FeSEM, WeCFL

# Settings that every method has, and that belong to a combination as a whole.
OF_WHOLE = ("finetune", "finetune_epochs")


@dataclass(frozen=True)
class Combination:
    """A name for several methods in one; its settings are theirs.

    Attributes:
        outer: the method that contains the others.
        inner: the methods in it.
        fixed: settings that the name implies.
        copies: the setting that says how many copies of the inner method there are; None for one.
    """

    name: str
    summary: str
    outer: type[Method]
    inner: tuple[type[Method], ...]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    copies: str | None = None

    def settings(self) -> dict[str, Any]:
        """The settings with their defaults.

        The default is `dataclasses.MISSING` for a setting that has to be given, and a tuple where the inner methods'
        defaults differ.
        """
        defaults: dict[str, list[Any]] = {}
        if self.copies is not None:
            defaults[self.copies] = [dataclasses.MISSING]
        for cls in self.inner:
            for field in dataclasses.fields(cls):
                values = defaults.setdefault(field.name, [])
                if field.default not in values:
                    values.append(field.default)
        for field in dataclasses.fields(self.outer):
            if field.name not in ("base", "parts"):
                defaults.setdefault(field.name, [field.default])
        settings = {}
        for name, values in defaults.items():
            settings[name] = tuple(values) if len(values) > 1 else values[0]
        return {**settings, **self.fixed}

    def build(self, settings: Mapping[str, Any]) -> Method:
        """Build the method.

        Args:
            settings: those that are given, by name.

        Returns:
            The method.

        Raises:
            ConfigError: a setting is unknown, missing, or out of its range.
        """
        where = f"method {self.name}"
        known = self.settings()
        unknown = [name for name in settings if name not in known]
        first = (*unknown, "")[0]
        there = ", ".join(known)
        require(not unknown, f"{where}: unknown setting {first!r}; it has: {there}")
        given = {**self.fixed, **settings}

        # Fine-tuning belongs to the whole. Others go to the inner methods that have them, the rest to the outer one.
        inner = []
        outer = dict(given)
        for cls in self.inner:
            names = {field.name for field in dataclasses.fields(cls)}
            own = {k: given[k] for k in given if k in names and k not in OF_WHOLE}
            inner.append(from_dict(cls, own, where))
            for name in own:
                outer.pop(name, None)
        if self.copies is not None:
            require(
                self.copies in outer,
                f"{where}: setting {self.copies!r} is missing and has no default",
            )
            copies = outer.pop(self.copies)
            require_whole(where, 1000, **{self.copies: copies})
            inner *= copies
        parts = {"base": inner[0]} if self.outer is CAM else {"parts": inner}
        return from_dict(self.outer, {**parts, **outer}, where)


PSI = {"weighting": "samples"}
SUM = {"vote": "logits"}

COMBINATIONS = {
    c.name: c
    for c in (
        Combination(
            "ifca-cam",
            "IFCA with a global model added to the clusters' (Fed-CAM).",
            CAM,
            (IFCA,),
        ),
        Combination(
            "fesem-cam",
            "FeSEM, weighted, with a global model added (Fed-CAM).",
            CAM,
            (FeSEM,),
            PSI,
        ),
        Combination(
            "wecfl-cam", "WeCFL with a global model added: as fesem-cam.", CAM, (WeCFL,)
        ),
        Combination(
            "fedavg+",
            "K FedAvg models from K seeds, soft voting.",
            Ensemble,
            (FedAvg,),
            copies="k",
        ),
        Combination(
            "fedprox+",
            "K FedProx models from K seeds, soft voting.",
            Ensemble,
            (FedProx,),
            copies="k",
        ),
        Combination(
            "fedavg+ifca",
            "FedAvg and IFCA side by side, logits added.",
            Ensemble,
            (FedAvg, IFCA),
            SUM,
        ),
        Combination(
            "fedavg+fesem",
            "FedAvg and FeSEM side by side, logits added.",
            Ensemble,
            (FedAvg, FeSEM),
            SUM,
        ),
    )
}

METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in (
        *(FedAvg, FedProx, Finetune, Local, FedPer, FedBABU, Ditto, PerFedAvg),
        *(
            IFCA,
            FeSEM,
            WeCFL,
            CGPFL,
            FedAC,
            FedDS,
            FedDSMIC,
            FedCUAU,
            CFL,
            FLHC,
            FedGroup,
        ),
        *(CLoVE, CFLGP, Groups),
        *(CAM, Ensemble, AutoK),
    )
}
METHODS["hypcluster"] = IFCA


def build_method(
    spec: Mapping[str, Any],
    authorize: Callable[[str], None] | None = None,
) -> Method:
    """The method of a job: ``{"method": "wecfl", "k": 3, ...}``, or ``"package.Class"`` for one of your own.

    Methods and penalties in its settings are such dictionaries too. The site's component policy, `authorize`, is asked
    for a class path. A ConfigError names an unknown method or setting, or a value out of its range.

    Args:
        spec: the name of the class, and its settings.
        authorize: asked for each class path before it is imported; it raises to refuse
            it.
    """
    settings = {key: _build_value(key, value, authorize) for key, value in spec.items()}
    name = settings.pop("method", None)
    if isinstance(name, str) and name in METHODS and settings.get("k") == AUTO:
        return build_automatic(METHODS[name], settings, f"method {name}")
    if isinstance(name, str) and name in COMBINATIONS:
        return COMBINATIONS[name].build(settings)
    known = {**METHODS, **COMBINATIONS}
    return build_named({"method": name, **settings}, "method", known, Method, authorize)  # type: ignore[type-abstract]


def _build_value(
    key: str,
    value: Any,
    authorize: Callable[[str], None] | None,
) -> Any:
    if isinstance(value, Mapping) and "method" in value:
        return build_method(value, authorize)
    if key == "penalties" and isinstance(value, (list, tuple)):
        return [build_penalty(v, authorize) for v in value]
    if isinstance(value, (list, tuple)):
        return [_build_value("", item, authorize) for item in value]
    return value


def describe_method(method: Method) -> dict[str, Any]:
    """The dictionary from which `build_method` builds this method again.

    Args:
        method: the method.
    """
    return {"method": name_of(method, "method", METHODS), **_describe_fields(method)}


def _describe_fields(obj: Any) -> dict[str, Any]:
    return {
        f.name: _describe_value(getattr(obj, f.name)) for f in dataclasses.fields(obj)
    }


def _describe_value(value: Any) -> Any:
    """A setting as JSON can hold it."""
    if isinstance(value, Method):
        return describe_method(value)
    if isinstance(value, Penalty):
        return {
            "penalty": name_of(value, "penalty", PENALTIES),
            **_describe_fields(value),
        }
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_describe_value(item) for item in value]
    return value
