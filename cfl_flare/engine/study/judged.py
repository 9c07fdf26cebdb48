# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The measurements by which a study judges a candidate: those after its best comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cfl_flare.results.comparison import AtHospital, Measured


@dataclass(frozen=True)
class Judged:
    """A candidate at the comparison at which it was best on validation samples.

    Training beyond that comparison may overfit. Test samples have no part in the choice of the comparison.

    Attributes:
        rounds: after which it was measured.
        validated: what each hospital measured on validation samples.
        tested: the same on test samples.
    """

    rounds: int
    validated: Measured
    tested: Measured

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, so that a study that is resumed has them."""
        return {
            "rounds": self.rounds,
            "validated": _describe(self.validated),
            "tested": _describe(self.tested),
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Judged:
        """Read what `to_dict` wrote."""
        return cls(
            int(values["rounds"]), _read(values["validated"]), _read(values["tested"])
        )


def _describe(measured: Measured) -> dict[str, Any]:
    """Each hospital's numbers, None for an undefined one."""
    described = {}
    for name, hospital in measured.items():
        values = {
            field.name: getattr(hospital, field.name) for field in fields(hospital)
        }
        draws = [
            None if math.isnan(value) else value for value in hospital.draws.tolist()
        ]
        described[name] = {**values, "draws": draws}
    return described


def _read(described: Mapping[str, Any]) -> Measured:
    measured = {}
    for name, values in described.items():
        draws = np.array(values["draws"], np.float64)
        classes = tuple(values["classes"])
        measured[name] = AtHospital(**{**values, "draws": draws, "classes": classes})
    return measured
