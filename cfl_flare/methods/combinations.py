# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Short names for combinations of methods: ``ifca-cam:k=10,warmup=10`` is ``CAM(base=IFCA(k=10), warmup=10)``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cfl_flare.core.config import from_dict, require, require_whole
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
        where, known = f"method {self.name}", self.settings()
        unknown = [name for name in settings if name not in known]
        require(not unknown, f"{where}: unknown setting {(*unknown, '')[0]!r}; it has: {', '.join(known)}")
        given = {**self.fixed, **settings}
        # Fine-tuning belongs to the whole. Others go to the inner methods that have them, the rest to the outer one.
        names = [{f.name for f in dataclasses.fields(cls)}.difference(OF_WHOLE) for cls in self.inner]
        inner = [
            from_dict(cls, {k: v for k, v in given.items() if k in of}, where) for cls, of in zip(self.inner, names)
        ]
        outer = {k: v for k, v in given.items() if not any(k in of for of in names)}
        if self.copies is not None:
            require(self.copies in outer, f"{where}: setting {self.copies!r} is missing and has no default")
            copies = outer.pop(self.copies)
            require_whole(where, 1000, **{self.copies: copies})
            inner *= copies
        parts = {"base": inner[0]} if self.outer is CAM else {"parts": inner}
        return from_dict(self.outer, {**parts, **outer}, where)


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
