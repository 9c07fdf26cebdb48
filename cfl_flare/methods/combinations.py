# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Short names for combinations of methods: ``ifca-cam:k=10,warmup=10`` is ``CAM(base=IFCA(k=10), warmup=10)``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cfl_flare.core.config import from_dict, require_whole
from cfl_flare.core.errors import ConfigError
from cfl_flare.methods.base import Method
from cfl_flare.methods.cam import CAM
from cfl_flare.methods.ensemble import Ensemble
from cfl_flare.methods.fedavg import FedAvg, FedProx
from cfl_flare.methods.ifca import IFCA
from cfl_flare.methods.wecfl import FeSEM, WeCFL

# Settings that every method has, and that belong to a combination as a whole.
OF_WHOLE = ("finetune", "finetune_epochs")


@dataclass(frozen=True)
class Combination:
    """A name for several methods in one; its settings are theirs.

    Attributes:
        name: what it is called in a job.
        summary: what it is.
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
        defaults: dict[str, list[Any]] = {} if self.copies is None else {self.copies: [dataclasses.MISSING]}
        for field in (f for cls in self.inner for f in dataclasses.fields(cls)):
            if field.default not in defaults.setdefault(field.name, []):
                defaults[field.name].append(field.default)
        for field in dataclasses.fields(self.outer):
            if field.name not in ("base", "parts"):
                defaults.setdefault(field.name, [field.default])
        return {**{name: tuple(of) if len(of) > 1 else of[0] for name, of in defaults.items()}, **self.fixed}

    def build(self, settings: Mapping[str, Any]) -> Method:
        """Builds the method.

        Raises:
            ConfigError: an unknown setting, or a value out of its range.
        """
        where = f"method {self.name}"
        rest = dict(settings)
        unknown = [name for name in rest if name not in self.settings()]
        if unknown:
            there = ", ".join(self.settings())
            raise ConfigError(f"{where}: unknown setting {unknown[0]!r}; it has: {there}")
        names = [{f.name for f in dataclasses.fields(cls)} for cls in self.inner]
        # Fine-tuning belongs to the whole. Others go to the inner methods that have them, the rest to the outer one.
        given = [{k: v for k, v in rest.items() if k in known and k not in OF_WHOLE} for known in names]
        inner = [from_dict(c, {**self._fixed(known), **g}, where) for c, known, g in zip(self.inner, names, given)]
        outer = {k: v for k, v in rest.items() if k in OF_WHOLE or not any(k in known for known in names)}
        outer = {**self._fixed({f.name for f in dataclasses.fields(self.outer)}.difference(*names)), **outer}
        if self.outer is CAM:
            return from_dict(CAM, {"base": inner[0], **outer}, where)
        if self.copies is None:
            return from_dict(Ensemble, {"parts": inner, **outer}, where)
        if self.copies not in outer:
            raise ConfigError(f"{where}: setting {self.copies!r} is missing and has no default")
        copies = outer.pop(self.copies)
        require_whole(where, 1000, **{self.copies: copies})
        return from_dict(Ensemble, {"parts": inner * copies, **outer}, where)

    def _fixed(self, names: set[str]) -> dict[str, Any]:
        return {k: v for k, v in self.fixed.items() if k in names}


PSI, SUM = {"weighting": "samples"}, {"vote": "logits"}

COMBINATIONS = {
    c.name: c
    for c in (
        Combination("ifca-cam", "IFCA with a global model added to the clusters' (Fed-CAM).", CAM, (IFCA,)),
        Combination("fesem-cam", "FeSEM, weighted, with a global model added (Fed-CAM).", CAM, (FeSEM,), PSI),
        Combination("wecfl-cam", "WeCFL with a global model added: as fesem-cam.", CAM, (WeCFL,)),
        Combination("fedavg+", "K FedAvg models from K seeds, soft voting.", Ensemble, (FedAvg,), copies="k"),
        Combination("fedprox+", "K FedProx models from K seeds, soft voting.", Ensemble, (FedProx,), copies="k"),
        Combination("fedavg+ifca", "FedAvg and IFCA side by side, logits added.", Ensemble, (FedAvg, IFCA), SUM),
        Combination("fedavg+fesem", "FedAvg and FeSEM side by side, logits added.", Ensemble, (FedAvg, FeSEM), SUM),
    )
}
