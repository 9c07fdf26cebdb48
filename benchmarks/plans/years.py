# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The source of the plan ``stroke-years``: patients by date, or in random parts of the same sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from cfl_flare.core.seeds import stream
from cfl_flare.core.settings import check_types
from cfl_flare.data.hospitals import Stroke
from cfl_flare.data.preparation import Preparation
from cfl_flare.data.samples import DataSource, Samples


@dataclass(frozen=True)
class Years(DataSource):
    """Stroke patients of hospitals that have enough of them both in their first year and later.

    Attributes:
        parts: patients are divided by date, or each hospital's at random into parts of the same sizes.
        swapped: the second part trains, and the first is for testing.
        fewest: patients of a hospital in either part.
        seed: of the random parts.
    """

    prepares: ClassVar[bool] = True

    parts: Literal["dates", "random"] = "dates"
    swapped: bool = False
    fewest: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self, "data years")

    @cached_property
    def _stroke(self) -> Stroke:
        return Stroke(scaling="federation", first_days=365)

    def load(self) -> tuple[Samples, Samples]:
        """Both parts."""
        first, later = self._stroke.load()
        assert first.key is not None and later.key is not None
        owners, counts = np.unique(first.key, return_counts=True)
        others, later_counts = np.unique(later.key, return_counts=True)
        able = np.intersect1d(owners[counts >= self.fewest], others[later_counts >= self.fewest])
        first, later = (part.take(np.flatnonzero(np.isin(part.key, able))) for part in (first, later))
        if self.parts == "random":
            first, later = self._at_random(first, later)
        return (later, first) if self.swapped else (first, later)

    def _at_random(self, first: Samples, later: Samples) -> tuple[Samples, Samples]:
        every, drawn = first.joined(later), []
        assert first.key is not None and every.key is not None
        for owner in np.unique(first.key):
            rng = stream(self.seed, "random parts", str(owner))
            drawn.append(rng.permutation(np.flatnonzero(every.key == owner))[: (first.key == owner).sum()])
        chosen = np.zeros(len(every), bool)
        chosen[np.concatenate(drawn)] = True
        return every.take(np.flatnonzero(chosen)), every.take(np.flatnonzero(~chosen))

    def preparation(self, train: Samples, federation: Samples | None = None) -> Preparation:
        """As the stroke table's."""
        return self._stroke.preparation(train, federation)
